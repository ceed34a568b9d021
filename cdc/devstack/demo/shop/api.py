"""The order service as customers see it.

POST   /orders                  201; 422 for what is no order; 429 with Retry-After while the pipeline is far behind
POST   /orders/ID/payment       201; 409 when the order is rejected
DELETE /orders/ID               taken back: 200; 409 when it is gone
GET    /orders/ID               where it stands
WS     /orders/ID/live          the same, and from then on each change
POST   /users                   201

With an Idempotency-Key a request that is sent again gets the first answer. An X-Correlation-ID is taken or made, answered, and
is in every event that follows from the request.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, Final

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from cdc.devstack.demo.shop.data import NotPossible, Orders
from cdc.devstack.demo.shop.desk import Answer, Desk
from cdc.devstack.demo.shop.domain import NotAnOrder, Status, order_from
from cdc.devstack.demo.shop.live import Live
from cdc.devstack.demo.shop.place import Place
from cdc.outbox import Pressure, event_context

if TYPE_CHECKING:
    import psycopg
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

CORRELATION: Final = b"x-correlation-id"


class Correlated:
    """Takes the request's X-Correlation-ID or makes one, gives it to every event inside, and answers it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request inside of its context."""
        given = dict(scope.get("headers", ())).get(CORRELATION, b"").decode("ascii", "replace")[:100]
        correlation_id = given or uuid.uuid4().hex

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (CORRELATION, correlation_id.encode("ascii", "replace"))]
            await send(message)

        with event_context(correlation_id=correlation_id):
            await self._app(scope, receive, answer)


class Api:
    """The endpoints."""

    def __init__(self, place: Place, pressure: Pressure | None = None) -> None:
        self._orders = Orders(place.outbox())
        self._desk = Desk(place.dsns["shop"])
        self._pressure = pressure or Pressure(slot="cdc_shop")
        self._live = Live(place)

    def app(self) -> Starlette:
        """Return the application."""
        routes = [
            Route("/orders", self.place, methods=["POST"]),
            Route("/orders/{order}", self.look, methods=["GET"]),
            Route("/orders/{order}", self.take_back, methods=["DELETE"]),
            Route("/orders/{order}/payment", self.pay, methods=["POST"]),
            Route("/users", self.register, methods=["POST"]),
            WebSocketRoute("/orders/{order}/live", self.live),
        ]
        return Starlette(routes=routes, middleware=[Middleware(Correlated)], lifespan=self._running)

    @contextlib.asynccontextmanager
    async def _running(self, _: object) -> AsyncIterator[None]:
        try:
            async with self._live.running():
                yield
        finally:
            self._desk.close()

    async def place(self, request: Request) -> Response:
        """Place an order."""
        order_id = str(uuid.uuid4())

        def work(connection: psycopg.Connection[Any], body: Any) -> Answer:  # noqa: ANN401 - JSON
            [event] = self._orders.place(connection, order_from(order_id, body))
            return 201, {"orderId": order_id, "status": Status.PLACED, "event": str(event.id)}

        return await self._write(request, work)

    async def pay(self, request: Request) -> Response:
        """Take a payment."""

        def work(connection: psycopg.Connection[Any], body: Any) -> Answer:  # noqa: ANN401 - JSON
            event = self._orders.pay(connection, request.path_params["order"], int(body["amountCents"]))
            return 201, {"event": str(event.id)}

        return await self._write(request, work)

    async def take_back(self, request: Request) -> Response:
        """Give an order up, because its customer wants it no more."""

        def work(connection: psycopg.Connection[Any], _: object) -> Answer:
            event = self._orders.reject(connection, request.path_params["order"], "taken back")
            return (409, {"error": "too late, or no such order"}) if event is None else (200, {"event": str(event.id)})

        return await self._write(request, work)

    async def register(self, request: Request) -> Response:
        """Give somebody an account."""
        user_id = str(uuid.uuid4())

        def work(connection: psycopg.Connection[Any], body: Any) -> Answer:  # noqa: ANN401 - JSON
            event = self._orders.register(connection, user_id, str(body["name"]), str(body["email"]))
            return 201, {"userId": user_id, "event": str(event.id)}

        return await self._write(request, work)

    async def look(self, request: Request) -> Response:
        """Tell where an order stands."""
        found = await run_in_threadpool(self._status, request.path_params["order"])
        return JSONResponse({"error": "no such order"}, 404) if found is None else JSONResponse(found)

    async def live(self, socket: WebSocket) -> None:
        """Tell where an order stands, and what becomes of it until it has ended or nobody looks any more."""
        await socket.accept()
        order_id = socket.path_params["order"]
        with self._live.page(order_id) as page:  # opened before the first look, so that nothing falls between
            news = await run_in_threadpool(self._status, order_id)
            try:
                while news is not None:
                    await socket.send_json(news)
                    news = await page.get() if news["status"] == Status.PLACED else None
                await socket.close()
            except (WebSocketDisconnect, RuntimeError):
                return

    async def _write(self, request: Request, work: Callable[[psycopg.Connection[Any], Any], Answer]) -> Response:
        """Answer a request that changes something."""
        body = await request.body()
        asked = f"{request.method} {request.url.path} {body.decode(errors='replace')}"

        def answer() -> Response:
            with self._desk.connection() as connection:
                busy = self._pressure.look(connection)
            if busy is not None:
                return JSONResponse({"error": busy.reason}, 429, {"Retry-After": str(busy.retry_after_s)})
            document = _json(body)
            try:
                status, told = self._desk.once(request.headers.get("idempotency-key"), asked, lambda connection: work(connection, document))
            except NotPossible as error:
                return JSONResponse({"error": str(error)}, 409)
            except (NotAnOrder, KeyError, TypeError, ValueError) as error:
                return JSONResponse({"error": str(error) if isinstance(error, NotAnOrder) else "that is not what is asked for"}, 422)
            return JSONResponse(told, status)

        return await run_in_threadpool(answer)

    def _status(self, order_id: str) -> dict[str, Any] | None:
        with self._desk.connection() as connection:
            return self._orders.status(connection, order_id)


def _json(body: bytes) -> Any:  # noqa: ANN401 - JSON
    try:
        return json.loads(body or b"null")
    except ValueError:
        return None
