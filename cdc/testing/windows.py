"""Kills a consumer at a chosen instant, in a process of its own: what is left must be mended by the next run.

    child = killed_at(Window.COMMITTED, make_consumer, dsn, bootstrap)   # runs make_consumer(dsn, bootstrap).run()
    child.wait_killed()
    ..                                                                    # run it again, and look at the effects

`make_consumer` is a function of a module, because the child imports it. Nothing in the product knows of this: the child puts
wrappers around its seams.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from enum import StrEnum
from functools import wraps
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any

from cdc.consumer import desk, driver, worker
from cdc.consumer import steps as steps_
from cdc.consumer.steps import Call
from cdc.kafka import moving

if TYPE_CHECKING:
    from cdc.consumer import Consumer
    from cdc.consumer.steps import Steps

DEADLINE_S = 60.0


class Window(StrEnum):
    """Instants between which a crash may fall."""

    RECEIVED = "the record is here, its transaction has not begun"
    MARKED = "the marker is inserted, the handler is not called"
    APPLIED = "the handler has returned, the transaction is open"
    COMMITTED = "the database has committed, the offset is not"
    LETTER_SENT = "a dead letter and the offset are in an open Kafka transaction, which other brokers do not have"
    PARKED = "a dead letter is written and its record acknowledged, and nobody was told"
    OFFSET_SENT = "the offset is committed, and nobody was told"


class Child:
    """A consumer in a process of its own."""

    def __init__(self, process: BaseProcess) -> None:
        self.process = process

    def __repr__(self) -> str:
        return f"<Child pid={self.process.pid} exit={self.process.exitcode}>"

    def wait_killed(self, deadline_s: float = DEADLINE_S) -> None:
        """Wait until it has killed itself; raises AssertionError when it ended otherwise, or did not."""
        self.process.join(deadline_s)
        assert self.process.exitcode == -signal.SIGKILL, f"{self!r} did not come to its window"

    def kill(self) -> None:
        """SIGKILL, now."""
        if self.process.is_alive():
            self.process.kill()
        self.process.join()

    def terminate(self, deadline_s: float = DEADLINE_S) -> int | None:
        """SIGTERM, and the exit code."""
        self.process.terminate()
        self.process.join(deadline_s)
        return self.process.exitcode


def running(make: Callable[..., Consumer], *arguments: object) -> Child:
    """Run a consumer in a child."""
    return _started(None, 1, make, arguments)


def killed_at(window: Window, make: Callable[..., Consumer], *arguments: object, nth: int = 1) -> Child:
    """Run a consumer in a child that kills itself when it comes to the window for the nth time."""
    return _started(window, nth, make, arguments)


def _started(window: Window | None, nth: int, make: Callable[..., Consumer], arguments: tuple[object, ...]) -> Child:
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__, make.__module__])
    process = context.Process(target=_run, args=(window, nth, make, arguments), daemon=True)
    process.start()
    return Child(process)


def _run(window: Window | None, nth: int, make: Callable[..., Consumer], arguments: tuple[object, ...]) -> None:
    if window is not None:
        _arm(window, _Counter(nth).hit)
    make(*arguments).run()


class _Counter:
    def __init__(self, nth: int) -> None:
        self._left = nth

    def hit(self) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def _arm(window: Window, hit: Callable[[], None]) -> None:
    """Put the wrapper of a window around its seam."""
    match window:
        case Window.RECEIVED:
            _wrap(worker.Hand, "_apply", before=hit)
        case Window.MARKED | Window.APPLIED:
            _wrap_steps(hit, before=window is Window.MARKED)
        case Window.COMMITTED:
            _wrap(worker.Hand, "_apply", after=hit)
        case Window.LETTER_SENT:
            _wrap(moving.MovingPublisher, "send_offsets", after=hit)
        case Window.PARKED:
            _wrap(desk.Desk, "_move", after=hit)
        case Window.OFFSET_SENT:
            _wrap(driver.Driver, "committed", before=hit)


def _nothing() -> None:
    pass


def _wrap(owner: type, name: str, *, before: Callable[[], None] = _nothing, after: Callable[[], None] = _nothing) -> None:
    function = getattr(owner, name)

    @wraps(function)
    def wrapper(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - whatever the seam takes
        before()
        outcome = function(*arguments, **named)
        after()
        return outcome

    setattr(owner, name, wrapper)


def _wrap_steps(hit: Callable[[], None], *, before: bool) -> None:
    transaction = steps_.transaction

    def wrapper(*arguments: Any, **named: Any) -> Steps:  # noqa: ANN401 - whatever it takes
        steps = transaction(*arguments, **named)
        step = next(steps, None)
        while step is not None:
            if before and isinstance(step, Call):
                hit()
            answer = yield step
            if not before and isinstance(step, Call):
                hit()
            try:
                step = steps.send(answer)
            except StopIteration as end:
                fresh: list[bool] = end.value
                return fresh
        return []

    vars(worker)["transaction"] = wrapper  # in the child alone
