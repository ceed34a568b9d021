"""What a consumer asks of a broker, and what it tells whoever watches it.

A `Broker` makes, for each run, a `Member` of the group for the polling thread and a `Mover` for the desk. A broker's own words for
partitions, offsets and membership end there: a *place* is what one member reads alone and in order (a partition, a stream, a queue), an
*offset* a number that grows with the order of a place's records and is the same for a record as long as the place stays ours.

Rules of a Member.
- It is used by one thread. What changes comes to its listener inside of `join`, `fetch` and `leave`, never from another thread.
- A record is told again, to whoever has its place then, until it is acknowledged; acknowledging means all records of a place below
  an offset, and comes after the database's commit.
- A place that is given back is ours until `revoked` returns; one that is `lost` may be somebody else's already. A place that is
  assigned again begins with its first record that is not acknowledged.
- What heals by itself is a `hitch`; CdcError is raised for what a person has to mend.

Every hook of an Observer is called by the polling thread, waits for nobody and gets no payload.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from cdc.consumer.dead_letter import NAME_LIMIT
from cdc.consumer.event import envelope
from cdc.consumer.lane import Failure, Handle, Handled, Lane, Move, Place, Standing

if TYPE_CHECKING:
    from cdc.event import Record, Seen

LOG: Final = logging.getLogger("cdc.consumer")


class Listener(Protocol):
    """Who polls: a Member tells it what becomes of its places."""

    def assigned(self, places: Sequence[Place]) -> None:
        """Places are ours from now on."""

    def revoked(self, places: Sequence[Place]) -> None:
        """Places are to be given back: takes a while, hands over by `Member.hand_over`, and returns when it is done with them."""

    def lost(self, places: Sequence[Place]) -> None:
        """Places are ours no more, and nothing can be acknowledged for them."""

    def at_end(self, place: Place, offset: int) -> None:
        """There is nothing more before this offset; from brokers whose offsets have gaps that no record fills."""

    def committed(self, offsets: Mapping[Place, int], error: str = "") -> None:
        """The answer to `Member.commit`: what is acknowledged, and why not all of it is."""

    def hitch(self, what: str) -> None:
        """Something failed that is tried again."""


class Member(Protocol):
    """One member of a group, for one run."""

    def join(self, listener: Listener) -> None:
        """Begin; places are assigned by later calls of `fetch`."""

    def fetch(self, wait_s: float) -> Sequence[Seen]:
        """Return records that have come, of each place in its order, after a wait for the first one at most."""

    def pause(self, places: Sequence[Place]) -> None:
        """Fetch nothing more for these places; what is on its way may still come."""

    def resume(self, places: Sequence[Place]) -> None:
        """Fetch again."""

    def commit(self, offsets: Mapping[Place, int]) -> None:
        """Begin to acknowledge what is below these offsets; `Listener.committed` has the answer, once for each call."""

    def hand_over(self, offsets: Mapping[Place, int]) -> Mapping[Place, int]:
        """Acknowledge within `Listener.revoked`, and return what is acknowledged; waits for nothing but the broker."""

    def ticket(self, place: Place) -> object:
        """Return what proves to the Mover that a place is ours now; valid no longer than that."""

    def lag(self, place: Place, here: int | None) -> int | None:
        """Return how many records there are from `here` on, as far as is known without asking; `here` is None before the first one."""

    def leave(self) -> None:
        """Leave the group, within seconds whatever the broker does; what is not acknowledged will come to others."""


class Mover(Protocol):
    """Writes records to the consumer's own topics, each together with the acknowledgement of the record that it was; for one thread."""

    def fence(self) -> None:
        """End what an earlier process of this instance may have left open."""

    def limit_bytes(self, topic: str) -> int:
        """Return the largest record that a topic takes; raises CdcError for one that takes none."""

    def move(self, record: Record, settled: Mapping[Place, int], ticket: object) -> bool:
        """Write a record and acknowledge what is below the offsets, both or neither, and return True; does nothing but that if it was done.

        A broker that cannot do both in one step writes, and returns False: it is acknowledged by the next commit, and a crash in
        between writes it again. Raises CdcError, and may then be called again with the same.
        """

    def close(self) -> None:
        """Let the clients go."""


class Broker(Protocol):
    """Where the events are; holds no connection of its own."""

    def prepare(self, topics: Sequence[str], own: Sequence[str]) -> Mapping[str, int]:
        """Make the consumer's own topics if it may, and return how long the others keep events, in ms, -1 for ever.

        What is not known is left out. Raises CdcError.
        """

    def member(self, topics: Sequence[str], own: Sequence[str]) -> Member:
        """Return a new member that reads the topics, and the consumer's own ones where they exist."""

    def mover(self) -> Mover:
        """Return what moves records of this consumer."""


