"""Rows of the table on their way to Kafka: records or dead letters by policy, in whole transactions, held against their routes.

Strategy: rows come in the order of `table_rows`, so those of one transaction come together. They are handed over a few
hundred at a time. Where one Kafka transaction may not take them all, it ends before `transaction.timeout.ms` is half over, and
always between two transactions of PostgreSQL.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from cdc.errors import InvalidEvent, TransactionTimedOut
from cdc.event import Record
from cdc.kafka.limits import fits
from cdc.outbox.router import Router
from cdc.pipeline.parking import Policy, park
from cdc.pipeline.ports import Sink
from cdc.position import Lsn
from cdc.postgres.transaction import Row
from cdc.resilience.call import nobody_waits

HANDED_OVER = 500
"""Records that are handed over at once."""

PART_OF_TIMEOUT = 0.5
"""Part of transaction.timeout.ms after which a Kafka transaction is ended where there may be several."""

Change = Callable[[Record], Record]


def before(place: Lsn) -> Lsn:
    """Return where rows stand that were published from the snapshot of a slot that begins at `place`.

    A live transaction's commit record may begin at `place` itself; no record begins at an odd byte.
    """
    return Lsn(place - 1)


def nobody_looks(_: float = 1) -> None:
    """Progress that nobody is shown."""


@dataclass(slots=True)
class Outgoing:
    """One command's records; `topics` counts events, `invalid` counts by reason the rows that a `policy` of None leaves out.

    `between` commits what was produced so far; None keeps all in one Kafka transaction, which then must fit. `change` is
    done to every record. Rows that are `placed` come from the log, and keep their number in their transaction.
    """

    publisher: Sink
    router: Router
    generation: int
    policy: Policy | None
    between: Callable[[], None] | None = None
    change: Change | None = None
    placed: bool = False
    events: int = 0
    dead_letters: int = 0
    invalid: dict[str, int] = field(default_factory=dict)
    topics: dict[str, int] = field(default_factory=dict)
    _next: int = 0
    _xid: int = -1
    _held: list[Record] = field(default_factory=list)

    def publish(self, rows: Iterable[Row], progress: Callable[[float], object]) -> None:
        """Produce the records of rows; the last Kafka transaction is left open, if there is one."""
        for row in rows:
            if row[0].xid != self._xid:
                self._xid = row[0].xid
                self._end_part()
            record = self.record(row)
            if record is not None:
                self._held.append(record)
                if len(self._held) >= HANDED_OVER:
                    self._hand_over()
            progress(1)
        self._hand_over()

    def record(self, row: Row) -> Record | None:
        """Return what a row becomes, numbered by what became of the rows before it; raises StoppedByPolicy."""
        if not self.placed:
            begin, relation, _, values = row
            row = (begin, relation, self._next, values)
        now_ms = time.time_ns() // 1_000_000
        try:
            record = self.router.route(row)
            if self.change is not None:
                record = self.change(record)
            fits(record, self.publisher.route(record.topic, nobody_waits), now_ms)
        except InvalidEvent as error:
            if self.policy is None:
                self.invalid[error.reason] = self.invalid.get(error.reason, 0) + 1
                return None
            record = park(
                row,
                error,
                router=self.router,
                policy=self.policy,
                generation=self.generation,
                route=lambda topic: self.publisher.route(topic, nobody_waits),
                now_ms=now_ms,
            ).record
            self.dead_letters += 1
        else:
            self.events += 1
            self.topics[record.topic] = self.topics.get(record.topic, 0) + 1
        self._next += 1
        return record

    def _hand_over(self) -> None:
        held, self._held = self._held, []
        if held:
            self.publisher.produce(held, nobody_waits)
            if self.between is None and (seconds := self._open_s()) >= self.publisher.transaction_timeout_s:
                raise TransactionTimedOut(self._next, seconds, self.publisher.transaction_timeout_s)

    def _end_part(self) -> None:
        if self.between is None:
            return
        if self.publisher.full or self._open_s() >= self.publisher.transaction_timeout_s * PART_OF_TIMEOUT:
            self._hand_over()
            self.between()

    def _open_s(self) -> float:
        opened_at = self.publisher.opened_at
        return 0.0 if opened_at is None else time.monotonic() - opened_at
