"""What the live catalog says of the server, our slot, our publication and the outbox table.

One ordinary connection, opened when it is needed and kept. Never used to read rows of the log: those are described by the
stream itself.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import psycopg

from cdc.errors import Retriable
from cdc.position import Fingerprint, Lsn, Member
from cdc.postgres.connection import connect, remedies
from cdc.postgres.server import Server, SlotState

Answer = TypeVar("Answer")


class Catalog(Protocol):
    """What the stream needs of the catalog; the simulation has another one."""

    def slot(self, name: str) -> SlotState | None:
        """Return the slot, or None when there is none of that name."""

    def server(
        self,
        slot: str,
        publication: str,
        system_id: str,
        history: tuple[tuple[int, Lsn], ...],
        our_pid: int,
    ) -> Server:
        """Return what the server says now, beside the identity that the replication connection gave."""

    def close(self) -> None:
        """Close the connection; the next question opens a new one."""


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of the live table; `generated` columns never reach the log. `type_oid` of a domain is what it stands on."""

    name: str
    type_name: str
    not_null: bool
    generated: bool
    type_oid: int = 0


@dataclass(frozen=True, slots=True)
class Published:
    """A publication: its row, its tables as (schema, name, relkind), its schemas, and what it shows of the table asked for.

    `row` and `shown` are rows of pg_publication and pg_publication_tables by column name, so that one form serves every
    version; `shown` is None where the table is not published under its own name.
    """

    row: Mapping[str, Any]
    tables: Sequence[Sequence[str]]
    schemas: Sequence[str]
    shown: Mapping[str, Any] | None


FINGERPRINT = """
SELECT p.oid::int8, p.xmin::text::int8,
       ARRAY(SELECT ARRAY[r.oid::int8, r.xmin::text::int8, r.prrelid::int8]
             FROM pg_catalog.pg_publication_rel r WHERE r.prpubid = p.oid ORDER BY r.oid),
       {schemas}
FROM pg_catalog.pg_publication p WHERE p.pubname = %s"""
_SCHEMA_ROWS = """ARRAY(SELECT ARRAY[n.oid::int8, n.xmin::text::int8, n.pnnspid::int8]
             FROM pg_catalog.pg_publication_namespace n WHERE n.pnpubid = p.oid ORDER BY n.oid)"""

PUBLISHED = """
SELECT to_jsonb(p),
       ARRAY(SELECT ARRAY[n.nspname::text, c.relname::text, c.relkind::text] FROM pg_catalog.pg_publication_rel r
             JOIN pg_catalog.pg_class c ON c.oid = r.prrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
             WHERE r.prpubid = p.oid ORDER BY r.oid),
       {schemas},
       (SELECT to_jsonb(t) FROM pg_catalog.pg_publication_tables t
        WHERE t.pubname = p.pubname AND t.schemaname = %s AND t.tablename = %s)
FROM pg_catalog.pg_publication p WHERE p.pubname = %s"""
_SCHEMA_NAMES = """ARRAY(SELECT s.nspname::text FROM pg_catalog.pg_publication_namespace n
             JOIN pg_catalog.pg_namespace s ON s.oid = n.pnnspid WHERE n.pnpubid = p.oid ORDER BY n.oid)"""

SCHEMAS_SINCE = 150_000
"""PostgreSQL 15: the first in which a publication can name schemas."""

ANSWER_WITHIN_S = 5.0
"""What is asked of the catalog takes milliseconds. A server that is silent for longer is stopped, or the way to it is cut, and
whoever waits for it can neither answer Kafka nor be asked to stop."""


class Silent(Retriable):
    """The server did not answer in time."""


