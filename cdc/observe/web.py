"""What the endpoint answers, and the server that does it: loaded by the endpoint's own thread.

Handlers read snapshots; none touches a connection of the pipeline. The server sleeps in the event loop until a request comes:
uvicorn's own main loop would wake up ten times a second, and each time take the interpreter from the pipeline.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import orjson
import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from cdc.observe.exposition import Exposition
from cdc.observe.health import Health
from cdc.observe.metrics import Metrics
from cdc.observe.page import page

SECURITY_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:",
    "x-content-type-options": "nosniff",
}


def create_app(health: Health, metrics: Metrics, routes: Sequence[BaseRoute] = ()) -> ASGIApp:
    """Build the application; `routes` are those of other rooms, such as the registry's."""
    exposition = Exposition(health, metrics)

    def scraped(_: Request) -> Response:
        return Response(exposition.text(), media_type=CONTENT_TYPE_LATEST)

    def live(_: Request) -> Response:
        age = health.beat_age_s()
        return _verdict(ok=health.live, text="live" if health.live else f"the loop has not turned for {age:.0f} s")

    def ready(request: Request) -> Response:
        snapshot = health.snapshot
        ok = snapshot.ready or (snapshot.standby and request.query_params.get("standby") == "ok")
        if ok and not health.live:
            return _verdict(ok=False, text="the loop does not turn")
        turn = snapshot.turn
        return _verdict(ok=ok, text=f"{turn.state}: {turn.reason}" if turn.reason else turn.state)

    def status(_: Request) -> Response:
        return Response(orjson.dumps(health.document()), media_type="application/json", headers=SECURITY_HEADERS)

    def index(_: Request) -> Response:
        return HTMLResponse(page(health.document()), headers=SECURITY_HEADERS)

    return Starlette(
        routes=[
            Route("/", _handler(index)),
            Route("/metrics", _handler(scraped)),
            Route("/health/live", _handler(live)),
            Route("/health/ready", _handler(ready)),
            Route("/status", _handler(status)),
            *routes,
        ]
    )


def _handler(answer: Callable[[Request], Response]) -> Callable[[Request], Any]:
    """Answer in the event loop itself: Starlette would start a thread for a plain function."""

    async def handle(request: Request) -> Response:
        return answer(request)

    return handle


def _verdict(*, ok: bool, text: str) -> Response:
    return Response(text + "\n", 200 if ok else 503, media_type="text/plain", headers={"cache-control": "no-store"})


class QuietServer(uvicorn.Server):
    """uvicorn without its ticking clock and without signal handlers."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                lifespan="off",
                http="h11",
                ws="none",
                loop="asyncio",
                server_header=False,
                date_header=False,
                timeout_graceful_shutdown=1,
            )
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending = False
        self._end = asyncio.Event()

    def capture_signals(self) -> contextlib.AbstractContextManager[None]:  # type: ignore[override]  # a generator there
        """Leave signals to the main thread."""
        return contextlib.nullcontext()

    async def main_loop(self) -> None:
        """Sleep until the end."""
        self._loop = asyncio.get_running_loop()
        if not self._ending:
            await self._end.wait()

    def end(self) -> None:
        """Stop from another thread, also one that is still starting."""
        self._ending = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it has stopped by itself
                self._loop.call_soon_threadsafe(self._end.set)
