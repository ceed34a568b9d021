"""A consumer's Broker, Member and Mover over RabbitMQ; see cdc.consumer.ports, from where this room imports nothing.

Strategy: each topic of a consumer is a queue of its own, `GROUP.TOPIC`, bound to the pipeline's exchange by the topic: a routing key, or
a pattern of one. It is a quorum queue with a single active consumer, so one member at a time reads it, in order, and the next one
gets what that did not acknowledge, before anything newer. A connection has a channel for each queue, and a deliveries' tag is a
record's offset: acknowledging all below it is one frame.

Rules.
- Offsets grow over connections: a tag is added to the time at which its connection was made. So nothing that was written down of a
  record (its attempts) is taken for another one's.
- RabbitMQ does not say who is active. A place is ours when its first record comes, and lost with the connection.
- Acknowledging has no answer. One that is lost with its connection brings the records again, and the inbox knows them.
- What a member may hold is the prefetch: the broker sends no more before some of it is acknowledged. A place that is paused fills up
  to that and stays there.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from cdc.errors import CdcError, Retriable
from cdc.event import Place, Seen
from cdc.rabbitmq.group import PATIENCE_S, Group, Options, Queues, connected, queue_of
from cdc.rabbitmq.link import Link, new_link, parameters_of
from cdc.rabbitmq.message import seen_of
from cdc.rabbitmq.moving import Alarm, RabbitMover, Ticket
from cdc.rabbitmq.subscription import Subscription
from cdc.resilience.call import nobody_waits

FETCH: Final = 1_000
"""Records that one look takes."""

PREFETCH_MAX: Final = 65_535
"""AMQP has 16 bits for it."""

LEAVE_S: Final = 5.0
"""How long leaving may take; a connection that does not end is given up by the broker after two heartbeats."""

AGAIN_FIRST_S, AGAIN_MOST_S = 0.2, 5.0
"""Pauses before another connection is tried."""

LAG_S: Final = 2.0
"""How often a queue is asked for its length."""

TAG_BITS: Final = 22
"""Deliveries that a connection may have in each millisecond of its life, as a power of two, before offsets of the next one begin below."""


class Listener(Protocol):
    """Who polls."""

    def assigned(self, places: Sequence[Place]) -> None: ...  # noqa: D102 - see cdc.consumer.ports
    def lost(self, places: Sequence[Place]) -> None: ...  # noqa: D102 - see cdc.consumer.ports
    def committed(self, offsets: Mapping[Place, int], error: str = "") -> None: ...  # noqa: D102 - see cdc.consumer.ports
    def hitch(self, what: str) -> None: ...  # noqa: D102 - see cdc.consumer.ports


class RabbitBroker:
    """RabbitMQ as a consumer's Broker."""

    def __init__(self, *, group: Group, options: Mapping[str, object]) -> None:
        self._group = group
        self._options = Options.of(options)
        self._alarm = Alarm()
        parameters_of(self._options.url)  # one that cannot be read is refused at once

    def __repr__(self) -> str:
        return f"<RabbitBroker for {self._group.name}>"

    def prepare(self, topics: Sequence[str], own: Sequence[str]) -> Mapping[str, int]:
        """Make the group's queues, and bind them; queues keep what comes for ever."""
        link = connected(self._options.url, f"{self._group.name}-prepares")
        try:
            queues = Queues(self._group, self._options, link.version)
            for doing, question in queues.questions(topics, own):
                link.ask(question, nobody_waits, doing)
        finally:
            link.close()
        return dict.fromkeys(topics, -1)

    def member(self, topics: Sequence[str], own: Sequence[str]) -> RabbitMember:
        """See cdc.consumer.ports.Broker."""
        return RabbitMember(self._group, self._options, topics, own, self._alarm)

    def mover(self) -> RabbitMover:
        """See cdc.consumer.ports.Broker."""
        return RabbitMover(self._options.url, self._group, self._alarm)


class _Delivered(NamedTuple):
    """A record that came over a connection; `again` when it was delivered before, to whomever."""

    link: Link
    record: Seen
    again: bool


