"""An application of a user: a consumer with typed events, lists, resources and a breaker, as its own `mypy --strict` sees it."""

from __future__ import annotations

import http.client
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, assert_type

import psycopg

from cdc.consumer import Consumer, Event, Retry, TryAgain
from cdc.devstack.demo.shop.events import OrderPaid, OrderPlaced
from cdc.observe.consumers import ConsumerMetrics
from cdc.testing.bus import Bus

shop = Consumer(
    "inventory",
    topics={"outbox.event.Order": "high"},
    kafka={"bootstrap.servers": "127.0.0.1:9092"},
    postgres="postgresql://inventory@127.0.0.1/inventory",
    batch=500,
    retry=Retry.exponential(0.5, cap_s=60, attempts=8).but({ConnectionError: Retry.fixed(60, attempts=20)}),
    observer=ConsumerMetrics(),
)
shop.breaker("bank", errors=(ConnectionError,), failures=5, open_s=60)


@shop.resource
@contextmanager
def bank() -> Iterator[http.client.HTTPConnection]:
    link = http.client.HTTPConnection("bank.example")
    yield link
    link.close()


@shop.resource
@asynccontextmanager
async def prices() -> AsyncIterator[dict[str, int]]:
    yield {"book": 1290}


@shop.on(OrderPlaced, many=True)
def reserve(events: list[Event[OrderPlaced]], connection: psycopg.Connection[Any]) -> None:
    assert_type(events[0].value, OrderPlaced)
    pieces = [(line.sku, line.quantity) for event in events for line in event.value.lines]
    connection.execute("SELECT take(%s::text[], %s::bigint[])", [list(column) for column in zip(*pieces, strict=True)])


@shop.on(OrderPaid, breaker="bank")
def check(event: Event[OrderPaid]) -> None:
    bank().request("GET", f"/{event.value.orderId}", headers={"Idempotency-Key": event.idempotency_key})
    if bank().getresponse().status == http.client.TOO_MANY_REQUESTS:
        raise TryAgain(30)


@shop.on("*")
async def note(event: Event, connection: psycopg.AsyncConnection[Any]) -> None:
    known: int = prices()["book"]
    await connection.execute("INSERT INTO seen VALUES (%s, %s)", (event.id, known))


def tried() -> int:
    bus = Bus(shop)
    bus.publish("OrderPlaced", {"lines": []})
    bus.run()
    return sum(event.attempt for _, event in bus.log)
