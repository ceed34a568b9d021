"""Reserves stock, in a database of its own: never twice (the inbox), never below zero (the rows' locks), all of an order or nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cdc.consumer import Consumer, Event
from cdc.devstack.demo.shop.domain import pieces, short_of
from cdc.devstack.demo.shop.events import OrderPlaced, OrderRejected, StockRejected, StockReserved
from cdc.devstack.demo.shop.place import ORDERS, Place

if TYPE_CHECKING:
    import psycopg

DDL: Final = """
CREATE TABLE stock (sku text PRIMARY KEY, available bigint NOT NULL CHECK (available >= 0), received bigint NOT NULL);
CREATE TABLE reservations (order_id text NOT NULL, sku text NOT NULL, quantity bigint NOT NULL);
CREATE INDEX ON reservations (order_id);
CREATE TABLE decisions (order_id text NOT NULL, reserved boolean NOT NULL);
"""
"""No key keeps a reservation from being made twice: that is the inbox's part, and the demo's audit looks."""

LOCK: Final = "SELECT sku, available FROM stock WHERE sku = ANY (%s) ORDER BY sku FOR UPDATE"
"""Every order locks in one order, so that no two wait for each other."""

TAKE: Final = """
WITH decided AS (INSERT INTO decisions VALUES (%s, true) RETURNING order_id),
wanted AS (INSERT INTO reservations SELECT order_id, w.* FROM decided, unnest(%s::text[], %s::bigint[]) AS w RETURNING sku, quantity)
UPDATE stock SET available = available - quantity FROM wanted WHERE stock.sku = wanted.sku"""

GIVE_BACK: Final = """
WITH freed AS (DELETE FROM reservations WHERE order_id = %s RETURNING sku, quantity)
UPDATE stock SET available = available + quantity FROM freed WHERE stock.sku = freed.sku"""


def receive(connection: psycopg.Connection[Any], sku: str, quantity: int) -> None:
    """Put goods on the shelf."""
    query = "INSERT INTO stock VALUES (%s, %s, %s) ON CONFLICT (sku) DO UPDATE SET available = stock.available + excluded.available"
    connection.execute(query + ", received = stock.received + excluded.received", (sku, quantity, quantity))


def inventory(place: Place, *, batch: int = 50, workers: int = 1) -> Consumer:
    """Make the consumer. Orders of many articles in one transaction would lock them in any order, so only one worker has batches."""
    consumer = Consumer(
        place.prefix + "inventory", topics=place.topics(ORDERS), batch=batch, workers=workers, **place.consumer("inventory")
    )
    append = place.outbox().append

    @consumer.on(OrderPlaced)
    def reserve(event: Event, connection: psycopg.Connection[Any]) -> None:
        order: OrderPlaced = event.value
        wanted = pieces(order.lines)
        available = dict(connection.execute(LOCK, (list(wanted),)).fetchall())
        short = short_of(wanted, available)
        if short is None:
            connection.execute(TAKE, (order.orderId, list(wanted), list(wanted.values())))
            append(connection, StockReserved(orderId=order.orderId))
        else:
            connection.execute("INSERT INTO decisions VALUES (%s, false)", (order.orderId,))
            append(connection, StockRejected(orderId=order.orderId, sku=short))

    @consumer.on(OrderRejected)
    def release(event: Event, connection: psycopg.Connection[Any]) -> None:
        connection.execute(GIVE_BACK, (event.value.orderId,))

    return consumer
