"""Topics as a real broker describes them, and readers of committed records."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from cdc.errors import KafkaRefused, Retriable
from cdc.kafka import topics as topics_module
from cdc.kafka.faults import Code, Fault
from cdc.kafka.properties import admin_properties
from cdc.kafka.subscriber import Seen, Subscriber
from cdc.kafka.topics import Create, Topic, Topics
from tests.integration.kafka_help import nothing, until

pytestmark = pytest.mark.servers

HOUR_MS = 3_600_000


@pytest.fixture
def topics(kafka: str, unique: str) -> Iterator[Topics]:
    made = Topics(admin_properties({"bootstrap.servers": kafka}, unique))
    yield made
    made.close()


@pytest.fixture
def subscriber(kafka: str, unique: str) -> Iterator[Subscriber]:
    made = Subscriber(name=unique, kafka={"bootstrap.servers": kafka})
    yield made
    made.close()


@pytest.fixture
def producer(kafka: str, unique: str) -> Producer:
    made = Producer({"bootstrap.servers": kafka, "transactional.id": unique})
    made.init_transactions(30)
    return made


def test_one_question_for_many_topics(topics: Topics, unique: str) -> None:
    assert topics.create(f"{unique}.a", Create(3, 1, 1), {"retention.ms": "1000"}, nothing).new
    assert not topics.create(f"{unique}.a", Create(5, 1, 1), {}, nothing).new
    found = topics.describe([f"{unique}.a", f"{unique}.missing", "not legal"], nothing)
    there, missing, illegal = (found[name] for name in (f"{unique}.a", f"{unique}.missing", "not legal"))
    assert isinstance(there, Topic)
    assert (there.partitions, there.replication_factor, there.readable, there.writable) == (3, 1, True, True)
    assert (there.config["retention.ms"], there.config["min.insync.replicas"]) == ("1000", "1")
    assert isinstance(missing, Fault)
    assert missing.code == Code.UNKNOWN_TOPIC_OR_PART
    assert isinstance(illegal, Fault)
    assert illegal.code == Code.TOPIC_EXCEPTION
    assert isinstance(topics.describe([f"{unique}.missing"], nothing)[f"{unique}.missing"], Fault)


def test_what_the_broker_says_of_itself(topics: Topics) -> None:
    assert topics.cluster_id(nothing)
    assert topics.brokers(nothing)
    assert topics.broker_config(nothing)["transaction.max.timeout.ms"] == "900000"
    assert topics.transaction_max_timeout_ms(nothing) == 900_000


def test_too_many_replicas_are_refused_with_a_fix(topics: Topics, unique: str) -> None:
    with pytest.raises(KafkaRefused) as caught:
        topics.create(unique, Create(1, 3, 2), {}, nothing)
    assert "replication_factor" in caught.value.fix


def test_a_broker_that_cannot_be_reached_is_no_missing_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics_module, "REQUEST_TIMEOUT_S", 0.5)
    away = Topics(admin_properties({"bootstrap.servers": "127.0.0.1:1"}, "away"))
    waits: list[int] = []
    with pytest.raises(Retriable):
        away.describe(["topic"], lambda: waits.append(1))
    assert waits


def read(subscriber: Subscriber, topic: str, since_ms: int | None = None) -> list[bytes | None]:
    return [seen.value for seen in subscriber.read([topic], since_ms=since_ms)]


def test_a_reader_sees_what_is_committed_and_ends(subscriber: Subscriber, producer: Producer, unique: str) -> None:
    subscriber.topics.create(unique, Create(3, 1, 1), {}, nothing)
    assert read(subscriber, unique) == []
    made_at_ms = round(time.time() * 1000) - HOUR_MS
    producer.begin_transaction()
    producer.produce(unique, b"v", b"k", 2, headers=[("a", b"1"), ("n", None)], timestamp=made_at_ms)
    producer.commit_transaction(30)
    producer.begin_transaction()
    producer.produce(unique, b"open", b"k", 1)
    producer.flush(30)
    until(lambda: len(read(subscriber, unique)) == 1, 10)
    (seen,) = subscriber.read([unique])
    assert seen == Seen(unique, 2, 0, b"k", b"v", [("a", b"1"), ("n", None)], made_at_ms)
    producer.abort_transaction(30)
    until(lambda: subscriber.bounds([unique], nothing)[unique, 1] == (0, 2), 10)
    assert len(list(subscriber.read([unique]))) == 1
    assert subscriber.bounds([unique], nothing) == {(unique, 0): (0, 0), (unique, 1): (0, 2), (unique, 2): (0, 2)}


def test_field_case_116_a_long_run_of_aborted_records_is_passed(subscriber: Subscriber, producer: Producer, unique: str) -> None:
    subscriber.topics.create(unique, Create(1, 1, 1), {}, nothing)
    for _ in range(5):
        producer.begin_transaction()
        for _ in range(20_000):
            producer.produce(unique, b"aborted" * 10)
        producer.flush(30)
        producer.abort_transaction(30)
    producer.begin_transaction()
    producer.produce(unique, b"committed")
    producer.commit_transaction(30)
    until(lambda: read(subscriber, unique) == [b"committed"], 20)


def test_a_reader_starts_at_a_time(subscriber: Subscriber, producer: Producer, unique: str) -> None:
    subscriber.topics.create(unique, Create(1, 1, 1), {}, nothing)
    now_ms = round(time.time() * 1000)
    producer.begin_transaction()
    for number in range(10):
        producer.produce(unique, b"%d" % number, timestamp=now_ms + number)
    producer.commit_transaction(30)
    until(lambda: len(read(subscriber, unique)) == 10, 10)
    assert read(subscriber, unique, now_ms + 7) == [b"7", b"8", b"9"]
    assert read(subscriber, unique, now_ms + 100) == []


class Enough(Exception):
    """Leaves a reader that follows."""


def test_a_reader_follows_until_it_is_told_to_leave(subscriber: Subscriber, producer: Producer, unique: str) -> None:
    subscriber.topics.create(unique, Create(1, 1, 1), {}, nothing)
    sent: list[int] = []
    found: list[bytes | None] = []

    def waiting() -> None:
        if len(found) == 3:
            raise Enough
        if len(sent) == len(found):
            sent.append(1)
            producer.begin_transaction()
            producer.produce(unique, b"%d" % len(sent))
            producer.commit_transaction(30)

    with contextlib.suppress(Enough):
        for seen in subscriber.read([unique], follow=True, waiting=waiting):
            found.append(seen.value)  # noqa: PERF401 - `waiting` looks at it meanwhile
    assert found == [b"1", b"2", b"3"]


def test_a_missing_topic_cannot_be_read(subscriber: Subscriber, unique: str) -> None:
    with pytest.raises(KafkaRefused, match=unique):
        list(subscriber.read([unique]))
