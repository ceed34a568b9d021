"""What the script in Redis refuses, takes back, trims and waits for: the publisher alone, on a real server."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from cdc.devstack.redis import RedisServer
from cdc.errors import CdcError, ConfigurationError, Fenced, InvalidEvent, Poisoned, Retriable, SinkRefused
from cdc.event import Record
from cdc.position import Existing, Fingerprint, Lsn, Position
from cdc.redis import publisher
from cdc.redis.entry import number_of
from cdc.redis.letters import RedisLetters
from cdc.redis.publisher import FULL_BYTES, Options, RedisPublisher
from cdc.redis.reader import RedisReader
from cdc.resilience.call import nobody_waits
from tests.streams import new_redis, running_redis

pytestmark = [pytest.mark.servers, pytest.mark.packages]


@pytest.fixture(scope="module")
def spare() -> Iterator[RedisServer]:
    """A server whose settings a test may change."""
    yield from running_redis()


def record(topic: str, value: bytes, key: bytes = b"k") -> Record:
    return Record(topic, key, value, [("ce_id", b"1")], 1_700_000_000_000)


class World:
    """One pipeline's publisher, and a plain client."""

    def __init__(self, url: str, **options: object) -> None:
        self.name = f"r{uuid.uuid4().hex[:12]}"
        self.position_key = f"_cdc.{self.name}.position"
        self.topic = f"{self.name}.events"
        self.options = dataclasses.replace(Options(url, maxlen=0), **options)  # type: ignore[arg-type]  # by their names
        self.client = redis.Redis.from_url(url, protocol=2)
        self.publishers: list[RedisPublisher] = []
        first = self.publisher()
        first.positions.create(1, 1, nobody_waits)
        first.recover(nobody_waits)
        first.route(self.topic, nobody_waits)

    def publisher(self, **options: object) -> RedisPublisher:
        chosen = dataclasses.replace(self.options, **options)  # type: ignore[arg-type]  # by their names
        made = RedisPublisher(name=self.name, options=chosen, position_key=self.position_key, on_partition_change="stop")
        self.publishers.append(made)
        return made

    def position(self, end_lsn: int) -> Position:
        fingerprint = Fingerprint(1, 2, (), Lsn(0))
        return Position(self.name, 1, "7", ((1, Lsn(0)),), "s", fingerprint, "k", Lsn(end_lsn), 0, "none", None, Existing("none", ""))

    def commit(self, end_lsn: int, *values: bytes, topic: str = "", by: RedisPublisher | None = None) -> None:
        own = by or self.publishers[0]
        own.produce([record(topic or self.topic, value) for value in values], nobody_waits)
        own.commit(self.position(end_lsn), nobody_waits)

    def values(self, topic: str = "") -> list[bytes]:
        found: Any = self.client.xrange(topic or self.topic)
        return [fields[b"data"] for _, fields in found]

    def has(self, version: tuple[int, ...]) -> bool:
        return tuple(map(int, str(self.client.info("server")["redis_version"]).split("."))) >= version

    def close(self) -> None:
        for each in self.publishers:
            each.close()
        self.client.close()


Make = Callable[..., World]


@pytest.fixture
def make(redis_server: RedisServer) -> Iterator[Make]:
    with contextlib.ExitStack() as stack:

        def made(url: str = "", **options: object) -> World:
            return stack.enter_context(contextlib.closing(World(url or redis_server.url, **options)))

        yield made


def test_an_entry_that_redis_refuses_takes_back_those_before_it(make: Make) -> None:
    world = make()
    world.commit(100, b"before")
    own = world.publishers[0]
    own.produce([Record(world.topic, b"k", b"good", [], 0), Record("taken", b"k", b"bad", [], 0)], nobody_waits)
    world.client.set("taken", "a text")
    with pytest.raises(SinkRefused, match="WRONGTYPE"):
        own.commit(world.position(200), nobody_waits)
    assert world.values() == [b"before"], "nothing is torn"
    assert own.recover(nobody_waits) == world.position(100)
    with pytest.raises(InvalidEvent, match="holds a string and no stream"):
        own.route("taken", nobody_waits)
    world.client.delete("taken")


