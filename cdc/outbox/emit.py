"""The SQL function that writes an event: the contract of `append` for every language that can call a function.

Strategy: the function is text that follows from the settings alone, so that `cdc init --sql` can print it without a look at the
table. It writes only what it is given, as literals that PostgreSQL reads as whatever types the columns have; columns that are
not named keep their defaults. What its first line says tells whose it is: one that another pipeline made is left alone.

It has the rights of its caller (SECURITY INVOKER): whoever may not INSERT into the outbox may not by this function. So EXECUTE
is PUBLIC's, as PostgreSQL gives it, and of the schema that we make PUBLIC gets USAGE and no more.

It cannot check the schema, which PostgreSQL does not have; everything else that the pipeline would refuse it refuses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from psycopg import sql

from cdc.outbox.mapping import KEYS, NAME_LIMIT, RESERVED_HEADERS, OutboxMapping, found
from cdc.outbox.message import relation_of
from cdc.postgres.slot import Table

ARGUMENTS: Final = {
    "aggregatetype": "text",
    "headers": "jsonb",
    "id": "text",
    "schema_version": "integer",
    "occurred_at": "timestamptz",
    "topic": "text",
    "partition": "integer",
    "traceparent": "text",
}
"""What may be left out, after type, key and payload; `correlation_id` and `message` follow."""

FUNCTIONS = """
SELECT p.oid::regprocedure::text, p.prosrc, p.prosecdef,
    pg_catalog.pg_get_function_arguments(p.oid), pg_catalog.pg_get_function_result(p.oid)
FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = %s AND p.proname = %s ORDER BY 1"""
"""Functions of one name; parameters schema and name."""

SCHEMA = "SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = %s)"
"""Whether a schema is there; parameter its name."""


@dataclass(frozen=True, slots=True)
class Emit:
    """The function as a pipeline wants it."""

    schema: str
    name: str
    pipeline: str
    table: Table
    mapping: OutboxMapping

    def __str__(self) -> str:
        return sql.Identifier(self.schema, self.name).as_string()

    @property
    def head(self) -> str:
        """The first line of the body: whose it is."""
        return f"-- Writes events of pipeline {self.pipeline}."

    def body(self) -> str:
        """Return the function's text between the quotes."""
        return f"\n{self.head}\nDECLARE{_DECLARE}\nBEGIN\n{''.join(self._lines())}END "

    def statements(self, *, make_schema: bool = True) -> list[str]:
        """Return what makes it; running them again changes nothing."""
        schema = sql.Identifier(self.schema)
        first = [
            sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(schema).as_string(),
            sql.SQL("GRANT USAGE ON SCHEMA {} TO PUBLIC").format(schema).as_string(),
        ]
        tag = "emit"
        while f"${tag}$" in self.body():
            tag += "_"
        made = f"CREATE OR REPLACE FUNCTION {self}({self._arguments()}) RETURNS text LANGUAGE plpgsql SECURITY INVOKER"
        made += f" AS ${tag}${self.body()}${tag}$"
        return [*(first if make_schema else []), made]

    def judge(self, functions: Sequence[Sequence[Any]]) -> tuple[str, list[str]]:
        """Judge what FUNCTIONS found: "same", "missing", "differs" or "foreign", and those of ours that are to be replaced."""
        ours = [row for row in functions if self.head in str(row[1]).splitlines()]
        if len(ours) < len(functions):
            return "foreign", []
        if not ours:
            return "missing", []
        wanted = (self.body(), False, self._shown_arguments(), "text")
        same = len(ours) == 1 and tuple(ours[0][1:]) == wanted
        return ("same", []) if same else ("differs", [str(row[0]) for row in ours])

    def _arguments(self) -> str:
        payload = "jsonb" if self.mapping.payload == "json" else "bytea"
        given = [f"{name} {kind} DEFAULT NULL" for name, kind in ARGUMENTS.items()]
        return ", ".join(
            ["type text", "key text", f"payload {payload}", *given, "correlation_id text DEFAULT NULL", "message boolean DEFAULT false"]
        )

    def _shown_arguments(self) -> str:
        """Return them as PostgreSQL prints them."""
        shown = self._arguments().replace("timestamptz", "timestamp with time zone")
        for kind in ("text", "jsonb", "integer", "timestamp with time zone"):
            shown = shown.replace(f"{kind} DEFAULT NULL", f"{kind} DEFAULT NULL::{kind}")
        return shown

    def _lines(self) -> list[str]:
        located = found(self.mapping, [column.name for column in relation_of(self.mapping).columns])
        own_trace = "traceparent" in self.mapping.columns and "traceparent" in located.columns
        lines = [_checks(RESERVED_HEADERS[self.mapping.headers].pattern), _CONTEXT, "" if own_trace else _TRACE_HEADER]
        if not self.mapping.tombstones:
            lines.append(_refuse("payload IS NULL", "the payload is NULL and outbox.tombstones is off"))
        if "aggregatetype" in self.mapping.required():
            lines.append(_refuse("aggregatetype IS NULL", "the event has no aggregatetype, and its topic is named after it"))
        for key, path in located.paths.items():
            inside = sql.quote("{" + ",".join('"' + part.replace('"', '\\"') + '"' for part in path) + "}")
            if key == "headers":
                lines.append(_refuse("headers IS NOT NULL", "headers stand in the payload, by outbox.columns"))
            elif self.mapping.payload == "json":
                lines.append(_refuse(f"payload #>> {inside} IS DISTINCT FROM {_VALUES[key]}", f"the payload holds another {key}"))
        columns = {key: self.mapping.column(key) for key in KEYS if key in located.columns}
        return [*lines, self._message(columns), *self._row(columns)]

    def _message(self, columns: dict[str, str]) -> str:
        if self.mapping.message_prefix is None:
            return _refuse("message", "messages are off: outbox.message_prefix is not set")
        values = _VALUES if self.mapping.payload == "json" else {**_VALUES, "payload": _HEX}
        members = ", ".join(f"{sql.quote(name)}, {values[key]}" for key, name in columns.items())
        call = f"pg_catalog.pg_logical_emit_message(true, {sql.quote(self.mapping.message_prefix)}, "
        content = f"pg_catalog.jsonb_build_object({members})::text"
        return f"    IF message THEN\n        PERFORM {call}{content});\n        RETURN id;\n    END IF;\n"

    def _row(self, columns: dict[str, str]) -> list[str]:
        lines = []
        for key, name in columns.items():
            named = sql.quote(", " + sql.Identifier(name).as_string())
            into = f"names := names || {named}; literals := literals || pg_catalog.format(', %L', {_VALUES[key]});"
            lines.append(f"    {into}\n" if key == "payload" else f"    IF {_VALUES[key]} IS NOT NULL THEN {into} END IF;\n")
        insert = sql.quote(f"INSERT INTO {self.table} (")
        lines.append(f"    EXECUTE {insert} || pg_catalog.substr(names, 3) || ') VALUES (' || pg_catalog.substr(literals, 3) || ')';\n")
        lines.append("    RETURN id;\n")
        return lines


