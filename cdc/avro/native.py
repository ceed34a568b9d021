"""Write Python values in the form that an encoder takes: values in, values out, no I/O.

Strategy: one walk beside the schema. Decimals, times, identifiers and bytes become the texts that their types take; an object
with `members()` (a generated class) becomes a dictionary of Avro's names. A value in a union whose JSON kind several branches
take is put into the object that names its branch, if its Python type fits one branch alone. Nothing is judged here: what does
not fit is left as it is, for the encoder to refuse with the path. Only what JSON has no form for is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum as PythonEnum
from math import isfinite
from typing import Final
from uuid import UUID

from cdc.avro.schema import Array, Enum, Fixed, Json, Map, Node, Primitive, Record, Schema, Union, branch_name
from cdc.avro.unions import branches, kinds
from cdc.errors import InvalidEvent


def json_text(schema: Schema, value: object) -> str:
    """Return the JSON text of a payload; raises InvalidEvent for a value that has none."""
    try:
        text = json.dumps(_value(schema, schema.root, value, "$"), ensure_ascii=False, separators=(",", ":"))
        text.encode()
    except RecursionError:
        raise InvalidEvent("schema", "the payload is nested too deeply, or holds itself") from None
    except UnicodeEncodeError:
        raise InvalidEvent("schema", "a text of the payload holds half of a surrogate pair") from None
    return text


def _value(schema: Schema, node: Node | None, value: object, path: str) -> Json:
    """Walk into what holds other values; `node` is None where the schema does not know the value."""
    node = None if node is None else schema.resolve(node)
    if isinstance(node, Union):
        return _in_union(schema, node, value, path)
    if type(value) in _PLAIN:
        return value
    if (members := getattr(value, "members", None)) is not None and hasattr(value, "__cdc__"):
        value = dict(members())
    if isinstance(value, Mapping):
        types = _types(node, value)
        return {_name(name, path): _value(schema, types.get(name), item, f"{path}.{name}") for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = node.items if isinstance(node, Array) else None
        return [_value(schema, items, item, f"{path}[{i}]") for i, item in enumerate(value)]
    for kind, form in _FORMS:
        if isinstance(value, kind):
            return form(value)
    msg = f"{path}: came a {type(value).__name__}, which has no form in JSON"
    raise InvalidEvent("schema", msg, "give the schema's own types: texts, numbers, dictionaries, Decimal, datetime, UUID, bytes")


def _types(node: Node | None, names: Iterable[object]) -> Mapping[object, Node]:
    """Return the types of an object's members, by name, as far as the schema knows them."""
    if isinstance(node, Record):
        return {field.name: field.type for field in node.fields}
    return dict.fromkeys(names, node.values) if isinstance(node, Map) else {}


def _name(name: object, path: str) -> str:
    if not isinstance(name, str):
        msg = f"{path}: an object has a name that is no text"
        raise InvalidEvent("schema", msg)
    return name


def _in_union(schema: Schema, union: Union, value: object, path: str) -> Json:
    if value is None:
        return None
    rule = branches(schema, union)
    if rule.tagged and isinstance(value, Mapping) and len(value) == 1 and next(iter(value)) in rule.named:
        return {name: _value(schema, union.branches[rule.named[name]], item, f"{path}.{name}") for name, item in value.items()}
    fitting = [branch for branch in union.branches if takes(schema, branch, value)]
    if len(fitting) != 1:
        return _value(schema, None, value, path)
    (branch,) = fitting
    written = _value(schema, branch, value, path)
    index = union.branches.index(branch)
    plain = {rule.plain.get(kind) for kind in kinds(schema, branch) & _KINDS.get(type(written), frozenset())}
    return written if index in plain or not rule.tagged else {branch_name(schema.resolve(branch)): written}


def takes(schema: Schema, node: Node, value: object) -> bool:
    """Whether a Python value belongs to a type, as far as its own type tells."""
    node = schema.resolve(node)
    about = getattr(value, "__cdc__", None)
    if about is not None:
        return isinstance(node, Record) and bool(about.avro == node.name)
    return any(type(value) is kind for kind in python_types(node))


def python_types(node: Node) -> tuple[type, ...]:
    """Return the Python types whose values a type takes, the one that is read back first; a record's class comes beside them."""
    if isinstance(node, (Primitive, Fixed)) and node.logical is not None:
        return _LOGICAL[node.logical.name.split("-")[0]]
    if isinstance(node, Primitive):
        return _PRIMITIVE[node.type]
    return _CONTAINERS[type(node)]


_PRIMITIVE: Final[dict[str, tuple[type, ...]]] = {
    "null": (type(None),), "boolean": (bool,), "int": (int,), "long": (int,), "float": (float,), "double": (float,),
    "bytes": (bytes,), "string": (str,),
}  # fmt: skip
_LOGICAL: Final[dict[str, tuple[type, ...]]] = {
    "decimal": (Decimal,), "uuid": (UUID,), "date": (date,), "time": (time,), "timestamp": (datetime,), "local": (datetime,),
    "duration": (str,),
}  # fmt: skip
_CONTAINERS: Final[dict[type, tuple[type, ...]]] = {Enum: (str,), Fixed: (bytes,), Array: (list, tuple), Map: (dict,), Record: (dict,)}

_PLAIN: Final = frozenset({str, int, bool, type(None)})
"""Types that JSON has as they are."""

_KINDS: Final = {
    type(None): frozenset({"null"}), bool: frozenset({"boolean"}), int: frozenset({"integer"}), float: frozenset({"number"}),
    str: frozenset({"string"}), list: frozenset({"array"}), dict: frozenset({"object"}),
}  # fmt: skip


def _float(value: float) -> float | str:
    return value if isfinite(value) else "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"  # noqa: PLR0124 - only NaN


_FORMS: Final[tuple[tuple[type, Callable[[Json], Json]], ...]] = (
    (type(None), lambda value: value),
    (PythonEnum, lambda value: value.value),
    (bool, lambda value: value),
    (int, int),
    (float, _float),
    (str, str),
    (Decimal, str),
    (UUID, str),
    (datetime, lambda value: value.isoformat()),
    (date, lambda value: value.isoformat()),
    (time, lambda value: value.isoformat()),
    (bytes, lambda value: value.decode("latin-1")),
)
"""In this order: a datetime is a date, and a truth value is a number."""
