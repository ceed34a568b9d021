"""Check payloads that are Avro already, for `payload = "avro"`: bytes in, the same bytes framed, or a refusal. No I/O.

Strategy: one function for each type, built once for each schema version; each takes the bytes and a place, returns the place
after its value, and raises for whatever no writer of that schema can have written: a branch or symbol that does not exist,
text that is not UTF-8, a number out of range, bytes left over. Avro has several spellings for one list (blocks of any size,
with or without their length), and all of them pass.

The payload is the Avro body, as `schemaless_writer` makes it, or the body in Confluent's frame when it names this version.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from cdc.avro.schema import Array, Enum, Fixed, Json, Map, Primitive, Record, Ref, Union
from cdc.avro.wire import INT_MAX, INT_MIN
from cdc.errors import InvalidEvent

if TYPE_CHECKING:
    from collections.abc import Callable

    from cdc.avro.schema import Logical, Node, Schema

    Reader = Callable[[bytes, int], int]

HEADER_BYTES: Final = 5

MAX_EMPTY_ITEMS: Final = 1000
"""Items of a list that take no bytes (nulls): without a limit, ten bytes could keep us busy for years."""

_VARINT_BYTES: Final = 10
_CONTINUES: Final = 128
_DAY: Final = {"millis": 86_400_000, "micros": 86_400_000_000}
_UUID = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)


class _BrokenError(ValueError):
    """The bytes are no value of the schema; says what is wrong and at which byte."""


class Passthrough:
    """Checks bodies of one schema version and frames them."""

    def __init__(self, dataschema: str, schema_id: int, schema: Schema) -> None:
        self.dataschema = dataschema
        self._head = b"\0" + schema_id.to_bytes(4, "big")
        self._read = _Builder(schema).node(schema.root)

    def check(self, payload: bytes) -> bytes:
        """Return the payload in Confluent's wire format; raises InvalidEvent."""
        problem = self._problem(payload)
        if payload[:HEADER_BYTES] == self._head and self._problem(payload[HEADER_BYTES:]) is None:
            if problem is None:
                what = f"{self.dataschema} the bytes are a value both with and without the frame of 5 bytes"
                raise InvalidEvent("schema", what, "write the body alone")
            return payload
        if problem is not None:
            raise InvalidEvent("schema", f"{self.dataschema} the payload is no Avro of this version: {problem}")
        return self._head + payload

    def _problem(self, body: bytes) -> str | None:
        try:
            end = self._read(body, 0)
        except (_BrokenError, IndexError, UnicodeDecodeError, RecursionError) as error:
            return _WORDS.get(type(error)) or str(error)
        return None if end == len(body) else f"{len(body) - end} bytes are left over"


_WORDS: Final[dict[type, str]] = {
    IndexError: "the bytes end too early",
    UnicodeDecodeError: "a text is not UTF-8",
    RecursionError: "it is nested too deeply",
}


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Read a zigzag varint of at most 64 bits."""
    shift = value = 0
    for index in range(at, at + _VARINT_BYTES):
        octet = data[index]
        value |= (octet & 127) << shift
        if octet < _CONTINUES:
            if value >> 64:
                break
            return (value >> 1) ^ -(value & 1), index + 1
        shift += 7
    msg = f"at byte {at} stands a number of more than 64 bits"
    raise _BrokenError(msg)


class _Builder:
    """Makes the functions of one schema."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.named: dict[str, Reader] = {}

    def node(self, node: Node) -> Reader:
        """Make the function of one type."""
        if isinstance(node, Ref):
            name = node.name
            return lambda data, at: self.named[name](data, at)  # noqa: PLW0108 - a recursive type is not there yet
        reader = _MAKERS[type(node)](self, node)
        if isinstance(node, (Record, Enum, Fixed)):
            self.named[node.name] = reader
        return reader

    def primitive(self, node: Primitive) -> Reader:
        """Make the function of a primitive and its logical type."""
        if node.logical is not None and node.logical.name in _LOGICAL:
            return _LOGICAL[node.logical.name](node.logical)
        return _PRIMITIVES[node.type]

    def enum(self, node: Enum) -> Reader:
        """Make a function that knows how many symbols there are."""
        return _index(len(node.symbols), f"symbol of {node.name}")

    def fixed(self, node: Fixed) -> Reader:
        """Make a function that takes so many bytes."""

        def read(data: bytes, at: int) -> int:
            end = _span(data, at, node.size)
            if node.logical is not None and node.logical.name == "decimal":
                _check_precision(data[at:end], node.logical, at)
            return end

        return read

    def record(self, node: Record) -> Reader:
        """Make a function that reads the fields in turn."""
        readers: list[Reader] = []

        def read(data: bytes, at: int) -> int:
            for reader in readers:
                at = reader(data, at)
            return at

        self.named[node.name] = read
        readers += [self.node(field.type) for field in node.fields]
        return read

    def union(self, node: Union) -> Reader:
        """Make a function that follows the branch's index."""
        readers = [self.node(branch) for branch in node.branches]
        check = _index(len(readers), "branch of a union")

        def read(data: bytes, at: int) -> int:
            end = check(data, at)
            return readers[varint(data, at)[0]](data, end)

        return read

    def array(self, node: Array) -> Reader:
        """Make a function that reads blocks of items."""
        return _blocks(self.node(node.items))

    def map(self, node: Map) -> Reader:
        """Make a function that reads blocks of keys and values."""
        value = self.node(node.values)
        return _blocks(lambda data, at: value(data, _text(data, at)))