def _refuse(condition: str, words: str) -> str:
    error = f"RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', MESSAGE = {sql.quote(words)};"
    return f"    IF {condition} THEN {error} END IF;\n"


def _checks(reserved: str) -> str:
    names = "SELECT FROM pg_catalog.jsonb_object_keys(headers) name WHERE name ~* " + sql.quote(f"^({reserved})$")
    not_an_object = "headers IS NOT NULL AND pg_catalog.jsonb_typeof(headers) <> 'object'"
    return "".join(
        (
            _refuse("type IS NULL OR type = ''", "the event has no type"),
            _refuse("key IS NULL OR key = ''", "the event has no key"),
            _refuse(f"pg_catalog.octet_length(type) > {NAME_LIMIT}", f"the type has more than {NAME_LIMIT} bytes"),
            _refuse(f"pg_catalog.octet_length(id) > {NAME_LIMIT}", f"the id has more than {NAME_LIMIT} bytes"),
            _refuse("schema_version < 1 OR partition < 0", "schema_version and partition are counted from 1 and 0"),
            _refuse("NOT pg_catalog.isfinite(occurred_at)", "occurred_at is infinite"),
            _refuse(not_an_object, "headers is not a JSON object"),
            _refuse(f"headers IS NOT NULL AND EXISTS ({names})", "ce_*, content-type and cdc.* are headers that the pipeline sets"),
        )
    )


_DECLARE: Final = "\n    names text := '';\n    literals text := '';"

_CONTEXT: Final = """\
    id := COALESCE(id, pg_catalog.encode(pg_catalog.set_bit(pg_catalog.set_bit(overlay(
        pg_catalog.uuid_send(pg_catalog.gen_random_uuid()) PLACING pg_catalog.substring(pg_catalog.int8send(
        (EXTRACT(epoch FROM pg_catalog.clock_timestamp()) * 1000)::bigint), 3) FROM 1 FOR 6), 52, 1), 53, 1), 'hex')::uuid::text);
    traceparent := COALESCE(traceparent, NULLIF(pg_catalog.current_setting('cdc.traceparent', true), ''));
    correlation_id := COALESCE(correlation_id, NULLIF(pg_catalog.current_setting('cdc.correlation_id', true), ''));
    IF correlation_id IS NOT NULL THEN
        headers := pg_catalog.jsonb_build_object('correlationid', correlation_id) || COALESCE(headers, '{}');
    END IF;
"""
"""A UUIDv7 (gen_random_uuid has version 4 and the variant: the milliseconds and two bits make 7 of it), and the context."""

_TRACE_HEADER: Final = """\
    IF traceparent IS NOT NULL THEN
        headers := pg_catalog.jsonb_build_object('traceparent', traceparent) || COALESCE(headers, '{}');
        traceparent := NULL;
    END IF;
"""

_VALUES: Final = {key: key for key in KEYS} | {"aggregateid": "key"}

_HEX: Final = "'\\x' || pg_catalog.encode(payload, 'hex')"
"""Bytes in a message, whatever bytea_output is."""
