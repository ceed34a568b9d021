"""From an outbox row to the record that it becomes: mapping, topic, key, partition, headers, value.

Strategy: everything that can be known before the row is known before the row. Columns are found by name once for each
relation message; topics, subjects, encoders and the headers that belong to them are looked up by the row's own bytes; what
a whole transaction shares (sequence prefix, commit time, timestamp) is made once for it. What is left for each row is a
few dictionary look-ups, the encoding of the payload and one list of headers. This is the hot path.

A row that cannot become a record raises InvalidEvent, whose words name a column or a JSON path and never a value.

Headers follow the Kafka protocol binding of CloudEvents 1.0 in binary mode. `ce_sequence` is lower-case hex, 4 digits of
the generation, 16 of the commit LSN, 8 of the ordinal, so that it sorts as text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from cdc.avro.encoder import Encoder
from cdc.errors import InvalidEvent
from cdc.event import Record
from cdc.position import time_text
from cdc.postgres.pgoutput import Begin, Relation
from cdc.postgres.transaction import Row

KEYS = (
    "id",
    "aggregatetype",
    "aggregateid",
    "type",
    "payload",
    "schema_version",
    "headers",
    "occurred_at",
    "topic",
    "partition",
    "traceparent",
)
"""What a row can say; each is a column of that name by default, as in Debezium's outbox event router."""

REQUIRED = ("id", "aggregateid", "type", "payload")
"""What every outbox must have; aggregatetype only if the topic's template names it."""

RESERVED_HEADERS = re.compile(r"ce_.*|content-type|cdc\..*|__connect\.errors\..*", re.IGNORECASE)
"""Header names that a row's own headers may not take: consumers trust them to be ours."""

CACHE_LIMIT = 10_000
"""Topics or encoders remembered by the row's bytes; beyond it (a template over an unbounded value) the cache starts anew."""


@dataclass(frozen=True, slots=True)
class OutboxMapping:
    """How rows become records; see the [outbox], [schemas] and [topics] settings."""

    columns: Mapping[str, str] = field(default_factory=dict)
    route: str = "outbox.event.{aggregatetype}"
    subject: str = "{type}"
    source: str = "/"
    tombstones: bool = True

    def required(self) -> list[str]:
        """Keys that must be found: what every outbox has, what the templates name, what the user mapped himself."""
        named = {*placeholders(self.route), *placeholders(self.subject), *self.columns}
        return [key for key in KEYS if key in REQUIRED or key in named]


def placeholders(template: str) -> list[str]:
    """Return the keys that a template names, in order."""
    return re.findall(r"\{(\w+)\}", template)


def sequence(generation: int, begin: Begin, ordinal: int) -> str:
    """Return an event's own place as text that sorts: see ce_sequence."""
    return f"{generation:04x}{begin.final_lsn:016x}{ordinal:08x}"


class Located(NamedTuple):
    """Where a relation keeps each key: a column's index, or a path into the payload; keys that it lacks are in neither."""

    columns: dict[str, int]
    paths: dict[str, tuple[str, ...]]


def locate(mapping: OutboxMapping, column_names: list[str]) -> Located:
    """Find every key among a table's columns; raises InvalidEvent("mapping") that names what is missing.

    A mapped name is a column if the table has one of that name, else a path into the payload: its first part is "payload"
    or the payload's column.
    """
    index = {name: i for i, name in enumerate(column_names)}
    payload = mapping.columns.get("payload", "payload")
    located = Located({}, {})
    for key in KEYS:
        name = mapping.columns.get(key, key)
        first, *path = name.split(".")
        if name in index:
            located.columns[key] = index[name]
        elif path and first in ("payload", payload) and payload in index:
            located.paths[key] = tuple(path)
        elif key in mapping.required():
            msg = f"the table has no column {name!r} for outbox.columns.{key}"
            raise InvalidEvent("mapping", msg, "name the column in outbox.columns, or add it to the table")
    return located


class _Kind(NamedTuple):
    """What all rows of one type and version share."""

    encoder: Encoder
    type_header: tuple[str, bytes]
    schema_header: tuple[str, bytes]


_SPEC_VERSION = ("ce_specversion", b"1.0")
_CONTENT_TYPE = ("content-type", b"application/avro")


