"""The publisher to RabbitMQ: implements Publisher.

Strategy: messages are published in order on one channel, persistent and mandatory, and confirmed in bulk. `commit` waits until
all of them are confirmed, then replaces the position (see positions.py). There is no transaction over queues in AMQP that
quorum queues take, so what was published after the last position is published again after a fault: at least once, each event
with the same message id. First deliveries keep their order, because each passage publishes one unbroken run of the log from
the position on.

A record's topic is its routing key at one exchange; dead letters and positions go to queues by name.

Rules.
- A message that came back (`mandatory`: no queue is bound to its key) is confirmed as well. It ends the passage, and the
  next one refuses its key as a route before anything is published for it.
- The lease on the position's queue is the fence: what a predecessor sent lies in the queues before the lease can be ours,
  because the broker closes its channel first.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Sequence
from functools import partial

from cdc.errors import InvalidEvent, Poisoned, Retriable, SinkRefused
from cdc.event import Record, Route, name_of
from cdc.position import Position
from cdc.rabbitmq.link import LOG, Link, Waiting, new_link
from cdc.rabbitmq.message import route_of
from cdc.rabbitmq.positions import Lease
from cdc.rabbitmq.topology import Topology
from cdc.rabbitmq.wire import Frames
from cdc.resilience.call import nobody_waits

LEASE_S = 30.0
"""How long the lease is waited for in a passage: a predecessor that is cut off is given up after two heartbeats."""

PEEK_S = 3.0
"""How long it is waited for where nothing has been taken yet: one that was let go just now is free at once."""

OUTSTANDING, OUTSTANDING_BYTES = 2_000, 16_000_000
"""Messages, and their bytes, that may be unconfirmed. Confirms come within milliseconds, so more would only fill memory here and there,
and let a commit on a slow broker wait for so long that health takes it for one that does not answer."""

UNROUTABLE_S = 60.0
"""How long a key to which nothing is bound is believed to be so; to ask again costs a passage."""

UNROUTABLE_KEPT = 10_000
"""Such keys that are remembered; beyond it (a template over an unbounded value) all are tried again."""

MAX_MESSAGE_BYTES = 128 * 1024 * 1024
"""RabbitMQ's own limit up to 3.13 (max_message_size). The broker tells a smaller one when a message exceeds it."""

TOO_LARGE = re.compile(r"is larger than (?:configured )?max size (\d+)")
"""What it says then (rabbit_channel.erl, check_msg_size)."""


