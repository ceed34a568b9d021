"""Make, and unmake, the slot, the publication and the role; and the same as SQL for somebody else to run.

The publication comes first, always: a slot decodes with the catalog of the log's own time, and a slot that is older than
its publication meets rows for which there is no publication yet. It holds the outbox table alone and publishes inserts
alone, so that no UPDATE or DELETE of the application can be refused for want of a replica identity.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import pq, sql
from psycopg.conninfo import conninfo_to_dict

from cdc.errors import PostgresRefused
from cdc.position import Lsn
from cdc.postgres.connection import connect, connect_replication, remedies, result_error

SLOT_TIMEOUT_S = 3600.0
"""wal_sender_timeout while a slot is made: it waits for every transaction that is open in the cluster."""

FAILOVER_SINCE = 170_000
"""PostgreSQL 17: the first whose standbys can keep a copy of a slot, so that it survives a promotion."""


PARTS_SINCE = 150_000
"""PostgreSQL 15: the first whose publications can choose rows."""


@dataclass(frozen=True, slots=True)
class Part:
    """A shard's rows: those whose key, by its hash, belongs to `number` of `count`.

    A row filter may call immutable built-in functions only, and no cast goes through text. hash_record takes a value of any type
    that can be hashed, NULL as well, by the functions that partitions by hash stand on: they stay what they are.
    """

    column: str
    number: int
    count: int

    @property
    def condition(self) -> sql.Composed:
        """The rows, for WHERE."""
        form = sql.SQL("((pg_catalog.hash_record(ROW({})) & 2147483647) % {}) = {}")
        return form.format(sql.Identifier(self.column), self.count, self.number)

    def same(self, row_filter: str) -> bool:
        """Whether a publication's row filter, as the server prints it, is ours."""
        return _bare(row_filter) == _bare(self.condition.as_string())


def _bare(expression: str) -> str:
    return re.sub(r'[\s()"]|pg_catalog\.', "", expression)


@dataclass(frozen=True, slots=True)
class Table:
    """The outbox table, by its literal names, and which part of it a shard publishes."""

    schema: str
    name: str
    part: Part | None = None

    @property
    def identifier(self) -> sql.Identifier:
        """The name, quoted."""
        return sql.Identifier(self.schema, self.name)

    def __str__(self) -> str:
        return self.identifier.as_string()


def publication_sql(publication: str, table: Table) -> str:
    """Return the statement that makes the publication."""
    rows = sql.SQL(" WHERE ({})").format(table.part.condition) if table.part else sql.SQL("")
    return (
        sql.SQL("CREATE PUBLICATION {} FOR TABLE {}{} WITH (publish = 'insert', publish_via_partition_root = true)")
        .format(sql.Identifier(publication), table.identifier, rows)
        .as_string()
    )


def role_sql(role: str, database: str, table: Table, deletes_by: str | None = None) -> list[str]:
    """Return the statements that give a role what the pipeline needs, and no more (SELECT serves `cdc verify`).

    `deletes_by` is the id's column where old rows are deleted: to lock a row takes the right to UPDATE one column of it.
    """
    name = sql.Identifier(role)
    statements = [
        sql.SQL("CREATE ROLE {} LOGIN REPLICATION").format(name),
        sql.SQL("GRANT CONNECT ON DATABASE {} TO {}").format(sql.Identifier(database), name),
        sql.SQL("GRANT USAGE ON SCHEMA {} TO {}").format(sql.Identifier(table.schema), name),
        sql.SQL("GRANT SELECT ON {} TO {}").format(table.identifier, name),
    ]
    if deletes_by is not None:
        rights = sql.SQL("GRANT DELETE, UPDATE ({}) ON {} TO {}")
        statements.append(rights.format(sql.Identifier(deletes_by), table.identifier, name))
    return [statement.as_string() for statement in statements]


