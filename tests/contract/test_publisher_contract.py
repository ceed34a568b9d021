"""What every Publisher must do: one suite, on the simulated Kafka, Redis and RabbitMQ, and on real ones."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, cast

import pytest
from confluent_kafka import Producer

from cdc.errors import Fenced, InvalidEvent, Retriable, SinkRefused
from cdc.event import Record
from cdc.kafka import positions
from cdc.kafka.limits import fits
from cdc.kafka.publisher import KafkaPublisher
from cdc.kafka.subscriber import Subscriber
from cdc.kafka.topics import Create
from cdc.pipeline.ports import Publisher
from cdc.position import Existing, Fingerprint, Lsn, Position
from cdc.rabbitmq import positions as lease
from cdc.rabbitmq import publisher as rabbitmq
from cdc.rabbitmq.publisher import RabbitPublisher
from cdc.rabbitmq.reader import RabbitReader
from cdc.redis.link import Link
from cdc.redis.publisher import Options, RedisPublisher
from cdc.redis.reader import RedisReader
from tests.simulation.fake_kafka import Cluster, FakePublisher, Topic, partition_for
from tests.simulation.fake_rabbitmq import FakeRabbit, FakeRabbitLink
from tests.simulation.fake_redis import FakeRedis, FakeRedisLink

HOUR_MS = 3_600_000


class World(Protocol):
    """A Kafka with a position topic for the pipeline `name`."""

    name: str

    def publisher(self) -> Publisher: ...
    def topic(self, partitions: int = 1, *, max_message_bytes: int = 1_048_588, compacted: bool = False) -> str: ...
    def committed(self, topic: str) -> list[tuple[int, Record]]: ...
    def foreign_transaction(self) -> contextlib.AbstractContextManager[None]: ...
    def close(self) -> None: ...


class FakeWorld:
    def __init__(self, _kafka: str) -> None:
        self.name = "shop"
        self.cluster = Cluster(clock=time.time)
        self.cluster.create(Topic("position", compacted=True))

    def publisher(self) -> Publisher:
        return FakePublisher(self.cluster, name=self.name, position_topic="position")

    def topic(self, partitions: int = 1, *, max_message_bytes: int = 1_048_588, compacted: bool = False) -> str:
        topic = Topic(f"events-{len(self.cluster.topics)}", partitions, max_message_bytes, compacted)
        self.cluster.create(topic)
        return topic.name

    def committed(self, topic: str) -> list[tuple[int, Record]]:
        return [(partition, record) for partition, _, record in self.cluster.committed(topic)]

    @contextlib.contextmanager
    def foreign_transaction(self) -> Iterator[None]:
        epoch = self.cluster.init_producer("foreign")
        self.cluster.append("foreign", epoch, Record("position", b"foreign", b"", [], 0, 0))
        yield
        self.cluster.end("foreign", epoch, commit=False)

    def close(self) -> None:
        pass


class RealWorld:
    def __init__(self, kafka: str) -> None:
        self.name = f"c{uuid.uuid4().hex[:12]}"
        self.position_topic = f"_cdc.{self.name}.position"
        self.settings = {
            "bootstrap.servers": kafka,
            # How long librdkafka looks for a topic that is not there, before the delivery fails.
            "topic.metadata.propagation.max.ms": 500,
        }
        self.publishers: list[KafkaPublisher] = []
        self.subscriber = Subscriber(name=self.name, kafka=self.settings)
        self.topics = self.subscriber.topics
        self.publisher().positions.create(1, 1, lambda: None)

    def publisher(self) -> KafkaPublisher:
        made = KafkaPublisher(name=self.name, kafka=self.settings, position_topic=self.position_topic)
        self.publishers.append(made)
        return made

    def topic(self, partitions: int = 1, *, max_message_bytes: int = 1_048_588, compacted: bool = False) -> str:
        name = f"events-{uuid.uuid4().hex[:12]}"
        config = {"max.message.bytes": str(max_message_bytes), "cleanup.policy": "compact" if compacted else "delete"}
        self.topics.create(name, Create(partitions, 1, 1), config, lambda: None)
        return name

    def committed(self, topic: str) -> list[tuple[int, Record]]:
        return [
            (seen.partition, Record(seen.topic, seen.key, seen.value, seen.headers, seen.timestamp_ms))
            for seen in self.subscriber.read([topic])
        ]

    @contextlib.contextmanager
    def foreign_transaction(self) -> Iterator[None]:
        producer = Producer({**self.settings, "transactional.id": f"foreign-{self.name}"})
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce(self.position_topic, b"", b"foreign")
        producer.flush(30)
        yield
        producer.abort_transaction(30)

    def close(self) -> None:
        for publisher in self.publishers:
            publisher.close()
        self.subscriber.close()


class RedisWorld:
    def __init__(self, url: str) -> None:
        self.name = f"c{uuid.uuid4().hex[:12]}"
        self.position_key = f"_cdc.{self.name}.position"
        self.options = Options(url, maxlen=0)
        self.publishers: list[RedisPublisher] = []
        self.reader = RedisReader(url=url, name=self.name, position_key=self.position_key)
        self.publisher().positions.create(1, 1, nothing)

    def publisher(self) -> RedisPublisher:
        made = RedisPublisher(name=self.name, options=self.options, position_key=self.position_key)
        self.publishers.append(made)
        return made

    def topic(self, partitions: int = 1, *, max_message_bytes: int = 0, compacted: bool = False) -> str:
        name = f"events-{uuid.uuid4().hex[:12]}"
        self.publishers[0].route(name, nothing)
        return name

    def committed(self, topic: str) -> list[tuple[int, Record]]:
        read = self.reader.read([topic])
        return [(seen.partition, Record(topic, seen.key, seen.value, seen.headers, seen.timestamp_ms)) for seen in read]

    def foreign_transaction(self) -> contextlib.AbstractContextManager[None]:
        raise NotImplementedError

    def close(self) -> None:
        for publisher in self.publishers:
            publisher.close()
        self.reader.close()


class FakeRedisWorld(RedisWorld):
    def __init__(self, url: str) -> None:
        self.server = FakeRedis()
        super().__init__(url)

    def publisher(self) -> RedisPublisher:
        made = RedisPublisher(
            name=self.name,
            options=self.options,
            position_key=self.position_key,
            connect=lambda: cast("Link", FakeRedisLink(self.server)),
        )
        self.publishers.append(made)
        return made

    def committed(self, topic: str) -> list[tuple[int, Record]]:
        return [(partition, record) for partition, _, record in self.server.committed(topic)]


class RabbitWorld:
    """Its one topic is the queue of dead letters, which needs no binding."""

    def __init__(self, url: str) -> None:
        self.name = f"c{uuid.uuid4().hex[:12]}"
        self.position_queue, self.queue = f"_cdc.{self.name}.position", f"cdc.{self.name}.dead-letter"
        self.url = url
        self.publishers: list[RabbitPublisher] = []
        self.declare()

    def declare(self) -> None:
        maker = self.publisher()
        maker.positions.create(1, 1, nothing)
        maker.drop()

    def connection(self) -> dict[str, Any]:
        return {}

    def publisher(self) -> RabbitPublisher:
        made = RabbitPublisher(
            name=self.name,
            url=self.url,
            exchange=self.name,
            exchange_type="topic",
            position_queue=self.position_queue,
            dead_letter_queue=self.queue,
            confirm_timeout_s=30,
            **self.connection(),
        )
        self.publishers.append(made)
        return made

    def topic(self, partitions: int = 1, *, max_message_bytes: int = 0, compacted: bool = False) -> str:
        return self.queue

    def committed(self, topic: str) -> list[tuple[int, Record]]:
        with contextlib.closing(RabbitReader(url=self.url, name=self.name, dead_letter=topic, audit=None)) as reader:
            return [(0, Record(topic, seen.key, seen.value, seen.headers, seen.timestamp_ms)) for seen in reader.read([topic])]

    def foreign_transaction(self) -> contextlib.AbstractContextManager[None]:
        raise NotImplementedError

    def close(self) -> None:
        for publisher in self.publishers:
            publisher.close()


class FakeRabbitWorld(RabbitWorld):
    now = 0.0

    def declare(self) -> None:
        self.server = FakeRabbit(self.clock)
        self.server.declare(self.queue, position=self.position_queue)

    def clock(self) -> float:
        return self.now

    def passes(self, seconds: float) -> None:
        self.now += seconds

    def connection(self) -> dict[str, Any]:
        return {
            "clock": self.clock,
            "connect": lambda: FakeRabbitLink(self.server, self.clock, self.passes, lambda _name, request: request(), 30),
        }

    def committed(self, topic: str) -> list[tuple[int, Record]]:
        return [(partition, record) for partition, _, record in self.server.committed(topic)]


def made_world(request: pytest.FixtureRequest) -> Iterator[World]:
    if request.param in {FakeWorld, FakeRedisWorld, FakeRabbitWorld}:
        made: World = request.param("simulated://")
    elif request.param is RealWorld:
        made = RealWorld(request.getfixturevalue("kafka"))
    elif request.param is RabbitWorld:
        made = RabbitWorld(request.getfixturevalue("rabbit_broker").url)
    else:
        made = RedisWorld(request.getfixturevalue("redis_server").url)
    yield made
    made.close()


REAL = pytest.param(RealWorld, marks=pytest.mark.servers)


@pytest.fixture(params=[FakeWorld, REAL])
def kafka_world(request: pytest.FixtureRequest) -> Iterator[World]:
    yield from made_world(request)


AT_ONCE = [FakeWorld, REAL, FakeRedisWorld, pytest.param(RedisWorld, marks=[pytest.mark.servers, pytest.mark.packages])]
"""Sinks that take events and position together."""

AT_LEAST_ONCE = [FakeRabbitWorld, pytest.param(RabbitWorld, marks=[pytest.mark.servers, pytest.mark.packages])]


@pytest.fixture(params=AT_ONCE)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    yield from made_world(request)


@pytest.fixture(params=[*AT_ONCE, *AT_LEAST_ONCE])
def any_world(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    hurry(monkeypatch)
    yield from made_world(request)


@pytest.fixture(params=AT_LEAST_ONCE)
def rabbit_world(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    hurry(monkeypatch)
    yield from made_world(request)


def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits long for a lease that is taken, or for a position that is not there."""
    monkeypatch.setattr(rabbitmq, "LEASE_S", 0.5)
    monkeypatch.setattr(lease, "LATE_S", 0.1)


