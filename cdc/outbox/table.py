"""The outbox table: its DDL, and whether a live table fits the mapping."""

from __future__ import annotations

from collections.abc import Sequence

from cdc.errors import ConfigurationError, InvalidEvent, PostgresRefused
from cdc.outbox.mapping import REQUIRED, OutboxMapping, locate, setting_of
from cdc.postgres.catalog import TableColumn
from cdc.postgres.slot import Table


def create_sql(table: Table, mapping: OutboxMapping) -> str:
    """Return the statement that makes an outbox with Debezium's columns; raises ConfigurationError for another mapping."""
    if mapping.columns or not set(mapping.placed.values()) <= set(REQUIRED):
        msg = "outbox.columns or topics.placement has other names than the table that --create-table makes"
        raise ConfigurationError(msg, "create the table yourself, or drop the mapping")
    return f"""CREATE TABLE {table} (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    aggregatetype text NOT NULL,
    aggregateid text NOT NULL,
    type text NOT NULL,
    payload jsonb,
    schema_version integer,
    headers jsonb,
    occurred_at timestamptz NOT NULL DEFAULT clock_timestamp()
)"""


def check_columns(table: Table, columns: Sequence[TableColumn] | None, mapping: OutboxMapping) -> None:
    """Refuse a live table that lacks a mapped column, or has it generated; raises PostgresRefused.

    A generated column is computed when it is read and does not stand in the log (PostgreSQL manual, "Generated Columns").
    """
    if columns is None:
        msg = f"table {table} does not exist, or the role may not see it"
        raise PostgresRefused(msg, "correct outbox.table, or create it with `cdc init --create-table`")
    try:
        located = locate(mapping, [column.name for column in columns])
    except InvalidEvent as missing:
        raise PostgresRefused(f"table {table}: {missing.what}", missing.fix) from None
    for key, i in located.columns.items():
        if columns[i].generated:
            msg = f"table {table}: column {columns[i].name!r} ({setting_of(key)}) is generated and never reaches the log"
            raise PostgresRefused(msg, "map an ordinary column")
