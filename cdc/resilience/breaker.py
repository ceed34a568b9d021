"""A circuit breaker: stop asking what keeps failing, and look again after a while; values in, values out.

    CLOSED --(`failures` in a row)--> OPEN --(`period_s` later, one probe is let through)--> HALF_OPEN
    HALF_OPEN --(probe succeeds)--> CLOSED        HALF_OPEN --(probe fails, or is not heard of for `period_s`)--> OPEN

Time is an argument. A probe whose outcome nobody reports (cancelled, killed, lost) counts as failed once its period is over:
otherwise the breaker would stay half open for ever and refuse everything.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class State(Enum):
    """What the breaker lets through: all, nothing, or one probe."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half open"


@dataclass(slots=True)
class Breaker:
    """Counts failures in a row; the caller asks `allows` before a try and reports `succeeded` or `failed` after it."""

    failures: int
    period_s: float
    _row: int = 0
    _since: float = 0.0
    _state: State = State.CLOSED

    def state(self, now: float) -> State:
        """Return the state at this time."""
        if self._state is State.HALF_OPEN and now - self._since >= self.period_s:
            # The lost probe failed when its period ended, and from then on the next period counts.
            self._state, self._since = State.OPEN, self._since + self.period_s
        return self._state

    def allows(self, now: float) -> bool:
        """Tell whether to try; True in the open state makes this try the probe."""
        state = self.state(now)
        if state is State.OPEN and now - self._since >= self.period_s:
            self._state, self._since = State.HALF_OPEN, now
            return True
        return state is State.CLOSED

    def succeeded(self) -> None:
        """Report a try that succeeded."""
        self._row, self._state = 0, State.CLOSED

    def failed(self, now: float) -> None:
        """Report a try that failed."""
        self._row += 1
        if self._state is not State.CLOSED or self._row >= self.failures:
            self._state, self._since = State.OPEN, now
