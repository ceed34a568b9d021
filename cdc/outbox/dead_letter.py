"""The record that an invalid row becomes, and the row that it was; no I/O.

A dead letter keeps all that the row said, so that it can be encoded again when the schema was mended and the row is long
deleted: key and value are the row's own bytes, `cdc.row` has its other columns as a JSON object of their texts, and
`cdc.sequence` and `cdc.time` its transaction. Beside them it says why the row was refused and where it was meant to go.

Headers are Kafka Connect's names (KIP-298), so that its tools understand them, beside our own. The row's place in the log is
in `cdc.sequence`; Connect's partition, offset and stack trace stay empty.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from cdc.avro.columns import BYTEA
from cdc.errors import InvalidEvent
from cdc.event import Record, record_size
from cdc.outbox.mapping import NAME_LIMIT, OutboxMapping, found
from cdc.position import Lsn, time_from_text, time_text
from cdc.postgres.pgoutput import Begin, Column, Relation
from cdc.postgres.transaction import Row

REDRIVEN: Final = "cdc.redriven"
"""Header of the record that a redrive leaves beside the dead letter; its value is the topic that got the event."""


def dead_letter(  # noqa: PLR0913 - one field for each header
    topic: str,
    values: Mapping[str, bytes | None],
    error: InvalidEvent,
    *,
    pipeline: str,
    sequence: str,
    commit_time_us: int,
    meant_for: str,
    limit_bytes: int,
) -> Record:
    """Return the dead letter of a row that says `values`, by key.

    Over the limit of its topic the payload is left out, and the other columns too when that is not enough.
    """
    key, payload = values.get("aggregateid"), values.get("payload")
    headers: list[tuple[str, bytes | None]] = [
        ("cdc.reason", error.reason.encode()),
        ("cdc.id", (values.get("id") or b"")[:NAME_LIMIT]),
        ("cdc.sequence", sequence.encode()),
        ("cdc.type", (values.get("type") or b"")[:NAME_LIMIT]),
        ("cdc.time", time_text(commit_time_us).encode()),
        ("__connect.errors.topic", meant_for[:NAME_LIMIT].encode()),
        ("__connect.errors.partition", b""),
        ("__connect.errors.offset", b""),
        ("__connect.errors.connector.name", pipeline.encode()),
        ("__connect.errors.task.id", b"0"),
        ("__connect.errors.stage", STAGES.get(error.reason, "TRANSFORMATION").encode()),
        ("__connect.errors.class.name", b"cdc"),
        ("__connect.errors.exception.class.name", type(error).__name__.encode()),
        ("__connect.errors.exception.message", str(error)[:MESSAGE_LIMIT].encode()),
        ("__connect.errors.exception.stacktrace", b""),
    ]
    timestamp_ms = commit_time_us // 1000
    record = Record(topic, key, payload, [*headers, ("cdc.row", _columns(values))], timestamp_ms)
    if record_size(record) <= limit_bytes:
        return record
    headers.append(("cdc.payload.bytes", str(len(payload or b"")).encode()))
    short = key if len(key or b"") <= KEY_LIMIT else None
    record = Record(topic, short, None, [*headers, ("cdc.row", _columns(values))], timestamp_ms)
    return record if record_size(record) <= limit_bytes else record._replace(headers=headers)


def original(mapping: OutboxMapping, headers: Mapping[str, bytes | None], key: bytes | None, payload: bytes | None) -> Row:
    """Return the row that a dead letter was, for a router of today's settings; raises InvalidEvent if it was not kept whole.

    What today's mapping finds in the payload comes from there, all else from what the row's columns said.
    """
    if "cdc.row" not in headers or "cdc.payload.bytes" in headers:
        raise InvalidEvent("size", "the dead letter did not keep the whole row: it was too large")
    # Bytes of a bytea column need not be JSON, and text passes as bytes as well.
    written = None if payload is None else b"\\x" + payload.hex().encode()
    values = said(headers) | {"aggregateid": key, "payload": written}
    for name in found(mapping, [mapping.column("payload")]).paths:
        values.pop(name, None)
    begin, ordinal = transaction(headers)
    return begin, _relation(tuple(mapping.column(name) for name in values), mapping.column("payload")), ordinal, tuple(values.values())


@lru_cache
def _relation(names: tuple[str, ...], payload: str) -> Relation:
    """Return a table with these columns; one and the same for all rows alike, because a router compiles a function for each."""
    columns = tuple(Column(name, BYTEA if name == payload else TEXT_OID, -1, key=False) for name in names)
    return Relation(0, "", "dead letter", "d", columns)


def transaction(headers: Mapping[str, bytes | None]) -> tuple[Begin, int]:
    """Return the transaction in which a dead letter's row was written, and the row's number in it."""
    place, time = headers.get("cdc.sequence") or b"", headers.get("cdc.time") or b""
    return Begin(Lsn(int(place[4:20], 16)), time_from_text(time.decode()), 0), int(place[20:], 16)


def said(headers: Mapping[str, bytes | None]) -> dict[str, bytes | None]:
    """Return what the row of a dead letter said, by key, but for the key and the payload."""
    kept = headers.get("cdc.row")
    if kept is None:
        return {"type": headers.get("cdc.type")}
    return {name: None if text is None else text.encode(errors="surrogateescape") for name, text in json.loads(kept).items()}


def _columns(values: Mapping[str, bytes | None]) -> bytes:
    """Write all but the key and the payload, which the record keeps as they are; not all bytes need be UTF-8."""
    texts = {name: None if value is None else value.decode(errors="surrogateescape") for name, value in values.items() if name not in _OWN}
    return json.dumps(texts).encode()


_OWN: Final = ("aggregateid", "payload")

TEXT_OID: Final = 25
"""pg_type.dat: a column that the router takes as it is."""

STAGES = {"schema": "VALUE_CONVERTER", "size": "TASK_PUT", "route": "TASK_PUT"}
"""Kafka Connect's stage for each of our reasons; a mapping or tombstone refusal happens in its TRANSFORMATION."""

MESSAGE_LIMIT = 1_000
"""Characters of the reason kept: names in it come from rows, and a header must not fill the record."""

KEY_LIMIT = 10_000
"""Bytes of a key kept in a dead letter whose payload was left out."""
