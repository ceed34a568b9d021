"""The hash that holds a pipeline's position, beside what guards it: looked at, made by init, verified at each start."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass

from cdc.errors import Retriable, SinkRefused
from cdc.position import Position
from cdc.redis.link import NO_CLUSTER, Link, Waiting

OLDEST = (6, 2)
"""The first Redis that trims by MINID; Valkey began as 7.2."""

Linked = Callable[[], Link]


@dataclass(frozen=True, slots=True)
class Facts:
    """What a server says of itself (INFO); what it does not tell us is as it should be."""

    version: tuple[int, ...]
    role: str
    mode: str
    eviction: str
    appendonly: bool
    fsync: str
    replicas: int
    evicted: int


class RedisPositions:
    """One pipeline's position; `linked` gives the link of the moment."""

    def __init__(self, topic: str, pipeline: str, linked: Linked) -> None:
        self.topic = topic
        self._pipeline = pipeline
        self._linked = linked

    def __repr__(self) -> str:
        return f"<RedisPositions {self.topic}>"

    def exists(self, waiting: Waiting) -> bool:
        """Tell whether init has made it."""
        return bool(self._linked().call("HEXISTS", self.topic, "id", waiting=waiting, doing="looking for the position"))

    def create(self, replication_factor: int, min_insync_replicas: int, waiting: Waiting) -> bool:  # noqa: ARG002 - of Kafka
        """Make it; return False when it was there already. What tells this Redis from others begins here."""
        return bool(self._linked().call("HSETNX", self.topic, "id", secrets.token_hex(11), waiting=waiting, doing="making the position"))

    def verify(self, waiting: Waiting) -> None:
        """Raise SinkRefused unless the position is there and the server keeps it; Retriable while the server is a replica."""
        told = facts(self._linked(), waiting)
        if told.role == "slave":
            msg = "Redis is a replica (READONLY)"
            raise Retriable(msg, "let it be promoted, or correct redis.url; with Sentinel set redis.sentinel")
        for wrong, fix in flaws(told):
            msg = f"Redis is not safe for the position {self.topic!r}: {wrong}"
            raise SinkRefused(msg, fix)
        if not self.exists(waiting):
            msg = f"the position {self.topic!r} does not exist in Redis"
            raise SinkRefused(msg, "run `cdc init`; if it existed before, Redis has lost it: see docs/redis.md")

    def peek(self, waiting: Waiting) -> tuple[Position | None, str]:
        """Return the last position and what tells this Redis from others."""
        position, server = self._linked().call("HMGET", self.topic, "position", "id", waiting=waiting, doing="reading the position")
        return None if position is None else Position.from_json(position), (server or b"").decode()


def flaws(told: Facts) -> list[tuple[str, str]]:
    """Return what keeps a server from being a sink, each with its fix."""
    found = []
    if told.version < OLDEST:
        found.append((f"it is Redis {'.'.join(map(str, told.version))}", "use Redis 6.2 or newer, or Valkey"))
    if told.mode == "cluster":
        found.append(("it is a Redis Cluster", NO_CLUSTER))
    if told.eviction.startswith("allkeys"):
        fix = "set maxmemory-policy to noeviction or a volatile one, or use another server than the cache"
        found.append((f"maxmemory-policy is {told.eviction}: it may throw away streams and position", fix))
    return found


def facts(link: Link, waiting: Waiting) -> Facts:
    """Ask a server for what it says of itself."""
    text: bytes = link.call("INFO", waiting=waiting, doing="asking Redis for its state")
    told = dict(line.split(":", 1) for line in text.decode(errors="replace").splitlines() if ":" in line)
    version = told.get("redis_version", "7.0")
    return Facts(
        version=tuple(int(part) for part in version.split(".")[:3] if part.isdigit()),
        role=told.get("role", "master"),
        mode=told.get("redis_mode", "standalone"),
        eviction=told.get("maxmemory_policy", "noeviction"),
        appendonly=told.get("aof_enabled") == "1",
        fsync=told.get("aof_last_write_status", "ok"),
        replicas=int(told.get("connected_slaves", "0")),
        evicted=int(told.get("evicted_keys", "0")),
    )
