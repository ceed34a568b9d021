"""`cdc verify`: the rows of the table beside the committed records, judged in bounded memory while the pipeline runs.

Strategy: a snapshot of the table first, and the end of the log just after it; then the position, until it has passed that
end; then the records, to where they end now; then the position once more. In this order every row of the snapshot must be
among the records, and every record below the position. The other way round a row that is published meanwhile would be
missing, or a record of it unexpected. When the position does not come in time, rows without a record are pending.

Rules.
- A position may be seen before the events of its Kafka transaction: each partition learns of a commit on its own. So every
  partition must have been read to where it ended, open Kafka transactions included, when the position had passed.
- What a topic no longer keeps is told by its first offset: rows that are older than the first record still there are expired.
- Records of another source, or dead letters of another pipeline, are not ours to judge.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from cdc.audit import judge
from cdc.audit.judge import UNTOLD, Absent, Row, Verdict, Visible, digest, limit_of, place_of
from cdc.audit.outbox_rows import PROGRESS, HashKey, MeantFor, OutboxRows, SeenBy, milliseconds
from cdc.audit.spool import Sorter, Spool
from cdc.errors import ContinuityError
from cdc.event import Place, Seen
from cdc.outbox.dead_letter import REDRIVEN
from cdc.outbox.envelope import CONTENT_TYPE, data_of
from cdc.outbox.mapping import REPLAY_MARKERS, topics_of
from cdc.pipeline.ports import Reader
from cdc.position import Lsn, Position
from cdc.resilience.call import nobody_waits

POLL_S = 0.1
"""Between two looks at the position: it moves once a second when the log is quiet."""

RESTART_S = 3.0
"""How long a pipeline that does not run is given to come back; without one the position stands still."""

Progress = Callable[[float], object]


@dataclass(frozen=True, slots=True)
class Ends:
    """What both ends are called, and how to look at them."""

    pipeline: str
    source: str
    route: str
    dead_letter: str
    position_topic: str
    rows: OutboxRows
    subscriber: Reader
    position: Callable[[], Position | None]
    running: Callable[[], bool]


@dataclass(slots=True)
class _Kept:
    """What topics no longer keep: the first record still there in each partition that was cut, and all compacted topics."""

    first: dict[Place, tuple[int, int | None] | None] = field(default_factory=dict)
    compacted: set[str] = field(default_factory=set)
    partitions: dict[str, int] = field(default_factory=dict)


def verify(ends: Ends, *, since_ms: int | None, timeout_s: float, progress: Progress) -> Verdict:
    """Judge both ends."""
    spool = Spool()
    try:
        snapshot = ends.rows.read(spool.add_row, progress)
        deadline = time.monotonic() + timeout_s
        passed = _wait_published(ends, snapshot.lsn, deadline)
        topics = _topics(ends, snapshot.topics)  # not before: the first event of a topic may have made it meanwhile
        passed = passed and _wait_readable(ends, topics, deadline)
        kept = _read(ends, spool, topics, since_ms, progress)
        position = ends.position()
        if position is None:
            msg = f"the position topic {ends.position_topic!r} holds no position of pipeline {ends.pipeline!r}"
            raise ContinuityError(msg, "run `cdc init`")
        skipped = SeenBy(position.existing.snapshot) if position.existing.mode == "skip" else ()
        fates = _Fates(kept, skipped, ends.dead_letter, ends.rows.hash_key, passed=passed)
        whole = since_ms is None and not kept.first and not kept.compacted
        return _judged(spool, fates, limit_of(position.generation, position.end_lsn), whole=whole)
    finally:
        spool.close()


def _judged(spool: Spool, fates: _Fates, limit: bytes, *, whole: bool) -> Verdict:
    verdict = Verdict()
    judge.by_id(verdict, spool.rows(), spool.by_id(), limit=limit, absent=fates.absent)
    judge.by_place(verdict, spool.by_place(), whole=whole)
    judge.by_key(verdict, spool.by_key())
    if verdict.counts.get("missing"):
        with Sorter(by_all=True) as outcomes:
            for each in judge.outcomes(spool.rows(), spool.by_id(), fates.absent):
                outcomes.add(each)
            judge.by_transaction(verdict, cast("Iterable[tuple[int, bool]]", outcomes))
    return verdict


class _Fates:
    """Decides what a row is when no record of it is visible."""

    def __init__(self, kept: _Kept, skipped: SeenBy | tuple[()], dead_letter: str, hash_key: HashKey, *, passed: bool) -> None:
        self._hash_key = hash_key
        self._kept = kept
        self._skipped = skipped
        self._dead_letter = dead_letter
        self._passed = passed
        self._cut = {topic for topic, _ in kept.first}

    def absent(self, row: Row) -> Absent:
        if row.absent != "missing":
            return row.absent
        if row.transaction in self._skipped:
            return "skipped"
        topic = self._meant_for(row)[0]
        if topic in self._kept.compacted or (topic in self._cut and self._expired(row)):
            return "expired"
        return "missing" if self._passed else "pending"

    def _meant_for(self, row: Row) -> MeantFor:
        topic, partition, by_hash, time = cast("MeantFor", row.meant_for)
        return topic or self._dead_letter, partition, by_hash, time

    def _expired(self, row: Row) -> bool:
        topic, number, by_hash, time = self._meant_for(row)
        places = [place for place in self._kept.first if place[0] == topic]
        if number < 0 and row.key is not None:
            number = ((self._hash_key(row.key) if by_hash is None else by_hash) & 0x7FFFFFFF) % self._kept.partitions[topic]
        time_ms = None if time is None else milliseconds(time)
        return any(self._before(row.transaction, time_ms, place) for place in places if number < 0 or place[1] == number)

    def _before(self, transaction: int, time_ms: int | None, place: Place) -> bool:
        """Tell whether a row is no newer than the first record of a partition: by time, else by transaction, else believed."""
        first = self._kept.first[place]
        if first is None:
            return True
        first_ms, first_transaction = first
        if time_ms is not None:
            return time_ms <= first_ms
        return first_transaction is None or transaction <= first_transaction


def _topics(ends: Ends, from_rows: Iterable[str]) -> list[str]:
    """Return the topics to read: those that rows are meant for, those that fit the route, and the dead letters'."""
    there = set(ends.subscriber.names(nobody_waits))
    wanted = {*from_rows, *topics_of(ends.route, there), ends.dead_letter} - {ends.position_topic}
    return sorted(wanted & there)


