"""Which branch of a union a JSON value belongs to: a rule that looks at the schema, never a guess from the value. No I/O.

A value stands plain where only one branch takes values of its JSON kind. Where two branches do (two records, a text that
could be a string or an enum, a whole number that could be a long or a double), it is written as Avro's JSON encoding writes
it: an object with one member, named as the branch: `{"shop.Card": {"id": 7}}`. In such a union, and in one without a record
or a map, an object is always this form.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cdc.avro.schema import Array, Enum, Fixed, Primitive, Schema, Union, branch_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cdc.avro.schema import Node

_PRIMITIVE_KINDS: Final[dict[str, frozenset[str]]] = {
    "null": frozenset({"null"}),
    "boolean": frozenset({"boolean"}),
    "int": frozenset({"integer"}),
    "long": frozenset({"integer"}),
    "float": frozenset({"integer", "number"}),
    "double": frozenset({"integer", "number"}),
    "bytes": frozenset({"string", "bytes"}),
    "string": frozenset({"string"}),
}
_TEXT: Final = frozenset({"string"})
_DECIMAL: Final = frozenset({"integer", "number", "string"})


@dataclass(frozen=True, slots=True)
class Branches:
    """Who takes what: `plain` by JSON kind, `named` by branch name; an object names its branch when `tagged`."""

    plain: Mapping[str, int]
    named: Mapping[str, int]
    tagged: bool
    ambiguous: frozenset[str]


def branches(schema: Schema, union: Union) -> Branches:
    """Work the rule out for one union."""
    takers: dict[str, list[int]] = {}
    for index, node in enumerate(union.branches):
        for kind in kinds(schema, node):
            takers.setdefault(kind, []).append(index)
    if "string" not in takers:  # the words NaN and Infinity, where no text can be meant
        words = [i for i, node in enumerate(union.branches) if isinstance(node, Primitive) and node.type in {"float", "double"}]
        if words:
            takers["string"] = words
    ambiguous = frozenset(kind for kind, indexes in takers.items() if len(indexes) > 1)
    tagged = bool(ambiguous) or "object" not in takers
    plain = {kind: indexes[0] for kind, indexes in takers.items() if len(indexes) == 1}
    if tagged:
        plain.pop("object", None)
    named = {branch_name(node): index for index, node in enumerate(union.branches)}
    return Branches(plain, named, tagged, ambiguous)


def kinds(schema: Schema, node: Node) -> frozenset[str]:
    """The JSON kinds that a type takes."""
    node = schema.resolve(node)
    if isinstance(node, (Primitive, Fixed)) and node.logical is not None:
        return _DECIMAL if node.logical.name == "decimal" else _TEXT
    if isinstance(node, Primitive):
        return _PRIMITIVE_KINDS[node.type]
    if isinstance(node, Fixed):
        return frozenset({"string", "bytes"})
    if isinstance(node, Enum):
        return _TEXT
    return frozenset({"array"}) if isinstance(node, Array) else frozenset({"object"})
