"""Notices that the loop does not turn any more: it is logged with where it hangs, and systemd is not told that all is well.

Strategy: a thread of its own looks at the heartbeat, as a probe of `/health/live` does. It serves those whom nobody probes:
a log line names the place in the code while the process still has it, and a unit with `WatchdogSec=` restarts the process.
Were even this thread stuck, because somebody holds the interpreter, systemd and a probe would hear nothing either.
Source of the messages: sd_notify(3).
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import traceback
from collections.abc import Callable

from cdc.observe.health import Health
from cdc.observe.logs import TRACE_MAX_FRAMES, logger

LOOK_S = 5.0
"""Seconds between two looks: a sixth of the time after which the loop hangs, a twelfth of the unit's WatchdogSec."""


class Watchdog:
    """Looks at the heartbeat of the thread `ident`; `notify` hands a message to the init system."""

    def __init__(self, health: Health, ident: int | None, notify: Callable[[str], None]) -> None:
        self._health = health
        self._ident = ident
        self._notify = notify
        self._hangs = False
        self._told = ""

    def __repr__(self) -> str:
        return f"<Watchdog {'of a loop that hangs' if self._hangs else 'content'}>"

    def look(self, _: Callable[[], None]) -> None:
        """Tell what has changed; keep the init system content while the loop turns."""
        live, turn = self._health.live, self._health.snapshot.turn
        if live == self._hangs:
            self._hangs = not live
            self._tell()
        said = f"STATUS={turn.state}{': ' + turn.reason if turn.reason else ''}".replace("\n", " ")
        lines = ["WATCHDOG=1"] if live else []
        if said != self._told:
            self._told = said
            lines += [said]
        if lines:
            self._notify("\n".join(lines))

    def _tell(self) -> None:
        log = logger("watchdog")
        if self._hangs:
            log.error("the loop hangs", seconds=round(self._health.beat_age_s()), trace=_places(self._ident))
        else:
            log.warning("the loop turns again")


def _places(ident: int | None) -> list[str]:
    """Return where a thread is, outermost first: places only, never values."""
    frame = None if ident is None else sys._current_frames().get(ident)  # noqa: SLF001 - documented under this name
    if frame is None:
        return []
    return [f"{each.filename}:{each.lineno} {each.name}" for each in traceback.extract_stack(frame)[-TRACE_MAX_FRAMES:]]


def tell_systemd(message: str) -> None:
    """Send a message to the init system, if it wants any (NOTIFY_SOCKET); one that cannot be reached is none."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path.startswith(("/", "@")):
        return
    address = "\0" + path[1:] if path.startswith("@") else path
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
        out.setblocking(False)  # who does not read is not waited for
        out.connect(address)
        out.sendall(message.encode())
