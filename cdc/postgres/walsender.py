"""Our side of the streaming replication protocol: CopyData frames in, rows out, and what to answer; no socket, no clock.

Strategy: `receive` takes the frames that the socket gave, in order; `confirm` tells what Kafka has committed;
`data_to_send(now)` gives the status update that is due, if one is. Times are seconds of a monotonic clock, passed in.
Source: PostgreSQL manual, "Streaming Replication Protocol", and walsender.c.

Rules.
- `flush_lsn` is 0/0 until the part of the log that is skipped has been judged (SkippedPart), and then never more than the
  last LSN that was confirmed: PostgreSQL believes any number, even one beyond its own log. Write, flush and apply are the
  same LSN; were write ahead, the server would send its next keepalive only after half of wal_sender_timeout and an idle slot
  would lag behind by as much.
- A keepalive's `wal_end` is a position only while no transaction is open in the stream, and only if it is greater than what
  we have: after a reconnect the server starts to count again below the position.
- A reply that the server asks for is held back for up to REPLY_PATIENCE_S, so that it can carry the position to which the
  same keepalive moves us.
- We send a status of our own every `status_interval_s`, six times within wal_sender_timeout, so a server that asks earlier
  than half its timeout after our last status, and asks again as soon as it is answered, is shutting down: it waits until
  we confirm all that it has sent. If we cannot within SHUTDOWN_PATIENCE_S, the link must be dropped (`must_leave`), because
  each answer makes it ask again, for ever, and the shutdown would never end. (One early question alone may be an old one
  that lay in the socket while we were stopped.)
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from cdc.errors import ProtocolError
from cdc.position import POSTGRES_EPOCH_US, Lsn
from cdc.postgres.transaction import Row, TransactionEnd, Transactions

TIMEOUTS_PER_INTERVAL = 6
"""wal_sender_timeout of our connection, in status intervals: five of six statuses may be late before the server gives up."""

REPLY_PATIENCE_S = 1.0
"""How long a requested reply waits for the position to follow; far below any wal_sender_timeout, and unnoticed by people."""

SHUTDOWN_PATIENCE_S = 5.0
"""How long a server that shuts down may be held by a position that cannot advance; pg_ctl gives up after 60 s."""

CONFIRM_INTERVAL_S = 0.2
"""A confirmed position is told at most so often: soon enough for the slot to follow, rare enough not to be work."""

_KEEPALIVE = struct.Struct(">QqB")
_STATUS = struct.Struct(">cQQQqB")
XLOG_DATA, _PRIMARY_KEEPALIVE = b"wk"


class Walsender:
    """The conversation with one walsender, from START_REPLICATION to the end of the link."""

    def __init__(self, status_interval_s: float, now: float) -> None:
        self._interval_s = status_interval_s
        self._transactions: Transactions | None = None
        self._position = self._confirmed = Lsn(0)
        self._told = Lsn(0)
        self._wal_end = Lsn(0)
        self._last_sent = now - status_interval_s
        self._last_received = now
        self._reply_due: float | None = None
        self._leave_at: float | None = None
        self._early_questions = 0

    @property
    def confirmed(self) -> Lsn:
        """The flush LSN that our statuses carry."""
        return self._confirmed

    @property
    def wal_end(self) -> Lsn:
        """The largest end of the log that the server has told us."""
        return self._wal_end

    @property
    def asked(self) -> bool:
        """Whether the server waits for an answer."""
        return self._reply_due is not None

    def start(self, position: Lsn, transactions: Transactions) -> None:
        """The door is passed at `position`: from here on frames are read; it is confirmed when what is skipped was judged."""
        self._position = position
        self._transactions = transactions
        self._judged(transactions)

    def notice(self, frame: bytes, now: float) -> None:
        """Take the time of a frame that has arrived, and what a keepalive asks for; its turn in `receive` comes later."""
        self._last_received = now
        if frame[0] != XLOG_DATA:
            wal_end, _, reply = self._keepalive(frame)
            self._wal_end = max(self._wal_end, wal_end)
            if reply:
                self._asked(now)

    def receive(self, frames: Sequence[bytes]) -> list[Row | TransactionEnd]:
        """Read frames in their order; raises ProtocolError, or ContinuityError for another log below the position."""
        transactions = self._transactions
        if transactions is None:
            msg = "frames were read before continuity was proved"
            raise ProtocolError(msg)
        items: list[Row | TransactionEnd] = []

        def keepalive(frame: bytes) -> None:
            wal_end, server_time_us, _ = self._keepalive(frame)
            if not transactions.open:
                transactions.part.reached(wal_end)
                if wal_end > self._position:
                    items.append(TransactionEnd(wal_end, wal_end, server_time_us, 0, 0))

        transactions.feed(frames, items, keepalive)
        self._judged(transactions)
        return items

    def confirm(self, lsn: Lsn) -> None:
        """Kafka has committed everything up to `lsn`; a smaller one than before is a bug and raises ProtocolError."""
        if lsn < self._position:
            msg = f"the position went back from {self._position} to {lsn}"
            raise ProtocolError(msg)
        self._position = self._confirmed = lsn
        if self._reply_due is not None:
            self._reply_due = self._last_sent  # the answer that was held back can go now

    def data_to_send(self, now: float, wall_us: int) -> bytes | None:
        """Return the StandbyStatusUpdate that is due; `wall_us` is Unix time in microseconds."""
        return self.status(now, wall_us) if now >= self.next_due() else None

    def status(self, now: float, wall_us: int) -> bytes:
        """Return a StandbyStatusUpdate; it asks for a reply when the server has been silent for an interval."""
        silent = now - self._last_received >= self._interval_s
        if self._reply_due is None:
            self._early_questions, self._leave_at = 0, None
        self._last_sent, self._reply_due = now, None
        lsn = self._told = self._confirmed
        return _STATUS.pack(b"r", lsn, lsn, lsn, wall_us - POSTGRES_EPOCH_US, silent)

    def next_due(self) -> float:
        """The time at which `data_to_send` has something to send unless something happens before."""
        due = self._last_sent + self._interval_s
        if self._told != self._confirmed:
            due = min(due, self._last_sent + CONFIRM_INTERVAL_S)
        return due if self._reply_due is None else min(due, self._reply_due)

    def lost(self, now: float) -> bool:
        """Whether the server has been silent for its whole timeout although we asked it to answer."""
        return now - self._last_received >= self._interval_s * TIMEOUTS_PER_INTERVAL

    def must_leave(self, now: float) -> bool:
        """Whether a server that shuts down has waited long enough for a position that does not advance."""
        return self._early_questions > 1 and self._leave_at is not None and now >= self._leave_at

    def _judged(self, transactions: Transactions) -> None:
        if transactions.part.judged:
            self._confirmed = self._position

    def _asked(self, now: float) -> None:
        early = now < self._last_sent + self._interval_s * TIMEOUTS_PER_INTERVAL / 2
        if early and self._leave_at is None:
            self._leave_at = now + SHUTDOWN_PATIENCE_S
        self._early_questions += early
        if self._reply_due is None:
            self._reply_due = now if self._confirmed >= self._wal_end else now + REPLY_PATIENCE_S

    @staticmethod
    def _keepalive(frame: bytes) -> tuple[Lsn, int, bool]:
        if frame[0] != _PRIMARY_KEEPALIVE or len(frame) != 1 + _KEEPALIVE.size:
            msg = f"unknown replication frame of type {frame[:1]!r} and {len(frame)} bytes"
            raise ProtocolError(msg)
        wal_end, time, reply = _KEEPALIVE.unpack_from(frame, 1)
        return Lsn(wal_end), time + POSTGRES_EPOCH_US, bool(reply)
