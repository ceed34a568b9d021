"""`cdc recover` on real servers: exactly what Kafka lacks is published, whatever broke, and nothing is changed on refusal."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from cdc.devstack.postgres import PostgresServer
from cdc.errors import Retriable
from cdc.kafka.publisher import KafkaPublisher
from cdc.outbox.mapping import OutboxMapping
from cdc.outbox.table import create_sql
from cdc.position import Position
from cdc.postgres.slot import Table
from tests.conftest import Pipelines
from tests.measuring import measured
from tests.pipeline import Pipeline, sizes
from tests.waiting import wait_for

pytestmark = pytest.mark.servers


def recovered(pipeline: Pipeline, *arguments: str) -> dict[str, Any]:
    answer = pipeline.here("recover", "--json", *arguments)
    assert answer.code == 0, answer.err
    document: dict[str, Any] = json.loads(answer.out.splitlines()[-1])
    return document


def verified(pipeline: Pipeline) -> dict[str, int]:
    answer = pipeline.here("verify", "--json")
    assert answer.code == 0, answer
    document: dict[str, int] = json.loads(answer.out.splitlines()[-1])
    return {kind: count for kind, count in document.items() if count}


def drop_slot(pipeline: Pipeline) -> None:
    pipeline.execute(f"SELECT pg_drop_replication_slot('{pipeline.slot_name}')")


PUBLICATIONS = "SELECT oid, xmin FROM pg_publication ORDER BY 1"


def state(pipeline: Pipeline) -> tuple[Any, ...]:
    """All that a refusal must leave as it was; the position topic's last offset tells of every Kafka transaction of the pipeline."""
    slots = pipeline.execute("SELECT slot_name, confirmed_flush_lsn, restart_lsn FROM pg_replication_slots ORDER BY 1")
    return slots, pipeline.execute(PUBLICATIONS), [event[2:] for event in pipeline.events(pipeline.position_topic)]


def ruled(pipeline: Pipeline) -> tuple[Any, ...]:
    """What a refusal must leave as it was while the pipeline runs, which moves its slot and its position by itself."""
    slots = pipeline.execute("SELECT slot_name FROM pg_replication_slots ORDER BY 1")
    return slots, pipeline.execute(PUBLICATIONS), pipeline.status()["position"]["generation"]


@pytest.fixture
def stingy_postgres(spare_postgres: PostgresServer) -> Iterator[PostgresServer]:
    """A PostgreSQL that gives up a slot that keeps more than 16 MB of log."""
    spare_postgres.settings["max_slot_wal_keep_size"] = "16MB"
    spare_postgres.restart()
    yield spare_postgres
    del spare_postgres.settings["max_slot_wal_keep_size"]
    spare_postgres.restart()


@sizes((7_000, 3_000), (70_000, 30_000))
def test_a_slot_that_was_lost_on_purpose(
    pipelines: Pipelines, stingy_postgres: PostgresServer, spare_database: str, kafka: str, size: tuple[int, int], figures: dict[str, Any]
) -> None:
    published, lost = size
    pipeline = pipelines(spare_database, kafka)
    pipeline.set(topics__create__partitions=3).init()
    pipeline.started()
    for first in range(0, published, 1_000):
        pipeline.insert(first, first + 999, key=f"k{first // 1_000 % 7}")
    pipeline.wait_confirmed()
    pipeline.stop()
    assert pipeline.here("slot", "bookmark", "old").code == 0
    end = pipeline.position()
    for first in range(published, published + lost, 500):
        pipeline.insert(first, first + 499, key=f"k{first // 500 % 7}")
    pipeline.noise(60)
    wait_for(
        lambda: pipeline.execute("CHECKPOINT") or pipeline.execute("SELECT wal_status FROM pg_replication_slots") == [("lost",)] * 2,
        60,
        "the slot is lost, and the bookmark with it",
    )
    gone = pipeline.here("slot", "rewind", "old")
    assert gone.code == 4
    assert "the log of bookmark 'old' is gone; a slot cannot go back by itself. Within reach: no bookmark" in gone.line
    assert pipeline.here("slot", "drop", "old").code == 0
    pipeline.start()
    ended = pipeline.wait_exit()
    assert ended.code == 4
    assert "`cdc recover`" in ended.line
    done = measured(pipeline, "recover")
    assert done.code == 0
    figures |= {"recover_rows": published + lost, "recover_seconds": done.seconds, "recover_rss_mb": done.peak_mb}
    document = done.document
    figures["recover_published"] = document["published"]
    assert document["published"] == lost
    assert document["known"] == published
    assert document["rows"] == published + lost
    assert document["gap"]["begin"] == str(end)
    assert document["generation"] == 1
    position = json.loads(pipeline.events(pipeline.position_topic)[-1].value or b"")
    assert position["gap"]["rows"] == lost
    pipeline.started()
    pipeline.insert(published + lost, published + lost + 9)
    pipeline.wait_confirmed()
    assert verified(pipeline) == {"rows": published + lost + 10, "events": published + lost + 10}
    events = pipeline.events()
    assert sorted(event.n for event in events) == list(range(published + lost + 10))
    for key in {event.key for event in events}:
        numbers = [event.n for event in events if event.key == key]
        assert numbers == sorted(numbers), "each key is in order, over the gap too"
    assert len({event.headers["ce_id"] for event in events}) == len(events)


