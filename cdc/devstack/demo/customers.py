"""Customers at the front door: a few orders a second by HTTP, some of them looking at their live page, and how long each waited."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import time
import uuid
from typing import Any, Final

from websockets.exceptions import WebSocketException
from websockets.sync.client import connect

from cdc.devstack.demo.crowd import LINES, Ledger
from cdc.devstack.demo.shop.domain import Order, Status
from cdc.devstack.demo.shop.events import Customer
from cdc.devstack.process import LOOPBACK
from cdc.errors import CdcError
from cdc.outbox import Event

ORDERS_PER_S: Final = 10.0
TWICE_EACH: Final = 7
"""Every so manieth customer clicks twice."""

LOOKS_EACH: Final = 5
"""Every so manieth customer opens the live page."""

PATIENCE_S: Final = 120.0
"""A customer looks at a page for so long."""

TRIES: Final = 5
"""How often a customer asks again who got no answer."""

ASKED: Final = {"customer": {"id": 7, "name": "Grace"}, "lines": [line.model_dump() for line in LINES]}


class Customers:
    """Customers one after the other, in a thread, until the shop closes."""

    def __init__(self, port: int, ledger: Ledger) -> None:
        self._port = port
        self._ledger = ledger
        self._closing = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._work)
        self._pages: list[threading.Thread] = []
        self.answered_ms: list[float] = []
        self.live_ms: list[float] = []
        self.turned_away = 0

    def __repr__(self) -> str:
        return f"<Customers answered={len(self.answered_ms)} turned_away={self.turned_away}>"

    def open(self) -> None:
        """Let them come."""
        self._thread.start()

    def close(self) -> None:
        """Let the last one have its answer; raises what went wrong."""
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join()
        if self._failure is not None:
            raise self._failure

    def leave(self) -> None:
        """Wait for those who look at a page."""
        for page in self._pages:
            page.join(PATIENCE_S)

    def _work(self) -> None:
        number = 0
        try:
            with contextlib.closing(http.client.HTTPConnection(LOOPBACK, self._port, timeout=PATIENCE_S)) as link:
                while not self._closing.wait(1 / ORDERS_PER_S):
                    self._order(link, number)
                    number += 1
        except BaseException as error:  # noqa: BLE001 - raised by `close`, in the thread that watches
            self._failure = error

    def _order(self, link: http.client.HTTPConnection, number: int) -> None:
        key = str(uuid.uuid4())
        began = time.monotonic()
        status, told = self._ask(link, key)
        self.answered_ms.append((time.monotonic() - began) * 1000)
        if status == http.HTTPStatus.TOO_MANY_REQUESTS:
            self.turned_away += 1
            self._closing.wait(told["retry_after_s"])
            return
        assert status == http.HTTPStatus.CREATED, status
        if number % TWICE_EACH == 0:
            again = self._ask(link, key)
            assert again == (status, told) or again[0] == http.HTTPStatus.TOO_MANY_REQUESTS, "the first answer, or none"
        event = Event("OrderPlaced", told["orderId"], None, id=told["event"])
        self._ledger.add([event], Order(told["orderId"], Customer(id=7, name="Grace"), LINES))
        if number % LOOKS_EACH == 0:
            page = threading.Thread(target=self._look, args=(told["orderId"], began), daemon=True)
            self._pages.append(page)
            page.start()

    @staticmethod
    def _ask(link: http.client.HTTPConnection, key: str) -> tuple[int, dict[str, Any]]:
        """Ask until there is an answer: with the same key it is one order, however often it was asked for."""
        for tried in range(1, TRIES + 1):
            try:
                link.request("POST", "/orders", json.dumps(ASKED), {"Idempotency-Key": key, "Content-Type": "application/json"})
                answer = link.getresponse()
                told: dict[str, Any] = json.loads(answer.read())
            except (OSError, http.client.HTTPException, ValueError) as error:
                link.close()  # the next request opens it again
                if tried == TRIES:
                    raise CdcError(
                        f"the shop's api did not answer: {type(error).__name__}", "see shop-api.log beside the demo's cdc.toml"
                    ) from None
            else:
                retry_after = answer.headers.get("Retry-After")
                return answer.status, told if retry_after is None else told | {"retry_after_s": int(retry_after)}
        raise AssertionError  # the last one has returned or raised

    def _look(self, order_id: str, began: float) -> None:
        """Look at the live page until the order has gone out."""
        with contextlib.suppress(OSError, TimeoutError, WebSocketException), connect(self._page(order_id)) as page:
            while json.loads(page.recv(PATIENCE_S))["status"] == Status.PLACED:
                pass
            self.live_ms.append((time.monotonic() - began) * 1000)

    def _page(self, order_id: str) -> str:
        return f"ws://{LOOPBACK}:{self._port}/orders/{order_id}/live"


def percentile(values: list[float], share: float) -> float:
    """Return the value that so large a share of the values does not exceed, 0 for none."""
    return round(sorted(values)[min(int(len(values) * share), len(values) - 1)], 1) if values else 0.0
