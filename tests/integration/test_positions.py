"""The position topic on a real broker: read backwards to the true end, verified, created once."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from cdc.errors import ContinuityError, KafkaRefused
from cdc.kafka import positions
from cdc.kafka.properties import consumer_properties
from cdc.kafka.publisher import KafkaPublisher
from cdc.kafka.topics import Create
from tests.integration.kafka_help import at, nothing, publisher, values

pytestmark = pytest.mark.servers


@pytest.fixture
def made(kafka: str, unique: str) -> Iterator[KafkaPublisher]:
    publisher_ = publisher(kafka, unique)
    yield publisher_
    publisher_.close()


def write(kafka: str, topic: str, records: list[tuple[bytes | None, bytes | None]], *, commit: bool = True) -> None:
    producer = Producer({"bootstrap.servers": kafka, "transactional.id": f"writer-{topic}", "linger.ms": 0})
    producer.init_transactions(30)
    producer.begin_transaction()
    for key, value in records:
        producer.produce(topic, value, key)
        producer.poll(0)
    producer.flush(30)
    if commit:
        producer.commit_transaction(30)
    else:
        producer.abort_transaction(30)


@pytest.mark.parametrize("span", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("behind", [0, 1, 5, 40])
def test_the_last_position_is_found_from_the_end(
    made: KafkaPublisher, kafka: str, unique: str, *, monkeypatch: pytest.MonkeyPatch, span: int, behind: int
) -> None:
    monkeypatch.setattr(positions, "SPAN", span)
    key = unique.encode()
    write(kafka, f"{unique}.position", [(key, at(number).to_json()) for number in range(30)])
    if behind:
        write(kafka, f"{unique}.position", [(b"somebody else", b"x")] * behind)
        write(kafka, f"{unique}.position", [(key, at(999).to_json())] * behind, commit=False)
    assert made.positions.read(nothing) == at(29)
    assert made.peek()[0] == at(29)


def test_an_erased_position_is_none(made: KafkaPublisher, kafka: str, unique: str) -> None:
    key = unique.encode()
    write(kafka, f"{unique}.position", [(b"somebody else", b"x")])
    assert made.positions.read(nothing) is None
    write(kafka, f"{unique}.position", [(key, at(1).to_json()), (key, None)])
    assert made.positions.read(nothing) is None


def test_a_position_that_nobody_can_read_is_no_position(made: KafkaPublisher, kafka: str, unique: str) -> None:
    write(kafka, f"{unique}.position", [(unique.encode(), b"{}")])
    with pytest.raises(ContinuityError):
        made.positions.read(nothing)


def test_reading_is_quick_whatever_the_topic_holds(made: KafkaPublisher, kafka: str, unique: str) -> None:
    key = unique.encode()
    write(kafka, f"{unique}.position", [(key, at(number).to_json()) for number in range(50_000)])
    waits: list[int] = []
    began = time.monotonic()
    assert made.positions.read(lambda: waits.append(1)) == at(49_999)
    print(f"last position behind 50,000 others: {(time.monotonic() - began) * 1000:.0f} ms")
    assert time.monotonic() - began < 5
    assert waits


def test_create_makes_what_verify_wants_and_only_once(made: KafkaPublisher) -> None:
    made.positions.verify(nothing)
    assert made.positions.exists(nothing)
    assert not made.positions.create(1, 1, nothing)


@pytest.mark.parametrize(
    ("partitions", "config", "word"),
    [(2, positions.CONFIG, "2 partitions"), (1, {**positions.CONFIG, "cleanup.policy": "delete"}, "cleanup.policy")],
)
def test_an_unsafe_topic_is_refused(
    made: KafkaPublisher, kafka: str, unique: str, *, partitions: int, config: dict[str, str], word: str
) -> None:
    made.topics.create(f"{unique}.bad", Create(partitions, 1, 1), config, nothing)
    topic = positions.PositionTopic(f"{unique}.bad", unique, made.topics, consumer_properties({"bootstrap.servers": kafka}, unique))
    with pytest.raises(KafkaRefused, match=word) as caught:
        topic.verify(nothing)
    assert caught.value.fix


def test_a_position_is_json_that_anybody_can_read(made: KafkaPublisher, kafka: str, unique: str) -> None:
    made.recover(nothing)
    made.commit(at(5), nothing)
    (value,) = values(kafka, [f"{unique}.position"], 1)
    assert value is not None
    assert json.loads(value)["end_lsn"] == "0/5"
