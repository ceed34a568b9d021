"""`cdc status` asks the pipeline that runs, and says so when none does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from cdc.cli import main
from cdc.cli.status import facts, headline
from cdc.observe.guard import Guard
from cdc.observe.http import HttpServer
from cdc.observe.observer import PipelineObserver
from cdc.observe.web import create_app
from cdc.pipeline.supervisor import State
from tests.unit.observe.observe_samples import POSITION


@pytest.fixture(autouse=True)
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cdc.toml").write_text('name = "shop"\n[postgres]\ndsn = "host=127.0.0.1"\n')
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def running() -> Iterator[HttpServer]:
    observer = PipelineObserver("shop")
    observer.state(State.BACKOFF, "no broker")
    server = HttpServer("127.0.0.1", 0, lambda: create_app(observer.health, observer.metrics))
    server.start()
    yield server
    server.stop()


def test_json(running: HttpServer, capsys: pytest.CaptureFixture[str]) -> None:
    everywhere = ["--set", f"http.listen=0.0.0.0:{running.port}", "--set", "http.token=0123456789abcdef"]
    assert main(["status", "--json", *everywhere]) == 0
    document = orjson.loads(capsys.readouterr().out.splitlines()[-1])
    assert document["running"] is True
    assert document["state"] == "backoff"
    assert document["last_errors"][0]["reason"] == "no broker"


def test_it_brings_the_token(capsys: pytest.CaptureFixture[str]) -> None:
    token = "0123456789abcdef"
    observer = PipelineObserver("shop")
    guarded = HttpServer("127.0.0.1", 0, lambda: Guard(create_app(observer.health, observer.metrics), token))
    guarded.start()
    try:
        assert main(["status", "--json", "--set", f"http.listen=127.0.0.1:{guarded.port}", "--set", f"http.token={token}"]) == 0
    finally:
        guarded.stop()
    assert orjson.loads(capsys.readouterr().out.splitlines()[-1])["running"] is True


def test_for_people(running: HttpServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--set", f"http.listen=127.0.0.1:{running.port}"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("shop: backoff, no broker\n")
    assert "since it started: kafka transactions" in out
    assert "Last errors" in out


def test_another_pipeline_at_that_address_is_not_ours(running: HttpServer, capsys: pytest.CaptureFixture[str]) -> None:
    main(["status", "--json", "--set", f"http.listen=127.0.0.1:{running.port}", "--set", "name=other"])
    out, err = capsys.readouterr()
    assert orjson.loads(out.splitlines()[-1])["running"] is False
    assert err.startswith("no pipeline other answers at http.listen")


def test_headline_and_facts_of_little() -> None:
    document = {"pipeline": "shop", "state": "streaming", "lag": {"bytes": 0, "seconds": 0.0}, "slot": None}
    assert headline(document) == "shop: streaming, 0 bytes (0.0 s) behind"
    assert dict(facts(document)) == {"lag bytes": 0, "lag seconds": 0.0}
    assert headline({"pipeline": "shop", "state": "not running"}) == "shop: not running"


def test_open_dead_letters_are_in_the_headline() -> None:
    document = {"pipeline": "shop", "state": "not running", "running": False, "totals": {"dead_letters": 0}, "dead_letters_open": 1}
    assert headline(document) == "shop: not running; 1 dead letter open: see `cdc dead-letters list`"
    assert dict(facts(document)) == {"dead letters open": 1}, "totals are of a process, and there is none"
    assert "; 2 dead letters open:" in headline({**document, "dead_letters_open": 2})
    assert headline({**document, "dead_letters_open": 0}) == "shop: not running"
    uncounted = {**document, "state": "streaming", "dead_letters_open": None, "totals": {"dead_letters": 3}}
    assert headline(uncounted) == "shop: streaming; 3 dead letters since it started: see `cdc dead-letters list`"


def test_what_was_parked_since_the_count_is_open_too() -> None:
    observer = PipelineObserver("shop")
    observer.health.committed(POSITION, 1, 2)
    assert observer.health.document()["dead_letters_open"] is None
    observer.health.dead_letters_open, observer.health.dead_letters_counted = 1, 2
    assert observer.health.document()["dead_letters_open"] == 1
    observer.health.committed(POSITION, 0, 1)
    assert observer.health.document()["dead_letters_open"] == 2
