"""What the pipeline is doing, as one immutable snapshot that any thread may read.

Strategy: the owner thread writes, by replacing the snapshot whole; the HTTP thread reads whichever one is there. So there is
no lock, nobody waits for anybody, and what is shown together was true together. Everything that can be computed later
(ages, lags, rates) is computed by the reader.

Live means that the loop turns: its last heartbeat is younger than HEARTBEAT_MAX_AGE_S. Ready means that this instance owns
the slot and streams. A standby is live and not ready, and says so.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from cdc.pipeline.supervisor import State
from cdc.position import Position, time_text
from cdc.postgres.server import Server

if TYPE_CHECKING:
    from cdc.audit.dead_letters import Letter

HEARTBEAT_MAX_AGE_S = 30.0
"""Seconds without a turn of the loop after which it hangs: longer than any one call may block (a connection attempt, 10 s),
shorter than three probes of the usual 10 s and 60 s of wal_sender_timeout."""

TURNS_KEPT = 50
"""State changes that are kept for the status page and `last_errors`: some hours of an ordinary outage."""

WAL_SAMPLES_KEPT = 60
"""Looks at the slot from which its rate is taken: at one in 10 s, the last ten minutes."""

WAITING = frozenset({State.STANDBY, State.BACKOFF, State.HELD})
"""States that the pipeline leaves only to try again: an attempt is no news until it succeeds. A standby tries twice a
second, and an outage would otherwise look half the time as if it were over."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A state was entered, at a Unix time; `reason` is empty when all is well."""

    time_us: int
    state: str
    reason: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that is known; `wal_samples` are (monotonic seconds, safe_wal_size) pairs."""

    pipeline: str
    turn: Turn
    turns: tuple[Turn, ...] = ()
    position: Position | None = None
    server: Server | None = None
    wal_samples: tuple[tuple[float, int], ...] = ()
    committed_at_us: int | None = None
    kafka_transactions: int = 0
    events: int = 0
    dead_letters: int = 0
    failures: int = 0
    failures_in_a_row: int = 0

    @property
    def ready(self) -> bool:
        """Whether this instance owns the slot and streams; a reason beside that state is what it waits for."""
        return self.turn.state == State.STREAMING and not self.turn.reason

    @property
    def standby(self) -> bool:
        """Whether this instance waits for another one's slot."""
        return self.turn.state == State.STANDBY

    @property
    def lag_bytes(self) -> int | None:
        """Bytes of log, at the last look at the server, that are not published yet."""
        if self.server is None or self.position is None:
            return None
        return max(0, self.server.flush_lsn - self.position.end_lsn)

    def lag_s(self, now_us: int) -> float | None:
        """Seconds since the commit up to which everything is published; 0 when nothing waits."""
        if self.position is None or self.lag_bytes is None:
            return None
        return max(0.0, (now_us - self.position.commit_time_us) / 1e6) if self.lag_bytes else 0.0

    @property
    def slot(self) -> SlotHealth | None:
        """The slot at the last look, if there was one."""
        return None if self.server is None else slot_health(self.server, self.wal_samples)


@dataclass(frozen=True, slots=True)
class SlotHealth:
    """Why the server keeps log for us, and how long it will.

    `confirmed_lag_bytes` is the log that we have not confirmed: the pipeline's own lag. `held_back_bytes` is what the slot
    keeps below that, for a transaction that was open when the confirmed place was written: it goes away when that
    transaction ends, whatever we do. `retained_bytes` is both.
    """

    wal_status: str | None
    retained_bytes: int | None
    confirmed_lag_bytes: int | None
    held_back_bytes: int | None
    safe_wal_bytes: int | None
    seconds_until_lost: float | None


