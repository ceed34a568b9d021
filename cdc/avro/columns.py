"""Turn a column's text, as pgoutput sends it, into what a JSON payload would hold: text in, values out, no I/O.

Strategy: DECODERS maps the oid of a base type to a function. The connection fixes DateStyle, TimeZone, bytea_output and
client_encoding, so the text has one form. A domain is decoded as its base type and an enum as its text; the caller resolves
those. A value that no event can hold (an infinite time) stays what it is, a text, and the schema refuses it by name.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Final

from cdc.avro.encoder import exact_json
from cdc.errors import InvalidEvent

if TYPE_CHECKING:
    from collections.abc import Callable

    from cdc.avro.schema import Json

_SPECIAL: Final = ("NaN", "Infinity", "-Infinity")

BOOL, BYTEA, INT8, INT2, INT4, TEXT, JSON, FLOAT4, FLOAT8, NUMERIC, JSONB = 16, 17, 20, 21, 23, 25, 114, 700, 701, 1700, 3802
"""Oids of pg_type that have been the same since PostgreSQL 9."""

ARRAYS: Final = {
    1000: BOOL, 1001: BYTEA, 1016: INT8, 1005: INT2, 1007: INT4, 1009: TEXT, 1015: TEXT, 199: JSON, 1021: FLOAT4,
    1022: FLOAT8, 1231: NUMERIC, 3807: JSONB, 2951: TEXT, 1182: TEXT, 1183: TEXT, 1115: TEXT, 1185: TEXT,
}  # fmt: skip
"""Array types and their elements."""


def value(oid: int, text: str) -> Json:
    """Return the value of a column of the base type `oid`; an unknown type is a text. Raises InvalidEvent."""
    try:
        if oid in ARRAYS:
            return _array(text, DECODERS.get(ARRAYS[oid], str))
        return DECODERS.get(oid, str)(text)
    except (ValueError, IndexError):
        msg = f"a column of type {oid} holds a text that is not one of that type"
        raise InvalidEvent("mapping", msg, "let cdc set up the replication connection itself") from None


def _bool(text: str) -> bool:
    return ("f", "t").index(text) == 1


def _bytea(text: str) -> bytes:
    if not text.startswith("\\x"):
        msg = "bytea_output is not hex"
        raise ValueError(msg)
    return bytes.fromhex(text[2:])


def _float(text: str) -> float | str:
    return text if text in _SPECIAL else float(text)


def _numeric(text: str) -> Decimal | str:
    return text if text in _SPECIAL else Decimal(text)


def _array(text: str, decode: Callable[[str], Json]) -> list[Json]:
    """Read `{1,NULL,"a b",{..}}`; explicit bounds (`[2:3]={..}`) are left out."""
    start = text.index("{")
    items, end = _items(text, start + 1, decode)
    if end != len(text):
        msg = "text after an array"
        raise ValueError(msg)
    return items


def _items(text: str, at: int, decode: Callable[[str], Json]) -> tuple[list[Json], int]:
    items: list[Json] = []
    while text[at] != "}":
        if text[at] == "{":
            inner, at = _items(text, at + 1, decode)
            items.append(inner)
        elif text[at] == '"':
            word, at = _quoted(text, at + 1)
            items.append(decode(word))
        else:
            end = min(i for i in (text.find(",", at), text.find("}", at)) if i >= 0)
            word = text[at:end]
            items.append(None if word == "NULL" else decode(word))
            at = end
        if text[at] == ",":
            at += 1
    return items, at + 1


def _quoted(text: str, at: int) -> tuple[str, int]:
    parts: list[str] = []
    while text[at] != '"':
        at += text[at] == "\\"
        parts.append(text[at])
        at += 1
    return "".join(parts), at + 1


DECODERS: Final[dict[int, Callable[[str], Json]]] = {
    BOOL: _bool,
    BYTEA: _bytea,
    INT8: int,
    INT2: int,
    INT4: int,
    JSON: exact_json,
    JSONB: exact_json,
    FLOAT4: _float,
    FLOAT8: _float,
    NUMERIC: _numeric,
}
"""Everything else is a text already: text, uuid, dates and times in ISO form, enums."""
