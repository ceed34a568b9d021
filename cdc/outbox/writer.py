"""The writer's side of the outbox: `append(cursor, event)` in the application's own transaction.

Strategy: what can be thought is thought in `Outbox.statement`, values in and SQL out, and one executor runs it on any
connection, so that sync and async share all but an `await`. The event is judged before it is written, by the code that the
pipeline itself routes and encodes with: it is made into the content of a logical message and routed, and what the router
refuses is refused here, where the stack still shows who wrote it. Row and message therefore keep one contract.

The version that was checked is the version that is written, so the pipeline encodes with no other one.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from cdc.avro.columns import BYTEA, JSON
from cdc.avro.current import CurrentRegistry
from cdc.avro.native import json_text
from cdc.errors import ConfigurationError, InvalidEvent, PostgresRefused
from cdc.event import record_size
from cdc.outbox import message
from cdc.outbox.context import current
from cdc.outbox.event import Event
from cdc.outbox.executor import Statement, execute, execute_async, undefined_column
from cdc.outbox.mapping import KEYS, REQUIRED, OutboxMapping, found
from cdc.outbox.model import EventModel
from cdc.outbox.router import Router, fill
from cdc.position import Lsn
from cdc.postgres.pgoutput import Begin
from cdc.postgres.transaction import MESSAGES

MAX_BYTES: Final = 1_048_588
"""A record's limit unless the topic has another one: Kafka's default for max.message.bytes."""

_BEGIN: Final = Begin(Lsn(0), 0, 0)
"""The transaction of an event that is only judged."""

OPTIONAL: Final = ("schema_version", "headers")
"""Columns that `cdc init --create-table` makes and that an outbox can do without."""

_LACKED: Final = frozenset(OPTIONAL)
"""Without any of these a row has no place for its version."""

UNMAPPED: Final = ("topic", "partition", "traceparent")
"""Columns that `cdc init --create-table` does not make: they are written if `columns` names them."""


class Outbox:
    """Writes events; one for each outbox, for the life of the process, shared by all threads.

    schemas    the schema folder
    table      the outbox table: `schema.table` in literal names, or a pair of them
    mapping    how rows become records, as the settings have it: `OutboxMapping(columns={"type": "event_type"}, ..)`. A key
               that is mapped to a path into the payload is read there, and not written. With a `message_prefix` events are
               written as table-less messages (pg_logical_emit_message) and not as rows.
    lacks      optional columns that the table does not have: schema_version, headers. Without headers the context has no
               place; topic, partition and traceparent are columns only if the mapping names them.
    max_bytes  the largest record that the topic takes (its max.message.bytes)

    With a configuration file `cdc.load_outbox("cdc.toml")` makes the same from the settings.
    Raises ConfigurationError for a schema folder that is wrong, and for names that are none.
    """

    def __init__(
        self,
        *,
        schemas: str | Path = "schemas",
        table: str | tuple[str, str] = "public.outbox",
        mapping: OutboxMapping = OutboxMapping(),  # noqa: B008 - frozen
        lacks: Collection[str] = (),
        max_bytes: int = MAX_BYTES,
    ) -> None:
        _check_names(mapping, lacks)
        self._mapping = mapping
        self._table = _table(table) if isinstance(table, str) else table
        self._columns = {column.name: column.type_oid for column in message.relation_of(mapping).columns}
        self._reads_payload = bool(found(mapping, list(self._columns)).paths)
        self._absent = frozenset(lacks) | {key for key in UNMAPPED if key not in mapping.columns}
        self._schemas = CurrentRegistry(Path(schemas))
        self._router = Router(mapping, self._schemas.encoder, 0)
        self._schemas.changed = self._router.forget_schemas
        self._lock = threading.Lock()
        self._max_bytes = max_bytes

    def __repr__(self) -> str:
        where = ".".join(self._table) if self._mapping.message_prefix is None else f"messages {self._mapping.message_prefix}"
        return f"<Outbox {where} {self._schemas.registry!r}>"

    def append(self, target: object, event: Event | EventModel) -> Event:
        """Write an event in the transaction that is open on `target`, and return it as it was written.

        `target` is a connection or cursor of psycopg, a Connection or Session of SQLAlchemy (with psycopg), or Django's
        connection or cursor. Nothing is committed: the event stays if your transaction does.

        Raises InvalidEvent, before anything is written, for an event that the pipeline could not publish; NoTransaction for
        a connection in autocommit on which no transaction is open; TypeError for something that is no connection;
        PostgresRefused for a table that lacks a column of which it was not said so (`lacks`).
        """
        event, statement = self.statement(event)
        with self._columns_explained():
            execute(target, statement)
        return event

    async def append_async(self, target: object, event: Event | EventModel) -> Event:
        """Do the same on psycopg's AsyncConnection or AsyncCursor, or SQLAlchemy's AsyncConnection or AsyncSession."""
        event, statement = self.statement(event)
        with self._columns_explained():
            await execute_async(target, statement)
        return event

    def statement(self, event: Event | EventModel) -> tuple[Event, Statement]:
        """Return the event with what the context adds, and the one statement that writes it; raises InvalidEvent.

        For a connection that `append` does not know: the SQL has %s for each of its parameters.
        """
        if isinstance(event, EventModel):
            event = Event.of(event)
        event = _in_context(event, self._absent)
        with self._lock:
            event, said, content = self._judged(event)
        if self._mapping.message_prefix is not None:
            return event, Statement("SELECT pg_logical_emit_message(true, %s::text, %s::text)", (self._mapping.message_prefix, content))
        return event, self._insert(said)

    def _judged(self, event: Event) -> tuple[Event, dict[str, object], str]:
        """Route the event as the pipeline will; return it with its version, what is written by column, and the same as a message."""
        envelope = _envelope(event)
        subject = fill(self._mapping.subject, {key: value.encode(errors="replace") for key, value in envelope.items()})
        encoder = self._schemas.encoder(subject, event.schema_version)
        payload: str | bytes | None = None
        if event.payload is not None:
            payload = json_text(encoder.schema, event.payload)
            if self._mapping.payload == "avro":
                payload = encoder.encode(payload)
            if "schema_version" not in self._absent:
                event = replace(event, schema_version=encoder.version)
                envelope["schema_version"] = str(encoder.version)
        if _LACKED.issubset(self._absent) and event.schema_version is not None:
            event = self._by_default(event, subject)
        said = self._said(event, envelope, payload)
        content = self._content(said)
        row = (_BEGIN, MESSAGES, 0, (content.encode(),))
        record = self._router.route(row)
        if self._reads_payload:
            _check_same(event, self._router.values(row))
        size = record_size(record)
        if size > self._max_bytes:
            msg = f"the record has {size} bytes, the topic takes {self._max_bytes}"
            raise InvalidEvent("size", msg, "write a smaller event, or give Outbox the topic's max.message.bytes as max_bytes")
        return event, said, content

    def _by_default(self, event: Event, subject: str) -> Event:
        """Return an event without the version that its row has no place for; raises InvalidEvent if it is not what rows get anyway."""
        default = self._schemas.encoder(subject, None).version
        if event.schema_version != default:
            what = f"the event names version {event.schema_version} of {subject!r}, and the table has no column to say so"
            fix = f"rows get version {default}: generate the classes again, or pin {event.schema_version}; or add schema_version (lacks)"
            raise InvalidEvent("mapping", what, fix)
        return replace(event, schema_version=None)

    @contextmanager
    def _columns_explained(self) -> Iterator[None]:
        """Say what to do where PostgreSQL knows no such column; raises PostgresRefused from the driver's own error."""
        try:
            yield
        except Exception as error:
            told = undefined_column(error)
            named = [name for name in self._columns if f'"{name}"' in told]
            if not named or f'"{self._table[1]}"' not in told:
                raise  # a trigger's, or in a language whose quotes are others
            name = min(named, key=lambda name: told.index(f'"{name}"'))  # before the table, which may be called like a column
            optional = {self._mapping.column(key): key for key in OPTIONAL}
            fix = "name the column in the mapping (outbox.columns), or add it to the table"
            if name in optional:
                fix = f'tell Outbox or load_outbox, lacks=("{optional[name]}",), or add the column'
            raise PostgresRefused(f"table {'.'.join(self._table)} has no column {name!r}", fix) from error

    def _said(self, event: Event, envelope: Mapping[str, str], payload: str | bytes | None) -> dict[str, object]:
        """Return what is written by column name; raises InvalidEvent for what the outbox has no column for."""
        headers = dict(event.headers)
        if "schema_version" in self._absent and event.schema_version is not None:
            headers["schema_version"] = str(event.schema_version)
        said: dict[str, object] = {key: value for key, value in envelope.items() if key not in self._absent}
        said["payload"] = payload
        if headers:
            said["headers"] = _headers(headers)
        lost = [key for key in (*UNMAPPED, "headers") if key in self._absent and (key in envelope or key in said)]
        if lost:
            msg = f"the event has {lost[0]}, and the outbox has no column for it"
            raise InvalidEvent("mapping", msg, "add the column and tell Outbox of it (mapping, lacks), or leave it out")
        named = {self._mapping.column(key): value for key, value in said.items()}
        return {name: value for name, value in named.items() if name in self._columns}

    def _content(self, said: Mapping[str, object]) -> str:
        """Return an event as the content of a logical message."""
        return "{" + ",".join(f"{json.dumps(name)}:{self._member(name, value)}" for name, value in said.items()) + "}"

    def _member(self, name: str, value: object) -> str:
        if value is None:
            return "null"
        kind = self._columns[name]
        if kind == JSON:
            return str(value)
        return json.dumps("\\x" + value.hex() if kind == BYTEA and isinstance(value, bytes) else value)

    def _insert(self, said: Mapping[str, object]) -> Statement:
        """Return the statement for a row: only what the event says is written, so columns keep their defaults."""
        names = ", ".join(_quoted(name) for name in said)
        table = ".".join(_quoted(part) for part in self._table)
        sql = f"INSERT INTO {table} ({names}) VALUES ({', '.join(['%s'] * len(said))})"  # noqa: S608 - quoted
        return Statement(sql, tuple(said.values()))


