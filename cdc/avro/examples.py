"""Make the smallest payload that a schema allows, or one that takes a given way through it: a `Schema` in, JSON values out.

It shows people what an event looks like, and what a reader could not read. No I/O, no randomness.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cdc.avro.schema import NO_DEFAULT, Array, Enum, Fixed, Json, Map, Primitive, Record, Union, branch_name
from cdc.avro.unions import branches, kinds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cdc.avro.compatibility import Step
    from cdc.avro.schema import Node, Schema


class EndlessError(ValueError):
    """This way leads around in a circle; another branch of a union ends it."""


def example(schema: Schema, steps: Sequence[Step] = ()) -> Json:
    """Return a payload that takes `steps` and is as small as it can be elsewhere."""
    return _node(schema, schema.root, tuple(steps), ())


def _node(schema: Schema, node: Node, steps: tuple[Step, ...], above: tuple[str, ...]) -> Json:
    node = schema.resolve(node)
    if isinstance(node, Union):
        return _union(schema, node, steps, above)
    if isinstance(node, Record):
        if node.name in above:
            raise EndlessError(node.name)
        taken = steps[0].name if steps else ""
        return {
            field.name: _node(schema, field.type, steps[1:], ())  # the steps come to an end, so this way does too
            if field.name == taken
            else _node(schema, field.type, (), (*above, node.name))
            for field in node.fields
            if field.default is NO_DEFAULT or field.name == taken
        }
    if isinstance(node, Array):
        return [_node(schema, node.items, steps[1:], ())] if steps else []
    if isinstance(node, Map):
        return {"key": _node(schema, node.values, steps[1:], ())} if steps else {}
    if isinstance(node, Enum):
        return steps[0].name if steps else node.symbols[0]
    return _leaf(node)


def _leaf(node: Primitive | Fixed) -> Json:
    if node.logical is not None:
        return _LOGICAL[node.logical.name]
    return "\0" * node.size if isinstance(node, Fixed) else _PRIMITIVE[node.type]


def _union(schema: Schema, node: Union, steps: tuple[Step, ...], above: tuple[str, ...]) -> Json:
    wanted = [b for b in node.branches if steps and branch_name(b) == steps[0].name]
    for branch in wanted or sorted(node.branches, key=lambda b: b != Primitive("null")):
        try:
            value = _node(schema, branch, steps[1:], () if steps else above)
        except EndlessError:
            continue
        rule = branches(schema, node)
        mine = kinds(schema, branch)
        plain = not mine & rule.ambiguous and not (rule.tagged and "object" in mine)
        return value if plain else {branch_name(branch): value}
    raise EndlessError("union")


_PRIMITIVE: Final[dict[str, Json]] = {
    "null": None, "boolean": False, "int": 0, "long": 0, "float": 0.5, "double": 0.5, "bytes": "\xff", "string": "",
}  # fmt: skip
"""The bytes are no UTF-8, so that nobody takes them for a text."""

_LOGICAL: Final[dict[str, Json]] = {
    "uuid": "00000000-0000-0000-0000-000000000000",
    "date": "1970-01-01",
    "time-millis": "00:00:00",
    "time-micros": "00:00:00",
    "timestamp-millis": "1970-01-01T00:00:00Z",
    "timestamp-micros": "1970-01-01T00:00:00Z",
    "timestamp-nanos": "1970-01-01T00:00:00Z",
    "local-timestamp-millis": "1970-01-01T00:00:00",
    "local-timestamp-micros": "1970-01-01T00:00:00",
    "local-timestamp-nanos": "1970-01-01T00:00:00",
    "duration": "P0D",
    "decimal": 0,
}
