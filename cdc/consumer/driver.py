"""The thin driver: one thread that polls its broker, hands jobs to threads and results to the loop, and acknowledges what is settled.

Strategy: while nothing is under way it waits for records, else for results, looking at the broker in between: so it polls all the
time, however long a handler takes, and is no member that seems dead. It never runs a handler and never waits for a database. It is
the Listener of its Member (see `ports`).

Rules.
- What its Member tells comes inside of a call of it, in this thread: what is seen of the loop then is whole.
- Before places are given back their jobs may end, for HANDOVER_S at most, and their offsets are committed; places that were taken
  without asking are let go at once, with nothing committed.
- One commit at a time, and none beside a move of the same place (see `loop`).
"""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from cdc.consumer.lane import Handle, Handled, Job, Load, Loaded, Move, Moved, Note, Place, Result, Share, Shared, Standing
from cdc.consumer.loop import Loop
from cdc.consumer.ports import Member, Observer
from cdc.consumer.worker import Workers
from cdc.errors import CdcError

IDLE_S: Final = 0.1
"""Longest wait for records."""

GLANCE_S: Final = 0.005
"""How long results are waited for before the broker is looked at again, while jobs are under way."""

COMMIT_S: Final = 0.5
"""How often offsets are committed. What is committed too late is read again after a crash and skipped by its markers."""

COMMIT_LOST_S: Final = 60.0
"""After so long a commit without an answer is forgotten, and another one made."""

HANDOVER_S: Final = 5.0
"""How long jobs of places that are to be given back may take; the whole group waits for it."""

TURN_S: Final = 1.0
HITCH_S: Final = 30.0
"""How often the same complaint is repeated."""


