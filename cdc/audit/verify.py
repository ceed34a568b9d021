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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from confluent_kafka import IsolationLevel, TopicPartition

from cdc.audit import judge
from cdc.audit.judge import Row, Verdict, Visible, digest, limit_of, place_of
from cdc.audit.outbox_rows import OutboxRows, SeenBy
from cdc.audit.spool import DIGEST_BYTES, Buffer, Spool, StoredRow
from cdc.errors import ContinuityError
from cdc.kafka.client import nobody_waits
from cdc.kafka.subscriber import Seen, Subscriber
from cdc.kafka.topics import Topic, latest
from cdc.outbox.mapping import topics_of
from cdc.position import Lsn, Position

POLL_S = 0.1
"""Between two looks at the position: it moves once a second when the log is quiet."""

RESTART_S = 3.0
"""How long a pipeline that does not run is given to come back; without one the position stands still."""

Progress = Callable[[float], object]
Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Ends:
    """What both ends are called, and how to look at them."""

    pipeline: str
    source: str
    route: str
    dead_letter: str
    position_topic: str
    rows: OutboxRows
    subscriber: Subscriber
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
        rows = Buffer(spool.add_rows)
        snapshot = ends.rows.read(rows, progress)
        rows.flush()
        topics = _topics(ends, spool.topics())
        passed = _wait(ends, topics, snapshot.lsn, timeout_s)
        kept = _read(ends, spool, topics, since_ms, progress)
        position = ends.position()
        if position is None:
            msg = f"the position topic {ends.position_topic!r} holds no position of pipeline {ends.pipeline!r}"
            raise ContinuityError(msg, "run `cdc init`")
        skipped = SeenBy(position.existing.snapshot) if position.existing.mode == "skip" else ()
        fates = _Fates(kept, skipped, ends.dead_letter, passed=passed)
        whole = since_ms is None and not kept.first and not kept.compacted
        return _judged(spool, fates, limit_of(position.generation, position.end_lsn), whole=whole)
    finally:
        spool.close()


def _judged(spool: Spool, fates: _Fates, limit: bytes, *, whole: bool) -> Verdict:
    verdict, outcomes = Verdict(), Buffer(spool.add_outcomes)
    judge.by_id(verdict, map(fates.row, spool.rows()), spool.by_id(), outcomes, limit=limit)
    outcomes.flush()
    judge.by_place(verdict, spool.by_place(), whole=whole)
    judge.by_key(verdict, spool.by_key())
    judge.by_transaction(verdict, spool.outcomes())
    return verdict


class _Fates:
    """Decides what a row is when no record of it is visible."""

    def __init__(self, kept: _Kept, skipped: SeenBy | tuple[()], dead_letter: str, *, passed: bool) -> None:
        self._kept = kept
        self._skipped = skipped
        self._dead_letter = dead_letter
        self._passed = passed
        self._cut = {topic for topic, _ in kept.first}

    def row(self, row: StoredRow) -> Row:
        payloads = frozenset(row.payloads[i : i + DIGEST_BYTES] for i in range(0, len(row.payloads), DIGEST_BYTES))
        return Row(row.id, row.key, row.type, row.xid, payloads, row.original, self._absent(row))

    def _absent(self, row: StoredRow) -> Literal["missing", "pending", "skipped", "expired"]:
        if row.xid in self._skipped:
            return "skipped"
        topic = row.topic or self._dead_letter
        if topic in self._kept.compacted or (topic in self._cut and self._expired(row, topic)):
            return "expired"
        return "missing" if self._passed else "pending"

    def _expired(self, row: StoredRow, topic: str) -> bool:
        partition = row.partition if row.partition >= 0 else partition_of(row.key, self._kept.partitions[topic])
        places = [(topic, partition)] if partition is not None else [place for place in self._kept.first if place[0] == topic]
        return any(self._before(row, place) for place in places if place in self._kept.first)

    def _before(self, row: StoredRow, place: Place) -> bool:
        """Tell whether a row is no newer than the first record of a partition: by time, else by transaction, else believed."""
        first = self._kept.first[place]
        if first is None:
            return True
        time_ms, xid = first
        if row.time_ms is not None:
            return row.time_ms <= time_ms
        return xid is None or row.xid <= xid


def _topics(ends: Ends, from_rows: Iterable[str]) -> list[str]:
    """Return the topics to read: those that rows are meant for, those that fit the route, and the dead letters'."""
    there = set(ends.subscriber.topics.names(nobody_waits))
    wanted = {*from_rows, *topics_of(ends.route, there), ends.dead_letter} - {ends.position_topic}
    return sorted(wanted & there)


