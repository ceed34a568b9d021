"""Who may import whom: the contracts in pyproject.toml say what the architecture says; `make lint` checks that they are kept."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

LAYERS = [
    "__main__",
    "cli",
    "app",
    "sinks",
    "testing",
    "devstack",
    "settings|observe",
    "audit",
    "pipeline|consumer",
    "kafka|redis|rabbitmq|outbox",
    "avro",
    "postgres",
    "event|resilience",
    "position",
    "errors",
]
"""Top to bottom; a row imports only rows below it, and rooms in one row not each other."""

CLIENTS = {
    "confluent_kafka": {"kafka", "cli", "devstack", "audit", "consumer"},
    "psycopg": {"postgres", "outbox", "cli", "devstack", "audit", "consumer", "testing"},
    "prometheus_client": {"observe"},
    "uvicorn": {"observe", "devstack"},
    "structlog": {"observe"},
    "typer": {"cli"},
}
"""Client libraries and the rooms that may name them."""


def contracts() -> list[dict[str, Any]]:
    document = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    listed: list[dict[str, Any]] = document["tool"]["importlinter"]["contracts"]
    return listed


def test_the_layers_are_those_of_the_architecture_and_leave_nobody_out() -> None:
    (layers,) = [contract for contract in contracts() if contract["type"] == "layers" and contract["containers"] == ["cdc"]]
    assert layers["exhaustive"] is True
    assert [layer.replace(" ", "").replace("(", "").replace(")", "") for layer in layers["layers"]] == LAYERS


def test_there_are_contracts_for_what_thinks_and_for_clients() -> None:
    assert any(contract["type"] == "forbidden" for contract in contracts())


@pytest.mark.parametrize("client", list(CLIENTS))
def test_a_client_library_has_its_room(client: str) -> None:
    users = {
        file.relative_to(ROOT / "cdc").parts[0].removesuffix(".py")
        for file in (ROOT / "cdc").rglob("*.py")
        if any(line.lstrip().startswith((f"import {client}", f"from {client}")) for line in file.read_text().splitlines())
    }
    assert users <= CLIENTS[client]
