"""For commands that handle rows by the million: what comes for each row is freed by reference counting and leaves no cycles."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

GC_THRESHOLD = 100_000
"""Objects that may be waiting for their reference counts before the collector looks for cycles: more than are in flight
between two ends, so that it looks only when something has really been left behind. At Python's own 700 it looked a hundred
times a second, for a seventh of the time that an event takes."""


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Keep the collector away from what is here now, which stays for good, and from what comes for each row."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
