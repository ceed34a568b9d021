"""The encoder of one schema version: the row's JSON in, Kafka's bytes out, no I/O.

The hot path, at the rate of the log. Strategy: `codegen` writes Python that checks and encodes in one pass, compiled once.
It only says that a value does not fit; the slow path then reads the JSON again without losing a digit, and either encodes
that (a number that orjson would have rounded) or explains the refusal. Encoding is strict: it never changes a number, drops
a field, guesses a union's branch or fills in a field that has no default.
"""

from __future__ import annotations

import json
import struct
from decimal import Decimal, InvalidOperation
from math import isfinite
from typing import TYPE_CHECKING, Final, NoReturn

import orjson

from cdc.avro.codegen import generate
from cdc.avro.explain import problems
from cdc.avro.passthrough import Passthrough
from cdc.avro.schema import Fixed, Json, Primitive, walk
from cdc.avro.wire import COUNTS
from cdc.errors import InvalidEvent

if TYPE_CHECKING:
    from collections.abc import Callable

    from cdc.avro.schema import Schema

_REFUSALS: Final = (
    KeyError, TypeError, AttributeError, ValueError, IndexError, OverflowError, RecursionError, struct.error
)  # fmt: skip
"""What generated code raises for a value that does not fit; everything else is a bug."""


class Encoder:
    """Encodes payloads of one version of one subject."""

    __slots__ = (
        "_body", "_exact", "_passthrough", "_schema", "_source", "_takes_bytes", "dataschema", "parse", "schema_id", "subject", "version"
    )  # fmt: skip

    def __init__(self, subject: str, version: int, schema_id: int, schema: Schema) -> None:
        self.subject = subject
        self.version = version
        self.schema_id = schema_id
        self.dataschema = f"{subject}/{version}"
        self._schema = schema
        self._exact = _needs_exact(schema)
        self._passthrough: Passthrough | None = None
        self._takes_bytes = schema.root == Primitive("bytes")
        self.parse: Callable[[bytes | str], Json] = exact_json if self._exact else orjson.loads
        self._source = generate(schema, b"\0" + schema_id.to_bytes(4, "big"))
        self._body = _compiled(self._source.text, self._source.constants, self.dataschema)

    def __repr__(self) -> str:
        return f"<Encoder {self.dataschema} id={self.schema_id}>"

    @property
    def schema(self) -> Schema:
        """What it encodes."""
        return self._schema

    @property
    def source(self) -> str:
        """The generated Python."""
        return self._source.text

    def encode(self, payload: bytes | str) -> bytes:
        """Check a row's JSON text and return the Confluent wire format; raises InvalidEvent."""
        try:
            value = self.parse(payload)
            try:
                return self._body(value)
            except IndexError:  # a text or a list beyond the table of lengths
                return self._body(value, COUNTS)
        except _REFUSALS:
            pass
        return self._slowly(self._parse_exactly(payload))

    def encode_value(self, value: Json) -> bytes:
        """Do the same for a value that is parsed already: JSON's types, Decimal for exact numbers, bytes for bytes."""
        try:
            try:
                return self._body(value)
            except IndexError:
                return self._body(value, COUNTS)
        except _REFUSALS:
            pass
        return self._slowly(_exactly(value))

    def encode_bytes(self, payload: bytes) -> bytes:
        """Encode the content of a bytea column: the value itself when the schema is bytes, else JSON text."""
        return self.encode_value(payload) if self._takes_bytes else self.encode(payload)

    def validate(self, payload: bytes | str) -> bytes | str:
        """Check a row's JSON text and return it unchanged; raises InvalidEvent."""
        self.encode(payload)
        return payload

    def pass_through(self, payload: bytes) -> bytes:
        """Check a payload that is Avro already and return the Confluent wire format; raises InvalidEvent."""
        if self._passthrough is None:
            self._passthrough = Passthrough(self.dataschema, self.schema_id, self._schema)
        return self._passthrough.check(payload)

    def _slowly(self, value: Json) -> bytes:
        found = problems(self._schema, value)
        if found:
            self._refuse("; ".join(each.what for each in found), next((each.fix for each in found if each.fix), ""))
        try:
            return self._body(value, COUNTS)
        except _REFUSALS:
            self._refuse("$: does not fit")

    def _parse_exactly(self, payload: bytes | str) -> Json:
        try:
            orjson.loads(payload)
        except orjson.JSONDecodeError as error:
            if "infinity" not in error.msg:
                self._refuse(f"the payload is not JSON (at character {error.pos})")
        try:
            return exact_json(payload)
        except (ValueError, RecursionError):
            self._refuse("the payload is not JSON, or holds a number or a nesting beyond every limit")

    def _refuse(self, found: str, fix: str = "") -> NoReturn:
        raise InvalidEvent("schema", f"{self.dataschema} {found}", fix) from None


def exact_json(payload: bytes | str) -> Json:
    """Read JSON with every digit: whole numbers as int, all others as Decimal; ValueError for what is not JSON."""
    return _EXACT.decode(payload if type(payload) is str else payload.decode())  # type: ignore[union-attr]


def _decimal(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:  # an exponent of 19 digits
        return Decimal("Infinity")


def _refuse_constant(text: str) -> NoReturn:
    msg = f"{text} is not JSON"
    raise ValueError(msg)


_EXACT: Final = json.JSONDecoder(parse_float=_decimal, parse_constant=_refuse_constant)


def _exactly(value: Json) -> Json:
    """Replace floats by what they are exactly, so that large ones are told from whole numbers that were rounded."""
    if type(value) is float and isfinite(value):
        return Decimal(value)
    if type(value) is list:
        return [_exactly(item) for item in value]
    if type(value) is dict:
        return {key: _exactly(item) for key, item in value.items()}
    return value


def _needs_exact(schema: Schema) -> bool:
    """Whether the schema holds decimals: orjson reads those as floats."""
    return any(
        isinstance(node, (Primitive, Fixed)) and node.logical is not None and node.logical.name == "decimal" for node in walk(schema.root)
    )


def _compiled(source: str, constants: dict[str, Json], name: str) -> Callable[..., bytes]:
    module = dict(constants)
    exec(compile(source, f"<encoder of {name}>", "exec"), module)  # noqa: S102 - written by codegen from a checked schema
    encode: Callable[..., bytes] = module["encode"]
    return encode
