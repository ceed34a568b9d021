"""Tell one schema from another by a written rule: a `Schema` in, a fingerprint out, no I/O.

What counts, because a reader or a writer can notice it: types, full names, fields and symbols in their order, sizes,
logical types with precision and scale, defaults, aliases, and a field's sort order. What does not count: white space, line
ends, a byte order mark, the order of attributes, how a name is split into name and namespace, where a shared type is written,
`doc`, attributes that Avro does not know, and what is spelled out though it is the rule anyway (scale 0, order ascending).
The fingerprint is the SHA-256 of the canonical JSON of all that counts.
"""

from __future__ import annotations

import hashlib
import uuid
from typing import TYPE_CHECKING, Final

import orjson

from cdc.avro.defaults import field_default
from cdc.avro.schema import NO_DEFAULT, Array, Enum, Field, Fixed, Json, Map, Primitive, Record, Ref, Schema, Union

if TYPE_CHECKING:
    from cdc.avro.schema import Logical, Node

PREFIX: Final = "sha256:"


def fingerprint(schema: Schema) -> str:
    """Return `sha256:` and 64 hex digits."""
    return PREFIX + hashlib.sha256(canonical(schema)).hexdigest()


def guid(print_: str) -> uuid.UUID:
    """Return the fingerprint as a UUID of version 8, for records that name their schema in a header."""
    octets = bytearray(bytes.fromhex(print_.removeprefix(PREFIX))[:16])
    octets[6] = octets[6] & 0x0F | 0x80
    octets[8] = octets[8] & 0x3F | 0x80
    return uuid.UUID(bytes=bytes(octets))


def canonical(schema: Schema) -> bytes:
    """Return the canonical JSON of what counts."""
    return orjson.dumps(_node(schema, schema.root), option=orjson.OPT_SORT_KEYS)


def _node(schema: Schema, node: Node) -> Json:  # noqa: C901 - one branch for each kind of type
    if isinstance(node, Primitive):
        return node.type if node.logical is None else {"type": node.type, **_logical(node.logical)}
    if isinstance(node, Ref):
        return node.name
    if isinstance(node, Array):
        return {"type": "array", "items": _node(schema, node.items)}
    if isinstance(node, Map):
        return {"type": "map", "values": _node(schema, node.values)}
    if isinstance(node, Union):
        return [_node(schema, branch) for branch in node.branches]
    named: dict[str, Json] = {"name": node.name}
    if node.aliases:
        named["aliases"] = sorted(node.aliases)
    if isinstance(node, Enum):
        named |= {"type": "enum", "symbols": node.symbols}
        if node.default is not None:
            named["default"] = node.default
    elif isinstance(node, Fixed):
        named |= {"type": "fixed", "size": node.size, **_logical(node.logical)}
    elif isinstance(node, Record):
        named |= {"type": "record", "fields": [_field(schema, field) for field in node.fields]}
    return named


def _logical(logical: Logical | None) -> dict[str, Json]:
    if logical is None:
        return {}
    if logical.name != "decimal":
        return {"logicalType": logical.name}
    return {"logicalType": "decimal", "precision": logical.precision, "scale": logical.scale}


def _field(schema: Schema, field: Field) -> dict[str, Json]:
    written: dict[str, Json] = {"name": field.name, "type": _node(schema, field.type)}
    if field.default is not NO_DEFAULT:
        written["default"] = field_default(schema, field).hex()
    if field.aliases:
        written["aliases"] = sorted(field.aliases)
    if field.order != "ascending":
        written["order"] = field.order
    return written
