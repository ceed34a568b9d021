"""Decode pgoutput messages: bytes in, values out, no I/O.

Strategy: DECODERS maps the type byte to a function that consumes the whole message or raises ProtocolError; no input,
however malformed, raises anything else. Protocol version 1 without streaming and without two-phase, so a transaction
arrives whole: Begin, its changes, Commit. Source: PostgreSQL manual, "Logical Replication Message Formats".

An outbox uses Begin, Commit, Relation, Insert and Message. The others are decoded as well, so that a publication that
somebody else made cannot stop the pipeline; what is then ignored is counted. Begin and Commit may come with each row, so
they are tuples.

`transaction.py` reads the tuple of an Insert with code compiled for its relation; what stands here is the plain form, and
the reference that the compiled one is tested against.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from cdc.errors import ProtocolError
from cdc.position import POSTGRES_EPOCH_US, Lsn


class Unchanged(Enum):
    """A TOASTed value that an UPDATE did not touch: not sent, which is neither null nor empty."""

    UNCHANGED = "unchanged"


UNCHANGED = Unchanged.UNCHANGED

Value = bytes | None | Unchanged
"""Text form of a column (bytes), SQL NULL (None), or a value that was not sent."""


class Begin(NamedTuple):
    """Start of a transaction; `final_lsn` is the start of its commit record, `commit_time_us` microseconds since 1970."""

    final_lsn: Lsn
    commit_time_us: int
    xid: int


class Commit(NamedTuple):
    """End of a transaction; `commit_lsn` repeats Begin.final_lsn, `end_lsn` is the end of the commit record."""

    commit_lsn: Lsn
    end_lsn: Lsn
    commit_time_us: int


@dataclass(frozen=True, slots=True)
class Column:
    """One column as the Relation message describes it; `key` when it is part of the replica identity."""

    name: str
    type_oid: int
    type_modifier: int
    key: bool


@dataclass(frozen=True, slots=True)
class Relation:
    """A table as it was at this place in the log; sent before its first row and after each change."""

    oid: int
    namespace: str
    name: str
    replica_identity: str
    columns: tuple[Column, ...]


@dataclass(frozen=True, slots=True)
class Type:
    """A type that is not built in; sent before the relation that uses it."""

    oid: int
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a transaction came from when it was replicated into this server."""

    commit_lsn: Lsn
    name: str


@dataclass(frozen=True, slots=True)
class Insert:
    """A new row."""

    relation_oid: int
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Update:
    """A changed row; `old` holds the key columns or the whole old row, by replica identity, or is None."""

    relation_oid: int
    old: tuple[Value, ...] | None
    old_is_key: bool
    new: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Delete:
    """A deleted row, by key columns or whole, by replica identity."""

    relation_oid: int
    old: tuple[Value, ...]
    old_is_key: bool


@dataclass(frozen=True, slots=True)
class Truncate:
    """Tables emptied by TRUNCATE."""

    relation_oids: tuple[int, ...]
    cascade: bool
    restart_identity: bool


@dataclass(frozen=True, slots=True)
class Message:
    """What pg_logical_emit_message wrote; one that is not transactional stands outside any transaction."""

    transactional: bool
    lsn: Lsn
    prefix: str
    content: bytes


PgoutputMessage = Begin | Commit | Relation | Type | Origin | Insert | Update | Delete | Truncate | Message

_BEGIN = struct.Struct(">QqI")
_COMMIT = struct.Struct(">BQQq")
_COLUMN = struct.Struct(">Ii")
_MESSAGE = struct.Struct(">BQ")
_INT32 = struct.Struct(">i")
_UINT32 = struct.Struct(">I")
_INT16 = struct.Struct(">h")


def decode(data: bytes) -> PgoutputMessage:
    """Decode one message; raises ProtocolError for anything that is not exactly one."""
    decoder = DECODERS.get(data[:1])
    if decoder is None:
        msg = f"unknown pgoutput message type {data[:1]!r}"
        raise ProtocolError(msg)
    try:
        message, end = decoder(data)
    except (struct.error, IndexError, UnicodeDecodeError, ValueError) as error:
        msg = f"malformed pgoutput message of type {data[:1]!r}: {type(error).__name__}"
        raise ProtocolError(msg) from error
    if end != len(data):
        msg = f"pgoutput message of type {data[:1]!r} has {len(data)} bytes, {end} expected"
        raise ProtocolError(msg)
    return message


def _begin(data: bytes) -> tuple[Begin, int]:
    final_lsn, commit_time, xid = _BEGIN.unpack_from(data, 1)
    return Begin(Lsn(final_lsn), commit_time + POSTGRES_EPOCH_US, xid), 1 + _BEGIN.size


