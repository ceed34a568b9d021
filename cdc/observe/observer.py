"""The pipeline's Observer: what it reports becomes metrics, health and log lines.

Strategy: every hook is a few assignments and counter increments, is called once for each Kafka transaction or rarer, and
never waits for anybody. Log lines that an outage or a bad deployment could repeat thousands of times a second are
thinned out.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping

from cdc.audit.dead_letters import LAST, Letter
from cdc.errors import CdcError
from cdc.observe.health import NOTHING, Health, Pending
from cdc.observe.history import History
from cdc.observe.logs import describe, logger
from cdc.observe.metrics import Metrics
from cdc.outbox.router import commit_lsn
from cdc.pipeline.supervisor import State
from cdc.position import Position
from cdc.postgres.server import Server

DEAD_LETTER_LINES = 10
"""Log lines about dead letters of one reason within DEAD_LETTER_WINDOW_S; more would hide everything else."""

DEAD_LETTER_WINDOW_S = 60.0
"""Seconds after which dead letters are told about again, with how many were left out."""


COUNT_S = 30.0
"""Seconds between two counts of the dead letters: two requests to the broker when there is nothing new."""

_LAST = frozenset({State.STOPPED, State.FAILED})

SIDES = ("postgres", "kafka")
"""Rooms that an error can come from; all else is `pipeline`."""


class PipelineObserver:
    """Implements `cdc.pipeline.ports.Observer`; one for the process."""

    def __init__(
        self,
        pipeline: str,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        wall_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        self._monotonic = monotonic
        self.health = Health(pipeline, monotonic=monotonic, wall_us=wall_us)
        self.metrics = Metrics()
        self.history = History(self.health)
        self._log = logger("pipeline").bind(pipeline=pipeline)
        self._windows: dict[str, tuple[float, int]] = {}

    def __repr__(self) -> str:
        return repr(self.health)

    def heartbeat(self) -> None:
        """Note that the loop turned, or waits and has looked around."""
        self.health.beat()

    def state(self, state: str, reason: str) -> None:
        """Show and log a state that the supervisor entered."""
        self.health.beat()
        if state in _LAST:
            self._gave_up(state)
        if self.health.turned(state, reason) and state != State.BACKOFF:  # `failed` has told it
            (self._log.error if state == State.FAILED else self._log.info)("state", state=str(state), reason=reason)

    def server(self, server: Server, position: Position | None) -> None:
        """Keep what was seen of the server."""
        self.health.looked(server, position)

    def failed(self, error: Exception) -> None:
        """Count and log the error that ended a passage through the door."""
        cause, side = cause_of(error), side_of(error)
        self.health.failed()
        self.metrics.failures.add(1, side, cause)
        self._gave_up(cause)
        self._log.warning("passage failed", side=side, cause=cause, error=describe(error))

    def pending(self, rows: int, oldest_ms: int) -> None:
        """Keep what is under way."""
        self.health.pending = Pending(rows, oldest_ms)

    def _gave_up(self, reason: str) -> None:
        """Count the Kafka transaction that was under way, if there was one."""
        if self.health.pending.rows:
            self.health.pending = NOTHING
            self.metrics.aborted.add(1, reason)

    def published(self, topics: Mapping[str, tuple[int, int]]) -> None:
        """Count what a committed Kafka transaction held: records and bytes by topic."""
        for topic, (records, size) in topics.items():
            self.metrics.topic(topic, records, size)

    def committed(self, position: Position, events: int, dead_letters: int, seconds: float) -> None:
        """Count a Kafka transaction that was committed, `seconds` after its first record."""
        health, metrics = self.health, self.metrics
        health.beat()
        health.pending = NOTHING
        health.committed(position, events, dead_letters)
        if not events and not dead_letters:
            return
        metrics.events.add(events)
        metrics.kafka_transaction_s.add(seconds)
        metrics.latency_s.add(max(0.0, (health.now_us() - position.commit_time_us) / 1e6))

    def dead_letter(self, reason: str, event_id: str, sequence: str, what: str, correlation_id: str) -> None:
        """Count and log a row that was parked."""
        self.metrics.dead_letters.add(1, reason)
        health = self.health
        letter = Letter(event_id, sequence, reason, "", "", what, health.now_us() // 1000, -1, -1)
        health.letters = (letter, *health.letters)[:LAST]
        now = self._monotonic()
        since, told = self._windows.get(reason, (now, 0))
        left_out = 0
        if now - since >= DEAD_LETTER_WINDOW_S:
            left_out, since, told = max(0, told - DEAD_LETTER_LINES), now, 0
        self._windows[reason] = (since, told + 1)
        if told < DEAD_LETTER_LINES:
            more: dict[str, object] = {"correlation_id": correlation_id} if correlation_id else {}
            more |= {"left_out": left_out} if left_out else {}
            lsn = str(commit_lsn(sequence))
            self._log.warning("dead letter", reason=reason, event_id=event_id, lsn=lsn, sequence=sequence, what=what, **more)

    def count_dead_letters(
        self,
        count: Callable[[Callable[[], None]], int | None],
        leave: Callable[[], None],
        last: Callable[[], tuple[Letter, ...]] = tuple,
    ) -> None:
        """Keep how many dead letters are open while we stream, and the `last` ones that were read for that.

        Called from a thread of its own; `count` may take long and raise.
        """
        found = None
        try:
            found = count(leave) if self.health.snapshot.ready else None
        finally:
            self.health.dead_letters_open, self.health.dead_letters_counted = found, self.health.snapshot.dead_letters
            self.health.letters_read = last()

    def deleted(self, rows: int, partitions: int) -> None:
        """Count old rows and partitions that went; called from retention's thread."""
        self.health.retention_error = None
        self.metrics.retention_rows.add(rows)
        self.metrics.retention_partitions.add(partitions)

    def retention_failed(self, error: CdcError) -> None:
        """Count, show and log that old rows could not be deleted; called from retention's thread."""
        self.metrics.retention_failures.add()
        self.health.retention_error = describe(error)
        self._log.warning("old rows were not deleted", cause=cause_of(error), error=describe(error))

    def ignored(self, kind: str, count: int) -> None:
        """Count messages that were decoded and not used."""
        self.metrics.ignored.add(count, kind)


def side_of(error: Exception) -> str:
    """Return which end failed: the innermost room that the error passed through, `pipeline` when it was neither end's."""
    side, trace = "pipeline", error.__traceback__
    while trace is not None:
        room = str(trace.tb_frame.f_globals.get("__name__", "")).removeprefix("cdc.").partition(".")[0]
        side = room if room in SIDES else side
        trace = trace.tb_next
    return side


def cause_of(error: Exception) -> str:
    """Return the label of an error: its class in snake case."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(error).__name__).lower()