class LiveCatalog:
    """Catalog of a real server."""

    def __init__(self, dsn: str, application_name: str) -> None:
        self._dsn = dsn
        self._application_name = application_name
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None

    def slot(self, name: str) -> SlotState | None:
        """See Catalog. to_jsonb names the columns, so one query serves every version of the server."""
        rows = self.query("SELECT to_jsonb(s) FROM pg_catalog.pg_replication_slots s WHERE s.slot_name = %s", (name,))
        return _slot(rows[0][0]) if rows else None

    def server(
        self,
        slot: str,
        publication: str,
        system_id: str,
        history: tuple[tuple[int, Lsn], ...],
        our_pid: int,
    ) -> Server:
        """See Catalog. The fingerprint is taken after the LSN that it is said to be proved up to."""
        [(version, in_recovery, flush_lsn)] = self.query(
            "SELECT current_setting('server_version_num')::int, pg_is_in_recovery(), CASE WHEN pg_is_in_recovery()"
            " THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_flush_lsn() END::text"
        )
        state = self.slot(slot)
        flush = Lsn.parse(flush_lsn)
        return Server(
            system_id=system_id,
            version=version,
            in_recovery=in_recovery,
            timeline_history=history,
            flush_lsn=flush,
            slot=state,
            publication=self.publication(publication, flush),
            ours=state is not None and state.active_pid == our_pid,
        )

    def publication(self, name: str, proved_lsn: Lsn) -> Fingerprint | None:
        """Return the publication's fingerprint, or None when there is none of that name."""
        rows = self.query(FINGERPRINT.format(schemas=self._schemas(_SCHEMA_ROWS)), (name,))
        if not rows:
            return None
        oid, xmin, members, schemas = rows[0]
        return Fingerprint(oid, xmin, tuple(Member(*m) for m in members), proved_lsn, tuple(Member(*m) for m in schemas))

    def published(self, publication: str, schema: str, table: str) -> Published | None:
        """Return what the publication says of the table, or None when there is none of that name."""
        rows = self.query(PUBLISHED.format(schemas=self._schemas(_SCHEMA_NAMES)), (schema, table, publication))
        return Published(*rows[0]) if rows else None

    def columns(self, schema: str, table: str) -> list[TableColumn] | None:
        """Return the live table's columns, or None when there is no such table."""
        rows = self.query(
            "SELECT a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attgenerated <> '',"
            " (WITH RECURSIVE base AS (SELECT t.oid, t.typtype, t.typbasetype FROM pg_catalog.pg_type t WHERE t.oid = a.atttypid"
            " UNION ALL SELECT t.oid, t.typtype, t.typbasetype FROM base b JOIN pg_catalog.pg_type t ON t.oid = b.typbasetype"
            " WHERE b.typtype = 'd') SELECT base.oid::int8 FROM base WHERE base.typtype <> 'd')"
            " FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
            " LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped"
            " WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p') ORDER BY a.attnum",
            (schema, table),
        )
        return [TableColumn(*row) for row in rows if row[0] is not None] if rows else None

    def setting(self, name: str) -> str:
        """Return a server setting's value."""
        [(value,)] = self.query("SELECT current_setting(%s)", (name,))
        return str(value)

    def query(self, statement: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Run one statement; a connection that died while it was idle is opened again once, for a server that is not silent."""
        if self._connection is not None:
            try:
                return self._run(statement, parameters)
            except Silent:
                self.close()
                raise
            except Retriable:
                self.close()
        return self._run(statement, parameters)

    def close(self) -> None:
        """See Catalog."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _run(self, statement: str, parameters: Sequence[object]) -> list[tuple[Any, ...]]:
        if self._connection is None:
            self._connection = connect(self._dsn, self._application_name, _Bounded)
        with remedies("looking at the catalog"):
            return self._connection.execute(statement.encode(), parameters).fetchall()

    def _schemas(self, expression: str) -> str:
        if self._connection is None:
            self._connection = connect(self._dsn, self._application_name, _Bounded)
        return expression if self._connection.info.server_version >= SCHEMAS_SINCE else "'{}'::int8[]"


class _Bounded(psycopg.Connection[tuple[Any, ...]]):
    """A connection whose every answer has to come within ANSWER_WITHIN_S."""

    def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as psycopg has it
        return super().wait(_within(gen, time.monotonic() + ANSWER_WITHIN_S), *args, **kwargs)


def _within(gen: Generator[Any, Any, Answer], until: float) -> Generator[Any, Any, Answer]:
    """Pass on what psycopg waits for; it is woken every tenth of a second although there is nothing to read."""
    try:
        wants = next(gen)
        while True:
            ready = yield wants
            if not ready and time.monotonic() >= until:
                gen.close()
                msg = f"PostgreSQL gave no answer within {ANSWER_WITHIN_S:g} s, looking at the catalog"
                raise Silent(msg)
            wants = gen.send(ready)
    except StopIteration as done:
        answer: Answer = done.value
        return answer


def _slot(row: dict[str, Any]) -> SlotState:
    return SlotState(
        name=row["slot_name"],
        plugin=row["plugin"] or "",
        database=row["database"] or "",
        active_pid=row["active_pid"],
        wal_status=row["wal_status"],
        invalidation_reason=row.get("invalidation_reason"),
        restart_lsn=_lsn(row["restart_lsn"]),
        confirmed_flush_lsn=_lsn(row["confirmed_flush_lsn"]),
        safe_wal_size=row["safe_wal_size"],
        failover=row.get("failover"),
        synced=row.get("synced"),
    )


def _lsn(text: str | None) -> Lsn | None:
    return None if text is None else Lsn.parse(text)
