"""Reads what the pipeline has published, from streams: for the audit, `cdc tail`, the dead letters and the demo. Implements Reader.

To read a queue is to take from it; a stream (`x-queue-type: stream`) is read by anybody and keeps all. Dead letters lie in one, and
with `rabbitmq.audit` a second one gets a copy of every event.

Strategy: AMQP does not tell where a stream ends. A *marker* is published to it, and whoever reads has come to the end when the marker
comes. Markers are empty messages of the type MARKER, and are left out by every reader of ours.

Rules.
- Delivery is at least once, and the first deliveries of events are in the order of their places: what is not newer than the newest
  place so far came again. It is counted in `again` and left out. Dead letters are known by their places, which have no such
  order: a row becomes one when a passage has learned of it.
- A queue that is no stream is never consumed.
"""

from __future__ import annotations

import queue
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple, Self

from pika import BasicProperties

from cdc.errors import ConfigurationError, Retriable, SinkRefused
from cdc.event import Place, Seen, Shape
from cdc.rabbitmq.link import PAUSE_S, Link, Message, Waiting, new_link
from cdc.rabbitmq.message import seen_of
from cdc.rabbitmq.subscription import Subscription
from cdc.rabbitmq.topology import STREAM, queue_question
from cdc.resilience.call import nobody_waits

MARKER = "cdc.marker"

PREFETCH, ACK_EVERY = 2_000, 500
"""Messages on their way to us, and how many are taken before the broker is told so."""

OFFSET = "x-stream-offset"

LETTER = ("cdc.sequence", "cdc.id", "ce_source", "__connect.errors.connector.name", "cdc.redriven")
"""Headers that tell a dead letter, and apart from it the record that closes it."""

CLOCK_MARGIN_S = 60
"""A stream is entered by the broker's clock, a record tells its commit by PostgreSQL's: how far the one may be ahead of the other."""

PATIENCE_S = 30.0
"""How long the broker may say nothing while a stream is read to its end."""

END_OF_TIME_MS = 2**52
"""A time that no stream has reached is its end."""


class Delivered(NamedTuple):
    """A message of a stream."""

    tag: int
    offset: int
    key: str
    properties: Any
    body: bytes


