"""What becomes of a row that cannot become a record: a dead letter, or a stop, by policy; values in, record out, no I/O.

One place for the relay and for the commands that publish rows of the table, so that a row has one fate whoever meets it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from cdc.errors import InvalidEvent, SinkRefused, StoppedByPolicy
from cdc.event import Record, Route
from cdc.kafka.limits import fits
from cdc.outbox.dead_letter import dead_letter
from cdc.outbox.mapping import NAME_LIMIT
from cdc.outbox.replay import ReplayRouter
from cdc.outbox.router import Router, sequence
from cdc.postgres.transaction import Row


@dataclass(frozen=True, slots=True)
class Policy:
    """What to do with invalid rows: `dead_letter_topic`, or None to stop; with `only`, for rows of these ids or places alone."""

    pipeline: str
    dead_letter_topic: str | None
    only: frozenset[str] | None = None

    @property
    def may_stop(self) -> bool:
        """Whether there are rows that stop the pipeline."""
        return self.dead_letter_topic is None or self.only is not None

    def topic_for(self, event_id: str, place: str) -> str | None:
        """Return where a row is parked, or None to stop at it."""
        return self.dead_letter_topic if self.only is None or event_id in self.only or place in self.only else None


class Parked(NamedTuple):
    """A dead letter, and what may be told of its row."""

    record: Record
    event_id: str
    place: str
    correlation_id: str


def park(  # noqa: PLR0913 - the row, its error, and the two ends
    row: Row, error: InvalidEvent, *, router: Router, policy: Policy, generation: int, route: Callable[[str], Route], now_ms: int
) -> Parked:
    """Return the dead letter of a row; raises StoppedByPolicy, and SinkRefused when the dead-letter topic does not take it."""
    begin, _, ordinal, _ = row
    values = router.values(row)
    place = sequence(generation, begin, ordinal)
    event_id = (values.get("id") or b"").decode(errors="backslashreplace")
    topic = policy.topic_for(event_id, place)
    if topic is None:
        raise StoppedByPolicy(
            f"invalid event {event_id or 'without id'} at {place} ({error.reason}): {error.what}",
            f"{error.fix or 'mend the schema folder'}, or get past it: cdc dead-letters park {event_id or place}",
        ) from error
    try:
        opened = route(topic)
        record = dead_letter(
            topic,
            values,
            error,
            pipeline=policy.pipeline,
            sequence=place,
            commit_time_us=begin.commit_time_us,
            meant_for=router.topic_of(values),
            limit_bytes=opened.max_message_bytes,
        )
        if isinstance(router, ReplayRouter):
            record = router.mark(record, begin)
        fits(record, opened, now_ms)
    except InvalidEvent as refused:
        msg = f"the dead letter of the row at {place} ({error.reason}: {error.what}) cannot be written: {refused.what}"
        raise SinkRefused(msg, refused.fix) from refused
    return Parked(record, event_id, place, _correlation_id(values.get("headers")))


def _correlation_id(headers: bytes | None) -> str:
    """Return what the row's own headers say that it belongs to; they need not be what they should, or the row is parked for it."""
    try:
        found = json.loads(headers or b"{}")
    except (ValueError, RecursionError):
        return ""
    told = found.get("correlationid") if isinstance(found, dict) else None
    return told[:NAME_LIMIT] if isinstance(told, str) else ""
