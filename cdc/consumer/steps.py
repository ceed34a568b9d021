"""The database transaction of one or more units, as a generator: it yields questions and calls, and does neither.

Strategy: whoever runs it answers an Ask with the rows and a Call with nothing, inside of one open transaction, synchronously or
not; so the order *marker, then handler, then commit* stands here once. What the generator returns says for each unit whether it
was applied (False: it was done before).

Rules.
- The marker comes first. A second copy of the event waits at it, inside of PostgreSQL, until the first one's transaction ends,
  and is then told that there is nothing to do, or goes on when the first one was rolled back.
- "Done before" is a row that does not come back from ON CONFLICT DO NOTHING, never an exception: a unique violation can only be
  the handler's own.
- Markers are inserted in one order everywhere, so that two batches with the same events cannot wait for each other.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from enum import StrEnum
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, NamedTuple

from cdc.consumer.event import ORIGIN, storable
from cdc.consumer.handler import Unit
from cdc.consumer.retry import Unprocessable

Rows = Sequence[tuple[Any, ...]]


class Inbox(StrEnum):
    """How an event is known to have been applied."""

    EVENTS = "events"
    """A row for each event and handler in processed_events."""

    HIGH_WATER = "high-water"
    """The highest ce_sequence of each partition; a row for dead letters that come back only."""

    OFF = "off"
    """Not at all: a handler may be called again for an event after a crash."""


class Policy(StrEnum):
    """What becomes of later events of a key when one of its events has been parked."""

    FLAG = "flag"
    """They are applied; the parked one is told `newer_applied` when it comes back."""

    BLOCK = "block"
    """They are parked behind it, and come back behind it."""


class Blocked(Exception):
    """An earlier event of this key is parked and still open, and the policy is to keep the order."""


class TransactionEnded(Unprocessable):
    """Thrown into the steps after a call: the handler has ended the transaction, and so has committed the markers, or none."""


class Ask(NamedTuple):
    """A statement to execute; the answer is its rows."""

    query: str
    parameters: tuple[object, ...]
    rows: bool = True


class Call(NamedTuple):
    """A handler to call: with one event, or with several at once if it takes a list."""

    units: tuple[Unit, ...]

    @property
    def unit(self) -> Unit:
        """The first one; all have the same handler."""
        return self.units[0]


Steps = Generator[Ask | Call, Rows, list[bool]]

MARK: Final = (
    "INSERT INTO processed_events (consumer_name, source, event_id)"
    " SELECT * FROM unnest(%s::text[], %s::text[], %s::text[]) ON CONFLICT DO NOTHING RETURNING consumer_name, source, event_id"
)

MARK_ONE: Final = (
    "INSERT INTO processed_events (consumer_name, source, event_id) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING RETURNING event_id"
)

UNMARK: Final = (
    "DELETE FROM processed_events WHERE (consumer_name, source, event_id) IN (SELECT * FROM unnest(%s::text[], %s::text[], %s::text[]))"
)

LOCK_HIGH_WATER: Final = (
    "INSERT INTO consumer_high_water AS h (consumer_name, source, topic, partition, sequence) VALUES (%s, %s, %s, %s, '')"
    " ON CONFLICT (consumer_name, source, topic, partition) DO UPDATE SET sequence = h.sequence RETURNING h.sequence"
)

RAISE_HIGH_WATER: Final = (
    "UPDATE consumer_high_water SET sequence = %s, updated_at = clock_timestamp()"
    " WHERE consumer_name = %s AND source = %s AND topic = %s AND partition = %s"
)

TAKE_KEY: Final = (
    "INSERT INTO processed_keys AS k (consumer_name, business_key, expires_at)"
    " VALUES (%s, %s, coalesce(clock_timestamp() + make_interval(secs => %s), 'infinity'))"
    " ON CONFLICT (consumer_name, business_key) DO UPDATE SET expires_at = excluded.expires_at"
    " WHERE k.expires_at <= clock_timestamp() RETURNING 1"
)

NEWER: Final = (
    "UPDATE consumer_parked SET newer_sequence = greatest(newer_sequence, %s)"
    " WHERE consumer_name = %s AND topic = %s AND key = %s AND sequence < %s"
)

EARLIER: Final = (
    "SELECT 1 FROM consumer_parked WHERE consumer_name = %s AND topic = %s AND key = %s"
    " AND (source, event_id) <> (%s, %s) AND (NOT %s OR sequence < %s) LIMIT 1"
)

PARKED: Final = (
    "SELECT newer_sequence > sequence FROM consumer_parked WHERE consumer_name = %s AND topic = %s AND key = %s AND source = %s"
    " AND event_id = %s FOR UPDATE"
)

RELEASE: Final = "DELETE FROM consumer_parked WHERE consumer_name = %s AND topic = %s AND key = %s AND source = %s AND event_id = %s"


def transaction(units: Sequence[Unit], inbox: Inbox, consumer: str, policy: Policy = Policy.FLAG, *, releases: bool = False) -> Steps:
    """Mark all units, then call the handlers of those that are new, in their order.

    `releases`: with these units an event that had left its partition is done, so that nobody has to look out for it any more.
    """
    fresh = yield from _fresh(units, inbox)
    calls = _calls(units, fresh)
    for turn, numbers in enumerate(calls):
        called: list[Unit] = []
        for number in numbers:
            unit = units[number]
            if unit.key is not None:
                unit = yield from _watched(unit, consumer, policy)
            if unit.handler.unique is not None and not (yield from _takes_key(unit)):
                fresh[number] = False
                continue
            called.append(unit)
        try:
            if called:
                yield Call(tuple(called))
        except TransactionEnded:
            later = sorted(number for rest in calls[turn + 1 :] for number in rest)
            if inbox is not Inbox.OFF and later:
                # Committed with those before them, and their handlers not called: without this they would be skipped for ever.
                markers = [_marker(units[number]) for number in later]
                yield Ask(UNMARK, tuple(list(column) for column in zip(*markers, strict=True)), rows=False)
            raise
    if inbox is Inbox.HIGH_WATER:
        yield from _raise_high_water(units, fresh)
    if releases:
        yield Ask(RELEASE, (consumer, *_letter(units[-1])), rows=False)
    return fresh


def _calls(units: Sequence[Unit], fresh: Sequence[bool]) -> list[list[int]]:
    """Return the numbers of the new units, by call and in order; a handler that takes a list gets a stretch of events in one call.

    A stretch is of records that the same handlers take: behind an event of another kind the list ends, so that what is later in a
    partition is never applied before what is earlier by another handler.
    """
    if not any(unit.handler.many for unit in units):
        return [[number] for number, new in enumerate(fresh) if new]
    stretches = [[each for _, record in stretch for each in record] for _, stretch in groupby(_records(units), itemgetter(0))]
    calls: list[list[int]] = []
    for stretch in stretches:
        lists: dict[str, list[int]] = {}
        for number in stretch:
            handler = units[number].handler
            if not fresh[number]:
                continue
            if handler.name in lists:
                lists[handler.name].append(number)
            else:
                calls.append([number])
                if handler.many:
                    lists[handler.name] = calls[-1]
    return calls


def _records(units: Sequence[Unit]) -> Iterator[tuple[tuple[str, ...], list[int]]]:
    """Give for each record its handlers' names and the numbers of its units."""
    for _, record in groupby(range(len(units)), lambda number: (units[number].event.topic, units[number].event.offset)):
        numbers = list(record)
        yield tuple(units[number].handler.name for number in numbers), numbers