class RabbitReader:
    """Reads topics; each call of `read` is independent of the others.

    `audit` is the stream of all events, whose topics are their routing keys; any other topic is a stream of its own.
    """

    def __init__(self, *, url: str, name: str, dead_letter: str, audit: str | None) -> None:
        self._made: Callable[[], Link] = lambda: new_link(url, f"{name}-reader", PATIENCE_S)
        self._dead_letter = dead_letter
        self._audit = audit
        self._link: Link | None = None
        self.again = 0

    def __repr__(self) -> str:
        return f"<RabbitReader of {self._audit or self._dead_letter}>"

    def close(self) -> None:
        """Let the link go."""
        if self._link is not None:
            self._link.close()
            self._link = None

    def names(self, waiting: Waiting) -> list[str]:
        """Return the dead letters' stream and every routing key in the audit's: reads it whole."""
        audit = self._audited()
        return sorted({self._dead_letter, *(each.key for each in self._to_end(audit, "first", waiting) if not _own(each))})

    def shapes(self, topics: Sequence[str], waiting: Waiting) -> dict[str, Shape]:  # noqa: ARG002 - the port's
        """Return what holds for each stream: everything is kept, in one order."""
        return dict.fromkeys(topics, Shape(1, compacted=False))

    def bounds(self, topics: Sequence[str], waiting: Waiting) -> dict[Place, tuple[int, int]]:
        """Return where the stream of each topic begins and ends."""
        streams = {stream: self._bounds(stream, waiting) for stream in {self._stream(topic, waiting) for topic in topics}}
        return {(topic, 0): streams[self._stream(topic, waiting)] for topic in topics}

    def read(
        self,
        topics: Sequence[str],
        *,
        since_ms: int | None = None,
        starts: Mapping[Place, int] | None = None,
        follow: bool = False,
        waiting: Waiting = nobody_waits,
    ) -> Iterator[Seen]:
        """Yield the first deliveries of topics, from their beginning, a time or offsets on, in order within each stream.

        Ends where the streams end now, unless it is to follow.
        """
        streams: dict[str, set[str]] = {}
        for topic in topics:
            streams.setdefault(self._stream(topic, waiting), set()).add(topic)
        begin: dict[str, object] = dict.fromkeys(streams, _since(since_ms))
        if starts is not None:
            begin = {stream: min(starts[topic, 0] for topic in chosen) for stream, chosen in streams.items()}
        before = _Before()
        came = self._follow(begin, waiting) if follow else self._all(begin, waiting)
        for stream, each in came:
            if _own(each) or (stream == self._audit and each.key not in streams[stream]):
                continue
            seen = seen_of(each.key if stream == self._audit else stream, each.offset, each.properties, each.body)
            if self._came_again(stream, seen, before):
                self.again += 1
            elif since_ms is None or seen.timestamp_ms >= since_ms or since_ms > END_OF_TIME_MS:
                yield seen

    def settle(self, topics: Sequence[str], waiting: Waiting) -> None:
        """Return: nothing is ever open in a stream."""

    def settled(self, topics: Sequence[str], patience_s: float, waiting: Waiting) -> bool:  # noqa: ARG002 - the port's
        """Return True: nothing is ever open in a stream."""
        return True

    def _came_again(self, stream: str, seen: Seen, before: _Before) -> bool:
        """Tell whether an event or a dead letter, or the record that closes one, was read before."""
        headers = dict(seen.headers)
        if stream != self._audit:
            told = tuple(headers.get(name) for name in LETTER)
            again = told in before.letters
            before.letters.add(told)
            return again and "cdc.sequence" in headers
        place, source = headers.get("ce_sequence") if stream == self._audit else None, headers.get("ce_source") or b""
        if place is None:
            return False
        again = place <= before.newest.get(source, b"")
        before.newest[source] = max(place, before.newest.get(source, b""))
        return again

    def _linked(self, waiting: Waiting) -> Link:
        if self._link is None or self._link.failed:
            self.close()
            self._link = self._made()
            self._link.open(waiting)
        return self._link

    def _audited(self) -> str:
        if self._audit is None:
            msg = "the events cannot be read: to read a queue of RabbitMQ is to take from it"
            raise ConfigurationError(msg, "set rabbitmq.audit, and let `cdc init` make a stream that gets a copy of each event")
        return self._audit

    def _stream(self, topic: str, waiting: Waiting) -> str:
        """Return the stream that a topic is in; raises ConfigurationError where there is none."""
        link = self._linked(waiting)
        try:
            link.ask(queue_question(topic, STREAM, passive=True), waiting, f"looking for stream {topic!r}")
        except SinkRefused as error:
            if "NOT_FOUND" not in error.what or topic == self._dead_letter:
                raise
            return self._audited()
        try:
            link.ask(queue_question(topic, STREAM, passive=False), waiting, f"looking at stream {topic!r}")  # changes nothing
        except SinkRefused:
            what = f"{topic!r} is a queue and no stream: to read it is to take from it"
            raise ConfigurationError(what, "delete it and let `cdc init` make a stream; RabbitMQ's shovel moves what it holds") from None
        return topic

    def _all(self, begin: Mapping[str, object], waiting: Waiting) -> Iterator[tuple[str, Delivered]]:
        for stream, offset in begin.items():
            for each in self._to_end(stream, offset, waiting):
                yield stream, each

    def _to_end(self, stream: str, offset: object, waiting: Waiting) -> Iterator[Delivered]:
        """Yield a stream's messages up to where it ends now, without the marker that tells."""
        with _Reading(self._linked(waiting), {stream: offset}, waiting) as reading:
            marker = self._mark(stream, waiting)
            for _, each in reading.messages(waiting, PATIENCE_S):
                if each.properties.message_id == marker:
                    return
                yield each

    def _follow(self, begin: Mapping[str, object], waiting: Waiting) -> Iterator[tuple[str, Delivered]]:
        with _Reading(self._linked(waiting), begin, waiting) as reading:
            yield from reading.messages(waiting, None)

    def _mark(self, stream: str, waiting: Waiting) -> str:
        """Publish a marker to a stream, and return its id."""
        marker = uuid.uuid4().hex
        link = self._linked(waiting)
        link.publish([Message("", stream, b"", BasicProperties(message_id=marker, type=MARKER, delivery_mode=2))], lambda message: message)
        link.wait(lambda: bool(link.blocked) or not link.outstanding, waiting, f"looking for the end of stream {stream!r}")
        if link.outstanding:
            self.close()  # which takes the marker along
            msg = f"RabbitMQ takes no messages for now ({link.blocked}), and without one it tells no stream's end"
            raise Retriable(msg, "see what it says of memory and disk: rabbitmq-diagnostics alarms")
        return marker

    def _bounds(self, stream: str, waiting: Waiting) -> tuple[int, int]:
        first = next((each.offset for each in self._to_end(stream, "first", waiting)), None)
        with _Reading(self._linked(waiting), {stream: "next"}, waiting) as reading:
            marker = self._mark(stream, waiting)
            end = next(each.offset for _, each in reading.messages(waiting, PATIENCE_S) if each.properties.message_id == marker)
        return (end if first is None else first), end


