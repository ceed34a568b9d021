"""A pipeline that publishes to a real RabbitMQ, and a plain consumer's look at what arrived there.

Strategy: the tests' queue is bound to the pipeline's exchange with `#` and keeps all that comes, in order. A delivery whose place
was seen before is a redelivery, which at-least-once allows: `events` has the first ones, `deliveries` has all.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pika
import pytest

from cdc.devstack.rabbitmq import RabbitBroker
from cdc.errors import Retriable
from cdc.position import Lsn, Position
from cdc.rabbitmq.link import new_link
from cdc.rabbitmq.positions import Lease
from cdc.rabbitmq.reader import RabbitReader
from tests.packages import REQUIRED, of
from tests.pipeline import Event, Pipeline
from tests.waiting import wait_for

LEASE_WITHIN_S = 30.0


class RabbitPipeline(Pipeline):
    """A pipeline with an exchange and a virtual host of its own; `bind` makes the tests' queue."""

    def __init__(self, folder: Path, name: str, dsn: str, broker: RabbitBroker) -> None:
        super().__init__(folder, name, dsn, "")
        self.broker = broker
        self.queue = f"all.{name}"
        self.exchange = f"x.{name}"
        self.settings = {key: value for key, value in self.settings.items() if not key.startswith(("kafka.", "topics.create."))}
        self.settings |= {"rabbitmq.url": broker.url, "rabbitmq.exchange": self.exchange}
        self._arrived: dict[str, list[Event]] = {}

    def init(self, *arguments: str, create_table: bool = True) -> None:
        """`cdc init`, and the tests' queue."""
        super().init(*arguments, create_table=create_table)
        self.bind()

    def bind(self, key: str = "#", queue: str = "") -> None:
        """Make a queue of the tests and bind it."""
        with self.channel() as channel:
            channel.queue_declare(queue or self.queue, durable=True)
            channel.queue_bind(queue or self.queue, self.exchange, key)

    @contextlib.contextmanager
    def channel(self) -> Iterator[Any]:
        """A channel on a connection of its own."""
        connection = pika.BlockingConnection(pika.URLParameters(self.broker.url))
        try:
            yield connection.channel()
        finally:
            if connection.is_open:
                connection.close()

    def deliveries(self, queue: str) -> list[Event]:
        """Everything that has arrived in a queue up to now, in order; it is taken out of there."""
        arrived = self._arrived.setdefault(queue, [])
        with self.channel() as channel:
            while True:
                method, properties, body = channel.basic_get(queue, auto_ack=True)
                if method is None:
                    return arrived
                arrived.append(_event(len(arrived), method, properties, body))

    def events(self, *topics: str, isolation: str = "") -> list[Event]:
        """The first delivery of each event or dead letter, in order."""
        first: dict[tuple[str, bytes], Event] = {}
        for topic in topics or (self.topic,):
            for event in self.letters() if topic == self.dead_letter_topic else self.deliveries(self.queue):
                place = event.headers.get("ce_sequence") or event.headers["cdc.sequence"]
                first.setdefault((topic, place), event)
        return list(first.values())

    def letters(self) -> list[Event]:
        """The first delivery of each dead letter; they stay where they are."""
        reader = RabbitReader(url=self.broker.url, name="tests", dead_letter=self.dead_letter_topic, audit=None)
        try:
            return [
                Event(seen.topic, 0, seen.offset, seen.key, seen.value, {name: value or b"" for name, value in seen.headers}, 0)
                for seen in reader.read([self.dead_letter_topic])
            ]
        finally:
            reader.close()

    def wait_numbers(self, expected: Sequence[int], deadline_s: float = 60.0) -> None:
        """Wait until all of these have come, then see that their first deliveries are all, and in this order."""
        wait_for(lambda: len(self.numbers()) >= len(expected), deadline_s, f"{len(expected)} events")
        assert self.numbers() == list(expected)

    def position(self) -> Lsn:
        """The end of the last position; nobody else may hold it."""
        position = self.stored()
        assert position is not None
        return position.end_lsn

    def stored(self) -> Position | None:
        """The last position, from its queue, as the next owner would see it; a broker that is only just back is asked again."""
        [position] = wait_for(self._stored, 60, "the position's queue is free")
        return position

    def _stored(self) -> list[Position | None]:
        link = new_link(self.broker.url, "tests", 30)
        try:
            link.open(lambda: None)
            return [Lease(link, self.position_topic).take(lambda: None, LEASE_WITHIN_S)]
        except Retriable:
            return []
        finally:
            link.close()

    def evidence(self) -> str:
        """What a failed test shows."""
        return "\n".join([str(self.slot()), self.get("/status")[1], self.log])


def _event(number: int, method: Any, properties: Any, body: bytes) -> Event:  # noqa: ANN401 - pika has no types
    headers = {name: _bytes(value) for name, value in properties.headers.items()}
    key = headers.pop("ce_partitionkey", None)
    if properties.content_type is not None:
        headers["content-type"] = properties.content_type.encode()
    headers |= {
        f"amqp.{name}": str(getattr(properties, name)).encode() for name in ("message_id", "type", "correlation_id", "delivery_mode")
    }
    return Event(method.routing_key, 0, number, key, body or None, headers, (properties.timestamp or 0) * 1000)


def _bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else b"" if value is None else str(value).encode()


def start_broker() -> Iterator[RabbitBroker]:
    """Start a broker from its packages; without them the test is skipped, or fails where all are promised."""
    package = of("rabbitmq-server")
    if package.missing:
        reason = f"{package.name} is missing: python -m tests.packages"
        if os.environ.get(REQUIRED) == "required":
            pytest.fail(reason)
        pytest.skip(reason)
    with RabbitBroker(package.folder) as broker:
        yield broker