def _fresh(units: Sequence[Unit], inbox: Inbox) -> Generator[Ask | Call, Rows, list[bool]]:
    if inbox is Inbox.OFF:
        return [True] * len(units)
    if inbox is Inbox.EVENTS:
        return (yield from _mark(units))
    fresh = [False] * len(units)
    marked = [number for number, unit in enumerate(units) if _needs_marker(unit)]
    for number, new in zip(marked, (yield from _mark([units[number] for number in marked])), strict=True):
        fresh[number] = new
    highest: dict[tuple[str, str, str, int], str] = {}
    for place in sorted({_place(unit) for unit in units if _has_place(unit)}):
        [(highest[place],)] = yield Ask(LOCK_HIGH_WATER, place)
    for number, unit in enumerate(units):
        if _has_place(unit):
            place = _place(unit)
            fresh[number] = unit.event.sequence > highest[place]
            highest[place] = max(highest[place], unit.event.sequence)
    return fresh


def _mark(units: Sequence[Unit]) -> Generator[Ask | Call, Rows, list[bool]]:
    """Insert markers; of two units with the same marker in one batch the first one is new."""
    if not units:
        return []
    keys = [_marker(unit) for unit in units]
    if len(keys) == 1:
        return [bool((yield Ask(MARK_ONE, keys[0])))]
    ordered = sorted(set(keys))
    new = set((yield Ask(MARK, tuple(list(column) for column in zip(*ordered, strict=True)))))
    fresh = []
    for key in keys:
        fresh.append(key in new)
        new.discard(key)
    return fresh