def slot_health(server: Server, wal_samples: tuple[tuple[float, int], ...] = ()) -> SlotHealth | None:
    """Judge the slot by one look at the server, and by `wal_samples` how fast its room shrinks."""
    slot = server.slot
    if slot is None:
        return None
    flush, restart, confirmed = server.flush_lsn, slot.restart_lsn, slot.confirmed_flush_lsn
    return SlotHealth(
        wal_status=slot.wal_status,
        retained_bytes=None if restart is None else max(0, flush - restart),
        confirmed_lag_bytes=None if confirmed is None else max(0, flush - confirmed),
        held_back_bytes=None if restart is None or confirmed is None else max(0, confirmed - restart),
        safe_wal_bytes=slot.safe_wal_size,
        seconds_until_lost=_seconds_until_lost(wal_samples),
    )


def _seconds_until_lost(samples: tuple[tuple[float, int], ...]) -> float | None:
    if not samples:
        return None
    (first_s, first_bytes), (last_s, last_bytes) = samples[0], samples[-1]
    if last_bytes <= 0:
        return 0.0
    if last_s <= first_s or last_bytes >= first_bytes:
        return None
    return last_bytes * (last_s - first_s) / (first_bytes - last_bytes)


class Pending(NamedTuple):
    """Rows that were read and not committed to Kafka, and when PostgreSQL committed the oldest (Unix ms)."""

    rows: int
    oldest_ms: int


NOTHING = Pending(0, 0)


