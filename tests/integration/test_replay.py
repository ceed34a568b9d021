"""`cdc replay` and `cdc offsets` on real servers: events come again by choice, and nobody who is live is disturbed."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.integration.test_recover import verified
from tests.pipeline import Pipeline
from tests.waiting import wait_for

pytestmark = pytest.mark.servers


def replayed(pipeline: Pipeline, *arguments: str) -> dict[str, Any]:
    answer = pipeline.here("replay", "--json", *arguments)
    assert answer.code == 0, answer.err
    document: dict[str, Any] = json.loads(answer.out.splitlines()[-1])
    return document


def refused(pipeline: Pipeline, code: int, words: str, *arguments: str) -> None:
    answer = pipeline.here(*arguments)
    assert answer.code == code, answer
    assert words in answer.line


def test_field_case_137_the_last_thousand_again_beside_a_live_writer(pipeline: Pipeline) -> None:
    """An inbox keyed by the id applies none twice, live events keep their order, and nobody fences anybody."""
    pipeline.init()
    pipeline.started()
    for begin in range(0, 1_000, 50):
        pipeline.insert(begin, begin + 49, key=f"k{begin // 50 % 5}")
    pipeline.wait_confirmed()
    firsts = {event.headers["ce_id"]: event for event in pipeline.events()}
    stop, written = threading.Event(), [1_000]

    def write() -> None:
        with Pipeline(pipeline.folder, pipeline.name, pipeline.dsn, pipeline.bootstrap) as other:
            while not stop.is_set():
                other.insert(written[0], key=f"k{written[0] % 5}")
                written[0] += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        document = replayed(pipeline, "--where", "(payload ->> 'n')::int < 1000")
    finally:
        stop.set()
        writer.join()
    total = written[0]
    assert (document["published"], document["invalid"]) == (1_000, 0)
    wait_for(lambda: len(pipeline.events()) == 1_000 + total, 60, "everything came")
    events = pipeline.events()
    again = [event for event in events if "ce_replay" in event.headers]
    assert [event.n for event in again] == list(range(1_000))
    for event in again:
        first = firsts[event.headers["ce_id"]]
        assert event.headers["ce_replay"] == f"replay:{document['replay']}".encode()
        kept = [name for name in first.headers if name != "ce_sequence"]
        assert (event.key, event.value, [event.headers[name] for name in kept]) == (
            first.key,
            first.value,
            [first.headers[name] for name in kept],
        )
    live = [event.n for event in events if "ce_replay" not in event.headers]
    assert live == list(range(total))
    assert "passage failed" not in pipeline.log, "the pipeline was not fenced"
    assert verified(pipeline) == {"rows": total, "events": total, "replayed": 1_000}


def test_what_is_chosen_and_where_to(pipeline: Pipeline) -> None:
    pipeline.init()
    pipeline.started()
    pipeline.insert(1, 3, key="a")
    pipeline.insert(4, 6, key="b")
    pipeline.execute("INSERT INTO outbox (aggregatetype, aggregateid, type, payload) VALUES ('thing', 'a', 'Thing', '{\"n\": \"x\"}')")
    pipeline.execute("UPDATE outbox SET occurred_at = '2026-01-01T00:00:00Z' WHERE payload ->> 'n' = '5'")
    pipeline.wait_confirmed()
    [(one,)] = pipeline.execute("SELECT id::text FROM outbox WHERE payload ->> 'n' = '2'")
    before = pipeline.events()
    for arguments, topic, count in (
        (("--id", one), pipeline.topic, 1),
        (("--key", "b"), pipeline.topic, 3),
        (("--until", "2026-01-02T00:00:00Z"), pipeline.topic, 1),
        (("--since", "2026-01-02T00:00:00Z", "--key", "b"), pipeline.topic, 2),
    ):
        assert replayed(pipeline, "--dry-run", *arguments)["topics"] == {topic: count}, arguments
    assert replayed(pipeline, "--dry-run", "--key", "a")["invalid"] == 1
    assert replayed(pipeline, "--dry-run", "--key", "nobody")["published"] == 0
    assert len(pipeline.events()) == len(before)
    document = replayed(pipeline, "--key", "a", "--key", "b", "--to-topic", f"{pipeline.name}.again")
    assert (document["topics"], document["invalid"]) == ({f"{pipeline.name}.again": 6}, 1)
    assert sorted(event.n for event in pipeline.events(f"{pipeline.name}.again")) == [1, 2, 3, 4, 5, 6]
    assert len(pipeline.events()) == len(before)
    refused(pipeline, 2, "it is not said which rows", "replay")
    refused(pipeline, 2, "is no topic", "replay", "--key", "a", "--to-topic", "a b")
    refused(pipeline, 2, "is the pipeline's own", "replay", "--key", "a", "--to-topic", pipeline.position_topic)
    refused(pipeline, 2, "syntax error", "replay", "--where", "id = = 1")
    refused(pipeline, 2, "invalid input syntax for type uuid", "replay", "--id", "x")
    refused(pipeline, 2, "--until 'never' is not a time", "replay", "--until", "never")


def test_what_was_not_published_yet_does_not_come_as_a_replay_first(pipeline: Pipeline) -> None:
    pipeline.init()
    pipeline.insert(1, 3)
    refused(pipeline, 4, "not everything in the table is published yet", "replay", "--key", "k")
    assert pipeline.events() == []
    pipeline.started()
    assert replayed(pipeline, "--key", "k")["published"] == 3
    assert [event.headers.get("ce_replay") is None for event in pipeline.events()] == [True] * 3 + [False] * 3
    assert verified(pipeline) == {"rows": 3, "events": 3, "replayed": 3}


def reset(pipeline: Pipeline, *arguments: str) -> list[tuple[int, int | None, int]]:
    answer = pipeline.here("offsets", "reset", "--group", pipeline.name, "--json", *arguments)
    assert answer.code == 0, answer.err
    document = json.loads(answer.out.splitlines()[-1])
    return [(each["partition"], each["old"], each["new"]) for each in document["offsets"]]


def read(pipeline: Pipeline, count: int) -> list[int]:
    """Read so many records as a group, and commit."""
    consumer = Consumer(
        {"bootstrap.servers": pipeline.bootstrap, "group.id": pipeline.name, "auto.offset.reset": "earliest", "log_level": 0}
        | {"enable.auto.commit": False}
    )
    consumer.subscribe([pipeline.topic])
    seen: list[int] = []

    def some() -> bool:
        seen.extend(int(message.offset() or 0) for message in consumer.consume(count - len(seen), 0.2) if message.error() is None)
        return len(seen) == count

    try:
        wait_for(some, 30, f"{count} records")
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    return seen


def test_a_group_is_moved_while_nobody_reads(pipeline: Pipeline) -> None:
    pipeline.init()
    pipeline.started()
    for number in range(10):
        pipeline.insert(number)
        pipeline.wait_confirmed()
    events = pipeline.events()
    read(pipeline, 10)
    end = events[-1].offset + 1
    assert reset(pipeline, "--to-earliest", "--dry-run") == [(0, end, 0)]
    assert reset(pipeline, "--to-earliest") == [(0, end, 0)]
    assert read(pipeline, 10) == [event.offset for event in events]
    assert reset(pipeline, "--to-event", events[6].headers["ce_id"].decode()) == [(0, end, events[6].offset)]
    assert read(pipeline, 4) == [event.offset for event in events[6:]]
    [(since,)] = pipeline.execute("SELECT to_char(to_timestamp(%s / 1000.0), 'YYYY-MM-DD\"T\"HH24:MI:SS.MSOF')", (events[3].timestamp_ms,))
    assert reset(pipeline, "--to-time", since) == [(0, end, events[3].offset)]
    assert reset(pipeline, "--to-time", "2100-01-01T00:00:00Z")[0][2] >= end
    for words, arguments in (
        ("it is not said where to", ()),
        ("no record of event 'nobody'", ("--to-event", "nobody")),
        ("does not exist", ("--to-earliest", "--topic", f"{pipeline.name}.nothing")),
    ):
        refused(pipeline, 2, words, "offsets", "reset", "--group", pipeline.name, *arguments)
    refused(pipeline, 2, "has no offsets in a topic of this pipeline", "offsets", "reset", "--group", "nobody", "--to-earliest")


def test_a_group_that_is_in_use_is_not_moved(pipeline: Pipeline) -> None:
    pipeline.init()
    pipeline.started()
    pipeline.insert(1, 3)
    pipeline.wait_confirmed()
    read(pipeline, 3)
    consumer = Consumer({"bootstrap.servers": pipeline.bootstrap, "group.id": pipeline.name, "log_level": 0})
    consumer.subscribe([pipeline.topic])
    try:
        wait_for(lambda: (consumer.consume(1, 0.2), consumer.assignment())[1], 30, "it reads")
        refused(pipeline, 5, "is in use by 1 consumers", "offsets", "reset", "--group", pipeline.name, "--to-earliest")
        [place] = consumer.committed([TopicPartition(pipeline.topic, 0)], timeout=10)
        assert place.offset == pipeline.events()[-1].offset + 1
    finally:
        consumer.close()