def _marker(unit: Unit) -> tuple[str, str, str]:
    return unit.handler.marker, storable(unit.event.source), storable(unit.event.id)


def _needs_marker(unit: Unit) -> bool:
    """Whether the high-water mark cannot tell about an event: it was parked when its turn came, or has no sequence."""
    return unit.event.moved or unit.event.replay.startswith("redrive:") or not unit.event.sequence


def _has_place(unit: Unit) -> bool:
    """Whether an event stands in the order of its partition; a replayed one was there before, or is older than what is kept."""
    return bool(unit.event.sequence) and not unit.event.replay and not unit.event.moved


def _place(unit: Unit) -> tuple[str, str, str, int]:
    return unit.handler.marker, storable(unit.event.source), unit.event.topic, unit.event.partition


def _raise_high_water(units: Sequence[Unit], fresh: Sequence[bool]) -> Generator[Ask | Call, Rows, None]:
    highest: dict[tuple[str, str, str, int], str] = {}
    for unit, new in zip(units, fresh, strict=True):
        if new and _has_place(unit):
            highest[_place(unit)] = max(unit.event.sequence, highest.get(_place(unit), ""))
    for place, sequence in sorted(highest.items()):
        yield Ask(RAISE_HIGH_WATER, (sequence, *place), rows=False)


def _takes_key(unit: Unit) -> Generator[Ask | Call, Rows, bool]:
    assert unit.handler.unique is not None
    business_key = storable(unit.handler.unique(unit.event))
    return bool((yield Ask(TAKE_KEY, (unit.handler.marker, business_key, unit.handler.unique_for_s))))


def _watched(unit: Unit, consumer: str, policy: Policy) -> Generator[Ask | Call, Rows, Unit]:
    """Hold an event against the open dead letters of its key."""
    event = unit.event
    topic, key, *own = _letter(unit)
    if policy is Policy.BLOCK and (yield Ask(EARLIER, (consumer, topic, key, *own, event.moved, event.sequence))):
        raise Blocked
    if event.moved:
        rows = yield Ask(PARKED, (consumer, topic, key, *own))
        return unit._replace(event=replace(event, newer_applied=any(newer for (newer,) in rows)))
    yield Ask(NEWER, (event.sequence, consumer, topic, key, event.sequence), rows=False)
    return unit


def _letter(unit: Unit) -> tuple[str, bytes, str, str]:
    """Return how consumer_parked names an event's dead letter: the topic it lay in first, its key, its source and id."""
    event = unit.event
    topic = event.headers.get(ORIGIN, "").partition("/")[0] or event.topic
    return topic, unit.key or b"", storable(event.source), storable(event.id)