def _commit(data: bytes) -> tuple[Commit, int]:
    _flags, commit_lsn, end_lsn, commit_time = _COMMIT.unpack_from(data, 1)
    return Commit(Lsn(commit_lsn), Lsn(end_lsn), commit_time + POSTGRES_EPOCH_US), 1 + _COMMIT.size


def _relation(data: bytes) -> tuple[Relation, int]:
    (oid,) = _UINT32.unpack_from(data, 1)
    namespace, at = _string(data, 5)
    name, at = _string(data, at)
    replica_identity = chr(data[at])
    (count,) = _INT16.unpack_from(data, at + 1)
    at += 3
    columns = []
    for _ in range(count):
        flags = data[at]
        column_name, at = _string(data, at + 1)
        type_oid, type_modifier = _COLUMN.unpack_from(data, at)
        at += _COLUMN.size
        columns.append(Column(column_name, type_oid, type_modifier, bool(flags & 1)))
    # An empty namespace stands for pg_catalog.
    return Relation(oid, namespace or "pg_catalog", name, replica_identity, tuple(columns)), at


def _type(data: bytes) -> tuple[Type, int]:
    (oid,) = _UINT32.unpack_from(data, 1)
    namespace, at = _string(data, 5)
    name, at = _string(data, at)
    return Type(oid, namespace or "pg_catalog", name), at


def _origin(data: bytes) -> tuple[Origin, int]:
    (commit_lsn,) = struct.unpack_from(">Q", data, 1)
    name, at = _string(data, 9)
    return Origin(Lsn(commit_lsn), name), at


def _insert(data: bytes) -> tuple[Insert, int]:
    (oid,) = _UINT32.unpack_from(data, 1)
    _expect(data, 5, b"N")
    values, at = _tuple(data, 6)
    return Insert(oid, values), at


def _update(data: bytes) -> tuple[Update, int]:
    (oid,) = _UINT32.unpack_from(data, 1)
    at, old, old_is_key = 5, None, False
    if data[at : at + 1] in (b"K", b"O"):
        old_is_key = data[at : at + 1] == b"K"
        old, at = _tuple(data, at + 1)
    _expect(data, at, b"N")
    new, at = _tuple(data, at + 1)
    return Update(oid, old, old_is_key, new), at


def _delete(data: bytes) -> tuple[Delete, int]:
    (oid,) = _UINT32.unpack_from(data, 1)
    _expect(data, 5, b"K", b"O")
    old, at = _tuple(data, 6)
    return Delete(oid, old, data[5:6] == b"K"), at


def _truncate(data: bytes) -> tuple[Truncate, int]:
    count, options = struct.unpack_from(">iB", data, 1)
    oids = struct.unpack_from(f">{count}I", data, 6)
    return Truncate(oids, bool(options & 1), bool(options & 2)), 6 + 4 * count


def _message(data: bytes) -> tuple[Message, int]:
    flags, lsn = _MESSAGE.unpack_from(data, 1)
    prefix, at = _string(data, 1 + _MESSAGE.size)
    content, at = _sized(data, at)
    return Message(bool(flags & 1), Lsn(lsn), prefix, content), at


def _tuple(data: bytes, at: int) -> tuple[tuple[Value, ...], int]:
    (count,) = _INT16.unpack_from(data, at)
    at += 2
    values: list[Value] = []
    for _ in range(count):
        kind = data[at]
        at += 1
        if kind == _NULL:
            values.append(None)
        elif kind == _UNCHANGED:
            values.append(UNCHANGED)
        elif kind == _TEXT:
            value, at = _sized(data, at)
            values.append(value)
        else:
            msg = f"unknown kind of column value {kind}"
            raise ValueError(msg)
    return tuple(values), at


_NULL, _UNCHANGED, _TEXT = b"nut"


def _string(data: bytes, at: int) -> tuple[str, int]:
    end = data.index(0, at)
    return data[at:end].decode(), end + 1


def _sized(data: bytes, at: int) -> tuple[bytes, int]:
    (length,) = _INT32.unpack_from(data, at)
    end = at + 4 + length
    if length < 0 or end > len(data):
        msg = f"length {length} reaches beyond the message"
        raise ValueError(msg)
    return data[at + 4 : end], end


def _expect(data: bytes, at: int, *kinds: bytes) -> None:
    if data[at : at + 1] not in kinds:
        msg = f"unexpected submessage {data[at : at + 1]!r}"
        raise ValueError(msg)


DECODERS: dict[bytes, Callable[[bytes], tuple[PgoutputMessage, int]]] = {
    b"B": _begin,
    b"C": _commit,
    b"R": _relation,
    b"Y": _type,
    b"O": _origin,
    b"I": _insert,
    b"U": _update,
    b"D": _delete,
    b"T": _truncate,
    b"M": _message,
}
