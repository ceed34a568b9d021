"""Consumers of Redis Streams: who reads a stream, what becomes of members and servers that die, and what is said of it.

What they share with Kafka's is in test_consumer.py, with the same handlers.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cdc.app import consuming as consuming_from
from cdc.consumer import Consumer, Event, Retry
from cdc.consumer.lane import Place
from cdc.devstack.redis import SENTINEL, RedisServer
from cdc.errors import ConfigurationError
from cdc.observe.consumers import ConsumerMetrics
from cdc.settings import load
from cdc.testing.windows import running
from tests.consumers import RedisLine, consuming, event, letters, redis_line, write_effect
from tests.streams import RedisPipeline, new_redis
from tests.waiting import wait_for

pytestmark = [pytest.mark.servers, pytest.mark.packages]

QUICK = Retry.fixed(0.02, attempts=2)


@pytest.fixture
def shop(unique: str, redis_server: RedisServer, database: str, tmp_path: Path) -> RedisLine:
    return redis_line(unique, redis_server.url, database, tmp_path)


class Watching(ConsumerMetrics):
    """Knows its places, and what was said."""

    def __init__(self) -> None:
        super().__init__()
        self.places: set[Place] = set()
        self.said: list[str] = []
        self.lag: Mapping[Place, int] = {}

    def assigned(self, consumer: str, places: Sequence[Place]) -> None:
        super().assigned(consumer, places)
        self.places |= set(places)

    def revoked(self, consumer: str, places: Sequence[Place], *, lost: bool) -> None:
        super().revoked(consumer, places, lost=lost)
        self.places -= set(places)

    def hitch(self, consumer: str, what: str) -> None:
        super().hitch(consumer, what)
        self.said.append(what)

    def turned(self, consumer: str, state: Mapping[str, Any]) -> None:
        super().turned(consumer, state)
        self.lag = state["lag"]


def numbers(watching: Watching, topic: str) -> set[int]:
    """Which streams of a topic a member has."""
    return {number for name, number in watching.places if name == topic}


def slow(name: str, sink: dict[str, Any], dsn: str, schemas: Path) -> Consumer:
    """A member whose handlers take a while."""
    made = Consumer(name, topics=[f"{name}.thing"], postgres=dsn, schemas=schemas, batch=2, **sink)

    @made.on("Thing", name="write")
    def write(event: Event, connection: psycopg.Connection[Any]) -> None:
        connection.execute("SELECT pg_sleep(0.02)")
        write_effect(event, connection)

    return made


@pytest.mark.parametrize("number", [pytest.param(signal.SIGKILL, marks=pytest.mark.soak), signal.SIGSTOP], ids=["killed", "frozen"])
def test_what_a_dead_member_had_is_claimed_in_order_and_it_does_nothing_more(shop: RedisLine, number: signal.Signals) -> None:
    shop.make_topic(partitions=2)
    shop.consumer()  # makes the tables
    shop.publish(*[event(n, partition=n % 2) for n in range(60)])
    sink = {"redis": {**shop.sink["redis"], "session_s": 1.0}}
    child = running(slow, shop.name, sink, shop.dsn, shop.schemas)
    try:
        wait_for(lambda: len(shop.effects()) >= 4, 60, "it works")
        pid = child.process.pid
        assert pid is not None
        os.kill(pid, number)
        with shop.client as client:
            pending = [client.xpending(shop.stream(each), shop.name)["pending"] for each in range(2)]
        assert any(pending), "it holds entries that it has not acknowledged"
        watching = Watching()
        survivor = shop.consumer(batch=50, observer=watching)
        survivor.on("Thing", name="write")(write_effect)
        with consuming(survivor):
            wait_for(lambda: numbers(watching, shop.topic) == {0, 1}, 60, "the other one has both streams")
            if number is signal.SIGSTOP:  # its database transactions are open, and it has more records in its hands
                os.kill(pid, signal.SIGCONT)
            wait_for(lambda: [shop.committed(each) for each in range(2)] == [30, 30], 60, "all is through")
            assert number is signal.SIGKILL or child.terminate() == 0
    finally:
        child.kill()
    for parity in range(2):
        assert [n for n in shop.effects() if n % 2 == parity] == list(range(parity, 60, 2)), "in order within a stream"
    with shop.client as client:
        names = {each["name"].decode() for each in client.xinfo_consumers(shop.stream(), shop.name)}
    assert len(names) == 1, "who is gone is no member"


def test_members_share_streams_and_give_them_back_when_another_one_comes(shop: RedisLine) -> None:
    shop.make_topic(partitions=4)
    first, second = Watching(), Watching()
    held = threading.Event()

    def member(watching: Watching) -> Consumer:
        made = shop.consumer(observer=watching, workers=4)

        @made.on("Thing")
        def write(event: Event, connection: psycopg.Connection[Any]) -> None:
            write_effect(event, connection)
            assert held.wait(30)

        return made

    shop.publish(*[event(n, partition=n % 4) for n in range(40)])
    with consuming(member(first)):
        wait_for(lambda: numbers(first, shop.topic) == {0, 1, 2, 3}, what="one has all")
        with consuming(member(second)):
            held.set()
            wait_for(lambda: len(numbers(first, shop.topic)) == len(numbers(second, shop.topic)) == 2, what="each has half")
            assert not numbers(first, shop.topic) & numbers(second, shop.topic)
            wait_for(lambda: sum(shop.committed(each) for each in range(4)) == 40, what="all is through")
        wait_for(lambda: numbers(first, shop.topic) == {0, 1, 2, 3}, what="who leaves gives back at once")
    for number in range(4):
        assert [n for n in shop.effects() if n % 4 == number] == list(range(number, 40, 4))
    assert not any("session" in each for each in (*first.said, *second.said))


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[RedisServer]:
    """A server that a test may kill."""
    with new_redis(tmp_path / "redis") as server:
        yield server


def test_a_redis_that_is_killed_or_loses_everything_is_waited_for(
    unique: str, own_redis: RedisServer, database: str, tmp_path: Path
) -> None:
    shop = redis_line(unique, own_redis.url, database, tmp_path)
    shop.make_topic()
    watching = Watching()
    consumer = shop.consumer(observer=watching, batch=5)
    consumer.on("Thing")(write_effect)
    shop.publish(*[event(n) for n in range(50)])
    with consuming(consumer):
        wait_for(lambda: len(shop.effects()) >= 5, what="it works")
        own_redis.kill()
        wait_for(lambda: watching.said, what="it says so")
        assert watching.live
        own_redis.start()
        shop.publish(*[event(n) for n in range(50, 60)])
        shop.wait_effects(range(60))
        wait_for(lambda: shop.committed() == 60, what="all is acknowledged")
        with shop.client as client:
            client.flushall()
        shop.publish(*[event(n) for n in range(30, 70)])
        shop.wait_effects(range(70))
        wait_for(lambda: shop.committed() == 40, what="the group is there again")
    assert watching.ready


def test_little_is_read_ahead_and_a_long_handler_keeps_its_stream(shop: RedisLine) -> None:
    shop.make_topic()
    watching, held, entered = Watching(), threading.Event(), threading.Event()
    consumer = shop.consumer(observer=watching, in_flight=10, batch=5)

    @consumer.on("Thing")
    def write(event: Event, connection: psycopg.Connection[Any]) -> None:
        write_effect(event, connection)
        entered.set()
        assert held.wait(30)

    shop.publish(*[event(n) for n in range(100)])
    with consuming(consumer), shop.client as client:
        assert entered.wait(30)
        leases = f"cdc.{shop.name}.leases"
        [token] = [value for name, value in client.hgetall(leases).items() if name == f"lease:{shop.topic}".encode()]
        first = client.zscore(f"cdc.{shop.name}.members", token)
        wait_for(lambda: (client.zscore(f"cdc.{shop.name}.members", token) or 0) > first + 1000, what="it lives while it handles")
        assert client.xpending(shop.stream(), shop.name)["pending"] <= 20
        tells = any("lag" in each for each in client.xinfo_groups(shop.stream()))  # since Redis 7.0
        wait_for(lambda: not tells or watching.lag.get((shop.topic, 0)) == 100, what="the lag is told")
        held.set()
        wait_for(lambda: shop.committed() == 100, what="all is through")
        wait_for(lambda: not tells or watching.lag.get((shop.topic, 0)) == 0, what="no lag is left")
    assert not watching.said


def test_what_cannot_be_read_is_parked_and_what_cannot_be_parked_stops_its_stream(shop: RedisLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cdc.consumer.loop.FIRST_S", 0.01)
    shop.make_topic()
    letter = f"cdc.{shop.name}.dead-letter"
    consumer = shop.consumer(retry=QUICK, batch=10)
    consumer.on("*", name="write")(write_effect)
    shop.publish(event(9), event(0))
    with shop.client as client:
        client.xgroup_create(shop.topic, shop.name, "0")
        [[_, [[gone, _]]]] = client.xreadgroup(shop.name, "dead", {shop.topic: ">"}, count=1)
        client.xdel(shop.topic, gone)  # what a dead member held, and somebody deleted
        client.xadd(shop.topic, {"somebody": "else's"})  # no event; a tombstone without a type
        client.xadd(shop.topic, {"ce_type": "Thing", "data": b"\0\0\0\0\1\xff"})
    shop.publish(event(3))
    with consuming(consumer):
        shop.wait_effects([0, 3])
        wait_for(lambda: len(shop.dead_letters()) == 2, what="both are parked")
        wait_for(lambda: shop.committed() == 4, what="nothing is left on the list")
    assert {each["cdc.reason"] for each in letters(shop.dead_letters())} == {"schema", "handler"}
    with shop.client as client:
        client.delete(letter)
        client.set(letter, "no stream")
        watching = Watching()
        stuck = shop.consumer(retry=QUICK, observer=watching)
        stuck.on("Thing", name="write")(write_effect)
        client.xadd(shop.topic, {"ce_type": "Thing", "data": b"\0\0\0\0\1\xff"})
        shop.publish(event(4))
        with consuming(stuck):
            wait_for(lambda: watching._states and not watching.ready, what="the stream stops, and health tells")
        assert shop.committed() == 4
        client.delete(letter)
    with consuming(consumer):
        shop.wait_effects([0, 3, 4])
    assert len(shop.dead_letters()) == 1


def test_a_part_of_a_topics_streams_is_refused(shop: RedisLine) -> None:
    shop.make_topic(partitions=4)
    shop.publish(event(1, partition=3))
    for streams in (1, 2):
        consumer = shop.consumer(redis={"streams": streams})
        consumer.on("Thing")(write_effect)
        with pytest.raises(ConfigurationError, match="other streams"):
            consumer.run()


def test_a_new_group_may_begin_at_the_end(shop: RedisLine) -> None:
    shop.make_topic()
    wrong = shop.consumer(topics=["a topic"])
    wrong.on("Thing")(write_effect)
    with pytest.raises(ConfigurationError, match="name of a stream"):
        wrong.run()
    shop.publish(event(1))
    watching = Watching()
    consumer = shop.consumer(redis={"start": "end"}, observer=watching)
    consumer.on("Thing")(write_effect)
    with consuming(consumer):
        wait_for(lambda: numbers(watching, shop.topic), what="it reads")
        shop.publish(event(2))
        shop.wait_effects([2])


def url_with_the_pages_rights(shop: RedisLine) -> str:
    """Make a user of the line's name with the rights that the page gives to `inventory`, and return its URL."""
    page = (Path(__file__).parents[2] / "docs" / "redis.md").read_text(encoding="utf-8")
    [line] = re.findall(r"^ACL SETUSER inventory (.*)$", page, re.MULTILINE)
    rights = line.replace("cdc.inventory.", f"cdc.{shop.name}.").replace("outbox.event.", f"{shop.name}.").split()
    with shop.client as client:
        version = tuple(int(part) for part in client.info()["redis_version"].split("."))
        rights = [each for each in rights if each != "+client|setinfo" or version >= (7, 2)]
        if version < (7, 0):  # rights to a single subcommand of any command came with it
            rights = [each.partition("|")[0] for each in rights]
        client.execute_command("ACL", "SETUSER", shop.name, *rights)
    return shop.bootstrap.replace("redis://", f"redis://{shop.name}:secret@")


