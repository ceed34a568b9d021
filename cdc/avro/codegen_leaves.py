"""Write the Python for types that hold no other types: scalars, logical types, lists of numbers. No I/O.

Each function gets the writer and the name of the variable that holds the value, writes the checks that cannot be left to the
expressions, and returns the expressions of its bytes. CONSTANTS are the objects that all generated code may name.
"""

from __future__ import annotations

import struct
from decimal import Decimal
from typing import TYPE_CHECKING, Final

from cdc.avro import values
from cdc.avro.schema import Fixed, Json, Node, Primitive
from cdc.avro.wire import COUNT, LARGE, LONG, SMALL, int32, long

if TYPE_CHECKING:
    from collections.abc import Callable

    from cdc.avro.codegen import Writer

CONSTANTS: Final[dict[str, Json]] = {
    "COUNT": COUNT, "LONG": LONG, "long": long, "int32": int32, "join": b"".join, "ABSENT": object(),
    "Misfit": values.Misfit, "Decimal": Decimal, "double": values.double, "float32": values.float32,
    "DOUBLE": values.DOUBLE.pack, "INT_TYPES": {int}, "FLOAT_TYPES": {float}, "pack": struct.pack,
    "decimal_bytes": values.decimal_bytes, "decimal_fixed": values.decimal_fixed, "uuid_text": values.uuid_text,
    "uuid_fixed": values.uuid_fixed, "days": values.days, "time_of_day": values.time_of_day,
    "instant": values.instant, "local_time": values.local_time, "duration": values.duration,
}  # fmt: skip


def logical(writer: Writer, node: Primitive | Fixed, var: str) -> list[str]:
    """Write a logical type as a call of its conversion."""
    kind = node.logical
    assert kind is not None, "only called for a logical type"
    out = writer.name("x")
    family, _, unit = kind.name.rpartition("-")
    if kind.name == "decimal" and isinstance(node, Fixed):
        return [f"decimal_fixed({var}, {kind.precision}, {kind.scale}, {node.size})"]
    if kind.name == "decimal":
        writer.add(f"{out} = decimal_bytes({var}, {kind.precision}, {kind.scale})")
        return [f"COUNT[len({out})]", out]
    if kind.name == "uuid":
        return [f"uuid_fixed({var})"] if isinstance(node, Fixed) else ["b'H'", f"uuid_text({var})"]
    if kind.name == "duration":
        return [f"duration({var})"]
    if kind.name == "date":
        return [f"int32(days({var}))"]
    function = {"time": "time_of_day", "timestamp": "instant", "local-timestamp": "local_time"}[family]
    return [f"long({function}({var}, {unit!r}))"]


def _null(writer: Writer, var: str) -> list[str]:
    writer.add(f"if {var} is not None: raise Misfit")
    return []


def _boolean(writer: Writer, var: str) -> list[str]:
    writer.add(f"if type({var}) is not bool: raise Misfit")
    return [f"(b'\\1' if {var} else b'\\0')"]


def _int(writer: Writer, var: str) -> list[str]:
    writer.add(f"if type({var}) is not int: raise Misfit")
    return [f"LONG[{var}] if -{SMALL} <= {var} < {LARGE} else int32({var})"]


def _long(writer: Writer, var: str) -> list[str]:
    writer.add(f"if type({var}) is not int: raise Misfit")
    return [f"LONG[{var}] if -{SMALL} <= {var} < {LARGE} else long({var})"]


def _float(_: Writer, var: str) -> list[str]:
    return [f"float32({var})"]


def _double(_: Writer, var: str) -> list[str]:
    limit = values.EXACT_LIMIT
    return [f"DOUBLE({var}) if type({var}) is float and -{limit!r} < {var} < {limit!r} else double({var})"]


def _bytes(writer: Writer, var: str) -> list[str]:
    out = writer.octets(var)
    return [f"COUNT[len({out})]", out]


def _string(writer: Writer, var: str) -> list[str]:
    out = writer.name("s")
    writer.add(f"{out} = {var}.encode()")
    return [f"COUNT[len({out})]", out]


def _longs(writer: Writer, out: str, var: str) -> None:
    _whole_numbers(writer, out, var, "long")


def _ints(writer: Writer, out: str, var: str) -> None:
    _whole_numbers(writer, out, var, "int32")


def _whole_numbers(writer: Writer, out: str, var: str, function: str) -> None:
    writer.add(f"if set(map(type, {var})) != INT_TYPES: raise Misfit")
    each = f"LONG[e] if -{SMALL} <= e < {LARGE} else {function}(e)"
    writer.add(f"{out} = COUNT[len({var})] + join([{each} for e in {var}]) + b'\\0'")


def _doubles(writer: Writer, out: str, var: str) -> None:
    limit = values.EXACT_LIMIT
    writer.add(f"if set(map(type, {var})) == FLOAT_TYPES and -{limit!r} < min({var}) and max({var}) < {limit!r}:")
    writer.add(f"    {out} = COUNT[len({var})] + pack('<%dd' % len({var}), *{var}) + b'\\0'")
    writer.add(f"else: {out} = COUNT[len({var})] + join([double(e) for e in {var}]) + b'\\0'")


BULK: Final[dict[Node, Callable[[Writer, str, str], None]]] = {
    Primitive("int"): _ints,
    Primitive("long"): _longs,
    Primitive("double"): _doubles,
}

PRIMITIVES: Final[dict[str, Callable[[Writer, str], list[str]]]] = {
    "null": _null,
    "boolean": _boolean,
    "int": _int,
    "long": _long,
    "float": _float,
    "double": _double,
    "bytes": _bytes,
    "string": _string,
}
