"""Bytes as a walsender writes them: pgoutput messages of protocol 1 inside of CopyData frames.

Written from the manual ("Logical Replication Message Formats", "Streaming Replication Protocol") and not from the decoder,
so that each is the other's test.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from cdc.position import POSTGRES_EPOCH_US, Lsn
from cdc.postgres.pgoutput import (
    UNCHANGED,
    Begin,
    Commit,
    Delete,
    Insert,
    Message,
    Origin,
    PgoutputMessage,
    Relation,
    Truncate,
    Type,
    Update,
    Value,
)


def encode(message: PgoutputMessage) -> bytes:  # noqa: C901, PLR0911 - one for each message
    """Return one pgoutput message."""
    match message:
        case Begin(final_lsn, commit_time_us, xid):
            return b"B" + struct.pack(">QqI", final_lsn, commit_time_us - POSTGRES_EPOCH_US, xid)
        case Commit(commit_lsn, end_lsn, commit_time_us):
            return b"C" + struct.pack(">BQQq", 0, commit_lsn, end_lsn, commit_time_us - POSTGRES_EPOCH_US)
        case Relation():
            return _relation(message)
        case Type(oid, namespace, name):
            return b"Y" + struct.pack(">I", oid) + _string(_namespace(namespace)) + _string(name)
        case Origin(commit_lsn, name):
            return b"O" + struct.pack(">Q", commit_lsn) + _string(name)
        case Insert(relation_oid, values):
            return b"I" + struct.pack(">I", relation_oid) + b"N" + tuple_data(values)
        case Update(relation_oid, old, old_is_key, new):
            before = b"" if old is None else (b"K" if old_is_key else b"O") + tuple_data(old)
            return b"U" + struct.pack(">I", relation_oid) + before + b"N" + tuple_data(new)
        case Delete(relation_oid, old, old_is_key):
            return b"D" + struct.pack(">I", relation_oid) + (b"K" if old_is_key else b"O") + tuple_data(old)
        case Truncate(relation_oids, cascade, restart_identity):
            options = cascade | restart_identity << 1
            return b"T" + struct.pack(">iB", len(relation_oids), options) + struct.pack(f">{len(relation_oids)}I", *relation_oids)
        case Message(transactional, lsn, prefix, content):
            return b"M" + struct.pack(">BQ", transactional, lsn) + _string(prefix) + struct.pack(">i", len(content)) + content


def xlog_data(message: bytes, lsn: int = 0, time_us: int = POSTGRES_EPOCH_US) -> bytes:
    """Return an XLogData frame; its LSNs are those of the change and never positions."""
    return b"w" + struct.pack(">QQq", lsn, lsn, time_us - POSTGRES_EPOCH_US) + message


def keepalive(wal_end: int, time_us: int = POSTGRES_EPOCH_US, *, reply: bool = False) -> bytes:
    """Return a primary keepalive."""
    return b"k" + struct.pack(">QqB", wal_end, time_us - POSTGRES_EPOCH_US, reply)


def status_of(frame: bytes) -> tuple[Lsn, Lsn, Lsn, bool]:
    """Read a StandbyStatusUpdate: (write, flush, apply, whether an answer is asked for)."""
    kind, write, flush, apply, _time, reply = struct.unpack(">cQQQqB", frame)
    assert kind == b"r"
    return Lsn(write), Lsn(flush), Lsn(apply), bool(reply)


def tuple_data(values: Sequence[Value]) -> bytes:
    """Return TupleData: the number of columns, then for each its kind, and length and text."""
    data = struct.pack(">h", len(values))
    for value in values:
        if value is None:
            data += b"n"
        elif value is UNCHANGED:
            data += b"u"
        else:
            data += b"t" + struct.pack(">i", len(value)) + value
    return data


def _relation(relation: Relation) -> bytes:
    data = b"R" + struct.pack(">I", relation.oid) + _string(_namespace(relation.namespace)) + _string(relation.name)
    data += relation.replica_identity.encode("latin-1") + struct.pack(">h", len(relation.columns))
    for column in relation.columns:
        data += struct.pack(">B", column.key) + _string(column.name) + struct.pack(">Ii", column.type_oid, column.type_modifier)
    return data


def _namespace(name: str) -> str:
    return "" if name == "pg_catalog" else name


def _string(text: str) -> bytes:
    return text.encode() + b"\0"
