"""An event without a row: the content of `pg_logical_emit_message(true, prefix, content)`, read as a row of the outbox.

The content is a JSON object whose names are the columns that the table would have: the same contract, so that rows and
messages mix in one transaction. `payload` and `headers` hold JSON and are taken as they are written, digit for digit; all
other values are texts or numbers. A name that is no column is refused: nobody else looks at it, so it can only be a mistake.
Source: PostgreSQL manual, "Replication Management Functions".
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from cdc.avro.columns import BYTEA, JSON, TEXT
from cdc.errors import InvalidEvent
from cdc.outbox.mapping import OutboxMapping
from cdc.postgres.pgoutput import Column, Relation
from cdc.postgres.transaction import MESSAGES

_DECODER: Final = json.JSONDecoder()
_SPACE: Final = re.compile(r"[ \t\n\r]*")


def relation_of(mapping: OutboxMapping) -> Relation:
    """Return the table that messages would be rows of; keys that are mapped to a path into the payload are no columns."""
    payload = mapping.column("payload")
    types = {payload: JSON if mapping.payload == "json" else BYTEA, mapping.column("headers"): JSON}
    names = dict.fromkeys(mapping.column(key) for key in mapping.keys)
    columns = [name for name in names if "." not in name or name.split(".")[0] not in ("payload", payload)]
    return Relation(0, "", MESSAGES.name, "n", tuple(Column(name, types.get(name, TEXT), -1, key=False) for name in columns))


def read(content: bytes, relation: Relation) -> tuple[bytes | None, ...]:
    """Return the values of a message in the order of `relation_of`'s columns; raises InvalidEvent."""
    try:
        written = _members(content.decode())
    except (ValueError, RecursionError):
        msg = "the logical message is not a JSON object"
        raise InvalidEvent("mapping", msg, "emit an object whose names are the outbox's columns") from None
    strange = written.keys() - {column.name for column in relation.columns}
    if strange:
        msg = f"the logical message has a name that is no column of the outbox: {', '.join(map(repr, sorted(strange)))}"
        raise InvalidEvent("mapping", msg, "name a column, or map it in outbox.columns")
    return tuple(_text(column, *written[column.name]) if column.name in written else None for column in relation.columns)


def _text(column: Column, value: Any, text: str) -> bytes | None:  # noqa: ANN401 - JSON
    if value is None:
        return None
    if column.type_oid == JSON:
        return text.encode()
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            msg = f"{column.name!r} of the logical message is no text: it holds half of a surrogate pair"
            raise InvalidEvent("mapping", msg) from None
    if isinstance(value, (dict, list)):
        msg = f"{column.name!r} of the logical message is an {'object' if isinstance(value, dict) else 'array'}"
        raise InvalidEvent("mapping", msg, "write a text or a number")
    return text.encode()


def _members(text: str) -> dict[str, tuple[Any, str]]:
    """Return each member of a JSON object as its value and its own text; ValueError for anything else."""
    members: dict[str, tuple[Any, str]] = {}
    at = _after(text, 0, "{")
    if text[at : at + 1] == "}":
        at += 1
    else:
        more = True
        while more:
            name, at = _DECODER.raw_decode(text, _skip(text, at))
            begin = _after(text, at, ":")
            value, end = _DECODER.raw_decode(text, begin)
            if not isinstance(name, str) or name in members:
                raise ValueError(at)
            members[name] = value, text[begin:end]
            at = _skip(text, end)
            more = text[at : at + 1] == ","
            if not more and text[at : at + 1] != "}":
                raise ValueError(at)
            at += 1
    if _skip(text, at) != len(text):
        raise ValueError(at)
    return members


def _after(text: str, at: int, sign: str) -> int:
    """Return the place after a sign and the space around it."""
    at = _skip(text, at)
    if text[at : at + 1] != sign:
        raise ValueError(at)
    return _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None, "the pattern takes nothing as well"
    return match.end()
