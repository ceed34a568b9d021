"""What a consumer decides: records in, jobs out; results in, offsets out. No I/O, no clock, no randomness of its own.

Strategy: a Lane is one partition while it is ours (its states are drawn in `lane`). `Loop.jobs` says what to start now,
`Loop.finished` takes what became of it. A lane has one job at a time, so its records are settled in order, and what is
committed is always all of them up to one.

Rules.
- A job holds its lane. When the partition is taken from us the lane is `lost`, and what comes later of the job changes nothing:
  the partition that comes back is another lane.
- Nothing is settled before its database transaction was committed or its move to another topic was.
- No offset of a lane is committed while a move of it is under way: the move carries the offset, and an older one that arrives
  behind it would bring the record back.
- What is the database's or a dependency's fault is not counted against a record.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cdc.consumer.event import key_id, named
from cdc.consumer.lane import (
    Failure,
    Handle,
    Handled,
    Job,
    Kind,
    Lane,
    Load,
    Loaded,
    Move,
    Moved,
    Note,
    Place,
    Result,
    Share,
    Shared,
    Standing,
)
from cdc.consumer.shared import SharedBreaker
from cdc.consumer.shares import Rate, Shares
from cdc.resilience.backoff import Backoff
from cdc.resilience.breaker import Breaker, State

if TYPE_CHECKING:
    from cdc.event import Seen

MOVES_MAX: Final = 5
"""How often moving a record to another topic is tried before its partition stops: half a minute with the delays below."""

FIRST_S, CAP_S = 0.5, 30.0
"""Delays of what is tried until it succeeds: a database that is away, and moves to another topic."""


@dataclass(slots=True)
class Limits:
    """How much at once: workers, records of one database transaction, records in memory, records a second."""

    workers: int = 4
    batch: int = 1
    in_flight: int = 2_000
    rate: float | None = None


@dataclass(slots=True)
class Rules:
    """What the loop asks: all of it is pure, and `draw` returns a number in [0, 1)."""

    draw: Callable[[], float]
    priority: Callable[[str], str] = lambda _: "default"
    depends: Callable[[Seen], str | None] = lambda _: None
    due_ms: Callable[[Seen], int] = lambda _: 0
    attempts: Callable[[Seen], int] = lambda _: 0
    lasting: bool = True
    """Whether offsets last over a restart, so that attempts are kept by them; else by the event's id."""
    alone: Callable[[Seen], bool] = lambda _: False
    """Whether a record shares its database transaction with no other."""
    later: bool = False
    """Whether another attempt goes through a retry topic; else it waits in its place."""
    skip_unparkable: bool = False


