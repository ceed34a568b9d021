"""Whether the pipeline is so far behind that a writer should say "too busy" (HTTP 429): seen by SQL alone, cheap and cached.

A writer sees the slot: up to where the log is published (`confirmed_flush_lsn`), and where the log ends now. That is the lag in
bytes. How old and how many the unpublished events are the slot does not say, so `Samples` remembers what it saw: at which
time the log had which end, and how many rows the table had got until then. What came after the newest look that is confirmed by
now may be unpublished. A process that has just begun therefore knows the bytes at once,
and age and rows as time goes on. The count of rows is PostgreSQL's statistics: late by a second or more, rolled-back rows included, and
nothing in it for messages, which have no table; then `pending_rows` stays 0 and age alone counts.

One query a second at most for each process, whatever the number of requests; it reads no row of the outbox.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from cdc.outbox.executor import Statement, execute, execute_async

QUERY: Final = """
SELECT pg_catalog.pg_wal_lsn_diff(pg_catalog.pg_current_wal_lsn(), '0/0')::bigint AS log_end,
    (SELECT pg_catalog.pg_wal_lsn_diff(confirmed_flush_lsn, '0/0')::bigint FROM pg_catalog.pg_replication_slots WHERE slot_name = %s)
        AS confirmed,
    (SELECT COALESCE(sum(pg_catalog.pg_stat_get_tuples_inserted(relid)), 0)::bigint FROM (SELECT pg_catalog.to_regclass(named.it) AS relid
        UNION SELECT relid FROM pg_catalog.pg_partition_tree(pg_catalog.to_regclass(named.it))) tables) AS inserted
FROM (SELECT %s::text AS it) named"""
"""The end of the log, what the slot has confirmed, and the rows that the table ever got. For everybody to see; no table is read."""

KEPT: Final = 3_600
"""Looks that are remembered: an hour of one a second. Of older ones the oldest stays, so an age never shrinks by forgetting."""


class Look(NamedTuple):
    """What was seen: seconds of a monotonic clock, the log's end and the confirmed place in bytes, rows the table ever got.

    `confirmed` is None without a slot, `rows` without a table.
    """

    at_s: float
    end: int
    confirmed: int | None
    rows: int | None


@dataclass(frozen=True, slots=True)
class Backlog:
    """How far the pipeline is behind: bytes of log, seconds of the oldest event and number of events that may be unpublished."""

    lag_bytes: int
    age_s: float
    pending_rows: int


@dataclass(frozen=True, slots=True)
class TooBusy:
    """The pipeline is behind by more than the limits: answer 429 with `Retry-After: retry_after_s`.

    `reason` is one line for people: which limit, and by how much.
    """

    reason: str
    retry_after_s: int
    backlog: Backlog


class Samples:
    """Remembers looks, and judges by them how far the pipeline is behind; no I/O, no clock."""

    def __init__(self) -> None:
        self._waiting: deque[Look] = deque()
        self._settled: Look | None = None

    def add(self, look: Look) -> Backlog:
        """Take a look in, and return what it means."""
        while self._waiting and look.confirmed is not None and self._waiting[0].end <= look.confirmed:
            self._settled = self._waiting.popleft()
        if look.confirmed is not None and look.end <= look.confirmed:
            self._settled = look
            self._waiting.clear()
        else:
            if len(self._waiting) >= KEPT:
                del self._waiting[1]
            self._waiting.append(look)
        lag_bytes = 0 if look.confirmed is None else max(look.end - look.confirmed, 0)
        pending = None if look.rows is None else max(look.rows - self._published(look), 0)
        # Log that holds no event of ours has no age: somebody else's bulk load is not the outbox's backlog.
        oldest = self._waiting[0] if self._waiting and pending != 0 else look
        return Backlog(lag_bytes, look.at_s - oldest.at_s, pending or 0)

    def _published(self, look: Look) -> int:
        """Estimate how many rows the table had got when the log was where it is confirmed: on the line between two looks."""
        if not self._waiting:
            return look.rows or 0
        after = self._waiting[0]
        before = self._settled or after  # before anything was seen to be confirmed, the first look is all that is known
        rows = before.rows or 0
        if look.confirmed is None or after.end <= before.end:
            return rows
        part = min(max((look.confirmed - before.end) / (after.end - before.end), 0.0), 1.0)
        return rows + int(part * ((after.rows or 0) - rows))


@dataclass(eq=False)
class Pressure:
    """Answers whether a writer should hold back: `pressure.look(connection)` is None, or TooBusy.

    slot               the pipeline's slot, `cdc_NAME`
    table              the outbox table as SQL names it, for a partitioned one the root; None if events are messages
    max_pending_rows   events that may wait
    max_age_s          seconds that the oldest of them may wait
    max_lag_bytes      bytes of log that the slot may be behind; all of the database's writes count, not only events
    retry_after_s      what clients are told to wait
    every_s            how long an answer holds: in between no query is made, and of many threads one asks

        busy = pressure.look(connection)
        if busy:
            return Response(busy.reason, status=429, headers={"Retry-After": str(busy.retry_after_s)})

    Look before the transaction begins, on any connection that `append` takes; it may be in autocommit. A slot that does not
    exist counts as one that does not move. The role needs no right beyond CONNECT.
    """

    slot: str
    table: str | None = "public.outbox"
    max_pending_rows: int = 10_000
    max_age_s: float = 60.0
    max_lag_bytes: int = 1_000_000_000
    retry_after_s: int = 5
    every_s: float = 1.0
    _samples: Samples = field(default_factory=Samples, init=False, repr=False)
    _asking: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)
    _looked_s: float | None = field(default=None, init=False, repr=False)
    _answer: TooBusy | None = field(default=None, init=False, repr=False)

    def look(self, target: object) -> TooBusy | None:
        """Return TooBusy if a limit is passed; asks PostgreSQL once in `every_s`."""
        if self._begin():
            try:
                self._take(execute(target, self._statement()))
            finally:
                self._asking.release()
        return self._answer

    async def look_async(self, target: object) -> TooBusy | None:
        """Do the same on an async connection, cursor or session."""
        if self._begin():
            try:
                self._take(await execute_async(target, self._statement()))
            finally:
                self._asking.release()
        return self._answer

    def _begin(self) -> bool:
        """Whether it is our turn to ask; then the lock is held."""
        if not self._due() or not self._asking.acquire(blocking=False):
            return False
        if self._due():
            return True
        self._asking.release()
        return False

    def _due(self) -> bool:
        return self._looked_s is None or time.monotonic() - self._looked_s >= self.every_s

    def _statement(self) -> Statement:
        return Statement(QUERY, (self.slot, self.table), inside=False)

    def _take(self, row: Any) -> None:  # noqa: ANN401 - the driver's row
        end, confirmed, rows = row.values() if isinstance(row, Mapping) else row  # of psycopg's dict_row
        now_s = time.monotonic()
        seen = Look(now_s, int(end), None if confirmed is None else int(confirmed), None if self.table is None else int(rows))
        self._answer = self.judge(self._samples.add(seen))
        self._looked_s = now_s

    def judge(self, backlog: Backlog) -> TooBusy | None:
        """Hold a backlog against the limits."""
        for what, value, limit in (
            ("events wait to be published", backlog.pending_rows, self.max_pending_rows),
            ("seconds: so long the oldest event has been waiting", backlog.age_s, self.max_age_s),
            ("bytes of log are not published", backlog.lag_bytes, self.max_lag_bytes),
        ):
            if value > limit:
                return TooBusy(f"{round(value):,} {what}, more than {round(limit):,}", self.retry_after_s, backlog)
        return None