def test_field_case_135_a_slot_that_was_dropped_and_made_anew(pipeline: Pipeline) -> None:
    pipeline.init()
    pipeline.started()
    pipeline.insert(1, 5)
    pipeline.wait_confirmed()
    pipeline.stop()
    pipeline.insert(6)
    drop_slot(pipeline)
    pipeline.execute(f"SELECT pg_create_logical_replication_slot('{pipeline.slot_name}', 'pgoutput')")
    pipeline.insert(7)
    pipeline.start()
    ended = pipeline.wait_exit()
    assert ended.code == 4
    assert "is ahead" in ended.line
    dry = recovered(pipeline, "--dry-run")
    assert (dry["remedy"], dry["published"], dry["known"]) == ("rebuild", 2, 5)
    assert pipeline.numbers() == [1, 2, 3, 4, 5]
    assert recovered(pipeline)["published"] == 2
    pipeline.started()
    pipeline.insert(8)
    pipeline.wait_numbers(range(1, 9))
    assert verified(pipeline) == {"rows": 8, "events": 8}
    assert pipeline.status()["position"]["generation"] == 1


def test_nothing_to_recover_and_a_rebuild_that_was_asked_for(pipeline: Pipeline) -> None:
    pipeline.init()
    pipeline.started()
    pipeline.insert(1, 5)
    pipeline.wait_confirmed()
    before = ruled(pipeline)
    answer = pipeline.here("recover", "--json")
    assert (answer.code, json.loads(answer.out)) == (0, {"remedy": None})
    assert "nothing to recover" in answer.err
    assert ruled(pipeline) == before
    document = recovered(pipeline, "--rebuild")
    assert (document["published"], document["known"], document["generation"]) == (0, 5, 1)
    pipeline.insert(6, 9)
    pipeline.wait_numbers(range(1, 10))
    assert pipeline.process.poll() is None, "the running pipeline went on by itself"
    assert verified(pipeline) == {"rows": 9, "events": 9}


def test_a_rebuild_and_a_rewind_under_load_lose_nothing_and_double_nothing(pipeline: Pipeline) -> None:
    """The new slot streams exactly what its snapshot does not see, also of transactions that were open meanwhile."""
    pipeline.set(topics__create__partitions=2).init()
    pipeline.started()
    assert pipeline.here("slot", "bookmark", "start").code == 0
    stop, written = threading.Event(), [0] * 4

    def write(writer: int) -> None:
        with psycopg.connect(pipeline.dsn) as connection:
            while not stop.is_set():
                for _ in range(5):
                    pipeline.insert(written[writer] * 4 + writer, key=f"k{writer}", on=connection)
                    written[writer] += 1
                connection.commit()

    writers = [threading.Thread(target=write, args=(writer,)) for writer in range(4)]
    for writer in writers:
        writer.start()
    try:
        wait_for(lambda: min(written) > 50, 30, "load")
        recovered(pipeline, "--rebuild")
        more = min(written) + 50
        wait_for(lambda: min(written) > more, 30, "load")
        assert pipeline.here("slot", "rewind", "start").code == 0
        more = min(written) + 50
        wait_for(lambda: min(written) > more, 30, "load")
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    total = sum(written)
    wait_for(lambda: verified(pipeline).get("pending") is None, 60, "all is published")
    found = verified(pipeline)
    assert (found["rows"], found["events"]) == (total, total)
    assert found["replayed"] > 0
    firsts = [event for event in pipeline.events() if "ce_replay" not in event.headers]
    for each, count in enumerate(written):
        numbers = [event.n for event in firsts if event.key == f"k{each}".encode()]
        assert numbers == [number * 4 + each for number in range(count)]


@pytest.mark.parametrize(
    "sabotage",
    [
        "DROP PUBLICATION {publication}",
        "DROP PUBLICATION {publication}; CREATE PUBLICATION {publication} FOR TABLE outbox WITH (publish = 'insert')",
    ],
)
def test_a_publication_that_was_gone_for_a_while(pipeline: Pipeline, sabotage: str) -> None:
    pipeline.init()
    pipeline.started()
    pipeline.insert(1, 3)
    pipeline.wait_confirmed()
    pipeline.stop()
    pipeline.insert(4, 6)
    for statement in sabotage.format(publication=pipeline.slot_name).split("; "):
        pipeline.execute(statement)
    pipeline.insert(7, 9)
    pipeline.start()
    assert pipeline.wait_exit().code == 4
    assert recovered(pipeline)["published"] == 6
    pipeline.started()
    pipeline.insert(10)
    pipeline.wait_numbers(range(1, 11))
    assert verified(pipeline) == {"rows": 10, "events": 10}


