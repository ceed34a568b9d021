"""Writes mails. A mail leaves the database's world, so it carries an idempotency key by which the mail server knows it again.

Orders come before welcomes: their topics have other priorities. A mail server that refuses is asked again a little later, and
after five refusals in a row left alone for a while.
"""

from __future__ import annotations

import random
import threading
from typing import Any, Final

import psycopg

from cdc.consumer import Consumer, Event, Retry
from cdc.devstack.demo.shop.events import OrderPlaced, OrderRejected, UserRegistered
from cdc.devstack.demo.shop.place import ORDERS, USERS, Place

DDL: Final = """
CREATE TABLE mailbox (key text PRIMARY KEY, recipient text NOT NULL, subject text NOT NULL, about text NOT NULL);
CREATE TABLE recipients (order_id text PRIMARY KEY, customer text NOT NULL);
"""
"""`recipients` is what OrderPlaced says and OrderRejected does not: whoever will need it keeps it, instead of asking for it."""


class MailServerError(Exception):
    """The mail server refuses for now."""


class MailServer:
    """Stands for a mail server: a table, written in transactions of its own, that knows a key again."""

    def __init__(self, dsn: str, fails: float) -> None:
        self._dsn = dsn
        self._fails = fails
        self._local = threading.local()
        self._links: list[psycopg.Connection[Any]] = []

    def close(self) -> None:
        """Hang up."""
        for link in self._links:
            link.close()

    def send(self, key: str, recipient: str, subject: str, about: str) -> None:
        """Deliver a mail once, however often it is handed over with this key; raises MailServerError now and then."""
        if random.random() < self._fails:  # noqa: S311 - no secret
            raise MailServerError
        if getattr(self._local, "link", None) is None:
            self._local.link = psycopg.connect(self._dsn, autocommit=True)
            self._links.append(self._local.link)
        query = "INSERT INTO mailbox VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING"
        self._local.link.execute(query, (key, recipient, subject, about))


def notification(place: Place, server: MailServer | None = None) -> Consumer:
    """Make the consumer."""
    [orders, users] = place.topics(ORDERS, USERS)
    topics = {orders: "high", users: "low"}
    retry = Retry.exponential(0.02, 1.0, attempts=20)
    consumer = Consumer(place.prefix + "notification", topics=topics, batch=50, retry=retry, **place.consumer("notification"))
    consumer.breaker("mail", errors=(MailServerError,), failures=5, open_s=1.0)
    server = server or MailServer(place.dsns["notification"], place.mail_fails)

    @consumer.on(OrderPlaced, breaker="mail")
    def confirm(event: Event, connection: psycopg.Connection[Any]) -> None:
        order: OrderPlaced = event.value
        connection.execute("INSERT INTO recipients VALUES (%s, %s)", (order.orderId, order.customer.name))
        server.send(event.idempotency_key, order.customer.name, "we have your order", order.orderId)

    @consumer.on(OrderRejected, breaker="mail")
    def regret(event: Event, connection: psycopg.Connection[Any]) -> None:
        order: OrderRejected = event.value
        found = connection.execute("SELECT customer FROM recipients WHERE order_id = %s", (order.orderId,)).fetchone()
        server.send(event.idempotency_key, found[0] if found else "", f"we are sorry: {order.reason}", order.orderId)

    @consumer.on(UserRegistered, breaker="mail", unique="welcome:{userId}")
    def welcome(event: Event) -> None:
        server.send(event.idempotency_key, event.value.email, f"welcome, {event.value.name}", event.value.userId)

    return consumer
