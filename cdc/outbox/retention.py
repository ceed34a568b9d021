"""`outbox.retention`: old rows are deleted from the table, and old partitions dropped, beside the pipeline and never in its way.

Strategy: the table is swept page range by page range, so that every statement is short whatever the table's size and
whichever indexes it has. Of each range the rows that are old are chosen first; then the end of the log is noted; when the slot
has confirmed that place, those rows are deleted, told by where they stand and who wrote them. A partition whose bounds are
old is detached, then the end of the log is noted, and when that is confirmed it is dropped.

Rules.
- No row goes whose commit the slot has not confirmed: it was visible before the place was noted, so its commit lies below. A
  slot that nobody streams from confirms nothing here.
- Writers never wait: rows that somebody has locked are skipped, every statement is a transaction of its own, a lock on the
  table is not waited for longer than LOCK_TIMEOUT, and a partition is detached CONCURRENTLY.
- A shard deletes its own rows, by its own slot; nobody drops partitions then, because all shards have rows in each.
- It works for at most SHARE of the time, and never rests because there is something to publish.
- Where it fails, that is reported and tried again; publishing does not notice.

A thread of its own with a connection of its own. Nothing is remembered: a restart sweeps from the beginning, and a partition
that was detached is known by its comment.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, LiteralString, Protocol

from psycopg import sql

from cdc.errors import CdcError, PostgresRefused
from cdc.outbox.mapping import OutboxMapping, found
from cdc.position import Lsn
from cdc.postgres.catalog import LiveCatalog
from cdc.postgres.connection import Connection, connect, remedies
from cdc.postgres.slot import Table

PAGES, ROWS = 64, 500
"""Of one range: half a megabyte is read, and so many rows are deleted, in a few milliseconds."""

SHARE = 0.2
"""Part of the time in which it may keep the server busy: deleting 500 rows takes some 5 ms, so it keeps up with 20,000 a second."""

SWEEPS_PER_AGE = 20
"""A row goes at the latest when it is a twentieth older than it may be; until then the sweep is spread over the time."""

PACE_MAX_S = 1.0
"""The longest rest between two ranges."""

CONFIRMED_POLL_S = 0.1
"""Between two looks at the slot: a busy pipeline confirms many times a second, an idle one once."""

IDLE_S, FAILED_S = 1.0, 10.0
"""Rest while this instance does not stream, and after a failure."""

LOCK_TIMEOUT, STATEMENT_TIMEOUT = "100ms", "10s"
"""Whoever waits for a lock on a table makes all that come later wait behind it."""

TICK_S = 0.05
"""Shorter rests are taken within one call of `look`, which is called so often."""


Query = LiteralString | sql.SQL | sql.Composed


class Report(Protocol):
    """Who is told; none of these may raise."""

    def deleted(self, rows: int, partitions: int) -> None:
        """Report rows or partitions that went."""

    def retention_failed(self, error: CdcError) -> None:
        """Report a failure; it is tried again."""


@dataclass(frozen=True, slots=True)
class Retained:
    """What is kept, and for how long; `column` is the table's own time of a row, `moment` how a row's time is told in SQL."""

    table: Table
    column: str | None
    moment: sql.Composable

    @property
    def ours(self) -> sql.Composable:
        """The rows that this pipeline publishes: all, or a shard's. A percent sign would be taken for a parameter."""
        return sql.SQL("true" if self.table.part is None else self.table.part.condition.as_string().replace("%", "%%"))


def retained(catalog: LiveCatalog, table: Table, mapping: OutboxMapping) -> Retained:
    """Find out how a row's age is told; raises PostgresRefused when the table cannot tell it."""
    columns = catalog.columns(table.schema, table.name) or []
    at = found(mapping, [column.name for column in columns]).columns.get("occurred_at")
    column = columns[at].name if at is not None and columns[at].type_name.startswith(("timestamp", "date")) else None
    times: list[sql.Composable] = [] if column is None else [sql.SQL("t.{}::timestamptz").format(sql.Identifier(column))]
    if catalog.setting("track_commit_timestamp") == "on":
        times.append(sql.SQL("pg_xact_commit_timestamp(t.xmin)"))
    if not times:
        msg = f"table {table} does not tell when a row was written, so outbox.retention cannot tell which are old"
        raise PostgresRefused(msg, "map outbox.columns.occurred_at to a timestamp, or set track_commit_timestamp = on")
    return Retained(table, column, sql.SQL("coalesce({})").format(sql.SQL(", ").join(times)))


