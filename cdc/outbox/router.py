"""From an outbox row to the record that it becomes: topic, key, partition, headers, value.

Strategy: everything that can be known before the row is known before the row. For each relation message a function is
generated that has only the steps which this table needs, with the columns' places in it; topics, encoders and the headers
that belong to them are looked up by the row's own bytes; what a whole transaction shares (sequence prefix, commit time,
timestamp) is made once for it. What is left for each row is two look-ups, the encoding of the payload and one list of
headers. This is the hot path.

A row that cannot become a record raises InvalidEvent, whose words name a column or a JSON path and never a value.

Headers follow the Kafka protocol binding of CloudEvents 1.0 in binary mode. `ce_sequence` is lower-case hex, 4 digits of
the generation, 16 of the commit LSN, 8 of the ordinal, so that it sorts as text. In Debezium's style there is the header `id`
alone, then what is placed, as its outbox event router does it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from cdc.avro.encoder import Encoder
from cdc.errors import InvalidEvent
from cdc.event import Record
from cdc.outbox import envelope, message
from cdc.outbox import values as read
from cdc.outbox.mapping import KEYS, NAME_LIMIT, RESERVED_HEADERS, Located, OutboxMapping, found, header_key, locate, placeholders
from cdc.position import Lsn, time_text
from cdc.postgres.pgoutput import Begin, Relation
from cdc.postgres.transaction import MESSAGES, Row

CACHE_LIMIT = 10_000
"""Topics or encoders remembered by the row's bytes; beyond it (a template over an unbounded value) the cache starts anew."""

RELATIONS_KEPT = 1_000
"""Relations whose converters are kept: the partitions of an outbox, and what they were before each change."""

OWN_HEADERS = {
    "cloudevents": "SPEC_VERSION, ('ce_id', id), SOURCE, type_header, ('ce_time', time), ('ce_sequence', sequence)",
    "debezium": "('id', id)",
}
"""The headers that every record has, by style, as the generated function writes them."""

CONTENT_TYPES = {"avro": b"application/avro", "json": b"application/json", "envelope": envelope.CONTENT_TYPE.encode()}
"""By what a record's value is."""

ORDINALS = [b"%08x" % ordinal for ordinal in range(1000)]
"""The last part of a sequence, for the rows of all but large transactions."""

BOOL_OID, BYTEA_OID, TIMESTAMPTZ_OID = 16, 17, 1184
"""pg_type.dat."""


class Kind(NamedTuple):
    """What all rows of one type and version share."""

    encoder: Encoder
    type_header: tuple[str, bytes]
    schema_header: tuple[str, bytes]


Values = Sequence[bytes | None]
Found = TypeVar("Found", Kind, str)
Convert = Callable[[Values, bytes, bytes, int], Record]


def sequence(generation: int, begin: Begin, ordinal: int) -> str:
    """Return an event's own place as text that sorts: see ce_sequence."""
    return f"{generation:04x}{begin.final_lsn:016x}{ordinal:08x}"


def commit_lsn(place: bytes | str) -> Lsn:
    """Return the commit LSN in a `ce_sequence`."""
    return Lsn(int(place[4:20], 16))


