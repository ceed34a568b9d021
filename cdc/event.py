"""The Kafka record that an outbox row becomes, and the route that it takes.

A record is made once for each row, so it is a tuple and holds what the next room needs, no more.
"""

from dataclasses import dataclass
from typing import NamedTuple


class Record(NamedTuple):
    """One Kafka record, ready for the producer.

    `timestamp_ms` is Unix time in milliseconds (0 lets the producer take its own clock); `partition` is -1 for "by key";
    `value` is None for a tombstone. `size` of key, value and headers together is what a topic's limit is checked against.
    """

    topic: str
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp_ms: int
    partition: int = -1


class Seen(NamedTuple):
    """One committed record, where it lies and when it was made."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp_ms: int


Place = tuple[str, int]
"""A topic's name and a partition's number."""


class Shape(NamedTuple):
    """How a topic keeps records: its partitions, and whether it keeps only the last one of each key."""

    partitions: int
    compacted: bool


def name_of(record: Record) -> bytes | None:
    """Return what tells an event from all others of its pipeline: its place, or its id where the headers have no place."""
    if record.headers and record.headers[0][0] == "id":
        return BY_ID + (record.headers[0][1] or b"")
    return next((value for name, value in record.headers if name == "ce_sequence"), None)


BY_ID = b"id "
"""What the name of an event begins with that is told by its id: no place does."""


@dataclass(frozen=True, slots=True)
class Route:
    """A topic as its broker describes it: what a record has to fit.

    `timestamp_before_ms` and `timestamp_after_ms` are the largest distances from now that the broker takes
    (message.timestamp.before.max.ms, .after.max.ms), None when it takes any.
    """

    topic: str
    partitions: int
    max_message_bytes: int
    compacted: bool
    timestamp_before_ms: int | None
    timestamp_after_ms: int | None


def record_size(record: Record) -> int:
    """Upper bound in bytes of the record inside a batch: lengths and the batch header's share included."""
    size = RECORD_OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"")
    for name, value in record.headers:
        size += HEADER_OVERHEAD_BYTES + len(name.encode()) + len(value or b"")
    return size


RECORD_OVERHEAD_BYTES = 96
"""Batch header (61 bytes) and the record's own varints (KIP-98), rounded up: a lone record is a batch of its own."""

HEADER_OVERHEAD_BYTES = 10
"""Two varint lengths of a header at their longest."""
