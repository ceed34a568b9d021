"""The bus in memory keeps a consumer's contract, so that what passes here passes on the servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest

from cdc.consumer import Consumer, Event, Retry, TryAgain, Unprocessable
from cdc.errors import ConfigurationError
from cdc.testing.bus import Bus

KAFKA = {"bootstrap.servers": "127.0.0.1:9"}


def consumer(**settings: object) -> Consumer:
    return Consumer("shop", topics=["orders"], kafka=KAFKA, **settings)  # type: ignore[arg-type]


def test_each_event_once_in_order_for_each_listener() -> None:
    shop = consumer(batch=10)
    got: list[object] = []
    shop.on("OrderPlaced", name="first")(lambda event: got.append(("first", event.value["n"], event.key)))

    @shop.on("OrderPlaced")
    async def second(event: Event) -> None:
        got.append(("second", event.value["n"]))

    bus = Bus(shop)
    for n in range(3):
        bus.publish("OrderPlaced", {"n": n}, key="k", event_id=str(n))
    bus.publish("OrderPlaced", {"n": 1}, key="k", event_id="1")
    bus.publish("Other", {"n": 9})
    bus.run()
    assert sorted(map(str, got)) == sorted(map(str, [*((("first", n, "k")) for n in range(3)), *(("second", n) for n in range(3))]))
    bus.again()
    bus.run()
    assert len(got) == 6
    assert [event.value["n"] for name, event in bus.log if name == "first"] == [0, 1, 2]


def test_a_handler_of_lists_gets_what_is_new_and_a_failing_event_is_split_off() -> None:
    shop = consumer(batch=10, retry=Retry.listed(1))
    lists: list[list[int]] = []

    @shop.on("T", many=True)
    def handle(events: list[Event]) -> None:
        numbers = [event.value["n"] for event in events]
        if 3 in numbers:
            raise ConnectionError
        lists.append(numbers)

    bus = Bus(shop)
    for n in (0, 1, 1):
        bus.publish("T", {"n": n}, event_id=str(n))
    bus.run()
    assert lists == [[0, 1]]
    for n in (1, 2, 3, 4):
        bus.publish("T", {"n": n}, event_id=str(n))
    bus.run()
    assert lists == [[0, 1], [2], [4]]
    [letter] = bus.parked
    assert dict(letter.headers)["cdc.attempts"] == b"2"


def test_field_case_130_thousands_of_attempts_overflow_nothing() -> None:
    shop = consumer(retry=Retry.exponential(0.1, cap_s=0.005, attempts=5_000))
    calls: list[int] = []

    @shop.on("T")
    def handle(event: Event) -> None:
        calls.append(event.attempt)
        if event.attempt < 2_000:
            raise ConnectionError

    bus = Bus(shop)
    bus.publish("T", {})
    bus.run()
    assert calls == list(range(1, 2_001))
    assert 0 < bus.now < 2_000 * 0.005
    assert bus.parked == []


def test_resources_are_open_while_it_runs_and_closed_in_the_reverse_order() -> None:
    shop = consumer()
    told: list[str] = []

    @contextmanager
    def mail() -> Iterator[str]:
        told.append("mail opens")
        yield "mail"
        told.append("mail closes")

    @asynccontextmanager
    async def pool() -> AsyncIterator[asyncio.AbstractEventLoop]:
        told.append("pool opens")
        yield asyncio.get_running_loop()
        told.append("pool closes")

    post, connections = shop.resource(mail), shop.resource(pool)

    @shop.on("T")
    async def handle(event: Event) -> None:
        told.append(f"{event.type} by {post()}, {connections() is asyncio.get_running_loop()}")

    bus = Bus(shop)
    bus.publish("T", {})
    bus.run()
    assert told == ["mail opens", "pool opens", "T by mail, True", "pool closes", "mail closes"]
    with pytest.raises(RuntimeError, match="while its consumer runs"):
        post()
    bus.run()
    assert told[-4:] == ["mail opens", "pool opens", "pool closes", "mail closes"]


def test_both_kinds_of_handlers_keep_the_order_of_a_partition() -> None:
    shop = consumer(batch=10)
    got: list[tuple[str, int]] = []
    shop.on("Undone", name="undo")(lambda event: got.append(("undo", event.value["n"])))

    @shop.on("Done")
    async def do(event: Event) -> None:
        got.append(("do", event.value["n"]))

    bus = Bus(shop)
    for n in range(3):
        bus.publish("Done", {"n": n})
        bus.publish("Undone", {"n": n})
    bus.run()
    assert got == [(name, n) for n in range(3) for name in ("do", "undo")]


@pytest.mark.parametrize("topics", [False, True])
def test_retries_with_their_delays_in_place_or_by_topics(topics: bool) -> None:
    shop = consumer(retry=Retry.listed(10, 30), retry_topics=topics)
    calls: list[tuple[int, int]] = []

    @shop.on("T")
    def handle(event: Event) -> None:
        calls.append((event.value["n"], event.attempt))
        if event.value["n"] == 1 and event.attempt < 3:
            raise ConnectionError

    bus = Bus(shop)
    bus.publish("T", {"n": 1}, key="a")
    bus.publish("T", {"n": 2}, key="a")
    bus.run()
    assert calls == ([(1, 1), (2, 1), (1, 2), (1, 3)] if topics else [(1, 1), (1, 2), (1, 3), (2, 1)])
    assert bus.now == pytest.approx(40, abs=1)
    assert bus.parked == []


def test_dead_letters_and_redrives() -> None:
    shop = consumer()
    broken = [True]

    @shop.on("T")
    def handle(event: Event) -> None:
        if broken[0] and event.value["n"] == 1:
            raise Unprocessable("no such customer")

    bus = Bus(shop)
    for n in range(3):
        bus.publish("T", {"n": n}, event_id=str(n))
    bus.run()
    [letter] = bus.parked
    assert dict(letter.headers)["__connect.errors.exception.message"] == b"no such customer"
    assert [event.value["n"] for _, event in bus.log] == [0, 2]
    broken[0] = False
    bus.redrive()
    bus.run()
    assert (bus.parked, bus.log[-1][1].value, bus.log[-1][1].replay) == ([], {"n": 1}, "redrive:1")


def test_an_outage_opens_the_breaker_and_parks_nothing() -> None:
    shop = consumer(retry=Retry.fixed(1, attempts=3))
    shop.breaker("mail", errors=(ConnectionError,), failures=2, open_s=300)
    calls: list[float] = []

    @shop.on("T", breaker="mail")
    def send(_: Event) -> None:
        calls.append(bus.now)
        if bus.now < 2_000:
            raise ConnectionError

    bus = Bus(shop)
    for _ in range(3):
        bus.publish("T", {})
    bus.run()
    assert bus.parked == []
    assert len(bus.log) == 3
    assert len(calls) < 15, "once in 300 s while it is down"


def test_what_a_handler_asks_for_and_what_nobody_can_read() -> None:
    shop = consumer()
    times: list[float] = []

    @shop.on("T", compute=len)
    def handle(event: Event) -> None:
        times.append(bus.now)
        assert event.prepared == 1
        if event.attempt == 1:
            raise TryAgain(42)

    bus = Bus(shop)
    bus.publish("T", {"n": 1})
    bus.publish("T", b"", headers={"content-type": "application/json"})
    bus.run()
    assert times == [0, 42]
    assert len(bus.parked) == 1


def test_a_record_that_never_ends_is_told() -> None:
    shop = consumer(retry=Retry.fixed(1, attempts=10**9))
    shop.on("T", name="x")(lambda event: event.no_such_thing)
    bus = Bus(shop)
    bus.publish("T", {})
    with pytest.raises(AssertionError, match="not at its end"):
        bus.run()


@pytest.mark.parametrize(
    ("declare", "words"),
    [
        (lambda shop: shop.on("T", breaker="mail")(print), "breaker"),
        (lambda shop: shop.on("T", unique="welcome:{id}")(lambda event: event), "usable name"),
        (lambda shop: shop.on("T", name="x", unique="welcome:{id}")(lambda event: event), "no database"),
        (lambda shop: shop.on("T", name="x", unique_for=5)(lambda event: event), "without unique"),
        (lambda shop: shop.on("T", name="x")(lambda: None), "takes 0 arguments"),
        (lambda shop: [shop.on("T", name="x")(lambda event: event) for _ in range(2)], "declared twice"),
        (lambda shop: shop.run(), "no handler"),
        (lambda _: consumer(inbox="magic", postgres="postgresql://x"), "cannot be 'magic'"),
        (lambda _: consumer(after_parked="block"), "needs a database"),
        (lambda _: consumer(unparkable="drop"), "cannot be 'drop'"),
        (lambda _: Consumer("a b", topics=["x"], kafka=KAFKA), "cannot be called"),
        (lambda _: Consumer("a", topics={"x": "urgent"}, kafka=KAFKA), "unknown priority"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_where_it_is_made(declare: object, words: str) -> None:
    assert callable(declare)
    with pytest.raises(ConfigurationError, match=words) as raised:
        declare(consumer())
    assert raised.value.fix
