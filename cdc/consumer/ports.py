"""What a consumer tells whoever watches it. Every hook is called by the polling thread, waits for nobody and gets no payload."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from cdc.consumer.event import envelope
from cdc.consumer.lane import Failure, Handle, Handled, Lane, Move, Place

if TYPE_CHECKING:
    from cdc.kafka.subscriber import Seen

LOG: Final = logging.getLogger("cdc.consumer")


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
        LOG.warning(
            "%s: attempt %d failed: error=%s handler=%s kind=%s next=%s%s",
            consumer, attempts, failure.error_class, failure.handler or "-", failure.kind, lane.standing, told(record),
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
        LOG.info("%s: assigned %s", consumer, _names(places))

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
    """Name a record by all that is safe to say."""
    event = envelope(record)
    return (
        f" id={event.id} type={event.type or '-'} correlation={event.correlation_id or '-'} topic={record.topic}"
        f" partition={record.partition} offset={record.offset}"
    )


def _names(places: Sequence[Place]) -> str:
    return ", ".join(f"{topic}[{number}]" for topic, number in places) or "nothing"
