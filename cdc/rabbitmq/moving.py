"""Records that leave their queue: published to another one, and acknowledged after that. A consumer's Mover.

A record that is put off is published to a queue that nobody reads, the retry topic's name with WAITING, with its delay as time to live;
RabbitMQ dead-letters it into the retry topic's queue when that is over. Of two records there the first one goes first, so one that is
due earlier may wait for one before it.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from typing import Final

from cdc.errors import Retriable, SinkRefused
from cdc.event import Place, Record
from cdc.rabbitmq.group import Group, connected
from cdc.rabbitmq.link import Link, Message
from cdc.rabbitmq.message import HEADERS_BYTES, properties_of
from cdc.rabbitmq.topology import queue_question
from cdc.resilience.call import nobody_waits

LIMIT_BYTES: Final = 128 * 1024 * 1024
"""RabbitMQ's own limit up to 3.13 (max_message_size)."""

WAITING = ".wait"


def fitting(letter: Record) -> Record:
    """Return a dead letter whose properties fit into one frame: without its longest headers and a key that is too long, if need be.

    What came in a frame has more headers as a letter; one that cannot be parked would stop its queue.
    """
    key = letter.key if len(letter.key or b"") <= HEADERS_BYTES // 2 else None
    headers, size = list(letter.headers), len(key or b"") + sum(map(_size, letter.headers))
    for longest in sorted(letter.headers, key=_size, reverse=True):
        if size <= HEADERS_BYTES:
            break
        headers.remove(longest)
        size -= _size(longest)
    return letter._replace(key=key, headers=headers)


def _size(header: tuple[str, bytes | None]) -> int:
    return len(header[0].encode()) + len(header[1] or b"") + 6


class RabbitMover:
    """Moves records of one consumer: publishes them and waits for the confirm. For one thread."""

    def __init__(self, url: str, group: Group) -> None:
        self._url = url
        self._group = group
        self._link: Link | None = None
        self._made: set[str] = set()

    def __repr__(self) -> str:
        return f"<RabbitMover of {self._group.name}>"

    def fence(self) -> None:
        """Do nothing: nothing stays open."""

    def limit_bytes(self, topic: str) -> int:
        """See that the queue is there; raises SinkRefused for one that is not."""
        self._linked().ask(queue_question(topic, {}, passive=True), nobody_waits, f"looking for {topic!r}")
        return LIMIT_BYTES

    def move(self, record: Record, settled: Mapping[Place, int], ticket: object) -> bool:  # noqa: ARG002 - acknowledged by who polls
        """See cdc.consumer.ports.Mover; a publish and an acknowledgement are no one step in AMQP, so this returns False."""
        if not isinstance(ticket, Link) or ticket.failed:
            msg = "the connection over which the record came is lost"
            raise Retriable(msg)
        now_ms = time.time_ns() // 1_000_000
        link, name = self._linked(), record.topic
        is_letter = name == self._group.dead_letter
        moved = fitting(record) if is_letter else record
        properties = properties_of(moved._replace(timestamp_ms=record.timestamp_ms or now_ms))
        if not is_letter:
            due = dict(record.headers).get(self._group.due) or b"0"
            properties.expiration = str(max(0, int(due) - now_ms))
            name = self._waiting(name)
        properties.message_id = properties.message_id or uuid.uuid4().hex
        link.publish([Message("", name, record.value or b"", properties)], lambda message: message)
        link.wait(lambda: not link.outstanding, nobody_waits, "moving a record")
        if link.returned:
            link.returned.clear()
            self._made.clear()
            msg = f"RabbitMQ has no queue {name!r}"
            raise SinkRefused(msg, "start the consumer again: it makes its queues")
        return False

    def close(self) -> None:
        """Hang up."""
        if self._link is not None:
            self._link.close()
            self._link = None

    def _waiting(self, topic: str) -> str:
        """Return the queue in which records wait for their time; made with the first of them."""
        name = topic + WAITING
        if name not in self._made:
            arguments: dict[str, object] = {
                "x-queue-type": "quorum",
                "x-dead-letter-exchange": "",
                "x-dead-letter-routing-key": topic,
                "x-dead-letter-strategy": "at-least-once",
                "x-overflow": "reject-publish",  # which that strategy asks for
            }
            self._linked().ask(queue_question(name, arguments, passive=False), nobody_waits, f"declaring queue {name!r}")
            self._made.add(name)
        return name

    def _linked(self) -> Link:
        if self._link is None or self._link.failed:
            self.close()
            self._link = connected(self._url, f"{self._group.name}-moves")
        return self._link