def test_the_pages_rights_are_enough_and_every_command_sees_what_a_consumer_did(streams: RedisPipeline) -> None:
    shop = RedisLine(streams.name, streams.url, streams.dsn, streams.folder / "schemas")
    streams.set(topics__route=f"{shop.name}.{{aggregatetype}}")
    streams.init()
    streams.started()
    url = url_with_the_pages_rights(shop)
    assert consuming_from(load(streams.write()))["redis"]["url"] == streams.url
    consumer = shop.consumer(redis={"url": url}, retry_topics=True, retry=Retry.fixed(0.02, attempts=2))
    mended = False

    @consumer.on("Thing")
    def write(event: Event, connection: psycopg.Connection[Any]) -> None:
        if event.value["n"] == 3 and not mended:
            raise ConnectionError
        assert event.newer_applied is (event.value["n"] == 3)
        write_effect(event, connection)

    with consuming(consumer):
        streams.insert(1, 5)
        shop.wait_effects([1, 2, 4, 5])
        wait_for(shop.dead_letters, what="one is parked")
    [letter] = json.loads(streams.here("dead-letters", "list", "--consumer", shop.name, "--json").out.splitlines()[-1])["dead_letters"]
    assert (letter["reason"], letter["topic"]) == ("handler", shop.topic)
    assert streams.here("dead-letters", "show", letter["id"], "--consumer", shop.name, "--payload").code == 0
    redriven = streams.here("dead-letters", "redrive", letter["id"], "--consumer", shop.name)
    assert redriven.code == 0, redriven.err
    assert "newer events" in redriven.err
    mended = True
    with consuming(consumer):
        shop.wait_effects([1, 2, 4, 5, 3])
    listed = json.loads(streams.here("dead-letters", "list", "--consumer", shop.name, "--json").out.splitlines()[-1])
    assert listed["open"] == 0
    streams.insert(6, 7)
    with consuming(consumer):
        shop.wait_effects([1, 2, 4, 5, 3, 6, 7])
        in_use = streams.here("offsets", "reset", "--group", shop.name, "--to-earliest", "--yes")
        assert in_use.code == 5
        assert "in use" in in_use.line
    [[sixth]] = shop.execute("SELECT event_id FROM effects WHERE n = 6")
    moved = streams.here("offsets", "reset", "--group", shop.name, "--to-event", sixth, "--yes", "--json")
    assert moved.code == 0, moved.err
    again = shop.consumer()
    again.on("Thing", name="another")(write_effect)
    with consuming(again):
        shop.wait_effects([1, 2, 4, 5, 3, 6, 7, 6, 7])
    with streams.client as client:
        client.acl_deluser(shop.name)
    streams.stop()


