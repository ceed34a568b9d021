"""What one Kafka transaction holds so far, and when it is to be committed; values and decisions, no I/O, no clock.

A Kafka transaction carries the events of whole PostgreSQL transactions and one position. Batching follows load and needs no
setting: when the log is quiet a batch is committed at once; while it is not, a batch may grow for as long as
COMMITS_SHARE allows, so that waiting for the broker costs little of the time whatever the broker's speed; and
while a commit is under way the next rows gather by themselves.
"""

from __future__ import annotations

import dataclasses

from cdc.position import Fingerprint, Lsn, Position, Witness
from cdc.postgres.transaction import TransactionEnd

COMMITS_SHARE = 0.05
"""Part of the time that may go into waiting for commits while there is a backlog."""

MIN_AGE_S, MAX_AGE_S = 0.02, 1.0
"""Bounds of a batch's age: a row must not wait longer for its neighbours than a person notices."""

SETTLE_SHARE, SETTLE_MAX_S = 0.3, 0.02
"""How long the rows after a commit wait for company, in parts of what a commit takes: the broker still writes the markers of
the last Kafka transaction. A new one that comes too early is sent away, and librdkafka tries again only 20 ms later."""

IDLE_INTERVAL_S = 1.0
"""Least time between two Kafka transactions that carry nothing but a position."""

IDLE_BYTES = 16 * 1024 * 1024
"""Log of other tables after which an idle position is due at once: one WAL segment."""


class Batch:
    """The Kafka transaction under way, after the position that was committed last."""

    def __init__(self, position: Position, now: float) -> None:
        self.position = position
        self._committed_at = now
        self._commit_s = MIN_AGE_S * COMMITS_SHARE
        self._usual_s = 0.0
        self._publication = position.publication_fingerprint
        self._clear()

    def _clear(self) -> None:
        self.events = 0
        self.dead_letters = 0
        self.opened_at: float | None = None
        self._end: TransactionEnd | None = None
        self._rows_end: TransactionEnd | None = None

    def __repr__(self) -> str:
        return f"<Batch events={self.events} dead_letters={self.dead_letters} from={self.position.end_lsn}>"

    @property
    def whole(self) -> bool:
        """Whether it holds rows of at least one whole transaction."""
        return self._rows_end is not None

    def open(self, now: float) -> None:
        """Note that the first record of the Kafka transaction was produced."""
        if self.opened_at is None:
            self.opened_at = now

    def add(self, events: int, dead_letters: int) -> None:
        """Count records that were produced."""
        self.events += events
        self.dead_letters += dead_letters

    def end(self, end: TransactionEnd) -> None:
        """Take the end of a transaction, or of a stretch without rows; what lies below the position changes nothing."""
        if end.end_lsn <= self.position.end_lsn or (self._end is not None and end.end_lsn < self._end.end_lsn):
            return
        self._end = end
        if end.rows:
            self._rows_end = end

    def due(self, now: float, *, quiet: bool, urgent: bool = False) -> bool:
        """Whether to commit now: `quiet` when no more rows are there, `urgent` when the server waits for the position."""
        if self._end is None:
            return False
        if self.whole:
            if quiet or self.opened_at is None:
                return True
            age = min(max(self._commit_s / COMMITS_SHARE, MIN_AGE_S), MAX_AGE_S)
            return now - self.opened_at >= age
        far = self._end.end_lsn - self.position.end_lsn >= IDLE_BYTES
        return urgent or far or now - self._committed_at >= IDLE_INTERVAL_S

    def settles_in(self, now: float) -> float:
        """Return the seconds for which the first rows of the next Kafka transaction should wait; 0 when it is under way."""
        if self.opened_at is not None:
            return 0.0
        return max(0.0, self._committed_at + min(self._usual_s * SETTLE_SHARE, SETTLE_MAX_S) - now)

    def next(self) -> Position:
        """Return the position to commit with what was produced."""
        end, seen = self._end, self._rows_end
        if end is None:
            return self.position
        witness = Witness(seen.end_lsn, seen.xid, seen.commit_time_us) if seen else None
        position = self.position.advanced(Lsn(end.end_lsn), end.commit_time_us, witness)
        if position.publication_fingerprint is not self._publication:
            position = dataclasses.replace(position, publication_fingerprint=self._publication)
        return position

    def proved(self, publication: Fingerprint) -> None:
        """The publication was looked at: the next positions say up to where it is proved."""
        self._publication = publication

    def committed(self, position: Position, began: float, now: float) -> None:
        """Start the next batch after `position`; its commit took from `began` to `now`."""
        self._commit_s = now - began
        # The shortest of the last ones: a commit that met a transaction that was not settled took longer, and counts for nothing.
        self._usual_s = min(self._commit_s, self._usual_s * 1.1) if self._usual_s else self._commit_s
        self._committed_at = now
        self.position = position
        self._clear()
