"""What is looked at every few seconds, beside the pipeline and never in its way: a daemon thread for each look."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from cdc.errors import CdcError
from cdc.observe.logs import crashed, describe, logger

STOPPED_WITHIN_S = 2.0
"""A look under way has so long to end; the thread is a daemon and cannot keep the process from exiting."""


class Left(Exception):
    """The process ends: leave the look under way."""


class Periodic:
    """Calls `look` every `every_s` seconds from `start` to `stop`; one that fails is told and tried again."""

    def __init__(self, name: str, look: Callable[[Callable[[], None]], None], every_s: float) -> None:
        self._name = name
        self._look = look
        self._every_s = every_s
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __repr__(self) -> str:
        return f"<Periodic {self._name} every {self._every_s:g} s>"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end.set()
        self._thread.join(STOPPED_WITHIN_S)

    def _run(self) -> None:
        while not self._end.wait(self._every_s):
            try:
                self._look(self._leave)
            except Left:
                return
            except CdcError as error:
                logger(self._name).debug("not seen", error=describe(error))
            except Exception as error:  # noqa: BLE001 - the pipeline goes on without this look
                crashed(error)
                return

    def _leave(self) -> None:
        """Called by a look that takes long, again and again; raises Left when it is to end."""
        if self._end.is_set():
            raise Left
