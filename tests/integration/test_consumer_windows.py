"""The windows by which an outbox with an inbox is judged, on the whole shop: its books balance to the piece after each (I11).

The pipeline, the crowd, the services and the audit are those of the demo. The other windows stand for themselves: a crash at each
instant of a consumer and fifty orders at once in test_consumer.py and test_shop.py, copies at one instant, old and new schemas in
tests/field/test_field_consumer.py.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import psycopg
import pytest
from confluent_kafka import Consumer as PlainConsumer
from confluent_kafka import Producer, TopicPartition

from cdc.consumer import Consumer, Event, Retry
from cdc.devstack.demo.crowd import LINES, Crowd, Ledger
from cdc.devstack.demo.effects import Books, Effects
from cdc.devstack.demo.shop import analytics, inventory, notification, saga, warehouse
from cdc.devstack.demo.shop.data import Orders
from cdc.devstack.demo.shop.domain import Order
from cdc.devstack.demo.shop.events import Customer
from cdc.devstack.demo.shop.place import DATABASES, ORDERS, STOCK, USERS, Place
from cdc.devstack.demo.staff import furnish
from cdc.testing.windows import Window, killed_at
from tests.conftest import FIGURE
from tests.consumers import consuming
from tests.crash.test_commands import killed
from tests.docs.pages import ROOT
from tests.pipeline import Pipeline, consume, sizes
from tests.waiting import wait_for

CUPS = 10
RATE = 60.0
"""Orders a second: with five services in one process the two cores have some to spare."""

Around = Callable[[Event, str], Any]


class Times(NamedTuple):
    """How long the publisher is down, and how long handlers fail, in s."""

    down: float
    failing: float


@dataclass(frozen=True, slots=True)
class Shaky(Place):
    """A place whose services' calls are surrounded by `around`; what fails is tried again soon."""

    around: Around | None = None

    def consumer(self, database: str | None) -> dict[str, Any]:
        more = {} if database == "notification" else {"retry": Retry.fixed(0.02, attempts=50)}  # which has its own
        return {**Place.consumer(self, database), **more, "around": self.around}


class OneOutbox(Books):
    """Books of services that share a pipeline: events of an order lie in two topics, which have no common order."""

    def read(self, database: str, query: str) -> list[tuple[Any, ...]]:
        return super().read(database, query.replace("PARTITION BY source, key", "PARTITION BY key, type LIKE 'Stock%'"))


@dataclass
class Shop:
    """A shop, what its customers have done, and its books."""

    pipeline: Pipeline
    place: Place
    books: Books
    ledger: Ledger = field(default_factory=Ledger)

    def services(self, place: Place | None = None) -> list[Consumer]:
        """New consumers, one of each kind."""
        made = (inventory.inventory, warehouse.warehouse, saga.saga, notification.notification, analytics.analytics)
        return [each(place or self.place) for each in made]

    @contextmanager
    def customers(self, at_least: int = 1) -> Iterator[None]:
        """Customers place orders beside us, and so many at least."""
        enough = self.ledger.orders + at_least
        crowd = Crowd(self.place.dsns["shop"], self.place.outbox(), self.ledger, None, rate=RATE, seed=random.randrange(1 << 32))
        crowd.open()
        try:
            yield
            wait_for(lambda: crowd.busy and self.ledger.orders >= enough, 60, f"{at_least} orders are placed")
        finally:
            crowd.close()

    def balance(self) -> None:
        """Wait until everything is published and every group has come to the end, then look: nothing is missing, twice or too early."""
        with suppress(AssertionError):  # the audit's own findings say more
            wait_for(lambda: self.books.audit(self.ledger).clean, 60)
        assert self.books.audit(self.ledger).findings == []
        wait_for(lambda: not self.left(), 60, "all groups are at the end")
        found = self.books.audit(self.ledger)
        assert found == Effects(0, 0, 0, 0, found.rejected)

    def left(self) -> list[tuple[str, TopicPartition]]:
        """Where groups are not at the end of a topic."""
        found = []
        for service in self.services():
            plain = PlainConsumer({"bootstrap.servers": self.pipeline.bootstrap, "group.id": service.name})
            try:
                places = [TopicPartition(topic, number) for topic in service._topics for number in range(3)]
                for place in plain.committed(places, timeout=20):
                    low, high = plain.get_watermark_offsets(place, timeout=20)
                    if high > low and place.offset != high:
                        found.append((service.name, place))
            finally:
                plain.close()
        return found


