"""Consumers for tests: records as the pipeline writes them, and a consumer that runs in a thread of the test.

`Line` is one test's topic, group and database. Records are made by a plain producer, so that a test decides about every header.
"""

from __future__ import annotations

import io
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fastavro
import pika
import psycopg
import redis
from confluent_kafka import Consumer as PlainConsumer
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from cdc.consumer import Consumer, Create, Event
from cdc.consumer.ports import Log
from cdc.event import Record
from cdc.rabbitmq.message import properties_of
from cdc.rabbitmq.reader import RabbitReader
from cdc.redis.entry import DATA, KEY, field_of, offset_of, seen, stream_of
from tests.pipeline import SCHEMA, consume, write_schemas
from tests.pipeline import Event as Found
from tests.waiting import wait_for

CREATE = Create(partitions=1, replication_factor=1, min_insync_replicas=1)

EFFECTS = (
    "CREATE TABLE IF NOT EXISTS effects (event_id text NOT NULL, n bigint, partition integer, at timestamptz DEFAULT clock_timestamp())"
)


@dataclass
class Line:
    """A topic and what consumes it."""

    name: str
    bootstrap: str
    dsn: str
    schemas: Path

    @property
    def topic(self) -> str:
        return f"{self.name}.thing"

    @property
    def sink(self) -> dict[str, Any]:
        """What a consumer is told of the broker."""
        return {"kafka": {"bootstrap.servers": self.bootstrap}}

    def make_topic(self, partitions: int = 1, name: str = "", **config: str) -> None:
        topic = NewTopic(name or self.topic, partitions, 1, config={key.replace("_", "."): value for key, value in config.items()})
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        for made in admin.create_topics([topic]).values():
            made.result()

    def consumer(self, name: str = "", **settings: Any) -> Consumer:  # noqa: ANN401 - whatever a consumer takes
        """A consumer on this topic and database, with its own topics made and its tables."""
        sink: dict[str, Any] = {name: {**table, **settings.pop(name, {})} for name, table in self.sink.items()}
        given = {"topics": [self.topic], "postgres": self.dsn, "schemas": self.schemas, "create": CREATE, **settings}
        made = Consumer(name or self.name, **sink, **given)
        if given["postgres"]:
            made.create_tables()
            self.execute(EFFECTS)
        return made

    def publish(self, *records: Mapping[str, Any], topic: str = "") -> None:
        """Write records and wait until they are there; see `event` for one."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 5})
        for record in records:
            producer.produce(topic or self.topic, **record)
        assert producer.flush(30) == 0

    def execute(self, statement: str, parameters: Sequence[object] | None = None) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(statement.encode(), parameters)
            return cursor.fetchall() if cursor.description else []

    def effects(self) -> list[int]:
        """The numbers of the events that were applied, in the order of their effects."""
        return [n for (n,) in self.execute("SELECT n FROM effects ORDER BY at")]

    def wait_effects(self, expected: Sequence[int], deadline_s: float = 30.0) -> None:
        """Wait until so many effects are there, then see that they are these, in this order."""
        wait_for(lambda: len(self.effects()) >= len(expected), deadline_s, f"{len(expected)} effects of {self.name}")
        assert self.effects() == list(expected)

    def dead_letters(self) -> list[Found]:
        """What the consumer has parked."""
        return consume(self.bootstrap, [f"cdc.{self.name}.dead-letter"])

    def listening(self, said: list[str]) -> Log:
        """An observer that keeps what heals by itself."""

        class Listening(Log):
            def hitch(self, consumer: str, what: str) -> None:
                said.append(what)

        return Listening()

    def first_offset(self) -> int:
        """The offset of the topic's first record."""
        return 0

    def committed(self, partition: int = 0, group: str = "", topic: str = "") -> int:
        """The group's offset."""
        plain = PlainConsumer({"bootstrap.servers": self.bootstrap, "group.id": group or self.name})

        def answered() -> list[TopicPartition]:
            try:
                return plain.committed([TopicPartition(topic or self.topic, partition)], timeout=20)
            except KafkaException as error:
                if error.args[0].code() not in {KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_LOAD_IN_PROGRESS}:
                    raise
                return []  # the broker takes the group on

        try:
            [place] = wait_for(answered, what="the group has a coordinator")
            return int(place.offset)
        finally:
            plain.close()


