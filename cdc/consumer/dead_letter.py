"""The record that a record becomes when it is moved: a dead letter, or one for a later attempt; no I/O.

A dead letter has the original key, value and headers, and beside them Kafka Connect's names (KIP-298) and the `cdc.*` names that
a pipeline's dead letters have, so that the same tools read both. Where it lay first is kept through every move, so that a letter
that was redriven and failed again still names the partition and offset of the event's own topic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cdc.consumer.event import ATTEMPT, DUE, FOR_HANDLERS, ORIGIN, REDRIVES, TIMESTAMP, Envelope, envelope, whole
from cdc.consumer.lane import Failure, Kind
from cdc.event import Record, record_size

if TYPE_CHECKING:
    from cdc.event import Seen

Headers = list[tuple[str, bytes | None]]

MESSAGE_LIMIT: Final = 1_000
"""Characters of an exception's words that are kept: a header must not fill the record."""

NAME_LIMIT: Final = 1_000
KEY_LIMIT: Final = 10_000
"""Bytes of a name and of a key that are kept in a letter whose value did not fit."""

STAGES: Final = {Kind.UNREADABLE: "VALUE_CONVERTER"}
"""Kafka Connect's stage; what a handler refuses is its TASK_PUT."""

OURS: Final = frozenset(
    {
        *(ORIGIN, ATTEMPT, DUE, FOR_HANDLERS, TIMESTAMP),
        *("cdc.reason", "cdc.id", "cdc.sequence", "cdc.type", "cdc.time", "cdc.attempts", "cdc.payload.bytes"),
    }
)
"""Headers that a move writes anew; those of Connect as well."""

CONNECT: Final = "__connect.errors."


def dead_letter(  # noqa: PLR0913 - what a letter tells
    topic: str, seen: Seen, failure: Failure, *, consumer: str, attempts: int, limit_bytes: int
) -> Record:
    """Return the dead letter of a record; over the limit of its topic first the value is left out, then the event's own headers."""
    told = envelope(seen)
    origin, redrives = told.origin, whole(told.headers.get(REDRIVES))
    # A letter is told by its place; one that comes back and fails again is another one.
    place = (told.sequence or str(origin)) + (f"+{redrives}" if redrives else "")
    why: Headers = [
        ("cdc.reason", failure.kind.encode()),
        ("cdc.id", told.id.encode()[:NAME_LIMIT]),
        ("cdc.sequence", place.encode()),
        ("cdc.type", told.type.encode()[:NAME_LIMIT]),
        ("cdc.time", told.time.encode()[:NAME_LIMIT]),
        ("cdc.attempts", str(attempts).encode()),
        *_first(seen, told),
        (CONNECT + "topic", origin.topic.encode()),
        (CONNECT + "partition", str(origin.partition).encode()),
        (CONNECT + "offset", str(origin.offset).encode()),
        (CONNECT + "connector.name", consumer.encode()),
        (CONNECT + "task.id", b"0"),
        (CONNECT + "stage", STAGES.get(failure.kind, "TASK_PUT").encode()),
        (CONNECT + "class.name", failure.handler.encode()),
        (CONNECT + "exception.class.name", failure.error_class.encode()),
        (CONNECT + "exception.message", failure.message[:MESSAGE_LIMIT].encode(errors="backslashreplace")),
        (CONNECT + "exception.stacktrace", b""),
    ]
    if failure.left:
        why.append((FOR_HANDLERS, ",".join(sorted(failure.left)).encode()))
    record = Record(topic, seen.key, seen.value, [*_own(seen), *why], 0)
    if record_size(record) <= limit_bytes:
        return record
    why.append(("cdc.payload.bytes", str(len(seen.value or b"")).encode()))
    record = Record(topic, seen.key if len(seen.key or b"") <= KEY_LIMIT else None, None, [*_own(seen), *why], 0)
    return record if record_size(record) <= limit_bytes else record._replace(headers=why)


def later(topic: str, seen: Seen, failure: Failure, *, attempts: int, due_ms: int) -> Record:
    """Return the record for a retry topic: the same event, what has failed and when it is due."""
    told = envelope(seen)
    headers = [*_own(seen), *_first(seen, told), (ATTEMPT, str(attempts).encode()), (DUE, str(due_ms).encode())]
    if failure.left:
        headers.append((FOR_HANDLERS, ",".join(sorted(failure.left)).encode()))
    return Record(topic, seen.key, seen.value, headers, 0)


def redriven(topic: str, letter: Seen) -> Record:
    """Return the event of a dead letter, for the consumer that parked it: as it was, marked as a replay."""
    told = envelope(letter)
    mark = ("ce_replay", b"redrive:" + told.headers.get("cdc.id", "").encode())
    times = whole(told.headers.get(REDRIVES)) + 1
    own = [(name, value) for name, value in _own(letter) if name not in {"ce_replay", REDRIVES}]
    own += [(name, value) for name, value in letter.headers if name == FOR_HANDLERS]
    headers = [*own, mark, *_first(letter, told), (REDRIVES, str(times).encode())]
    return Record(topic, letter.key, letter.value, headers, 0)


def _first(seen: Seen, told: Envelope) -> Headers:
    """Return the headers that say where and when the event was written first."""
    return [(ORIGIN, str(told.origin).encode()), (TIMESTAMP, str(told.timestamp_ms or seen.timestamp_ms).encode())]


def _own(seen: Seen) -> Headers:
    """Return the headers that the event itself has."""
    return [(name, value) for name, value in seen.headers if name not in OURS and not name.startswith(CONNECT)]