@pytest.mark.soak
def test_a_consumer_follows_the_replica_that_sentinel_promotes(unique: str, database: str, tmp_path: Path) -> None:
    with new_redis() as primary, new_redis(settings={"replicaof": f"127.0.0.1 {primary.port}"}) as replica:
        shop = redis_line(unique, primary.url, database, tmp_path)
        shop.make_topic()
        with new_redis(watches=primary) as sentinel, RedisLine("", sentinel.url, "", tmp_path).client as asked:
            wait_for(lambda: asked.sentinel_master(SENTINEL)["num-slaves"] == 1, what="the Sentinel knows the replica")
            consumer = shop.consumer(redis={"sentinel": f"{SENTINEL}@127.0.0.1:{sentinel.port}"})
            consumer.on("Thing")(write_effect)
            shop.publish(*[event(n) for n in range(20)])
            with consuming(consumer):
                shop.wait_effects(range(20))
                with shop.client as client:
                    client.wait(1, 10_000)
                primary.kill()
                wait_for(lambda: asked.sentinel_master(SENTINEL)["port"] == replica.port, 30, "the replica is promoted")
                shop.bootstrap = replica.url
                shop.publish(*[event(n) for n in range(20, 40)])
                shop.wait_effects(range(40))


@pytest.mark.soak
def test_members_that_are_killed_and_frozen_at_random_and_a_redis_that_is_restarted(
    unique: str, own_redis: RedisServer, database: str, tmp_path: Path
) -> None:
    shop = redis_line(unique, own_redis.url, database, tmp_path)
    shop.make_topic(partitions=4)
    shop.consumer()  # makes the tables
    chance, size = random.Random(11), 4_000
    arguments = (shop.name, shop.sink, shop.dsn, shop.schemas)
    members = [running(slow, *arguments) for _ in range(3)]
    try:
        for start in range(0, size, 200):
            shop.publish(*[event(n, partition=n % 4) for n in range(start, start + 200)])
            before = len(shop.effects())
            wait_for(lambda before=before: len(shop.effects()) > before + 20, 60, "some of it is done")  # type: ignore[misc]
            victim = chance.randrange(3)
            pid = members[victim].process.pid
            assert pid is not None
            if chance.random() < 0.5:
                members[victim].kill()
                members[victim] = running(slow, *arguments)
            else:
                os.kill(pid, signal.SIGSTOP)
                before = len(shop.effects())
                wait_for(lambda before=before: len(shop.effects()) > before + 20, 60, "the others go on")  # type: ignore[misc]
                os.kill(pid, signal.SIGCONT)
            if chance.random() < 0.2:
                own_redis.kill()
                own_redis.start()
        wait_for(lambda: sum(shop.committed(each) for each in range(4)) == size, 300, "all is through")
    finally:
        for member in members:
            member.kill()
    for number in range(4):
        assert [n for n in shop.effects() if n % 4 == number] == list(range(number, size, 4)), "once, and in order within a stream"
