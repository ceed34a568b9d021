"""Commands for people give up after a while; what is not there yet is tried again until then."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from cdc.errors import CdcError, PostgresRefused, Retriable, SinkRefused

Answer = TypeVar("Answer")

PAUSE_S = 0.5


def within(timeout_s: float, attempt: Callable[[], Answer]) -> Answer:
    """Return the answer of `attempt`, tried again while it is Retriable; then refused in the name of who did not answer."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return attempt()
        except Retriable as error:
            if time.monotonic() >= deadline:
                raise given_up(timeout_s, error.what, error.fix) from error
        time.sleep(PAUSE_S)


def given_up(timeout_s: float, what: str, fix: str = "") -> CdcError:
    """Return the refusal in the name of who did not answer."""
    what = f"gave up after {timeout_s:.0f} s: {what}"
    if "PostgreSQL" in what or "replication" in what:
        return PostgresRefused(what, fix or "start the server, or correct postgres.dsn")
    return SinkRefused(what, fix or 'start the broker, or correct kafka."bootstrap.servers"')