@dataclass(slots=True)
class _Before:
    """What one read has seen: the newest event of each source, because pipelines may share an exchange, and dead letters."""

    newest: dict[bytes, bytes] = field(default_factory=dict)
    letters: set[tuple[bytes | None, ...]] = field(default_factory=set)


class _Reading:
    """Subscriptions to streams, for one pass over them."""

    def __init__(self, link: Link, begin: Mapping[str, object], waiting: Waiting) -> None:
        self._link = link
        self._came: queue.SimpleQueue[tuple[str, Delivered]] = queue.SimpleQueue()
        self._open: dict[str, Subscription] = {}
        for stream, offset in begin.items():
            self._open[stream] = link.subscribe(stream, PREFETCH, self._deliver(stream), {OFFSET: offset})
        link.wait(lambda: all(each.ready for each in self._open.values()), waiting, "opening a stream")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._open.values():
            self._link.do(each.end)

    def messages(self, waiting: Waiting, patience_s: float | None) -> Iterator[tuple[str, Delivered]]:
        """Yield what comes; with `patience_s` something has to come that often."""
        taken = dict.fromkeys(self._open, 0)
        while True:
            try:
                stream, each = self._came.get_nowait()
            except queue.Empty:
                self._await(waiting, patience_s)
                continue
            yield stream, each
            taken[stream] += 1
            if taken[stream] % ACK_EVERY == 0:
                self._open[stream].ack(each.tag)

    def _await(self, waiting: Waiting, patience_s: float | None) -> None:
        if patience_s is not None:
            self._link.wait(lambda: not self._came.empty(), waiting, "reading a stream", patience_s)
            return
        self._link.wait(lambda: True, waiting, "following a stream")  # raises what the broker said
        waiting()
        self._link.pause(PAUSE_S)

    def _deliver(self, stream: str) -> Callable[[Any, Any, bytes], None]:
        def deliver(method: Any, properties: Any, body: bytes) -> None:  # noqa: ANN401 - pika has no types
            offset = int((properties.headers or {}).get(OFFSET, 0))
            self._came.put((stream, Delivered(method.delivery_tag, offset, method.routing_key, properties, body)))
            self._link.wake()

        return deliver


def _own(each: Delivered) -> bool:
    return bool(each.properties.type == MARKER)


def _since(since_ms: int | None) -> object:
    """Return where a stream is entered for records since a time."""
    if since_ms is None:
        return "first"
    return "next" if since_ms > END_OF_TIME_MS else datetime.fromtimestamp(max(0, since_ms / 1000 - CLOCK_MARGIN_S), UTC)
