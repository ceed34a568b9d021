"""Reserves stock, in a database of its own: never twice (the inbox), never below zero (the rows' locks), all of an order or nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cdc.consumer import Consumer, Event
from cdc.devstack.demo.shop.domain import pieces, short_of
from cdc.devstack.demo.shop.events import OrderPlaced, OrderRejected, StockRejected, StockReserved
from cdc.devstack.demo.shop.place import ORDERS, Place

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

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
WITH taken AS (
    INSERT INTO reservations SELECT * FROM unnest(%s::text[], %s::text[], %s::bigint[]) RETURNING sku, quantity
), pieces AS (SELECT sku, sum(quantity) AS gone FROM taken GROUP BY sku)
UPDATE stock SET available = available - gone FROM pieces WHERE stock.sku = pieces.sku"""

DECIDE: Final = "INSERT INTO decisions SELECT * FROM unnest(%s::text[], %s::boolean[])"

GIVE_BACK: Final = """
WITH freed AS (DELETE FROM reservations WHERE order_id = %s RETURNING sku, quantity)
UPDATE stock SET available = available + quantity FROM freed WHERE stock.sku = freed.sku"""


def receive(connection: psycopg.Connection[Any], sku: str, quantity: int) -> None:
    """Put goods on the shelf."""
    query = "INSERT INTO stock VALUES (%s, %s, %s) ON CONFLICT (sku) DO UPDATE SET available = stock.available + excluded.available"
    connection.execute(query + ", received = stock.received + excluded.received", (sku, quantity, quantity))


def inventory(place: Place, *, batch: int = 50, workers: int = 1) -> Consumer:
    """Make the consumer. A batch in which orders are released as well locks articles in any order, so only one worker has batches."""
    consumer = Consumer(
        place.prefix + "inventory", topics=place.topics(ORDERS), batch=batch, workers=workers, **place.consumer("inventory")
    )
    append_many = place.outbox().append_many

    @consumer.on(OrderPlaced, many=True, pipeline=True)
    def reserve(events: list[Event[OrderPlaced]], connection: psycopg.Connection[Any]) -> None:
        orders = [(event.value.orderId, pieces(event.value.lines)) for event in events]
        articles = {sku for _, wanted in orders for sku in wanted}
        available: dict[str, int] = dict(connection.execute(LOCK, (list(articles),)).fetchall())
        taken: list[tuple[str, str, int]] = []
        short: list[str | None] = []
        for order_id, wanted in orders:
            short.append(short_of(wanted, available))
            for sku, quantity in wanted.items() if short[-1] is None else ():
                available[sku] -= quantity
                taken.append((order_id, sku, quantity))
        connection.execute(DECIDE, ([order_id for order_id, _ in orders], [sku is None for sku in short]))
        connection.execute(TAKE, [[each[column] for each in taken] for column in range(3)])
        append_many(connection, answers(events, short))

    @consumer.on(OrderRejected)
    def release(event: Event[OrderRejected], connection: psycopg.Connection[Any]) -> None:
        connection.execute(GIVE_BACK, (event.value.orderId,))

    return consumer


def answers(events: Iterable[Event[OrderPlaced]], short: Iterable[str | None]) -> Iterator[StockReserved | StockRejected]:
    """Answer each order in its own context, with the article that it is short of, if any."""
    for event, sku in zip(events, short, strict=True):
        order_id = event.value.orderId
        with event.context():
            yield StockReserved(orderId=order_id) if sku is None else StockRejected(orderId=order_id, sku=sku)
