"""compose.yml by the compose specification's schema, and what a schema cannot see: files, secrets, settings, who waits for whom."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from cdc.settings import load
from tests.docs.pages import ROOT
from tests.docs.test_pages import parse

COMPOSE = ROOT / "compose.yml"
OURS = ("init", "cdc-a", "cdc-b")


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())
    return document


def test_it_is_what_the_specification_allows() -> None:
    tool = Path(sys.executable).parent / "check-jsonschema"
    done = subprocess.run(
        [tool, "--builtin-schema", "vendor.compose-spec", COMPOSE], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_all_that_is_named_is_there(compose: dict[str, Any]) -> None:
    services = compose["services"]
    for name, service in services.items():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert (ROOT / source).exists() if source.startswith(".") else source in compose["volumes"], volume
        assert set(service.get("secrets", ())) <= compose["secrets"].keys(), name
        assert set(service.get("depends_on", ())) <= services.keys(), name
        image = service["image"]
        assert image == "cdc" or (":" in image and not image.endswith(":latest")), "a tag that says which"
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ())), "on this machine alone"
    waits = [service["depends_on"] for service in services.values() if isinstance(service.get("depends_on"), dict)]
    awaited = {other for each in waits for other, how in each.items() if how["condition"] == "service_healthy"}
    assert awaited == {"postgres", "kafka"}
    assert all("healthcheck" in services[other] for other in awaited)


def test_ours_are_closed(compose: dict[str, Any]) -> None:
    for name in OURS:
        service = compose["services"][name]
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert "no-new-privileges:true" in service["security_opt"]
        assert not [value for value in service["environment"].values() if "://" in str(value)], "a secret comes from a file"


def test_our_settings_and_commands_are_taken(compose: dict[str, Any], tmp_path: Path) -> None:
    for name in OURS:
        service = compose["services"][name]
        environment = {key: str(value).replace("/run/secrets", str(tmp_path)) for key, value in service["environment"].items()}
        (tmp_path / "dsn").write_text("postgresql://postgres:p@postgres:5432/shop\n")
        (tmp_path / "http-token").write_text("a-token-of-the-test\n")
        [file] = [volume.split(":")[0] for volume in service["volumes"] if ":/etc/cdc/cdc.toml:" in volume]
        settings = load(ROOT / file, [], {**environment, "CDC_HTTP__LISTEN": "0.0.0.0:8642"})
        assert settings.postgres.dsn.get_secret_value().endswith("@postgres:5432/shop")
        assert settings.http.address == ("0.0.0.0", 8642)
        command, *arguments = service["command"]
        parse(command, arguments)
    grace_s = int(compose["services"]["cdc-a"]["stop_grace_period"].removesuffix("s"))
    assert grace_s > settings.shutdown_grace.total_seconds()


def test_prometheus_asks_the_pipelines_that_compose_starts(compose: dict[str, Any]) -> None:
    prometheus = yaml.safe_load((ROOT / "docker" / "prometheus" / "prometheus.yml").read_text())
    [job] = prometheus["scrape_configs"]
    assert {target.split(":")[0] for target in job["static_configs"][0]["targets"]} == {"cdc-a", "cdc-b"}
    [source] = yaml.safe_load((ROOT / "docker/grafana/provisioning/datasources/prometheus.yml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
