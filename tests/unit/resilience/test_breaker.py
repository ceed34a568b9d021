"""The breaker opens, probes once, and never stays half open."""

import pytest

from cdc.resilience.breaker import Breaker, State


def opened() -> Breaker:
    breaker = Breaker(failures=3, period_s=10.0)
    for now in (0.0, 1.0, 2.0):
        breaker.failed(now)
    return breaker


def test_failures_in_a_row_open_it() -> None:
    breaker = Breaker(failures=2, period_s=10.0)
    breaker.failed(0.0)
    breaker.succeeded()
    breaker.failed(1.0)
    assert breaker.state(1.0) is State.CLOSED
    assert breaker.allows(1.0)
    breaker.failed(2.0)
    assert breaker.state(2.0) is State.OPEN
    assert not breaker.allows(11.9)


def test_one_probe_after_the_period() -> None:
    breaker = opened()
    assert breaker.allows(12.0)
    assert breaker.state(12.0) is State.HALF_OPEN
    assert not breaker.allows(12.0)


def test_probe_decides() -> None:
    breaker = opened()
    assert breaker.allows(12.0)
    breaker.failed(13.0)
    assert not breaker.allows(22.9)
    assert breaker.allows(23.0)
    breaker.succeeded()
    assert breaker.state(23.0) is State.CLOSED
    assert breaker.allows(23.0)


@pytest.mark.parametrize("lost_for", [10.0, 19.9])
def test_field_case_131_lost_probe_ends_half_open(lost_for: float) -> None:
    breaker = opened()
    assert breaker.allows(12.0)
    assert breaker.state(12.0 + lost_for) is State.OPEN
    assert breaker.allows(12.0 + 20.0)


def test_it_closes_after_all_of_its_probes() -> None:
    breaker = Breaker(failures=1, period_s=10.0, probes=2)
    breaker.failed(0.0)
    assert (breaker.again_at(3.0), breaker.allows(3.0)) == (10.0, False)
    assert breaker.allows(10.0)
    assert breaker.allows(10.0)
    assert not breaker.allows(10.0)
    breaker.succeeded()
    assert breaker.state(10.0) is State.HALF_OPEN
    breaker.succeeded()
    assert breaker.state(10.0) is State.CLOSED
    assert breaker.again_at(11.0) == 11.0


def test_a_success_that_was_begun_before_it_opened_leaves_it_open() -> None:
    breaker = opened()
    breaker.succeeded()
    assert breaker.state(2.0) is State.OPEN


def test_field_case_131_any_outcome_that_is_not_counted_ends_within_a_period() -> None:
    breaker = opened()
    for period in range(1, 50):  # each probe is cancelled, killed or thrown away
        now = 2.0 + 20.0 * period
        assert breaker.allows(now)
        assert breaker.state(now + 10.0) is State.OPEN
    assert breaker.allows(2.0 + 20.0 * 50)
    breaker.succeeded()
    assert breaker.state(2.0 + 20.0 * 50) is State.CLOSED
