"""Encode the default that a schema gives for a field: the JSON of the schema in, Avro's bytes out, no I/O.

Strategy: one interpreting walk. Defaults follow Avro's own rules and not those for payloads: they are values of the type
below a logical type (a timestamp's default is a number), bytes are text of the characters 0 to 255, and a union's default
belongs to its first branch. Anything that does not fit is a DefaultError.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from cdc.avro.schema import NO_DEFAULT, Array, Enum, Field, Fixed, Json, Map, Node, Primitive, Record, Ref, Schema, Union, label
from cdc.avro.wire import COUNTS, int32, long

if TYPE_CHECKING:
    from collections.abc import Callable


class DefaultError(ValueError):
    """The default does not fit; the message says where in it and why."""


def encode_default(schema: Schema, node: Node, value: object) -> bytes:  # noqa: PLR0911 - one for each kind of type
    """Encode `value` as `node`, or raise DefaultError."""
    node = schema.resolve(node) if isinstance(node, Ref) else node
    if isinstance(node, Primitive):
        return _primitive(node, value)
    if isinstance(node, Union):
        return b"\0" + encode_default(schema, node.branches[0], value)
    if isinstance(node, Record):
        return _record(schema, node, value)
    if isinstance(node, Array):
        if not isinstance(value, list):
            raise _misfit(node, value)
        return _blocks([encode_default(schema, node.items, item) for item in value])
    if isinstance(node, Map):
        if not isinstance(value, dict):
            raise _misfit(node, value)
        return _blocks([_text(key) + encode_default(schema, node.values, item) for key, item in value.items()])
    if isinstance(node, Enum):
        if not isinstance(value, str) or value not in node.symbols:
            raise _misfit(node, value)
        return long(node.symbols.index(value))
    return _fixed(node, value)


def field_default(schema: Schema, field: Field) -> bytes:
    """Encode the default of a field that has one and was checked when the schema was read."""
    if field.default is NO_DEFAULT:
        msg = f"field {field.name} has no default"
        raise DefaultError(msg)
    return encode_default(schema, field.type, field.default)


def _primitive(node: Primitive, value: object) -> bytes:
    kinds, write = _WRITERS[node.type]
    if type(value) not in kinds:
        raise _misfit(node, value)
    try:
        return write(value)
    except (OverflowError, ValueError, struct.error) as error:
        raise _misfit(node, value) from error


def _record(schema: Schema, node: Record, value: object) -> bytes:
    if not isinstance(value, dict):
        raise _misfit(node, value)
    unknown = value.keys() - {field.name for field in node.fields}
    if unknown:
        msg = f"record {node.name} has no field {min(unknown)}"
        raise DefaultError(msg)
    parts = []
    for field in node.fields:
        given = value.get(field.name, field.default)
        if given is NO_DEFAULT:
            msg = f"field {field.name} of record {node.name} is missing"
            raise DefaultError(msg)
        parts.append(encode_default(schema, field.type, given))
    return b"".join(parts)


def _fixed(node: Fixed, value: object) -> bytes:
    if not isinstance(value, str):
        raise _misfit(node, value)
    try:
        data = value.encode("latin-1")
    except UnicodeEncodeError as error:
        raise _misfit(node, value) from error
    if len(data) != node.size:
        raise _misfit(node, value)
    return data


def _blocks(parts: list[bytes]) -> bytes:
    return COUNTS[len(parts)] + b"".join(parts) + b"\0" if parts else b"\0"


def _text(value: str) -> bytes:
    data = value.encode()
    return COUNTS[len(data)] + data


def _bytes(value: str) -> bytes:
    data = value.encode("latin-1")
    return COUNTS[len(data)] + data


def _misfit(node: Node, value: object) -> DefaultError:
    return DefaultError(f"expected {label(node)}, came {_KINDS.get(type(value), 'something else')}")


_KINDS = {
    type(None): "null", bool: "a boolean", int: "a whole number", float: "a number",
    str: "a text", list: "a list", dict: "an object",
}  # fmt: skip

_WRITERS: dict[str, tuple[tuple[type, ...], Callable[[Json], bytes]]] = {
    "null": ((type(None),), lambda _: b""),
    "boolean": ((bool,), lambda value: b"\1" if value else b"\0"),
    "int": ((int,), int32),
    "long": ((int,), long),
    "float": ((int, float), struct.Struct("<f").pack),
    "double": ((int, float), struct.Struct("<d").pack),
    "bytes": ((str,), _bytes),
    "string": ((str,), _text),
}
