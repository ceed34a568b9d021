"""Field cases 62, 64, 66, 68, 75, 90, 91: what an outbox means, and what Kafka gets of it."""

from __future__ import annotations

import os
import secrets
import threading
import time
import uuid
from pathlib import Path

import psycopg
import pytest

from tests.pipeline import SCHEMA, Pipeline, decode, sizes, write_schemas
from tests.waiting import wait_for

pytestmark = pytest.mark.servers

ANYTHING = {
    "type": "record",
    "name": "Anything",
    "doc": "All of it may be left out.",
    "fields": [{"name": "text", "type": "string", "default": "none"}],
}


@sizes(5_000, 100_000)
def test_field_case_62_insert_and_delete_in_one_transaction(pipeline: Pipeline, size: int) -> None:
    pipeline.init()
    pipeline.started()
    with pipeline.connection.transaction():
        pipeline.insert(1)
        pipeline.execute("DELETE FROM outbox")
    pipeline.insert(2, size)
    pipeline.wait_confirmed()

    def clean_up() -> None:
        with psycopg.connect(pipeline.dsn, autocommit=True) as connection:
            connection.execute("DELETE FROM outbox WHERE (payload->>'n')::int <= %s", (size,))

    job = threading.Thread(target=clean_up)
    job.start()
    slowest = 0.0
    for number in range(size + 1, size + 11):
        began = time.monotonic()
        pipeline.insert(number)
        wait_for(lambda number=number: pipeline.status()["totals"]["events"] >= number, 30)  # type: ignore[misc]
        slowest = max(slowest, time.monotonic() - began)
    job.join()
    assert slowest < 5
    pipeline.wait_numbers(range(1, size + 11))
    pipeline.wait_confirmed()
    assert all(event.value is not None for event in pipeline.events())


@pytest.mark.parametrize("allowed", [True, False])
def test_field_case_64_a_null_payload(pipeline: Pipeline, *, allowed: bool) -> None:
    write_schemas(pipeline.folder / "schemas", {"Thing": SCHEMA, "Anything": ANYTHING})
    pipeline.set(outbox__tombstones=allowed)
    pipeline.execute("CREATE TABLE outbox (id text PRIMARY KEY, aggregatetype text, aggregateid text, type text, payload text)")
    pipeline.init()
    pipeline.started()
    with pipeline.connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO outbox VALUES (%s, 'thing', 'k', %s, %s)",
            [
                ("sql-null", "Thing", None),
                ("json-null", "Thing", "null"),
                ("empty-object", "Thing", "{}"),
                ("empty-text", "Thing", ""),
                ("all-defaults", "Anything", "{}"),
            ],
        )
    pipeline.wait_confirmed()
    events = {event.headers["ce_id"].decode(): event for event in pipeline.events()}
    dead = {event.headers["cdc.id"].decode(): event for event in pipeline.events(pipeline.dead_letter_topic)}
    reasons = {name: event.headers["cdc.reason"].decode() for name, event in dead.items()}
    refused = {"json-null": "schema", "empty-object": "schema", "empty-text": "schema"}
    if allowed:
        assert reasons == refused
        assert set(events) == {"sql-null", "all-defaults"}
        tombstone = events["sql-null"]
        assert tombstone.value is None
        assert tombstone.key == b"k"
        assert {"ce_id", "ce_type", "ce_source", "ce_time", "ce_sequence", "ce_specversion"} <= set(tombstone.headers)
        assert "content-type" not in tombstone.headers
    else:
        assert reasons == {**refused, "sql-null": "tombstone"}
        assert set(events) == {"all-defaults"}
    assert decode(events["all-defaults"].value, ANYTHING) == {"text": "none"}


def test_field_case_66_sequence_order_is_not_commit_order(pipeline: Pipeline) -> None:
    pipeline.execute("CREATE SEQUENCE ids CACHE 50")
    pipeline.execute(
        "CREATE TABLE outbox (id bigint PRIMARY KEY DEFAULT nextval('ids'), aggregatetype text, aggregateid text, type text, payload jsonb)"
    )
    pipeline.init()
    pipeline.started()
    with psycopg.connect(pipeline.dsn) as first:
        pipeline.insert(1, on=first)
        pipeline.insert(2)
        pipeline.wait_numbers([2])
        first.commit()
        pipeline.wait_numbers([2, 1])
        pipeline.insert(3, on=first)
        first.rollback()
        pipeline.insert(4, on=first)
        pipeline.insert(5)
        first.commit()
    pipeline.wait_numbers([2, 1, 5, 4])
    ids = [int(event.headers["ce_id"]) for event in pipeline.events()]
    assert ids == [51, 1, 52, 3]
    sequences = [event.headers["ce_sequence"] for event in pipeline.events()]
    assert sequences == sorted(sequences)


