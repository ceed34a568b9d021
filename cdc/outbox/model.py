"""What generated event classes are made of: see `cdc schemas codegen`.

The classes are strict, as the encoder is: a text is no number, a number is no truth value, an unknown field is refused. They
are frozen, because an event has happened. Neither a repr nor an error of theirs shows a value.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from cdc.errors import InvalidEvent

Int = Annotated[int, Field(ge=-(2**31), lt=2**31)]
"""Avro's int."""

Long = Annotated[int, Field(ge=-(2**63), lt=2**63)]
"""Avro's long."""


class About(NamedTuple):
    """What a class knows of its schema: the record's full name, and for an event its type, version, aggregate and key's path."""

    avro: str = ""
    type: str = ""
    version: int = 0
    aggregatetype: str = ""
    key: str = ""


class RecordModel(BaseModel):
    """A record of a schema as a class. A field whose Avro name Python does not allow has the Avro name as its alias."""

    model_config = ConfigDict(
        strict=True, frozen=True, extra="forbid", populate_by_name=True, hide_input_in_errors=True, protected_namespaces=()
    )
    __cdc__: ClassVar[About] = About()

    def __init_subclass__(cls, *, avro: str = "") -> None:
        """Keep what the class line says."""
        cls.__cdc__ = About(avro or cls.__cdc__.avro)

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Show no value."""
        yield from ()

    def members(self) -> Iterator[tuple[str, Any]]:
        """Yield the fields by their Avro names."""
        for name, field in type(self).model_fields.items():
            yield field.serialization_alias or name, getattr(self, name)


class EventModel(RecordModel):
    """An event of the schema folder as a class: `append(cursor, OrderPlaced(order_id=..))`."""

    def __init_subclass__(
        cls,
        *,
        avro: str = "",
        type: str = "",  # noqa: A002 - an event's type
        version: int = 0,
        aggregatetype: str = "",
        key: str = "",
    ) -> None:
        """Keep what the class line says."""
        cls.__cdc__ = About(avro or cls.__cdc__.avro, type, version, aggregatetype, key)

    def key_text(self) -> str:
        """Return the field that registry.toml names as the key, as text; raises InvalidEvent("mapping") if it is none."""
        value: object = self
        for name in self.__cdc__.key.split("."):
            value = dict(value.members()).get(name) if isinstance(value, RecordModel) else None
        if value is None or isinstance(value, (RecordModel, dict, list, bytes, float, bool)):
            msg = f"{type(self).__name__}: the key, {self.__cdc__.key!r}, is no text and no whole number"
            raise InvalidEvent("mapping", msg, "set key in registry.toml to the field that tells which thing the event is about")
        return str(value)