def test_dead_letters_rows_that_init_skipped_and_rows_by_policy(pipeline: Pipeline) -> None:
    pipeline.init()
    pipeline.insert(1, 3)
    drop_slot(pipeline)
    with Pipeline(pipeline.folder, pipeline.name + "b", pipeline.dsn, pipeline.bootstrap) as other:
        other.init("--existing", "skip")
        other.insert(4, 5)
        bad = "INSERT INTO outbox (aggregatetype, aggregateid, type, payload) VALUES ('thing', 'k', 'Thing', '{\"n\": \"x\"}')"
        other.execute(bad)
        drop_slot(other)
        other.set(outbox__on_invalid="stop")
        before = state(other)
        refused = other.here("recover")
        assert refused.code == 7
        assert "nothing was changed" in refused.line
        assert state(other) == before
        other.set(outbox__on_invalid="dead-letter")
        document = recovered(other)
        assert (document["published"], document["dead_letters"], document["skipped"]) == (2, 1, 3)
        other.started()
        other.insert(6)
        other.wait_numbers([4, 5, 6])
        assert verified(other) == {"rows": 7, "events": 3, "dead_letters": 1, "skipped": 3}


def test_rows_of_which_nobody_can_tell_are_refused_until_somebody_says_from_when(pipeline: Pipeline) -> None:
    pipeline.init()
    pipeline.started()
    pipeline.insert(1, 10)
    pipeline.wait_confirmed()
    pipeline.stop()
    pipeline.execute("UPDATE outbox SET occurred_at = now() - interval '2 days' WHERE (payload ->> 'n')::int <= 8")
    admin = AdminClient({"bootstrap.servers": pipeline.bootstrap, "log_level": 0})
    [deleted] = admin.delete_records([TopicPartition(pipeline.topic, 0, pipeline.events()[7].offset)]).values()
    deleted.result(30)
    drop_slot(pipeline)
    pipeline.insert(11, 13)
    before = state(pipeline)
    refused = pipeline.here("recover")
    assert refused.code == 4
    assert "10 rows have no record, and nobody can tell" in refused.line
    assert f"{pipeline.topic} back to" in refused.line
    assert state(pipeline) == before
    [(since,)] = pipeline.execute("SELECT to_char(now() - interval '1 hour', 'YYYY-MM-DD\"T\"HH24:MI:SSOF')")
    document = recovered(pipeline, "--since", since)
    assert (document["published"], document["left_out"], document["known"]) == (3, 7, 3)
    pipeline.started()
    pipeline.insert(14)
    wait_for(lambda: verified(pipeline).get("events") == 7, 30, "8 to 14")
    assert verified(pipeline).get("missing") is None


@pytest.fixture
def dating_postgres(spare_postgres: PostgresServer) -> Iterator[PostgresServer]:
    """A PostgreSQL that remembers when each transaction was committed."""
    spare_postgres.settings["track_commit_timestamp"] = "on"
    spare_postgres.restart()
    yield spare_postgres
    del spare_postgres.settings["track_commit_timestamp"]
    spare_postgres.restart()