@pytest.fixture
def shop(pipeline: Pipeline) -> Shop:
    pipeline.set(schemas__folder=str(ROOT / "schemas"))
    pipeline.init()
    for about in (ORDERS, STOCK, USERS):
        pipeline.make_topic(f"{pipeline.name}.{about}", partitions=3)
    pipeline.start()
    place = Place(
        {"kafka": {"bootstrap.servers": pipeline.bootstrap}},
        str(ROOT / "schemas"),
        dict.fromkeys(DATABASES, pipeline.dsn),
        route=pipeline.name,
        prefix=f"{pipeline.name}-",
    )
    furnish(place, CUPS)
    pipeline.wait_ready()
    return Shop(pipeline, place, OneOutbox(dict.fromkeys(DATABASES, pipeline.connection)))


def a_transaction_is_rolled_back(shop: Shop) -> None:
    order = Order(str(uuid.uuid4()), Customer(id=1, name="Ada"), LINES)
    with psycopg.connect(shop.place.dsns["shop"]) as connection:
        Orders(shop.place.outbox()).place(connection, order, paid=True)
        connection.rollback()  # an effect for an order that is not in the ledger is one too many


def the_publisher_is_down(shop: Shop, seconds: float) -> None:
    shop.pipeline.kill()
    with shop.customers(20):
        end = time.monotonic() + seconds
        wait_for(lambda: time.monotonic() >= end, seconds + 60, "the outage is over")


def the_publisher_dies_between_publishing_and_confirming(shop: Shop) -> None:
    before = shop.pipeline.slot().confirmed
    killed(shop.pipeline, ("cdc.kafka.publisher:KafkaPublisher.commit", 1, "after"), "run")
    assert shop.pipeline.slot().confirmed == before < shop.pipeline.position()


def inventory_dies_between_the_reservation_and_its_offset(shop: Shop) -> None:
    killed_at(Window.COMMITTED, inventory.inventory, shop.place).wait_killed()
    assert shop.books.read("inventory", "SELECT count(*) FROM decisions") > [(0,)]
    assert shop.left()


def all_is_delivered_twice_with_poison_among_it(shop: Shop) -> int:
    """Return how many damaged orders are there."""
    producer = Producer({"bootstrap.servers": shop.pipeline.bootstrap, "linger.ms": 5})
    damaged = 0
    for each in consume(shop.pipeline.bootstrap, shop.place.topics(ORDERS, STOCK)):
        if each.headers["ce_type"] == b"OrderPlaced" and each.offset % 5 == 0:
            headers = [*each.headers.items(), ("ce_id", b"damaged " + each.headers["ce_id"])]  # the last one counts
            producer.produce(each.topic, b"\0\0\0\0\1damaged", each.key, each.partition, headers=list(headers))
            damaged += 1
        producer.produce(each.topic, each.value, each.key, each.partition, headers=list(each.headers.items()))
    assert producer.flush(60) == 0
    return damaged


class Failing:
    """Makes a tenth of all calls of handlers fail while it is on: before they have done anything, or when they have done all."""

    def __init__(self) -> None:
        self.on = False
        self.failed: list[str] = []
        self._chance = random.Random()

    @contextmanager
    def around(self, _: Event, name: str) -> Iterator[None]:
        fails, early = self.on and self._chance.random() < 0.1, self._chance.random() < 0.5
        if not (fails and early):
            yield
        if fails:
            self.failed.append(name)
            raise ConnectionError


def a_tenth_of_all_calls_fails(shop: Shop, failing: Failing, seconds: float) -> None:
    failing.on = True
    with shop.customers(20):
        for part in range(10):
            end, before = time.monotonic() + seconds / 10, len(failing.failed)
            wait_for(lambda: time.monotonic() >= end and len(failing.failed) > before, 60, f"calls fail in part {part}")  # noqa: B023


@sizes(Times(0.5, 1.0), Times(60, 120))
def test_the_books_balance_to_the_piece_in_each_window(shop: Shop, size: Times, record_property: Callable[[str, object], None]) -> None:
    the_publisher_is_down(shop, size.down)
    a_transaction_is_rolled_back(shop)
    the_publisher_dies_between_publishing_and_confirming(shop)
    inventory_dies_between_the_reservation_and_its_offset(shop)
    failing = Failing()
    shaky = Shaky(**{each.name: getattr(shop.place, each.name) for each in fields(shop.place)}, around=failing.around)
    with consuming(*shop.services(shaky)):
        shop.pipeline.started()
        shop.balance()
        damaged = all_is_delivered_twice_with_poison_among_it(shop)
        a_tenth_of_all_calls_fails(shop, failing, size.failing)
        shop.balance()
    parked = consume(shop.pipeline.bootstrap, [f"cdc.{shop.place.prefix}inventory.dead-letter"])
    assert len(parked) == len({each.headers["cdc.id"] for each in parked}) == damaged > 0
    figure = f"the shop's books balanced after {shop.ledger.orders} orders and {len(failing.failed)} calls that failed"
    record_property(FIGURE, figure)
