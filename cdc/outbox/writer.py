"""The writer's side of the outbox: `append(cursor, event)` in the application's own transaction.

Strategy: what can be thought is thought in `Outbox.statement`, values in and SQL out, and one executor runs it on any
connection, so that sync and async share all but an `await`. The event is judged before it is written, by the code that the
pipeline itself routes and encodes with: it is made into the values of a logical message and routed, and what the router
refuses is refused here, where the stack still shows who wrote it. Row and message therefore keep one contract. All events of
a list are judged before the first is written, and written by the driver's executemany.

The version that was checked is the version that is written, so the pipeline encodes with no other one.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import orjson

from cdc.avro.columns import JSON
from cdc.avro.current import CurrentRegistry
from cdc.avro.native import json_text
from cdc.errors import ConfigurationError, InvalidEvent, PostgresRefused
from cdc.event import record_size
from cdc.outbox import message
from cdc.outbox.context import current
from cdc.outbox.event import Event
from cdc.outbox.executor import Statement, execute, execute_async, together, undefined_column
from cdc.outbox.mapping import KEYS, REQUIRED, OutboxMapping, found, placeholders
from cdc.outbox.model import EventModel
from cdc.outbox.router import Router, fill
from cdc.position import Lsn
from cdc.postgres.pgoutput import Begin

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
        self._relation = message.relation_of(mapping)
        self._columns = {column.name: column.type_oid for column in self._relation.columns}
        self._reads_payload = bool(found(mapping, list(self._columns)).paths)
        self._absent = frozenset(lacks) | {key for key in UNMAPPED if key not in mapping.columns}
        self._subject_keys = placeholders(mapping.subject)
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
        self._write(target, [statement])
        return event

    def append_many(self, target: object, events: Iterable[Event | EventModel]) -> list[Event]:
        """Write events in their order, as `append` writes each, and return them as they were written.

        All are judged before the first is written: InvalidEvent names the place of the one that is refused (`events[3]: ..`), and
        none is written. Each is judged when `events` yields it, so a generator that yields inside of a context gives that event the
        context: correlation id, trace, headers.
        """
        judged = self._judged_all(events)
        self._write(target, [statement for _, statement in judged])
        return [event for event, _ in judged]

    async def append_async(self, target: object, event: Event | EventModel) -> Event:
        """Do what `append` does on psycopg's AsyncConnection or AsyncCursor, or SQLAlchemy's AsyncConnection or AsyncSession."""
        event, statement = self.statement(event)
        await self._write_async(target, [statement])
        return event

    async def append_many_async(self, target: object, events: Iterable[Event | EventModel]) -> list[Event]:
        """Do what `append_many` does on psycopg's AsyncConnection or AsyncCursor, or SQLAlchemy's AsyncConnection or AsyncSession."""
        judged = self._judged_all(events)
        await self._write_async(target, [statement for _, statement in judged])
        return [event for event, _ in judged]

    def statement(self, event: Event | EventModel) -> tuple[Event, Statement]:
        """Return the event with what the context adds, and the one statement that writes it; raises InvalidEvent.

        For a connection that `append` does not know: the SQL has %s for each of its parameters.
        """
        if isinstance(event, EventModel):
            event = Event.of(event)
        event = _in_context(event, self._absent)
        with self._lock:
            event, said = self._judged(event)
        if self._mapping.message_prefix is not None:
            return event, Statement(_EMIT, (self._mapping.message_prefix, self._content(said)))
        return event, Statement(_insert(self._table, tuple(said)), tuple(said.values()))

    def _judged_all(self, events: Iterable[Event | EventModel]) -> list[tuple[Event, Statement]]:
        """Return the `statement` of each; a generator that is left early is closed, so that its context does not stay."""
        judged: list[tuple[Event, Statement]] = []
        try:
            for event in events:
                try:
                    judged.append(self.statement(event))
                except InvalidEvent as refused:
                    raise InvalidEvent(refused.reason, f"events[{len(judged)}]: {refused.what}", refused.fix) from refused
        finally:
            if isinstance(events, Generator):
                events.close()
        return judged

    def _write(self, target: object, statements: Sequence[Statement]) -> None:
        with self._columns_explained():
            for statement in together(statements):
                execute(target, statement)

    async def _write_async(self, target: object, statements: Sequence[Statement]) -> None:
        with self._columns_explained():
            for statement in together(statements):
                await execute_async(target, statement)

    def _judged(self, event: Event) -> tuple[Event, dict[str, object]]:
        """Route the event as the pipeline will; return it with its version, and what is written by column."""
        envelope = _envelope(event)
        named: dict[str, bytes | None] = {key: envelope[key].encode(errors="replace") for key in self._subject_keys if key in envelope}
        subject = fill(self._mapping.subject, named)
        encoder = self._schemas.encoder(subject, event.schema_version)
        payload: str | bytes | None = None
        if event.payload is not None:
            payload = json_text(encoder.schema, event.payload)
            if self._mapping.payload == "avro":
                payload = encoder.encode(payload)
            if "schema_version" not in self._absent:
                event = event if event.schema_version == encoder.version else replace(event, schema_version=encoder.version)
                envelope["schema_version"] = str(encoder.version)
        if _LACKED.issubset(self._absent) and event.schema_version is not None:
            event = self._by_default(event, subject)
        said = self._said(event, envelope, payload)
        row = (_BEGIN, self._relation, 0, tuple(_bytes(name, said.get(name)) for name in self._columns))
        record = self._router.route(row)
        if self._reads_payload:
            _check_same(event, self._router.values(row))
        size = record_size(record)
        if size > self._max_bytes:
            msg = f"the record has {size} bytes, the topic takes {self._max_bytes}"
            raise InvalidEvent("size", msg, "write a smaller event, or give Outbox the topic's max.message.bytes as max_bytes")
        return event, said

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
        return "{" + ",".join(f"{_json(name)}:{self._member(name, value)}" for name, value in said.items()) + "}"

    def _member(self, name: str, value: object) -> str:
        if value is None or self._columns[name] == JSON:
            return "null" if value is None else str(value)
        return _json("\\x" + value.hex() if isinstance(value, bytes) else value)


_EMIT: Final = "SELECT pg_logical_emit_message(true, %s::text, %s::text)"


@lru_cache
def _insert(table: tuple[str, str], columns: tuple[str, ...]) -> str:
    """Return the SQL of a row: only what the event says is written, so columns keep their defaults."""
    names = ", ".join(map(_quoted, columns))
    return f"INSERT INTO {'.'.join(map(_quoted, table))} ({names}) VALUES ({', '.join(['%s'] * len(columns))})"  # noqa: S608 - quoted


def _bytes(name: str, value: object) -> bytes | None:
    """Return a value as it stands in a logical message, and in a row that the pipeline reads."""
    if isinstance(value, bytes):
        return b"\\x" + value.hex().encode()
    try:
        return None if value is None else str(value).encode()
    except UnicodeEncodeError:
        raise InvalidEvent("mapping", f"{name} holds half of a surrogate pair") from None


def _envelope(event: Event) -> dict[str, str]:
    """Return what stands around the payload, as texts, in the order of the columns."""
    if event.occurred_at is not None and event.occurred_at.tzinfo is None:
        raise InvalidEvent("mapping", "occurred_at has no time zone", "give one: datetime.now(UTC)")
    texts: dict[str, str] = {}
    for key, (name, kinds, required) in _ENVELOPE.items():
        value = getattr(event, name)
        if required and value in (None, ""):
            raise InvalidEvent("mapping", f"the event has no {name}")
        if value is None:
            continue
        if not isinstance(value, kinds):
            raise InvalidEvent("mapping", f"{key} is a {type(value).__name__}", f"give {kinds[0].__name__}")
        texts[key] = value.isoformat() if isinstance(value, datetime) else str(value)
        if "\0" in texts[key]:
            raise InvalidEvent("mapping", f"{key} holds a NUL character, which PostgreSQL's texts cannot")
    return texts


_CONTENT: Final = ("payload", "headers")
_KINDS: Final[Mapping[str, tuple[type, ...]]] = {
    "id": (uuid.UUID, str, int), "schema_version": (int,), "partition": (int,), "occurred_at": (datetime,),
}  # fmt: skip
_ENVELOPE: Final = {
    key: ("key" if key == "aggregateid" else key, _KINDS.get(key, (str,)), key in REQUIRED) for key in KEYS if key not in _CONTENT
}
"""By key: the field of Event, its types, and whether it must be there."""


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
        return event if "traceparent" in absent or traceparent == event.traceparent else replace(event, traceparent=traceparent)
    headers = {**here.headers, **event.headers}
    correlation_id = event.correlation_id or here.correlation_id
    if correlation_id is not None:
        headers.setdefault("correlationid", correlation_id)
    if traceparent is not None and "traceparent" in absent:
        headers.setdefault("traceparent", traceparent)
        traceparent = None
    same = headers == event.headers and traceparent == event.traceparent
    return event if same else replace(event, headers=headers, traceparent=traceparent)


def _headers(headers: Mapping[str, object]) -> str:
    for name, value in headers.items():
        if not isinstance(name, str) or not (value is None or isinstance(value, str)):
            raise InvalidEvent("mapping", "a header is no text", "give texts: headers={'tenant': 'a'}")
    try:
        return _json(headers)
    except orjson.JSONEncodeError:
        raise InvalidEvent("mapping", "a header holds half of a surrogate pair") from None


def _json(value: object) -> str:
    """Return JSON with every character as it is; names may be of a class derived from str."""
    return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS).decode()


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


def append_many(target: Any, events: Iterable[Event | EventModel]) -> list[Event]:  # noqa: ANN401 - see Outbox.append
    """Write events in their order, all or none; see `Outbox.append_many`."""
    return _used().append_many(target, events)


async def append_async(target: Any, event: Event | EventModel) -> Event:  # noqa: ANN401 - see Outbox.append
    """Do the same on an async connection, cursor or session; see `Outbox.append_async`."""
    return await _used().append_async(target, event)


async def append_many_async(target: Any, events: Iterable[Event | EventModel]) -> list[Event]:  # noqa: ANN401 - see Outbox.append
    """Do what `append_many` does on an async connection, cursor or session."""
    return await _used().append_many_async(target, events)
