"""What Redis, its operators and other clients do to consumers of its streams."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cdc.consumer import Event, Retry
from cdc.devstack.redis import RedisServer
from cdc.redis.holder import FETCH_BYTES, HELD_BYTES
from tests.consumers import RedisLine, consuming, event, redis_line, write_effect
from tests.integration.test_redis_consumer import Watching, numbers
from tests.streams import new_redis
from tests.waiting import wait_for

pytestmark = [pytest.mark.servers, pytest.mark.packages]

QUICK = Retry.fixed(0.02, attempts=2)
BROKEN = {"ce_type": "Thing", "data": b"\0\0\0\0\1\xff"}


@pytest.fixture
def own(unique: str, database: str, tmp_path: Path) -> Iterator[RedisLine]:
    """A line on a server that a test may break."""
    with new_redis(tmp_path / "redis") as server:
        yield redis_line(unique, server.url, database, tmp_path)


def test_a_redis_that_is_full_is_read_and_acknowledged(own: RedisLine) -> None:
    own.make_topic()
    first, second = Watching(), Watching()
    consumers = [own.consumer(observer=watching) for watching in (first, second)]
    for each in consumers:
        each.on("Thing")(write_effect)
    own.publish(*[event(n) for n in range(20)])
    with own.client as client:
        with consuming(consumers[0]):
            wait_for(lambda: numbers(first, own.topic), what="it is a member")
            client.config_set("maxmemory", 1)
            key = f"cdc.{own.name}.members"
            [(_, lives)] = client.zrange(key, 0, -1, withscores=True)
            wait_for(lambda: client.zrange(key, 0, -1, withscores=True)[0][1] > lives, what="it lives on")
            wait_for(lambda: own.committed() == 20, what="all is acknowledged, so that it can be trimmed")
            assert not first.said
        with consuming(consumers[1]):
            wait_for(lambda: numbers(second, own.topic), what="one that is started now reads, too")
        assert not second.said


def test_a_stream_that_is_deleted_while_it_is_full_is_read_again(own: RedisLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cdc.consumer.loop.FIRST_S", 0.1)
    own.make_topic()
    watching, held, entered = Watching(), threading.Event(), threading.Event()
    consumer = own.consumer(observer=watching, in_flight=4, retry=QUICK)

    @consumer.on("Thing")
    def write(event: Event, connection: psycopg.Connection[Any]) -> None:
        entered.set()
        assert held.wait(30)
        if event.value["n"] == 0:
            raise ValueError
        write_effect(event, connection)

    own.publish(*[event(n) for n in range(10)])
    with consuming(consumer), own.client as client:
        assert entered.wait(30)
        client.delete(own.topic)
        wait_for(
            lambda: any("made anew" in each for each in watching.said), what="it sees that the stream is gone, though it reads nothing"
        )
        held.set()
        own.publish(*[event(n) for n in range(10)])
        own.wait_effects(range(1, 10))
        client.script_flush()
        client.client_kill_filter(_type="normal", skipme=True)
        own.publish(event(10))
        own.wait_effects(range(1, 11))
    assert len(own.dead_letters()) == 1


def test_what_somebody_else_writes_neither_stops_a_stream_nor_its_reader(
    unique: str, redis_server: RedisServer, database: str, tmp_path: Path
) -> None:
    shop = redis_line(unique, redis_server.url, database, tmp_path)
    shop.make_topic()
    consumer = shop.consumer(retry=QUICK)
    consumer.on("*", name="write")(write_effect)
    strange: list[dict[Any, Any]] = [
        {**BROKEN, "timestamp": "9" * 5_000},
        {**BROKEN, "cdc.origin": "a/\u00b2/1"},
        {**BROKEN, "cdc.origin": "a/1/" + "9" * 5_000},
        {**{f"f{n}": "" for n in range(5_000)}, **BROKEN},
        {b"\xff": b"\xff", "": "", **BROKEN},
        {**BROKEN, "ce_id": "x" * 300_000},
    ]
    with shop.client as client:
        now_ms = client.time()[0] * 1000
        # As a member leaves it that died before Redis's clock was set back by an hour.
        client.zadd(f"cdc.{shop.name}.members", {"dead.token": now_ms + 3_600_000})
        client.hset(f"cdc.{shop.name}.leases", mapping={f"lease:{shop.topic}": "dead.token", "reads:dead.token": shop.topic})
        for each in strange:
            client.xadd(shop.topic, each)
    shop.publish(event(1))
    with consuming(consumer):
        shop.wait_effects([1])
        wait_for(lambda: shop.committed() == len(strange) + 1, what="nothing is left")
    with shop.client as client:
        assert client.xlen(f"cdc.{shop.name}.dead-letter") == len(strange)


def test_entries_that_are_suddenly_large_are_read_a_few_at_a_time(own: RedisLine) -> None:
    """Small ones before them promise nothing: neither a script nor a member takes more bytes than they may."""
    own.make_topic()
    held, entered = threading.Event(), threading.Event()
    consumer = own.consumer()

    @consumer.on("Thing")
    def write(event: Event, connection: psycopg.Connection[Any]) -> None:
        entered.set()
        assert held.wait(30)
        write_effect(event, connection)

    large = 1024 * 1024
    own.publish(*[event(n, padding="x" * (large if n >= 20 else 0)) for n in range(80)])
    with consuming(consumer), own.client as client:
        assert entered.wait(30)

        def taken() -> int:
            """Bytes that the member has, about."""
            return (int(client.xpending(own.stream(), own.name)["pending"]) - 20) * large

        wait_for(lambda: taken() >= HELD_BYTES, what="it takes what it may")
        key = f"cdc.{own.name}.members"
        [(_, lives)] = client.zrange(key, 0, -1, withscores=True)
        wait_for(lambda: client.zrange(key, 0, -1, withscores=True)[0][1] > lives + 1000, what="it had time to take more")
        assert taken() <= HELD_BYTES + FETCH_BYTES + 16 * large
        held.set()
        own.wait_effects(range(80))
