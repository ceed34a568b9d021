"""The order service's database. Whoever calls commits or rolls back: the change and its event stay together, or neither does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from cdc.devstack.demo.shop.domain import Order, Status
from cdc.devstack.demo.shop.events import OrderPaid, OrderProcessed, OrderRejected, UserRegistered
from cdc.outbox import Event, Outbox

if TYPE_CHECKING:
    import psycopg

DDL: Final = """
CREATE TABLE orders (
    id text PRIMARY KEY,
    customer bigint NOT NULL,
    total_cents bigint NOT NULL,
    paid_cents bigint NOT NULL DEFAULT 0,
    status text NOT NULL DEFAULT 'placed'
);
CREATE TABLE refunds (order_id text NOT NULL, cents bigint NOT NULL);
CREATE TABLE shipments (order_id text NOT NULL);
CREATE TABLE users (id text PRIMARY KEY, name text NOT NULL, email text NOT NULL);
CREATE TABLE requests (key text PRIMARY KEY, asked text NOT NULL, answer jsonb);
"""
"""Nothing here keeps a refund or a shipment from being made twice: that is the inbox's part, and the demo's audit looks."""


SHIP: Final = """
WITH gone AS (UPDATE orders SET status = %s WHERE id = ANY (%s) AND status = %s RETURNING id)
INSERT INTO shipments SELECT id FROM gone RETURNING order_id"""


class NotPossible(Exception):
    """The order is no longer where this may happen to it; the words are for the customer."""


class Orders:
    """What happens to orders; all methods write in the transaction that is open on the connection."""

    def __init__(self, outbox: Outbox) -> None:
        self._append = outbox.append

    def place(self, connection: psycopg.Connection[Any], order: Order, *, paid: bool = False) -> list[Event]:
        """Write an order, paid at once or later."""
        row = (order.id, order.customer.id, order.total_cents, order.total_cents if paid else 0)
        connection.execute("INSERT INTO orders (id, customer, total_cents, paid_cents) VALUES (%s, %s, %s, %s)", row)
        events = [self._append(connection, order.placed())]
        return [*events, self.paid(connection, order.id, order.total_cents)] if paid else events

    def paid(self, connection: psycopg.Connection[Any], order_id: str, cents: int) -> Event:
        """Tell of a payment."""
        return self._append(connection, OrderPaid(orderId=order_id, amountCents=cents, currency="EUR", method="CARD"))

    def pay(self, connection: psycopg.Connection[Any], order_id: str, cents: int) -> Event:
        """Take a payment; raises NotPossible for an order that is given up: the row's lock decides who comes first."""
        query = "UPDATE orders SET paid_cents = paid_cents + %s WHERE id = %s AND status <> %s"
        if not connection.execute(query, (cents, order_id, Status.REJECTED)).rowcount:
            raise NotPossible("there is no such order, or it was rejected")
        return self.paid(connection, order_id, cents)

    def process(self, connection: psycopg.Connection[Any], order_ids: Sequence[str]) -> frozenset[str]:
        """Send orders out, but those that were taken back meanwhile; return which went. Whoever calls tells of each (`processed`)."""
        found = connection.execute(SHIP, (Status.PROCESSED, list(order_ids), Status.PLACED)).fetchall()
        return frozenset(order_id for (order_id,) in found)

    def processed(self, connection: psycopg.Connection[Any], order_id: str) -> Event:
        """Tell that an order went out."""
        return self._append(connection, OrderProcessed(orderId=order_id))

    def reject(self, connection: psycopg.Connection[Any], order_id: str, reason: str) -> Event | None:
        """Give an order up and the money back, unless it has gone out meanwhile; who reserved stock for it hears of it."""
        cents = self._leaves(connection, order_id, Status.REJECTED)
        if cents is None:
            return None
        if cents:
            connection.execute("INSERT INTO refunds VALUES (%s, %s)", (order_id, cents))
        return self._append(connection, OrderRejected(orderId=order_id, reason=reason, refundCents=cents))

    def register(self, connection: psycopg.Connection[Any], user_id: str, name: str, email: str) -> Event:
        """Give somebody an account."""
        connection.execute("INSERT INTO users VALUES (%s, %s, %s)", (user_id, name, email))
        return self._append(connection, UserRegistered(userId=user_id, name=name, email=email))

    def status(self, connection: psycopg.Connection[Any], order_id: str) -> dict[str, Any] | None:
        """Return what a customer may know."""
        row = connection.execute("SELECT status, total_cents, paid_cents FROM orders WHERE id = %s", (order_id,)).fetchone()
        return None if row is None else dict(zip(("orderId", "status", "totalCents", "paidCents"), (order_id, *row), strict=True))

    @staticmethod
    def _leaves(connection: psycopg.Connection[Any], order_id: str, status: Status) -> int | None:
        """Move an order on from PLACED; return what was paid for it, None if it stands there no more."""
        query = "UPDATE orders SET status = %s WHERE id = %s AND status = %s RETURNING paid_cents"
        row = connection.execute(query, (status, order_id, Status.PLACED)).fetchone()
        return None if row is None else int(row[0])
