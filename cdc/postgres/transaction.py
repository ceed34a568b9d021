"""From pgoutput messages to the outbox rows of whole transactions, in commit order; no I/O.

Strategy: `Transactions.feed` takes the frames of one read and appends what they mean to a list. Nearly every frame is
an insert into the outbox, so this is the hot path: rows are tuples, not objects, and the tuple of an insert is read by a
function compiled for its relation, found by the eight bytes (type, relation, 'N', number of columns) that all inserts into
one relation share. Begin and Commit, which may come with each row, are read where they lie. Everything else goes through
`pgoutput.decode`.

Rules.
- A transaction is skipped if and only if `Begin.final_lsn < position`, strictly: a commit record may begin where the
  position ends. At its Commit this must agree with `end_lsn <= position`; if it does not, the log is not the one that was
  published. What is skipped is shown to SkippedPart, which judges it before the first row behind it is handed out.
- Only the end of a transaction carries a position. The LSN of a row is never compared with anything: rows of a later
  commit may have smaller ones, and several rows of one COPY share one.
- The ordinal of a row counts the outbox rows of its transaction from 0.
- A message that is not transactional stands outside of every transaction, also when it arrives between Begin and Commit.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from cdc.errors import ProtocolError
from cdc.position import POSTGRES_EPOCH_US, Lsn, Witness
from cdc.postgres import pgoutput
from cdc.postgres.base_types import base_of, resolved
from cdc.postgres.pgoutput import Begin, Column, Commit, Insert, Message, PgoutputMessage, Relation, Type
from cdc.postgres.witness import SkippedPart, straddles

XLOG_DATA_HEADER = 25
"""Bytes before the pgoutput message in an XLogData frame: 'w', start LSN, end LSN, server time."""

Row = tuple[Begin, Relation, int, tuple[bytes | None, ...]]
"""(transaction, relation, ordinal, values): the values are in the relation's column order, in text form."""


class TransactionEnd(NamedTuple):
    """The place after a transaction; one without rows is an idle advance (xid 0 when no transaction stood there)."""

    end_lsn: Lsn
    commit_lsn: Lsn
    commit_time_us: int
    xid: int
    rows: int


MESSAGES = Relation(0, "", "logical message", "n", (Column("content", 17, -1, key=False),))
"""What stands for a table in the row that a logical message is: its only value is the message's content."""

RowDecoder = Callable[[bytes], tuple[bytes | None, ...]]


def compile_row_decoder(columns: int) -> RowDecoder:
    """Generate the function that reads the values of an insert with so many columns from its XLogData frame.

    It raises ProtocolError unless the tuple ends with the frame. Unrolled, because a loop over the columns costs more
    than the slices: one unpack for kind and length, one slice, for each value.
    """
    lines = [
        "def read(frame):",
        f"    at = {_TUPLE}",
        "    try:",
        "        pass",
    ]
    for i in range(columns):
        lines += [
            f"        if frame[at] == {_TEXT}:",
            "            start = at + 5",
            "            at = start + length(frame, at + 1)[0]",
            f"            v{i} = frame[start:at]",
            f"        elif frame[at] == {_NULL}:",
            f"            v{i} = None",
            "            at += 1",
            "        else:",
            "            raise unexpected(frame[at])",
        ]
    values = "".join(f"v{i}, " for i in range(columns))
    lines += [
        "    except (IndexError, error):",
        "        raise malformed(frame, at) from None",
        "    if at != len(frame):",
        "        raise malformed(frame, at)",
        f"    return ({values})",
    ]
    names: dict[str, object] = {
        "length": struct.Struct(">I").unpack_from,
        "error": struct.error,
        "unexpected": _unexpected,
        "malformed": _malformed,
    }
    exec(compile("\n".join(lines), f"<row decoder for {columns} columns>", "exec"), names)  # noqa: S102 - generated above
    return names["read"]  # type: ignore[return-value]  # exec hides the type


_TUPLE = XLOG_DATA_HEADER + 8
_NULL, _TEXT = b"nt"
_BEGIN, _COMMIT = b"BC"
_BEGIN_BYTES, _COMMIT_BYTES = XLOG_DATA_HEADER + 21, XLOG_DATA_HEADER + 26
_begin, _commit = struct.Struct(">QqI").unpack_from, struct.Struct(">QQq").unpack_from
_as_it_is = tuple.__new__


def _unexpected(kind: int) -> ProtocolError:
    return ProtocolError(f"an insert has a column value of kind {chr(kind)!r}; an insert always carries every value whole")


def _unknown(frame: bytes) -> None:
    msg = f"unknown replication frame of type {frame[:1]!r} and {len(frame)} bytes"
    raise ProtocolError(msg)


