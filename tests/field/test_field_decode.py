"""Field cases 17, 28, 30, 35, 50: the link, and what comes over it beside inserts."""

from __future__ import annotations

import time

import psycopg
import pytest

from tests.pipeline import SCHEMA, Pipeline, decode, sizes
from tests.waiting import wait_for

pytestmark = pytest.mark.servers


@sizes(("300ms", 5), ("500ms", 60))
def test_field_case_17_an_idle_link_is_kept_and_a_lost_one_made_anew(pipeline: Pipeline, size: tuple[str, float]) -> None:
    interval, seconds = size
    pipeline.set(postgres__status_interval=interval).init()
    pipeline.started()
    pid = pipeline.slot().active_pid
    until = time.monotonic() + seconds
    pids = set()

    def over() -> bool:
        pids.add(pipeline.slot().active_pid)
        return time.monotonic() >= until

    wait_for(over, seconds + 5)
    assert pids == {pid}
    assert pipeline.status()["totals"]["failures"] == 0
    pipeline.insert(1)
    pipeline.wait_numbers([1])
    pipeline.execute("SELECT pg_terminate_backend(%s)", (pid,))
    pipeline.insert(2)
    pipeline.wait_numbers([1, 2])
    assert pipeline.slot().active_pid not in (None, pid)
    assert pipeline.status()["totals"]["failures"] == 1


def by_hand(pipeline: Pipeline, tables: str = "outbox", *, name: str = "") -> None:
    """Make a publication as people do, with everything that it publishes by default."""
    pipeline.execute(f'CREATE PUBLICATION "{name or pipeline.slot_name}" FOR TABLE {tables}')


@pytest.fixture
def table(pipeline: Pipeline) -> str:
    """The usual table, and one that refers to it."""
    pipeline.execute(
        "CREATE TABLE outbox (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregatetype text, aggregateid text, type text,"
        " payload jsonb, attempts int DEFAULT 0)"
    )
    pipeline.execute("CREATE TABLE other (id uuid REFERENCES outbox, beat timestamptz DEFAULT now(), name text PRIMARY KEY)")
    return "outbox"


def test_field_case_28_truncate_of_the_outbox(pipeline: Pipeline, table: str) -> None:
    by_hand(pipeline)
    pipeline.init()
    pipeline.started()
    pipeline.insert(1, 3)
    pipeline.execute("TRUNCATE outbox CASCADE")
    pipeline.insert(4, 5)
    pipeline.execute("TRUNCATE outbox, other CASCADE")
    with pipeline.connection.transaction():
        pipeline.insert(6)
        pipeline.execute("TRUNCATE outbox CASCADE")
        pipeline.insert(7)
    pipeline.wait_confirmed()
    pipeline.stop()
    pipeline.started()
    pipeline.insert(8)
    pipeline.wait_numbers(range(1, 9))
    assert pipeline.status()["totals"]["failures"] == 0


@sizes(3, 60)
def test_field_case_30_logical_messages_and_heartbeats(pipeline: Pipeline, table: str, size: int) -> None:
    by_hand(pipeline, "outbox, other")
    pipeline.init()
    pipeline.started()
    for number in range(size):
        pipeline.execute("SELECT pg_logical_emit_message(true, 'hb', 'x')")
        pipeline.execute("SELECT pg_logical_emit_message(false, 'hb', 'x')")
        pipeline.execute("INSERT INTO other (name) VALUES ('beat') ON CONFLICT (name) DO UPDATE SET beat = now()")
        with pipeline.connection.transaction():
            pipeline.insert(10 * number)
            pipeline.execute("SELECT pg_logical_emit_message(false, 'hb', repeat('x', 20000))")
            pipeline.execute("SELECT pg_logical_emit_message(true, 'hb', 'x')")
            with psycopg.connect(pipeline.dsn, autocommit=True) as another:
                another.execute("SELECT pg_logical_emit_message(false, 'hb', 'x')")
                pipeline.insert(10 * number + 5, on=another)
            pipeline.insert(10 * number + 1)
        pipeline.execute("DELETE FROM other")
    pipeline.wait_confirmed()
    assert pipeline.numbers() == [10 * number + each for number in range(size) for each in (5, 0, 1)]
    assert pipeline.status()["totals"]["failures"] == 0


def test_field_case_35_an_unchanged_toast_value(pipeline: Pipeline, table: str) -> None:
    pipeline.execute("ALTER TABLE outbox ALTER COLUMN payload SET STORAGE EXTERNAL")
    by_hand(pipeline)
    pipeline.init()
    pipeline.started()
    pipeline.insert(1, text="x" * 200_000)
    pipeline.execute("UPDATE outbox SET attempts = attempts + 1")
    pipeline.execute("ALTER TABLE outbox REPLICA IDENTITY FULL")
    pipeline.execute("UPDATE outbox SET attempts = attempts + 1")
    pipeline.execute("DELETE FROM outbox")
    pipeline.insert(2)
    pipeline.wait_numbers([1, 2])
    pipeline.wait_confirmed()
    first, second = pipeline.events()
    assert decode(first.value, SCHEMA) == {"n": 1, "text": "x" * 200_000}
    assert decode(second.value, SCHEMA) == {"n": 2, "text": ""}
    assert pipeline.events(pipeline.dead_letter_topic) == []


def test_field_case_50_names_with_capitals(pipeline: Pipeline) -> None:
    columns = '(id uuid PRIMARY KEY DEFAULT gen_random_uuid(), kind text, "aggregateId" text, "eventType" text, "Payload" jsonb)'
    pipeline.execute('CREATE SCHEMA "App"')
    pipeline.execute("CREATE SCHEMA app")
    pipeline.execute(f'CREATE TABLE "App"."OutboxEvents" {columns}')
    for twin in ('"App".outboxevents', "app.outboxevents", 'app."OutboxEvents"'):
        pipeline.execute(f"CREATE TABLE {twin} {columns}")
    by_hand(pipeline, '"App"."OutboxEvents"', name="Outbox_Pub")
    by_hand(pipeline, "app.outboxevents", name="outbox_pub")
    pipeline.set(
        postgres__publication="Outbox_Pub",
        outbox__table="App.OutboxEvents",
        outbox__columns={"aggregatetype": "kind", "aggregateid": "aggregateId", "type": "eventType", "payload": "Payload"},
    )
    pipeline.init(create_table=False)
    pipeline.started()
    for number, name in enumerate(('app."OutboxEvents"', "app.outboxevents", '"App".outboxevents', '"App"."OutboxEvents"')):
        pipeline.execute(
            f"INSERT INTO {name} (kind, \"aggregateId\", \"eventType\", \"Payload\") VALUES ('thing', 'k', 'Thing', %s)",
            (f'{{"n": {number}}}',),
        )
    pipeline.wait_confirmed()
    assert pipeline.numbers() == [3]
