"""The order service's ear: when stock is short, the order is given up and the payment given back.

A saga without a conductor: each step is a transaction of one service, and what undoes it is another one. Stock is short ->
the order is rejected and refunded -> OrderRejected -> whoever did something for the order undoes it (see `inventory`), also when
it was the customer who took the order back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cdc.consumer import Consumer, Event
from cdc.devstack.demo.shop.data import Orders
from cdc.devstack.demo.shop.events import StockRejected
from cdc.devstack.demo.shop.place import STOCK, Place

if TYPE_CHECKING:
    import psycopg


def saga(place: Place) -> Consumer:
    """Make the consumer."""
    consumer = Consumer(place.prefix + "orders", topics=place.topics(STOCK), batch=50, workers=2, **place.consumer("shop"))
    orders = Orders(place.outbox())

    @consumer.on(StockRejected)
    def give_up(event: Event[StockRejected], connection: psycopg.Connection[Any]) -> None:
        orders.reject(connection, event.value.orderId, f"no more {event.value.sku}")

    return consumer
