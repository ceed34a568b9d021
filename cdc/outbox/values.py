"""Read single values of a row, in PostgreSQL's text form or from JSON; what does not fit is an InvalidEvent without the value."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import orjson

from cdc.avro import columns
from cdc.errors import InvalidEvent
from cdc.outbox.mapping import NAME_LIMIT, RESERVED_HEADERS, Located
from cdc.postgres.pgoutput import Relation

_UNTYPED = frozenset({columns.BYTEA, columns.TEXT, columns.JSON, columns.JSONB, 1042, 1043})
"""Types whose payload is taken as it is; the numbers are bpchar and varchar."""

FIRST_USER_OID = 16_384
"""FirstNormalObjectId: types below are PostgreSQL's own."""

_TIME = re.compile(rb"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d(?:\.\d+)?)(Z|[+-]\d\d(?::?\d\d)?)?")


def null(key: str) -> InvalidEvent:
    """Return the error of a value that must not be NULL."""
    return InvalidEvent("mapping", f"the row has no {key}: outbox.columns.{key} is NULL or missing in the payload")


def too_long(key: str) -> InvalidEvent:
    """Return the error of an id or a type that cannot be a header."""
    return InvalidEvent("mapping", f"outbox.columns.{key} has more than {NAME_LIMIT} bytes")


def text(key: str, value: bytes | None) -> str:
    """Return a value as text; client_encoding is UTF8, and the server checks it."""
    if value is None:
        raise null(key)
    return value.decode()


def number(key: str, value: bytes, reason: str) -> int:
    """Return a whole number of zero or more."""
    if not value.isdigit():
        raise InvalidEvent(reason, f"outbox.columns.{key} is not a whole number of zero or more")
    return int(value)


def timestamptz(value: bytes) -> bytes:
    """RFC 3339 from a column of type timestamptz, which the connection's settings give in ISO form and in UTC."""
    if value[-3:] == b"+00" and value[4:5] == b"-":
        return b"%bT%bZ" % (value[:10], value[11:-3])
    return time(value)


def time(value: bytes) -> bytes:
    """RFC 3339 from any other column or from JSON; a time without offset is UTC."""
    match = _TIME.fullmatch(value)
    if match is None:
        msg = "outbox.columns.occurred_at is not a finite time such as 2026-01-31T12:00:00Z"
        raise InvalidEvent("mapping", msg)
    day, clock, offset = match.groups()
    if offset in (None, b"Z", b"+00"):
        offset = b"Z"
    elif len(offset) == len("+01"):
        offset += b":00"
    elif len(offset) == len("+0100"):
        offset = offset[:3] + b":" + offset[3:]
    return day + b"T" + clock + offset


def own_headers(value: bytes, reserved: re.Pattern[str] = RESERVED_HEADERS["cloudevents"]) -> list[tuple[str, bytes | None]]:
    """Read the row's own headers from a JSON object; what is not a string keeps its JSON form."""
    try:
        document = orjson.loads(value)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise InvalidEvent("mapping", "outbox.columns.headers is not a JSON object")
    headers: list[tuple[str, bytes | None]] = []
    for name, content in document.items():
        if reserved.fullmatch(name):
            msg = f"outbox.columns.headers has a reserved name at $.{name[:40]}"
            raise InvalidEvent(
                "mapping", msg, "ce_*, content-type and cdc.* are set by the pipeline, and id and replay in Debezium's style"
            )
        if content is None:
            headers.append((name, None))
        else:
            headers.append((name, content.encode() if isinstance(content, str) else orjson.dumps(content)))
    return headers


def shown(oid: int, value: bytes | None) -> bytes | None:
    """Return a boolean or a time as Debezium writes it: `true`, and RFC 3339 with microseconds in UTC."""
    if value is None:
        return None
    if oid == columns.BOOL:
        return b"true" if value == b"t" else b"false"
    try:
        return timestamptz(value)
    except InvalidEvent:
        return value  # infinity


def version_of(headers: list[tuple[str, bytes | None]]) -> bytes | None:
    """Return the schema version that a row's own headers name, if they do."""
    return next((value for name, value in headers if name == "schema_version"), None)


def raw(key: str, value: bytes) -> bytes:
    """Return the bytes of a bytea column, whose text form is hex (bytea_output is set by us)."""
    try:
        return bytes.fromhex(value[2:].decode())
    except ValueError:
        raise InvalidEvent("mapping", f"outbox.columns.{key} is not bytea in hex form") from None


def mapped(located: Located, relation: Relation, row: Sequence[bytes | None]) -> dict[str, bytes | None]:
    """Return all that a row says, by key, as far as it can be found: bytea as its bytes, paths followed where they lead.

    A payload of a built-in type of its own is the JSON of its value.

    For what is kept of a row that cannot become a record, so it raises nothing.
    """
    said = {key: row[i] for key, i in located.columns.items()}
    for key in ("payload", "aggregateid"):
        value = said.get(key)
        if value is None:
            continue
        oid = relation.columns[located.columns[key]].type_oid
        with contextlib.suppress(InvalidEvent):
            if oid == columns.BYTEA:
                said[key] = raw(key, value)
            elif key == "payload" and is_typed(oid):
                said[key] = json_of(oid, value)
    if located.paths:
        with contextlib.suppress(InvalidEvent):
            document = parsed(said.get("payload"))
            for key, path in located.paths.items():
                with contextlib.suppress(InvalidEvent):
                    said[key] = followed(document, path, key)
    return said


def is_typed(oid: int) -> bool:
    """Whether a payload column of this type holds a value of its own, and not JSON, text or bytes; no user's type does."""
    return 0 < oid < FIRST_USER_OID and oid not in _UNTYPED


def json_of(oid: int, value: bytes) -> bytes:
    """Return the JSON of a column of a built-in type, every digit kept: numbers, booleans, lists; all else as text."""
    return _json(columns.value(oid, value.decode(errors="replace"))).encode()


def _json(value: Any) -> str:  # noqa: ANN401 - JSON
    if isinstance(value, list):
        return "[" + ",".join(map(_json, value)) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{_json(name)}:{_json(item)}" for name, item in value.items()) + "}"
    if isinstance(value, bytes):
        value = value.decode("latin-1")
    return str(value) if isinstance(value, Decimal) else json.dumps(value)


def parsed(payload: bytes | None) -> Any:  # noqa: ANN401 - JSON
    """Return the payload as a document, for paths into it."""
    if payload is None:
        return None
    try:
        return orjson.loads(payload)
    except ValueError:
        raise InvalidEvent("schema", "the payload is not JSON") from None


def followed(document: Any, path: tuple[str, ...], key: str) -> bytes | None:  # noqa: ANN401 - JSON
    """Return what stands at a path of the payload, in text form."""
    value = document
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    if value is None or isinstance(value, str):
        return None if value is None else value.encode()
    if key == "headers" or (isinstance(value, int) and not isinstance(value, bool)):
        return orjson.dumps(value)
    msg = f"$.{'.'.join(path)}: a string expected for outbox.columns.{key}, {type(value).__name__} came"
    raise InvalidEvent("mapping", msg)