def _envelope(event: Event) -> dict[str, str]:
    """Return what stands around the payload, as texts, in the order of the columns."""
    if event.occurred_at is not None and event.occurred_at.tzinfo is None:
        raise InvalidEvent("mapping", "occurred_at has no time zone", "give one: datetime.now(UTC)")
    texts: dict[str, object] = {key: getattr(event, "key" if key == "aggregateid" else key) for key in KEYS if key not in _CONTENT}
    for key, value in texts.items():
        if value is not None and not isinstance(value, _ENVELOPE.get(key, (str,))):
            raise InvalidEvent("mapping", f"{key} is a {type(value).__name__}", f"give {_ENVELOPE.get(key, (str,))[0].__name__}")
        if isinstance(value, str) and "\0" in value:
            raise InvalidEvent("mapping", f"{key} holds a NUL character, which PostgreSQL's texts cannot")
    for key in REQUIRED:
        if key in texts and texts[key] in (None, ""):
            raise InvalidEvent("mapping", f"the event has no {'key' if key == 'aggregateid' else key}")
    return {key: value.isoformat() if isinstance(value, datetime) else str(value) for key, value in texts.items() if value is not None}


_CONTENT: Final = ("payload", "headers")
_ENVELOPE: Final[Mapping[str, tuple[type, ...]]] = {
    "id": (uuid.UUID, str, int), "schema_version": (int,), "partition": (int,), "occurred_at": (datetime,),
}  # fmt: skip


