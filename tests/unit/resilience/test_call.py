"""A transactional call is made once, in its own thread, and given up without being repeated."""

import threading
from collections.abc import Iterator

import pytest

from cdc.resilience.call import CALL_MARGIN_S, Caller, PatienceEnded


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def tick(self) -> None:
        self.now += 1.0


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def caller(clock: Clock) -> Iterator[Caller]:
    made = Caller("test", 0.001, clock)
    yield made
    made.end()


def test_the_call_gets_more_time_than_the_owner_waits(caller: Caller) -> None:
    seen: list[tuple[float, str]] = []
    caller.call(lambda timeout_s: seen.append((timeout_s, threading.current_thread().name)), 30.0, lambda: None)
    assert seen == [(30.0 + CALL_MARGIN_S, "test")]


def test_the_owner_is_called_while_it_waits(caller: Caller, clock: Clock) -> None:
    done = threading.Event()
    calls: list[int] = []

    def waiting() -> None:
        calls.append(1)
        if len(calls) == 3:
            done.set()

    caller.call(lambda _: done.wait(10), 30.0, waiting)
    assert len(calls) >= 3


def test_an_error_is_raised_in_the_owner(caller: Caller) -> None:
    def fail(_: float) -> None:
        raise KeyError

    with pytest.raises(KeyError):
        caller.call(fail, 30.0, lambda: None)
    caller.call(lambda _: None, 30.0, lambda: None)


def test_a_call_that_was_given_up_is_the_last_one(caller: Caller, clock: Clock) -> None:
    held = threading.Event()
    made: list[int] = []

    def call(_: float) -> None:
        made.append(1)
        held.wait(10)

    with pytest.raises(PatienceEnded):
        caller.call(call, 3.0, clock.tick)
    with pytest.raises(AssertionError):
        caller.call(call, 3.0, clock.tick)
    held.set()
    assert made == [1]


def test_what_waiting_raises_gives_the_call_up(caller: Caller) -> None:
    held = threading.Event()

    def leave() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        caller.call(lambda _: held.wait(10), 3.0, leave)
    held.set()
    with pytest.raises(AssertionError):
        caller.call(lambda _: None, 3.0, lambda: None)
