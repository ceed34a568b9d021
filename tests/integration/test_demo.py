"""`cdc demo` as people start it: it ends by itself, and its last line says what went in, what came out and what was wrong."""

from __future__ import annotations

import json
from pathlib import Path

import psycopg
import pytest

from cdc.audit.judge import DEFECTS
from cdc.cli import main
from tests.pipeline import cdc

pytestmark = pytest.mark.servers


def test_the_demo_ends_clean_and_says_so_in_one_line() -> None:
    answer = cdc("demo", "--orders", "300", "--json", timeout_s=240)
    assert answer.code == 0, answer.err
    found = json.loads(answer.out.splitlines()[-1])
    assert found["orders"] == 300
    assert found["rows"] == found["events"] + found["dead_letters"] > 300
    assert [found[kind] for kind in DEFECTS] == [0] * len(DEFECTS)
    assert found["kills"] >= 1
    assert found["events_per_s"] > 0
    assert 0 <= found["latency_ms"]["p50"] <= found["latency_ms"]["p99"]
    assert "postgres_dsn" not in found


@pytest.mark.packages
@pytest.mark.parametrize("sink", ["redis", pytest.param("rabbitmq", marks=pytest.mark.soak)])  # which takes seven seconds to start
def test_the_demo_is_the_same_on_another_sink(sink: str) -> None:
    answer = cdc("demo", "--orders", "100", "--sink", sink, "--json", timeout_s=240)
    assert answer.code == 0, answer.err
    found = json.loads(answer.out.splitlines()[-1])
    assert found["orders"] == 100
    assert found["rows"] == found["events"] + found["dead_letters"] > 100
    assert [found[kind] for kind in DEFECTS] == [0] * len(DEFECTS)
    assert found["kills"] >= 1


@pytest.mark.soak
@pytest.mark.packages
@pytest.mark.parametrize("sink", ["redis", "rabbitmq"])
def test_the_shop_is_the_same_on_another_sink(sink: str) -> None:
    answer = cdc("demo", "--orders", "200", "--kill-consumers", "1", "--sink", sink, "--json", timeout_s=280)
    assert answer.code == 0, answer.err
    found = json.loads(answer.out.splitlines()[-1])
    assert [found[key] for key in ("effects_missing", "effects_doubled", "effects_reordered", "stock_error")] == [0] * 4
    assert [found[kind] for kind in DEFECTS] == [0] * len(DEFECTS)
    assert found["consumer_kills"] >= 5


@pytest.mark.parametrize("sink", ["redis", "rabbitmq"])
def test_a_server_that_is_not_installed_is_asked_for(sink: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("cdc.devstack.debian._places", lambda _: [tmp_path])
    assert main(["demo", "--sink", sink]) == 2


def test_consumers_are_killed_and_servers_that_are_kept_can_be_looked_at_and_stopped() -> None:
    answer = cdc("demo", "--orders", "200", "--kill-consumers", "1", "--json", "--keep", timeout_s=280)
    assert answer.code == 0, answer.err
    found = json.loads(answer.out.splitlines()[-1])
    try:
        assert [found[key] for key in ("effects_missing", "effects_doubled", "effects_reordered", "stock_error")] == [0] * 4
        assert found["orders"] == 200
        assert found["consumer_kills"] >= 5  # each of them
        assert found["http_orders"] > 0 < found["http_ms"]["p50"]
        with psycopg.connect(found["postgres_dsn"]) as connection:
            assert connection.execute("SELECT count(*) FROM outbox").fetchone() == (found["rows"],)
        again = cdc("verify", "--config", found["config"], "--json")
        assert again.code == 0, again
        assert json.loads(again.out)["events"] == found["events"]
    finally:
        folder = found["config"].removesuffix("/cdc.toml")
        stopped = cdc("dev", "down", "--dir", folder, "--json")
    assert len(json.loads(stopped.out)["stopped"]) == 2