class _Joined(NamedTuple):
    """A connection that is ready, with the subscription and the first offset of each place; or what came in its way."""

    link: Link
    subscriptions: Mapping[Place, Subscription]
    base: int
    error: CdcError | None = None


class RabbitMember:
    """See cdc.consumer.ports.Member."""

    def __init__(self, group: Group, options: Options, topics: Sequence[str], own: Sequence[str], alarm: Alarm) -> None:
        self._group = group
        self._options = options
        self._topics, self._own = topics, own
        self._alarm = alarm
        self._events: queue.SimpleQueue[_Delivered | _Joined] = queue.SimpleQueue()
        self._now: _Joined | None = None
        self._came: dict[Place, int] = {}
        self._acknowledged: dict[Place, int] = {}
        self._again: dict[Place, int] = {}
        self._paused: set[Place] = set()
        self._held: dict[Place, deque[Seen]] = {}
        self._ready: dict[Place, int] = {}
        self._early: list[_Delivered] = []  # the broker delivers before it is told that all subscriptions are there
        self._answers: list[tuple[Mapping[Place, int], str]] = []
        self._connecting = False
        self._pause_s = AGAIN_FIRST_S
        self._again_at = self._lag_at = 0.0
        self._listener: Listener

    def __repr__(self) -> str:
        return f"<RabbitMember of {', '.join(self._topics)} over {self._now.link if self._now else 'no connection'}>"

    def join(self, listener: Listener) -> None:
        """See cdc.consumer.ports.Member."""
        self._listener = listener

    def fetch(self, wait_s: float) -> Sequence[Seen]:
        """See cdc.consumer.ports.Member."""
        answers, self._answers = self._answers, []
        for offsets, error in answers:
            self._listener.committed(offsets, error)
        self._look_after()
        records = [
            self._held[place].popleft() for place in list(self._held) if place not in self._paused for _ in range(len(self._held[place]))
        ]
        try:
            event = self._events.get(timeout=wait_s) if wait_s and not records else self._events.get_nowait()
            while True:
                if isinstance(event, _Joined):
                    self._joined(event)
                    for early in self._early:
                        self._take(early, records)
                    self._early.clear()
                elif self._now is None:
                    self._early.append(event)
                else:
                    self._take(event, records)
                if len(records) >= FETCH:
                    break
                event = self._events.get_nowait()
        except queue.Empty:
            pass
        return records

    def _take(self, event: _Delivered, records: list[Seen]) -> None:
        """Take what came, unless its connection is lost by now."""
        record = event.record
        if self._now is None or event.link is not self._now.link:
            return
        place = (record.topic, record.partition)
        if place not in self._came:
            self._acknowledged[place] = record.offset - 1
            self._listener.assigned([place])
        self._came[place] = record.offset
        if event.again:
            self._again[place] = record.offset
        if place in self._paused or self._held.get(place):
            self._held.setdefault(place, deque()).append(record)
        else:
            records.append(record)

    def _joined(self, joined: _Joined) -> None:
        self._connecting = False
        error = joined.error or (joined.link.failure("consuming") if joined.link.failed else None)
        if isinstance(error, Retriable):
            self._listener.hitch(error.what)
            self._again_at = time.monotonic() + self._pause_s
            self._pause_s = min(2 * self._pause_s, AGAIN_MOST_S)
        elif error is not None:
            raise error
        else:
            self._now, self._pause_s = joined, AGAIN_FIRST_S

    def _look_after(self) -> None:
        """See what became of the connection, and begin another one when it is time."""
        now = time.monotonic()
        if self._now is not None and self._now.link.failed:
            error = self._now.link.failure("consuming")
            self._let_go()
            if not isinstance(error, Retriable):
                raise error
            self._listener.hitch(error.what)
        if self._now is None and not self._connecting and now >= self._again_at:
            self._connecting = True
            threading.Thread(target=self._connect, name=f"cdc-rabbitmq-{self._group.name}-joins", daemon=True).start()
        if self._alarm.reason:
            self._listener.hitch(f"a record waits to be moved: RabbitMQ takes no messages for now: {self._alarm.reason}")
        if self._now is not None and now >= self._lag_at:
            self._lag_at = now + LAG_S
            for place, subscription in self._now.subscriptions.items():
                subscription.count(partial(self._ready.__setitem__, place))

    def _let_go(self) -> None:
        """The connection is lost, and all places with it."""
        assert self._now is not None, "there was one"
        self._now.link.close()
        self._now = None
        places = list(self._came)
        self._came, self._held, self._ready, self._again = {}, {}, {}, {}
        self._paused.clear()
        if places:
            self._listener.lost(places)

    def _connect(self) -> None:
        """Connect, make what is missing and subscribe, in a thread of its own: a broker that hangs must not keep who polls."""
        link = new_link(self._options.url, self._group.name, PATIENCE_S)
        base = (time.time_ns() // 1_000_000) << TAG_BITS
        subscriptions: dict[Place, Subscription] = {}
        try:
            link.open(nobody_waits)
            queues = Queues(self._group, self._options, link.version)
            for doing, question in queues.questions(self._topics, self._own):
                link.ask(question, nobody_waits, doing)
            prefetch = max(1, min(self._group.prefetch // len(self._topics), PREFETCH_MAX))
            for topic in (*self._topics, *self._own):
                name = topic if topic in self._own else queue_of(self._group.name, topic)
                subscriptions[topic, 0] = link.subscribe(name, prefetch, self._deliver(link, topic, base))
            link.wait(lambda: all(each.ready for each in subscriptions.values()), nobody_waits, "subscribing")
            self._events.put(_Joined(link, subscriptions, base))
        except CdcError as error:
            link.close()
            self._events.put(_Joined(link, {}, base, error))

    def _deliver(self, link: Link, topic: str, base: int) -> Any:  # noqa: ANN401 - a function of the link's
        events = self._events

        def deliver(method: Any, properties: Any, body: bytes) -> None:  # noqa: ANN401 - pika has no types
            seen = seen_of(topic, base + int(method.delivery_tag), properties, body)
            events.put(_Delivered(link, seen, bool(method.redelivered)))

        return deliver

    def pause(self, places: Sequence[Place]) -> None:
        """See cdc.consumer.ports.Member."""
        self._paused |= set(places)

    def resume(self, places: Sequence[Place]) -> None:
        """See cdc.consumer.ports.Member."""
        self._paused -= set(places)

    def commit(self, offsets: Mapping[Place, int]) -> None:
        """See cdc.consumer.ports.Member; the answer comes with the next `fetch`."""
        self._answers.append((offsets, "") if self._acknowledge(offsets) else ({}, "the connection is lost"))

    def hand_over(self, offsets: Mapping[Place, int]) -> Mapping[Place, int]:
        """See cdc.consumer.ports.Member."""
        return offsets if self._acknowledge(offsets) else {}

    def _acknowledge(self, offsets: Mapping[Place, int]) -> bool:
        """Acknowledge what is below offsets, each delivery once: the broker ends a channel that does it twice."""
        if self._now is None or self._now.link.failed:
            return False
        for place, offset in offsets.items():
            if place in self._came and offset - 1 > self._acknowledged[place]:
                self._now.subscriptions[place].ack(offset - 1 - self._now.base)
                self._acknowledged[place] = offset - 1
        return True

    def ticket(self, place: Place) -> object:
        """See cdc.consumer.ports.Member."""
        return Ticket(self._now.link if self._now is not None else None, self._again.get(place, -1))

    def lag(self, place: Place, here: int | None) -> int | None:
        """Return how many are in the queue as of the last look, and of what came how many are not settled."""
        ready = self._ready.get(place)
        return None if ready is None else ready + max(0, self._came.get(place, 0) + 1 - here if here is not None else 0)

    def leave(self) -> None:
        """See cdc.consumer.ports.Member; what was acknowledged is sent before the connection is closed."""
        if self._now is not None:
            self._now.link.close()
            self._now.link.join(LEAVE_S)
            self._now = None
