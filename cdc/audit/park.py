"""`cdc dead-letters park`: get past rows that stop the pipeline, and past them alone.

Strategy: a run of the pipeline itself, through the same door (slot, fence, proof), whose policy lets the named rows become
dead letters and which ends when they are. So a row is parked in the Kafka transaction that carries its neighbours and the
position beyond it; nothing is written down in advance, nothing has to be cleaned up, and a kill at any moment is a kill of
the pipeline. `Parking` is the Observer of that run: it sees what was parked and committed, and says when to end.

A row counts as parked when it became a dead letter in this run and the position has passed it. The commit may have answered
or not: a passage after it begins beyond the row, or meets it again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from cdc.outbox.router import commit_lsn
from cdc.pipeline.supervisor import State
from cdc.position import Lsn, Position
from cdc.postgres.server import Server


class ParkedRow(NamedTuple):
    """A row that became a dead letter: its id, its place, and why it had to."""

    id: str
    place: str
    reason: str
    what: str

    @property
    def commit_lsn(self) -> int:
        """The place of its transaction's commit record."""
        return commit_lsn(self.place)


class Parking:
    """Implements Observer. `names` are ids, or places of rows without an id; `end` is called when there is no more to do.

    It ends when all are parked, when the log as it was at the start holds no more rows, or when nothing has moved for
    `timeout_s`; `fault` says what was in the way then.
    """

    def __init__(self, names: frozenset[str], end: Callable[[], object], timeout_s: float, clock: Callable[[], float]) -> None:
        self._names = names
        self._end = end
        self._timeout_s = timeout_s
        self._clock = clock
        self._moved_at = clock()
        self._met: dict[str, ParkedRow] = {}
        self._goal: Lsn | None = None
        self._last = ""
        self.position: Position | None = None
        self.fault: str | None = None

    def __repr__(self) -> str:
        return f"<Parking {len(self.parked)} of {len(self._names)}>"

    @property
    def parked(self) -> list[ParkedRow]:
        """The rows that the position has passed."""
        end_lsn = 0 if self.position is None else self.position.end_lsn
        return [row for row in self._met.values() if row.commit_lsn < end_lsn]

    @property
    def missing(self) -> list[str]:
        """The names of rows that were not met."""
        found = {name for row in self.parked for name in (row.id, row.place)}
        return sorted(self._names - found)

    def heartbeat(self) -> None:
        """See Observer."""
        if self._clock() - self._moved_at >= self._timeout_s and self.fault is None:
            self.fault = self._last or "the log brought nothing"
            self._end()

    def failed(self, error: Exception) -> None:
        """See Observer."""
        self._last = str(error)

    def state(self, state: str, reason: str) -> None:
        """See Observer."""
        if state == State.STREAMING:
            self._moved_at = self._clock()
        elif state in (State.STANDBY, State.HELD):
            self._last = reason
        self.heartbeat()

    def server(self, server: Server, position: Position | None) -> None:
        """See Observer."""
        if self._goal is None:
            self._goal = server.flush_lsn
        if position is not None:
            self._passed(position)

    def committed(self, position: Position, events: int, dead_letters: int, seconds: float) -> None:  # noqa: ARG002 - as declared there
        """See Observer."""
        if events or dead_letters:
            self._moved_at = self._clock()
        self._passed(position)

    def dead_letter(self, reason: str, event_id: str, sequence: str, what: str, correlation_id: str) -> None:
        """See Observer."""
        del correlation_id
        self._met[sequence] = ParkedRow(event_id, sequence, reason, what)

    def pending(self, rows: int, oldest_ms: int) -> None:
        """See Observer; not needed."""

    def ignored(self, kind: str, count: int) -> None:
        """See Observer; not needed."""

    def published(self, topics: Mapping[str, tuple[int, int]]) -> None:
        """See Observer; not needed."""

    def _passed(self, position: Position) -> None:
        self.position = position
        if not self.missing or (self._goal is not None and position.end_lsn >= self._goal):
            self._end()