class Driver:
    """Runs one loop until it is told to stop."""

    def __init__(  # noqa: PLR0913 - the parts that it connects
        self,
        *,
        name: str,
        loop: Loop,
        member: Member,
        workers: Workers,
        desk: Workers,
        observer: Observer,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._loop = loop
        self._member = member
        self._workers = workers
        self._desk = desk
        self._observer = observer
        self._clock = clock
        self._results = workers.results
        self._commit_at = self._turn_at = 0.0
        self._commit_since = 0.0
        self._told: dict[str, float] = {}
        self.stopping = False

    def __repr__(self) -> str:
        return f"<Driver {self._name} {self._loop!r}>"

    def run(self, grace_s: float) -> None:
        """Consume until `stopping`, then let jobs end within `grace_s`, commit and leave the group."""
        self._member.join(self)
        try:
            while not self.stopping:
                self._turn()
            self._loop.releasing(list(self._loop.lanes))
            self._settle(None, grace_s)
            self._commit_at_end(grace_s)
        finally:
            self._member.leave()

    def _turn(self) -> None:
        now = self._clock()
        for job in self._loop.jobs(now, time.time_ns() // 1_000_000):
            self._start(job)
        if self._loop.busy():
            self._take_results(GLANCE_S)
            self._loop.received(self._member.fetch(0))
        else:
            self._loop.received(self._member.fetch(self._idle_s(now)))
            self._take_results(0)
        pause, resume = self._loop.pauses()
        if pause:
            self._member.pause(pause)
        if resume:
            self._member.resume(resume)
        if now >= self._commit_at:
            self._commit(now)
        if now >= self._turn_at:
            self._turn_at = now + TURN_S
            self._observer.turned(self._name, self.state())

    def _idle_s(self, now: float) -> float:
        """Return how long records may be waited for: not beyond the time when a lane goes on."""
        due = self._loop.next_at()
        return IDLE_S if due is None else min(IDLE_S, max(0.0, due - now)) if due > now else GLANCE_S

    def _start(self, job: Job) -> None:
        if isinstance(job, Handle):
            self._workers.submit(job)
        else:
            # A move proves by the state of now that the place is ours.
            self._desk.submit(replace(job, ticket=self._member.ticket(job.lane.place)) if isinstance(job, Move) else job)

    # Results

    def _take_results(self, wait_s: float) -> None:
        try:
            job, result = self._results.get(timeout=wait_s) if wait_s else self._results.get_nowait()
            while True:
                self._finished(job, result)
                job, result = self._results.get_nowait()
        except queue.Empty:
            pass

    def _finished(self, job: Job, result: Result) -> None:
        now = self._clock()
        if isinstance(job, Note | Share):
            self._loop.finished(job, result, now)
            self._unasked(job, result)
            return
        lane = job.lane
        failed = result.failure if isinstance(result, Handled) else None
        head = lane.pending[0] if isinstance(job, Move) and lane.pending else None
        self._loop.finished(job, result, now)
        if lane.lost:
            self._observer.late(self._name, lane)
            return
        if isinstance(job, Handle) and isinstance(result, Handled):
            self._observer.handled(self._name, job, result, now - job.started)
            if failed is not None:
                self._observer.failed(self._name, job.records[result.settled], failed, lane.attempts, lane)
        elif isinstance(job, Move) and isinstance(result, Moved):
            self._observer.moved(self._name, job, result.error)
            if lane.standing is Standing.STOPPED:
                self._observer.stopped(self._name, lane)
            elif result.error and lane.move is None and head is not None:
                self._observer.skipped(self._name, head)
        else:
            self._unasked(job, result)

    def _unasked(self, job: Job, result: Result) -> None:
        """Say what the database did not answer."""
        if isinstance(job, Load) and isinstance(result, Loaded) and result.error:
            self.hitch(f"the database cannot be asked about {job.lane.topic}[{job.lane.partition}]: {result.error}")
        elif isinstance(job, Share) and isinstance(result, Shared) and result.error:
            self.hitch(f"the database cannot be asked about breaker {job.breaker}: {result.error}")

    def _settle(self, places: Sequence[Place] | None, patience_s: float) -> None:
        """Wait until jobs have ended."""
        deadline = self._clock() + patience_s
        while self._loop.busy(places) and self._clock() < deadline:
            self._take_results(GLANCE_S)

    def _commit_at_end(self, patience_s: float) -> None:
        """Commit what is settled, and wait for the answer as long as it is worth."""
        deadline = self._clock() + patience_s
        for _ in range(2):  # another commit may be under way
            self._commit(self._clock())
            while self._loop.committing and self._clock() < deadline:
                with contextlib.suppress(CdcError):  # what is wrong now was no error of the run
                    self._member.fetch(GLANCE_S)

    def _commit(self, now: float) -> None:
        self._commit_at = now + COMMIT_S
        if self._loop.committing and now - self._commit_since < COMMIT_LOST_S:
            return
        offsets = self._loop.offsets()
        self._loop.committing = bool(offsets)
        if offsets:
            self._commit_since = now
            self._member.commit(offsets)

    # What the member tells

    def assigned(self, places: Sequence[Place]) -> None:
        """See Listener."""
        self._loop.assigned(places)
        self._observer.assigned(self._name, places)

    def revoked(self, places: Sequence[Place]) -> None:
        """See Listener: let jobs end, and commit what is settled."""
        self._loop.releasing(places)
        self._settle(places, 0.0 if self.stopping else HANDOVER_S)
        offsets = {place: offset for place, offset in self._loop.offsets().items() if place in places}
        if offsets:
            self._loop.committed(self._member.hand_over(offsets))
        self._loop.revoked(places)
        self._observer.revoked(self._name, places, lost=False)

    def lost(self, places: Sequence[Place]) -> None:
        """See Listener."""
        self._loop.revoked(places)
        self._observer.revoked(self._name, places, lost=True)

    def at_end(self, place: Place, offset: int) -> None:
        """See Listener."""
        self._loop.at_end(place, offset)

    def committed(self, offsets: Mapping[Place, int], error: str = "") -> None:
        """See Listener."""
        self._loop.committing = False
        if error:
            self.hitch(f"offsets were not committed: {error}")
        self._loop.committed(offsets)

    def hitch(self, what: str) -> None:
        """Tell the observer, the same thing now and then only."""
        now = self._clock()
        if now - self._told.get(what, -HITCH_S) >= HITCH_S:
            self._told[what] = now
            self._observer.hitch(self._name, what)

    # For those who watch

    def state(self) -> Mapping[str, object]:
        """Return what `Observer.turned` is told."""
        lanes = self._loop.lanes
        now = self._clock()
        return {
            "lag": {place: lag for place in lanes if (lag := self._lag(place)) is not None},
            "standing": {place: str(lane.standing) for place, lane in lanes.items()},
            "pending": sum(len(lane.pending) for lane in lanes.values()),
            "running": self._loop.running,
            "breakers": {name: breaker.state(now).value for name, breaker in self._loop.breakers.items()},
            "busy_s": self._loop.shares.busy_s(),
        }

    def _lag(self, place: Place) -> int | None:
        """Return how many records are not settled, as far as is known; None before the first one."""
        lane = self._loop.lanes[place]
        here = lane.settled if lane.settled is not None or not lane.pending else lane.pending[0].offset
        if lane.end is not None and not lane.pending:
            here = max(lane.end, here or 0)
        return self._member.lag(place, here)
