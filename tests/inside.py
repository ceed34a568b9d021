"""The pipeline in a thread of this process: the same supervisor on the same servers, without an interpreter to start.

For tests that ask whether and why it refuses, many times over; how a process ends is shown by those that start one.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

import pytest

from cdc import app
from cdc.errors import ContinuityError
from cdc.settings.loader import load
from tests.pipeline import Pipeline
from tests.waiting import wait_for

WITHIN_S = 60.0


class Inside:
    """One run of a pipeline, from its start to `stop`, or to the error that ended it."""

    def __init__(self, pipeline: Pipeline) -> None:
        settings = load(pipeline.write(), (), {name: value for name, value in os.environ.items() if not name.startswith("CDC_")})
        self.observer = app.observer(settings)
        self._stop = threading.Event()
        self._supervisor = app.supervisor(settings, app.schemas(settings), self.observer, self._stop)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def states(self) -> list[str]:
        """The states that it has been in."""
        return [turn.state for turn in self.observer.health.snapshot.turns]

    def wait_streaming(self) -> None:
        """Wait until it streams; raises what ended it before."""

        def streams() -> bool:
            if not self._thread.is_alive():
                self.end()
            return self.observer.health.snapshot.ready

        wait_for(streams, WITHIN_S, "it streams")

    def end(self) -> None:
        """Wait until it ends by itself, and raise the error that ended it."""
        self._thread.join(WITHIN_S)
        assert not self._thread.is_alive(), "it goes on"
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Ask it to stop, and wait until it has."""
        self._stop.set()
        self.end()

    def _run(self) -> None:
        try:
            self._supervisor.run()
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that asks
            self._error = error


@contextlib.contextmanager
def streaming(pipeline: Pipeline) -> Iterator[Inside]:
    """Run a pipeline while the test does something, and stop it; what ended it before is raised."""
    inside = Inside(pipeline)
    try:
        inside.wait_streaming()
        yield inside
    except BaseException:
        with contextlib.suppress(BaseException):
            inside.stop()
        raise
    inside.stop()


def refusal(pipeline: Pipeline, *words: str) -> ContinuityError:
    """Run it until it refuses to stream for want of continuity; return why, after a look for these words."""
    with pytest.raises(ContinuityError) as caught:
        Inside(pipeline).end()
    for word in words:
        assert word in str(caught.value), str(caught.value)
    return caught.value