def test_commit_times_tell_the_order_and_what_was_published_long_ago(
    pipelines: Pipelines, dating_postgres: PostgresServer, spare_database: str, kafka: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = pipelines(spare_database, kafka)
    pipeline.init()
    pipeline.started()
    pipeline.insert(1, 5)
    pipeline.wait_confirmed()
    pipeline.stop()
    admin = AdminClient({"bootstrap.servers": pipeline.bootstrap, "log_level": 0})
    [deleted] = admin.delete_records([TopicPartition(pipeline.topic, 0, pipeline.events()[-1].offset + 1)]).values()
    deleted.result(30)
    drop_slot(pipeline)
    with psycopg.connect(pipeline.dsn) as first, psycopg.connect(pipeline.dsn) as second:
        pipeline.insert(7, on=first)
        pipeline.insert(6, on=second)
        second.commit()
        first.commit()
    [(committed,)] = pipeline.execute("SELECT pg_xact_commit_timestamp(xmin) FROM outbox WHERE payload ->> 'n' = '6'")
    # Nothing is left in the topic to tell by, and all of it is recent: the margin for skewed clocks leaves five rows in doubt.
    assert pipeline.here("recover").code == 4
    monkeypatch.setattr("cdc.audit.diagnosis.COMMIT_SKEW_US", 0)
    document = recovered(pipeline)
    assert (document["published"], document["left_out"]) == (2, 5)
    pipeline.started()
    pipeline.insert(8)
    wait_for(lambda: verified(pipeline).get("events") == 3, 30, "6 to 8")
    events = pipeline.events()
    assert [event.n for event in events] == [6, 7, 8]
    assert events[0].timestamp_ms == int(committed.timestamp() * 1000)


def test_another_server_is_adopted_only_when_somebody_says_so(
    pipeline: Pipeline, spare_postgres: PostgresServer, spare_database: str
) -> None:
    pipeline.init()
    pipeline.started()
    pipeline.insert(1, 5)
    pipeline.wait_confirmed()
    pipeline.stop()
    rows = pipeline.execute("SELECT id, aggregatetype, aggregateid, type, payload::text FROM outbox ORDER BY payload ->> 'n'")
    with Pipeline(pipeline.folder, pipeline.name, spare_database, pipeline.bootstrap) as moved:
        moved.execute(create_sql(Table("public", "outbox"), OutboxMapping()))
        for row in rows:
            moved.execute("INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) VALUES (%s, %s, %s, %s, %s::jsonb)", row)
        moved.insert(6, 8)
        before = state(moved)
        refused = moved.here("recover")
        assert refused.code == 4
        assert "`cdc recover --adopt`" in refused.line
        assert state(moved) == before
        document = recovered(moved, "--adopt")
        assert (document["published"], document["known"]) == (3, 5)
        moved.started()
        moved.insert(9)
        moved.wait_numbers(range(1, 10))
        assert verified(moved) == {"rows": 9, "events": 9}


@pytest.mark.parametrize("whole", [False, True], ids=["the-record", "the-topic"])
def test_a_position_that_kafka_has_lost(pipeline: Pipeline, whole: bool) -> None:
    pipeline.init()
    pipeline.started()
    pipeline.insert(1, 5)
    pipeline.wait_confirmed()
    recovered(pipeline, "--rebuild")
    pipeline.insert(6)
    pipeline.wait_numbers(range(1, 7))
    pipeline.wait_confirmed()
    pipeline.stop()
    pipeline.insert(7, 9)
    admin = AdminClient({"bootstrap.servers": pipeline.bootstrap, "log_level": 0})
    if whole:
        admin.delete_topics([pipeline.position_topic])[pipeline.position_topic].result(30)
        wait_for(lambda: pipeline.position_topic not in admin.list_topics(timeout=10).topics, 30, "the topic is gone")
        assert pipeline.here("recover").code == 5
    else:
        producer = Producer({"bootstrap.servers": pipeline.bootstrap, "log_level": 0})
        producer.produce(pipeline.position_topic, None, pipeline.name.encode())
        assert producer.flush(30) == 0
        answer = pipeline.here("recover")
        assert answer.code == 4
        assert "`cdc recover --adopt`" in answer.line
    document = recovered(pipeline, "--adopt")
    assert (document["published"], document["known"]) == (3, 6)
    assert document["generation"] == 2, "the records tell which one was the last"
    pipeline.started()
    pipeline.insert(10)
    pipeline.wait_numbers(range(1, 11))
    assert verified(pipeline) == {"rows": 10, "events": 10}


def test_a_pipeline_that_never_was_is_not_adopted(pipeline: Pipeline) -> None:
    pipeline.init()
    drop_slot(pipeline)
    with Pipeline(pipeline.folder, pipeline.name + "b", pipeline.dsn, pipeline.bootstrap) as other:
        answer = other.here("recover", "--adopt")
        assert answer.code == 4
        assert "neither a slot" in answer.line
        assert "`cdc init`" in answer.line


def test_what_does_not_fit_into_one_kafka_transaction_goes_out_in_parts_and_a_fault_between_them_doubles_nothing(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.init()
    drop_slot(pipeline)
    for number in range(0, 20, 2):
        pipeline.insert(number, number + 1)
    commit, calls = KafkaPublisher.commit, list[Position | None]()

    def failing(publisher: KafkaPublisher, position: Position | None, waiting: Callable[[], None]) -> None:
        commit(publisher, position, waiting)
        calls.append(position)
        if len(calls) in {4, 20}:
            raise Retriable("the answer was lost")

    monkeypatch.setattr("cdc.audit.outgoing.PART_OF_TIMEOUT", 0.0)
    monkeypatch.setattr(KafkaPublisher, "commit", failing)
    document = recovered(pipeline)
    monkeypatch.undo()
    assert [position.hold is not None for position in calls if position is not None][-2:] == [True, False]
    assert len(calls) > 12
    assert document["published"] + document["known"] == 20
    pipeline.started()
    pipeline.insert(20)
    pipeline.wait_numbers(range(21))
    assert verified(pipeline) == {"rows": 21, "events": 21}