def test_without_memory_nothing_is_written_and_it_is_waited_for(make: Make, spare: RedisServer) -> None:
    world = make(spare.url)
    world.commit(100, b"before")
    world.client.config_set("maxmemory", "1")
    try:
        with pytest.raises(Retriable, match=r"OOM while committing.*raise maxmemory"):
            world.commit(200, b"one", b"two")
        with pytest.raises(Retriable, match="OOM"):
            world.publishers[0].recover(nobody_waits)
    finally:
        world.client.config_set("maxmemory", "0")
    assert world.values() == [b"before"]
    assert world.publishers[0].recover(nobody_waits) == world.position(100)
    world.commit(200, b"one", b"two")
    assert world.values() == [b"before", b"one", b"two"]


def test_a_server_that_became_a_replica_is_waited_for(make: Make, spare: RedisServer, redis_server: RedisServer) -> None:
    world = make(spare.url)
    world.client.execute_command("REPLICAOF", "127.0.0.1", str(spare.port))  # of itself: it stays what it is, and takes no writes
    try:
        with pytest.raises(Retriable, match=r"READONLY.*redis\.sentinel"):
            world.commit(200, b"one")
        with pytest.raises(Retriable, match="is a replica"):
            world.publishers[0].peek()
    finally:
        world.client.execute_command("REPLICAOF", "NO", "ONE")
    assert world.publishers[0].recover(nobody_waits) is None


def test_what_this_redis_has_lost_is_not_built_upon(make: Make) -> None:
    world = make()
    world.commit(100, b"one")
    kept: Any = world.client.hgetall(world.position_key)
    world.commit(200, b"two")
    world.client.hset(world.position_key, mapping=kept)  # as after a lost tail: the owner looks right
    with pytest.raises(Fenced, match="lost the end"):
        world.commit(300, b"three")
    assert world.values() == [b"one", b"two"]


def test_a_position_that_was_never_made_or_was_lost_is_refused(make: Make) -> None:
    world = make()
    own = world.publishers[0]
    world.client.delete(world.position_key)
    for ask in (own.peek, lambda: own.recover(nobody_waits)):
        with pytest.raises(SinkRefused, match=r"does not exist.*cdc init"):
            ask()


@pytest.mark.parametrize(
    ("options", "left"),
    [
        pytest.param({"maxlen": 200}, range(900, 1100), id="maxlen"),
        pytest.param({"maxlen": 200, "group": 500}, range(500, 1100), id="what a group has not read"),
        pytest.param({"maxlen": 200, "group": 500, "trim_unread": True}, range(900, 1100), id="unless told"),
        pytest.param({"maxlen": 200, "group": 1100, "acknowledged": 700}, range(700, 1100), id="what a group has not acknowledged"),
        pytest.param({"maxlen": 200, "group": 1100, "acknowledged": 1100}, range(900, 1100), id="all acknowledged"),
        pytest.param({"retention_ms": 1}, range(1099, 1100), id="age"),
        pytest.param({"retention_ms": 3_600_000}, range(1100), id="none is so old"),
    ],
)
def test_streams_are_trimmed_and_never_below_what_a_group_needs(make: Make, options: dict[str, Any], left: range) -> None:
    settings = {name: value for name, value in options.items() if name not in ("group", "acknowledged")}
    world = make()
    trimming = world.publisher(**settings)
    world.commit(100, *(b"%d" % number for number in range(1000)))
    world.commit(150, *(b"%d" % number for number in range(1000, 1099)))
    if read := options.get("group"):
        world.client.xgroup_create(world.topic, "g", "0")
        world.client.xreadgroup("g", "c", {world.topic: ">"}, count=read)
        done = options.get("acknowledged", read)
        entries: Any = world.client.xrange(world.topic, count=done)
        world.client.xack(world.topic, "g", *(entry for entry, _ in entries))
    trimming.recover(nobody_waits)
    time.sleep(0.002)  # older than retention's millisecond
    world.commit(200, b"1099", by=trimming)
    found = [int(value) for value in world.values()]
    assert found == list(range(found[0], 1100))
    assert left.start - 101 <= found[0] <= left.start, "about: Redis trims whole nodes of 100 entries"
    with contextlib.closing(RedisReader(url=world.options.url, name="r", position_key=world.position_key)) as reader:
        [(low, end)] = reader.bounds([world.topic], nobody_waits).values()
        assert (low > 0) == (found[0] > 0)
        assert end > low


