"""`cdc slot` on real servers: a place is kept, and what was published since comes again, marked, without disturbing live rows."""

from __future__ import annotations

import json
import time
from typing import Any

import psycopg
import pytest
from psycopg import sql

from cdc.devstack.postgres import PostgresServer
from cdc.position import Lsn
from tests.conftest import Pipelines, drop_database
from tests.integration.test_recover import recovered, ruled, verified
from tests.pipeline import Event, Pipeline, sizes
from tests.waiting import wait_for

pytestmark = pytest.mark.servers


def slot(pipeline: Pipeline, *arguments: str) -> dict[str, Any]:
    answer = pipeline.here("slot", *arguments, "--json")
    assert answer.code == 0, answer.err
    document: dict[str, Any] = json.loads(answer.out.splitlines()[-1])
    return document


def replays(events: list[Event]) -> list[Event]:
    return [event for event in events if "ce_replay" in event.headers]


def essence(event: Event) -> tuple[Any, ...]:
    """What a replay keeps."""
    headers = {name: value for name, value in event.headers.items() if name not in {"ce_sequence", "ce_replay"}}
    return event.key, event.value, headers, event.timestamp_ms


@sizes(10_000, 100_000)
def test_field_case_137_what_was_published_since_the_bookmark_comes_again_and_live_rows_go_on(
    pipeline: Pipeline, size: int, figures: dict[str, Any]
) -> None:
    """Ids, keys and times stay, each replay is told as one, and a consumer that dedups on the id sees each once."""
    pipeline.init()
    pipeline.started()
    port = pipeline.another_port()
    pipeline.start(port=port)
    wait_for(lambda: pipeline.get("/health/ready", port)[1].startswith("standby"), 30, "a second one stands by")
    pipeline.insert(-3, -1)
    pipeline.wait_confirmed()
    kept = slot(pipeline, "bookmark", "before")
    for first in range(0, size, 1_000):
        pipeline.insert(first, first + 999, key=f"k{first // 1_000}")
    pipeline.execute("INSERT INTO outbox (aggregatetype, aggregateid, type, payload) VALUES ('thing', 'k', 'Thing', '{\"n\": \"x\"}')")
    pipeline.wait_numbers(range(-3, size))
    firsts = pipeline.events()
    pipeline.wait_confirmed()
    began = time.monotonic()
    document = slot(pipeline, "rewind", "before")
    figures["rewind_seconds"] = round(time.monotonic() - began, 1)
    assert document["end_lsn"] == kept["lsn"]
    if pipeline.connection.info.server_version >= 170_000:
        assert pipeline.execute("SELECT failover FROM pg_replication_slots WHERE slot_name = %s", (pipeline.slot_name,)) == [(True,)]
    pipeline.insert(size, size + 9)
    wait_for(lambda: len(pipeline.events()) == len(firsts) + size + 10, 60, "all came again, and the live rows")
    events = pipeline.events()[len(firsts) :]
    assert [essence(event) for event in events[:size]] == [essence(event) for event in firsts[3:]]
    assert {event.headers["ce_replay"] for event in events[:size]} == {b"rewind:1"}
    assert [event.n for event in events[size:]] == list(range(size, size + 10))
    assert not replays(events[size:])
    sequences = [event.headers["ce_sequence"] for event in pipeline.events()]
    assert sequences == sorted(sequences), "whoever goes by places loses nothing"
    assert len({event.headers["ce_id"] for event in pipeline.events()}) == size + 13
    letters = pipeline.events(pipeline.dead_letter_topic)
    assert [letter.headers.get("ce_replay") for letter in letters] == [None, b"rewind:1"]
    expected = {"rows": size + 14, "events": size + 13, "dead_letters": 1, "replayed": size + 1}
    assert verified(pipeline) == expected
    figures["rewind_replayed"] = expected["replayed"]
    assert "replay_until" not in json.loads(pipeline.events(pipeline.position_topic)[-1].value or b"")


def test_a_kill_in_the_middle_of_a_replay_keeps_the_marker(pipeline: Pipeline) -> None:
    pipeline.init()
    slot(pipeline, "bookmark", "start")
    pipeline.started()
    for first in range(0, 6_000, 100):
        pipeline.insert(first, first + 99)
    pipeline.wait_numbers(range(6_000))
    slot(pipeline, "rewind", "start")
    wait_for(lambda: len(replays(pipeline.events())) > 0 or pipeline.process.poll(), 30, "some came again")
    pipeline.kill()
    pipeline.insert(6_000, 6_004)
    pipeline.started()
    wait_for(lambda: len(pipeline.events()) == 12_005, 60, "all came again")
    again = pipeline.events()[6_000:]
    assert [event.n for event in again] == list(range(6_005))
    assert len(replays(again)) == 6_000
    assert verified(pipeline) == {"rows": 6_005, "events": 6_005, "replayed": 6_000}