class Loop:
    """Decides for all partitions of one consumer."""

    def __init__(self, limits: Limits, rules: Rules, breakers: Mapping[str, Breaker] | None = None, shares: Shares | None = None) -> None:
        self.limits = limits
        self.rules = rules
        self.breakers = dict(breakers or {})
        self.shares = shares or Shares()
        self.lanes: dict[Place, Lane] = {}
        self.rate = Rate(limits.rate)
        self.running = 0
        self.committing = False
        self._backoff = Backoff(FIRST_S, CAP_S, rules.draw)
        self._notes: list[Note] = []

    def __repr__(self) -> str:
        stopped = sum(lane.standing is Standing.STOPPED for lane in self.lanes.values())
        return f"<Loop {len(self.lanes)} partitions, {stopped} stopped, {self.running} of {self.limits.workers} workers busy>"

    # What the broker tells

    def assigned(self, places: Iterable[Place]) -> None:
        """Partitions are ours from now on."""
        for place in places:
            self.lanes[place] = Lane(*place, priority=self.rules.priority(place[0]))

    def releasing(self, places: Iterable[Place]) -> list[Lane]:
        """Start nothing more for partitions that will be taken; return the lanes that still have a job."""
        lanes = [self.lanes[place] for place in places if place in self.lanes]
        for lane in lanes:
            lane.closing = True
        return [lane for lane in lanes if lane.job is not None]

    def revoked(self, places: Iterable[Place]) -> None:
        """Partitions are no longer ours; what is under way for them meets nobody."""
        for place in places:
            lane = self.lanes.pop(place, None)
            if lane is not None:
                lane.lost = True

    def received(self, records: Iterable[Seen]) -> None:
        """Take records; what we have already, or nobody asked for, is passed over."""
        for record in records:
            lane = self.lanes.get((record.topic, record.partition))
            if lane is not None and record.offset > lane.fetched:
                lane.fetched = record.offset
                lane.pending.append(record)

    def at_end(self, place: Place, offset: int) -> None:
        """There is nothing more before this offset, not even aborted records and markers."""
        lane = self.lanes.get(place)
        if lane is not None:
            lane.end = offset

    def pauses(self) -> tuple[list[Place], list[Place]]:
        """Return which partitions are to be fetched no more for now, and which again."""
        room = max(2 * self.limits.batch, self.limits.in_flight // max(1, len(self.lanes)))
        pause, resume = list[Place](), list[Place]()
        for place, lane in self.lanes.items():
            full = len(lane.pending) >= room or lane.standing is Standing.STOPPED
            if full and not lane.paused:
                pause.append(place)
                lane.paused = True
            elif lane.paused and not full and len(lane.pending) <= room // 2:
                resume.append(place)
                lane.paused = False
        return pause, resume

    # Offsets

    def offsets(self) -> dict[Place, int]:
        """Return what may be committed and is not yet."""
        found = {}
        for place, lane in self.lanes.items():
            if lane.end is not None and not lane.pending and lane.job is None and lane.end > (lane.settled or -1):
                lane.settled = lane.end
            if lane.settled is not None and lane.settled != lane.committed and lane.move is None:
                found[place] = lane.settled
        return found

    def committed(self, offsets: Mapping[Place, int]) -> None:
        """These are acknowledged."""
        for place, offset in offsets.items():
            lane = self.lanes.get(place)
            if lane is not None:
                lane.committed = max(offset, lane.committed or 0)

    # Jobs

    def jobs(self, now: float, now_ms: int) -> list[Job]:
        """Return what to start now; each is started, and its result is brought to `finished`."""
        started: list[Job] = [*self._notes]
        self._notes.clear()
        for name, breaker in self.breakers.items():
            if isinstance(breaker, SharedBreaker) and (act := breaker.asks(now)) is not None:
                started.append(Share(name, act, breaker.period_s))
        for lane in self.lanes.values():
            if lane.job is not None or lane.closing or now < lane.not_before:
                continue
            if lane.standing is Standing.LOADING:
                lane.job = Load(lane)
                started.append(lane.job)
            elif lane.move is not None and lane.standing is Standing.PARKING and not self.committing:
                lane.job = lane.move
                started.append(lane.job)
        while self.running < self.limits.workers and (handle := self._handle(now, now_ms)) is not None:
            started.append(handle)
        return started

    def _handle(self, now: float, now_ms: int) -> Handle | None:
        """Return the next records to apply, of the priority whose turn it is."""
        tokens = self.rate.available(now)
        if tokens == 0:
            return None
        ready: dict[str, list[Lane]] = {}
        for lane in self.lanes.values():
            if lane.pending and lane.job is None and not lane.closing and lane.standing in _READY and now >= lane.not_before:
                ready.setdefault(lane.priority, []).append(lane)
        while (priority := self.shares.next(ready)) is not None:
            lane = ready[priority].pop(0)
            if not ready[priority]:
                del ready[priority]
            if self._may_start(lane, now, now_ms):
                return self._start(lane, now, tokens)
        return None

    def _may_start(self, lane: Lane, now: float, now_ms: int) -> bool:
        """Whether the record at the head is due and what it depends on lets it through; else the lane waits."""
        head = lane.pending[0]
        if (due_ms := self.rules.due_ms(head)) > now_ms:
            lane.standing, lane.why, lane.not_before = Standing.WAITING, "delayed", now + (due_ms - now_ms) / 1000
            return False
        name = self.rules.depends(head)
        if name is not None and not self.breakers[name].allows(now):
            lane.standing, lane.why, lane.not_before = Standing.WAITING, f"breaker {name}", self.breakers[name].again_at(now)
            return False
        return True

    def _start(self, lane: Lane, now: float, tokens: int | None) -> Handle:
        head = lane.pending[0]
        lane.attempts = lane.attempts or max(lane.known.attempts.get(self._number(head), 0), self.rules.attempts(head))
        records = self._batch(lane, self.limits.batch if tokens is None else min(self.limits.batch, tokens), now)
        self.rate.take(len(records))
        self.running += 1
        # The lane goes behind the others of its priority.
        self.lanes[lane.place] = self.lanes.pop(lane.place)
        lane.standing, lane.why = Standing.BUSY, ""
        lane.job = handle = Handle(lane, records, lane.attempts + 1, lane.done, now, self.shares.started(lane.priority))
        return handle

    def _batch(self, lane: Lane, most: int, now: float) -> tuple[Seen, ...]:
        """Return records for one database transaction, of one breaker at most; what failed before, came back or is a probe goes alone."""
        head = lane.pending[0]
        if most == 1 or lane.attempts or lane.done:
            return (head,)
        chosen: list[Seen] = []
        depends: str | None = None
        for record in lane.pending:
            name = self.rules.depends(record)
            another = name is not None and depends not in {None, name}
            closed = name is None or self.breakers[name].state(now) is State.CLOSED
            if len(chosen) == most or another or not closed or self.rules.alone(record):
                break
            depends = depends or name
            chosen.append(record)
        return tuple(chosen) or (head,)

    # Results

    def finished(self, job: Job, result: Result, now: float) -> None:
        """Take what became of a job."""
        if isinstance(job, Share):
            if isinstance(result, Shared):
                self._shared(job.breaker, result, now)
            return
        lane = job.lane
        if isinstance(job, Handle):
            self.running -= 1
            self.shares.finished(lane.priority, job.charged_s, max(0.0, now - job.started))
        if isinstance(job, Note):
            return
        lane.job = None
        if isinstance(job, Handle) and isinstance(result, Handled):
            self._dependency(job, result, now)
            if not lane.lost:
                self._handled(lane, result, now)
        elif lane.lost:
            return
        elif isinstance(result, Loaded):
            self._loaded(lane, result, now)
        elif isinstance(result, Moved):
            self._moved(lane, result, now)

    def _handled(self, lane: Lane, result: Handled, now: float) -> None:
        for _ in range(result.settled):
            self._settle(lane)
        lane.standing = Standing.READY
        failure = result.failure
        if failure is None:
            lane.hitches = 0
            return
        lane.done = failure.done
        if failure.kind is Kind.DATABASE:
            lane.hitches += 1
            self._wait(lane, now + self._backoff(lane.hitches), f"database ({failure.error_class})")
        elif failure.breaker is not None and self.breakers[failure.breaker].state(now) is not State.CLOSED:
            self._wait(lane, self.breakers[failure.breaker].again_at(now), f"breaker {failure.breaker}")
        else:
            lane.hitches = 0
            self._failed(lane, failure, now)

    def _failed(self, lane: Lane, failure: Failure, now: float) -> None:
        """Count an attempt against the record at the head, and decide about the next one."""
        lane.attempts += 1
        head, rule = lane.pending[0], failure.rule
        delay_s = rule.delay_s(lane.attempts, self.rules.draw) if failure.after_s is None else failure.after_s
        if failure.kind is Kind.BLOCKED or rule.gives_up(lane.attempts):
            lane.move = Move(lane, head, failure, lane.attempts, None)
        elif self.rules.later:
            lane.move = Move(lane, head, failure, lane.attempts, delay_s)
        else:
            self._notes.append(Note(lane, self._number(head), lane.attempts))
            self._wait(lane, now + delay_s, f"attempt {lane.attempts} failed ({failure.error_class})")
            return
        lane.standing, lane.why = Standing.PARKING, failure.error_class

    def _dependency(self, job: Handle, result: Handled, now: float) -> None:
        """Tell the breaker of a job about its outcome; a failure that is not the dependency's shows that it answered."""
        failure = result.failure
        answers = result.settled + (failure is not None and failure.breaker is None and failure.kind is not Kind.DATABASE)
        answered = next(filter(None, map(self.rules.depends, job.records[:answers])), None)
        if answered is not None:
            self.breakers[answered].succeeded()
            self._wake(answered)
        if failure is not None and failure.breaker is not None and failure.breaker == self.rules.depends(job.records[result.settled]):
            self.breakers[failure.breaker].failed(now)

    def _shared(self, name: str, result: Shared, now: float) -> None:
        breaker = self.breakers[name]
        assert isinstance(breaker, SharedBreaker), "it asked"
        breaker.heard(result.row, now)
        if result.row is not None and (result.row.granted or breaker.state(now) is State.CLOSED):
            self._wake(name)

    def _wake(self, breaker: str) -> None:
        """What waits for a breaker may ask again."""
        for lane in self.lanes.values():
            if lane.why == f"breaker {breaker}":
                lane.not_before = 0.0

    def _loaded(self, lane: Lane, result: Loaded, now: float) -> None:
        if result.error:
            lane.hitches += 1
            lane.why, lane.not_before = f"database ({result.error})", now + self._backoff(lane.hitches)
        else:
            lane.known, lane.standing, lane.hitches, lane.why, lane.not_before = result, Standing.READY, 0, "", 0.0

    def _moved(self, lane: Lane, result: Moved, now: float) -> None:
        assert lane.move is not None, "a move was under way"
        if not result.error:
            if lane.move.record.key is not None:
                lane.known = lane.known._replace(keys=lane.known.keys | {key_id(lane.move.record.key)})
            self._settle(lane)
            if result.acknowledged:
                lane.committed = lane.settled
            lane.move, lane.hitches, lane.standing, lane.why = None, 0, Standing.READY, ""
            return
        lane.hitches += 1
        lane.why = result.error
        if lane.hitches < MOVES_MAX:
            lane.not_before = now + self._backoff(lane.hitches)
        elif self.rules.skip_unparkable:
            self._settle(lane)
            lane.move, lane.hitches, lane.standing, lane.why = None, 0, Standing.READY, ""
        else:
            lane.move, lane.standing, lane.not_before = None, Standing.STOPPED, 0.0

    def _number(self, record: Seen) -> int:
        """Return by what a record's attempts are kept."""
        return record.offset if self.rules.lasting else named(record)

    def _settle(self, lane: Lane) -> None:
        """The record at the head is done with."""
        record = lane.pending.popleft()
        lane.settled = record.offset + 1
        if lane.attempts and not self.rules.later:
            self._notes.append(Note(lane, self._number(record), 0))
        lane.attempts, lane.done, lane.not_before = 0, frozenset(), 0.0

    @staticmethod
    def _wait(lane: Lane, until: float, why: str) -> None:
        lane.standing, lane.not_before, lane.why = Standing.WAITING, until, why

    def busy(self, places: Collection[Place] | None = None) -> bool:
        """Whether a job of these partitions (of any, without) is under way."""
        return any(lane.job is not None for place, lane in self.lanes.items() if places is None or place in places)

    def next_at(self) -> float | None:
        """Return when something waits for time alone, if something does."""
        times = [lane.not_before for lane in self.lanes.values() if lane.not_before and lane.job is None]
        return min(times, default=None)


_READY: Final[Sequence[Standing]] = (Standing.READY, Standing.WAITING)
