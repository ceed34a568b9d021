"""Calls to a sink, each made once, in a thread that does nothing else.

Strategy: a Caller is a thread beside one producer or connection. The owner hands it a call and waits in short pauses, answering PostgreSQL
between them; the call itself runs with a timeout that is longer than the owner's patience. When the patience ends the Caller
and its producer are abandoned, and the call, whatever becomes of it, has nobody to answer.

Rule: a call that has timed out is never made again. librdkafka keeps one result for the present call; the answer of a call
that was given up is taken for the answer of the next one, and commit_transaction can return success although nothing was
committed (4 of 40 in a trial with librdkafka 2.16.0 and its main thread held for 5 s).
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

Waiting = Callable[[], None]
Clock = Callable[[], float]

CALL_MARGIN_S = 60.0
"""How much longer than the owner's patience a call may take before librdkafka gives it up by itself."""


def nobody_waits() -> None:
    """A `waiting` for callers that nobody else depends on."""


class PatienceEnded(Exception):
    """The owner will not wait any longer; what becomes of the call is unknown."""


class Caller:
    """The helper thread of one producer."""

    def __init__(self, name: str, pause_s: float, clock: Clock) -> None:
        self._pause_s = pause_s
        self._clock = clock
        self._calls: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self.abandoned = False
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def call(self, function: Callable[[float], object], patience_s: float, waiting: Waiting) -> None:
        """Call `function(timeout_s)` and wait for it; its exception is raised here, and PatienceEnded when that is over."""
        assert not self.abandoned, "a call was given up; its producer must not be used again"
        deadline = self._clock() + patience_s
        # Until the answer is here nobody may use this thread again, whatever `waiting` raises.
        self.abandoned = True
        self._calls.put(lambda: function(patience_s + CALL_MARGIN_S))
        while True:
            try:
                outcome = self._answers.get(timeout=self._pause_s)
                break
            except queue.Empty:
                waiting()
            if self._clock() >= deadline:
                raise PatienceEnded
        self.abandoned = False
        if outcome is not None:
            try:
                raise outcome
            finally:
                del outcome  # an error that its own frame keeps would keep the producer, too, until the next collection

    def end(self) -> None:
        """Let the thread end after its present call."""
        self.abandoned = True
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call()
            except BaseException as error:  # noqa: BLE001 - raised again in the owner's thread
                self._answers.put(error)
            else:
                self._answers.put(None)
            # Keep no producer alive while waiting for the next call.
            del call
