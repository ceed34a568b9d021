"""A circuit breaker: stop asking what keeps failing, and look again after a while; values in, values out.

    CLOSED --(`failures` in a row)--> OPEN --(`period_s` later, `probes` tries are let through)--> HALF_OPEN
    HALF_OPEN --(all probes succeed)--> CLOSED    HALF_OPEN --(one fails, or is not heard of for `period_s`)--> OPEN

Time is an argument. A success that was begun before the breaker opened says nothing about now, and leaves it open. A probe whose
outcome nobody reports (cancelled, killed, lost) counts as failed once its period is over: otherwise the breaker would stay half
open for ever and refuse everything.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class State(Enum):
    """What the breaker lets through: all, nothing, or its probes."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half open"


@dataclass(slots=True)
class Breaker:
    """Counts failures in a row; the caller asks `allows` before a try and reports `succeeded` or `failed` after it."""

    failures: int
    period_s: float
    probes: int = 1
    _row: int = 0
    _admitted: int = 0
    _passed: int = 0
    _since: float = 0.0
    _state: State = State.CLOSED

    def state(self, now: float) -> State:
        """Return the state at this time."""
        if self._state is State.HALF_OPEN and now - self._since >= self.period_s:
            # The lost probe failed when its period ended, and from then on the next period counts.
            self._state, self._since = State.OPEN, self._since + self.period_s
        return self._state

    def allows(self, now: float) -> bool:
        """Tell whether to try; True in the open state makes this try a probe."""
        state = self.state(now)
        if state is State.OPEN and now - self._since >= self.period_s:
            self._state, self._since, self._admitted, self._passed = State.HALF_OPEN, now, 0, 0
        if self._state is State.HALF_OPEN and self._admitted < self.probes:
            self._admitted += 1
            return True
        return state is State.CLOSED

    def again_at(self, now: float) -> float:
        """Return when it is worth asking again, unless a probe succeeds before."""
        return now if self.state(now) is State.CLOSED else self._since + self.period_s

    def succeeded(self) -> None:
        """Report a try that succeeded."""
        if self._state is State.HALF_OPEN:
            self._passed += 1
            if self._passed >= self.probes:
                self._state = State.CLOSED
        if self._state is State.CLOSED:
            self._row = 0

    def failed(self, now: float) -> None:
        """Report a try that failed."""
        self._row += 1
        if self._state is not State.CLOSED or self._row >= self.failures:
            self._state, self._since = State.OPEN, now
