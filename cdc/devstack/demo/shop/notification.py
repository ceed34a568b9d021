"""Writes mails. A mail leaves the database's world, so it carries an idempotency key by which the mail server knows it again.

Orders come before welcomes: their topics have other priorities. A mail server that refuses is asked again a little later, and
after five refusals in a row left alone for a while.
"""

from __future__ import annotations

import random
import threading
from contextlib import closing, nullcontext
from typing import Any, Final, NamedTuple

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


class Mail(NamedTuple):
    """A mail; by its key the server knows it again, and `about` is the order or the user."""

    key: str
    recipient: str
    subject: str
    about: str


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

    def send(self, *mails: Mail) -> None:
        """Deliver each mail once, however often it is handed over with its key; raises MailServerError now and then."""
        if any(random.random() < self._fails for _ in mails):  # noqa: S311 - no secret
            raise MailServerError
        if getattr(self._local, "link", None) is None:
            self._local.link = psycopg.connect(self._dsn, autocommit=True)
            self._links.append(self._local.link)
        query = "INSERT INTO mailbox SELECT * FROM unnest(%s::text[], %s::text[], %s::text[], %s::text[]) ON CONFLICT DO NOTHING"
        self._local.link.execute(query, [list(column) for column in zip(*mails, strict=True)])


def notification(place: Place, server: MailServer | None = None) -> Consumer:
    """Make the consumer."""
    [orders, users] = place.topics(ORDERS, USERS)
    topics = {orders: "high", users: "low"}
    retry = Retry.exponential(0.02, 1.0, attempts=20)
    consumer = Consumer(place.prefix + "notification", topics=topics, batch=50, retry=retry, **place.consumer("notification"))
    consumer.breaker("mail", errors=(MailServerError,), failures=5, open_s=1.0)
    post = consumer.resource(lambda: nullcontext(server) if server else closing(MailServer(place.dsns["notification"], place.mail_fails)))

    @consumer.on(OrderPlaced, breaker="mail", many=True)
    def confirm(events: list[Event[OrderPlaced]], connection: psycopg.Connection[Any]) -> None:
        mails = [Mail(each.idempotency_key, each.value.customer.name, "we have your order", each.value.orderId) for each in events]
        recipients = ([mail.about for mail in mails], [mail.recipient for mail in mails])
        connection.execute("INSERT INTO recipients SELECT * FROM unnest(%s::text[], %s::text[])", recipients)
        post().send(*mails)

    @consumer.on(OrderRejected, breaker="mail", many=True)
    def regret(events: list[Event[OrderRejected]], connection: psycopg.Connection[Any]) -> None:
        query = "SELECT order_id, customer FROM recipients WHERE order_id = ANY (%s)"
        names = dict(connection.execute(query, ([each.value.orderId for each in events],)).fetchall())
        sorry = [(each.idempotency_key, each.value) for each in events]
        post().send(*[Mail(key, names.get(order.orderId, ""), f"we are sorry: {order.reason}", order.orderId) for key, order in sorry])

    @consumer.on(UserRegistered, breaker="mail", unique="welcome:{userId}")
    def welcome(event: Event[UserRegistered]) -> None:
        user = event.value
        post().send(Mail(event.idempotency_key, user.email, f"welcome, {user.name}", user.userId))

    return consumer
