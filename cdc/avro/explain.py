"""Say where and why a value does not fit its schema: values in, sentences out, no I/O.

Strategy: the compiled encoders only find *that* a value does not fit; for the rare row that does not, this walk goes over
the value again, slowly, with the same conversions, and collects up to MAX_PROBLEMS sentences. A sentence has the JSON path,
what was expected and what kind of value came, and never the value. Keys of a map are values too: a path counts them.
A sentence comes with its fix where the value is right and the schema is too coarse for it.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import TYPE_CHECKING, Final, NamedTuple

from cdc.avro import values
from cdc.avro.schema import NO_DEFAULT, Array, Enum, Fixed, Json, Map, Primitive, Record, Union, branch_name, label
from cdc.avro.unions import branches
from cdc.avro.values import Misfit, TooFine, kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cdc.avro.schema import Node, Schema

MAX_PROBLEMS: Final = 5
"""Sentences for one row; whoever repairs five learns of the next."""

OCTET_MAX: Final = 255
"""Bytes are written as text of the characters 0 to 255, as Avro writes defaults."""

_SAFE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")


class Problem(NamedTuple):
    """What keeps a value from being encoded, and what to do about it where that is known."""

    what: str
    fix: str = ""


def problems(schema: Schema, value: object) -> list[Problem]:
    """Everything that keeps `value` from being encoded, the first MAX_PROBLEMS of it; empty if it fits."""
    found: list[Problem] = []
    try:
        for problem in _node(schema, schema.root, value, "$"):
            found.append(problem)
            if len(found) == MAX_PROBLEMS:
                break
    except RecursionError:
        found.append(Problem("$: nested too deeply"))
    return found


def _node(schema: Schema, node: Node, value: object, path: str) -> Iterator[Problem]:
    resolved = schema.resolve(node)
    yield from _WALKS[type(resolved)](schema, resolved, value, path)


def _leaf(_: Schema, node: Primitive | Fixed | Enum, value: object, path: str) -> Iterator[Problem]:
    try:
        _check_leaf(node, value)
    except Misfit as error:
        yield Problem(f"{path}: expected {label(node)}, came {error}", _finer(node) if isinstance(error, TooFine) else "")


def _finer(node: Primitive | Fixed | Enum) -> str:
    """Say what to do with a time that has more digits than its type: PostgreSQL's and Python's clocks have microseconds."""
    name = "" if isinstance(node, Enum) or node.logical is None else node.logical.name
    family, _, unit = name.rpartition("-")
    if unit == "millis":
        return f"truncate the time, in SQL date_trunc('milliseconds', ..), or declare {family}-micros"
    if unit == "micros" and family != "time":
        return f"truncate the time to microseconds, or declare {family}-nanos"
    return f"truncate the time to {'microseconds' if unit == 'micros' else 'milliseconds'}"


def _check_leaf(node: Primitive | Fixed | Enum, value: object) -> None:
    if isinstance(node, Enum):
        _check_symbol(node, value)
    elif node.logical is not None:
        _check_logical(node, value)
    elif isinstance(node, Fixed):
        _check_octets(value, node.size)
    else:
        _CHECKS[node.type](value)


def _check_symbol(node: Enum, value: object) -> None:
    if type(value) is not str:
        raise Misfit(kind_of(value))
    if value not in node.symbols:
        msg = "a text that is not one of its symbols"
        raise Misfit(msg)


def _check_logical(node: Primitive | Fixed, value: object) -> None:
    logical = node.logical
    assert logical is not None, "only called for a logical type"
    if logical.name == "decimal":
        values.unscaled(value, logical.precision, logical.scale)
        return
    family, _, unit = logical.name.rpartition("-")
    if family:
        {"time": values.time_of_day, "timestamp": values.instant, "local-timestamp": values.local_time}[family](value, unit)
    else:
        {"uuid": values.uuid_text, "date": values.days, "duration": values.duration}[unit](value)


def _check_octets(value: Json, size: int | None = None) -> None:
    if type(value) is str:
        if any(ord(character) > OCTET_MAX for character in value):
            msg = "a text with characters beyond 255"
            raise Misfit(msg)
    elif type(value) is not bytes:
        raise Misfit(kind_of(value))
    if size is not None and len(value) != size:
        msg = f"{len(value)} bytes"
        raise Misfit(msg)


def _check_text(value: object) -> None:
    if type(value) is not str:
        raise Misfit(kind_of(value))
    try:
        value.encode()
    except UnicodeEncodeError:
        msg = "a text with half of a surrogate pair"
        raise Misfit(msg) from None


def _check_type(kind: type) -> Callable[[object], None]:
    def check(value: object) -> None:
        if type(value) is not kind:
            raise Misfit(kind_of(value))

    return check


def _check_double(value: object) -> None:
    if not (type(value) is float and abs(value) >= values.EXACT_LIMIT):
        values.double(value)


def _record(schema: Schema, node: Record, value: object, path: str) -> Iterator[Problem]:
    if type(value) is not dict:
        yield Problem(f"{path}: expected {label(node)}, came {kind_of(value)}")
        return
    for field in node.fields:
        if field.name not in value and field.default is NO_DEFAULT:
            yield Problem(f"{path}: field {field.name!r} is missing and has no default")
    names = {field.name for field in node.fields}
    for key in value:
        if key not in names:
            shown = repr(key) if _SAFE_NAME.fullmatch(key) else "whose name is no Avro name"
            yield Problem(f"{path}: unknown field {shown}")
    for field in node.fields:
        if field.name in value:
            yield from _node(schema, field.type, value[field.name], f"{path}.{field.name}")


def _array(schema: Schema, node: Array, value: object, path: str) -> Iterator[Problem]:
    if type(value) is not list:
        yield Problem(f"{path}: expected array, came {kind_of(value)}")
        return
    for index, item in enumerate(value):
        yield from _node(schema, node.items, item, f"{path}[{index}]")


def _map(schema: Schema, node: Map, value: object, path: str) -> Iterator[Problem]:
    if type(value) is not dict:
        yield Problem(f"{path}: expected map, came {kind_of(value)}")
        return
    for index, (key, item) in enumerate(value.items()):
        here = f"{path}.*{index}"
        yield from _leaf(schema, Primitive("string"), key, here)
        yield from _node(schema, node.values, item, here)


def _union(schema: Schema, node: Union, value: object, path: str) -> Iterator[Problem]:
    rule = branches(schema, node)
    kind = _JSON_KINDS.get(type(value), "")
    if kind in rule.plain:
        yield from _node(schema, node.branches[rule.plain[kind]], value, path)
    elif kind == "object" and rule.tagged:
        yield from _named(schema, node, value, path)
    elif kind in rule.ambiguous:
        takers = ", ".join(branch_name(branch) for branch in node.branches)
        yield Problem(
            f'{path}: {kind_of(value)} could belong to several branches of the union; name one of {takers} as in {{"NAME": value}}'
        )
    else:
        yield Problem(f"{path}: expected {label(node)}, came {kind_of(value)}")


def _named(schema: Schema, node: Union, value: Json, path: str) -> Iterator[Problem]:
    named = branches(schema, node).named
    choice = f"one of {', '.join(named)}"
    if len(value) != 1:
        yield Problem(f"{path}: expected an object with one member that names the branch, {choice}; came one with {len(value)}")
        return
    ((name, inner),) = value.items()
    if name not in named:
        yield Problem(f"{path}: expected a member that names the branch, {choice}")
        return
    yield from _node(schema, node.branches[named[name]], inner, f"{path}.{name}")


_JSON_KINDS: Final = {
    type(None): "null",
    bool: "boolean",
    int: "integer",
    float: "number",
    Decimal: "number",
    str: "string",
    bytes: "bytes",
    list: "array",
    dict: "object",
}

_CHECKS: Final[dict[str, Callable[[object], object]]] = {
    "null": _check_type(type(None)),
    "boolean": _check_type(bool),
    "int": lambda value: values.whole(value, bits=32),
    "long": lambda value: values.whole(value, bits=64),
    "float": values.float32,
    "double": _check_double,
    "bytes": _check_octets,
    "string": _check_text,
}

_WALKS: Final[dict[type, Callable[[Schema, Json, Json, str], Iterator[Problem]]]] = {
    Primitive: _leaf,
    Enum: _leaf,
    Fixed: _leaf,
    Record: _record,
    Array: _array,
    Map: _map,
    Union: _union,
}
