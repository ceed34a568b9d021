"""An outbox without a table: logical messages beside rows, in one transaction, through the real servers."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest

from tests.pipeline import SCHEMA, Pipeline, decode

pytestmark = pytest.mark.servers


def emit(connection: psycopg.Connection[Any], number: int, **changes: object) -> None:
    event: dict[str, object] = {
        "id": f"m{number}",
        "aggregatetype": "thing",
        "aggregateid": "k",
        "type": "Thing",
        "payload": {"n": number, "text": "é"},
    } | changes
    statement = "SELECT pg_logical_emit_message(true, 'shop.outbox', %s)"
    connection.execute(statement, (json.dumps(event),))


def test_rows_and_messages_of_one_transaction_keep_their_order(pipeline: Pipeline) -> None:
    pipeline.set(outbox__message_prefix="shop.outbox").init()
    pipeline.started()
    with pipeline.connection.transaction():
        emit(pipeline.connection, 1)
        pipeline.insert(2)
        emit(pipeline.connection, 3)
        pipeline.connection.execute("SELECT pg_logical_emit_message(true, 'other', 'x')")
        pipeline.connection.execute("SELECT pg_logical_emit_message(false, 'shop.outbox', 'not transactional')")
        emit(pipeline.connection, 4, payload={"n": "no number"})
    pipeline.wait_numbers([1, 2, 3])
    events = pipeline.events()
    assert [decode(event.value, SCHEMA)["n"] for event in sorted(events, key=lambda event: event.headers["ce_sequence"])] == [1, 2, 3]
    assert len({event.headers["ce_sequence"][:20] for event in events}) == 1
    assert {event.headers["ce_id"] for event in events} >= {b"m1", b"m3"}
    [dead] = pipeline.events(pipeline.dead_letter_topic)
    assert dead.headers["cdc.id"] == b"m4"
    assert json.loads(dead.value or b"") == {"n": "no number"}

    verdict = pipeline.command("verify", "--json")
    assert verdict.code == 0, verdict.out + verdict.err
    assert json.loads(verdict.out.splitlines()[-1])["unexpected"] == 0


def test_messages_survive_a_kill_and_are_not_published_twice(pipeline: Pipeline) -> None:
    pipeline.set(outbox__message_prefix="shop.outbox").init()
    pipeline.started()
    emit(pipeline.connection, 1)
    pipeline.wait_numbers([1])
    pipeline.kill()
    emit(pipeline.connection, 2)
    pipeline.started()
    pipeline.wait_numbers([1, 2])


def test_a_prefix_that_is_set_later_counts_from_then_on(pipeline: Pipeline) -> None:
    pipeline.init()
    pipeline.started()
    emit(pipeline.connection, 1)
    pipeline.insert(2)
    pipeline.wait_numbers([2])
    pipeline.terminate()
    pipeline.set(outbox__message_prefix="shop.outbox").write()
    pipeline.started()
    emit(pipeline.connection, 3)
    pipeline.wait_numbers([2, 3])
