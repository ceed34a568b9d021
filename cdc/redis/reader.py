"""Reads what was committed into streams, in bounded memory: for the audit, for `cdc tail` and for the demo. Implements Reader.

What Redis shows is committed: a script's entries appear together. So there is nothing to wait for, and a stream's end is where
it ends. Topics are told by the position's hash, which knows each one that was opened and the number of its streams.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from cdc.errors import SinkRefused
from cdc.event import Place, Seen, Shape
from cdc.redis.entry import SEQUENCE_BITS, id_of, number_of, offset_of, seen, stream_of
from cdc.redis.link import Link, Waiting
from cdc.redis.scripts import told
from cdc.resilience.call import nobody_waits

FETCH_MAX = 500
"""Entries that one answer holds at most."""

FETCH_BYTES = 8 * 1024 * 1024
"""What one answer holds, about: as many entries as would be so much if they were as large as those before them."""

BLOCK_MS = 100
"""Longest time without a call of `waiting`."""

CLOCK_MARGIN_MS = 60_000
"""An entry's id is the time of its publication by Redis's clock, a record's that of its commit by PostgreSQL's: so far apart at most
is a record from its entry, unless it came later."""


class RedisReader:
    """Reads topics; each call of `read` is independent of the others."""

    def __init__(self, *, url: str, name: str, position_key: str, sentinel: str | None = None) -> None:
        self._made: Callable[[], Link] = lambda: Link(url, f"{name}-reader", sentinel)
        self._position = position_key
        self._link: Link | None = None
        self._count = FETCH_MAX // 10

    def __repr__(self) -> str:
        return f"<RedisReader {self._position}>"

    def close(self) -> None:
        """Let the link go."""
        if self._link is not None:
            self._link.close()
            self._link = None

    def names(self, waiting: Waiting) -> list[str]:
        """Return the names of all topics that this pipeline has opened."""
        return sorted(self._topics(waiting))

    def shapes(self, topics: Sequence[str], waiting: Waiting) -> dict[str, Shape]:
        """Return the number of streams of each topic that was opened; none is compacted."""
        known = self._topics(waiting)
        return {topic: Shape(known[topic], compacted=False) for topic in topics if topic in known}

    def bounds(self, topics: Sequence[str], waiting: Waiting) -> dict[Place, tuple[int, int]]:
        """Return where each stream begins (0 when nothing was trimmed) and ends."""
        known = self._topics(waiting)
        return {place: self._bounds(place, known, waiting) for place in self._places(topics, known)}

    def read(
        self,
        topics: Sequence[str],
        *,
        since_ms: int | None = None,
        starts: Mapping[Place, int] | None = None,
        follow: bool = False,
        waiting: Waiting = nobody_waits,
    ) -> Iterator[Seen]:
        """Yield the records of topics, from their beginning, a time or offsets on, in order within each stream.

        Ends where the streams end now, unless it is to follow.
        """
        known = self._known(topics, waiting)
        places = self._places(topics, known)
        ends = {place: self._bounds(place, known, waiting)[1] for place in places}
        since = 0 if since_ms is None else max(0, since_ms - CLOCK_MARGIN_MS) << SEQUENCE_BITS
        at = {place: min(since if starts is None else starts[place], ends[place]) for place in places}
        for place in places:
            while at[place] < ends[place]:
                count = self._count
                found = self._range(place, known, at[place], ends[place], waiting)
                yield from (each for each in found if since_ms is None or each.timestamp_ms >= since_ms)
                at[place] = found[-1].offset + 1 if len(found) == count else ends[place]
        while follow:
            for each in self._next(at, known, waiting):
                at[each.topic, each.partition] = each.offset + 1
                yield each

    def settle(self, topics: Sequence[str], waiting: Waiting) -> None:
        """Return: nothing is ever open in Redis."""

    def settled(self, topics: Sequence[str], patience_s: float, waiting: Waiting) -> bool:  # noqa: ARG002 - of Kafka
        """Return True: nothing is ever open in Redis."""
        return True

    def partition_of(self, key: bytes, partitions: int) -> int:
        """Return the stream of a key."""
        return number_of(key, partitions)

    def _linked(self) -> Link:
        if self._link is None or self._link.failed:
            self.close()
            self._link = self._made()
        return self._link

    def _topics(self, waiting: Waiting) -> dict[str, int]:
        fields = told(self._linked().call("HGETALL", self._position, waiting=waiting, doing="asking for the topics"))
        opened = {name.decode(): int(count) for name, count in fields.items() if name.startswith(b"topic:")}
        return {name.removeprefix("topic:"): count for name, count in opened.items()}

    def _known(self, topics: Sequence[str], waiting: Waiting) -> dict[str, int]:
        """Return the topics that were opened, and those of these that consumers have made: each is one stream."""
        known = self._topics(waiting)
        for topic in topics:
            if topic not in known and self._linked().call("TYPE", topic, waiting=waiting, doing="looking for a topic") == b"stream":
                known[topic] = 1
        return known

    def _places(self, topics: Sequence[str], known: Mapping[str, int]) -> list[Place]:
        for topic in topics:
            if topic not in known:
                msg = f"topic {topic!r} cannot be read: this pipeline has not opened it"
                raise SinkRefused(msg, "see its name; `cdc tail` without names reads all topics")
        return [(topic, number) for topic in topics for number in range(known[topic])]

    def _bounds(self, place: Place, known: Mapping[str, int], waiting: Waiting) -> tuple[int, int]:
        stream, doing = stream_of(*place, known[place[0]]), "asking where a stream ends"
        last = self._linked().call("XREVRANGE", stream, "+", "-", "COUNT", 1, waiting=waiting, doing=doing)
        end = offset_of(last[0][0]) + 1 if last else 0
        if not self._linked().call("HEXISTS", self._position, f"trimmed:{stream}", waiting=waiting, doing=doing):
            return 0, end
        first = self._linked().call("XRANGE", stream, "-", "+", "COUNT", 1, waiting=waiting, doing=doing)
        return offset_of(first[0][0]) if first else end, end

    def _range(self, place: Place, known: Mapping[str, int], start: int, end: int, waiting: Waiting) -> list[Seen]:
        stream = stream_of(*place, known[place[0]])
        words = ("XRANGE", stream, id_of(start), id_of(end - 1), "COUNT", self._count)
        return self._read([seen(*place, *each) for each in self._linked().call(*words, waiting=waiting, doing="reading records")])

    def _next(self, at: Mapping[Place, int], known: Mapping[str, int], waiting: Waiting) -> list[Seen]:
        """Return what has come to the streams, after a short wait if nothing has."""
        places = {stream_of(*place, known[place[0]]).encode(): place for place in at}
        after = [id_of(offset - 1) if offset else "0" for offset in at.values()]
        words = ("XREAD", "COUNT", self._count, "BLOCK", BLOCK_MS, "STREAMS", *places, *after)
        found = self._linked().call(*words, waiting=waiting, doing="reading records")
        return self._read([seen(*places[stream], *each) for stream, entries in found or () for each in entries])

    def _read(self, found: list[Seen]) -> list[Seen]:
        """Let the next answer be about as large as it may."""
        if found:
            size = sum(len(each.value or b"") for each in found) // len(found) + 1
            self._count = max(1, min(FETCH_MAX, FETCH_BYTES // size))
        return found