def _wait(ends: Ends, topics: Sequence[str], lsn: Lsn, timeout_s: float) -> bool:
    """Wait until everything up to `lsn` is published and can be read; return whether it is."""
    began = time.monotonic()
    deadline = began + timeout_s
    while (position := ends.position()) is None or position.end_lsn < lsn:
        now = time.monotonic()
        if now >= deadline or (now >= began + RESTART_S and not ends.running()):
            return False
        time.sleep(POLL_S)
    counts = ends.subscriber.topics.partitions(topics, nobody_waits) if topics else {}
    places = [TopicPartition(topic, number) for topic in topics for number in range(counts[topic])]
    ask = ends.subscriber.topics.offsets
    goal = ask({place: latest() for place in places}, IsolationLevel.READ_UNCOMMITTED, nobody_waits)
    while any(
        stable < end
        for stable, end in zip(ask({place: latest() for place in places}, IsolationLevel.READ_COMMITTED, nobody_waits), goal, strict=True)
    ):
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_S)
    return True


def _read(ends: Ends, spool: Spool, topics: Sequence[str], since_ms: int | None, progress: Progress) -> _Kept:
    kept, firsts = _Kept(), dict[Place, Seen]()
    described = ends.subscriber.topics.describe(topics, nobody_waits)
    kept.compacted = {t.name for t in described.values() if isinstance(t, Topic) and "compact" in t.config.get("cleanup.policy", "")}
    kept.partitions = {t.name: t.partitions for t in described.values() if isinstance(t, Topic)}
    bounds = ends.subscriber.bounds(topics, nobody_waits) if topics else {}
    cut = {place for place, (low, _) in bounds.items() if low > 0 and since_ms is None}
    records = Buffer(spool.add_records)
    for done, seen in enumerate(ends.subscriber.read(topics, since_ms=since_ms) if topics else (), 1):
        place = (seen.topic, seen.partition)
        if place in cut:
            firsts.setdefault(place, seen)
        record = visible(seen, ends.pipeline, ends.source, ends.dead_letter)
        if record is not None:
            records(record)
        if done % 1_000 == 0:
            progress(1_000)
    records.flush()
    for place in cut:
        first = firsts.get(place)
        kept.first[place] = None if first is None else (first.timestamp_ms, spool.xid_of(dict(first.headers).get("ce_id") or b""))
    return kept


def visible(seen: Seen, pipeline: str, source: str, dead_letter: str) -> Visible | None:
    """Return a record as the judge sees it, or None when it is another pipeline's."""
    headers = dict(seen.headers)
    dead = seen.topic == dead_letter
    ours, name = (pipeline, "__connect.errors.connector.name") if dead else (source, "ce_source")
    if name in headers and headers[name] != ours.encode():
        return None
    event, sequence, kind = ("cdc.id", "cdc.sequence", "cdc.type") if dead else ("ce_id", "ce_sequence", "ce_type")
    left_out = "cdc.payload.bytes" in headers
    return Visible(
        id=headers.get(event) or b"",
        place=place_of(headers.get(sequence)),
        key=seen.key,
        topic=seen.topic,
        partition=seen.partition,
        offset=seen.offset,
        type=headers.get(kind),
        payload=None if left_out else digest(seen.value),
        replay="ce_replay" in headers or "replay" in headers,
        dead=dead,
    )


def partition_of(key: bytes | None, partitions: int) -> int | None:
    """Return the partition that Java clients and librdkafka's murmur2_random give a key; None for a record without one."""
    return None if key is None else (_murmur2(key) & 0x7FFFFFFF) % partitions


def _murmur2(data: bytes) -> int:
    """Hash as org.apache.kafka.common.utils.Utils.murmur2 does."""
    factor, mask = 0x5BD1E995, 0xFFFFFFFF
    whole = len(data) & ~3
    hashed = 0x9747B28C ^ len(data)
    for i in range(0, whole, 4):
        k = int.from_bytes(data[i : i + 4], "little") * factor & mask
        hashed = (hashed * factor & mask) ^ ((k ^ k >> 24) * factor & mask)
    if whole < len(data):
        hashed = (hashed ^ int.from_bytes(data[whole:], "little")) * factor & mask
    hashed = (hashed ^ hashed >> 13) * factor & mask
    return hashed ^ hashed >> 15
