"""A pipeline that publishes to a real Redis, and a plain client's look at what its streams hold."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import redis

from cdc.devstack.redis import RedisServer
from cdc.position import Lsn
from tests.packages import REQUIRED, of
from tests.pipeline import Event, Pipeline
from tests.waiting import wait_for

OWN = {"key", "timestamp", "data"}


class RedisPipeline(Pipeline):
    """A pipeline whose topics are streams of the given Redis."""

    def __init__(self, folder: Path, name: str, dsn: str, url: str) -> None:
        super().__init__(folder, name, dsn, "")
        self.url = url
        self.settings = {key: value for key, value in self.settings.items() if not key.startswith(("kafka.", "topics.create."))}
        self.settings |= {"redis.url": url, "redis.maxlen": 0}

    @property
    def client(self) -> redis.Redis:
        """A plain client, as a consumer has it."""
        return redis.Redis.from_url(self.url, protocol=2)

    def streams(self, topic: str) -> list[str]:
        """The keys of a topic's streams."""
        count = int(str(self.settings.get("redis.streams", 1)))
        return [topic] if count == 1 else [f"{topic}:{number}" for number in range(count)]

    def events(self, *topics: str, isolation: str = "") -> list[Event]:
        """Everything that the topics' streams hold now, in their order; of the position there is the last one."""
        with self.client as client:
            if topics == (self.position_topic,):
                position = client.hget(self.position_topic, "position")
                return [] if position is None else [Event(self.position_topic, 0, 0, self.name.encode(), position, {}, 0)]
            return [
                _event(topic, number, place, *entry)
                for topic in topics or (self.topic,)
                for number, stream in enumerate(self.streams(topic))
                for place, entry in enumerate(client.xrange(stream))
            ]

    def wait_numbers(self, expected: Sequence[int], deadline_s: float = 60.0) -> None:
        """Wait until all of these have come, then see that they are all, once each and in this order."""
        wait_for(lambda: len(self.events()) >= len(expected), deadline_s, f"{len(expected)} events")
        assert self.numbers() == list(expected)

    def position(self) -> Lsn:
        """The end of the last position."""
        return Lsn.parse(json.loads(self.events(self.position_topic)[-1].value or b"")["end_lsn"])

    def evidence(self) -> str:
        """What a failed test shows."""
        return "\n".join([str(self.slot()), *map(str, self.events()), self.get("/status")[1], self.log])


def _event(topic: str, number: int, place: int, entry_id: bytes, fields: Mapping[bytes, bytes]) -> Event:
    named = {name.decode(): value for name, value in fields.items()}
    headers = {name: value for name, value in named.items() if name not in OWN}
    timestamp_ms = int(named.get("timestamp") or entry_id.partition(b"-")[0])
    return Event(topic, number, place, named.get("key"), named.get("data"), headers, timestamp_ms)


def new_redis(folder: Path | None = None, *, settings: Mapping[str, str] | None = None, watches: RedisServer | None = None) -> RedisServer:
    """Return a server that is not started yet; without its package the test is skipped, or fails where all are promised.

    TEST_REDIS_SERVER names another program, such as an older or a newer one, or Valkey. One that `watches` is a Sentinel.
    """
    own = os.environ.get("TEST_REDIS_SERVER")
    if own:
        return RedisServer(folder, program=Path(own), settings=settings, watches=watches)
    package = of("redis-server")
    if package.missing:
        reason = f"{package.name} is missing: python -m tests.packages"
        if os.environ.get(REQUIRED) == "required":
            pytest.fail(reason)
        pytest.skip(reason)
    return RedisServer(folder, program=package.find("redis-server"), libraries=package.libraries, settings=settings, watches=watches)


def running_redis() -> Iterator[RedisServer]:
    """Start one."""
    with new_redis() as server:
        yield server
