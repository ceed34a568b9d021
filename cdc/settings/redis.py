"""Table `[redis]`: Redis Streams in place of Kafka."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated

from pydantic import AfterValidator, Field

from cdc.settings.base import Frozen
from cdc.settings.values import ConnectionString, Dsn, Duration, Wrong

STREAMS_MAX = 1024
"""Every script names the streams that it writes to; far below this a server's one thread is the limit."""


TRANSACTION_MIN_BYTES = 16 * 1024 * 1024
"""What may be read of the log at once, and so lie together before a commit, is a part of this: several small transactions are never
taken for one that is too large."""

_SENTINEL = re.compile(r"[^@\s]+@[^@:,\s]+:\d{1,5}(,[^@:,\s]+:\d{1,5})*")


def _sentinel(value: str) -> str:
    if not _SENTINEL.fullmatch(value):
        raise Wrong("does not name a service and its Sentinels", 'write it as "service@host:26379,host:26379"')
    return value


SentinelService = Annotated[str, AfterValidator(_sentinel)]


class RedisSettings(Frozen):
    """Table `[redis]`."""

    url: ConnectionString = Field(
        default=Dsn("redis://127.0.0.1:6379/0"),
        description="Server, user, password and database, as redis-py reads them: `redis://`, `rediss://` (TLS) or `unix://`.",
    )
    sentinel: SentinelService | None = Field(
        default=None,
        description="Sentinels that know where the primary is, and its name there; host and port of `url` are then not used.",
        examples=["shop@10.0.0.1:26379,10.0.0.2:26379"],
    )
    streams: int = Field(
        default=1,
        ge=1,
        le=STREAMS_MAX,
        description="Streams of a topic, among which keys are spread by hash: `topic:0`, `topic:1`, ..; one alone has the topic's name.",
    )
    maxlen: int = Field(
        default=10_000,
        ge=0,
        description="Entries that a stream keeps, about (`MAXLEN ~`); 0 keeps all. What a consumer group has not read and acknowledged "
        "stays, see `trim_unread`.",
    )
    retention: Duration | None = Field(
        default=None,
        gt=timedelta(0),
        description="Entries that are older are trimmed (`MINID ~`), with the same regard for consumer groups.",
        examples=["7d"],
    )
    trim_unread: bool = Field(default=False, description="Trim also what a consumer group has not read and acknowledged yet.")
    wait_replicas: int = Field(
        default=0,
        ge=0,
        description="Replicas that must have a commit before PostgreSQL may forget it (`WAIT`).",
    )
    wait_fsync: bool = Field(
        default=False,
        description="Whether a commit must be on disk, here and on `wait_replicas` replicas, before PostgreSQL may forget it (`WAITAOF`, "
        "Redis 7.2 or newer with `appendonly yes`).",
    )
    transaction_max_bytes: int = Field(
        default=64 * 1024 * 1024,
        ge=TRANSACTION_MIN_BYTES,
        description="Largest PostgreSQL transaction that is published, as bytes of its entries: it is held in memory here and there, and "
        "written by one script, during which the server does nothing else.",
    )
