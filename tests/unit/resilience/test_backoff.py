"""Delays between attempts: bounded, growing, and alive after any number of attempts."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.resilience.backoff import Backoff

UNIT = st.floats(min_value=0, max_value=1, exclude_max=True)
SECONDS = st.floats(min_value=0, max_value=1e6)


def test_field_case_130_backoff_never_overflows() -> None:
    backoff = Backoff(0.1, 5.0, random.Random(130).random)
    delays = [backoff(attempt) for attempt in range(1, 5001)]
    assert all(0 <= delay <= 5.0 for delay in delays)
    assert max(delays[1000:]) > 4.9


def test_ceiling_doubles_until_the_cap() -> None:
    backoff = Backoff(0.1, 1.0, lambda: 0.5)
    assert [backoff.ceiling_s(n) for n in range(1, 7)] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0])
    assert backoff(2) == pytest.approx(0.1)


@given(SECONDS, SECONDS, UNIT, st.floats(min_value=0, max_value=100), st.integers(min_value=0, max_value=10**9))
def test_delay_stays_between_zero_and_cap(first: float, cap: float, draw: float, factor: float, attempt: int) -> None:
    assert 0 <= Backoff(first, cap, lambda: draw, factor)(attempt) <= cap


@pytest.mark.parametrize(
    ("first", "cap", "factor", "expected"),
    [(0.1, 5, 0, 0.0), (0, 5, 2, 0.0), (0.1, 0, 2, 0.0), (4, 5, 0.5, 2.0), (10, 5, 1, 5.0)],
)
def test_second_ceiling_at_the_edges(first: float, cap: float, factor: float, expected: float) -> None:
    assert Backoff(first, cap, lambda: 1.0, factor).ceiling_s(2) == pytest.approx(expected)


@pytest.mark.parametrize(("first", "cap", "factor"), [(-1, 1, 2), (1, float("inf"), 2), (1, 1, float("nan"))])
def test_nonsense_is_refused(first: float, cap: float, factor: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        Backoff(first, cap, lambda: 0.0, factor)
