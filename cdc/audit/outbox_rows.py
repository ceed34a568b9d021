"""The outbox table as the log would show it: rows of one snapshot, in the text form of the log, with what each may become.

Strategy: COPY writes every column by its type's output function, as pgoutput does, and streams, so neither side holds the
table. What a row became is not decoded but made again, by the router and the encoder that made it, and compared by digest.
The snapshot is old as soon as it is read; `lsn` is a place in the log by which all of its rows are committed.

A row is told by the transaction that wrote its present version, its xmin, so an UPDATE makes it as new as itself: PostgreSQL
keeps nothing of the INSERT. See docs/operating.md for what that means.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from math import floor
from operator import itemgetter

from psycopg import sql

from cdc.audit.judge import Row, digest
from cdc.audit.spool import SHORT, short
from cdc.avro.columns import BYTEA
from cdc.avro.registry import Registry
from cdc.errors import ConfigurationError, InvalidEvent, PostgresRefused
from cdc.outbox.mapping import NAME_LIMIT, OutboxMapping, locate
from cdc.outbox.router import Router, fill
from cdc.position import Lsn
from cdc.postgres.catalog import LiveCatalog, TableColumn
from cdc.postgres.connection import connect, remedies
from cdc.postgres.pgoutput import Begin, Column, Relation
from cdc.postgres.slot import Table
from cdc.postgres.transaction import Row as LogRow

PAGE_BYTES, PAGE_HEADERS = 8192, (24, 40)
"""A page of the log, and the sizes of its header: the place where the next record goes lies behind it, where the last one
ended before it (PostgreSQL's xlog_internal.h)."""

SINCE_MARGIN_MS = 3_600_000
"""Rows are read from this long before `--since` on: a record's time is its commit, and a row may say that it happened before."""

FOR_EVER_MS = 1 << 60
"""An infinite time."""

XID_SPACE = 1 << 32
"""A row keeps the lower half of its transaction's number; the snapshot tells the upper half."""


TOLD = ("id", "type", "payload")
"""What is compared beside the key, which the record has."""

PROGRESS = 1_000
"""Rows between two words of progress."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What was looked at: the first transaction that is not in it, the end of the log just after, the topics of its rows."""

    xmax: int
    lsn: Lsn
    topics: set[str] = field(default_factory=set)


class OutboxRows:
    """Reads the table once; `hash_key` is how the sink spreads keys over the partitions of a topic."""

    def __init__(  # noqa: PLR0913 - both ends of the mapping
        self,
        dsn: str,
        application_name: str,
        *,
        table: Table,
        mapping: OutboxMapping,
        registry: Registry,
        since_ms: int | None,
        hash_key: HashKey | None = None,
    ) -> None:
        self.hash_key = hash_key or murmur2
        self._dsn = dsn
        self._application_name = application_name
        self._table = table
        self._mapping = mapping
        self._registry = registry
        self._since_ms = since_ms
        # An envelope holds the event's place, which the table does not know: its payload is compared, as `visible` gives it.
        plain = replace(mapping, value="json") if mapping.value == "envelope" else mapping
        self._router = Router(plain, registry.encoder, 0)
        self._told: Callable[[LogRow], tuple[bytes | None, ...]] = lambda _: ()
        self._versions = mapping.value == "avro" and any(len(versions) > 1 for versions in registry.subjects.values())

    def read(self, take: Callable[[Row], object], progress: Callable[[float], object]) -> Snapshot:
        """Hand every row to `take`; return what was looked at."""
        columns, committed = self._look()
        names, time = self._chosen(columns, committed=committed)
        listed = tuple(Column(column.name, column.type_oid, -1, False) for column in names)
        relation = Relation(0, self._table.schema, self._table.name, "d", listed)
        self._told = self._teller(relation)
        with connect(self._dsn, self._application_name) as connection, remedies("reading the outbox"), connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            row = connection.execute("SELECT pg_snapshot_xmax(pg_current_snapshot())::text, pg_current_wal_insert_lsn()::text").fetchone()
            assert row is not None, "a SELECT without FROM returns one row"
            snapshot = Snapshot(int(row[0]), end_of_log(Lsn.parse(row[1])))
            with connection.cursor() as cursor, cursor.copy(self._query(names, time)) as copy:
                for done, line in enumerate(copy, 1):
                    take(self._row(relation, texts(bytes(line)), snapshot))
                    if done % PROGRESS == 0:
                        progress(PROGRESS)
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
        """Return the mapped columns, and how a row's time in seconds is told, if at all."""
        try:
            located = locate(self._mapping, [column.name for column in columns])
        except InvalidEvent as missing:
            raise PostgresRefused(f"table {self._table}: {missing.what}", missing.fix) from None
        times: list[sql.Composable] = [sql.SQL("pg_xact_commit_timestamp(xmin)")] if committed else []
        occurred_at = located.columns.get("occurred_at")
        if occurred_at is not None and columns[occurred_at].type_name.startswith("timestamp"):
            times.append(sql.Identifier(columns[occurred_at].name))
        # The earlier of both: after an UPDATE only the row itself still tells that it is old.
        time = sql.SQL("extract(epoch from least({}))").format(sql.SQL(", ").join(times)) if times else None
        if self._since_ms is not None and time is None:
            msg = f"table {self._table} does not tell when a row was written, so --since cannot choose among its rows"
            raise ConfigurationError(msg, "map outbox.columns.occurred_at, set track_commit_timestamp = on, or verify all")
        return [columns[i] for i in dict.fromkeys(located.columns.values())], time

    def _query(self, columns: Sequence[TableColumn], time: sql.Composable | None) -> sql.Composed:
        moment = time or sql.SQL("NULL")
        listed = sql.SQL(", ").join(sql.Identifier(column.name) for column in columns)
        query = sql.SQL("SELECT {}, xmin, {} FROM {}").format(listed, moment, self._table.identifier)
        wanted: list[sql.Composable] = [self._table.part.condition] if self._table.part else []
        if self._since_ms is not None:
            wanted.append(sql.SQL("{} >= {}").format(moment, sql.Literal((self._since_ms - SINCE_MARGIN_MS) / 1000)))
        if wanted:
            query += sql.SQL(" WHERE {}").format(sql.SQL(" AND ").join(wanted))
        return sql.SQL("COPY ({}) TO STDOUT").format(query)

    def _row(self, relation: Relation, values: tuple[bytes | None, ...], snapshot: Snapshot) -> Row:
        """Return a row as the judge compares it; behind the mapped columns stand its xmin and its time."""
        row = (_BEGIN, relation, 0, values)
        event, kind, payload = self._told(row)
        time = values[-1]
        early = self._since_ms is not None and time is not None and milliseconds(time) < self._since_ms
        payloads: tuple[bytes, ...]
        try:
            topic, key, value, _, _, partition = self._router.route(row)
        except InvalidEvent:
            topic, key, partition, payloads = "", self._router.values(row).get("aggregateid"), -1, ()
        else:
            payloads = (digest(value),)
            snapshot.topics.add(topic)
        if self._versions and payload is not None:
            payloads += tuple(self._others(self._router.values(row), payload))
        told, by_hash = (key, None) if key is None or len(key) <= SHORT else (short(key), self.hash_key(key))
        return Row(
            (event or b"")[:NAME_LIMIT],
            told,
            None if kind is None else kind[:NAME_LIMIT],
            full_xid(int(values[-2] or 0), snapshot.xmax),
            payloads,
            digest(payload),
            "early" if early else "missing",
            (topic, partition, by_hash, time),
        )

    def _teller(self, relation: Relation) -> Callable[[LogRow], tuple[bytes | None, ...]]:
        """Return what tells a row's id, type and payload: where all are columns of plain text, without making a dict for each."""
        located = locate(self._mapping, [column.name for column in relation.columns])
        read = itemgetter(*TOLD)
        if located.paths or relation.columns[located.columns["payload"]].type_oid == BYTEA:
            return lambda row: read(defaultdict(lambda: None, self._router.values(row)))
        pick = itemgetter(*(located.columns[key] for key in TOLD))
        return lambda row: pick(row[3])

    def _others(self, mapped: dict[str, bytes | None], payload: bytes) -> Iterator[bytes]:
        """Yield what a row that names no version became under the versions that were newest before."""
        if mapped.get("schema_version") is not None:
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


HashKey = Callable[[bytes], int]

MeantFor = tuple[str, int, int | None, bytes | None]
"""The topic of a row (empty: the dead letters'), its partition (-1: by key), its key's hash where the key is long, its time."""

_BEGIN = Begin(Lsn(0), 0, 0)


def texts(line: bytes) -> tuple[bytes | None, ...]:
    """Return the columns of a row of COPY's text format (PostgreSQL manual, "COPY": File Formats)."""
    values: list[bytes | None] = line[:-1].split(b"\t")  # type: ignore[assignment]  # NULLs come to it
    if nulls := values.count(NULL):
        values = [None if value == NULL else value for value in values]
    if line.count(b"\\") > nulls:
        values = [_plain(value) if value and b"\\" in value else value for value in values]
    return tuple(values)


def _plain(value: bytes) -> bytes:
    """Take a value's escapes away: an escaped backslash first, so that what follows it is not taken for an escape."""
    parts = value.split(b"\\\\")
    for i, part in enumerate(parts):
        if b"\\" in part:
            for escaped, meant in ESCAPES.items():
                part = part.replace(escaped, meant)  # noqa: PLW2901 - each escape is gone before the next
            parts[i] = part
    return b"\\".join(parts)


NULL = b"\\N"
"""How COPY writes NULL; the same text in a value has its backslash escaped."""

ESCAPES = {b"\\n": b"\n", b"\\t": b"\t", b"\\r": b"\r", b"\\b": b"\b", b"\\f": b"\f", b"\\v": b"\v"}
"""What COPY writes for characters that would end a value or a line."""


def milliseconds(seconds: bytes) -> int:
    """Read what extract(epoch ..) gives; an infinite time is beyond all others."""
    moment = Decimal(seconds.decode()) * 1000
    return floor(moment) if moment.is_finite() else FOR_EVER_MS if moment > 0 else -FOR_EVER_MS


def murmur2(data: bytes) -> int:
    """Hash a key as org.apache.kafka.common.utils.Utils.murmur2 does."""
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