def position(world: World, end_lsn: int) -> Position:
    fingerprint = Fingerprint(1, 2, (), Lsn(0))
    return Position(world.name, 1, "7", ((1, Lsn(0)),), "cdc_shop", fingerprint, "k", Lsn(end_lsn), 0, "none", None, Existing("none", ""))


def record(topic: str, key: bytes | None = b"k", value: bytes | None = b"v", partition: int = -1) -> Record:
    return Record(topic, key, value, [("ce_id", b"1")], round(time.time() * 1000), partition)


def nothing() -> None:
    pass


def committed(world: World, topic: str, count: int) -> list[tuple[int, Record]]:
    """Wait until so many records are there: a commit returns when its outcome is sure, its markers come a little later."""
    deadline = time.monotonic() + 10
    while len(seen := world.committed(topic)) < count and time.monotonic() < deadline:
        pass
    return seen


def values(world: World, topic: str, count: int = 1) -> list[bytes | None]:
    return [made.value for _, made in committed(world, topic, count)]


def test_a_new_topic_has_no_position(any_world: World) -> None:
    publisher = any_world.publisher()
    seen, cluster_id = publisher.peek()
    assert seen is None
    assert cluster_id
    assert publisher.recover(nothing, patient=False) is None


def test_records_and_position_arrive_together(world: World) -> None:
    topic = world.topic()
    publisher = world.publisher()
    publisher.recover(nothing, patient=False)
    now = round(time.time() * 1000)
    nulls = [] if isinstance(world, RedisWorld) else [("none", None)]  # a stream has no field without a value
    sent = [
        Record(topic, b"k", b"v1", [("ce_id", b"1"), ("empty", b""), ("key", b"a header's"), ("header:data", b"odd"), *nulls], now),
        Record(topic, None, b"v2", [], now + 1),
        Record(topic, b"k", None, [], now + 2),
    ]
    publisher.produce(sent, nothing)
    assert world.committed(topic) == []
    publisher.commit(position(world, 100), nothing)
    assert [made._replace(partition=-1) for _, made in committed(world, topic, 3)] == sent
    assert publisher.peek()[0] == position(world, 100)
    assert world.publisher().recover(nothing, patient=False) == position(world, 100)


