"""Random schemas with values that fit: as JSON text, as fastavro takes them, and broken at a known place."""

from __future__ import annotations

import json
import struct
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from cdc.avro.parse import parse
from cdc.avro.unions import branches

if TYPE_CHECKING:
    from collections.abc import Callable

Json = Any


@dataclass(frozen=True)
class Pair:
    """One value in both forms, and the places at which it can be broken: path, and a function that breaks a copy."""

    json: Json
    python: Any


@dataclass(frozen=True)
class Typed:
    """A schema as JSON, and values of it."""

    schema: Json
    values: st.SearchStrategy[Pair]
    kinds: frozenset[str]
    name: str


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
LONGS = st.one_of(st.integers(-100, 200_000), st.integers(-(2**63), 2**63 - 1), st.sampled_from([2**53 + 1, -(2**63), 2**63 - 1, -8193]))
INTS = st.one_of(st.integers(-100, 200_000), st.integers(-(2**31), 2**31 - 1))
MICROS = timedelta(microseconds=1)


def _same(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Pair]:
    return values.map(lambda value: Pair(value, value))


def _octets(data: bytes) -> Pair:
    return Pair(data.decode("latin-1"), data)


def _uuid(value: uuid.UUID) -> Pair:
    return Pair(str(value), value)


def _stamp(digits: int, *, local: bool) -> st.SearchStrategy[Pair]:
    moments = st.datetimes(datetime(1700, 1, 1), datetime(2200, 1, 1))  # noqa: DTZ001 - the zone is added below

    def pair(moment: datetime, offset: int) -> Pair:
        if digits == 3:
            moment = moment.replace(microsecond=moment.microsecond // 1000 * 1000)
        if local:
            return Pair(moment.isoformat(), moment)
        text = (moment + timedelta(minutes=offset)).isoformat() + (
            f"{'-' if offset < 0 else '+'}{abs(offset) // 60:02}:{abs(offset) % 60:02}" if offset else "Z"
        )
        return Pair(text, moment.replace(tzinfo=UTC))

    return st.builds(pair, moments, st.integers(-840, 840))


def _nanos(*, local: bool) -> st.SearchStrategy[Pair]:
    epoch = datetime(1970, 1, 1)  # noqa: DTZ001 - both clocks start there

    def pair(nanos: int) -> Pair:
        seconds, rest = divmod(nanos, 10**9)
        text = (epoch + timedelta(seconds=seconds)).isoformat() + f".{rest:09}" + ("" if local else "Z")
        return Pair(text, nanos)

    return st.integers(-(2**62), 2**62).map(pair)


def _time(digits: int) -> st.SearchStrategy[Pair]:
    def pair(value: time) -> Pair:
        if digits == 3:
            value = value.replace(microsecond=value.microsecond // 1000 * 1000)
        return Pair(value.isoformat(), value)

    return st.times().map(pair)


def _decimal(precision: int, scale: int) -> st.SearchStrategy[Pair]:
    def pair(whole: int, form: str) -> Pair:
        number = Decimal(whole).scaleb(-scale)
        return Pair(str(number) if form == "text" else number, number)

    limit = 10 ** min(precision, 27) - 1  # fastavro scales with the 28 digits of the default context
    return st.builds(pair, st.integers(-limit, limit), st.sampled_from(["text", "number"]))


def _duration(months: int, days: int, millis: int) -> Pair:
    text = f"P{months}M{days}DT{millis // 1000}.{millis % 1000:03}S"
    return Pair(text, struct.pack("<III", months, days, millis))


STRING = frozenset({"string"})
NUMBER = frozenset({"integer", "number"})


def _logical(base: str, name: str, values: st.SearchStrategy[Pair], **more: int) -> Typed:
    kinds = STRING | NUMBER if name == "decimal" else STRING
    return Typed({"type": base, "logicalType": name, **more}, values, kinds, base)


SMALL = st.integers(0, 2**31)

LEAVES = [
    Typed("null", st.just(Pair(None, None)), frozenset({"null"}), "null"),
    Typed("boolean", _same(st.booleans()), frozenset({"boolean"}), "boolean"),
    Typed("int", _same(INTS), frozenset({"integer"}), "int"),
    Typed("long", _same(LONGS), frozenset({"integer"}), "long"),
    Typed("float", _same(st.floats(width=32, allow_nan=False, allow_infinity=False)), NUMBER, "float"),
    Typed("double", _same(st.floats(allow_nan=False, allow_infinity=False)), NUMBER, "double"),
    Typed("bytes", st.binary(max_size=12).map(_octets), STRING, "bytes"),
    Typed("string", _same(TEXT), STRING, "string"),
    _logical("string", "uuid", st.uuids().map(_uuid)),
    _logical("int", "date", st.dates().map(lambda day: Pair(day.isoformat(), day))),
    _logical("int", "time-millis", _time(3)),
    _logical("long", "time-micros", _time(6)),
    _logical("long", "timestamp-millis", _stamp(3, local=False)),
    _logical("long", "timestamp-micros", _stamp(6, local=False)),
    _logical("long", "timestamp-nanos", _nanos(local=False)),
    _logical("long", "local-timestamp-millis", _stamp(3, local=True)),
    _logical("long", "local-timestamp-micros", _stamp(6, local=True)),
    _logical("long", "local-timestamp-nanos", _nanos(local=True)),
    _logical("bytes", "decimal", _decimal(10, 2), precision=10, scale=2),
    _logical("bytes", "decimal", _decimal(26, 12), precision=26, scale=12),
]


class _Names:
    """Fresh names within one schema."""

    def __init__(self) -> None:
        self.used = 0

    def fresh(self, prefix: str) -> str:
        self.used += 1
        return f"{prefix}{self.used}"


def _named_leaf(draw: st.DrawFn, names: _Names) -> Typed:
    kind = draw(st.sampled_from(["enum", "fixed", "decimal", "duration", "uuid"]))
    name = names.fresh("N")
    if kind == "enum":
        symbols = [f"S{i}" for i in range(draw(st.integers(1, 4)))]
        return Typed({"type": "enum", "name": name, "symbols": symbols}, _same(st.sampled_from(symbols)), STRING, name)
    schema: Json = {"type": "fixed", "name": name}
    if kind == "fixed":
        size = draw(st.integers(1, 6))
        return Typed({**schema, "size": size}, st.binary(min_size=size, max_size=size).map(_octets), STRING, name)
    if kind == "decimal":
        more = {"size": 8, "logicalType": "decimal", "precision": 12, "scale": 3}
        return Typed({**schema, **more}, _decimal(12, 3), STRING | NUMBER, name)
    if kind == "duration":
        values = st.builds(_duration, st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 2**31))
        return Typed({**schema, "size": 12, "logicalType": "duration"}, values, STRING, name)
    return Typed({**schema, "size": 16, "logicalType": "uuid"}, st.uuids().map(lambda u: Pair(str(u), u.bytes)), STRING, name)


def _array(items: Typed) -> Typed:
    def pair(parts: list[Pair]) -> Pair:
        return Pair([p.json for p in parts], [p.python for p in parts])

    values = st.lists(items.values, max_size=4).map(pair)
    return Typed({"type": "array", "items": items.schema}, values, frozenset({"array"}), "array")


def _map(inner: Typed) -> Typed:
    def pair(parts: dict[str, Pair]) -> Pair:
        return Pair({k: p.json for k, p in parts.items()}, {k: p.python for k, p in parts.items()})

    values = st.dictionaries(TEXT, inner.values, max_size=3).map(pair)
    return Typed({"type": "map", "values": inner.schema}, values, frozenset({"object"}), "map")


def _record(draw: st.DrawFn, names: _Names, depth: int) -> Typed:
    name = names.fresh("R")
    fields: list[Json] = []
    typed: dict[str, Typed] = {}
    absent: dict[str, Any] = {}
    for index in range(draw(st.integers(0, 4))):
        inner = _typed(draw, names, depth - 1)
        field: Json = {"name": f"f{index}", "type": inner.schema}
        if inner.schema in ("int", "long", "double") and draw(st.booleans()):
            field["default"] = absent[f"f{index}"] = 7
        if isinstance(inner.schema, list) and inner.schema[0] == "null" and draw(st.booleans()):
            field["default"] = absent[f"f{index}"] = None
        fields.append(field)
        typed[field["name"]] = inner

    def pair(parts: dict[str, Pair | None]) -> Pair:
        python = {k: absent[k] if p is None else p.python for k, p in parts.items()}
        return Pair({k: p.json for k, p in parts.items() if p is not None}, python)

    values = st.fixed_dictionaries({k: st.none() | t.values if k in absent else t.values for k, t in typed.items()}).map(pair)
    return Typed({"type": "record", "name": name, "fields": fields}, values, frozenset({"object"}), name)


def _recursive(names: _Names) -> Typed:
    name = names.fresh("T")
    schema = {
        "type": "record",
        "name": name,
        "fields": [
            {"name": "value", "type": "long"},
            {"name": "children", "type": {"type": "array", "items": name}},
            {"name": "next", "type": ["null", name], "default": None},
        ],
    }
    leaf: st.SearchStrategy[Json] = LONGS.map(lambda n: {"value": n, "children": [], "next": None})
    tree = st.recursive(
        leaf,
        lambda inner: st.builds(
            lambda n, c, x: {"value": n, "children": c, "next": x}, LONGS, st.lists(inner, max_size=2), st.none() | inner
        ),
        max_leaves=5,
    )
    return Typed(schema, _same(tree), frozenset({"object"}), name)


def _union(draw: st.DrawFn, names: _Names, depth: int) -> Typed:
    inner = [_typed(draw, names, depth - 1, union=False) for _ in range(draw(st.integers(1, 4)))]
    if draw(st.booleans()):
        inner.insert(0, LEAVES[0])
    distinct = list({t.name: t for t in inner}.values())
    schema = [t.schema for t in distinct]
    rule = branches(*_union_of(schema))

    def wrap(branch: Typed) -> Callable[[Pair], Pair]:
        def pair(p: Pair) -> Pair:
            kind = kind_of(p.json)
            plain = rule.plain.get(kind) == distinct.index(branch)
            value = p.python if branch.name == "null" else (branch.name, p.python)
            return Pair(p.json if plain else {branch.name: p.json}, value)

        return pair

    values = st.one_of([t.values.map(wrap(t)) for t in distinct])
    return Typed(schema, values, frozenset().union(*[t.kinds for t in distinct]), "union")


def _union_of(schema: Json) -> tuple[Any, Any]:
    parsed = parse(schema, "test")
    return parsed, parsed.root


def _typed(draw: st.DrawFn, names: _Names, depth: int, *, union: bool = True) -> Typed:  # noqa: PLR0911 - a table of kinds
    if depth <= 0:
        return draw(st.sampled_from(LEAVES)) if draw(st.integers(0, 4)) else _named_leaf(draw, names)
    kind = draw(st.sampled_from(["leaf", "leaf", "named", "array", "map", "record", "record", "tree", "union"]))
    if kind == "named":
        return _named_leaf(draw, names)
    if kind == "array":
        return _array(_typed(draw, names, depth - 1))
    if kind == "map":
        return _map(_typed(draw, names, depth - 1))
    if kind == "record":
        return _record(draw, names, depth)
    if kind == "tree":
        return _recursive(names)
    if kind == "union" and union:
        return _union(draw, names, depth)
    return draw(st.sampled_from(LEAVES))


@st.composite
def typed(draw: st.DrawFn, depth: int = 3) -> Typed:
    """A random schema with its values."""
    return _typed(draw, _Names(), depth)


def kind_of(value: Json) -> str:
    """Name the JSON kind as the union rule does."""
    kinds = {type(None): "null", bool: "boolean", int: "integer", str: "string", list: "array", dict: "object"}
    return kinds.get(type(value), "number")


def text_of(value: Json) -> str:
    """Write JSON with every digit."""
    if isinstance(value, Decimal):
        return format(value, "f") if abs(value.adjusted()) < 40 else str(value)
    if isinstance(value, list):
        return "[" + ",".join(map(text_of, value)) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(k)}:{text_of(v)}" for k, v in value.items()) + "}"
    return json.dumps(value)


WRONG: dict[str, Json] = {
    "null": None, "boolean": True, "integer": 3, "number": 2.5, "string": "wrong", "array": [1], "object": {"wrong": 1},
}  # fmt: skip
