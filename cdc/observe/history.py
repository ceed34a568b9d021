"""The last hour in samples, for the status page: what came through, how far behind, and whether all was well.

Strategy: a ring of samples, taken every SAMPLE_S by a thread that reads the snapshot; the pipeline does nothing for it. At most
SAMPLES_KEPT of them exist, some hundred kilobytes, whatever happens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from cdc.observe.health import Health

SAMPLE_S = 5.0
"""Seconds between two samples."""

SAMPLES_KEPT = 720
"""An hour of them."""

RATE_OVER_S = 9.0
"""The rate of the moment is taken over the last two samples: over one alone it would jump with the size of a batch."""


class Sample(NamedTuple):
    """What was counted up to a Unix time (seconds), and how far behind the pipeline was then."""

    time_s: float
    events: int
    dead_letters: int
    lag_s: float


class History:
    """Samples of one pipeline, oldest first; one thread takes them, any thread reads."""

    def __init__(self, health: Health) -> None:
        self._health = health
        self._samples = deque([self.now()], SAMPLES_KEPT)

    def __repr__(self) -> str:
        return f"<History of {len(self._samples)} samples>"

    def now(self) -> Sample:
        """Return a sample of this moment, which is not kept."""
        health = self._health
        snapshot, now_us = health.snapshot, health.now_us()
        # What waits for Kafka was read after the last look at the server; the log behind it was not.
        lag_s = max(snapshot.lag_s(now_us) or 0.0, health.oldest_pending_s())
        return Sample(now_us / 1e6, snapshot.events, snapshot.dead_letters, lag_s)

    def look(self, _leave: Callable[[], None]) -> None:
        """Take a sample; called by a `Periodic`."""
        self._samples.append(self.now())

    @property
    def samples(self) -> list[Sample]:
        """All that is kept, and this moment."""
        return [*self._samples.copy(), self.now()]

    def rate(self) -> float:
        """Events a second at present."""
        samples = self.samples
        now = samples[-1]
        before = next((sample for sample in reversed(samples) if now.time_s - sample.time_s >= RATE_OVER_S), samples[0])
        seconds = now.time_s - before.time_s
        return max(0.0, (now.events - before.events) / seconds) if seconds > 0 else 0.0
