"""The status page's changes as server-sent events: those parts that differ from what a browser has.

Strategy: the page is rendered once for all who look, at most every PUSH_S, and not at all while nobody does. A browser gets a
message each time, an empty one when nothing has changed: who hears nothing knows that the process does not answer.
Source of the format: HTML, 9.2 Server-sent events.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import orjson

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

PUSH_S = 1.0
"""Seconds between two messages. With 3 s until a silent Kafka is noticed, the page shows every fault within 5 s."""

VIEWERS_MAX = 16
"""Browsers at a time; the next one is sent away and comes again."""

_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # a proxy that gathers an answer would keep it for ever
]


class Events:
    """The stream of changes as an ASGI application; `render` returns the parts of the page by their names."""

    def __init__(self, render: Callable[[], Mapping[str, str]]) -> None:
        self._render = render
        self._rendered: Mapping[str, str] = {}
        self._at = float("-inf")
        self._viewers = 0

    def __repr__(self) -> str:
        return f"<Events viewers={self._viewers}>"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send changes until the browser leaves or the server ends (its event is in the scope's state; see `QuietServer`)."""
        if self._viewers >= VIEWERS_MAX:
            await send({"type": "http.response.start", "status": 503, "headers": [(b"retry-after", b"5")]})
            await send({"type": "http.response.body", "body": b"too many browsers look at this page\n"})
            return
        ending: asyncio.Event = scope["state"]["ending"]
        over = [asyncio.ensure_future(_left(receive)), asyncio.ensure_future(ending.wait())]
        self._viewers += 1
        try:
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            has: Mapping[str, str] = {}
            while not any(each.done() for each in over):
                parts = self._parts()
                changed = {name: html for name, html in parts.items() if has.get(name) != html}
                has = parts
                await send({"type": "http.response.body", "body": b"data: " + orjson.dumps(changed) + b"\n\n", "more_body": True})
                await asyncio.wait(over, timeout=PUSH_S, return_when=asyncio.FIRST_COMPLETED)
            await send({"type": "http.response.body", "body": b""})
        finally:
            self._viewers -= 1
            for each in over:
                each.cancel()

    def _parts(self) -> Mapping[str, str]:
        now = time.monotonic()
        if now - self._at >= PUSH_S / 2:
            self._rendered, self._at = self._render(), now
        return self._rendered


async def _left(receive: Receive) -> None:
    """Return when the browser has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
