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
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from cdc.audit.payloads import Payloads
from cdc.avro.registry import Registry
from cdc.errors import CdcError
from cdc.observe.exposition import Exposition
from cdc.observe.health import Health
from cdc.observe.history import History
from cdc.observe.live import Events
from cdc.observe.logs import describe
from cdc.observe.metrics import Metrics
from cdc.observe.page import SCRIPT_SOURCE, STYLE, View, page, parts
from cdc.observe.page_facts import letter_facts, letter_page

SECURITY_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; connect-src 'self'; base-uri 'none';"
    f" form-action 'none'; frame-ancestors 'none'; script-src {SCRIPT_SOURCE}",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


def create_app(  # noqa: PLR0913 - what it shows, by keyword
    health: Health,
    metrics: Metrics,
    routes: Sequence[BaseRoute] = (),
    *,
    history: History | None = None,
    registry: Callable[[], Registry] | None = None,
    payloads: Payloads | None = None,
) -> ASGIApp:
    """Build the application; `routes` are those of other rooms, such as the registry's.

    The page shows `history`, the schemas of `registry` and, where there is a token to ask for them, dead letters whole.
    """
    exposition = Exposition(health, metrics)
    view = View(health, metrics, history or History(health), registry, payloads is not None)

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
        return HTMLResponse(page(view), headers=SECURITY_HEADERS)

    return Starlette(
        routes=[
            Route("/", _handler(index)),
            Route("/events", Events(lambda: parts(view))),
            Route("/dead-letter", _letters(payloads)),
            Route("/metrics", _handler(scraped)),
            Route("/health/live", _handler(live)),
            Route("/health/ready", _handler(ready)),
            Route("/status", _handler(status)),
            *routes,
        ]
    )


def _letters(payloads: Payloads | None) -> Callable[[Request], Any]:
    """Return the handler of a dead letter's page: one at a time, in a thread that the process need not wait for."""
    turn = asyncio.Lock()

    async def letter(request: Request) -> Response:
        if payloads is None:
            return Response("payloads are shown where http.token is set\n", 403, media_type="text/plain")
        sequence = request.query_params.get("at", "")
        async with turn:
            try:
                found = await run_in_threadpool(payloads, sequence)
            except CdcError as error:
                return Response(describe(error) + "\n", 503, media_type="text/plain")
        if found is None:
            return Response("there is no such dead letter\n", 404, media_type="text/plain")
        return HTMLResponse(letter_page(STYLE, sequence, letter_facts(found[0]), found[1]), headers=SECURITY_HEADERS)

    return letter


def _handler(answer: Callable[[Request], Response]) -> Callable[[Request], Any]:
    """Answer in the event loop itself: Starlette would start a thread for a plain function."""

    async def handle(request: Request) -> Response:
        return answer(request)

    return handle


def _verdict(*, ok: bool, text: str) -> Response:
    return Response(text + "\n", 200 if ok else 503, media_type="text/plain", headers={"cache-control": "no-store"})


class QuietServer(uvicorn.Server):
    """uvicorn without its ticking clock and without signal handlers.

    Requests find `ending` in their state: an event that is set when the server is to end, for answers that go on until then.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._end = asyncio.Event()

        async def told(scope: Scope, receive: Receive, send: Send) -> None:
            scope["state"] = {**scope.get("state", {}), "ending": self._end}
            await app(scope, receive, send)

        super().__init__(
            uvicorn.Config(
                told,
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