class RedisLine(Line):
    """The same on Redis Streams: `bootstrap` is its URL, a partition is a stream."""

    streams = 1

    @property
    def sink(self) -> dict[str, Any]:
        return {"redis": {"url": self.bootstrap, "streams": self.streams, "session_s": 2.0}}

    @property
    def client(self) -> redis.Redis:
        """A plain client."""
        return redis.Redis.from_url(self.bootstrap, protocol=2)

    def make_topic(self, partitions: int = 1, name: str = "", **config: str) -> None:
        self.streams = partitions

    def stream(self, number: int = 0, topic: str = "") -> str:
        return stream_of(topic or self.topic, number, self.streams)

    def publish(self, *records: Mapping[str, Any], topic: str = "") -> None:
        with self.client as client, client.pipeline() as batch:
            for each in records:
                named = {field_of(name): value for name, value in each["headers"]}
                key = {} if each["key"] is None else {KEY: each["key"]}
                batch.xadd(self.stream(each["partition"], topic), {**key, **named, DATA: each["value"]})
            batch.execute()

    def dead_letters(self) -> list[Found]:
        with self.client as client:
            found = [seen("", 0, *entry) for entry in flat(client.xrange(f"cdc.{self.name}.dead-letter"))]
        told = [{name: value or b"" for name, value in each.headers} for each in found]
        return [Found("", 0, 0, each.key, each.value, headers, each.timestamp_ms) for each, headers in zip(found, told, strict=True)]

    def first_offset(self) -> int:
        with self.client as client:
            [[entry_id, _]] = client.xrange(self.stream(), count=1)
        return offset_of(entry_id)

    def committed(self, partition: int = 0, group: str = "", topic: str = "") -> int:
        """How many entries of a stream were acknowledged."""
        with self.client as client:
            stream = self.stream(partition, topic)
            for each in client.xinfo_groups(stream):
                if each["name"].decode() == (group or self.name):
                    return len(client.xrange(stream, "-", each["last-delivered-id"])) - int(each["pending"])
        return 0


class RabbitLine(Line):
    """The same on RabbitMQ: `bootstrap` is its URL; a partition has no meaning."""

    @property
    def sink(self) -> dict[str, Any]:
        return {"rabbitmq": {"url": self.bootstrap, "exchange": self.exchange}}

    @property
    def exchange(self) -> str:
        return f"x.{self.name}"

    @contextmanager
    def channel(self) -> Iterator[Any]:
        """A plain client's channel."""
        connection = pika.BlockingConnection(pika.URLParameters(self.bootstrap))
        try:
            yield connection.channel()
        finally:
            if connection.is_open:
                connection.close()

    def queue(self, topic: str = "", group: str = "") -> str:
        return f"{group or self.name}.{topic or self.topic}"

    def make_topic(self, partitions: int = 1, name: str = "", **config: str) -> None:
        """Make the exchange, and the group's queue as a consumer makes it, so that nothing is published for nobody."""
        with self.channel() as channel:
            channel.exchange_declare(self.exchange, "topic", durable=True)
        self.bind(self.consumer())

    def bind(self, consumer: Consumer, topics: Sequence[str] = ()) -> None:
        """Make a consumer's queues before it runs."""
        consumer._broker.prepare(topics or [self.topic], [])

    def publish(self, *records: Mapping[str, Any], topic: str = "") -> None:
        with self.channel() as channel:
            channel.confirm_delivery()
            for each in records:
                record = Record(topic or self.topic, each["key"] and each["key"].encode(), each["value"], each["headers"], 0)
                channel.basic_publish(self.exchange, record.topic, record.value or b"", properties_of(record), mandatory=True)

    def dead_letters(self) -> list[Found]:
        return self.all_letters()[0]

    def all_letters(self) -> tuple[list[Found], int]:
        """What the consumer has parked, and how many letters are there once more."""
        letters = f"cdc.{self.name}.dead-letter"
        reader = RabbitReader(url=self.bootstrap, name="tests", dead_letter=letters, audit=None)
        try:
            found = [
                Found("", 0, each.offset, each.key, each.value, {name: value or b"" for name, value in each.headers}, each.timestamp_ms)
                for each in reader.read([letters])
            ]
            return found, reader.again
        finally:
            reader.close()

    def left(self, topic: str = "", group: str = "") -> int:
        """How many messages of a group's queue are with nobody; all that are not acknowledged, when nobody consumes."""
        with self.channel() as channel:
            return int(channel.queue_declare(self.queue(topic, group), passive=True).method.message_count)