def test_going_back_again_in_the_middle_of_a_replay(pipeline: Pipeline) -> None:
    """All up to where the pipeline once was is a replay, however often somebody goes back before it is there again."""
    pipeline.init()
    slot(pipeline, "bookmark", "start")
    pipeline.started()
    pipeline.insert(0, 9)
    pipeline.wait_numbers(range(10))
    pipeline.wait_confirmed()
    pipeline.stop()
    assert slot(pipeline, "rewind", "start")["generation"] == 1
    document = slot(pipeline, "rewind", "start")
    assert document["generation"] == 2
    assert Lsn.parse(document["replay_until"]) > Lsn.parse(document["end_lsn"])
    pipeline.started()
    pipeline.insert(10)
    wait_for(lambda: len(pipeline.events()) == 21, 30, "all came again")
    assert [event.headers.get("ce_replay") for event in pipeline.events()[10:]] == [b"rewind:2"] * 10 + [None]
    assert verified(pipeline) == {"rows": 11, "events": 11, "replayed": 10}


def test_field_case_133_what_cannot_be_reached_is_refused_with_what_can_and_nothing_is_changed(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.init()
    pipeline.started()
    pipeline.insert(1, 5)
    pipeline.wait_confirmed()
    kept = slot(pipeline, "bookmark", "here")
    before = ruled(pipeline)
    refused = pipeline.here("slot", "rewind", "there")
    assert refused.code == 4
    assert f"there is no bookmark 'there'; a slot cannot go back by itself. Within reach: here at {kept['lsn']}" in refused.line
    assert "`cdc replay`" in refused.line
    for name in ("0/0", "Here", "x" * 60):
        malformed = pipeline.here("slot", "rewind", name)
        assert malformed.code == 2
        assert "no name for a bookmark" in malformed.line
    twice = pipeline.here("slot", "bookmark", "here")
    assert twice.code == 2
    assert "`cdc slot drop here`" in twice.line
    assert ruled(pipeline) == before
    assert pipeline.ready(), "nothing was disturbed"
    [shown] = slot(pipeline, "list")["bookmarks"]
    assert (shown["name"], shown["slot"], shown["lsn"]) == ("here", f"{pipeline.slot_name}_bookmark_here", kept["lsn"])
    assert pipeline.here("slot", "list").code == 0
    with monkeypatch.context() as patch:
        found = json.loads(pipeline.here("check", "--json").out)["findings"]
        assert [each["status"] for each in found if each["check"] == "bookmarks"] == ["ok"]
        patch.setattr("cdc.audit.check_postgres.BOOKMARK_BYTES", 1)
        [finding] = [each for each in json.loads(pipeline.here("check", "--json").out)["findings"] if each["check"] == "bookmarks"]
        assert (finding["status"], finding["fix"]) == ("warning", "`cdc slot drop here` when it has served")
    assert pipeline.here("slot", "drop", "here").code == 0
    assert slot(pipeline, "list")["bookmarks"] == []


def test_a_bookmark_mends_a_slot_that_was_lost(pipeline: Pipeline) -> None:
    """The log from the bookmark on is whole, so nothing of the gap is missing, not even rows that were deleted."""
    pipeline.init()
    pipeline.started()
    pipeline.insert(1, 3)
    pipeline.wait_confirmed()
    slot(pipeline, "bookmark", "spare")
    pipeline.insert(4, 6)
    pipeline.wait_confirmed()
    pipeline.stop()
    pipeline.insert(7, 9)
    pipeline.execute("DELETE FROM outbox")
    pipeline.execute(f"SELECT pg_drop_replication_slot('{pipeline.slot_name}')")
    slot(pipeline, "rewind", "spare")
    pipeline.started()
    wait_for(lambda: len(pipeline.events()) == 12, 30, "all came")
    assert [event.n for event in pipeline.events() if "ce_replay" not in event.headers] == list(range(1, 10))
    assert [event.n for event in replays(pipeline.events())] == [4, 5, 6]


def test_on_postgresql_15(pipelines: Pipelines, postgres15: PostgresServer, unique: str, kafka: str) -> None:
    """A server without failover slots, that forgets confirmations when it stops."""
    with psycopg.connect(postgres15.dsn(), autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(unique)))
        pipeline = pipelines(postgres15.dsn(unique), kafka)
        pipeline.init()
        pipeline.started()
        slot(pipeline, "bookmark", "start")
        pipeline.insert(1, 5)
        pipeline.wait_confirmed()
        slot(pipeline, "rewind", "start")
        pipeline.insert(6)
        wait_for(lambda: len(pipeline.events()) == 11, 30, "all came again")
        assert verified(pipeline) == {"rows": 6, "events": 6, "replayed": 5}
        recovered(pipeline, "--rebuild")
        pipeline.insert(7)
        wait_for(lambda: len(pipeline.events()) == 12, 30, "it goes on")
        assert verified(pipeline) == {"rows": 7, "events": 7, "replayed": 5}
        pipeline.stop()
        pipeline.hang_up()
        drop_database(admin, unique)
