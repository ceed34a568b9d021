"""`cdc status` when no pipeline answers: the same document, from PostgreSQL and Kafka."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cdc.cli import main
from cdc.devstack.kafka import KafkaBroker
from tests.conftest import Pipelines
from tests.pipeline import Pipeline
from tests.waiting import wait_for

pytestmark = pytest.mark.servers


def status(pipeline: Pipeline, capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["status", "--json", "--config", str(pipeline.write()), *arguments]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return document


def test_stopped(pipeline: Pipeline, capsys: pytest.CaptureFixture[str]) -> None:
    pipeline.init()
    pipeline.started()
    pipeline.insert(1)
    pipeline.wait_numbers([1])
    answered = status(pipeline, capsys)
    assert answered["running"] is True
    pipeline.stop()
    pipeline.insert(2)
    document = status(pipeline, capsys)
    assert document["running"] is False
    assert document["state"] == "not running"
    assert document["reason"] == ""
    assert document["position"]["end_lsn"] == str(pipeline.position())
    assert document["lag"]["bytes"] > 0
    assert document["slot"]["name"] == pipeline.slot_name
    assert document["slot"]["retained_bytes"] > 0
    assert set(document) <= set(answered), "the same form"


def test_a_pipeline_that_runs_elsewhere(pipeline: Pipeline, capsys: pytest.CaptureFixture[str]) -> None:
    pipeline.init()
    pipeline.started()
    document = status(pipeline, capsys, "--set", "http.listen=off")
    assert document["running"] is False
    assert "a pipeline runs somewhere else" in document["reason"]
    pipeline.stop()


def test_ends_that_are_away(pipeline: Pipeline, capsys: pytest.CaptureFixture[str]) -> None:
    document = status(pipeline, capsys)
    assert "does not exist" in document["reason"]
    nobody = pipeline.another_port()
    pipeline.settings["postgres.dsn"] = f"host=127.0.0.1 port={nobody} user=cdc password=canary"
    pipeline.settings["kafka.bootstrap.servers"] = f"127.0.0.1:{nobody}"
    document = status(pipeline, capsys)
    assert "PostgreSQL" in document["reason"]
    assert "Kafka" in document["reason"]
    assert document["position"] is None
    assert "canary" not in json.dumps(document)
    assert main(["status", "--config", str(pipeline.config)]) == 0
    assert capsys.readouterr().out.startswith(f"{pipeline.name}: not running, ")


def test_a_password_that_is_refused_is_said_with_its_fix(pipeline: Pipeline, capsys: pytest.CaptureFixture[str]) -> None:
    pipeline.settings["postgres.dsn"] = f"{pipeline.settings['postgres.dsn']} user=nobody_of_this_name"
    pipeline.settings["kafka.bootstrap.servers"] = f"127.0.0.1:{pipeline.another_port()}"
    assert main(["status", "--config", str(pipeline.write())]) == 3
    out, err = capsys.readouterr()
    assert out.startswith(f"{pipeline.name}: not running, ")
    assert err.count("Fix: ") == 2, err


def test_a_broker_that_does_not_answer_is_shown_while_rows_come(pipelines: Pipelines, database: str, spare_kafka: KafkaBroker) -> None:
    pipeline = pipelines(database, spare_kafka.bootstrap_servers)
    pipeline.init()
    pipeline.started()
    pipeline.insert(1)
    pipeline.wait_numbers([1])
    spare_kafka.freeze()
    try:
        pipeline.insert(2)
        wait_for(lambda: not pipeline.ready(), 30, "the pipeline shows that it waits")
        code, text = pipeline.get("/health/ready")
        assert (code, text.strip()) == (503, "streaming: Kafka has not answered for 3 s")
    finally:
        spare_kafka.thaw()
    pipeline.wait_ready()
    pipeline.wait_numbers([1, 2])
