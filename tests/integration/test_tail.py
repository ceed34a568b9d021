"""`cdc tail` on real servers: decoded events, personal fields masked."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from cdc.cli.tail import _plain
from tests.conftest import Pipelines
from tests.pipeline import Pipeline

pytestmark = pytest.mark.servers


@pytest.fixture
def pipeline(pipelines: Pipelines, database: str, kafka: str) -> Pipeline:
    made: Pipeline = pipelines(database, kafka)
    return made


def test_committed_events_are_decoded_and_personal_fields_are_masked(pipeline: Pipeline) -> None:
    pipeline.init()
    folder = pipeline.write().parent / "schemas"
    (folder / "registry.toml").write_text('[subjects.Thing]\npersonal = ["text"]\n')
    pipeline.started()
    pipeline.execute(
        "INSERT INTO outbox (aggregatetype, aggregateid, type, payload) VALUES ('thing', 'k', 'Thing', '{\"n\": 7, \"text\": \"Ada\"}')"
    )
    pipeline.wait_numbers([7])
    answer = pipeline.command("tail", "--from-beginning", "--json")
    assert answer.code == 0, answer.err
    [document] = [json.loads(line) for line in answer.out.splitlines()]
    assert document["topic"] == pipeline.topic
    assert document["key"] == "k"
    assert document["headers"]["ce_type"] == "Thing"
    assert document["value"] == {"n": 7, "text": "***"}
    assert "Ada" not in answer.out + answer.err


def test_times_are_written_as_elsewhere() -> None:
    assert _plain({"at": datetime(2026, 11, 30, 20, 5, tzinfo=UTC)}) == {"at": "2026-11-30T20:05:00Z"}


def test_without_a_topic_it_says_what_to_do(pipeline: Pipeline) -> None:
    pipeline.init()
    answer = pipeline.command("tail", "--from-beginning")
    assert answer.code == 5
    assert "no topic fits" in answer.err
    assert "Fix:" in answer.err
    assert "cdc dead-letters list" in answer.err
