"""Which of several priorities gets the next worker: weighted fair queueing, values in, values out.

Strategy: stride scheduling (Waldspurger). Each priority has a *pass*, which grows by the time that its work took divided by its
weight; the smallest goes next. So under full load each gets its share of the workers' time, none starves, and what one does not
use the others take. One that was idle starts at the present, else it would claim all that it did not use.

Work is charged when it starts, by what such work took lately, and corrected when it ends: otherwise four workers that become
free at once would all go to the same priority.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

WEIGHTS: Final[Mapping[str, int]] = {"critical": 8, "high": 4, "default": 2, "low": 1}
"""Under full load of all four, `low` has 1/15 of the workers' time, `critical` 8/15."""

FIRST_GUESS_S: Final = 0.001

SMOOTHING: Final = 0.2
"""How much the newest duration counts in the average that the next work is charged."""


@dataclass(slots=True)
class _Class:
    weight: int
    limit: int | None
    passed: float = 0.0
    usual_s: float = FIRST_GUESS_S
    running: int = 0
    busy_s: float = 0.0


@dataclass(slots=True)
class Shares:
    """Shares of the workers' time; `limits` caps how many workers a priority may hold at once."""

    weights: Mapping[str, int] = field(default_factory=lambda: WEIGHTS)
    limits: Mapping[str, int] = field(default_factory=dict)
    _classes: dict[str, _Class] = field(default_factory=dict)
    _now: float = 0.0

    def __post_init__(self) -> None:
        self._classes = {name: _Class(weight, self.limits.get(name)) for name, weight in self.weights.items()}

    def next(self, waiting: Iterable[str]) -> str | None:
        """Return whose turn it is among those that have work to do, None when all of them are at their limit."""
        free = [(self._classes[name].passed, -self._classes[name].weight, name) for name in waiting if self.open(name)]
        return min(free)[2] if free else None

    def open(self, name: str) -> bool:
        """Whether a priority may hold one more worker."""
        each = self._classes[name]
        return each.limit is None or each.running < each.limit

    def started(self, name: str) -> float:
        """Charge a work that starts; returns what was charged, for `finished`."""
        each = self._classes[name]
        if not each.running:
            each.passed = max(each.passed, self._now)
        self._now = max(self._now, each.passed)
        each.running += 1
        each.passed += each.usual_s / each.weight
        return each.usual_s

    def finished(self, name: str, charged_s: float, seconds: float) -> None:
        """Correct the charge by what the work took."""
        each = self._classes[name]
        each.running -= 1
        each.busy_s += seconds
        each.passed += (seconds - charged_s) / each.weight
        each.usual_s += SMOOTHING * (seconds - each.usual_s)

    def busy_s(self) -> dict[str, float]:
        """Return how long workers were busy for each priority."""
        return {name: each.busy_s for name, each in self._classes.items()}


@dataclass(slots=True)
class Rate:
    """At most so many records a second, in bursts of a fifth of a second's worth; None for no limit."""

    per_s: float | None
    _tokens: float = 0.0
    _at: float | None = None

    def available(self, now: float) -> int | None:
        """Return how many records may start now, None for any number."""
        if self.per_s is None:
            return None
        burst = max(2.0, self.per_s / 5)
        self._tokens = burst if self._at is None else min(burst, self._tokens + (now - self._at) * self.per_s)
        self._at = now
        return int(self._tokens)

    def take(self, records: int) -> None:
        """Count records that start."""
        if self.per_s is not None:
            self._tokens -= records