def test_a_transaction_that_is_too_large_says_so(make: Make) -> None:
    world = make(transaction_max_bytes=1_000_000)
    own = world.publishers[0]
    assert not own.full
    own.produce([Record(world.topic, b"k", b"x" * 600_000, [], 0)], nobody_waits)
    with pytest.raises(SinkRefused, match=r"2 rows .* bytes .* takes 1,000,000 bytes.*redis\.transaction_max_bytes"):
        own.produce([Record(world.topic, b"k", b"x" * 600_000, [], 0)], nobody_waits)
    assert own.full == (FULL_BYTES < 1_200_000)
    many = Record(world.topic, b"k", b"x", [("ce_sequence", b"place"), *((str(number), b"") for number in range(1_000))], 0)
    with pytest.raises(Poisoned, match="fields") as caught:
        own.produce([many], nobody_waits)
    assert caught.value.place == b"place"


def test_a_changed_number_of_streams_stops_by_policy(make: Make) -> None:
    world = make(streams=2)
    assert world.publishers[0].route(world.topic, nobody_waits).partitions == 2
    with pytest.raises(SinkRefused, match=r"had 2 streams and has 3.*on_partition_change"):
        world.publisher(streams=3).route(world.topic, nobody_waits)


def test_keys_are_spread_over_streams_and_each_keeps_its_own(make: Make) -> None:
    world = make(streams=3)
    records = [Record(world.topic, b"%d" % (number % 20), b"%d" % number, [], 0) for number in range(100)]
    world.publishers[0].produce(records, nobody_waits)
    world.publishers[0].commit(world.position(100), nobody_waits)
    with contextlib.closing(RedisReader(url=world.options.url, name="r", position_key=world.position_key)) as reader:
        seen = list(reader.read([world.topic]))
    assert {each.partition for each in seen} == {0, 1, 2}
    assert len({(each.key, each.partition) for each in seen}) == 20
    for key in {each.key for each in seen}:
        numbers = [int(each.value or b"") for each in seen if each.key == key]
        assert numbers == sorted(numbers)