def _blocks(item: Reader) -> Reader:
    def read(data: bytes, at: int) -> int:
        while True:
            start = at
            count, at = varint(data, at)
            if count == 0:
                return at
            size = None
            if count < 0:
                size, at = varint(data, at)
            begin = at
            if abs(count) > len(data) + MAX_EMPTY_ITEMS:
                raise _BrokenError(f"at byte {start} stands a list that is longer than the payload")
            for _ in range(abs(count)):
                at = item(data, at)
            if size is not None and at - begin != size:
                raise _BrokenError(f"the block at byte {start} is not as long as it says")

    return read


def _index(count: int, what: str) -> Reader:
    def read(data: bytes, at: int) -> int:
        index, end = varint(data, at)
        if not 0 <= index < count:
            msg = f"at byte {at} stands a {what} that does not exist"
            raise _BrokenError(msg)
        return end

    return read


def _span(data: bytes, at: int, size: int) -> int:
    if size < 0 or at + size > len(data):
        raise IndexError
    return at + size


def _null(_: bytes, at: int) -> int:
    return at


def _boolean(data: bytes, at: int) -> int:
    if data[at] > 1:
        msg = f"at byte {at} stands no boolean"
        raise _BrokenError(msg)
    return at + 1


def _int(data: bytes, at: int) -> int:
    value, end = varint(data, at)
    if not INT_MIN <= value <= INT_MAX:
        msg = f"at byte {at} stands a number of more than 32 bits"
        raise _BrokenError(msg)
    return end


def _long(data: bytes, at: int) -> int:
    return varint(data, at)[1]


def _bytes(data: bytes, at: int) -> int:
    size, start = varint(data, at)
    return _span(data, start, size)


def _text(data: bytes, at: int) -> int:
    size, start = varint(data, at)
    end = _span(data, start, size)
    data[start:end].decode()
    return end


def _decimal(logical: Logical) -> Reader:
    def read(data: bytes, at: int) -> int:
        size, start = varint(data, at)
        end = _span(data, start, size)
        _check_precision(data[start:end], logical, at)
        return end

    return read


def _check_precision(octets: bytes, logical: Logical, at: int) -> None:
    if abs(int.from_bytes(octets, "big", signed=True)) >= 10**logical.precision:
        msg = f"at byte {at} stands a number with more than {logical.precision} digits"
        raise _BrokenError(msg)


def _uuid(_: Logical) -> Reader:
    def read(data: bytes, at: int) -> int:
        size, start = varint(data, at)
        end = _span(data, start, size)
        if not _UUID.fullmatch(data, start, end):
            msg = f"at byte {at} stands a text that is not a uuid"
            raise _BrokenError(msg)
        return end

    return read


def _time(logical: Logical) -> Reader:
    limit = _DAY[logical.name.removeprefix("time-")]

    def read(data: bytes, at: int) -> int:
        value, end = varint(data, at)
        if not 0 <= value < limit:
            msg = f"at byte {at} stands a time outside of the day"
            raise _BrokenError(msg)
        return end

    return read


_PRIMITIVES: Final[dict[str, Reader]] = {
    "null": _null,
    "boolean": _boolean,
    "int": _int,
    "long": _long,
    "float": lambda data, at: _span(data, at, 4),
    "double": lambda data, at: _span(data, at, 8),
    "bytes": _bytes,
    "string": _text,
}

_LOGICAL: Final[dict[str, Callable[[Logical], Reader]]] = {
    "decimal": _decimal,
    "uuid": _uuid,
    "time-millis": _time,
    "time-micros": _time,
}

_MAKERS: Final[dict[type, Callable[[_Builder, Json], Reader]]] = {
    Primitive: _Builder.primitive,
    Enum: _Builder.enum,
    Fixed: _Builder.fixed,
    Record: _Builder.record,
    Union: _Builder.union,
    Array: _Builder.array,
    Map: _Builder.map,
}
