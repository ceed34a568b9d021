"""The customer's live page: what happens to an order is on the page as soon as it is committed.

A consumer without a database: a page that misses something is read again, so nothing has to be kept. Every process that serves
pages needs all events, so each is a group of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from typing import Any

from cdc.consumer import Consumer, Event
from cdc.devstack.demo.shop.domain import Status
from cdc.devstack.demo.shop.events import OrderProcessed, OrderRejected
from cdc.devstack.demo.shop.place import ORDERS, Place

Page = asyncio.Queue[dict[str, Any]]


class Live:
    """Open pages by order, and the consumer that writes to them."""

    def __init__(self, place: Place) -> None:
        self._pages: defaultdict[str, set[Page]] = defaultdict(set)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._consumer = Consumer(place.prefix + "live", topics=place.topics(ORDERS), **place.consumer(None))

        @self._consumer.on(OrderProcessed)
        def processed(event: Event) -> None:
            self._tell(event.value.orderId, Status.PROCESSED)

        @self._consumer.on(OrderRejected)
        def rejected(event: Event) -> None:
            self._tell(event.value.orderId, Status.REJECTED)

    def __repr__(self) -> str:
        return f"<Live orders={len(self._pages)}>"

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Consume as long as the application lives."""
        self._loop = asyncio.get_running_loop()
        thread = threading.Thread(target=self._consumer.run, name="live")
        thread.start()
        try:
            yield
        finally:
            self._consumer.stop()
            await asyncio.to_thread(thread.join)

    @contextlib.contextmanager
    def page(self, order_id: str) -> Iterator[Page]:
        """Return what gets the news of an order while the page is open."""
        page = Page()
        self._pages[order_id].add(page)
        try:
            yield page
        finally:
            self._pages[order_id].discard(page)
            if not self._pages[order_id]:
                del self._pages[order_id]

    def _tell(self, order_id: str, status: Status) -> None:
        """Called by the consumer's thread; the pages belong to the event loop."""
        assert self._loop is not None, "running"
        self._loop.call_soon_threadsafe(self._write, order_id, {"orderId": order_id, "status": status})

    def _write(self, order_id: str, news: dict[str, Any]) -> None:
        for page in self._pages.get(order_id, ()):
            page.put_nowait(news)
