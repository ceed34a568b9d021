"""The HTTP endpoint: metrics, health, status and a page for people, in a thread of its own.

Strategy: the socket is bound before anything else starts, so that a port in use is a setting to fix and not a dead endpoint.
The thread sleeps in the event loop until a request comes: uvicorn's own main loop would wake up ten times a second, and each
time take the interpreter from the pipeline. Handlers read snapshots; none touches a connection of the pipeline.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import threading
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

from cdc.errors import ConfigurationError
from cdc.observe.health import Health
from cdc.observe.metrics import Metrics
from cdc.observe.page import page

STARTED_WITHIN_S = 10.0
"""The socket is bound already, so the thread only has to get going; a machine under heavy load may take seconds."""

STOPPED_WITHIN_S = 2.0
"""Requests under way have so long to end; the thread is a daemon and cannot keep the process from exiting."""

BACKLOG = 64
"""Connections that wait to be accepted: scrapers and probes are few."""

SECURITY_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:",
    "x-content-type-options": "nosniff",
}


def create_app(health: Health, metrics: Metrics, routes: Sequence[BaseRoute] = ()) -> ASGIApp:
    """Build the application; `routes` are those of other rooms, such as the registry's."""

    def exposition(_: Request) -> Response:
        return Response(metrics.exposition(), media_type=CONTENT_TYPE_LATEST)

    def live(_: Request) -> Response:
        age = health.beat_age_s()
        return _verdict(ok=health.live, text="live" if health.live else f"the loop has not turned for {age:.0f} s")

    def ready(_: Request) -> Response:
        snapshot = health.snapshot
        if snapshot.ready and not health.live:
            return _verdict(ok=False, text="the loop does not turn")
        turn = snapshot.turn
        return _verdict(ok=snapshot.ready, text=f"{turn.state}: {turn.reason}" if turn.reason else turn.state)

    def status(_: Request) -> Response:
        return Response(orjson.dumps(health.document()), media_type="application/json", headers=SECURITY_HEADERS)

    def index(_: Request) -> Response:
        return HTMLResponse(page(health.document()), headers=SECURITY_HEADERS)

    return Starlette(
        routes=[
            Route("/", _handler(index)),
            Route("/metrics", _handler(exposition)),
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


class _QuietServer(uvicorn.Server):
    """uvicorn without its ticking clock and without signal handlers."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end = asyncio.Event()

    def capture_signals(self) -> contextlib.AbstractContextManager[None]:  # type: ignore[override]  # a generator there
        return contextlib.nullcontext()

    async def main_loop(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.up.set()
        await self._end.wait()

    def end(self) -> None:
        """Stop from another thread."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it has stopped by itself
                self._loop.call_soon_threadsafe(self._end.set)


class HttpServer:
    """The endpoint's thread: bound when made, serving from `start` to `stop`."""

    def __init__(self, host: str, port: int, app: ASGIApp) -> None:
        self._socket = _bind(host, port)
        self.host, self.port = self._socket.getsockname()[:2]
        self._server = _QuietServer(
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
        self._thread = threading.Thread(target=self._serve, name="http", daemon=True)

    def __repr__(self) -> str:
        return f"<HttpServer {self.host}:{self.port}{' serving' if self._thread.is_alive() else ''}>"

    def start(self) -> None:
        """Serve; returns when requests are answered."""
        self._thread.start()
        self._server.up.wait(STARTED_WITHIN_S)

    def stop(self) -> None:
        """End the thread and free the port; safe at any time and more than once."""
        self._server.end()
        if self._thread.is_alive():
            self._thread.join(STOPPED_WITHIN_S)
        self._socket.close()

    def _serve(self) -> None:
        self._server.run(sockets=[self._socket])


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        raise _refused(host, port, error) from None
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(BACKLOG)
    except OSError as error:
        bound.close()
        raise _refused(host, port, error) from None
    return bound


def _refused(host: str, port: int, error: OSError) -> ConfigurationError:
    reason = "the port is in use" if error.errno == errno.EADDRINUSE else error.strerror
    return ConfigurationError(f'http.listen = "{host}:{port}" cannot be used: {reason}', 'set http.listen to a free address, or to "off"')
