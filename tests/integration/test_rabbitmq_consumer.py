"""Consumers of RabbitMQ: one reader of a queue, what a crash brings again, delays and dead letters by the broker's own means.

What they share with Kafka's is in test_consumer.py, with the same handlers.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cdc.consumer import Consumer, Event, Retry
from cdc.devstack.demo.shop import analytics, data, inventory, notification
from cdc.devstack.demo.shop.events import OrderPaid
from cdc.devstack.demo.shop.place import DATABASES, Place
from cdc.devstack.rabbitmq import RabbitBroker
from cdc.errors import ConfigurationError, SinkRefused
from cdc.outbox import Outbox
from cdc.testing.windows import Window, killed_at, running
from tests.consumers import RabbitLine, consuming, event, letters, rabbit_line, write_effect
from tests.docs.pages import ROOT
from tests.proxy import Proxy
from tests.rabbit import RabbitPipeline
from tests.waiting import wait_for

pytestmark = [pytest.mark.servers, pytest.mark.packages]

QUICK = Retry.fixed(0.02, attempts=2)


@pytest.fixture
def shop(unique: str, rabbit_broker: RabbitBroker, database: str, tmp_path: Path) -> RabbitLine:
    made = rabbit_line(unique, rabbit_broker.url, database, tmp_path)
    made.make_topic()
    return made


def made(name: str, sink: dict[str, Any], dsn: str, schemas: Path) -> Consumer:
    """A consumer whose third event cannot be handled."""
    consumer = Consumer(name, topics=[f"{name}.thing"], postgres=dsn, schemas=schemas, retry=QUICK, **sink)

    @consumer.on("Thing", name="write")
    def write(each: Event, connection: psycopg.Connection[Any]) -> None:
        if each.value["n"] == 2:
            raise ValueError
        write_effect(each, connection)

    return consumer


def slow(name: str, sink: dict[str, Any], dsn: str, schemas: Path) -> Consumer:
    """A member whose handlers take a while."""
    consumer = Consumer(name, topics=[f"{name}.thing"], postgres=dsn, schemas=schemas, in_flight=20, **sink)

    @consumer.on("Thing", name="write")
    def write(each: Event, connection: psycopg.Connection[Any]) -> None:
        connection.execute("SELECT pg_sleep(0.02)")
        write_effect(each, connection)

    return consumer


def test_each_event_has_its_effect_once_in_order_and_is_acknowledged_then(shop: RabbitLine) -> None:
    consumer = shop.consumer(batch=50)
    consumer.on("Thing")(write_effect)
    # The same events again, as at-least-once brings them.
    shop.publish(*[event(n) for n in range(100)], *[event(n) for n in range(50)], event(100))
    with consuming(consumer):
        shop.wait_effects(range(101))
    assert shop.left() == 0
    assert shop.execute("SELECT count(*) FROM processed_events") == [(101,)]


SHORT = {Window.COMMITTED, Window.PARKED}
"""What differs most from Kafka: the acknowledgement is sent, and nobody answers; a letter and the acknowledgement are two steps."""


@pytest.mark.parametrize(
    "window",
    [
        pytest.param(window, id=window.name.lower(), marks=() if window in SHORT else pytest.mark.soak)
        for window in Window
        if window is not Window.LETTER_SENT  # of Kafka alone
    ],
)
def test_a_crash_in_each_window(shop: RabbitLine, window: Window) -> None:
    shop.consumer()  # makes the tables
    arguments = (shop.name, shop.sink, shop.dsn, shop.schemas)
    shop.publish(*[event(n) for n in range(5)])
    killed_at(window, made, *arguments).wait_killed()
    with consuming(made(*arguments)):
        shop.publish(event(5))  # behind all that comes again
        shop.wait_effects([0, 1, 3, 4, 5], 60)
    assert shop.left() == 0
    parked, again = shop.all_letters()
    assert (len(parked), again) == (1, 0), "parked once"


def test_who_is_killed_leaves_what_it_had_to_the_next_one_in_order(shop: RabbitLine) -> None:
    shop.consumer()  # makes the tables
    shop.publish(*[event(n) for n in range(100)])
    child = running(slow, shop.name, shop.sink, shop.dsn, shop.schemas)
    wait_for(lambda: len(shop.effects()) >= 4, 60, "it works")
    assert shop.left() >= 50, "the broker sends no more than the prefetch"
    survivor = shop.consumer(batch=50)
    survivor.on("Thing", name="write")(write_effect)
    with consuming(survivor):
        before = len(shop.effects())
        wait_for(lambda: len(shop.effects()) > before, what="the first one is alone at work")
        assert child.process.pid is not None
        os.kill(child.process.pid, signal.SIGKILL)
        shop.wait_effects(range(100), 60)
    assert shop.left() == 0
    child.kill()


def test_retries_wait_in_a_queue_and_let_later_records_pass(shop: RabbitLine) -> None:
    consumer = shop.consumer(retry=Retry.listed(0.3, 0.3), retry_topics=True)
    calls: list[tuple[int, int]] = []

    @consumer.on("Thing")
    def handle(each: Event, connection: psycopg.Connection[Any]) -> None:
        calls.append((each.value["n"], each.attempt))
        if each.value["n"] == 0 or (each.value["n"] == 1 and each.attempt < 3):
            raise ConnectionError
        write_effect(each, connection)

    shop.publish(*[event(n) for n in range(4)])
    with consuming(consumer):
        shop.wait_effects([2, 3, 1], 60)
        wait_for(shop.dead_letters, what="the hopeless one is parked")
    assert [attempt for n, attempt in calls if n == 0] == [1, 2, 3]
    assert [each.timestamp_ms > 0 for each in shop.dead_letters()] == [True]
    [letter] = letters(shop.dead_letters())
    assert (letter["cdc.attempts"], letter["__connect.errors.topic"]) == ("3", shop.topic)
    assert letter["cdc.reason"] == "handler"


def test_a_lost_connection_is_made_again_and_nothing_happens_twice(shop: RabbitLine, rabbit_broker: RabbitBroker) -> None:
    said: list[str] = []
    with Proxy(rabbit_broker.port) as way:
        url = shop.bootstrap.replace(str(rabbit_broker.port), str(way.port))
        consumer = shop.consumer(observer=shop.listening(said), in_flight=50, rabbitmq={"url": url})

        @consumer.on("Thing")
        def write(each: Event, connection: psycopg.Connection[Any]) -> None:
            connection.execute("SELECT pg_sleep(0.01)")
            write_effect(each, connection)

        shop.publish(*[event(n) for n in range(150)])
        with consuming(consumer):
            wait_for(lambda: len(shop.effects()) > 20, what="it works")
            way.cut()
            wait_for(lambda: any("RabbitMQ" in each for each in said), what="it says so")
            way.flow()
            shop.wait_effects(range(150), 60)
    assert shop.left() == 0


@contextmanager
def served(rabbit: RabbitPipeline, *make: Callable[[Place], Consumer]) -> Iterator[list[Consumer]]:
    """Services of the shop behind one exchange, in one database; each of them notes payments."""
    rabbit.set(schemas__folder=str(ROOT / "schemas"))
    rabbit.init()
    sink = {"rabbitmq": {"url": rabbit.broker.url, "exchange": rabbit.exchange}}
    dsns = dict.fromkeys(DATABASES, rabbit.dsn)
    place = Place(sink, str(ROOT / "schemas"), dsns, route=rabbit.name, prefix=f"{rabbit.name}-")
    for statements in (data.DDL, inventory.DDL, notification.DDL, analytics.DDL.format(table="facts"), "CREATE TABLE paid (who text)"):
        rabbit.execute(statements)
    services = [each(place) for each in make]
    for service in services:
        service.on(OrderPaid, name="paid")(partial(note_payment, service.name.removeprefix(place.prefix)))
        service.create_tables()
        service.create_topics()
    rabbit.start()
    with consuming(*services):
        yield services


def note_payment(service: str, _: Event[OrderPaid], connection: psycopg.Connection[Any]) -> None:
    connection.execute("INSERT INTO paid VALUES (%s)", (service,))


def test_a_payment_fans_out_from_one_exchange_to_inventory_notification_and_analytics(rabbit: RabbitPipeline) -> None:
    with served(rabbit, inventory.inventory, notification.notification, analytics.analytics):
        with rabbit.connection.transaction():
            for number in range(5):
                data.Orders(Outbox(schemas=ROOT / "schemas")).paid(rabbit.connection, f"order-{number}", 700)
        expected = [("analytics", 5), ("inventory", 5), ("notification", 5)]
        wait_for(lambda: rabbit.execute("SELECT who, count(*) FROM paid GROUP BY 1 ORDER BY 1") == expected, 60, "each has each once")
    assert rabbit.execute("SELECT type, count(*) FROM facts GROUP BY 1") == [("OrderPaid", 5)]


def test_what_a_consumer_parked_is_redriven_for_it_alone(rabbit: RabbitPipeline) -> None:
    shop = rabbit_line(rabbit.name, rabbit.broker.url, rabbit.dsn, rabbit.folder)
    rabbit.set(topics__route=f"{shop.name}.{{aggregatetype}}")
    rabbit.init()
    consumer = shop.consumer(retry=QUICK, schemas=rabbit.folder / "schemas")
    mended = False

    @consumer.on("Thing")
    def write(each: Event, connection: psycopg.Connection[Any]) -> None:
        if each.value["n"] == 2 and not mended:
            raise ConnectionError
        assert each.newer_applied is (each.value["n"] == 2)
        write_effect(each, connection)

    consumer.create_topics()
    rabbit.started()
    rabbit.insert(1, 3)
    with consuming(consumer):
        shop.wait_effects([1, 3])
        wait_for(shop.dead_letters, what="one is parked")
    [letter] = json.loads(rabbit.here("dead-letters", "list", "--consumer", shop.name, "--json").out)["dead_letters"]
    assert (letter["reason"], letter["topic"]) == ("handler", shop.topic)
    redriven = rabbit.here("dead-letters", "redrive", letter["id"], "--consumer", shop.name)
    assert redriven.code == 0, redriven.err
    mended = True
    with consuming(consumer):
        shop.wait_effects([1, 3, 2])
    listed = json.loads(rabbit.here("dead-letters", "list", "--consumer", shop.name, "--json").out)
    assert listed["open"] == 0


@pytest.mark.soak
@pytest.mark.parametrize("resource", ["memory", "disk"])
def test_a_broker_that_is_restarted_and_one_with_an_alarm_are_waited_for(
    shop: RabbitLine, rabbit_broker: RabbitBroker, resource: str
) -> None:
    said: list[str] = []
    consumer = shop.consumer(in_flight=50, retry=QUICK, observer=shop.listening(said))
    refused: list[int] = []

    @consumer.on("Thing")
    def write(each: Event, connection: psycopg.Connection[Any]) -> None:
        connection.execute("SELECT pg_sleep(0.01)")
        if each.value["n"] == 200:
            refused.append(each.attempt)
            raise ValueError
        write_effect(each, connection)

    shop.publish(*[event(n) for n in range(201)], event(201))
    with consuming(consumer):
        for stop in (rabbit_broker.stop, rabbit_broker.kill):
            seen = len(shop.effects())
            wait_for(partial(more_than, shop, seen + 20), 60, "it works")
            stop()
            rabbit_broker.start()
        seen = len(shop.effects())
        with rabbit_broker.alarm(resource):
            wait_for(partial(more_than, shop, seen + 20), 60, "reading goes on")
            wait_for(lambda: 2 in refused, 60, "the last attempt, in the alarm: the letter waits")
            wait_for(lambda: any(f"low on {resource}" in each for each in said), 60, "which is said")
        wait_for(shop.dead_letters, 60, "it is parked")
        shop.wait_effects([*range(200), 201], 60)
    assert shop.left() == 0
    assert (len(shop.dead_letters()), shop.all_letters()[1]) == (1, 0)


@pytest.mark.soak
def test_what_waits_for_its_time_outlives_the_broker(shop: RabbitLine, rabbit_broker: RabbitBroker) -> None:
    consumer = shop.consumer(retry=Retry.listed(3.0, 0.1), retry_topics=True)
    calls: list[tuple[int, int]] = []

    @consumer.on("Thing")
    def handle(each: Event, connection: psycopg.Connection[Any]) -> None:
        calls.append((each.value["n"], each.attempt))
        if each.value["n"] == 0 and each.attempt == 1:
            raise ConnectionError
        write_effect(each, connection)

    shop.publish(event(0), event(1))
    with consuming(consumer):
        shop.wait_effects([1])
        rabbit_broker.restart()
        shop.wait_effects([1, 0], 60)
    assert calls.count((0, 2)) == 1
    assert shop.left() == 0


@pytest.mark.soak
def test_who_dies_in_an_alarm_leaves_no_letter_in_its_connection(shop: RabbitLine, rabbit_broker: RabbitBroker) -> None:
    shop.consumer()  # makes the tables
    arguments = (shop.name, shop.sink, shop.dsn, shop.schemas)
    shop.publish(event(2))
    with rabbit_broker.alarm():
        child = running(made, *arguments)
        wait_for(lambda: "blocked" in rabbit_broker.control("list_connections", "state"), 60, "it has asked, and waits")
        child.kill()
    with consuming(made(*arguments)):
        wait_for(shop.dead_letters, 60, "it is parked")
        shop.publish(event(3))
        shop.wait_effects([3])
    assert shop.left() == 0
    assert (len(shop.dead_letters()), shop.all_letters()[1]) == (1, 0)


def more_than(shop: RabbitLine, number: int) -> bool:
    return len(shop.effects()) > number


def test_what_a_person_has_to_mend_is_said(shop: RabbitLine) -> None:
    with pytest.raises(ConfigurationError, match="no option 'queue'"):
        shop.consumer(rabbitmq={"queue": "x"})
    with pytest.raises(ConfigurationError, match="cannot be read"):
        shop.consumer(rabbitmq={"url": "nonsense"})
    nowhere = shop.consumer(rabbitmq={"exchange": "not-there"})
    nowhere.on("Thing")(write_effect)
    with pytest.raises(SinkRefused, match="no exchange 'not-there'"):
        nowhere.run()
    other = shop.consumer(rabbitmq={"single_active": False})
    other.on("Thing")(write_effect)
    with pytest.raises(SinkRefused, match="inequivalent arg 'x-single-active-consumer'"):
        other.run()
