"""What a handler is given: a record's headers read as an event, and its decoded value; no I/O.

Headers are those of either style: CloudEvents' `ce_*`, or Debezium's `id`. A record without an id (nobody's outbox wrote it) is
told by its place, which stays the same as long as it is not written again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple

from cdc.outbox.context import event_context

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from cdc.event import Seen

    Value = TypeVar("Value", default=Any)
else:
    from typing import TypeVar

    Value = TypeVar("Value")  # a default, which `Event` alone needs for type checkers, is Python 3.13's

ORIGIN: Final = "cdc.origin"
"""Header of a record that was moved: `topic/partition/offset` where it lay first."""

ATTEMPT: Final = "cdc.attempt"
"""Header of a record in a retry topic: how many attempts have failed."""

DUE: Final = "cdc.due"
"""Header of a record in a retry topic: Unix time in milliseconds before which it is not tried."""

REDRIVES: Final = "cdc.redrives"
"""Header of a redriven dead letter: how often it has been redriven."""

FOR_HANDLERS: Final = "cdc.handlers"
"""Header of a moved record: the handlers that are not done with it, separated by commas; without it all are meant."""

TIMESTAMP: Final = "cdc.timestamp"
"""Header of a record that was moved: its first timestamp, Unix time in milliseconds."""

MARKER_LIMIT: Final = 500
"""Characters of an id that are kept as they are: PostgreSQL indexes no more than 2,700 bytes."""


class Origin(NamedTuple):
    """Where a record lay first."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"


class Envelope(NamedTuple):
    """What a record says of itself beside its value; texts are empty where a header is missing."""

    id: str
    source: str
    type: str
    key: str | None
    sequence: str
    time: str
    replay: str
    headers: Mapping[str, str]
    origin: Origin

    @property
    def correlation_id(self) -> str:
        """The id that all events of one business transaction share, if the writer gave one."""
        return self.headers.get("correlationid") or self.headers.get("correlation_id") or ""

    @property
    def attempts(self) -> int:
        """Attempts that have failed before the record came to this topic."""
        return whole(self.headers.get(ATTEMPT))

    @property
    def due_ms(self) -> int:
        """Unix time in milliseconds before which it is not tried; 0 for at once."""
        return whole(self.headers.get(DUE))

    @property
    def timestamp_ms(self) -> int:
        """When the event was written first, 0 for a record that was never moved."""
        return whole(self.headers.get(TIMESTAMP))

    @property
    def moved(self) -> bool:
        """Whether it comes from a retry topic, or is a dead letter of this consumer that has come back."""
        return ORIGIN in self.headers


def envelope(seen: Seen) -> Envelope:
    """Read a record's headers; whatever they hold, this succeeds."""
    headers = {name: (value or b"").decode(errors="backslashreplace") for name, value in seen.headers}
    origin = _origin(headers.get(ORIGIN, "")) or Origin(seen.topic, seen.partition, seen.offset)
    return Envelope(
        id=headers.get("ce_id") or headers.get("id") or str(origin),
        source=headers.get("ce_source", ""),
        type=headers.get("ce_type") or headers.get("eventType", ""),
        key=None if seen.key is None else seen.key.decode(errors="backslashreplace"),
        sequence=headers.get("ce_sequence", ""),
        time=headers.get("ce_time", ""),
        replay=headers.get("ce_replay") or headers.get("replay", ""),
        headers=headers,
        origin=origin,
    )


def storable(text: str) -> str:
    r"""Return a text as PostgreSQL can keep and index it.

    Its text has no U+0000, which is kept as backslash and 0 (a backslash beside it is doubled, so that no two texts become one);
    one over MARKER_LIMIT is kept as its SHA-256.
    """
    if "\0" in text:
        text = text.replace("\\", "\\\\").replace("\0", "\\0")
    if len(text) > MARKER_LIMIT:
        return "sha256:" + hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
    return text


def key_id(key: bytes) -> bytes:
    """Return a record's key as it is compared and kept in an index: long ones as their SHA-256."""
    return key if len(key) <= MARKER_LIMIT else b"sha256:" + hashlib.sha256(key).digest()


def named(seen: Seen) -> int:
    """Return a number for a record by its event's source and id: below 0, and the same wherever and however often it comes."""
    told = envelope(seen)
    digest = hashlib.sha256(f"{told.source}\0{told.id}".encode(errors="surrogatepass")).digest()
    return -1 - (int.from_bytes(digest[:8], "big") >> 1)


def whole(text: str | None) -> int:
    """Read a header that is a number; 0 when it is missing or is none."""
    return int(text) if text and _is_whole(text) else 0


def _is_whole(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 19  # noqa: PLR2004 - of a 64-bit number


def _origin(text: str) -> Origin | None:
    topic, _, rest = text.partition("/")
    partition, _, offset = rest.partition("/")
    if not (topic and _is_whole(partition) and _is_whole(offset)):
        return None
    return Origin(topic, int(partition), int(offset))


@dataclass(frozen=True, slots=True)
class Event(Generic[Value]):
    """One event, for one handler; `Event[OrderPlaced]` where a type checker is to know what `value` is.

    `value` is the decoded document in the shape of the reader's version (or the model's instance), None for a tombstone. `id`
    and `source` together name the event everywhere and for ever; `sequence` sorts as text in commit order (empty when the
    writer has none). `schema_version` is the version that wrote it. `attempt` counts from 1. `replay` says why an event comes
    again (`replay:ID`, `rewind:GENERATION`, `redrive:ID`), empty for a live one. `newer_applied` is set for a dead letter that
    comes back, and for an attempt from a retry topic, when a later event of its key was applied meanwhile. `prepared` is what
    the handler's `compute` returned, `marker` the handler's name in the inbox.

    `idempotency_key` is the same in every attempt, process and replay, and another one for each handler: hand it to whatever
    outside of the database can tell by it that the call was made before. The repr shows no data.
    """

    id: str
    source: str
    type: str
    key: str | None
    value: Value
    time: str
    sequence: str
    schema_version: int
    headers: Mapping[str, str]
    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    attempt: int = 1
    replay: str = ""
    newer_applied: bool = False
    prepared: Any = None
    marker: str = ""

    @property
    def correlation_id(self) -> str:
        """The id that all events of one business transaction share; the event's own id when the writer gave none."""
        return self.headers.get("correlationid") or self.headers.get("correlation_id") or self.id

    @property
    def idempotency_key(self) -> str:
        """What names this event's handling by this handler, for ever: 64 hex digits."""
        return idempotency_key(self.marker, self.source, self.id)

    @property
    def moved(self) -> bool:
        """Whether it left its partition before: a later attempt from a retry topic, or a dead letter that has come back."""
        return ORIGIN in self.headers

    @property
    def traceparent(self) -> str:
        """The W3C trace context of the writer, empty without one."""
        return self.headers.get("traceparent", "")

    def context(self) -> AbstractContextManager[None]:
        """Give what is appended to an outbox inside of the block this event's correlation id and trace.

        A handler of one event is called inside of it; one that takes a list enters it for the event on which it works.
        """
        return event_context(correlation_id=self.correlation_id, traceparent=self.traceparent or None)

    def __repr__(self) -> str:
        return f"<Event {self.type} {self.id} at {self.topic}[{self.partition}]@{self.offset}>"


def idempotency_key(marker: str, source: str, event_id: str) -> str:
    """Return the key for calls that one handler makes for one event: 64 hex digits."""
    return hashlib.sha256(f"{marker}\0{source}\0{event_id}".encode(errors="surrogatepass")).hexdigest()
