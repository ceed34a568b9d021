"""A table, its rows, and a schema folder in memory, for the tests of the outbox room."""

from __future__ import annotations

from typing import Any

from cdc.avro.encoder import Encoder
from cdc.avro.parse import parse
from cdc.errors import InvalidEvent
from cdc.outbox.mapping import OutboxMapping
from cdc.outbox.router import Router
from cdc.position import Lsn
from cdc.postgres.pgoutput import Begin, Column, Relation
from cdc.postgres.transaction import Row

TEXT, BYTEA, TIMESTAMPTZ = 25, 17, 1184
BEGIN = Begin(Lsn.parse("16/B374D848"), 1_800_000_000_123_456, 844)
SEQUENCE = b"0003" + b"00000016b374d848"

SCHEMA = {"type": "record", "name": "Placed", "fields": [{"name": "n", "type": "int"}, {"name": "kind", "type": "string", "default": ""}]}
ENCODERS = {
    ("OrderPlaced", None): Encoder("OrderPlaced", 2, 8, parse(SCHEMA, "OrderPlaced/2.avsc")),
    ("OrderPlaced", 1): Encoder("OrderPlaced", 1, 7, parse(SCHEMA, "OrderPlaced/1.avsc")),
    ("OrderPlaced", 3): Encoder("OrderPlaced", 3, 10, parse("boolean", "OrderPlaced/3.avsc")),
    ("OrderPlaced", 4): Encoder("OrderPlaced", 4, 11, parse("bytes", "OrderPlaced/4.avsc")),
    ("order-OrderPlaced", None): Encoder("order-OrderPlaced", 1, 9, parse(SCHEMA, "order-OrderPlaced/1.avsc")),
}

ROW: dict[str, bytes | None] = {
    "id": b"e1",
    "aggregatetype": b"order",
    "aggregateid": b"k1",
    "type": b"OrderPlaced",
    "payload": b'{"n":5,"kind":"x"}',
}
BODY = b"\x0a\x02x"


class Asked:
    """The registry's encoder, that remembers what it was asked for."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int | None]] = []

    def __call__(self, subject: str, version: int | None) -> Encoder:
        self.calls.append((subject, version))
        if (subject, version) not in ENCODERS:
            reason = "schema"
            raise InvalidEvent(reason, f"no subject {subject!r} with version {version}")
        return ENCODERS[subject, version]


def relation(*names: str, **types: int) -> Relation:
    """Return a table with these columns, of type text unless told otherwise."""
    return Relation(16_400, "public", "outbox", "d", tuple(Column(name, types.get(name, TEXT), -1, name == "id") for name in names))


def row(ordinal: int = 0, *, begin: Begin = BEGIN, types: dict[str, int] | None = None, **changes: bytes | None) -> Row:
    """Return a row of a table that has the columns of ROW and of the changes."""
    values = ROW | changes
    return begin, relation(*values, **(types or {})), ordinal, tuple(values.values())


def router(asked: Asked | None = None, **mapping: Any) -> Router:  # noqa: ANN401 - fields of the mapping
    return Router(OutboxMapping(**{"source": "/shop", **mapping}), asked or Asked(), 3)