class Administration:
    """What init does in the database: over a connection of a role that may, but the slot as the pipeline's own role."""

    def __init__(self, dsn: str, replication_dsn: str, application_name: str) -> None:
        self._replication_dsn = replication_dsn
        self._application_name = application_name
        self._connection = connect(dsn, application_name)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def execute(self, statement: str, parameters: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        """Run one statement; return its rows, if it has any."""
        with remedies("preparing the outbox"):
            cursor = self._connection.execute(statement.encode(), parameters or None)
            return cursor.fetchall() if cursor.description else []

    def ensure_role(self, dsn: str, table: Table, deletes_by: str | None = None) -> bool:
        """Make the role of the pipeline's connection string, if it is missing and somebody else is connected here.

        Return whether it was made. A role that exists must have REPLICATION.
        """
        role = str(conninfo_to_dict(dsn).get("user") or "")
        [(ourselves, database)] = self.execute("SELECT current_user, current_database()")
        if not role or role == ourselves:
            role = ourselves
        found = self.execute("SELECT rolreplication OR rolsuper FROM pg_catalog.pg_roles WHERE rolname = %s", (role,))
        if found and not found[0][0]:
            msg = f"role {role!r} may not replicate"
            raise PostgresRefused(msg, f"ALTER ROLE {sql.Identifier(role).as_string()} REPLICATION")
        statements = role_sql(role, database, table, deletes_by)
        if not found:
            password = conninfo_to_dict(dsn).get("password")
            if password:
                statements[0] += " PASSWORD " + sql.quote(str(password))
        elif role != ourselves:
            statements = statements[1:]
        else:
            return False
        for statement in statements:
            self.execute(statement)
        return not found

    def ensure_publication(self, publication: str, table: Table) -> bool:
        """Make the publication if it is missing; return whether it was made. One that exists is judged by check_outbox."""
        if self.execute("SELECT 1 FROM pg_catalog.pg_publication WHERE pubname = %s", (publication,)):
            return False
        self.execute(publication_sql(publication, table))
        return True

    def drop_slot(self, slot: str) -> None:
        """Drop the slot."""
        self.execute("SELECT pg_drop_replication_slot(%s)", (slot,))

    def copy_slot(self, slot: str, copy: str) -> Lsn:
        """Copy a slot, which may be in use; return the place of the copy, which is its own from here on."""
        [(lsn,)] = self.execute("SELECT lsn::text FROM pg_copy_logical_replication_slot(%s, %s)", (slot, copy))
        return Lsn.parse(lsn)

    def set_failover(self, slot: str) -> None:
        """Let standbys keep a copy of the slot (PostgreSQL 17): a copied slot has lost that."""
        with connect_replication(self._replication_dsn, self._application_name, SLOT_TIMEOUT_S) as replication:
            command = f"ALTER_REPLICATION_SLOT {sql.Identifier(slot).as_string()} (FAILOVER true)"
            result = replication.pgconn.exec_(command.encode())
            if result.status not in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK):
                raise result_error(result, f"letting standbys keep slot {slot!r}")

    @contextmanager
    def new_slot(self, slot: str) -> Iterator[tuple[Lsn, str]]:
        """Make the slot; give where it begins, and the name of a snapshot that shows what it will never stream.

        The snapshot can be taken up as long as the block lasts: it lives while the replication connection is idle.
        """
        replication: psycopg.Connection[Any] = connect_replication(self._replication_dsn, self._application_name, SLOT_TIMEOUT_S)
        try:
            options = "(SNAPSHOT 'export', FAILOVER true)" if replication.info.server_version >= FAILOVER_SINCE else "EXPORT_SNAPSHOT"
            command = f"CREATE_REPLICATION_SLOT {sql.Identifier(slot).as_string()} LOGICAL pgoutput {options}"
            result = replication.pgconn.exec_(command.encode())
            if result.status != pq.ExecStatus.TUPLES_OK:
                raise result_error(result, f"creating slot {slot!r}")
            lsn, snapshot = result.get_value(0, 1) or b"", result.get_value(0, 2) or b""
            yield Lsn.parse(lsn.decode()), snapshot.decode()
        finally:
            replication.close()
