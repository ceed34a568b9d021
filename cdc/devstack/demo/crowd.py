"""The crowd in front of the shop, and the ledger of what it committed, so that the audit need not believe the tables alone.

Several writers, standing orders on which everybody pays, transactions that are given up before the commit, and now and then an
event that does not fit its schema, written by an older part of the shop that knows no `append`.
"""

from __future__ import annotations

import math
import random
import threading
import time
import uuid
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import orjson
import psycopg

from cdc.audit.judge import Row
from cdc.devstack.demo.shop.data import Orders
from cdc.devstack.demo.shop.domain import Order
from cdc.devstack.demo.shop.events import Customer, Line
from cdc.outbox import Event, Outbox

APPEND: Final = "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) VALUES (%s, 'Order', %s, %s, %s)"

HOT_ORDERS: Final = 5
"""Standing orders on which many transactions pay an instalment: their events must stay in commit order."""

HOT, PAID, ROLLED_BACK, INVALID, SCARCE = 0.2, 0.6, 0.03, 0.01, 0.1
"""Parts of all orders: with an instalment on a standing order, paid at once, given up before the commit, with an event that is
invalid, with a scarce article."""

WRITERS: Final = range(4, 33)
ORDERS_PER_WRITER: Final = 50.0
"""What one writer places in a second on a busy machine, where each of its two journeys to the server waits for its turn at a core."""

LINES: Final = [Line(sku="book", quantity=1, unitCents=1290), Line(sku="tea", quantity=2, unitCents=450)]
CUP: Final = Line(sku="cup", quantity=1, unitCents=700)


def writers_for(rate: float, *, crowded: bool) -> int:
    """Return how many writers place so many orders a second; it takes more where a dozen services want the same cores (`crowded`)."""
    if not crowded:
        return WRITERS[0]  # more would only take the cores from who publishes and who watches
    return min(max(math.ceil(rate / ORDERS_PER_WRITER), WRITERS[0]), WRITERS[-1])


class Placed(NamedTuple):
    """An order that was committed: its lines and whether it was paid at once."""

    lines: list[Line]
    paid: bool


@dataclass(slots=True)
class Ledger:
    """What was committed, by the shop's own count; safe for threads."""

    rows: list[Row] = field(default_factory=list)
    placed: dict[str, Placed] = field(default_factory=dict)
    invalid: set[str] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, events: list[Event], order: Order | None = None, *, paid: bool = False) -> None:
        """Note a transaction; without an order its event is invalid."""
        with self._lock:
            number = self.orders + 1
            self.rows += [Row(str(event.id).encode(), event.key.encode(), event.type.encode(), number) for event in events]
            if order is None:
                self.invalid.add(str(events[0].id))
            else:
                self.placed[order.id] = Placed(order.lines, paid)

    @property
    def orders(self) -> int:
        """How many orders were placed, valid or not."""
        return len(self.placed) + len(self.invalid)


class Crowd:
    """Writers in threads, at `rate` orders a second at most, until all orders are placed or the shop is closed."""

    def __init__(  # noqa: PLR0913 - what a crowd is like
        self, dsn: str, outbox: Outbox, ledger: Ledger, orders: int | None, *, writers: int = 4, rate: float = 1_000.0, seed: int = 0
    ) -> None:
        self._dsn = dsn
        self._shop = Orders(outbox)
        self._outbox = outbox
        self._left = orders
        self._interval_s = writers / rate
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._failure: BaseException | None = None
        self._threads = [threading.Thread(target=self._work, args=(random.Random(seed + i),)) for i in range(writers)]  # noqa: S311 - no secret
        self.ledger = ledger
        self.placed = self.rolled_back = 0

    def __repr__(self) -> str:
        return f"<Crowd orders={self.placed} rolled_back={self.rolled_back}>"

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
            if self._left is None:
                return True
            self._left -= 1
            return self._left >= 0

    def _place(self, connection: psycopg.Connection[Any], chance: random.Random) -> None:
        """Place one order; one that is given up is placed again, so that the number of orders is what was asked for."""
        customer = Customer(id=chance.randrange(1_000), name="Ada")
        order = Order(str(_id(chance)), customer, [*LINES, CUP] if chance.random() < SCARCE else LINES)
        paid, hot, invalid = chance.random() < PAID, chance.random() < HOT, chance.random() < INVALID
        while chance.random() < ROLLED_BACK:
            self._shop.place(connection, order, paid=paid)
            connection.rollback()
            with self._lock:
                self.rolled_back += 1
        with connection.pipeline():  # one journey to the server and back
            events = [_old_part(connection, order)] if invalid else self._shop.place(connection, order, paid=paid)
            if hot:
                events.append(self._shop.paid(connection, f"standing-{chance.randrange(HOT_ORDERS)}", 100))
            connection.commit()
        self.ledger.add(events, None if invalid else order, paid=paid)
        with self._lock:
            self.placed += 1


def _old_part(connection: psycopg.Connection[Any], order: Order) -> Event:
    """Write an event that is no OrderPlaced, past `append`, which would refuse it."""
    customer = {"id": order.customer.id, "name": "Ada"}
    document = {"orderId": order.id, "customer": customer, "currency": "EUR", "lines": [], "totalCents": "a lot"}
    event = Event("OrderPlaced", order.id, document)
    connection.execute(APPEND, (event.id, event.key, event.type, orjson.dumps(event.payload).decode()))
    return event


def _id(chance: random.Random) -> uuid.UUID:
    return uuid.UUID(int=chance.getrandbits(128), version=4)