def _check_same(event: Event, read: Mapping[str, bytes | None]) -> None:
    """Refuse an event that says one thing beside its payload and another one in it, where the mapping reads it from there."""
    for key, said in (("id", event.id), ("type", event.type), ("aggregateid", event.key)):
        if read.get(key) != str(said).encode():
            raise InvalidEvent("mapping", f"the event's {key} is not the one that outbox.columns finds in its payload")


def _in_context(event: Event, absent: Collection[str]) -> Event:
    """Add what the context says and the event does not; where the outbox has no headers, the context has no place."""
    here = current()
    traceparent = event.traceparent or here.traceparent
    if "headers" in absent:
        return replace(event, traceparent=traceparent if "traceparent" not in absent else event.traceparent)
    headers = {**here.headers, **event.headers}
    correlation_id = event.correlation_id or here.correlation_id
    if correlation_id is not None:
        headers.setdefault("correlationid", correlation_id)
    if traceparent is not None and "traceparent" in absent:
        headers.setdefault("traceparent", traceparent)
        traceparent = None
    return replace(event, headers=headers, traceparent=traceparent)


def _headers(headers: Mapping[str, object]) -> str:
    for name, value in headers.items():
        if not isinstance(name, str) or not (value is None or isinstance(value, str)):
            raise InvalidEvent("mapping", "a header is no text", "give texts: headers={'tenant': 'a'}")
    try:
        text = json.dumps(headers, ensure_ascii=False, separators=(",", ":"))
        text.encode()
    except UnicodeEncodeError:
        raise InvalidEvent("mapping", "a header holds half of a surrogate pair") from None
    return text


def _check_names(mapping: OutboxMapping, lacks: Collection[str]) -> None:
    for given, known, where in ((mapping.columns, KEYS, "columns names"), (lacks, OPTIONAL, "lacks names")):
        for key in given:
            if key not in known:
                raise ConfigurationError(f"Outbox: {where} {key!r}, which no outbox has", f"known are {', '.join(known)}")


def _table(name: str) -> tuple[str, str]:
    schema, _, table = name.rpartition(".")
    if "." in schema or '"' in name:
        raise ConfigurationError(
            f"Outbox: {name!r} is not schema.table", "give a name with a dot or a quote in it as a pair: table=(schema, name)"
        )
    return schema or "public", table


def _quoted(name: str) -> str:
    """Quote an identifier; a % is doubled, because drivers look for %s."""
    return '"' + name.replace('"', '""').replace("%", "%%") + '"'


_default: Outbox | None = None


def use(outbox: Outbox) -> None:
    """Let `append` and `append_async` of this module write to `outbox`; call it once, when the application starts."""
    global _default  # noqa: PLW0603 - one for the process, as a logger is
    _default = outbox


def _used() -> Outbox:
    if _default is None:
        use(Outbox())
    assert _default is not None, "made above"
    return _default


def append(target: Any, event: Event | EventModel) -> Event:  # noqa: ANN401 - see Outbox.append
    """Write an event in the transaction that is open on a connection, cursor or session; see `Outbox.append`.

    Goes to the outbox that `use` named, else to `Outbox()`: the folder `schemas`, the table `public.outbox`.
    """
    return _used().append(target, event)


async def append_async(target: Any, event: Event | EventModel) -> Event:  # noqa: ANN401 - see Outbox.append
    """Do the same on an async connection, cursor or session; see `Outbox.append_async`."""
    return await _used().append_async(target, event)