class Router:
    """Turns rows into records; `encoder` gives the compiled encoder of (subject, version or None for the default)."""

    def __init__(self, mapping: OutboxMapping, encoder: Callable[[str, int | None], Encoder], generation: int) -> None:
        self._mapping = mapping
        self._encoder = encoder
        self._generation = generation
        self._relation: Relation | None = None
        self._known: dict[int, tuple[Relation, Located, Convert]] = {}
        self._messages = message.relation_of(mapping)
        self._begin: Begin | None = None
        self._located = Located({}, {})
        self._convert: Convert = _nothing
        self._topics: dict[object, str] = {}
        self._kinds: dict[object, Kind] = {}
        self._sequence = self._time = self._second_text = b""
        self._second = -1
        self._timestamp_ms = 0

    def __repr__(self) -> str:
        relation = self._relation
        return f"<Router {relation.namespace}.{relation.name}>" if relation else "<Router>"

    def forget_schemas(self) -> None:
        """Look encoders up anew: the schema folder has changed."""
        self._kinds.clear()

    def route(self, row: Row) -> Record:
        """Return the record that a row becomes; raises InvalidEvent."""
        begin, relation, ordinal, values = row
        if begin is not self._begin:
            self._enter(begin)
        if relation is not self._relation:
            self._use(relation)
        place = ORDINALS[ordinal] if ordinal < 1000 else b"%08x" % ordinal  # noqa: PLR2004 - the table's length
        return self._convert(values, self._sequence + place, self._time, self._timestamp_ms)

    def values(self, row: Row) -> dict[str, bytes | None]:
        """Return what a row says by key, as far as it can be found; for dead letters and audits."""
        _, relation, _, values = row
        if relation is not self._relation:
            self._use(relation)
        if relation is MESSAGES:
            try:
                relation, values = self._messages, message.read(values[0] or b"", self._messages)
            except InvalidEvent:
                return {"payload": values[0]}
        return read.mapped(self._located, relation, values)

    def topic_of(self, values: dict[str, bytes | None]) -> str:
        """Return the topic that a row was meant for, as far as its values tell; empty when they don't."""
        try:
            topic = values.get("topic")
            return fill(self._mapping.route, values) if topic is None else topic.decode()
        except InvalidEvent:
            return ""

    def _enter(self, begin: Begin) -> None:
        """Make what all rows of a transaction share."""
        self._begin = begin
        self._sequence = b"%04x%016x" % (self._generation, begin.final_lsn)
        second, fraction_us = divmod(begin.commit_time_us, 1_000_000)
        if second != self._second:
            self._second, self._second_text = second, time_text(second * 1_000_000)[: -len("000000Z")].encode()
        self._time = b"%b%06dZ" % (self._second_text, fraction_us)
        self._timestamp_ms = begin.commit_time_us // 1000

    def _use(self, relation: Relation) -> None:
        """Turn to the rows of a relation; a transaction may hold rows of several: partitions, and messages."""
        known = self._known.get(id(relation))
        if known is None:
            if len(self._known) >= RELATIONS_KEPT:
                self._known.clear()
            known = self._known[id(relation)] = (relation, *self._understand(relation))
        self._relation, self._located, self._convert = known

    def _understand(self, relation: Relation) -> tuple[Located, Convert]:
        """Find the keys in a relation, by name, and generate the function that converts its rows."""
        table = self._messages if relation is MESSAGES else relation
        names = [column.name for column in table.columns]
        try:
            self._located = locate(self._mapping, names)
        except InvalidEvent as missing:
            return found(self._mapping, names), _refuser(missing)
        convert = self._compiled(table)
        if relation is not MESSAGES:
            return self._located, convert

        def convert_message(values: Values, sequence: bytes, time: bytes, timestamp_ms: int) -> Record:
            return convert(message.read(values[0] or b"", table), sequence, time, timestamp_ms)

        return self._located, convert_message

    def _compiled(self, relation: Relation) -> Convert:
        """Generate `convert(values, sequence, commit time, timestamp)` with the steps that this relation needs."""
        columns, paths = self._located
        topic_keys = placeholders(self._mapping.route)
        versioned = ("schema_version",) if self._has("schema_version") or self._has("headers") else ()
        kind_keys = list(dict.fromkeys(("type", *placeholders(self._mapping.subject), *versioned)))
        lines = [f"    {_variable(key)} = values[{i}]" for key, i in columns.items()]
        types = {key: relation.columns[i].type_oid for key, i in columns.items()}
        own = OWN_HEADERS[self._mapping.headers]
        lines += [
            f"    if {key} is not None: {key} = raw({key!r}, {key})" for key in ("payload", "aggregateid") if types.get(key) == BYTEA_OID
        ]
        if self._mapping.payload == "json" and read.is_typed(types.get("payload", 0)):
            lines.append(f"    if payload is not None: payload = json_of({types['payload']}, payload)")
        if paths:
            lines.append("    document = parsed(payload)")
            lines += [f"    {_variable(key)} = followed(document, {path!r}, {key!r})" for key, path in paths.items()]
        if self._has("headers"):
            lines.append("    own = own_headers(headers_) if headers_ is not None else None")
            known = "schema_version or " if self._has("schema_version") else ""
            lines.append(f"    schema_version = {known}(version_of(own) if own else None)")
        lines += [
            "    if id is None: raise null('id')",
            f"    if len(id) > {NAME_LIMIT}: raise too_long('id')",
            f"    kind = KINDS.get({_key(kind_keys)})",
            f"    if kind is None: kind = new_kind({_key(kind_keys)}, {_arguments(kind_keys)})",
            "    encoder, type_header, schema_header = kind",
        ]
        if self._has("occurred_at") and self._mapping.headers == "cloudevents":
            typed = types.get("occurred_at") == TIMESTAMPTZ_OID
            # The rows of a transaction share their now(), as a rule.
            lines += [
                "    if occurred_at is not None:",
                "        if occurred_at != LATEST[0]:",
                f"            LATEST[1] = {'timestamptz' if typed else 'any_time'}(occurred_at)",
                "            LATEST[0] = occurred_at",
                "        time = LATEST[1]",
            ]
        lines += [
            "    if payload is None:",
            "        value = None" if self._mapping.tombstones else "        raise no_tombstones()",
            f"        headers = [{own}]",
            "    else:",
            f"        value = encoder.{self._step(types.get('payload', 0))}(payload)",
            *(self._envelope() if self._mapping.value == "envelope" else []),
            f"        headers = [{own}{', CONTENT_TYPE, schema_header' if self._mapping.headers == 'cloudevents' else ''}]",
        ]
        lines += [f"    headers.append(({name!r}, {_placed(header_key(name), types)}))" for name in self._mapping.placed]
        if self._has("headers"):
            lines.append("    if own: headers += own")
        if self._has("traceparent"):
            lines.append("    if traceparent is not None: headers = with_trace(headers, traceparent)")
        by_template = f"TOPICS.get({_key(topic_keys)}) or new_topic({_key(topic_keys)}, {_arguments(topic_keys)})"
        if self._has("topic"):
            lines.append(f"    route = {by_template} if topic is None else topic.decode()")
        else:
            lines.append(f"    route = {by_template}")
        partition = "-1 if partition is None else number('partition', partition, 'route')" if self._has("partition") else "-1"
        lines.append(f"    return record(Record, (route, aggregateid, value, headers, timestamp_ms, {partition}))")
        # The row's own headers and the record's list of them share a name in the field.
        source = "\n".join(["def convert(values, sequence, time, timestamp_ms):", *lines]).replace(
            "    headers = values[", "    headers_ = values["
        )
        source = source.replace("    headers = followed(", "    headers_ = followed(")
        names = self._names()
        exec(compile(source, f"<router for {relation.namespace}.{relation.name}>", "exec"), names)  # noqa: S102 - generated above
        convert: Convert = names["convert"]
        return convert

    def _names(self) -> dict[str, Any]:
        """What the generated function calls."""
        return {
            "KINDS": self._kinds,
            "TOPICS": self._topics,
            "new_kind": self._new_kind,
            "new_topic": self._new_topic,
            "SPEC_VERSION": ("ce_specversion", b"1.0"),
            "SOURCE": ("ce_source", self._mapping.source.encode()),
            "CONTENT_TYPE": ("content-type", CONTENT_TYPES[self._mapping.value]),
            "enveloped": partial(envelope.enveloped, self._mapping.source.encode()),
            "parsed": read.parsed,
            "followed": read.followed,
            "null": read.null,
            "too_long": read.too_long,
            "number": read.number,
            "own_headers": partial(read.own_headers, reserved=RESERVED_HEADERS[self._mapping.headers]),
            "shown": read.shown,
            "version_of": read.version_of,
            "raw": read.raw,
            "json_of": read.json_of,
            "timestamptz": read.timestamptz,
            "any_time": read.time,
            "with_trace": _with_trace,
            "no_tombstones": _no_tombstones,
            "LATEST": [None, b""],
            "record": tuple.__new__,
            "Record": Record,
        }

    def _envelope(self) -> list[str]:
        """Put the value into an envelope, with what the row's headers tell of it."""
        told = "*(own or ()), " if self._has("headers") else ""
        told += "('traceparent', traceparent), " if self._has("traceparent") else ""
        arguments = f"type_header[1], encoder.dataschema, id, aggregateid, time, sequence, value, ({told})"
        return [f"        value = enveloped({arguments})"]

    def _step(self, type_oid: int) -> str:
        """Return the encoder's method that checks a payload and gives the record's value."""
        if self._mapping.payload == "avro":
            return "pass_through"
        if self._mapping.value != "avro":
            return "validate"
        return "encode_bytes" if type_oid == BYTEA_OID else "encode"

    def _has(self, key: str) -> bool:
        return key in self._located.columns or key in self._located.paths

    def _new_kind(self, place: object, values: dict[str, bytes | None]) -> Kind:
        event_type, version = values.get("type"), values.get("schema_version")
        if event_type is None:
            raise read.null("type")
        if len(event_type) > NAME_LIMIT:
            raise read.too_long("type")
        number = None if version is None else read.number("schema_version", version, "schema")
        encoder = self._encoder(fill(self._mapping.subject, values), number)
        kind = Kind(encoder, ("ce_type", event_type), ("ce_dataschema", encoder.dataschema.encode()))
        _remember(self._kinds, place, kind)
        return kind

    def _new_topic(self, place: object, values: dict[str, bytes | None]) -> str:
        topic = fill(self._mapping.route, values)
        _remember(self._topics, place, topic)
        return topic


