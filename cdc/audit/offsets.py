"""`cdc offsets reset`: where a consumer group is, and where it would go; the topics keep everything, so nothing is published.

An event's place is found by its id. Its partition goes to it; the other partitions go to the first record of its time, so that
nothing that came after it is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from cdc.errors import ConfigurationError, SinkRefused
from cdc.event import Place, Seen
from cdc.outbox.mapping import topics_of
from cdc.pipeline.ports import Reader
from cdc.resilience.call import Waiting, nobody_waits

STEP = 1_000
"""Records between two reports of progress."""


class Move(NamedTuple):
    """One partition of a group: the offset that it has (None: none), and the one that it gets."""

    topic: str
    partition: int
    old: int | None
    new: int


@dataclass(frozen=True, slots=True)
class Goal:
    """Where to: the beginning, a time in milliseconds since 1970, or an event."""

    time_ms: int | None = None
    event: str | None = None


class Groups(Protocol):
    """Consumer groups of a sink; every method may raise Retriable or SinkRefused."""

    def offsets_of(self, group: str, waiting: Waiting) -> dict[Place, int]:
        """Return the offsets of a group, by partition."""

    def members(self, group: str, waiting: Waiting) -> int:
        """Return how many consumers read in the group's name now."""

    def since(self, places: Sequence[Place], time_ms: int, waiting: Waiting) -> list[int]:
        """Return the first offset of this time or later, -1 where no record has reached it."""

    def move(self, group: str, offsets: Mapping[Place, int], waiting: Waiting) -> None:
        """Set the offsets of a group; raises SinkRefused while it is in use."""

    def close(self) -> None:
        """Let every client go."""


@dataclass(frozen=True, slots=True)
class Reset:
    """A group, and the topics that it is moved in; by default those of the pipeline's route that it has offsets in."""

    groups: Groups
    subscriber: Reader
    group: str
    route: str
    topics: Sequence[str] = ()

    def planned(self, goal: Goal, progress: Callable[[float], object]) -> list[Move]:
        """Return where each partition would go; changes nothing. Raises SinkRefused for a group that is in use."""
        self._quiet()
        old = self.groups.offsets_of(self.group, nobody_waits)
        topics = self._topics(old)
        new = self._goals(topics, goal, progress)
        return [Move(*place, old.get(place), offset) for place, offset in new.items()]

    def carried_out(self, moves: Sequence[Move]) -> None:
        """Move the group."""
        self._quiet()
        self.groups.move(self.group, {(move.topic, move.partition): move.new for move in moves}, nobody_waits)

    def _quiet(self) -> None:
        if members := self.groups.members(self.group, nobody_waits):
            msg = f"group {self.group!r} is in use by {members} consumers; nothing was moved"
            raise SinkRefused(msg, "stop them: they would commit their own offsets over the new ones")

    def _topics(self, old: dict[Place, int]) -> list[str]:
        there = self.subscriber.names(nobody_waits)
        if missing := sorted(set(self.topics) - set(there)):
            raise ConfigurationError(f"topic {missing[0]!r} does not exist", "see `cdc tail` for the topics of this pipeline")
        topics = sorted(self.topics or {topic for topic, _ in old} & set(topics_of(self.route, there)))
        if not topics:
            msg = f"group {self.group!r} has no offsets in a topic of this pipeline"
            raise ConfigurationError(msg, "correct --group, or name the topics: --topic")
        return topics

    def _goals(self, topics: Sequence[str], goal: Goal, progress: Callable[[float], object]) -> dict[Place, int]:
        time_ms, found = goal.time_ms, None
        if goal.event is not None:
            found = self._find(topics, goal.event, progress)
            time_ms = found.timestamp_ms
        bounds = self.subscriber.bounds(topics, nobody_waits)
        new = {place: first for place, (first, _) in bounds.items()}
        if time_ms is not None:
            # A time that no record has reached yet has no offset: the group waits at the end.
            starts = zip(bounds.items(), self.groups.since(list(bounds), time_ms, nobody_waits), strict=True)
            new = {place: min(start, end) if start >= 0 else end for (place, (_, end)), start in starts}
        if found is not None:
            new[found.topic, found.partition] = found.offset
        return new

    def _find(self, topics: Sequence[str], event: str, progress: Callable[[float], object]) -> Seen:
        """Return the first record of an event; its replays come later."""
        wanted = event.encode()
        for done, seen in enumerate(self.subscriber.read(topics), 1):
            headers = dict(seen.headers)
            if headers.get("ce_id", headers.get("id")) == wanted:
                return seen
            if done % STEP == 0:
                progress(STEP)
        msg = f"no record of event {event!r} is in {', '.join(topics)}"
        raise ConfigurationError(msg, "see the id; a topic that retention has cut may not have it any more")
