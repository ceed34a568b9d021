"""When a failed record is tried again: values in, values out.

A policy is delays and a number of attempts, and may be another one for some classes of errors. The default waits 10, 30, 90 and
270 s: five attempts within 400 s, longer than the restart of most dependencies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Self

from cdc.errors import InvalidEvent
from cdc.resilience.backoff import Backoff

DELAYS_S: Final = (10.0, 30.0, 90.0, 270.0)


class Unprocessable(Exception):
    """Raised by a handler: no further attempt will succeed, park the record at once. The words go into the dead letter."""


class TryAgain(Exception):
    """Raised by a handler: try again after `after_s` seconds, such as an HTTP answer's Retry-After; counts as an attempt."""

    def __init__(self, after_s: float, why: str = "") -> None:
        super().__init__(why)
        self.after_s = max(0.0, after_s)


@dataclass(frozen=True, slots=True)
class Retry:
    """Delays between attempts, in seconds, and how many attempts there are; a record that fails the last one is parked.

    `jitter` is the share of each delay that is left to chance: with 0.2 it is between 80 % and 100 %. No delay is above
    `cap_s`. `for_class` names policies for classes of errors; the first that fits decides.
    """

    delays_s: tuple[float, ...] = DELAYS_S
    attempts: int = len(DELAYS_S) + 1
    jitter: float = 0.0
    cap_s: float = 86_400.0
    first_s: float | None = None
    factor: float = 2.0
    for_class: tuple[tuple[type[BaseException], Retry], ...] = field(default=())

    def __post_init__(self) -> None:
        if self.attempts < 1 or not 0 <= self.jitter <= 1 or self.cap_s < 0 or any(delay < 0 for delay in self.delays_s):
            msg = "a retry takes at least one attempt, delays from 0 on, and a jitter between 0 and 1"
            raise ValueError(msg)

    @classmethod
    def listed(cls, *delays_s: float, jitter: float = 0.0) -> Self:
        """Return one that waits these times, one after the other: one attempt more than there are delays."""
        return cls(delays_s=delays_s, attempts=len(delays_s) + 1, jitter=jitter)

    @classmethod
    def fixed(cls, delay_s: float, attempts: int, *, jitter: float = 0.0) -> Self:
        """Return one that always waits the same time."""
        return cls(delays_s=(delay_s,), attempts=attempts, jitter=jitter)

    @classmethod
    def exponential(cls, first_s: float, cap_s: float, attempts: int, *, factor: float = 2.0) -> Self:
        """Return one that waits longer each time, with full jitter: anything between 0 and the ceiling, which is capped."""
        return cls(delays_s=(), attempts=attempts, first_s=first_s, cap_s=cap_s, factor=factor)

    @classmethod
    def never(cls) -> Self:
        """Return one that parks a record at its first failure."""
        return cls(delays_s=(), attempts=1)

    def but(self, policies: Mapping[type[BaseException], Retry]) -> Self:
        """Return the same with other policies for some classes of errors; what is added later comes first."""
        return replace(self, for_class=(*policies.items(), *self.for_class))

    def rule_for(self, error: BaseException) -> Retry:
        """Return the policy for an error."""
        if isinstance(error, Unprocessable):
            return NEVER
        for kind, rule in self.for_class:
            if isinstance(error, kind):
                return rule
        return NEVER if isinstance(error, InvalidEvent) else self

    def gives_up(self, failed: int) -> bool:
        """Whether this many failed attempts were all."""
        return failed >= self.attempts

    def delay_s(self, failed: int, draw: Callable[[], float]) -> float:
        """Return how long to wait after this many failed attempts; `draw` returns a number in [0, 1)."""
        if self.first_s is not None:
            return Backoff(self.first_s, self.cap_s, draw, self.factor)(failed)
        if not self.delays_s:
            return 0.0
        delay = self.delays_s[min(max(failed, 1), len(self.delays_s)) - 1]
        return min(delay * (1 - self.jitter * draw()), self.cap_s)


NEVER: Final = Retry.never()