def fill(template: str, values: dict[str, bytes | None]) -> str:
    """Put a row's values into a template; raises InvalidEvent for one that is NULL."""
    return re.sub(r"\{(\w+)\}", lambda match: read.text(match[1], values.get(match[1])), template)


def _remember(cache: dict[object, Found], place: object, value: Found) -> None:
    if len(cache) >= CACHE_LIMIT:
        cache.clear()
    cache[place] = value


def _key(keys: Sequence[str]) -> str:
    """Return the expression of a cache's key: one value as it is, several as a tuple."""
    return keys[0] if len(keys) == 1 else f"({', '.join(keys)},)" if keys else "None"


def _variable(key: str) -> str:
    """Return the generated function's name of what a key holds: a header may be called anything."""
    return key if key in KEYS else f"placed_{key.encode().hex()}"


def _placed(key: str, types: dict[str, int]) -> str:
    """Return the expression of a placed column as Kafka Connect writes its value into a header."""
    variable, oid = _variable(key), types.get(key, 0)
    return f"shown({oid}, {variable})" if oid in (BOOL_OID, TIMESTAMPTZ_OID) else variable


def _arguments(keys: Sequence[str]) -> str:
    return "{" + ", ".join(f"{key!r}: {key}" for key in keys) + "}"


def _with_trace(headers: list[tuple[str, bytes | None]], traceparent: bytes) -> list[tuple[str, bytes | None]]:
    return [*(header for header in headers if header[0] != "traceparent"), ("traceparent", traceparent)]


def _no_tombstones() -> InvalidEvent:
    return InvalidEvent("tombstone", "the payload is NULL and outbox.tombstones is off", "allow tombstones, or write a payload")


def _refuser(missing: InvalidEvent) -> Convert:
    def convert(*_: object) -> Record:
        raise InvalidEvent(missing.reason, missing.what, missing.fix)

    return convert


def _nothing(*_: object) -> Record:
    msg = "no relation yet"
    raise AssertionError(msg)