class Router:
    """Turns rows into records; `encoder` gives the compiled encoder of (subject, version or None for the default)."""

    def __init__(self, mapping: OutboxMapping, encoder: Callable[[str, int | None], Encoder], generation: int) -> None:
        self._mapping = mapping
        self._encoder = encoder
        self._generation = generation
        self._relation: Relation | None = None
        self._begin: Begin | None = None
        self._located = Located({}, {})
        self._missing: InvalidEvent | None = None
        self._topics: dict[bytes | tuple[bytes | None, ...], str] = {}
        self._kinds: dict[tuple[bytes | None, ...], _Kind] = {}
        self._source = ("ce_source", mapping.source.encode())
        self._sequence = b""
        self._time = ("ce_time", b"")
        self._timestamp_ms = 0
        self._topic_keys = placeholders(mapping.route)
        self._subject_keys = placeholders(mapping.subject)

    def forget_schemas(self) -> None:
        """Look encoders up anew: the schema folder has changed."""
        self._kinds.clear()

    def values(self, row: Row) -> dict[str, bytes | None]:
        """Return the mapped columns of a row by key, as far as they can be found; for dead letters and audits."""
        _, relation, _, values = row
        if relation is not self._relation:
            self._use(relation)
        return {key: values[i] for key, i in self._located.columns.items()}

    def topic_of(self, values: dict[str, bytes | None]) -> str:
        """Return the topic that a row was meant for, as far as its values tell; empty when they don't."""
        try:
            topic = values.get("topic")
            return self._topic(values) if topic is None else _text("topic", topic)
        except InvalidEvent:
            return ""

    def route(self, row: Row) -> Record:
        """Return the record that a row becomes; raises InvalidEvent."""
        begin, relation, ordinal, values = row
        if relation is not self._relation:
            self._use(relation)
        if begin is not self._begin:
            self._enter(begin)
        if self._missing is not None:
            raise self._missing
        get = {key: values[i] for key, i in self._located.columns.items()}
        payload = get["payload"]
        document = self._follow_paths(get, payload) if self._located.paths else None
        event_id = get["id"]
        if event_id is None:
            raise _null("id")
        kind = self._kind(get)
        topic = get.get("topic")
        headers: list[tuple[str, bytes | None]] = [
            _SPEC_VERSION,
            ("ce_id", event_id),
            self._source,
            kind.type_header,
            self._time,
            ("ce_sequence", self._sequence + b"%08x" % ordinal),
        ]
        occurred_at = get.get("occurred_at")
        if occurred_at is not None:
            headers[4] = ("ce_time", _time(occurred_at))
        if payload is None:
            if not self._mapping.tombstones:
                msg = "the payload is NULL and outbox.tombstones is off"
                raise InvalidEvent("tombstone", msg, "allow tombstones, or write a payload")
            value = None
        else:
            headers += (_CONTENT_TYPE, kind.schema_header)
            value = kind.encoder.encode(payload) if document is None else kind.encoder.encode_value(document)
        if (own := get.get("headers")) is not None:
            headers += _own_headers(own)
        if (traceparent := get.get("traceparent")) is not None:
            headers = [header for header in headers if header[0] != "traceparent"]
            headers.append(("traceparent", traceparent))
        return Record(
            self._topic(get) if topic is None else _text("topic", topic),
            get["aggregateid"],
            value,
            headers,
            self._timestamp_ms,
            -1 if (partition := get.get("partition")) is None else _number("partition", partition, "route"),
        )

    def _use(self, relation: Relation) -> None:
        """A row of another shape comes: find the keys in it, by name."""
        self._relation = relation
        names = [column.name for column in relation.columns]
        try:
            self._located, self._missing = locate(self._mapping, names), None
        except InvalidEvent as missing:
            found = {key: self._mapping.columns.get(key, key) for key in KEYS}
            self._located = Located({key: names.index(name) for key, name in found.items() if name in names}, {})
            self._missing = missing

    def _enter(self, begin: Begin) -> None:
        """A new transaction: make what all of its rows share."""
        self._begin = begin
        self._sequence = b"%04x%016x" % (self._generation, begin.final_lsn)
        self._time = ("ce_time", time_text(begin.commit_time_us).encode())
        self._timestamp_ms = begin.commit_time_us // 1000

    def _kind(self, get: dict[str, bytes | None]) -> _Kind:
        version = get.get("schema_version")
        key = (get["type"], version, *[get.get(name) for name in self._subject_keys])
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._new_kind(get, version)
            if len(self._kinds) >= CACHE_LIMIT:
                self._kinds.clear()
            self._kinds[key] = kind
        return kind

    def _new_kind(self, get: dict[str, bytes | None], version: bytes | None) -> _Kind:
        event_type = get["type"]
        if event_type is None:
            raise _null("type")
        subject = _fill(self._mapping.subject, get)
        encoder = self._encoder(subject, None if version is None else _number("schema_version", version, "schema"))
        return _Kind(encoder, ("ce_type", event_type), ("ce_dataschema", encoder.dataschema.encode()))

    def _topic(self, get: dict[str, bytes | None]) -> str:
        key = tuple([get.get(name) for name in self._topic_keys])
        topic = self._topics.get(key)
        if topic is None:
            topic = _fill(self._mapping.route, get)
            if len(self._topics) >= CACHE_LIMIT:
                self._topics.clear()
            self._topics[key] = topic
        return topic

    def _follow_paths(self, get: dict[str, bytes | None], payload: bytes | None) -> Any:  # noqa: ANN401 - JSON
        """Fill in the keys that live inside of the payload."""
        if payload is None:
            document = None
        else:
            try:
                document = orjson.loads(payload)
            except ValueError:
                raise InvalidEvent("schema", "the payload is not JSON") from None
        for key, path in self._located.paths.items():
            get[key] = _follow(document, path, key)
        return document


