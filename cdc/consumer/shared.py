"""A breaker that all processes of a consumer share, by a row of `consumer_breakers`; values in, values out.

Strategy: each process counts failures for itself. Whoever sees the dependency fail opens the row for the period; the others look at it
every LOOK_S, and hold their events too. When the period is over one process claims the row, which puts it off by another period: it
alone tries the probes, and a claim of which nothing more is heard is over by itself. Probes that succeed delete the row.

    CLOSED --(failures in a row: OPEN the row)--> OPEN    CLOSED --(LOOK: a row)--> OPEN    OPEN --(LOOK: no row)--> CLOSED
    OPEN --(its time is over: CLAIM, granted)--> HALF_OPEN --(probes succeed: CLOSE the row)--> CLOSED

The loop asks `asks` what to do with the row, lets it be done, and tells the answer by `heard`; one question at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from cdc.resilience.breaker import Breaker, State

LOOK_S: Final = 1.0
"""How old what a process knows of the others may be."""

AGAIN_S: Final = 0.05
"""How soon it is asked for leave again while a claim is under way."""


class Act(StrEnum):
    """What is done with the row."""

    LOOK = "look"
    OPEN = "open"
    CLAIM = "claim"
    CLOSE = "close"


class Row(NamedTuple):
    """The row after an act: for how many seconds more it is open (None: there is none), and whether a claim was granted."""

    open_s: float | None = None
    granted: bool = False


@dataclass(slots=True)
class SharedBreaker(Breaker):
    """A breaker that goes by what other processes know as well."""

    _next: Act | None = None
    _asking: Act | None = None
    _look_at: float = 0.0
    _granted: bool = False

    def allows(self, now: float) -> bool:
        """Tell whether to try; a probe needs a claim."""
        if self.state(now) is State.OPEN and not self._granted:
            return False
        allowed = Breaker.allows(self, now)
        self._granted = False
        return allowed

    def again_at(self, now: float) -> float:
        """Return when it is worth asking again."""
        at = Breaker.again_at(self, now)
        return at if self.state(now) is State.CLOSED else max(at, now + AGAIN_S)

    def succeeded(self) -> None:
        """Report a try that succeeded."""
        before = self._state
        Breaker.succeeded(self)
        if before is State.HALF_OPEN and self._state is State.CLOSED:
            self._next = Act.CLOSE

    def failed(self, now: float) -> None:
        """Report a try that failed."""
        Breaker.failed(self, now)
        if self._state is State.OPEN:
            self._next = Act.OPEN

    def asks(self, now: float) -> Act | None:
        """Return what to do with the row now, if anything; its answer must come to `heard`."""
        if self._asking is not None:
            return None
        over = self.state(now) is State.OPEN and now - self._since >= self.period_s and not self._granted
        if self._next is not None:
            self._asking, self._next = self._next, None
        elif over and now >= self._look_at - LOOK_S + AGAIN_S:
            self._asking = Act.CLAIM
        elif now >= self._look_at:
            self._asking = Act.LOOK
        if self._asking is not None:
            self._look_at = now + LOOK_S
        return self._asking

    def heard(self, row: Row | None, now: float) -> None:
        """Take an answer; None when the database did not answer, so that the same is asked again."""
        act, self._asking = self._asking, None
        if row is None:
            self._next = self._next or (act if act in {Act.OPEN, Act.CLOSE} else None)
        elif self._next is None and self._state is not State.HALF_OPEN:
            if row.granted:
                self._granted, self._state, self._since = True, State.OPEN, now - self.period_s
            elif row.open_s is not None:
                self._state, self._since = State.OPEN, now + row.open_s - self.period_s
            elif self._state is State.OPEN:
                self._state, self._row = State.CLOSED, 0
