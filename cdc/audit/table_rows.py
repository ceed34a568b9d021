"""Rows of the outbox table as the log would hand them over, for the commands that publish from the table.

Strategy: COPY writes every column by its type's output function, as pgoutput does, and streams, so neither side holds the
table; PostgreSQL sorts. A row comes as the router takes it: its Begin stands for the transaction that wrote it, at a place that
the caller gives, because a table does not tell where in the log its rows were committed.

The order is as near to commit order as a table can tell. With track_commit_timestamp it is commit time. Without it, it is the
order in which transactions got their number, which is commit order for all that waited for one another's locks. Within a
transaction it is the order of commands (cmin), and within a command that of the rows in the table (ctid).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from cdc.audit.outbox_rows import end_of_log, full_xid
from cdc.errors import ConfigurationError, InvalidEvent, PostgresRefused
from cdc.outbox.mapping import OutboxMapping, locate
from cdc.outbox.table import check_columns
from cdc.position import Lsn
from cdc.postgres.catalog import LiveCatalog, TableColumn
from cdc.postgres.connection import REFUSALS, connect, remedies
from cdc.postgres.pgoutput import Begin, Column, Relation
from cdc.postgres.slot import Table
from cdc.postgres.transaction import Row


class TableRow(NamedTuple):
    """A row, the number of the transaction that wrote it, and when it was written in microseconds, as far as that can be told.

    `committed_us` is the commit time (None without track_commit_timestamp), `occurred_us` what the row itself says.
    """

    row: Row
    xid: int
    committed_us: int | None
    occurred_us: int | None

    @property
    def time_us(self) -> int | None:
        """When it was written, by the better of both."""
        return self.occurred_us if self.committed_us is None else self.committed_us


@dataclass(frozen=True, slots=True)
class View:
    """What a snapshot shows: itself as text (pg_current_snapshot), the end of the log by which its rows are committed, its time.

    `opened` ends what is still being read when the look ends: psycopg would wait for it for ever.
    """

    connection: psycopg.Connection[Any]
    opened: ExitStack
    snapshot: str
    lsn: Lsn
    now_us: int


@dataclass(frozen=True, slots=True)
class TableRows:
    """The table, the columns that are read, and how a row's times are told (None: not at all)."""

    table: Table
    relation: Relation
    by_name: dict[str, TableColumn]
    committed: sql.Composable | None
    occurred: sql.Composable | None

    @property
    def timed(self) -> sql.Composable | None:
        """When a row was written, in microseconds."""
        return self.committed or self.occurred

    def need_time(self, option: str) -> None:
        """Refuse an option that chooses rows by time when the table does not tell it."""
        if self.timed is None:
            msg = f"table {self.table} does not tell when a row was written, so {option} cannot choose among its rows"
            raise ConfigurationError(msg, "map outbox.columns.occurred_at to a timestamp, or set track_commit_timestamp = on")

    def column(self, key: str) -> sql.Identifier:
        """Return the column of a mapped key; raises ConfigurationError when it is a path or missing."""
        if key not in self.by_name:
            msg = f"table {self.table} has no column of its own for {key}"
            raise ConfigurationError(msg, "choose with --where")
        return sql.Identifier(self.by_name[key].name)

    def read(self, view: View, place: Lsn, where: sql.Composable | None = None) -> Iterator[TableRow]:
        """Yield the rows that fulfil `where`; their transactions stand at `place`, and where no commit time is known, at now."""
        return view.opened.enter_context(closing(self._read(view, place, where)))

    def _read(self, view: View, place: Lsn, where: sql.Composable | None) -> Generator[TableRow, None, None]:
        xmax = int(view.snapshot.split(":")[1])
        relation, begin = self.relation, Begin(place, view.now_us, -1)
        with conditions(), view.connection.cursor() as cursor, cursor.copy(self._query(where)) as copy:
            for xmin, committed, occurred, *values in copy.rows():
                committed_us, occurred_us = _number(committed), _number(occurred)
                xid = full_xid(int(xmin), xmax)
                if begin.xid != xid:
                    begin = Begin(place, view.now_us if committed_us is None else committed_us, xid)
                row = (begin, relation, 0, tuple(None if value is None else value.encode() for value in values))
                yield TableRow(row, xid, committed_us, occurred_us)

    def _query(self, where: sql.Composable | None) -> sql.Composed:
        listed = [sql.Identifier(column.name) for column in self.relation.columns]
        query = sql.SQL("SELECT xmin, {}, {}, {} FROM {}").format(
            self.committed or sql.NULL, self.occurred or sql.NULL, sql.SQL(", ").join(listed), self.table.identifier
        )
        wanted = [each for each in (self.table.part and self.table.part.condition, where) if each is not None]
        if wanted:
            query += sql.SQL(" WHERE ({})").format(sql.SQL(") AND (").join(wanted))
        order = [sql.SQL("pg_xact_commit_timestamp(xmin) NULLS FIRST")] if self.committed is not None else []
        order += [sql.SQL("age(xmin) DESC"), sql.SQL("cmin::text::int8"), sql.SQL("tableoid"), sql.SQL("ctid")]
        return sql.SQL("COPY ({} ORDER BY {}) TO STDOUT").format(query, sql.SQL(", ").join(order))