class Health:
    """The current snapshot, and beside it what changes too often for one; one thread writes each, any thread reads.

    `dead_letters_open` is None while nobody knows; `retention_error` is why old rows are not deleted at present. `letters` are the
    last dead letters as they were parked, newest first; `letters_read` those that the topic had at the last count.
    """

    def __init__(
        self,
        pipeline: str,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        wall_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        self._monotonic = monotonic
        self._wall_us = wall_us
        self._beat = monotonic()
        self.pending = NOTHING
        self.dead_letters_open: int | None = None
        self.dead_letters_counted = 0
        self.retention_error: str | None = None
        self.letters: tuple[Letter, ...] = ()
        self.letters_read: tuple[Letter, ...] = ()
        start = Turn(wall_us(), State.STARTING.value, "")
        self._snapshot = Snapshot(pipeline, start, (start,))

    def __repr__(self) -> str:
        turn = self._snapshot.turn
        return f"<Health {self._snapshot.pipeline}: {turn.state}{', ' + turn.reason if turn.reason else ''}>"

    @property
    def snapshot(self) -> Snapshot:
        """What is known now."""
        return self._snapshot

    def beat(self) -> None:
        """Note that the loop turned."""
        self._beat = self._monotonic()

    def beat_age_s(self) -> float:
        """Seconds since the loop last turned."""
        return max(0.0, self._monotonic() - self._beat)

    @property
    def live(self) -> bool:
        """Whether the loop turns."""
        return self.beat_age_s() < HEARTBEAT_MAX_AGE_S

    def oldest_pending_s(self) -> float:
        """Seconds since PostgreSQL's commit of the oldest pending row; 0 when there are none."""
        rows, oldest_ms = self.pending
        return max(0.0, self._wall_us() / 1e6 - oldest_ms / 1e3) if rows else 0.0

    def now_us(self) -> int:
        """Unix time in microseconds."""
        return self._wall_us()

    def turned(self, state: str, reason: str) -> bool:
        """Enter a state; return whether anything is new about it."""
        snapshot = self._snapshot
        now = snapshot.turn
        if (now.state, now.reason) == (state, reason) or (state == State.OPENING and now.state in WAITING):
            return False
        turn = Turn(self._wall_us(), state, reason)
        self._replace(turn=turn, turns=(*snapshot.turns, turn)[-TURNS_KEPT:])
        return True

    def failed(self) -> None:
        """Count a passage through the door that ended with an error."""
        snapshot = self._snapshot
        self._replace(failures=snapshot.failures + 1, failures_in_a_row=snapshot.failures_in_a_row + 1)

    def looked(self, server: Server, position: Position | None) -> None:
        """Keep what was seen of the server."""
        samples = self._snapshot.wal_samples
        safe = None if server.slot is None else server.slot.safe_wal_size
        samples = () if safe is None else (*samples, (self._monotonic(), safe))[-WAL_SAMPLES_KEPT:]
        self._replace(server=server, position=position or self._snapshot.position, wal_samples=samples)

    def committed(self, position: Position, events: int, dead_letters: int) -> None:
        """Count a committed Kafka transaction."""
        snapshot = self._snapshot
        self._replace(
            position=position,
            committed_at_us=self._wall_us(),
            kafka_transactions=snapshot.kafka_transactions + 1,
            events=snapshot.events + events,
            dead_letters=snapshot.dead_letters + dead_letters,
            failures_in_a_row=0,
        )

    def _replace(self, **changes: Any) -> None:  # noqa: ANN401 - the fields' own types
        self._snapshot = dataclasses.replace(self._snapshot, **changes)

    def document(self) -> dict[str, Any]:
        """Return `/status`: everything, as plain JSON."""
        document = status_document(self._snapshot, self._wall_us())
        opened = self.dead_letters_open  # counted now and then: what was parked since is open as well, and nobody waits for the next count
        document["dead_letters_open"] = None if opened is None else opened + self._snapshot.dead_letters - self.dead_letters_counted
        return {**document, "retention_error": self.retention_error, "live": self.live, "heartbeat_age_s": round(self.beat_age_s(), 3)}


def status_document(snapshot: Snapshot, now_us: int) -> dict[str, Any]:
    """Return a snapshot as plain JSON; what is not known is null."""
    position, server, turn = snapshot.position, snapshot.server, snapshot.turn
    return {
        "pipeline": snapshot.pipeline,
        "state": turn.state,
        "reason": turn.reason,
        "since": time_text(turn.time_us),
        "ready": snapshot.ready,
        "standby": snapshot.standby,
        "position": None
        if position is None
        else {
            "end_lsn": str(position.end_lsn),
            "commit_time": time_text(position.commit_time_us),
            "generation": position.generation,
            "hold": position.hold,
            "pending": position.pending,
            "replay_until": None if position.replay_until is None else str(position.replay_until),
            "gap": None if position.gap is None else position.gap.document(),
        },
        "lag": {"bytes": snapshot.lag_bytes, "seconds": snapshot.lag_s(now_us)},
        "slot": _slot_document(snapshot),
        "server": None
        if server is None
        else {
            "system_id": server.system_id,
            "version": server.version,
            "in_recovery": server.in_recovery,
            "flush_lsn": str(server.flush_lsn),
        },
        "committed_at": None if snapshot.committed_at_us is None else time_text(snapshot.committed_at_us),
        "totals": {
            "events": snapshot.events,
            "dead_letters": snapshot.dead_letters,
            "kafka_transactions": snapshot.kafka_transactions,
            "failures": snapshot.failures,
        },
        "last_errors": [_turn_document(each) for each in reversed(snapshot.turns) if each.reason],
        "turns": [_turn_document(each) for each in reversed(snapshot.turns)],
    }


def _slot_document(snapshot: Snapshot) -> Mapping[str, Any] | None:
    health = snapshot.slot
    slot = None if snapshot.server is None else snapshot.server.slot
    if health is None or slot is None:
        return None
    return {
        "name": slot.name,
        "active_pid": slot.active_pid,
        "invalidation_reason": slot.invalidation_reason,
        "restart_lsn": None if slot.restart_lsn is None else str(slot.restart_lsn),
        "confirmed_flush_lsn": None if slot.confirmed_flush_lsn is None else str(slot.confirmed_flush_lsn),
        **dataclasses.asdict(health),
    }


def _turn_document(turn: Turn) -> dict[str, str]:
    return {"time": time_text(turn.time_us), "state": turn.state, "reason": turn.reason}
