"""A small shop: orders and their events, written in one transaction through the outbox.

`place_order` is the whole pattern: the order's row and its events commit together, or neither does. The rest makes a crowd of
it: several writers, a few orders that everybody changes, transactions that are rolled back, and now and then an event that
does not fit its schema. What was committed is kept in a ledger, so that the audit need not believe the table alone.
"""

from __future__ import annotations

import random
import threading
import time
import uuid
from typing import Any, NamedTuple

import orjson
import psycopg

from cdc.audit.judge import Row

ORDERS_TABLE = "CREATE TABLE orders (id text, customer bigint NOT NULL, total_cents bigint NOT NULL, placed_at timestamptz DEFAULT now())"

APPEND = "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) VALUES (%s, 'Order', %s, %s, %s)"

HOT_ORDERS = 5
"""Standing orders that many transactions change: their events must stay in commit order."""

HOT, PAID, ROLLED_BACK, INVALID = 0.2, 0.6, 0.03, 0.01
"""Parts of all orders: to a standing order, paid at once, given up before the commit, with an event that is invalid."""

TIDY = {"lines": [{"sku": "book", "quantity": 1, "unitCents": 1290}, {"sku": "tea", "quantity": 2, "unitCents": 450}]}


class Event(NamedTuple):
    """An event as the shop writes it."""

    id: uuid.UUID
    key: str
    type: str
    payload: str


def place_order(connection: psycopg.Connection[Any], customer: int, total_cents: int, events: list[Event]) -> None:
    """Write an order and its events. Whoever calls commits or rolls back: both stay, or neither does."""
    connection.execute("INSERT INTO orders VALUES (%s, %s, %s)", (events[0].key, customer, total_cents))
    for event in events:
        connection.execute(APPEND, event)


class Shop:
    """Writers in threads, at `rate` orders a second at most, until all orders are placed or the shop is closed."""

    def __init__(self, dsn: str, orders: int | None, *, writers: int = 4, rate: float = 1_000.0, seed: int = 0) -> None:
        self._dsn = dsn
        self._orders = orders
        self._interval_s = writers / rate
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._begun = 0
        self._failure: BaseException | None = None
        self._threads = [threading.Thread(target=self._work, args=(random.Random(seed + i),)) for i in range(writers)]  # noqa: S311 - no secret
        self.ledger: list[Row] = []
        self.orders = self.rolled_back = 0

    def __repr__(self) -> str:
        return f"<Shop orders={self.orders} events={len(self.ledger)} rolled_back={self.rolled_back}>"

    def open(self) -> None:
        """Start the writers."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Let every writer finish its order."""
        self._closing.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    @property
    def busy(self) -> bool:
        """Whether orders are still being placed; raises what made a writer fail."""
        if self._failure is not None:
            raise self._failure
        return any(thread.is_alive() for thread in self._threads)

    def _work(self, chance: random.Random) -> None:
        try:
            with psycopg.connect(self._dsn, application_name="shop") as connection:
                due = time.monotonic()
                while not self._closing.wait(due - time.monotonic()) and self._next():
                    self._place(connection, chance)
                    due = max(due + self._interval_s, time.monotonic() - 1)
        except BaseException as error:  # noqa: BLE001 - shown by `busy`, in the thread that watches
            self._failure = error

    def _next(self) -> bool:
        with self._lock:
            self._begun += 1
            return self._orders is None or self._begun <= self._orders

    def _place(self, connection: psycopg.Connection[Any], chance: random.Random) -> None:
        """Place one order; one that is given up is placed again, so that the number of orders is what was asked for."""
        events = _events(chance)
        while chance.random() < ROLLED_BACK:
            place_order(connection, chance.randrange(1_000), 2190, events)
            connection.rollback()
            with self._lock:
                self.rolled_back += 1
        with connection.pipeline():  # one journey to the server and back
            place_order(connection, chance.randrange(1_000), 2190, events)
            connection.commit()
        with self._lock:
            self.orders += 1
            number = self.orders
            self.ledger += [Row(str(event.id).encode(), event.key.encode(), event.type.encode(), number) for event in events]


def _events(chance: random.Random) -> list[Event]:
    """Make up the events of one order."""
    hot = chance.random() < HOT
    key = f"standing-{chance.randrange(HOT_ORDERS)}" if hot else str(_id(chance))
    customer = {"id": chance.randrange(1_000), "name": "Ada", "email": None}
    placed = {"orderId": key, "customer": customer, "currency": "EUR", "totalCents": 2190, "note": None, **TIDY}
    if chance.random() < INVALID:
        placed["totalCents"] = "a lot"
    events = [Event(_id(chance), key, "OrderPlaced", orjson.dumps(placed).decode())]
    if chance.random() < PAID:
        paid = {"orderId": key, "amountCents": 2190, "currency": "EUR", "method": "CARD"}
        events.append(Event(_id(chance), key, "OrderPaid", orjson.dumps(paid).decode()))
    return events


def _id(chance: random.Random) -> uuid.UUID:
    return uuid.UUID(int=chance.getrandbits(128), version=4)
