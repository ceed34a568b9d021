"""Handlers, and the units of work that a record is for them; no I/O.

Strategy: `Reader.read` finds the handlers of a record by its type, decodes the value once for each version that they want, and
gives one unit for each handler. A record that nobody handles is not decoded, so a type whose schema we do not have is no error
for those who do not want it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from cdc.avro.decoder import Decoder, MalformedError
from cdc.consumer.event import FOR_HANDLERS, Envelope, Event, envelope, key_id
from cdc.consumer.retry import Retry
from cdc.outbox.envelope import CONTENT_TYPE as ENVELOPE

if TYPE_CHECKING:
    from cdc.avro.registry import Registry
    from cdc.event import Seen

ANY: Final = "*"
"""The type of a handler that takes every event."""

Function = Callable[..., Any]
Errors = tuple[type[BaseException], ...]


@dataclass(frozen=True, slots=True)
class Handler:
    """One handler: what it takes and how it wants to be called.

    `marker` is its name in the inbox. `call` takes (event, connection), or (list of events, connection) when it is one for `many`.
    `unique` gives the business key of an event.
    """

    name: str
    marker: str
    type: str
    call: Function
    is_async: bool
    version: int | None = None
    model: Function | None = None
    retry: Retry = field(default_factory=Retry)
    breaker: str | None = None
    dependency_errors: Errors = ()
    unique: Callable[[Event], str] | None = None
    unique_for_s: float | None = None
    compute: Function | None = None
    pipeline: bool = False
    many: bool = False

    def __repr__(self) -> str:
        return f"<Handler {self.marker} of {self.type}>"


class Unit(NamedTuple):
    """One event for one handler; `key` is its `key_id` when a dead letter of that key is open, else None."""

    event: Event
    handler: Handler
    key: bytes | None = None


class Reader:
    """Turns records into units."""

    def __init__(self, handlers: Sequence[Handler], registry: Registry | None) -> None:
        self.registry = registry
        self.every = tuple(handlers)
        self._wild = [handler for handler in handlers if handler.type == ANY]
        self._by_type: dict[str, list[Handler]] = {}
        for handler in handlers:
            if handler.type != ANY:
                self._by_type.setdefault(handler.type, []).append(handler)
        self._decoders: dict[tuple[str, int | None], Decoder] = {}
        self._plain = Decoder(registry) if registry is not None else None

    def __repr__(self) -> str:
        return f"<Reader of {len(self._by_type)} types>"

    def renewed(self, registry: Registry) -> None:
        """Take a newer copy of the schema folder."""
        self.registry, self._plain = registry, Decoder(registry)
        self._decoders = {}

    def handlers(self, told: Envelope, value: bytes | None) -> list[Handler]:
        """Return who takes a record; a record that does not tell its type is told by its schema's subject."""
        kind = told.type or self._subject(value)
        chosen = [*self._by_type.get(kind, ()), *self._wild]
        if FOR_HANDLERS not in told.headers:
            return chosen
        meant = set(filter(None, told.headers[FOR_HANDLERS].split(",")))
        # A handler that has another name by now is none of those that are done: all are asked, and the inbox tells.
        known = meant <= {handler.name for handler in chosen}
        return [handler for handler in chosen if handler.name in meant] if meant and known else chosen

    def breaker(self, seen: Seen) -> str | None:
        """Return the breaker on which a record depends, if it does."""
        return next((each.breaker for each in self.handlers(envelope(seen), seen.value) if each.breaker), None)

    def alone(self, seen: Seen) -> bool:
        """Whether a handler calls a dependency for one event at a time: in a batch that fails it would be called once more for all."""
        return any(each.breaker and not each.many for each in self.handlers(envelope(seen), seen.value))

    def read(self, seen: Seen, attempt: int = 1, done: Collection[str] = (), watched: Collection[bytes] = ()) -> list[Unit]:
        """Return the units of a record for handlers that are not done; raises InvalidEvent for one that cannot be decoded."""
        told = envelope(seen)
        handlers = [handler for handler in self.handlers(told, seen.value) if handler.name not in done]
        values: dict[int | None, tuple[Any, int]] = {}
        key = None if seen.key is None else key_id(seen.key)
        units = []
        for handler in handlers:
            if handler.version not in values:
                values[handler.version] = self._value(seen.value, told, handler.version)
            value, written = values[handler.version]
            modelled = value if handler.model is None or value is None else self._modelled(handler.model, value)
            event = Event(
                id=told.id,
                source=told.source,
                type=told.type or self._subject(seen.value),
                key=told.key,
                value=modelled,
                time=told.time,
                sequence=told.sequence,
                schema_version=written,
                headers=told.headers,
                topic=seen.topic,
                partition=seen.partition,
                offset=seen.offset,
                timestamp_ms=seen.timestamp_ms,
                attempt=attempt,
                replay=told.replay,
                marker=handler.marker,
            )
            units.append(Unit(event, handler, key if told.moved or key in watched else None))
        return units

    def _value(self, value: bytes | None, told: Envelope, version: int | None) -> tuple[Any, int]:
        """Decode a value into the shape of a version (None: of the newest that we know), and tell which version wrote it."""
        if value is None:
            return None, 0
        if told.headers.get("content-type") == "application/json":
            return _json(value), _version_in(told.headers)
        if told.headers.get("content-type") == ENVELOPE:
            return _data(value), _version_in(told.headers)
        if self.registry is None or self._plain is None:
            if not value:
                msg = "a value of 0 bytes is no event"
                raise MalformedError(msg)
            return value, 0
        subject = self._plain.version_of(value).subject
        decoder = self._decoders.get((subject, version))
        if decoder is None:
            number = version or self.registry.latest(subject).number
            decoder = self._decoders[subject, version] = Decoder(self.registry, {subject: number})
        decoded, writer = decoder.decode_with_version(value)
        return decoded, writer.number

    def _subject(self, value: bytes | None) -> str:
        """Return the subject of a value's schema, empty where it cannot be told: who decodes it will say why."""
        if self.registry is None or value is None or len(value) < 5 or value[0] != 0:  # noqa: PLR2004 - the wire format's header
            return ""
        version = self.registry.by_id(int.from_bytes(value[1:5], "big"))
        return "" if version is None else version.subject

    def _modelled(self, model: Function, value: object) -> object:
        try:
            return model(value)
        except Exception as error:  # noqa: BLE001 - whatever a model raises
            msg = f"the value does not fit the handler's model: {type(error).__name__}"
            raise MalformedError(msg) from None


def _data(value: bytes) -> object:
    envelope = _json(value)
    if not isinstance(envelope, dict) or "data" not in envelope:
        msg = "a CloudEvents envelope without data"
        raise MalformedError(msg)
    return envelope["data"]


def _json(value: bytes) -> object:
    try:
        return orjson.loads(value)
    except ValueError:
        msg = f"a value of {len(value)} bytes is no JSON"
        raise MalformedError(msg) from None


def _version_in(headers: Mapping[str, str]) -> int:
    """Return the version that `ce_dataschema` names, 0 without one."""
    number = headers.get("ce_dataschema", "").rpartition("/")[2]
    return int(number) if number.isascii() and number.isdigit() else 0
