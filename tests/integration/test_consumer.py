"""Consumers on real servers: each event has its effect once, whatever comes in between."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cdc.consumer import Consumer, Event, Retry, Unprocessable, desk, inbox
from cdc.consumer.console import places
from cdc.consumer.ports import Log
from cdc.errors import SinkRefused
from cdc.kafka.consuming import FETCH
from cdc.testing.windows import Window, killed_at
from tests.consumers import CREATE, Line, consuming, event, letters, line, rabbit_line, redis_line, write_effect
from tests.pipeline import consume
from tests.waiting import wait_for

QUICK = Retry.fixed(0.02, attempts=2)


@pytest.fixture
def shop(unique: str, kafka: str, database: str, tmp_path: Path) -> Line:
    return line(unique, kafka, database, tmp_path)


REDIS, RABBITMQ = (pytest.param(name, marks=pytest.mark.packages) for name in ("redis", "rabbitmq"))


@pytest.fixture(params=["kafka", REDIS])
def anywhere(request: pytest.FixtureRequest, unique: str, database: str, tmp_path: Path) -> Line:
    """A shop on each broker: the same handlers, by one setting."""
    if request.param == "kafka":
        return line(unique, request.getfixturevalue("kafka"), database, tmp_path)
    if request.param == "rabbitmq":
        return rabbit_line(unique, request.getfixturevalue("rabbit_broker").url, database, tmp_path)
    return redis_line(unique, request.getfixturevalue("redis_server").url, database, tmp_path)


def test_each_event_once_in_order_and_offsets_behind(anywhere: Line) -> None:
    shop = anywhere
    shop.make_topic()
    consumer = shop.consumer(batch=50)
    consumer.on("Thing")(write_effect)
    # The same event twice, as a crashed publisher without transactions would leave it.
    shop.publish(*[event(n) for n in range(100)], *[event(n) for n in range(50)])
    with consuming(consumer):
        shop.wait_effects(range(100))
        wait_for(lambda: shop.committed() == 150, what="the offset follows")
    assert shop.execute("SELECT count(*) FROM processed_events") == [(100,)]


def test_a_partition_with_more_than_may_be_in_flight_is_paused_and_goes_on(shop: Line) -> None:
    shop.make_topic()
    held, most = threading.Event(), [0]

    class Pending(Log):
        def turned(self, consumer: str, state: Mapping[str, Any]) -> None:
            most[0] = max(most[0], state["pending"])

    consumer = shop.consumer(batch=100, in_flight=300, observer=Pending())

    @consumer.on("Thing", many=True)
    def write(events: list[Event], connection: psycopg.Connection[Any]) -> None:
        connection.execute("INSERT INTO effects SELECT '', n FROM unnest(%s::int[]) n", ([each.value["n"] for each in events],))
        assert held.wait(60)

    shop.publish(*[event(n) for n in range(2_000)])
    with consuming(consumer):
        wait_for(lambda: most[0] >= 300, what="it has as much as it may have")
        held.set()
        wait_for(lambda: shop.committed() == 2_000, 60, "all is through")
    assert sorted(shop.effects()) == list(range(2_000))
    assert most[0] <= 300 + FETCH, "what one look brings may come on top"


@pytest.mark.parametrize("many", [False, True], ids=["one", "list"])
def test_a_unique_violation_of_the_handler_is_its_own(shop: Line, many: bool) -> None:
    shop.make_topic()
    consumer = shop.consumer(retry=QUICK, batch=10)
    shop.execute("CREATE TABLE accounts (owner text PRIMARY KEY)")
    shop.execute("INSERT INTO accounts VALUES ('1')")

    @consumer.on("Thing", many=many)
    def opened(events: Event | list[Event], connection: psycopg.Connection[Any]) -> None:
        for each in events if isinstance(events, list) else [events]:
            connection.execute("INSERT INTO accounts VALUES (%s)", (str(each.value["n"]),))
            write_effect(each, connection)

    shop.publish(*[event(n) for n in range(3)])
    with consuming(consumer):
        shop.wait_effects([0, 2])
        wait_for(lambda: consume(shop.bootstrap, [consumer.names.dead_letter]), what="it is parked")
    [letter] = letters(consume(shop.bootstrap, [consumer.names.dead_letter]))
    assert letter["__connect.errors.exception.class.name"] == "UniqueViolation"
    assert letter["cdc.attempts"] == "2"
    assert shop.execute("SELECT count(*) FROM processed_events") == [(2,)]


def test_what_postgres_names_is_said_and_no_value(shop: Line) -> None:
    shop.execute("CREATE TABLE goods (sku text PRIMARY KEY, pieces int CHECK (pieces >= 0))")
    for statement, said in (
        ("UPDATE stock SET pieces = 4711", " sqlstate=42P01 table=stock"),
        ("INSERT INTO goods VALUES ('canary', 1), ('canary', 2)", " sqlstate=23505 table=goods constraint=goods_pkey"),
        ("SELECT canary FROM goods", " sqlstate=42703"),
    ):
        with pytest.raises(psycopg.Error) as caught:
            shop.execute(statement)
        assert places(caught.value) == said


@pytest.mark.parametrize("spoil", ["COMMIT", "ROLLBACK", "swallow", "rollback exception"])
def test_a_handler_that_ends_the_transaction_is_told(shop: Line, spoil: str) -> None:
    shop.make_topic()
    consumer = shop.consumer(batch=5)

    @consumer.on("Thing")
    def spoiled(event: Event, connection: psycopg.Connection[Any]) -> None:
        write_effect(event, connection)
        if event.value["n"] != 1:
            return
        if spoil == "swallow":
            with pytest.raises(psycopg.errors.DivisionByZero):
                connection.execute("SELECT 1 / 0")
        elif spoil == "rollback exception":
            raise psycopg.Rollback
        else:
            connection.execute(spoil.encode())

    shop.publish(*[event(n) for n in range(3)])
    with consuming(consumer):
        wait_for(lambda: shop.committed() == 3, what="the poison is passed")
    if spoil == "COMMIT":
        # What it committed stays, once; the marker of the event behind it, which went along, was taken back.
        assert sorted(shop.effects()) == [0, 1, 2]
        return
    [letter] = letters(consume(shop.bootstrap, [consumer.names.dead_letter]))
    assert "transaction" in letter["__connect.errors.exception.message"]
    assert shop.effects() == [0, 2]


def test_listeners_of_one_event_are_independent_and_a_new_one_needs_no_change(shop: Line) -> None:
    shop.make_topic()
    consumer = shop.consumer(retry=QUICK)
    seen: list[tuple[str, int]] = []
    consumer.on("Thing", name="first")(lambda event: seen.append(("first", event.value["n"])))

    @consumer.on("Thing")
    async def second(event: Event, connection: psycopg.AsyncConnection[Any]) -> None:
        await connection.execute("SELECT 1")
        if event.attempt == 1 and event.value["n"] == 0:
            raise TimeoutError
        seen.append(("second", event.value["n"]))

    shop.publish(event(0), event(1))
    with consuming(consumer):
        wait_for(lambda: shop.committed() == 2, what="both are through")
    assert sorted(seen) == [("first", 0), ("first", 1), ("second", 0), ("second", 1)]
    markers = shop.execute("SELECT consumer_name, count(*) FROM processed_events GROUP BY 1 ORDER BY 1")
    assert markers == [(f"{shop.name}.first", 2), (f"{shop.name}.second", 2)]


def test_a_business_key_is_used_once_until_it_expires(shop: Line) -> None:
    shop.make_topic()
    consumer = shop.consumer(batch=10)
    consumer.on("Thing", unique="welcome:{n}", unique_for=3600)(write_effect)
    shop.publish(event(1, event_id="a"), event(1, event_id="b"), event(2, event_id="c"))
    with consuming(consumer):
        wait_for(lambda: shop.committed() == 3, what="all are through")
        assert shop.effects() == [1, 2]
        shop.execute("UPDATE processed_keys SET expires_at = now() WHERE business_key = 'welcome:1'")
        shop.publish(event(1, event_id="d"), event(2, event_id="e"))
        wait_for(lambda: shop.committed() == 5, what="all are through")
    assert shop.effects() == [1, 2, 1]


def test_what_need_not_be_kept_is_deleted_and_what_is_kept_too_short_is_warned_of(shop: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk, "PRUNE_S", 0.05)
    for module in (desk, inbox):
        monkeypatch.setattr(module, "PRUNE_ROWS", 2)
    shop.make_topic(retention_ms=str(7 * 24 * 3600 * 1000))
    said: list[str] = []
    consumer = shop.consumer(retention=timedelta(days=7), replay=timedelta(days=1), observer=shop.listening(said))
    consumer.on("Thing", name="write")(write_effect)
    others = "INSERT INTO processed_events SELECT %s, '/shop', n::text, now() - n * interval '1 day' FROM generate_series(5, 10) n"
    for marker in (f"{shop.name}.write", "somebody.else"):
        shop.execute(others, (marker,))
    shop.execute(
        "INSERT INTO processed_keys SELECT %s, n::text, now() + n * interval '1 day' FROM generate_series(-3, 3) n", (f"{shop.name}.write",)
    )
    kept = "SELECT consumer_name, count(*) FROM processed_events GROUP BY 1 ORDER BY 1"
    with consuming(consumer):
        expected = sorted([(f"{shop.name}.write", 2), ("somebody.else", 6)])
        wait_for(lambda: shop.execute(kept) == expected, what="what is older than seven days is gone, of ours")
        wait_for(lambda: shop.execute("SELECT count(*) FROM processed_keys") == [(3,)], what="so is what has expired")
    [warning] = [each for each in said if "inbox" in each]
    assert f"topic {shop.topic} holds events for 7 days" in warning
    assert "1 day, 0:00:00 of replay are promised" in warning


def test_high_water_by_sequence(shop: Line) -> None:
    shop.make_topic()
    consumer = shop.consumer(inbox="high-water", batch=10)
    consumer.on("Thing")(write_effect)
    # Read twice after a lost offset; a replay is old news; a dead letter of the pipeline that was driven again is not.
    shop.publish(event(1), event(3), event(1), event(3), event(3, ce_replay="replay:x"), event(2, ce_replay="redrive:x"), event(4))
    with consuming(consumer):
        wait_for(lambda: shop.committed() == 7, what="all are through")
    assert shop.effects() == [1, 3, 2, 4]
    assert shop.execute("SELECT count(*) FROM processed_events") == [(1,)]
    raised = shop.execute("SELECT sequence FROM consumer_high_water")
    assert raised == [(f"{1:04x}{4:016x}{0:08x}",)]


def made(name: str, sink: dict[str, Any], dsn: str, schemas: Path) -> Consumer:
    """The consumer of the windows, for a child and for this process."""
    consumer = Consumer(
        name, topics=[f"{name}.thing"], postgres=dsn, schemas=schemas, instance="a", create=CREATE, batch=2, retry=QUICK, **sink
    )

    @consumer.on("Thing")
    def write(event: Event, connection: psycopg.Connection[Any]) -> None:
        write_effect(event, connection)
        if event.value["n"] == 2:
            raise Unprocessable("poison")

    return consumer


WINDOWS = [pytest.param("kafka", window, id=f"kafka-{window.name.lower()}") for window in Window] + [
    pytest.param("redis", window, id=f"redis-{window.name.lower()}", marks=[pytest.mark.packages, *more])
    for window, more in {
        Window.RECEIVED: [pytest.mark.soak],
        Window.MARKED: [pytest.mark.soak],
        Window.APPLIED: [pytest.mark.soak],
        Window.COMMITTED: [],
        Window.PARKED: [],
        Window.OFFSET_SENT: [pytest.mark.soak],
    }.items()
]


@pytest.mark.parametrize(("anywhere", "window"), WINDOWS, indirect=["anywhere"])
def test_a_crash_in_each_window(anywhere: Line, window: Window) -> None:
    shop = anywhere
    shop.make_topic()
    shop.consumer()  # makes the tables
    arguments = (shop.name, shop.sink, shop.dsn, shop.schemas)
    shop.publish(*[event(n) for n in range(5)])
    killed_at(window, made, *arguments).wait_killed()
    with consuming(made(*arguments)):
        wait_for(lambda: shop.committed() == 5, 60, "all is settled")
    assert shop.effects() == [0, 1, 3, 4]
    assert len(shop.dead_letters()) == 1, "parked once"


@pytest.mark.parametrize("anywhere", ["kafka", REDIS, RABBITMQ], indirect=True)
def test_attempts_are_kept_over_a_restart(anywhere: Line) -> None:
    shop = anywhere
    shop.make_topic()
    attempts: list[int] = []

    def again(attempts_: int) -> Consumer:
        consumer = shop.consumer(retry=Retry.fixed(0.01, attempts_), instance="a")

        @consumer.on("Thing")
        def failing(event: Event) -> None:
            attempts.append(event.attempt)
            raise OSError

        return consumer

    shop.publish(event(1))
    patient = again(1000)
    with consuming(patient):
        wait_for(lambda: len(attempts) >= 3, what="it fails some times")
    wait_for(lambda: shop.execute("SELECT attempts FROM consumer_attempts"), what="they are written down")
    [(kept,)] = shop.execute("SELECT attempts FROM consumer_attempts")
    before = len(attempts)
    with consuming(again(kept + 1)):
        wait_for(shop.dead_letters, what="it is parked")
    assert attempts[before:] == [kept + 1]
    wait_for(lambda: not shop.execute("SELECT attempts FROM consumer_attempts"), what="they are forgotten")


RETRIED = [("kafka", "events"), ("kafka", "high-water"), pytest.param("redis", "events", marks=pytest.mark.packages)]


@pytest.mark.parametrize(("anywhere", "inbox"), RETRIED, indirect=["anywhere"])
def test_retry_topics_let_later_records_pass_and_keep_the_number(anywhere: Line, inbox: str) -> None:
    shop = anywhere
    shop.make_topic()
    consumer = shop.consumer(retry=Retry.listed(0.3, 0.3), retry_topics=True, instance="a", inbox=inbox)
    calls: list[tuple[int, int]] = []
    newer: list[tuple[int, bool]] = []

    @consumer.on("Thing")
    def handle(event: Event, connection: psycopg.Connection[Any]) -> None:
        calls.append((event.value["n"], event.attempt))
        if event.value["n"] == 0 or (event.value["n"] == 1 and event.attempt < 3):
            raise ConnectionError
        newer.append((event.value["n"], event.newer_applied))
        write_effect(event, connection)

    shop.publish(*[event(n) for n in range(4)])
    with consuming(consumer):
        shop.wait_effects([2, 3, 1], 60)
        wait_for(shop.dead_letters, what="the hopeless one is parked")
    assert [attempt for n, attempt in calls if n == 0] == [1, 2, 3]
    assert newer == [(2, False), (3, False), (1, True)], "the later attempt knows that it is late"
    wait_for(lambda: shop.execute("SELECT count(*) FROM consumer_parked") == [(1,)], what="what succeeded is looked out for no more")
    [letter] = letters(shop.dead_letters())
    assert (letter["cdc.attempts"], letter["__connect.errors.topic"]) == ("3", shop.topic)
    assert int(letter["__connect.errors.offset"]) == shop.first_offset()


def doubled(value: dict[str, int]) -> int:
    """A computation for a process of its own."""
    return 2 * value["n"]


def test_computations_and_priorities_with_workers(shop: Line) -> None:
    topics = {f"{shop.name}.mail": "low", f"{shop.name}.pay": "critical"}
    for topic in topics:
        shop.make_topic(name=topic)
        shop.publish(*[event(n, event_id=f"{topic}-{n}") for n in range(20)], topic=topic)
    consumer = shop.consumer(topics=topics, processes=1, workers=2, worker_limits={"low": 1}, batch=5)
    got: dict[str, list[int]] = {topic: [] for topic in topics}
    consumer.on("Thing", name="both", compute=doubled)(lambda event: got[event.topic].append(event.prepared))
    with consuming(consumer):
        wait_for(lambda: all(shop.committed(topic=topic) == 20 for topic in topics), 60, "both are through")
    assert list(got.values()) == [[2 * n for n in range(20)]] * 2


def test_fifty_orders_at_once_for_the_last_ten_pieces(shop: Line) -> None:
    shop.make_topic(partitions=4)
    shop.execute("CREATE TABLE stock (pieces int CHECK (pieces >= 0))")
    shop.execute("INSERT INTO stock VALUES (10)")
    shop.execute("CREATE TABLE refused (n int)")
    consumer = shop.consumer(workers=4, batch=10)

    @consumer.on("Thing")
    def reserve(event: Event, connection: psycopg.Connection[Any]) -> None:
        if connection.execute("UPDATE stock SET pieces = pieces - 1 WHERE pieces > 0").rowcount:
            write_effect(event, connection)
        else:
            connection.execute("INSERT INTO refused VALUES (%s)", (event.value["n"],))

    shop.publish(*[event(n, partition=n % 4) for n in range(50)])
    with consuming(consumer):
        wait_for(lambda: sum(shop.committed(number) for number in range(4)) == 50, 60, "all are through")
    refused = [n for (n,) in shop.execute("SELECT n FROM refused")]
    assert shop.execute("SELECT pieces FROM stock") == [(0,)]
    assert len(shop.effects()) == 10
    assert sorted([*shop.effects(), *refused]) == list(range(50))


def test_a_shared_breaker_holds_all_processes_and_one_probe_lets_all_go_on(shop: Line) -> None:
    shop.make_topic(partitions=2)
    down, calls = True, list[int]()

    def member() -> Consumer:
        made = shop.consumer(retry=Retry.fixed(0.02, attempts=50))
        made.breaker("mail", errors=(ConnectionError,), failures=3, open_s=0.4, shared=True)

        @made.on("Thing", breaker="mail")
        def send(event: Event, connection: psycopg.Connection[Any]) -> None:
            calls.append(event.partition)
            if down:
                raise ConnectionError
            write_effect(event, connection)

        return made

    with consuming(member(), member()):
        shop.publish(*[event(n) for n in range(4)])
        wait_for(lambda: shop.execute("SELECT 1 FROM consumer_breakers") and len(calls) >= 5, 60, "it is open, and has probed twice")
        shop.publish(*[event(n, partition=1) for n in range(4, 8)])
        down = False
        wait_for(lambda: shop.committed(0) == 4 and shop.committed(1) == 4, 60, "all are through")
    assert sorted(shop.effects()) == list(range(8))
    assert shop.execute("SELECT * FROM consumer_breakers") == []


def test_two_processes_with_one_instance_name(anywhere: Line) -> None:
    shop = anywhere
    shop.make_topic()
    first, second = (shop.consumer(instance="a") for _ in range(2))
    for consumer in (first, second):
        consumer.on("Thing")(write_effect)
    shop.publish(event(1))
    refused: list[SinkRefused] = []

    def work() -> None:
        try:
            first.run()
        except SinkRefused as error:
            refused.append(error)

    older = threading.Thread(target=work)
    older.start()
    shop.wait_effects([1])
    with consuming(second):
        older.join(60)
        shop.publish(event(2))
        shop.wait_effects([1, 2])
    assert "instance" in refused[0].fix