def test_the_last_position_wins(any_world: World) -> None:
    publisher = any_world.publisher()
    publisher.recover(nothing, patient=False)
    for end_lsn in (100, 200, 300):
        publisher.commit(position(any_world, end_lsn), nothing)
    assert publisher.recover(nothing, patient=False) == position(any_world, 300)


def test_waiting_is_called_while_the_broker_is_waited_for(any_world: World) -> None:
    calls: list[int] = []
    publisher = any_world.publisher()
    publisher.recover(lambda: calls.append(1), patient=False)
    assert calls
    calls.clear()
    for end_lsn in range(50):
        publisher.commit(position(any_world, end_lsn), lambda: calls.append(1))
        if calls:
            break
    assert calls


def test_what_waiting_raises_leaves_at_once(any_world: World) -> None:
    def leave() -> None:
        raise KeyboardInterrupt

    publisher = any_world.publisher()
    with pytest.raises(KeyboardInterrupt):
        publisher.recover(leave, patient=False)
    publisher.drop()
    assert publisher.recover(nothing, patient=False) is None


def test_a_newer_instance_fences(world: World) -> None:
    topic = world.topic()
    old, new = world.publisher(), world.publisher()
    old.recover(nothing, patient=False)
    old.commit(position(world, 100), nothing)
    old.produce([record(topic, value=b"old")], nothing)
    assert new.recover(nothing, patient=False) == position(world, 100)

    def publish() -> None:
        old.produce([record(topic, value=b"zombie")], nothing)
        old.commit(position(world, 999), nothing)

    with pytest.raises(Fenced):
        publish()
    new.produce([record(topic, value=b"new")], nothing)
    new.commit(position(world, 200), nothing)
    assert values(world, topic) == [b"new"]
    assert old.peek()[0] == position(world, 200)
    old.drop()
    assert old.recover(nothing, patient=False) == position(world, 200)