def flat(entries: Any) -> Iterator[tuple[bytes, list[bytes]]]:  # noqa: ANN401 - redis-py's types are incomplete
    """Entries as Redis itself answers them."""
    for entry_id, named in entries:
        yield entry_id, [part for pair in named.items() for part in pair]


def event(n: int, *, event_id: str = "", key: str | None = "k", partition: int = 0, **headers: str) -> dict[str, Any]:
    """Arguments of `produce` for one event; further headers by name, `ce_replay=".."`."""
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(dict(SCHEMA)), {"n": n, "text": ""})
    told = {
        "ce_id": event_id or str(uuid.uuid5(uuid.NAMESPACE_OID, str(n))),
        "ce_source": "/shop",
        "ce_type": "Thing",
        "ce_sequence": f"{1:04x}{n:016x}{0:08x}",
        **headers,
    }
    value = b"\0" + (1).to_bytes(4, "big") + body.getvalue()
    return {"key": key, "value": value, "partition": partition, "headers": [(name, text.encode()) for name, text in told.items()]}


def write_effect(event: Event, connection: psycopg.Connection[Any]) -> None:
    """A handler: one row for each call."""
    connection.execute("INSERT INTO effects (event_id, n, partition) VALUES (%s, %s, %s)", (event.id, event.value["n"], event.partition))


@contextmanager
def consuming(*consumers: Consumer, grace: float = 10.0) -> Iterator[None]:
    """Run consumers in threads; what made one of them end is raised at the end."""
    failures: list[BaseException] = []

    def work(consumer: Consumer) -> None:
        try:
            consumer.run(grace=grace)
        except BaseException as error:  # noqa: BLE001 - raised by the test's own thread
            failures.append(error)

    threads = [threading.Thread(target=work, args=(consumer,)) for consumer in consumers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for consumer in consumers:
            consumer.stop()
        for thread in threads:
            thread.join(60)
    assert not failures, failures


def line(name: str, bootstrap: str, dsn: str, folder: Path) -> Line:
    """Make a line with the tests' one schema."""
    return Line(name, bootstrap, dsn, _schemas(folder))


def redis_line(name: str, url: str, dsn: str, folder: Path) -> RedisLine:
    """Make the same on Redis."""
    return RedisLine(name, url, dsn, _schemas(folder))


def rabbit_line(name: str, url: str, dsn: str, folder: Path) -> RabbitLine:
    """Make the same on RabbitMQ."""
    return RabbitLine(name, url, dsn, _schemas(folder))


def _schemas(folder: Path) -> Path:
    schemas = folder / "schemas"
    if not schemas.exists():
        write_schemas(schemas)
    return schemas


def letters(records: Sequence[Any]) -> list[dict[str, str]]:
    """The headers of dead letters as text."""
    return [{name: (value or b"").decode() for name, value in record.headers.items()} for record in records]
