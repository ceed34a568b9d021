"""Decode records for consumers: the wire format in, values out, no I/O.

The writer's schema is found by the id in the record and resolved to the version that the reader asks for: bytes of an older
version can't be read with the newer schema alone. What is malformed, left over or unknown is an error of its own kind, so
that a consumer can park the record instead of stopping or guessing.
"""

from __future__ import annotations

import io
import struct
from typing import TYPE_CHECKING, Final

import fastavro

from cdc.errors import InvalidEvent

if TYPE_CHECKING:
    from cdc.avro.registry import Registry, Version
    from cdc.avro.schema import Json

HEADER_BYTES: Final = 5
"""The magic byte 0 and the schema id."""


class UnknownSchemaError(InvalidEvent):
    """The record names a schema id that this registry does not have; a newer one may. Hold it or park it, never drop it."""

    def __init__(self, schema_id: int) -> None:
        super().__init__("schema", f"the record names schema id {schema_id}, which the schema folder does not have",
                         "update the reader's copy of the schema folder, then read the record again")  # fmt: skip
        self.schema_id = schema_id


class MalformedError(InvalidEvent):
    """The bytes are no record of the schema that they name."""

    def __init__(self, what: str) -> None:
        super().__init__("schema", what)


class Decoder:
    """Decodes values; `versions` names, for each subject, the version in whose shape the reader wants them.

    Without a version a value comes in the shape in which it was written.
    """

    def __init__(self, registry: Registry, versions: dict[str, int] | None = None) -> None:
        self.registry = registry
        self.versions = versions or {}
        self._parsed: dict[int, Json] = {}

    def __repr__(self) -> str:
        return f"<Decoder {self.registry!r} reader={self.versions}>"

    def decode(self, value: bytes | None) -> Json:
        """Decode a record's value; a tombstone (None) stays None."""
        return None if value is None else self.decode_with_version(value)[0]

    def decode_with_version(self, value: bytes) -> tuple[Json, Version]:
        """Decode a record's value, and tell which version wrote it."""
        writer = self.version_of(value)
        reader_number = self.versions.get(writer.subject)
        reader = writer if reader_number is None else self.registry.version(writer.subject, reader_number)
        stream = io.BytesIO(value)
        stream.seek(HEADER_BYTES)
        try:
            decoded = fastavro.schemaless_reader(stream, self._schema(writer), None if reader is writer else self._schema(reader))
        except _MALFORMED as error:
            msg = f"the value is no record of {writer} (id {writer.id}) in the shape of {reader}: {type(error).__name__}"
            raise MalformedError(msg) from None
        left = len(value) - stream.tell()
        if left:
            msg = f"{left} bytes are left over after a record of {writer} (id {writer.id})"
            raise MalformedError(msg)
        return decoded, writer

    def version_of(self, value: bytes) -> Version:
        """Return the version that a value names."""
        if len(value) < HEADER_BYTES or value[0] != 0:
            msg = f"a value of {len(value)} bytes does not begin with the byte 0 and a schema id"
            raise MalformedError(msg)
        schema_id = int.from_bytes(value[1:HEADER_BYTES], "big")
        version = self.registry.by_id(schema_id)
        if version is None:
            raise UnknownSchemaError(schema_id)
        return version

    def _schema(self, version: Version) -> Json:
        parsed = self._parsed.get(version.id)
        if parsed is None:
            parsed = self._parsed[version.id] = fastavro.parse_schema(version.schema.document, named_schemas={})
        return parsed


_MALFORMED: Final = (
    EOFError, ValueError, IndexError, KeyError, TypeError, OverflowError, ArithmeticError, RecursionError, struct.error,
    StopIteration, MemoryError, AttributeError, fastavro.read.SchemaResolutionError,
)  # fmt: skip
"""What fastavro raises for bytes that are wrong; no input may bring a consumer down."""