def table_rows(catalog: LiveCatalog, table: Table, mapping: OutboxMapping) -> TableRows:
    """Look at the live table; raises PostgresRefused when it does not fit the mapping."""
    columns = catalog.columns(table.schema, table.name)
    check_columns(table, columns, mapping)
    assert columns is not None, "check_columns refuses a missing table"
    try:
        located = locate(mapping, [column.name for column in columns])
    except InvalidEvent as missing:
        raise PostgresRefused(f"table {table}: {missing.what}", missing.fix) from None
    by_name = {key: columns[i] for key, i in located.columns.items()}
    chosen = [columns[i] for i in dict.fromkeys(located.columns.values())]
    relation = Relation(0, table.schema, table.name, "d", tuple(Column(c.name, c.type_oid, -1, key=False) for c in chosen))
    occurred_at = by_name.get("occurred_at")
    occurred = committed = None
    if occurred_at is not None and occurred_at.type_name.startswith("timestamp"):
        occurred = _microseconds(sql.Identifier(occurred_at.name))
    if catalog.setting("track_commit_timestamp") == "on":
        committed = _microseconds(sql.SQL("pg_xact_commit_timestamp(xmin)"))
    return TableRows(table, relation, by_name, committed, occurred)


@contextmanager
def looking(dsn: str, application_name: str, exported: str | None = None) -> Iterator[View]:
    """Look at one snapshot, by default a new one; it ends with the block."""
    with connect(dsn, application_name) as connection, remedies("reading the outbox"), connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        if exported is not None:
            connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(exported))
        row = connection.execute(
            "SELECT pg_current_snapshot()::text, pg_current_wal_insert_lsn()::text, floor(extract(epoch from now()) * 1000000)::int8"
        ).fetchone()
        assert row is not None, "a SELECT without FROM returns one row"
        with ExitStack() as opened:
            yield View(connection, opened, row[0], end_of_log(Lsn.parse(row[1])), row[2])


@contextmanager
def conditions() -> Iterator[None]:
    """Turn the refusal of a condition that somebody typed into a line about the condition."""
    try:
        yield
    except psycopg.Error as error:
        if (error.sqlstate or "")[:2] in ("22", "42") and error.sqlstate not in REFUSALS:  # data, syntax, names and types
            msg = f"--where cannot be read: {error.diag.message_primary}"
            raise ConfigurationError(msg, "write a condition on the table's columns, as after WHERE in SQL") from None
        raise


def condition(text: str) -> sql.Composable:
    """Return a condition that somebody typed; in parentheses, so that it stays one."""
    return sql.SQL("({})").format(sql.SQL(text))  # an operator's own words


def _microseconds(moment: sql.Composable) -> sql.Composable:
    return sql.SQL("floor(extract(epoch from {}) * 1000000)::int8").format(moment)


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)