def test_replicas_are_waited_for(make: Make, spare: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    world = make(spare.url)
    waiting = world.publisher(wait_replicas=1)
    with new_redis(settings={"replicaof": f"127.0.0.1 {spare.port}"}) as replica:
        replica_client = redis.Redis.from_url(replica.url, protocol=2)
        waiting.recover(nobody_waits)
        world.commit(100, b"one", by=waiting)
        assert replica_client.xlen(world.topic) == 1
        monkeypatch.setattr(publisher, "WAIT_MS", 200)
        replica.freeze()
        with pytest.raises(Retriable, match="0 of 1 replicas have the last commit"):
            world.commit(200, b"two", by=waiting)
        with pytest.raises(Retriable, match="0 of 1 replicas"):
            waiting.recover(nobody_waits)
        replica.thaw()
        monkeypatch.setattr(publisher, "WAIT_MS", 10_000)
        assert waiting.recover(nobody_waits) == world.position(200), "it was committed, and was not confirmed before a replica had it"


def test_disks_are_waited_for_where_the_server_can(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    world = make()
    waiting = world.publisher(wait_fsync=True)
    if not world.has((7, 2)):
        with pytest.raises(SinkRefused, match=r"wait_fsync needs Redis 7\.2"):
            waiting.recover(nobody_waits)
        return
    with monkeypatch.context() as patch:
        patch.setattr(publisher, "WAIT_MS", 500)
        with pytest.raises(Retriable, match=r"0 of 1 disk.* appendfsync everysec"):
            waiting.recover(nobody_waits)
    world.client.config_set("appendfsync", "everysec")
    try:
        waiting.recover(nobody_waits)
        world.commit(100, b"one", by=waiting)
    finally:
        world.client.config_set("appendfsync", "no")
    assert world.values() == [b"one"]


def test_a_cache_is_no_sink(make: Make, spare: RedisServer) -> None:
    world = make(spare.url)
    world.client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        with pytest.raises(SinkRefused, match="may throw away streams and position"):
            world.publishers[0].peek()
    finally:
        world.client.config_set("maxmemory-policy", "noeviction")


def test_the_rights_of_the_manual_are_enough(make: Make, redis_server: RedisServer) -> None:
    page = (Path(__file__).parents[2] / "docs" / "redis.md").read_text(encoding="utf-8")
    [line] = re.findall(r"^ACL SETUSER cdc (.*)$", page, re.MULTILINE)
    world = make()
    newer = [] if world.has((7, 2)) else ["+waitaof", "+client|setinfo"]
    rights = [each for each in line.split() if each not in newer]
    if not world.has((7, 0)):  # rights to a single subcommand of any command came with it
        rights = [each.partition("|")[0] for each in rights]
    world.client.execute_command("ACL", "SETUSER", "cdc", *rights, f"~{world.position_key}", f"~{world.name}*")
    allowed = world.publisher(url=redis_server.url.replace("redis://", "redis://cdc:secret@"), maxlen=10, retention_ms=1000)
    world.client.xgroup_create(world.topic, "g", "0", mkstream=True)
    try:
        allowed.peek()
        allowed.recover(nobody_waits)
        assert allowed.route(world.topic, nobody_waits).partitions == 1
        world.commit(100, *[b"x"] * 200, by=allowed)
        assert len(world.values()) == 200
        url = world.publishers[-1].options.url
        with contextlib.closing(RedisReader(url=url, name="r", position_key=world.position_key)) as reader:
            assert len(list(reader.read([world.topic]))) == 200
    finally:
        world.client.acl_deluser("cdc")


def refused_with(made: RedisPublisher) -> CdcError:
    with pytest.raises(CdcError) as caught:
        made.peek()
    return caught.value


def test_who_may_not_come_in_is_told_so_without_the_password(make: Make, redis_server: RedisServer) -> None:
    world = make()
    world.client.acl_setuser("cdc", enabled=True, passwords=["+right-one"], categories=["+@all"], keys=["other:*"])
    wrong = redis_server.url.replace("redis://", "redis://cdc:wrong-one@")
    found = refused_with(world.publisher(url=wrong))
    assert isinstance(found, SinkRefused)
    assert "wrong-one" not in str(found)
    found = refused_with(world.publisher(url=wrong.replace("wrong", "right")))
    assert isinstance(found, SinkRefused)
    assert "docs/redis.md for the rights" in str(found)
    found = refused_with(world.publisher(url="redis://127.0.0.1:1/0"))
    assert isinstance(found, Retriable)
    found = refused_with(world.publisher(url="http://127.0.0.1:1/0"))
    assert isinstance(found, ConfigurationError)
    world.client.acl_deluser("cdc")


def test_of_two_redrives_at_once_one_begins_anew(make: Make) -> None:
    world = make(streams=2)
    topic = f"{world.name}.letters"
    world.commit(100, b"letter", topic=topic)

    def redrive(**options: object) -> RedisLetters:
        return RedisLetters(world.publisher(**options), name=f"{world.name}-redrive", topic=topic, streams=2)

    def publish(by: RedisLetters, value: bytes) -> None:
        assert by.route(world.topic, nobody_waits).partitions == 2
        by.produce([record(world.topic, value), record(topic, b"closed " + value)], nobody_waits)
        by.commit(None, nobody_waits)

    first, second, small = redrive(), redrive(), redrive(transaction_max_bytes=100_000)
    with contextlib.closing(first), contextlib.closing(second), contextlib.closing(small):
        first.fence(nobody_waits)
        second.fence(nobody_waits)
        publish(first, b"1")
        with pytest.raises(Retriable, match="have changed"):
            publish(second, b"2")
        second.fence(nobody_waits)
        publish(second, b"3")
        with pytest.raises(SinkRefused, match="redrive in parts"):
            publish(small, b"x" * 100_000)
    number = number_of(b"k", 2)
    assert world.values(f"{world.topic}:{number}") == [b"1", b"3"]
    assert world.values(f"{topic}:{number}") == [b"letter", b"closed 1", b"closed 3"]