class Retention:
    """Deletes what is old; `active` tells whether this instance streams, `clock` gives monotonic seconds."""

    def __init__(  # noqa: PLR0913 - both ends of it, by keyword
        self,
        *,
        dsn: str,
        application_name: str,
        pipeline: str,
        slot: str,
        table: Table,
        mapping: OutboxMapping,
        age: timedelta,
        active: Callable[[], bool],
        report: Report,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._dsn = dsn
        self._application_name = application_name
        self._mark = f"cdc {pipeline}: detached by outbox.retention, to be dropped"
        self._slot = slot
        self._table = table
        self._mapping = mapping
        self._age_s = age.total_seconds()
        self._active = active
        self._report = report
        self._clock = clock
        self._rests_until = clock()
        self._connection: Connection | None = None
        self._turns = self._work()

    def __repr__(self) -> str:
        return f"<Retention {self._table} older than {self._age_s:g} s>"

    def look(self, leave: Callable[[], None]) -> None:
        """Work until a longer rest is due; called every TICK_S, `leave` raises when the process ends."""
        while self._clock() >= self._rests_until:
            leave()
            rest_s = self.step()
            if rest_s > TICK_S:
                self._rests_until = self._clock() + rest_s
            else:
                time.sleep(rest_s)

    def step(self) -> float:
        """Do one small thing; return how many seconds to rest."""
        if not self._active():
            self.close()
            return IDLE_S
        try:
            return next(self._turns)
        except CdcError as error:
            self.close()
            self._report.retention_failed(error)
            return FAILED_S

    def close(self) -> None:
        """Close the connection, and begin anew with the next step."""
        self._turns = self._work()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _work(self) -> Iterator[float]:
        """Sweep for ever; each turn is a rest in seconds."""
        catalog = LiveCatalog(self._dsn, self._application_name)
        try:
            kept = retained(catalog, self._table, self._mapping)
        finally:
            catalog.close()
        while True:
            began, interval_s = self._clock(), self._age_s / SWEEPS_PER_AGE
            yield from self._drop_detached()
            if kept.column is not None and self._table.part is None:
                yield from self._detach_old(kept.column)
            [(pages,)] = self._ask(_PAGES, (self._table.schema, self._table.name))
            for first in range(0, pages, PAGES):
                yield from self._clear(kept, first)
                left_s = interval_s - (self._clock() - began)
                yield min(PACE_MAX_S, max(0.0, left_s) / (1 + (pages - first) // PAGES))
            yield max(CONFIRMED_POLL_S, interval_s - (self._clock() - began))

    def _clear(self, kept: Retained, first: int) -> Iterator[float]:
        """Delete what is old in one range of pages."""
        here = (f"({first},0)", f"({first + PAGES},0)", self._age_s, ROWS)
        while True:
            began = self._clock()
            chosen = self._ask(_CHOSEN.format(table=kept.table.identifier, moment=kept.moment, ours=kept.ours), here)
            spent_s = self._clock() - began
            if not chosen:
                yield spent_s * (1 / SHARE - 1)
                return
            yield from self._confirmed()
            began = self._clock()
            parts, places, writers = zip(*chosen, strict=True)
            gone = self._run(_DELETED.format(table=kept.table.identifier), (list(parts), list(places), list(writers)))
            self._report.deleted(gone, 0)
            yield (spent_s + self._clock() - began) * (1 / SHARE - 1)
            if len(chosen) < ROWS or gone == 0:  # what is locked is left to the next sweep
                return

    def _confirmed(self) -> Iterator[float]:
        """Rest until all that was visible before is confirmed."""
        [(text,)] = self._ask("SELECT pg_current_wal_insert_lsn()::text")
        place = str(Lsn.parse(text))
        while not self._ask(_CONFIRMED, (self._slot, place)):
            yield CONFIRMED_POLL_S

    def _detach_old(self, column: str) -> Iterator[float]:
        """Detach partitions that only hold what is old; the next sweep drops them."""
        names = (self._table.schema, self._table.name)
        if self._ask(_KEY, names) != [(column,)]:
            return
        for schema, name, pending, beside_default in self._ask(_OLD, (*names, self._age_s)):
            partition = sql.Identifier(schema, name)
            how = "FINALIZE" if pending else "" if beside_default else "CONCURRENTLY"
            self._run(sql.SQL("COMMENT ON TABLE {} IS {}").format(partition, self._mark))
            # CONCURRENTLY waits for transactions that are under way, and nobody waits behind it.
            patience = STATEMENT_TIMEOUT if how else LOCK_TIMEOUT
            self._run(sql.SQL("SET lock_timeout = {}").format(patience))
            self._run(sql.SQL("ALTER TABLE {} DETACH PARTITION {} {}").format(self._table.identifier, partition, sql.SQL(how)))
            self._run(sql.SQL("SET lock_timeout = {}").format(LOCK_TIMEOUT))
            yield 0.0
        yield from self._drop_detached()

    def _drop_detached(self) -> Iterator[float]:
        """Drop what was detached, once all that was ever written to it is confirmed."""
        detached = self._ask(_DETACHED, (self._mark,))
        if detached:
            yield from self._confirmed()
        for schema, name in detached:
            self._run(sql.SQL("DROP TABLE {}").format(sql.Identifier(schema, name)))
            self._report.deleted(0, 1)
            yield 0.0

    def _ask(self, statement: Query, parameters: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        with remedies("deleting old rows"):
            return self._opened().execute(statement, parameters).fetchall()

    def _run(self, statement: Query, parameters: tuple[object, ...] = ()) -> int:
        with remedies("deleting old rows"):
            return self._opened().execute(statement, parameters).rowcount

    def _opened(self) -> Connection:
        if self._connection is None:
            connection = connect(self._dsn, self._application_name)
            connection.prepare_threshold = None
            settings = {"lock_timeout": LOCK_TIMEOUT, "statement_timeout": STATEMENT_TIMEOUT, "synchronous_commit": "off"}
            for name, value in settings.items():  # a delete that a crash forgets is made again
                connection.execute("SELECT set_config(%s, %s, false)", (name, value))
            self._connection = connection
        return self._connection


_PAGES = """
SELECT coalesce(max(pg_catalog.pg_relation_size(each.oid)), 0) / current_setting('block_size')::int8 FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace,
LATERAL (SELECT c.oid UNION SELECT t.relid FROM pg_catalog.pg_partition_tree(c.oid) t) each (oid)
WHERE n.nspname = %s AND c.relname = %s"""
"""Pages of the table, or of its largest partition: they are swept together, because rights are given on the table alone."""

_CHOSEN = sql.SQL("""
SELECT t.tableoid::int8, t.ctid::text, t.xmin::text FROM {table} t
WHERE t.ctid >= %s::tid AND t.ctid < %s::tid AND {moment} < now() - make_interval(secs => %s) AND {ours} LIMIT %s""")

_DELETED = sql.SQL("""
WITH doomed AS (
    SELECT t.tableoid AS part, t.ctid AS place FROM {table} t
    JOIN unnest(%s::oid[], %s::tid[], %s::xid[]) chosen (part, place, writer)
        ON t.ctid = chosen.place AND t.tableoid = chosen.part AND t.xmin = chosen.writer
    FOR UPDATE OF t SKIP LOCKED)
DELETE FROM {table} t USING doomed WHERE t.ctid = doomed.place AND t.tableoid = doomed.part""")
"""A place may hold another row by now, if somebody else deleted ours; it has another writer then."""

_CONFIRMED = """
SELECT 1 FROM pg_catalog.pg_replication_slots WHERE slot_name = %s AND active AND confirmed_flush_lsn >= %s::pg_lsn"""

_ROOT: LiteralString = (
    """pg_catalog.pg_class p JOIN pg_catalog.pg_namespace pn ON pn.oid = p.relnamespace AND pn.nspname = %s AND p.relname = %s"""
)

_KEY = f"""
SELECT a.attname FROM {_ROOT} JOIN pg_catalog.pg_partitioned_table k ON k.partrelid = p.oid AND k.partstrat = 'r' AND k.partnatts = 1
JOIN pg_catalog.pg_attribute a ON a.attrelid = p.oid AND a.attnum = k.partattrs[0]"""  # noqa: S608 - constants
"""The one column by whose ranges the table is partitioned."""

_OLD = f"""
SELECT n.nspname, c.relname, i.inhdetachpending, k.partdefid <> 0
FROM {_ROOT} JOIN pg_catalog.pg_partitioned_table k ON k.partrelid = p.oid
JOIN pg_catalog.pg_inherits i ON i.inhparent = p.oid JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE pg_has_role(p.relowner, 'USAGE') AND pg_has_role(c.relowner, 'USAGE')
AND substring(pg_get_expr(c.relpartbound, c.oid) FROM $$TO \\('([^']+)'\\)$$)::timestamptz <= now() - make_interval(secs => %s)
ORDER BY 2"""  # noqa: S608 - constants
"""Partitions whose upper bound is old; only the owner may detach one, and where we are not, their rows are deleted."""

_DETACHED = """
SELECT n.nspname, c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND pg_catalog.obj_description(c.oid, 'pg_class') = %s"""
