"""Rows of the table as commands read them: in the order that the table tells, with the types and times that it has."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import sql

from cdc.audit.table_rows import TableRow, condition, looking, table_rows
from cdc.errors import ConfigurationError
from cdc.outbox.mapping import OutboxMapping
from cdc.position import Lsn
from cdc.postgres.catalog import LiveCatalog
from cdc.postgres.slot import Table

pytestmark = pytest.mark.servers

PLACE = Lsn(0x1000 - 1)


def read(database: str, where: str | None = None, mapping: OutboxMapping | None = None) -> list[TableRow]:
    catalog = LiveCatalog(database, "test")
    try:
        rows = table_rows(catalog, Table("public", "outbox"), mapping or OutboxMapping())
        with looking(database, "test") as view:
            return list(rows.read(view, PLACE, None if where is None else condition(where)))
    finally:
        catalog.close()


def ids(rows: list[TableRow]) -> list[str]:
    return [(row.row[3][0] or b"").decode() for row in rows]


def make(connection: psycopg.Connection[tuple[object, ...]], columns: str, rest: str = "") -> None:
    connection.execute(sql.SQL("CREATE TABLE outbox ({}) {}").format(sql.SQL(columns), sql.SQL(rest)))


def insert(connection: psycopg.Connection[tuple[object, ...]], *numbers: int) -> None:
    values = sql.SQL(", ").join(sql.SQL("({}, 'thing', 'k', 'Thing', '{{}}')").format(sql.Literal(str(n))) for n in numbers)
    connection.execute(sql.SQL("INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) VALUES {}").format(values))


COLUMNS = "id text, aggregatetype text, aggregateid text, type text, payload jsonb"


def test_transactions_by_number_and_commands_in_order_whatever_room_they_found(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as one, psycopg.connect(database, autocommit=True) as two:
        make(one, COLUMNS)
        insert(one, *range(-400, 0))
        one.execute("DELETE FROM outbox")
        one.execute("VACUUM outbox")  # the next rows fill what is free in the first pages
        with one.transaction():
            insert(one, 5, 3)
            with two.transaction():
                insert(two, 9)
            insert(one, 4)
        insert(two, 1, 2)
        rows = read(database)
        assert ids(rows) == ["5", "3", "4", "9", "1", "2"]
        assert [row.row[0] is rows[0].row[0] for row in rows] == [True] * 3 + [False] * 3, "a transaction has one Begin"
        assert {row.row[0].final_lsn for row in rows} == {PLACE}
        assert len({row.xid for row in rows}) == 3
        assert ids(read(database, "id IN ('9', '2') OR false")) == ["9", "2"]


def test_a_partitioned_outbox(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        make(connection, COLUMNS, "PARTITION BY HASH (id)")
        for remainder in range(3):
            connection.execute(
                sql.SQL("CREATE TABLE {} PARTITION OF outbox FOR VALUES WITH (MODULUS 3, REMAINDER {})").format(
                    sql.Identifier(f"part{remainder}"), sql.Literal(remainder)
                )
            )
        for number in range(20):
            insert(connection, number)
        assert ids(read(database)) == [str(number) for number in range(20)]


def test_domains_are_what_they_stand_on_and_times_are_told(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE DOMAIN bytes AS bytea")
        connection.execute("CREATE DOMAIN sealed AS bytes CHECK (length(VALUE) > 0)")
        make(connection, "id text, aggregatetype text, aggregateid text, type text, payload sealed, occurred_at timestamptz")
        connection.execute("INSERT INTO outbox VALUES ('1', 'thing', 'k', 'Thing', '\\x00ff', '2026-01-31T12:00:00.000001Z')")
        connection.execute("INSERT INTO outbox VALUES ('2', 'thing', 'k', 'Thing', '\\x01', NULL)")
        first, second = read(database)
        assert [column.type_oid for column in first.row[1].columns] == [25, 25, 25, 25, 17, 1184]
        assert first.row[3][4] == b"\\x00ff"
        assert (first.time_us, second.time_us, first.committed_us) == (1_769_860_800_000_001, None, None)


def test_a_condition_stays_one_and_a_wrong_one_is_told(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        make(connection, COLUMNS)
        insert(connection, 1, 2)
        for where in ("id =", "nothing = 1", "1 / 0 = 1", "id = 1", "id = '1'; DROP TABLE outbox"):
            with pytest.raises(ConfigurationError, match="--where cannot be read"):
                read(database, where)


def test_whoever_stops_reading_half_way_leaves_nothing_behind(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        make(connection, COLUMNS)
        insert(connection, *range(5_000))
    catalog = LiveCatalog(database, "test")
    rows = table_rows(catalog, Table("public", "outbox"), OutboxMapping())
    catalog.close()
    with looking(database, "test") as view:
        assert next(rows.read(view, PLACE)).xid > 0