def _message(frame: bytes) -> PgoutputMessage:
    """Decode the message in an XLogData frame, Begin and Commit without a copy or a check that their length makes needless."""
    if len(frame) == _BEGIN_BYTES and frame[25] == _BEGIN:
        final_lsn, time, xid = _begin(frame, 26)
        return _as_it_is(Begin, (Lsn(final_lsn), time + POSTGRES_EPOCH_US, xid))
    if len(frame) == _COMMIT_BYTES and frame[25] == _COMMIT:
        commit_lsn, end_lsn, time = _commit(frame, 27)
        return _as_it_is(Commit, (Lsn(commit_lsn), Lsn(end_lsn), time + POSTGRES_EPOCH_US))
    return pgoutput.decode(frame[XLOG_DATA_HEADER:])


def _outside(what: str) -> ProtocolError:
    return ProtocolError(f"{what} arrived outside of a transaction")


def _malformed(frame: bytes, at: int) -> ProtocolError:
    return ProtocolError(f"malformed insert: its values end at byte {at} of {len(frame)}")


class Transactions:
    """The relation cache and the transaction under way.

    `wanted` tells whether a relation is the outbox; transactional messages with `prefix` are rows of MESSAGES. `ignored`
    counts, by message type, what was decoded and not used.
    """

    def __init__(
        self, wanted: Callable[[Relation], bool], position: Lsn, part: SkippedPart | None = None, prefix: str | None = None
    ) -> None:
        self._wanted = wanted
        self._prefix = prefix
        self._position = position
        self.part = part or SkippedPart("unknown", position, position)
        self._decoders: dict[bytes, tuple[Relation, RowDecoder]] = {}
        self._others: set[int] = set()
        self._bases: dict[int, int] = {}
        self._begin: Begin | None = None
        self._skipping = False
        self._ordinal = 0
        self.ignored: Counter[str] = Counter()

    @property
    def open(self) -> bool:
        """Whether the stream stands inside a transaction."""
        return self._begin is not None

    def feed(self, frames: Sequence[bytes], items: list[Row | TransactionEnd], other: Callable[[bytes], None] = _unknown) -> None:
        """Take frames in their order; append the rows and ends that they mean, and give what is no XLogData to `other`."""
        known_as, keep = self._decoders.get, items.append
        begin, ordinal = self._begin, self._ordinal
        for frame in frames:
            known = known_as(frame[25:33])
            if known is None:
                self._ordinal = ordinal
                if frame[:1] == b"w":
                    self._take(_message(frame), items)
                else:
                    other(frame)
                begin, ordinal = self._begin, self._ordinal
                continue
            if begin is None:
                raise _outside("an insert")
            if not self._skipping:
                keep((begin, known[0], ordinal, known[1](frame)))
            ordinal += 1
        self._ordinal = ordinal

    def _take(self, message: PgoutputMessage, items: list[Row | TransactionEnd]) -> None:
        if type(message) is Begin:
            self._start(message)
            return
        if type(message) is Commit:
            items.append(self._end(message))
            return
        match message:
            case Type():
                self._bases[message.oid] = base_of(message)
            case Relation():
                self._remember(message)
            case Message() if message.transactional and message.prefix == self._prefix:
                if self._begin is None:
                    raise _outside("a transactional message")
                if not self._skipping:
                    items.append((self._begin, MESSAGES, self._ordinal, (message.content,)))
                self._ordinal += 1
            case Insert() if message.relation_oid not in self._others:
                msg = f"a row of {len(message.values)} values came for relation {message.relation_oid}, which is not described so"
                raise ProtocolError(msg)
            case _:
                self.ignored[type(message).__name__.lower()] += 1

    def _start(self, begin: Begin) -> None:
        if self._begin is not None:
            msg = "a transaction began inside another one"
            raise ProtocolError(msg)
        self._begin = begin
        self._ordinal = 0
        self._skipping = begin.final_lsn < self._position
        if not self._skipping:
            self.part.reached(begin.final_lsn)

    def _end(self, commit: Commit) -> TransactionEnd:
        begin, rows = self._begin, self._ordinal
        if begin is None or commit.commit_lsn != begin.final_lsn:
            msg = f"the commit at {commit.commit_lsn} does not belong to the transaction that began"
            raise ProtocolError(msg)
        if self._skipping != (commit.end_lsn <= self._position):
            raise straddles(begin.final_lsn, commit.end_lsn, self._position)
        self._begin = None
        if self._skipping:
            if rows:
                self.part.skipped(Witness(commit.end_lsn, begin.xid, commit.commit_time_us))
            self.ignored["published before"] += rows
            rows = 0
        return TransactionEnd(commit.end_lsn, commit.commit_lsn, commit.commit_time_us, begin.xid, rows)

    def _remember(self, relation: Relation) -> None:
        relation = resolved(relation, self._bases)
        oid = relation.oid.to_bytes(4, "big")
        for key in [key for key in self._decoders if key[1:5] == oid]:
            del self._decoders[key]
        if self._wanted(relation):
            columns = len(relation.columns)
            key = b"I" + oid + b"N" + columns.to_bytes(2, "big")
            self._decoders[key] = (relation, compile_row_decoder(columns))
            self._others.discard(relation.oid)
        else:
            self._others.add(relation.oid)