def _wait_published(ends: Ends, lsn: Lsn, deadline: float) -> bool:
    """Wait until everything up to `lsn` is published; return whether it is."""
    began = time.monotonic()
    while (position := ends.position()) is None or position.end_lsn < lsn:
        now = time.monotonic()
        if now >= deadline or (now >= began + RESTART_S and not ends.running()):
            return False
        time.sleep(POLL_S)
    return True


def _wait_readable(ends: Ends, topics: Sequence[str], deadline: float) -> bool:
    """Wait until everything that lies in the topics now can be read; return whether it can."""
    return not topics or ends.subscriber.settled(topics, deadline - time.monotonic(), nobody_waits)


def _read(ends: Ends, spool: Spool, topics: Sequence[str], since_ms: int | None, progress: Progress) -> _Kept:
    kept, firsts = _Kept(), dict[Place, Seen]()
    shapes = ends.subscriber.shapes(topics, nobody_waits)
    kept.compacted = {topic for topic, shape in shapes.items() if shape.compacted}
    kept.partitions = {topic: shape.partitions for topic, shape in shapes.items()}
    bounds = ends.subscriber.bounds(topics, nobody_waits) if topics else {}
    cut = {place for place, (low, _) in bounds.items() if low > 0 and since_ms is None}
    for done, seen in enumerate(ends.subscriber.read(topics, since_ms=since_ms) if topics else (), 1):
        if cut and (seen.topic, seen.partition) in cut:
            firsts.setdefault((seen.topic, seen.partition), seen)
        record = visible(seen, ends.pipeline, ends.source, ends.dead_letter)
        if record is not None:
            spool.add_record(record)
        if done % PROGRESS == 0:
            progress(PROGRESS)
    ids = {place: event_id(dict(first.headers)) for place, first in firsts.items()}
    transactions = spool.transactions_of(set(ids.values()))
    for place in cut:
        first = firsts.get(place)
        kept.first[place] = None if first is None else (first.timestamp_ms, transactions.get(ids[place]))
    return kept


DEAD, CLOUDEVENTS, PLAIN = ("cdc.id", "cdc.sequence", "cdc.type"), ("ce_id", "ce_sequence", "ce_type"), ("id", "", "")
"""The headers that tell id, place and type of a dead letter, and of an event in either style."""


ENVELOPE = CONTENT_TYPE.encode()


def visible(seen: Seen, pipeline: str, source: str, dead_letter: str) -> Visible | None:
    """Return a record as the judge sees it, or None when it is another pipeline's. Called for each record there is."""
    topic, partition, offset, key, value, listed, _ = seen
    headers = dict(listed)
    dead = topic == dead_letter
    if dead and REDRIVEN in headers:
        return None  # it closes a dead letter, and is no event
    plain = not dead and "ce_id" not in headers and "id" in headers  # Debezium's: they tell neither source nor place
    ours, name = (pipeline, "__connect.errors.connector.name") if dead else (source, "ce_source")
    if name in headers and headers[name] != ours.encode():
        return None
    event, sequence, kind = DEAD if dead else PLAIN if plain else CLOUDEVENTS
    if value and headers.get("content-type") == ENVELOPE:
        value = data_of(value)
    payload = None if "cdc.payload.bytes" in headers else digest(value)
    replay = not headers.keys().isdisjoint(REPLAY_MARKERS.values())
    place = UNTOLD if plain else place_of(headers.get(sequence))
    return Visible(headers.get(event) or b"", place, key, topic, partition, offset, headers.get(kind), payload, replay, dead)


def event_id(headers: Mapping[str, bytes | None]) -> bytes:
    """Return the id of an event, in either style; empty when it has none."""
    return headers.get("ce_id", headers.get("id")) or b""
