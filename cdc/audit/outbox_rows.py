"""The outbox table as the log would show it: rows of one snapshot, in the text form of the log, with what each may become.

Strategy: COPY writes every column by its type's output function, as pgoutput does, and streams, so neither side holds the
table. The snapshot is old as soon as it is read; `lsn` is a place in the log by which all of its rows are committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from psycopg import sql

from cdc.audit.judge import digest
from cdc.audit.spool import StoredRow
from cdc.avro.columns import BYTEA
from cdc.avro.registry import Registry
from cdc.errors import ConfigurationError, InvalidEvent, PostgresRefused
from cdc.outbox.mapping import OutboxMapping, locate
from cdc.outbox.router import Router, fill
from cdc.position import Lsn
from cdc.postgres.catalog import LiveCatalog, TableColumn
from cdc.postgres.connection import connect, remedies
from cdc.postgres.pgoutput import Begin, Column, Relation
from cdc.postgres.slot import Table

PAGE_BYTES, PAGE_HEADERS = 8192, (24, 40)
"""A page of the log, and the sizes of its header: the place where the next record goes lies behind it, where the last one
ended before it (PostgreSQL's xlog_internal.h)."""

SINCE_MARGIN_MS = 3_600_000
"""Rows are read from this long before `--since` on: a record's time is its commit, and a row may say that it happened before."""

XID_SPACE = 1 << 32
"""A row keeps the lower half of its transaction's number; the snapshot tells the upper half."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What was looked at: the first transaction that is not in it, and the end of the log just after."""

    xmax: int
    lsn: Lsn


class OutboxRows:
    """Reads the table once."""

    def __init__(  # noqa: PLR0913 - both ends of the mapping
        self, dsn: str, application_name: str, *, table: Table, mapping: OutboxMapping, registry: Registry, since_ms: int | None
    ) -> None:
        self._dsn = dsn
        self._application_name = application_name
        self._table = table
        self._mapping = mapping
        self._registry = registry
        self._since_ms = since_ms
        self._router = Router(mapping, registry.encoder, 0)

    def read(self, take: Callable[[StoredRow], object], progress: Callable[[float], object]) -> Snapshot:
        """Hand every row to `take`; return what was looked at."""
        columns, committed = self._look()
        names, time = self._chosen(columns, committed=committed)
        # The text of a bytea column is read as bytes; of other types only the header ce_time depends, which is not judged.
        listed = tuple(Column(c.name, BYTEA if c.type_name == "bytea" else 0, -1, False) for c in names)
        relation = Relation(0, self._table.schema, self._table.name, "d", listed)
        with connect(self._dsn, self._application_name) as connection, remedies("reading the outbox"), connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            row = connection.execute("SELECT pg_snapshot_xmax(pg_current_snapshot())::text, pg_current_wal_insert_lsn()::text").fetchone()
            assert row is not None, "a SELECT without FROM returns one row"
            snapshot = Snapshot(int(row[0]), end_of_log(Lsn.parse(row[1])))
            done = 0
            with connection.cursor() as cursor, cursor.copy(self._query(names, time)) as copy:
                for xmin, time_ms, *values in copy.rows():
                    place = full_xid(int(xmin), snapshot.xmax)
                    take(self._stored(relation, tuple(v if v is None else v.encode() for v in values), place, time_ms))
                    done += 1
                    if done % 1_000 == 0:
                        progress(1_000)
        return snapshot

    def _look(self) -> tuple[Sequence[TableColumn], bool]:
        catalog = LiveCatalog(self._dsn, self._application_name)
        try:
            columns = catalog.columns(self._table.schema, self._table.name)
            if columns is None:
                msg = f"table {self._table} does not exist, or the role may not see it"
                raise PostgresRefused(msg, "correct outbox.table, or grant SELECT on it")
            return columns, catalog.setting("track_commit_timestamp") == "on"
        finally:
            catalog.close()

    def _chosen(self, columns: Sequence[TableColumn], *, committed: bool) -> tuple[list[TableColumn], sql.Composable | None]:
        """Return the mapped columns, and how a row's time in milliseconds is told, if at all."""
        try:
            located = locate(self._mapping, [column.name for column in columns])
        except InvalidEvent as missing:
            raise PostgresRefused(f"table {self._table}: {missing.what}", missing.fix) from None
        time: sql.Composable | None = None
        occurred_at = located.columns.get("occurred_at")
        if committed:
            time = sql.SQL("floor(extract(epoch from pg_xact_commit_timestamp(xmin)) * 1000)::int8")
        elif occurred_at is not None and columns[occurred_at].type_name.startswith("timestamp"):
            time = sql.SQL("floor(extract(epoch from {}) * 1000)::int8").format(sql.Identifier(columns[occurred_at].name))
        if self._since_ms is not None and time is None:
            msg = f"table {self._table} does not tell when a row was written, so --since cannot choose among its rows"
            raise ConfigurationError(msg, "map outbox.columns.occurred_at, set track_commit_timestamp = on, or verify all")
        return [columns[i] for i in dict.fromkeys(located.columns.values())], time

    def _query(self, columns: Sequence[TableColumn], time: sql.Composable | None) -> sql.Composed:
        moment = time or sql.SQL("NULL")
        listed = sql.SQL(", ").join(sql.Identifier(column.name) for column in columns)
        query = sql.SQL("SELECT xmin, {}, {} FROM {}").format(moment, listed, self._table.identifier)
        if self._since_ms is not None:
            query += sql.SQL(" WHERE {} >= {}").format(moment, sql.Literal(self._since_ms - SINCE_MARGIN_MS))
        return sql.SQL("COPY ({}) TO STDOUT").format(query)

    def _stored(self, relation: Relation, values: tuple[bytes | None, ...], xid: int, time_ms: str | None) -> StoredRow:
        row = (_BEGIN, relation, 0, values)
        mapped = self._router.values(row)
        event, event_type, payload = mapped.get("id") or b"", mapped.get("type"), mapped.get("payload")
        moment = None if time_ms is None else int(time_ms)
        early = self._since_ms is not None and moment is not None and moment < self._since_ms
        try:
            record = self._router.route(row)
        except InvalidEvent:
            topic, key, partition, payloads = "", mapped.get("aggregateid"), -1, b""
        else:
            topic, key, partition, payloads = record.topic, record.key, record.partition, digest(record.value)
            event_type = next((value for name, value in record.headers if name == "ce_type"), event_type)
        payloads += b"".join(self._others(mapped, payload))
        return StoredRow(event, key, event_type, xid, payloads, digest(payload), topic, partition, moment, early)

    def _others(self, mapped: dict[str, bytes | None], payload: bytes | None) -> Iterator[bytes]:
        """Yield what a row that names no version became under the versions that were newest before."""
        if payload is None or mapped.get("schema_version") is not None:
            return
        if self._mapping.value == "json":
            yield digest(payload)
            return
        try:
            subject = fill(self._mapping.subject, mapped)
        except InvalidEvent:
            return
        versions = self._registry.subjects.get(subject, ())
        for version in versions if len(versions) > 1 else ():
            try:
                encoder = self._registry.encoder(subject, version.number)
                yield digest((encoder.pass_through if self._mapping.payload == "avro" else encoder.encode)(payload))
            except InvalidEvent:
                continue


_BEGIN = Begin(Lsn(0), 0, 0)


def full_xid(xmin: int, xmax: int) -> int:
    """Return the whole number of a transaction whose lower half is `xmin`; `xmax` is later than it."""
    xid = (xmax & ~(XID_SPACE - 1)) | xmin
    return xid if xid < xmax else max(xid - XID_SPACE, xmin)


def end_of_log(insert_lsn: Lsn) -> Lsn:
    """Return where the last record ended, from where the next one goes: a position stops before a page's header."""
    offset = insert_lsn % PAGE_BYTES
    return Lsn(insert_lsn - offset) if offset in PAGE_HEADERS else insert_lsn


class SeenBy:
    """Tells the transactions that a snapshot sees, from its text: xmin:xmax:in progress (pg_snapshot)."""

    def __init__(self, text: str) -> None:
        xmin, xmax, listed = text.split(":")
        self._xmin, self._xmax = int(xmin), int(xmax)
        self._in_progress = frozenset(int(xid) for xid in listed.split(",") if xid)

    def __contains__(self, xid: int) -> bool:
        return xid < self._xmin or (xid < self._xmax and xid not in self._in_progress)
