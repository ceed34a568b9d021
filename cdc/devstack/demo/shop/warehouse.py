"""Sends out what is reserved: the shipment, the order's new status and OrderProcessed in one transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cdc.consumer import Consumer, Event
from cdc.devstack.demo.shop.data import Orders
from cdc.devstack.demo.shop.events import StockReserved
from cdc.devstack.demo.shop.place import STOCK, Place

if TYPE_CHECKING:
    import psycopg


def warehouse(place: Place) -> Consumer:
    """Make the consumer."""
    consumer = Consumer(place.prefix + "warehouse", topics=place.topics(STOCK), batch=50, workers=2, **place.consumer("shop"))
    orders = Orders(place.outbox())

    @consumer.on(StockReserved, many=True, pipeline=True)
    def send_out(events: list[Event[StockReserved]], connection: psycopg.Connection[Any]) -> None:
        gone = orders.process(connection, [event.value.orderId for event in events])
        for event in events:
            if event.value.orderId in gone:
                with event.context():
                    orders.processed(connection, event.value.orderId)

    return consumer
