"""Reads committed records of whole topics, in bounded memory: for the audit, for `cdc tail` and for the demo.

Strategy: offsets of its own, no consumer group. Where to end is asked from the leaders once, when reading begins (ListOffsets for
committed readers, that is the last stable offset), so a reader beside a running pipeline ends; a partition is done when a
record or an EOF has reached its end, because markers and aborted records at the end are offsets without a record.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, IsolationLevel, KafkaException, TopicPartition

from cdc.errors import Retriable
from cdc.event import Place, Seen, Shape
from cdc.kafka.client import Notes, Waiting, make, raised, retire, usable
from cdc.kafka.properties import admin_properties, client_properties, consumer_properties
from cdc.kafka.topics import Topic, Topics, at_time, earliest, latest

__all__ = ["Place", "Seen", "Subscriber"]

FETCH = 2_000
"""Records that one call hands over."""

DEFAULTS = {
    "fetch.wait.max.ms": 100,
    "fetch.message.max.bytes": 262_144,
    "queued.min.messages": 2_000,
    "queued.max.messages.kbytes": 4_096,
}
"""Whole topics are read at Python's speed, so a short queue never runs dry. A fetch is decompressed at once, each partition's to
many times its size; with librdkafka's own megabyte a reader of six partitions held 50 MB more and was no faster."""

WAIT_S = 0.1
"""Longest time without a call of `waiting`."""

SETTLE_S = 5.0
"""How long a Kafka transaction that is open on a topic is waited for at a time."""

PATIENCE_S = 30.0
"""How long nothing at all may come before the broker counts as lost; aborted records count as nothing."""


class Subscriber:
    """Reads topics; each call of `read` is independent of the others."""

    def __init__(self, *, name: str, kafka: Mapping[str, object], clock: Callable[[], float] = time.monotonic) -> None:
        checked = client_properties(kafka)
        self.topics = Topics(admin_properties(checked, name), clock)
        self._properties = consumer_properties({**DEFAULTS, **checked}, name)
        self._clock = clock

    def __repr__(self) -> str:
        return f"<Subscriber {self.topics!r}>"

    def close(self) -> None:
        """Let the administrative client go."""
        self.topics.close()

    def names(self, waiting: Waiting) -> list[str]:
        """Return the names of all topics that we may see."""
        return self.topics.names(waiting)

    def shapes(self, topics: Sequence[str], waiting: Waiting) -> dict[str, Shape]:
        """Return how each of the topics that can be described keeps records."""
        described = self.topics.describe(topics, waiting).values()
        return {t.name: Shape(t.partitions, "compact" in t.config.get("cleanup.policy", "")) for t in described if isinstance(t, Topic)}

    def bounds(self, topics: Sequence[str], waiting: Waiting) -> dict[Place, tuple[int, int]]:
        """Return the first offset that is still there and the end of what is committed, for each partition."""
        places = self._places(topics, waiting)
        return dict(zip(places, zip(self._starts(places, None, waiting), self._ends(places, waiting), strict=True), strict=True))

    def read(
        self,
        topics: Sequence[str],
        *,
        since_ms: int | None = None,
        starts: Mapping[Place, int] | None = None,
        follow: bool = False,
        waiting: Waiting = lambda: None,
    ) -> Iterator[Seen]:
        """Yield the committed records of topics, from their beginning, a time or offsets on, in order within each partition.

        Ends where the topics end now, unless it is to follow. `waiting` is called at least every WAIT_S and may raise to leave.
        """
        places = self._places(topics, waiting)
        ends = dict(zip(places, self._ends(places, waiting), strict=True))
        starts = starts or dict(zip(places, self._starts(places, since_ms, waiting), strict=True))
        # A time that no record has reached yet has no offset (-1): nothing to read, or to follow from the end on.
        starts = {place: start if start >= 0 else ends[place] for place, start in starts.items() if place in ends}
        left = set(places) if follow else {place for place in places if starts[place] < ends[place]}
        if not left:
            return
        notes = Notes()
        consumer = make(Consumer, self._properties, notes)
        try:
            consumer.assign([TopicPartition(topic, number, starts[topic, number]) for topic, number in left])
            progress = self._clock()
            while left:
                messages = self._fetch(consumer, notes)
                waiting()
                for message in messages:
                    place = (message.topic(), message.partition())
                    offset, end = message.offset(), ends[place]
                    eof = message.error() is not None
                    if not eof and (follow or offset < end):
                        key, value, headers = message.key(), message.value(), message.headers() or []
                        yield Seen(*place, offset, key, value, headers, message.timestamp()[1])
                    if offset >= end - (not eof) and not follow and place in left:
                        left.discard(place)
                        consumer.pause([TopicPartition(*place)])
                if messages or follow:
                    progress = self._clock()
                elif self._clock() - progress >= PATIENCE_S:
                    said = f" (last error: {notes.last})" if notes.last else ""
                    msg = f"no record came within {PATIENCE_S:.0f} s while reading {', '.join(sorted({t for t, _ in left}))}{said}"
                    raise Retriable(msg)
        finally:
            retire(consumer)

    def settle(self, topics: Sequence[str], waiting: Waiting) -> None:
        """Wait until all that was written to the topics by now is committed or aborted; raises Retriable after SETTLE_S."""
        if not self.settled(topics, SETTLE_S, waiting):
            msg = f"a Kafka transaction is open on {', '.join(topics)}"
            raise Retriable(msg, "try again when it has ended")

    def settled(self, topics: Sequence[str], patience_s: float, waiting: Waiting) -> bool:
        """Wait until all that was written to the topics by now is committed or aborted; return whether it is."""
        asked = {TopicPartition(*place): latest() for place in self._places(topics, waiting)}
        goal = self.topics.offsets(asked, IsolationLevel.READ_UNCOMMITTED, waiting)
        deadline = self._clock() + patience_s
        while any(
            stable < end for stable, end in zip(self.topics.offsets(asked, IsolationLevel.READ_COMMITTED, waiting), goal, strict=True)
        ):
            if self._clock() >= deadline:
                return False
            time.sleep(WAIT_S)
        return True

    def _fetch(self, consumer: Consumer, notes: Notes) -> list[Any]:
        """Return records and EOFs: Message, whose types would have to be asserted for each one."""
        doing = "reading records"
        try:
            messages = consumer.consume(1, WAIT_S)  # asked for more, it would wait for them, and whoever follows with it
            if messages:
                messages += consumer.consume(FETCH, 0)
        except KafkaException as error:
            raise raised(error, doing, transactional=False) from None
        notes.check(doing)
        return usable(messages, doing)

    def _places(self, topics: Sequence[str], waiting: Waiting) -> list[Place]:
        counts = self.topics.partitions(topics, waiting)
        return [(topic, number) for topic in topics for number in range(counts[topic])]

    def _ends(self, places: Sequence[Place], waiting: Waiting) -> list[int]:
        asked = {TopicPartition(*place): latest() for place in places}
        return self.topics.offsets(asked, IsolationLevel.READ_COMMITTED, waiting)

    def _starts(self, places: Sequence[Place], since_ms: int | None, waiting: Waiting) -> list[int]:
        asked = {TopicPartition(*place): earliest() if since_ms is None else at_time(since_ms) for place in places}
        return self.topics.offsets(asked, IsolationLevel.READ_COMMITTED, waiting)
