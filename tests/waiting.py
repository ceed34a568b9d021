"""Wait for a fact, with a deadline; never for a time."""

import time
from collections.abc import Callable
from typing import TypeVar

Fact = TypeVar("Fact")

POLL_S = 0.02


def wait_for(fact: Callable[[], Fact], deadline_s: float = 30.0, what: str = "") -> Fact:
    """Return the first truthy answer of `fact`; fails when there is none in time."""
    end = time.monotonic() + deadline_s
    while True:
        answer = fact()
        if answer:
            return answer
        if time.monotonic() >= end:
            raise AssertionError(f"not within {deadline_s} s: {what or getattr(fact, '__name__', fact)} (last answer {answer!r})")
        time.sleep(POLL_S)  # between two looks at the fact