def test_one_instance_has_the_lease_and_what_it_sent_comes_before_its_successor_s(rabbit_world: World) -> None:
    topic = rabbit_world.topic()
    old, new = rabbit_world.publisher(), rabbit_world.publisher()
    old.recover(nothing, patient=False)
    old.commit(position(rabbit_world, 100), nothing)
    with pytest.raises(Retriable, match="another instance"):
        new.recover(nothing, patient=False)
    old.produce([record(topic, value=b"%d" % number) for number in range(3)], nothing)
    old.commit(position(rabbit_world, 200), nothing)
    old.produce([record(topic, value=b"unfinished")], nothing)
    old.drop()
    found = recovered(new)
    assert found == position(rabbit_world, 200)
    new.produce([record(topic, value=b"unfinished")], nothing)
    new.commit(position(rabbit_world, 300), nothing)
    seen = values(rabbit_world, topic, 4)
    assert seen[:4] == [b"0", b"1", b"2", b"unfinished"]
    assert set(seen[4:]) <= {b"unfinished"}, "at least once"


def recovered(publisher: Publisher) -> Position | None:
    """Recover as the supervisor does it: again until the lease that was let go is free."""
    for _ in range(50):
        with contextlib.suppress(Retriable):
            return publisher.recover(nothing, patient=False)
        publisher.drop()
    raise AssertionError("the lease is not free")


