"""The position's queue: one message, whose one active consumer has the lease on the pipeline.

Strategy: the queue is a quorum queue with a single active consumer. Whoever is that consumer holds the position unacknowledged
as long as its connection lives, and nobody else gets it. A commit publishes the new position, waits for its confirm, and
then acknowledges the old one; killed in between, two are there, and the next owner takes the newer one.

Rules.
- The broker does not say who the active consumer is, and an empty queue looks like one that somebody else consumes. So a
  *marker* is published behind whatever is there: when it is delivered to us we are the active consumer, and everything before
  it has been delivered, because what an earlier owner left unacknowledged is delivered again first. Not so when its client has
  cancelled the consumer: then the marker overtakes what comes back only when that channel is closed. Ours does not cancel, and an empty
  queue is believed only after LATE_S.
- A position is published only after the events below it were confirmed, so every position in the queue is true, the one of
  a slow predecessor too, and the newest is the largest by generation and LSN.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from functools import partial

from pika import BasicProperties, DeliveryMode

from cdc.errors import Retriable, SinkRefused
from cdc.position import Position
from cdc.rabbitmq.link import Delivery, Link, Message, Waiting

ARGUMENTS = {"x-queue-type": "quorum", "x-single-active-consumer": True}
"""What the position's queue is declared with."""

UNLIMITED_SINCE = 4
"""From this version on a quorum queue drops, by default, a message that was delivered 20 times: a position after 20 restarts."""

MARKER = "marker"

LATE_S = 1.0
"""How long a position may come after the marker; a channel is closed within milliseconds of a cancelled consumer."""


def arguments(version: str) -> dict[str, object]:
    """Return what the position's queue is declared with on a server of this version."""
    return {**ARGUMENTS, **unlimited(version)}


def unlimited(version: str) -> dict[str, object]:
    """Return the argument that lets a quorum queue deliver a message as often as it takes, where that has to be said."""
    major = version.partition(".")[0]
    return {"x-delivery-limit": -1} if major.isdecimal() and int(major) >= UNLIMITED_SINCE else {}


class Lease:
    """The position's queue, on one link."""

    def __init__(self, link: Link, queue: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._link = link
        self._queue = queue
        self._clock = clock
        self._id = uuid.uuid4().hex
        self._marker = ""
        self._seen = ""
        self._read = False
        self._position: Position | None = None
        self._stored = 0
        # Only the link's thread uses these.
        self._found: list[Delivery] = []
        self._held: dict[int, int] = {}
        self._current = 0
        link.consume(queue, self._delivered)

    def __repr__(self) -> str:
        return f"<Lease on {self._queue} {'ours' if self._read else 'wanted'}>"

    def take(self, waiting: Waiting, patience_s: float) -> Position | None:
        """Return the last position when we are the active consumer; raises Retriable when another one is it for so long."""
        self._mark(waiting, patience_s)
        if not self._read:
            if not self._found:
                self._wait(lambda: bool(self._found), waiting, LATE_S)
                self._mark(waiting, patience_s)
            self._settle_found()
            self._read = True
        return self._position

    def _mark(self, waiting: Waiting, patience_s: float) -> None:
        """See that what is published to the queue comes to us."""
        self._marker = f"{MARKER}/{uuid.uuid4().hex}"
        self._publish(self._marker, b"")
        self._wait(lambda: self._seen == self._marker, waiting, patience_s)
        if self._seen != self._marker:
            msg = f"another instance, or one that the broker has not given up yet, holds the position's queue {self._queue!r}"
            raise Retriable(msg, "it shows the position to one at a time: commands that need it wait until the pipeline is stopped")

    def _wait(self, done: Callable[[], bool], waiting: Waiting, patience_s: float) -> None:
        """Return when `done` holds, or the patience is over."""
        until = self._clock() + patience_s
        self._link.wait(lambda: done() or self._clock() >= until, waiting, "taking the lease", patience_s + 1)

    def store(self, position: Position, waiting: Waiting) -> None:
        """Replace the position; returns when the broker has confirmed the new one."""
        self._stored += 1
        self._publish(f"{self._id}/{self._stored}", position.to_json())
        self._link.wait(lambda: not self._link.outstanding, waiting, "storing the position")
        if any(key == self._queue for _, key, _ in self._link.returned):
            msg = f"the position's queue {self._queue!r} is gone"
            raise SinkRefused(msg, "find out who deleted it; `cdc recover` goes on from what the slot holds")
        self._position = position
        self._link.do(partial(self._replace, self._stored))

    def _publish(self, message_id: str, body: bytes) -> None:
        kind = MARKER if not body else "position"
        properties = BasicProperties(
            content_type="application/json", delivery_mode=DeliveryMode.Persistent.value, message_id=message_id, type=kind
        )
        self._link.publish([Message("", self._queue, body, properties)], lambda message: message)

    def _settle_found(self) -> None:
        """Take the newest of what was there, and let the others go."""
        found = [(Position.from_json(each.body), each.tag) for each in self._found]
        if not found:
            return
        newest = max(range(len(found)), key=lambda i: (found[i][0].generation, found[i][0].end_lsn, i))
        self._position, kept = found[newest]
        self._link.do(lambda: self._held.update({0: kept}))
        for _, tag in found:
            if tag != kept:
                self._link.do(partial(self._link.ack, tag))

    # In the link's thread.

    def _delivered(self, delivery: Delivery) -> None:
        kind, _, number = delivery.message_id.partition("/")
        if kind == MARKER:
            self._link.ack(delivery.tag)
            self._seen = delivery.message_id if delivery.message_id == self._marker else self._seen
        elif kind == self._id:
            self._held[int(number)] = delivery.tag
            self._let_go()
        elif not self._read:
            self._found.append(delivery)
        else:
            self._link.ack(delivery.tag)  # a predecessor's, true and older than ours

    def _replace(self, number: int) -> None:
        self._current = number
        self._let_go()

    def _let_go(self) -> None:
        for number in [each for each in self._held if each < self._current]:
            self._link.ack(self._held.pop(number))
