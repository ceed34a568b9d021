"""How long to wait before the next attempt: exponential with full jitter, capped; values in, values out.

Full jitter (a uniform draw between zero and the ceiling) spreads the clients of a broker that came back better than a fixed
share does (Brooker, "Exponential Backoff And Jitter"). The ceiling is found without computing a power that could overflow:
a loop that computes 2 ** attempt first dies with OverflowError after about a thousand attempts, in the middle of an outage.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays for attempts that are counted from 1.

    `first_s` is the ceiling of the first delay, `cap_s` that of every delay; `draw` returns a number in [0, 1).
    """

    first_s: float
    cap_s: float
    draw: Callable[[], float]
    factor: float = 2.0

    def __post_init__(self) -> None:
        if not (0 <= self.first_s < math.inf and 0 <= self.cap_s < math.inf and 0 <= self.factor < math.inf):
            msg = "a backoff takes finite numbers from 0 on"
            raise ValueError(msg)

    def __call__(self, attempt: int) -> float:
        """Return the delay in seconds before this attempt, 0 <= delay <= cap_s."""
        return self.ceiling_s(attempt) * self.draw()

    def ceiling_s(self, attempt: int) -> float:
        """Return the longest delay before this attempt."""
        steps = max(0, attempt - 1)
        if steps == 0 or self.first_s == 0:
            return min(self.first_s, self.cap_s)
        if self.factor == 0:
            return 0.0
        exponent = math.log2(self.first_s) + steps * math.log2(self.factor)
        return self.cap_s if exponent >= _log2(self.cap_s) else min(2.0**exponent, self.cap_s)


def _log2(value: float) -> float:
    return math.log2(value) if value > 0 else -math.inf