def test_an_idle_zombie_is_fenced_too(world: World) -> None:
    old, new = world.publisher(), world.publisher()
    old.recover(nothing, patient=False)
    old.commit(position(world, 100), nothing)
    new.recover(nothing, patient=False)
    with pytest.raises(Fenced):
        old.commit(position(world, 999), nothing)
    assert new.peek()[0] == position(world, 100)


def test_what_was_dropped_never_appears(world: World) -> None:
    topic = world.topic()
    publisher = world.publisher()
    publisher.recover(nothing, patient=False)
    publisher.produce([record(topic, value=b"dropped")], nothing)
    publisher.drop()
    publisher.drop()
    publisher.recover(nothing, patient=False)
    publisher.produce([record(topic, value=b"kept")], nothing)
    publisher.commit(position(world, 100), nothing)
    assert values(world, topic) == [b"kept"]


def test_abort_frees_readers_without_a_successor(world: World) -> None:
    topic, other = world.topic(), world.publisher()
    publisher = world.publisher()
    publisher.recover(nothing, patient=False)
    publisher.produce([record(topic, value=b"aborted")], nothing)
    publisher.abort(10)
    publisher.drop()
    assert world.committed(topic) == []
    other.recover(nothing, patient=False)
    other.produce([record(topic, value=b"kept")], nothing)
    other.commit(position(world, 100), nothing)
    assert values(world, topic) == [b"kept"]


def test_abort_without_a_transaction_does_nothing(world: World) -> None:
    publisher = world.publisher()
    publisher.abort(1)
    publisher.recover(nothing, patient=False)
    publisher.abort(1)
    publisher.commit(position(world, 100), nothing)
    assert publisher.peek()[0] == position(world, 100)


