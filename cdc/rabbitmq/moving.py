"""Records that leave their queue: published to another one, and acknowledged after that. A consumer's Mover.

A record that is put off is published to a queue that nobody reads, the retry topic's name with WAITING, with its delay as time to live;
RabbitMQ dead-letters it into the retry topic's queue when that is over. Of two records there the first one goes first, so one that is
due earlier may wait for one before it.

Rules.
- Before a record a *question* is published, which no queue takes: in an alarm it is what waits in the connection, and who dies
  meanwhile leaves no record there that the broker takes later on.
- A record is parked only when the stream of dead letters has no letter of it, as far as can be told (see parked.py).
- What RabbitMQ could not take is refused before it is published: the broker would end the connection.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from typing import Final, NamedTuple

from pika import BasicProperties

from cdc.errors import InvalidEvent, Retriable, SinkRefused
from cdc.event import Place, Record
from cdc.rabbitmq.group import Group, connected
from cdc.rabbitmq.link import Link, Message
from cdc.rabbitmq.message import header_size, properties_of
from cdc.rabbitmq.parked import Parked
from cdc.rabbitmq.reader import RabbitReader
from cdc.rabbitmq.topology import queue_question
from cdc.resilience.call import nobody_waits

LIMIT_BYTES: Final = 128 * 1024 * 1024
"""RabbitMQ's own limit up to 3.13 (max_message_size)."""

WAITING = ".wait"

SPARE_BYTES: Final = 300
"""Room for the message id that a record gets here."""


FIRST: Final = "cdc.timestamp"
"""Header of a moved record: when its event was written."""


class Alarm:
    """Why the broker takes nothing for now, in its own words; who moves writes it, who polls tells it."""

    def __init__(self) -> None:
        self.reason = ""

    def __repr__(self) -> str:
        return f"<Alarm {self.reason or 'off'}>"


class Ticket(NamedTuple):
    """What proves that a place is ours: the connection over which it came. Records up to `again` may have been delivered before."""

    link: Link | None
    again: int


def fitting(letter: Record, most: int) -> Record:
    """Return a dead letter whose key and headers have `most` bytes: without its longest headers and a long key, if need be.

    What came in a frame has more headers as a letter; one that cannot be parked would stop its queue.
    """
    key = letter.key if len(letter.key or b"") <= most // 2 else None
    headers, size = list(letter.headers), len(key or b"") + sum(map(_size, letter.headers))
    for longest in sorted(letter.headers, key=_size, reverse=True):
        if size <= most:
            break
        headers.remove(longest)
        size -= _size(longest)
    return letter._replace(key=key, headers=headers)


def _size(header: tuple[str, bytes | None]) -> int:
    return len(header[0].encode()) + len(header[1] or b"") + 6


class RabbitMover:
    """Moves records of one consumer: publishes them and waits for the confirm. For one thread."""

    def __init__(self, url: str, group: Group, alarm: Alarm) -> None:
        self._url = url
        self._group = group
        self._alarm = alarm
        self._link: Link | None = None
        self._made: set[str] = set()
        letters = group.dead_letter
        self._parked = Parked(letters, lambda: RabbitReader(url=url, name=f"{group.name}-looks", dead_letter=letters, audit=None))

    def __repr__(self) -> str:
        return f"<RabbitMover of {self._group.name}>"

    def fence(self) -> None:
        """Do nothing: nothing stays open."""

    def limit_bytes(self, topic: str) -> int:
        """Return RabbitMQ's own limit; raises SinkRefused for a queue that is not there."""
        self._ready().ask(queue_question(topic, {}, passive=True), nobody_waits, f"looking for {topic!r}")
        return LIMIT_BYTES

    def move(self, record: Record, settled: Mapping[Place, int], ticket: object) -> bool:
        """See cdc.consumer.ports.Mover; a publish and an acknowledgement are no one step in AMQP, so this returns False.

        Raises InvalidEvent("size", ..) for a record that is to be put off and whose headers do not fit into a frame.
        """
        assert isinstance(ticket, Ticket), "the member's"
        is_letter = record.topic == self._group.dead_letter
        self._ready()
        _see(ticket)
        now_ms = time.time_ns() // 1_000_000
        again = any(offset - 1 <= ticket.again for offset in settled.values())
        if is_letter and self._parked.has(record, _first_ms(record, now_ms), again=again):
            return False
        name, properties = self._letter(record, now_ms) if is_letter else self._later(record, now_ms)
        self._publish(name, properties, record.value or b"")
        if is_letter:
            self._parked.add(record)
        return False

    def _letter(self, record: Record, now_ms: int) -> tuple[str, BasicProperties]:
        fits = fitting(record, self._linked().framed()[1] * 3 // 4)
        return record.topic, properties_of(fits._replace(timestamp_ms=record.timestamp_ms or now_ms))

    def _later(self, record: Record, now_ms: int) -> tuple[str, BasicProperties]:
        """Return the queue in which a record waits, and its properties."""
        properties = properties_of(record._replace(timestamp_ms=record.timestamp_ms or now_ms))
        due = dict(record.headers).get(self._group.due) or b"0"
        properties.expiration = str(max(0, int(due) - now_ms))
        most = self._linked().framed()[1]
        if (size := header_size(properties)) > most - SPARE_BYTES:
            msg = f"its headers and properties have {size} bytes, and RabbitMQ takes {most} of them in one frame"
            raise InvalidEvent("size", msg, "raise the broker's frame_max, or send shorter headers")
        return self._waiting(record.topic), properties

    def _publish(self, name: str, properties: BasicProperties, body: bytes) -> None:
        properties.message_id = properties.message_id or uuid.uuid4().hex
        link = self._linked()
        link.publish([Message("", name, body, properties)], lambda message: message)
        self._wait(link, "moving a record")
        if link.returned:
            link.returned.clear()
            self._made.clear()
            msg = f"RabbitMQ has no queue {name!r}"
            raise SinkRefused(msg, "start the consumer again: it makes its queues")

    def _ready(self) -> Link:
        """Return a link on which the broker takes messages."""
        link = self._linked()
        link.question()
        self._wait(link, "asking whether it takes messages")
        link.returned.clear()
        return link

    def _wait(self, link: Link, doing: str) -> None:
        """Wait until all is confirmed, as long as an alarm takes."""
        try:
            link.wait(lambda: not link.outstanding, self._watch, doing)
        finally:
            self._alarm.reason = ""

    def _watch(self) -> None:
        """Let who polls know what we wait for."""
        self._alarm.reason = self._link.blocked if self._link is not None else ""

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


def _see(ticket: Ticket) -> None:
    """See that the place is still ours: what is moved now would come again from there."""
    if ticket.link is None or ticket.link.failed:
        msg = "the connection over which the record came is lost"
        raise Retriable(msg)


def _first_ms(record: Record, now_ms: int) -> int:
    """Return when a moved record's event was written."""
    first = dict(record.headers).get(FIRST) or b"0"
    return min(int(first), now_ms)