class Observer(Protocol):
    """Takes what happens; `consumer` is the group's name."""

    def handled(self, consumer: str, job: Handle, result: Handled, seconds: float) -> None:
        """A job ended: how many records are settled, how many events were applied or had been before."""

    def failed(self, consumer: str, record: Seen, failure: Failure, attempts: int, lane: Lane) -> None:
        """A record was not settled; the lane tells what comes next."""

    def moved(self, consumer: str, move: Move, error: str) -> None:
        """A record was parked or put off (`error` is empty), or could not be."""

    def stopped(self, consumer: str, lane: Lane) -> None:
        """A partition stands still until it is assigned anew."""

    def skipped(self, consumer: str, record: Seen) -> None:
        """A record that could not be parked was left out, as the policy says."""

    def assigned(self, consumer: str, places: Sequence[Place]) -> None:
        """Partitions are ours."""

    def revoked(self, consumer: str, places: Sequence[Place], *, lost: bool) -> None:
        """Partitions are ours no more; `lost` when the group went on without asking."""

    def late(self, consumer: str, lane: Lane) -> None:
        """A result came for a partition that is no longer ours; nothing was committed for it."""

    def hitch(self, consumer: str, what: str) -> None:
        """Something failed that is tried again: a commit of offsets, a broker, the database."""

    def turned(self, consumer: str, state: Mapping[str, object]) -> None:
        """About once a second: `lag` and `standing` by place, `pending`, `running`, `breakers`, `busy_s` by priority."""


class Log:
    """The observer that everybody has: log lines with ids and error classes, never a payload, a key or an exception's words."""

    def handled(self, consumer: str, job: Handle, result: Handled, seconds: float) -> None:
        """Say nothing."""

    def failed(self, consumer: str, record: Seen, failure: Failure, attempts: int, lane: Lane) -> None:
        """Say why."""
        error = f"{failure.error_class}{failure.where}"
        following = lane.standing.value
        if lane.standing is Standing.WAITING:
            following += f" for {max(0.0, lane.not_before - time.monotonic()):.0f} s"
        LOG.warning(
            "%s: attempt %d failed: error=%s handler=%s kind=%s next=%s%s",
            consumer, attempts, error, failure.handler or "-", failure.kind, following, told(record),
        )  # fmt: skip

    def moved(self, consumer: str, move: Move, error: str) -> None:
        """Say where to."""
        what = "parked" if move.delay_s is None else f"put off for {move.delay_s:.0f} s"
        if error:
            LOG.error("%s: could not be %s: %s%s", consumer, what, error, told(move.record))
        else:
            LOG.warning("%s: %s after %d attempts: error=%s%s", consumer, what, move.attempts, move.failure.error_class, told(move.record))

    def stopped(self, consumer: str, lane: Lane) -> None:
        """Say why."""
        LOG.error("%s: %s[%d] is stopped at offset %s: %s", consumer, lane.topic, lane.partition, lane.pending[0].offset, lane.why)

    def skipped(self, consumer: str, record: Seen) -> None:
        """Say which."""
        LOG.error("%s: LEFT OUT, because it could not be parked%s", consumer, told(record))

    def assigned(self, consumer: str, places: Sequence[Place]) -> None:
        """Say which."""
        LOG.info("%s: reading %s, %d partition%s", consumer, _names(places), len(places), "s" * (len(places) != 1))

    def revoked(self, consumer: str, places: Sequence[Place], *, lost: bool) -> None:
        """Say which."""
        if lost:
            LOG.warning("%s: lost %s: this member was evicted from its group and joins again", consumer, _names(places))
        else:
            LOG.info("%s: gave back %s", consumer, _names(places))

    def late(self, consumer: str, lane: Lane) -> None:
        """Say which."""
        LOG.warning("%s: a result for %s[%d] came after the partition was taken away", consumer, lane.topic, lane.partition)

    def hitch(self, consumer: str, what: str) -> None:
        """Repeat it."""
        LOG.warning("%s: %s", consumer, what)

    def turned(self, consumer: str, state: Mapping[str, object]) -> None:
        """Say nothing."""


def told(record: Seen) -> str:
    """Name a record by all that is safe to say; what is too long is cut as in a dead letter."""
    event = envelope(record)
    names = {"id": event.id, "type": event.type or "-", "correlation": event.correlation_id or "-"}
    said = " ".join(f"{name}={text[:NAME_LIMIT]}" for name, text in names.items())
    return f" {said} topic={record.topic} partition={record.partition} offset={record.offset}"


def _names(places: Sequence[Place]) -> str:
    topics: dict[str, list[int]] = {}
    for topic, number in sorted(places):
        topics.setdefault(topic, []).append(number)
    return ", ".join(f"{topic}[{', '.join(map(str, numbers))}]" for topic, numbers in topics.items()) or "nothing"
