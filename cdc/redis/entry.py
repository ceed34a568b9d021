"""How a record lies in a stream: its fields, its stream and its offset. Values in, values out.

An entry's fields, in this order: `key` (unless it is NULL), `timestamp` (the commit's, Unix ms), the record's headers by their
names, and `data`, the value (absent for a tombstone). A header without a value is left out. A header that is called like one
of ours, or begins as an escaped one does, has ESCAPE before its name.

An id of Redis, `milliseconds-sequence`, is one number here: offsets grow with ids, and fit into 63 bits until the year 2039.
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from cdc.errors import SinkRefused
from cdc.event import Record, Seen

KEY, TIMESTAMP, DATA = b"key", b"timestamp", b"data"

ESCAPE = "header:"

OWN = frozenset({KEY.decode(), TIMESTAMP.decode(), DATA.decode()})

SEQUENCE_BITS = 22
"""Entries that one script may add to a stream at one millisecond of its clock, as a power of two: more than a commit can hold."""

MS_BITS = 41
"""Bits of the milliseconds, until the year 2039."""

MAX_ID = f"{(1 << MS_BITS) - 1}-{(1 << SEQUENCE_BITS) - 1}"

DIGITS_MAX = 18
"""Of a 64-bit number; Python refuses to read thousands of digits, which anybody may write into a field."""


def field_of(header: str) -> bytes:
    """Return the field that a header becomes."""
    return (ESCAPE + header if header in OWN or header.startswith(ESCAPE) else header).encode()


def header_of(field: bytes) -> str:
    """Return the header that a field was."""
    return field.decode(errors="replace").removeprefix(ESCAPE)


def number_of(key: bytes | None, streams: int) -> int:
    """Return the number of a key's stream, by a hash without its sign as Kafka takes one; records without a key are in the first."""
    return (crc32(key) & 0x7FFFFFFF) % streams if key else 0


def stream_of(topic: str, number: int, streams: int) -> str:
    """Return the name of a stream of a topic."""
    return topic if streams == 1 else f"{topic}:{number}"


def offset_of(entry_id: bytes) -> int:
    """Return an id as a number; raises SinkRefused for one that is too large for it."""
    ms, sequence = map(int, entry_id.split(b"-"))
    if ms >> MS_BITS or sequence >> SEQUENCE_BITS:  # another entry's number would acknowledge that one, and this one never
        what = f"the entry id {entry_id.decode()} is larger than what is read here, {MAX_ID}"
        raise SinkRefused(what, "ids have to come from Redis (XADD with *), and its clock has to be right: see docs/redis.md")
    return ms << SEQUENCE_BITS | sequence


def id_of(offset: int) -> str:
    """Return a number as the id that it was."""
    return f"{offset >> SEQUENCE_BITS}-{offset & ((1 << SEQUENCE_BITS) - 1)}"


def entry_of(record: Record) -> list[bytes]:
    """Return an entry's fields and values in turn; a record without a timestamp leaves that to the entry's id."""
    found = [] if record.key is None else [KEY, record.key]
    if record.timestamp_ms:
        found += [TIMESTAMP, b"%d" % record.timestamp_ms]
    for name, value in record.headers:
        if value is not None:
            found += [field_of(name), value]
    return found if record.value is None else [*found, DATA, record.value]


def seen(topic: str, number: int, entry_id: bytes, fields: Sequence[bytes]) -> Seen:
    """Return the record that an entry is; an entry of somebody else has what it has of it."""
    key = value = None
    timestamp_ms = int(entry_id.partition(b"-")[0])
    headers: list[tuple[str, bytes | None]] = []
    for name, content in zip(fields[::2], fields[1::2], strict=True):
        if name == KEY:
            key = content
        elif name == DATA:
            value = content
        elif name == TIMESTAMP:
            timestamp_ms = int(content) if content.isdigit() and len(content) <= DIGITS_MAX else timestamp_ms
        else:
            headers.append((header_of(name), content))
    return Seen(topic, number, offset_of(entry_id), key, value, headers, timestamp_ms)