def _follow(document: Any, path: tuple[str, ...], key: str) -> bytes | None:  # noqa: ANN401 - JSON
    value = document
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    if value is None or isinstance(value, str):
        return None if value is None else value.encode()
    if key == "headers" or (isinstance(value, int) and not isinstance(value, bool)):
        return orjson.dumps(value)
    msg = f"$.{'.'.join(path)}: a string expected for outbox.columns.{key}, {type(value).__name__} came"
    raise InvalidEvent("mapping", msg)


def _fill(template: str, get: dict[str, bytes | None]) -> str:
    """Put a row's values into a template."""
    return re.sub(r"\{(\w+)\}", lambda match: _text(match[1], get.get(match[1])), template)


def _text(key: str, value: bytes | None) -> str:
    if value is None:
        raise _null(key)
    return value.decode()  # client_encoding is UTF8 and the server checks it


def _null(key: str) -> InvalidEvent:
    return InvalidEvent("mapping", f"the row has no {key}: outbox.columns.{key} is NULL or missing in the payload")


def _number(key: str, value: bytes, reason: str) -> int:
    if not value.isdigit():
        msg = f"outbox.columns.{key} is not a whole number of zero or more"
        raise InvalidEvent(reason, msg)
    return int(value)


_TIME = re.compile(
    rb"(\d{4,}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d(?:\.\d+)?)(Z|[+-]\d\d(?::?\d\d)?)?",
)


def _time(value: bytes) -> bytes:
    """RFC 3339 from PostgreSQL's ISO form or from JSON; a time without offset is UTC, as the connection's TimeZone."""
    match = _TIME.fullmatch(value)
    if match is None:
        msg = "outbox.columns.occurred_at is not a finite time such as 2026-01-31T12:00:00Z"
        raise InvalidEvent("mapping", msg)
    day, time, offset = match.groups()
    if offset in (None, b"Z", b"+00"):
        offset = b"Z"
    elif len(offset) == len("+01"):
        offset += b":00"
    elif len(offset) == len("+0100"):
        offset = offset[:3] + b":" + offset[3:]
    return day + b"T" + time + offset


def _own_headers(value: bytes) -> list[tuple[str, bytes | None]]:
    """Read the row's own headers from a JSON object; what is not a string keeps its JSON form."""
    try:
        document = orjson.loads(value)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        msg = "outbox.columns.headers is not a JSON object"
        raise InvalidEvent("mapping", msg)
    headers: list[tuple[str, bytes | None]] = []
    for name, content in document.items():
        if RESERVED_HEADERS.fullmatch(name):
            msg = f"outbox.columns.headers has a reserved name at $.{name[:40]}"
            raise InvalidEvent("mapping", msg, "ce_*, content-type and cdc.* are set by the pipeline")
        if content is None:
            headers.append((name, None))
        else:
            headers.append((name, content.encode() if isinstance(content, str) else orjson.dumps(content)))
    return headers
