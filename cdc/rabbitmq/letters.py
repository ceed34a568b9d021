"""Publishes what dead letters become, and then the records that close them: a pipeline's to its exchange, a consumer's to its own queue.

AMQP has no transaction over queues, so events come first, and their letters are closed when all of them are confirmed. Killed in
between, the letters are open still, and the next redrive publishes their events once more, with the same ids: the inbox knows them.

`fence` keeps others out: an exclusive queue, which lives as long as our connection, is a lock that needs no time to run out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from cdc.errors import Retriable, SinkRefused
from cdc.event import Record, Route
from cdc.rabbitmq.faults import RESOURCE_LOCKED
from cdc.rabbitmq.link import Link, new_link
from cdc.rabbitmq.message import route_of
from cdc.rabbitmq.publisher import MAX_MESSAGE_BYTES
from cdc.rabbitmq.topology import queue_question
from cdc.rabbitmq.wire import Frames
from cdc.resilience.call import Waiting

PATIENCE_S: Final = 30.0
"""How long the broker may confirm nothing."""

AT_ONCE: Final = 1_000
"""Records that are unconfirmed at most."""


class RabbitLetters:
    """Used by one thread; after an error `fence` begins anew. `queues` are published to by name, all else goes to the exchange."""

    def __init__(self, *, url: str, name: str, exchange: str, topic: str, queues: Sequence[str] = ()) -> None:
        self._new_link: Callable[[], Link] = lambda: new_link(url, name, PATIENCE_S)
        self._exchange = exchange
        self._topic = topic
        self._queues = frozenset((topic, *queues))
        self._link: Link | None = None
        self._records: list[Record] = []

    def __repr__(self) -> str:
        return f"<RabbitLetters {self._topic}, {len(self._records)} records waiting>"

    @property
    def transaction_timeout_s(self) -> float:
        """No limit: there is no transaction that stays open."""
        return math.inf

    @property
    def opened_at(self) -> None:
        """Nothing stays open."""

    def fence(self, waiting: Waiting) -> None:
        """Take the lock; raises Retriable while another redrive of these letters has it, or in an alarm."""
        self.close()
        self._link = link = self._new_link()
        link.open(waiting)
        try:
            link.ask(_lock(f"{self._topic}.redrive"), waiting, f"locking {self._topic!r}")
        except Retriable as error:
            if str(RESOURCE_LOCKED) not in error.what:
                raise
            raise Retriable(f"another redrive of {self._topic!r} is under way") from None
        link.question()
        link.wait(lambda: bool(link.blocked) or not link.outstanding, waiting, "asking whether it takes messages")
        if link.outstanding:
            raise Retriable(f"RabbitMQ takes no messages for now: {link.blocked}")
        link.returned.clear()

    def require(self, topics: Sequence[str], waiting: Waiting) -> None:
        """See that the queues are there; raises SinkRefused."""
        link = self._linked()
        for topic in self._queues.intersection(topics):
            try:
                link.ask(queue_question(topic, {}, passive=True), waiting, f"looking for {topic!r}")
            except SinkRefused as error:
                raise SinkRefused(error.what, "start the consumer, which makes its queues, or run `cdc init`") from None

    def route(self, topic: str, waiting: Waiting) -> Route:  # noqa: ARG002 - the port's
        """Return what a routing key takes; whether a queue is bound to it is not known before a message comes back."""
        return route_of(topic, MAX_MESSAGE_BYTES)

    def produce(self, records: Sequence[Record], waiting: Waiting) -> None:
        """Keep records for the commit."""
        waiting()
        self._records += records

    def commit(self, position: None, waiting: Waiting) -> None:  # noqa: ARG002 - of a pipeline
        """Publish the events, and when all of them are confirmed the records that close their letters.

        Raises SinkRefused when no queue takes an event: others may have been published, and all letters are open.
        """
        records, self._records = self._records, []
        self._publish([each for each in records if each.topic != self._topic], waiting)
        self._publish([each for each in records if each.topic == self._topic], waiting)

    def abort(self, timeout_s: float) -> None:  # noqa: ARG002 - the port's
        """Forget what was to be published."""
        self._records = []

    def close(self) -> None:
        """Hang up, which frees the lock."""
        if self._link is not None:
            self._link.close()
            self._link = None

    def _publish(self, records: Sequence[Record], waiting: Waiting) -> None:
        link = self._linked()
        frames = Frames(*link.framed(), self._exchange, self._queues)
        for start in range(0, len(records), AT_ONCE):
            link.send(records[start : start + AT_ONCE], frames)
            link.wait(lambda: not link.outstanding, waiting, "waiting for confirms")
            if link.returned:
                _, key, why = link.returned[0]
                msg = f"RabbitMQ returned an event with the routing key {key!r} ({why}); no letter was closed"
                raise SinkRefused(msg, "bind a queue, or an alternate exchange, and redrive again")

    def _linked(self) -> Link:
        assert self._link is not None, "fence comes first"
        return self._link


def _lock(name: str) -> Callable[[Any, Callable[[Any], None]], object]:
    """Declare a queue that only this connection may have, and that goes with it."""

    def ask(channel: Any, done: Callable[[Any], None]) -> object:  # noqa: ANN401 - pika has no types
        return channel.queue_declare(name, exclusive=True, callback=done)

    return ask
