"""For commands that handle rows by the million: what comes for each row is freed by reference counting and leaves no cycles."""

from __future__ import annotations

import contextlib
import ctypes
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


def thrifty() -> None:
    """Let the C library give memory back: for a process whose other threads, librdkafka's, free what this one has allocated.

    glibc gives each thread an arena of its own, and learns from the first large block that is freed to keep such blocks: with rows of
    100 kB that held 15 MB for nothing. Elsewhere than on glibc nothing happens. The numbers are those of malloc.h.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_ARENA_MAX, ARENAS)
        mallopt(M_MMAP_THRESHOLD, MMAP_BYTES)


M_MMAP_THRESHOLD, M_ARENA_MAX = -3, -8

ARENAS = 2
"""This thread's, and one for librdkafka's."""

MMAP_BYTES = 64 * 1024
"""Blocks from this size on are mapped by themselves, and go back to the system when they are freed; an ordinary row is smaller."""