def test_an_open_transaction_of_somebody_else_is_not_the_end(kafka_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(positions, "READ_PATIENCE_S", 1.5)
    publisher = kafka_world.publisher()
    publisher.recover(nothing, patient=False)
    publisher.commit(position(kafka_world, 100), nothing)
    with kafka_world.foreign_transaction():
        publisher.commit(position(kafka_world, 200), nothing)
        assert publisher.peek()[0] == position(kafka_world, 100)
        with pytest.raises(Retriable, match="another producer"):
            publisher.recover(nothing, patient=False)
    assert publisher.recover(nothing, patient=False) == position(kafka_world, 200)


def test_a_patient_passage_may_take_longer(kafka_world: World) -> None:
    publisher = kafka_world.publisher()
    publisher.recover(nothing, patient=False)
    usual = publisher.transaction_timeout_s
    publisher.recover(nothing, patient=True)
    assert publisher.transaction_timeout_s > usual == 60.0
    publisher.commit(position(kafka_world, 100), nothing)
    publisher.recover(nothing, patient=False)
    assert publisher.transaction_timeout_s == usual


def test_a_route_tells_what_the_topic_takes(kafka_world: World) -> None:
    publisher = kafka_world.publisher()
    route = publisher.route(kafka_world.topic(3, max_message_bytes=20_000, compacted=True), nothing)
    assert (route.partitions, route.max_message_bytes, route.compacted) == (3, 20_000, True)
    assert route.timestamp_after_ms == HOUR_MS
    assert publisher.route(kafka_world.topic(), nothing).max_message_bytes == 1_000_000


@pytest.mark.parametrize("topic", ["not-there", "", "..", "with space", "Typo/é", "x" * 250])
def test_a_topic_that_cannot_take_records_is_refused(kafka_world: World, topic: str) -> None:
    publisher = kafka_world.publisher()
    publisher.recover(nothing, patient=False)
    with pytest.raises(InvalidEvent) as caught:
        publisher.route(topic, nothing)
    assert caught.value.reason == "route"
    publisher.commit(position(kafka_world, 100), nothing)


def test_a_topic_that_no_row_can_change_is_required(kafka_world: World) -> None:
    publisher = kafka_world.publisher()
    publisher.require([kafka_world.topic()], nothing)
    with pytest.raises(SinkRefused, match="not-there"):
        publisher.require([kafka_world.topic(), "not-there"], nothing)


@dataclasses.dataclass
class Poison:
    """One bad record: the topic's limits, what to change in a good record, and the reason of the refusal."""

    config: dict[str, Any]
    change: dict[str, Any]
    reason: str


POISON = {
    "over the topic's limit": Poison({"max_message_bytes": 20_000}, {"value": random.Random(20).randbytes(20_000)}, "size"),
    "partition out of range": Poison({"partitions": 3}, {"partition": 3}, "route"),
    "from the future": Poison({}, {"timestamp_ms": round(time.time() * 1000) + 2 * HOUR_MS}, "route"),
    "null key, compacted topic": Poison({"compacted": True}, {"key": None}, "route"),
    "unknown topic": Poison({}, {"topic": "nowhere"}, "route"),
    "illegal name": Poison({}, {"topic": "not a name!"}, "route"),
}


@pytest.mark.parametrize("case", POISON)
def test_one_bad_record_fails_the_whole_transaction(kafka_world: World, case: str) -> None:
    poison = POISON[case]
    topic = kafka_world.topic(**poison.config)
    publisher = kafka_world.publisher()
    publisher.recover(nothing, patient=False)
    publisher.commit(position(kafka_world, 100), nothing)
    good = record(topic, value=b"good", partition=0)
    bad = good._replace(value=b"bad")._replace(**poison.change)

    def publish(records: Sequence[Record]) -> None:
        publisher.produce(records, nothing)
        publisher.commit(position(kafka_world, 200), nothing)

    with pytest.raises(Retriable):
        publish([good, bad, good])
    publisher.drop()
    assert publisher.recover(nothing, patient=False) == position(kafka_world, 100)
    assert kafka_world.committed(topic) == []
    with contextlib.suppress(Retriable):  # a smaller limit asks for another producer
        publisher.route(topic, nothing)
    publisher.drop()
    publisher.recover(nothing, patient=False)
    with pytest.raises(InvalidEvent) as caught:
        fits(bad, publisher.route(bad.topic, nothing), round(time.time() * 1000))
    assert caught.value.reason == poison.reason
    fits(good, publisher.route(topic, nothing), round(time.time() * 1000))
    publish([good, good])
    assert values(kafka_world, topic, 2) == [b"good", b"good"]


def test_many_records_keep_their_order(world: World) -> None:
    topic = world.topic()
    publisher = world.publisher()
    publisher.recover(nothing, patient=False)
    sent = [b"%d" % number for number in range(30_000)]
    for start in range(0, len(sent), 1000):
        publisher.produce([record(topic, value=value) for value in sent[start : start + 1000]], nothing)
    publisher.commit(position(world, 100), nothing)
    assert values(world, topic, len(sent)) == sent


def test_field_case_75_a_key_meets_the_partition_of_java_clients(kafka_world: World) -> None:
    topic = kafka_world.topic(15)
    keys = [b"TT0124", b"", "\u00e9\u4e2d\U0001f600".encode(), *(str(uuid.UUID(int=number)).encode() for number in range(200))]
    publisher = kafka_world.publisher()
    publisher.recover(nothing, patient=False)
    publisher.produce([record(topic, key=key) for key in keys], nothing)
    publisher.commit(position(kafka_world, 100), nothing)
    found = {made.key: partition for partition, made in committed(kafka_world, topic, len(keys))}
    assert found == {key: partition_for(key, 15) for key in keys}


def test_a_missing_position_topic_is_refused(kafka: str) -> None:
    fake = FakePublisher(Cluster(), name="shop", position_topic="nowhere")
    with pytest.raises(SinkRefused, match="cdc init"):
        fake.peek()
    real = KafkaPublisher(name="shop", kafka={"bootstrap.servers": kafka}, position_topic="nowhere")
    with pytest.raises(SinkRefused, match="cdc init"):
        real.peek()
    real.close()
