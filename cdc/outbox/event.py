"""An event as an application hands it over, before it is a row: values only.

The id is made when the Event is made, once: a transaction that is tried again appends the same event, and never a second one.
"""

from __future__ import annotations

import secrets
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from cdc.errors import InvalidEvent
from cdc.outbox.model import EventModel


def uuid7() -> uuid.UUID:
    """Return a new UUID of version 7 (RFC 9562, 5.7): 48 bits of Unix milliseconds, then random ones, so that ids sort by time."""
    milliseconds, random = time.time_ns() // 1_000_000, secrets.randbits(74)
    return uuid.UUID(int=milliseconds << 80 | 7 << 76 | random >> 62 << 64 | 2 << 62 | random & (1 << 62) - 1)


@dataclass(frozen=True, slots=True)
class Event:
    """One event: what happened (`type`), to which thing (`key`), and everything about it (`payload`).

    `payload` is what the schema of the type describes: a dictionary, or a generated class (see `Event.of`). Decimal, datetime,
    date, time, UUID, bytes and Enum may stand in it and are written in the form that the schema asks for. None is a tombstone.
    `key` is the record's key: events of one key keep their order. `aggregatetype` usually names the topic (`topics.route`).

    `id` is a new UUIDv7, made once for each Event; give your own only if the outbox has another type of id. `schema_version`
    is the version to write, else the one that the schema folder pins, else the newest. `headers` are texts. `occurred_at`
    needs a time zone; without it the time of the commit counts. `topic`, `partition`, `traceparent` and `correlation_id` go
    before what the settings and the context say.

    The repr shows type and id alone: what an event holds belongs to nobody's log.
    """

    type: str
    key: str = field(repr=False)
    payload: object = field(repr=False)
    aggregatetype: str | None = field(default=None, repr=False)
    id: uuid.UUID | str | int = field(default_factory=uuid7, kw_only=True)
    schema_version: int | None = field(default=None, repr=False, kw_only=True)
    headers: Mapping[str, object] = field(default_factory=dict, repr=False, kw_only=True)
    occurred_at: datetime | None = field(default=None, repr=False, kw_only=True)
    topic: str | None = field(default=None, repr=False, kw_only=True)
    partition: int | None = field(default=None, repr=False, kw_only=True)
    traceparent: str | None = field(default=None, repr=False, kw_only=True)
    correlation_id: str | None = field(default=None, repr=False, kw_only=True)

    @classmethod
    def of(cls, model: EventModel, **more: Any) -> Event:  # noqa: ANN401 - the fields of Event
        """Return the event of a generated class: `Event.of(OrderPlaced(..), correlation_id="c-1")`.

        Type, version, aggregate type and key come from the class (`cdc schemas codegen` takes the last two from
        `registry.toml`), and `more`, the other fields of Event, goes before them. Raises InvalidEvent("mapping") when nobody
        says what the key is.
        """
        about = model.__cdc__
        if "key" not in more and not about.key:
            msg = f"{type(model).__name__}: it is not said which field is the key"
            raise InvalidEvent("mapping", msg, "set key in registry.toml and generate again, or give it: Event.of(event, key=..)")
        known: dict[str, Any] = {"type": about.type, "schema_version": about.version, "aggregatetype": about.aggregatetype or None}
        if "key" not in more:
            known["key"] = model.key_text()
        return cls(payload=model, **{**known, **more})
