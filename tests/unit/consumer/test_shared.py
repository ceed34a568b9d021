"""Breakers that processes share: all hold when one sees the failure, one of them probes, and nobody stays shut."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cdc.consumer.shared import LOOK_S, Act, Row, SharedBreaker
from cdc.resilience.breaker import State

PERIOD_S = 10.0


class Table:
    """The row, as the database keeps it."""

    def __init__(self) -> None:
        self.until: float | None = None

    def answer(self, act: Act, now: float) -> Row:
        granted = act is Act.CLAIM and self.until is not None and self.until <= now
        if act is Act.CLOSE:
            self.until = None
        elif act is Act.OPEN or granted:
            self.until = now + PERIOD_S
        return Row(None if self.until is None else self.until - now, granted)


def told(breaker: SharedBreaker, table: Table, now: float) -> Act | None:
    """Let one question be asked and answered."""
    act = breaker.asks(now)
    if act is not None:
        breaker.heard(table.answer(act, now), now)
    return act


def test_one_opens_for_all_one_probes_and_its_success_closes_for_all() -> None:
    table, first, second = Table(), SharedBreaker(2, PERIOD_S), SharedBreaker(2, PERIOD_S)
    assert [told(first, table, 0), told(second, table, 0)] == [Act.LOOK, Act.LOOK]
    first.failed(0.1)
    first.failed(0.2)
    assert told(first, table, 0.2) is Act.OPEN
    assert second.allows(0.5)
    told(second, table, LOOK_S)
    assert not second.allows(LOOK_S)
    # The period is over: both ask, and one of them is let through, once.
    assert [told(each, table, 10.3) for each in (second, first)] == [Act.CLAIM, Act.CLAIM]
    assert [second.allows(10.3), second.allows(10.3), first.allows(10.3)] == [True, False, False]
    second.succeeded()
    assert second.state(10.4) is State.CLOSED
    assert told(second, table, 10.4) is Act.CLOSE
    told(first, table, 11.5)
    assert first.allows(11.5)


def test_a_probe_that_fails_or_is_lost_keeps_all_waiting_for_a_period() -> None:
    table, first, second = Table(), SharedBreaker(1, PERIOD_S), SharedBreaker(1, PERIOD_S)
    first.failed(0)
    told(first, table, 0)
    told(first, table, 10)
    assert first.allows(10)
    first.failed(10.5)
    assert told(first, table, 10.5) is Act.OPEN
    told(second, table, 11)
    assert not second.allows(20)
    told(second, table, 20.5)
    assert second.allows(20.5)  # and is never heard of again
    told(first, table, 21)
    assert not first.allows(30)
    told(first, table, 30.5)
    assert first.allows(30.5)


def test_an_answer_that_was_under_way_when_it_opened_does_not_close_it() -> None:
    breaker = SharedBreaker(1, PERIOD_S)
    assert breaker.asks(0) is Act.LOOK
    breaker.failed(0.1)
    breaker.heard(Row(), 0.2)
    assert breaker.state(0.2) is State.OPEN
    assert breaker.asks(0.2) is Act.OPEN
    breaker.heard(None, 0.3)  # the database was away: it is told again
    assert breaker.asks(0.3) is Act.OPEN


Steps = st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["ask", "fail", "succeed", "lose"]), st.floats(0, 4)), max_size=60)


@given(Steps)
def test_whatever_happens_all_are_let_through_again(steps: list[tuple[int, str, float]]) -> None:
    table, breakers, now = Table(), [SharedBreaker(2, PERIOD_S) for _ in range(3)], 0.0
    for number, what, passes in steps:
        now += passes
        breaker = breakers[number]
        if what == "ask":
            told(breaker, table, now)
        elif what == "lose":
            breaker.asks(now)
            breaker.heard(None, now)
        elif breaker.allows(now):
            breaker.failed(now) if what == "fail" else breaker.succeeded()
    for _ in range(200):  # everything works from now on
        now += 0.5
        for breaker in breakers:
            told(breaker, table, now)
            if breaker.allows(now):
                breaker.succeeded()
    assert [breaker.state(now) for breaker in breakers] == [State.CLOSED] * 3
    assert table.until is None
