"""Keep the rows of a partitioned outbox where they are: a trigger that refuses an UPDATE which moves one.

To PostgreSQL such an UPDATE is a DELETE in one partition and an INSERT into another, so the log holds the event twice, with
one id, and the pipeline publishes inserts. The trigger asks the partition's own constraint (pg_get_partition_constraintdef)
whether the changed row still belongs there, so it refuses exactly the moves, whatever the key is made of and however deep
the partitions are nested.

It is an ordinary trigger: rows that logical replication applies (session_replication_role = replica) do not meet it.
"""

from __future__ import annotations

from psycopg import sql

from cdc.postgres.slot import Table

NAME = "cdc_rows_stay"
"""The trigger, and its function in the table's schema; one serves every pipeline that reads the table."""

STATE = """
SELECT c.relkind = 'p', EXISTS (SELECT FROM pg_catalog.pg_trigger t WHERE t.tgrelid = c.oid AND t.tgname = %s AND t.tgenabled <> 'D')
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s"""
"""Whether the table is partitioned, and whether its rows stay where they are; parameters NAME, schema and table."""

_BODY = """
DECLARE
    stays boolean;
BEGIN
    EXECUTE pg_catalog.format('SELECT %s FROM (SELECT ($1).*) changed', pg_catalog.pg_get_partition_constraintdef(TG_RELID))
        INTO stays USING NEW;
    IF NOT stays THEN
        RAISE EXCEPTION 'an UPDATE may not move a row of the outbox to another partition: the event would be published twice'
            USING ERRCODE = 'restrict_violation', HINT = 'Insert a new event instead.';
    END IF;
    RETURN NEW;
END """


def keep_rows_sql(table: Table) -> list[str]:
    """Return the statements that make function and trigger for a partitioned table."""
    function = sql.Identifier(table.schema, NAME)
    made = sql.SQL("CREATE OR REPLACE FUNCTION {}() RETURNS trigger LANGUAGE plpgsql AS {}")
    trigger = sql.SQL("CREATE TRIGGER {} BEFORE UPDATE ON {} FOR EACH ROW EXECUTE FUNCTION {}()")
    return [
        made.format(function, sql.SQL(f"$stay${_BODY}$stay$")).as_string(),
        trigger.format(sql.Identifier(NAME), table.identifier, function).as_string(),
    ]


def keep_rows_if_partitioned_sql(table: Table) -> str:
    """Return one statement that does so only if the table is partitioned: for a script that is written without a look at it."""
    body = "\n".join(f"        EXECUTE {_dollar_quoted('do', each)};" for each in keep_rows_sql(table))
    partitioned = f"SELECT relkind = 'p' FROM pg_catalog.pg_class WHERE oid = {sql.quote(str(table))}::regclass"  # noqa: S608 - quoted
    return "DO " + _dollar_quoted("if", f" BEGIN\n    IF ({partitioned}) THEN\n{body}\n    END IF;\nEND ")


def _dollar_quoted(tag: str, text: str) -> str:
    """Quote a text so that people can read it, by a tag that it does not hold: the table's name may be anything."""
    while f"${tag}$" in text:
        tag += "_"
    return f"${tag}${text}${tag}$"
