"""Delays stay between 0 and the cap, and each class of errors has its policy."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.consumer.retry import NEVER, Retry, TryAgain, Unprocessable
from cdc.errors import InvalidEvent


def test_the_default_waits_10_30_90_270_and_gives_up_at_the_fifth() -> None:
    retry = Retry()
    assert [retry.delay_s(failed, lambda: 0.9) for failed in range(1, 5)] == [10, 30, 90, 270]
    assert [retry.gives_up(failed) for failed in range(1, 6)] == [False, False, False, False, True]


@pytest.mark.parametrize("factor", [0.0, 1.0, 2.0, 10.0])
def test_field_case_130_no_delay_overflows(factor: float) -> None:
    retry = Retry.exponential(0.1, 5, attempts=10_000, factor=factor)
    for draw in (0.0, 0.5, 0.999):
        assert all(0 <= retry.delay_s(failed, lambda draw=draw: draw) <= 5 for failed in range(1, 5001))  # type: ignore[misc]


@given(st.lists(st.floats(0, 1e6), max_size=5), st.floats(0, 1), st.floats(0, 1e4), st.integers(1, 10**6), st.floats(0, 0.999))
def test_every_delay_is_within_the_cap(delays: list[float], jitter: float, cap: float, failed: int, draw: float) -> None:
    assert 0 <= Retry(tuple(delays), 3, jitter, cap).delay_s(failed, lambda: draw) <= cap


def test_policies_by_class() -> None:
    slow, quick = Retry.fixed(60, 10), Retry.fixed(1, 2)
    retry = Retry().but({OSError: slow}).but({TimeoutError: quick})
    assert retry.rule_for(TimeoutError()) is quick
    assert retry.rule_for(ConnectionError()) is slow
    assert retry.rule_for(ValueError()) is retry
    assert retry.rule_for(Unprocessable()) is NEVER
    assert retry.rule_for(InvalidEvent("schema", "x")) is NEVER
    assert retry.rule_for(TryAgain(5)) is retry
    assert Retry.fixed(1, 3, jitter=0.2).delay_s(1, lambda: 0.5) == pytest.approx(0.9)


@pytest.mark.parametrize("wrong", [{"attempts": 0}, {"jitter": 2.0}, {"delays_s": (-1.0,)}, {"cap_s": -1.0}])
def test_nonsense_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="a retry takes"):
        Retry(**wrong)  # type: ignore[arg-type]