@pytest.mark.parametrize("policy", ["dead-letter", "stop"])
def test_field_case_68_an_oversize_event(pipeline: Pipeline, policy: str) -> None:
    pipeline.set(outbox__on_invalid=policy).init()
    pipeline.started()
    pipeline.insert(1)
    end = pipeline.wait_confirmed()
    with pipeline.connection.transaction():
        pipeline.insert(2)
        pipeline.insert(3, text=secrets.token_hex(2_500_000))
        pipeline.insert(4)
    pipeline.insert(5)
    if policy == "dead-letter":
        pipeline.wait_numbers([1, 2, 4, 5])
        [dead] = pipeline.events(pipeline.dead_letter_topic)
        assert dead.headers["cdc.reason"] == b"size"
        assert len(dead.headers["cdc.sequence"]) == 28
        assert len(dead.value or b"") < 10_000
        [(event_id,)] = pipeline.execute("SELECT id::text FROM outbox WHERE payload->>'n' = '3'")
        assert dead.headers["cdc.id"].decode() == event_id
        pipeline.wait_confirmed()
        assert pipeline.status()["totals"]["failures"] == 0
        return
    stopped = pipeline.wait_exit()
    assert stopped.code == 7
    assert "size" in stopped.line
    assert pipeline.slot().confirmed >= end
    assert pipeline.numbers() == [1]
    pipeline.set(outbox__on_invalid="dead-letter").started()
    pipeline.wait_numbers([1, 2, 4, 5])


def java_murmur2(data: bytes) -> int:
    """Return what org.apache.kafka.common.utils.Utils.murmur2 does, with the sign bit cleared as its partitioner does."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = (0x9747B28C ^ len(data)) & mask
    whole = len(data) // 4 * 4
    for i in range(0, whole, 4):
        k = int.from_bytes(data[i : i + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = (h * m & mask) ^ k
    rest = data[whole:]
    if rest:
        h = (h ^ int.from_bytes(rest, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return (h ^ h >> 15) & 0x7FFFFFFF


@pytest.mark.parametrize(
    ("text", "hashed"),
    [("21", -973932308), ("foobar", -790332482), ("a-little-bit-long-string", -985981536), ("abc", 479470107)],
)
def test_field_case_75_the_reference_is_javas(text: str, hashed: int) -> None:
    assert java_murmur2(text.encode()) == hashed & 0x7FFFFFFF


def test_field_case_75_a_key_has_the_partition_that_java_gives_it(pipeline: Pipeline) -> None:
    pipeline.set(topics__create__partitions=15)
    pipeline.init()
    pipeline.started()
    keys = ["TT0124", "Grüße €", "漢字", "😀", '"quoted"', "1", *(str(uuid.UUID(int=i * 7919)) for i in range(50))]
    with pipeline.connection.transaction():
        for number, key in enumerate(keys):
            pipeline.insert(number, key=key)
    pipeline.wait_confirmed()
    events = pipeline.events()
    assert len({event.partition for event in events}) > 10
    for event in events:
        assert event.key == keys[event.n].encode()
        assert event.partition == java_murmur2(event.key) % 15


@sizes(1, 10)
def test_field_case_90_the_last_messages_at_exit(pipeline: Pipeline, size: int) -> None:
    pipeline.kafka(linger_ms=1000).init()
    for i in range(size):
        pipeline.started()
        pipeline.insert(50 * i, 50 * i + 49)
        due = time.monotonic() + 0.1
        wait_for(lambda due=due: time.monotonic() >= due)  # type: ignore[misc]  # the moment is what is asked for
        began = time.monotonic()
        assert pipeline.terminate() == 0
        assert time.monotonic() - began < 10
        published = pipeline.numbers()
        assert published in (list(range(50 * i)), list(range(50 * i + 50)))
        [(lsn,)] = pipeline.execute(
            "SELECT count(*) FROM pg_logical_slot_peek_binary_changes(%s, NULL, NULL, 'proto_version', '1', 'publication_names', %s)"
            " WHERE get_byte(data, 0) = ascii('I')",
            (pipeline.slot_name, pipeline.slot_name),
        )
        assert lsn >= 50 * i + 50 - len(published), "what is not published is still in the log"
    pipeline.started()
    pipeline.wait_numbers(range(50 * size))


def rss_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@sizes(50_000, 500_000)
def test_field_case_91_the_local_queue_is_full(pipeline: Pipeline, size: int) -> None:
    pipeline.kafka(queue_buffering_max_messages=1000).init()
    process = pipeline.started()
    before = rss_mb(process.pid)
    pipeline.insert(1, size)
    pipeline.wait_numbers(range(1, size + 1))
    assert rss_mb(process.pid) < before + 60
    assert pipeline.status()["totals"]["failures"] == 0