class RabbitPublisher:
    """Publishes records and positions of one pipeline; used by one thread, for the whole life of the process."""

    def __init__(  # noqa: PLR0913 - plain values from the settings, by keyword
        self,
        *,
        name: str,
        url: str,
        exchange: str,
        exchange_type: str,
        position_queue: str,
        dead_letter_queue: str,
        confirm_timeout_s: float,
        audit: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        connect: Callable[[], Link] | None = None,
    ) -> None:
        self._name = name
        self._exchange = exchange
        self._queues = frozenset((position_queue, dead_letter_queue))
        self.positions = Topology(
            self._opened,
            position=position_queue,
            dead_letter=dead_letter_queue,
            exchange=exchange,
            exchange_type=exchange_type,
            audit=audit,
        )
        self._connect = connect or partial(new_link, url, name, confirm_timeout_s, clock)
        self._clock = clock
        self._link: Link | None = None
        self._lease: Lease | None = None
        self._blaming = False
        self._max_message_bytes = MAX_MESSAGE_BYTES
        self._frames = Frames(0, 0, exchange, self._queues)
        self._unroutable: dict[str, float] = {}
        self._partition_seen = False

    def __repr__(self) -> str:
        return f"<RabbitPublisher {self._name} {self._link!r}>"

    @property
    def full(self) -> bool:
        """Whether a commit is due for the broker's sake: never, what is produced lies in queues."""
        return False

    @property
    def transaction_timeout_s(self) -> float:
        """No limit: RabbitMQ has no transaction that stays open."""
        return math.inf

    @property
    def opened_at(self) -> None:
        """Nothing stays open."""

    @property
    def blocked(self) -> str:
        """Why the broker takes no messages for now, in its own words; empty when it does."""
        return f"RabbitMQ takes no messages for now: {self._link.blocked}" if self._link is not None and self._link.blocked else ""

    def server(self, waiting: Waiting) -> str:
        """Return what the broker says of itself."""
        link = self._opened(waiting)
        return f"RabbitMQ {link.version}, virtual host {link.virtual_host!r}"

    def peek(self) -> tuple[Position | None, str]:
        """Return the last position, and what names the broker; takes the lease if it is free, else raises Retriable.

        AMQP does not tell a cluster's identity; what is recorded is the virtual host.
        """
        self.positions.look(nobody_waits, events=False)
        position = self._taken(nobody_waits, PEEK_S)
        return position, f"rabbitmq:{self._opened(nobody_waits).virtual_host}"

    def require(self, topics: Sequence[str], waiting: Waiting) -> None:  # noqa: ARG002 - a routing key cannot be asked for
        """See that exchange and dead letters' queue are there; raises SinkRefused."""
        self.positions.look(waiting, position=False)

    def cluster_id(self, waiting: Waiting) -> str:
        """Return what names the broker."""
        return f"rabbitmq:{self._opened(waiting).virtual_host}"

    def last(self) -> Position | None:
        """See Publisher; whoever has the lease sees every position."""
        return self._taken(nobody_waits, PEEK_S)

    def recover(self, waiting: Waiting, *, patient: bool = False, blaming: bool = False) -> Position | None:  # noqa: ARG002 - the port's
        """Take the lease, then return the last position; a blaming passage confirms each message by itself."""
        self._blaming = blaming
        self._opened(waiting)
        return self._taken(waiting, LEASE_S)

    def route(self, topic: str, waiting: Waiting) -> Route:  # noqa: ARG002 - the port's
        """Return what a routing key takes; raises InvalidEvent("route", ..) for one that nothing is bound to."""
        if self._clock() < self._unroutable.get(topic, 0.0):
            what = f"no queue is bound to exchange {self._exchange!r} for the routing key {topic!r}"
            raise InvalidEvent("route", what, "bind a queue, or an alternate exchange")
        return route_of(topic, self._max_message_bytes)

    def produce(self, records: Sequence[Record], waiting: Waiting) -> None:
        """Hand over records in order; calls `waiting` while too many are unconfirmed."""
        link = self._link
        assert link is not None, "recover comes first"
        if self._blaming:
            for record in records:
                self._alone(link, record, waiting)
            return
        if not self._partition_seen and any(record.partition >= 0 for record in records):
            self._partition_seen = True
            LOG.warning("a row chooses a partition, which RabbitMQ does not have: the column is ignored")
        link.send(records, self._frames)
        self._confirmed(link, lambda: link.outstanding <= OUTSTANDING and link.outstanding_bytes <= OUTSTANDING_BYTES, waiting)

    def commit(self, position: Position, waiting: Waiting) -> None:
        """Wait for all confirms, then replace the position; what raises may have been published, and is published again."""
        link, lease = self._link, self._lease
        assert link is not None, "recover comes first"
        assert lease is not None, "recover comes first"
        self._confirmed(link, lambda: not link.outstanding, waiting)
        lease.store(position, waiting)

    def abort(self, timeout_s: float) -> None:
        """Nothing is open that could be aborted."""

    def drop(self) -> None:
        """Forget the connection, and with it the lease; never blocks."""
        if self._link is not None:
            self._link.close()
        self._link = self._lease = None

    close = drop

    def _opened(self, waiting: Waiting) -> Link:
        if self._link is None or self._link.failed:
            self.drop()
            self._link = self._connect()
            self._link.open(waiting)
            self._frames = Frames(*self._link.framed(), self._exchange, self._queues)
        return self._link

    def _taken(self, waiting: Waiting, patience_s: float) -> Position | None:
        assert self._link is not None, "it was opened just now"
        if self._lease is None:
            self._lease = Lease(self._link, self.positions.topic, self._clock)
        return self._lease.take(waiting, patience_s)

    def _alone(self, link: Link, record: Record, waiting: Waiting) -> None:
        """Publish one record and wait for its confirm: what the broker says now is said of it."""
        link.send([record], self._frames)
        try:
            self._confirmed(link, lambda: not link.outstanding, waiting)
        except Poisoned as error:
            raise Poisoned(error.what, error.fix, place=name_of(record), why=error.why) from None

    def _confirmed(self, link: Link, enough: Callable[[], bool], waiting: Waiting) -> None:
        """Wait for confirms, and heed what the broker says of messages instead."""
        try:
            link.wait(enough, waiting, "waiting for confirms")
        except Poisoned as error:
            if (limit := TOO_LARGE.search(error.why)) is None:
                raise
            self._max_message_bytes = int(limit[1])
            raise Retriable(error.what, "raise the broker's max_message_size, or send less") from None
        self._heed_returned(link)

    def _heed_returned(self, link: Link) -> None:
        """Remember the keys of messages that came back, and end the passage."""
        if not link.returned:
            return
        _, key, why = link.returned[0]
        if key in self._queues:
            msg = f"RabbitMQ has no queue {key!r} ({why})"
            raise SinkRefused(msg, "run `cdc init`, or create it")
        if len(self._unroutable) >= UNROUTABLE_KEPT:
            self._unroutable.clear()
        until = self._clock() + UNROUTABLE_S
        self._unroutable.update(dict.fromkeys((each for _, each, _ in link.returned), until))
        msg = f"RabbitMQ returned a message with the routing key {key!r} ({why})"
        raise Retriable(msg, "bind a queue, or an alternate exchange; rows for it become dead letters")
