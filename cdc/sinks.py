"""What the settings make of the brokers whose clients are extras: loaded when they are chosen, with a word where they are missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from cdc.errors import ConfigurationError
from cdc.pipeline.ports import Reader

if TYPE_CHECKING:
    from cdc.audit.offsets import Groups
    from cdc.audit.redrive import RedrivePublisher
    from cdc.rabbitmq.publisher import RabbitPublisher
    from cdc.redis.publisher import RedisPublisher
    from cdc.redis.reader import RedisReader
    from cdc.settings import Settings
    from cdc.settings.rabbitmq import RabbitSettings
    from cdc.settings.redis import RedisSettings


def redis_publisher(settings: Settings, redis: RedisSettings) -> RedisPublisher:
    """Return who publishes to Redis."""
    with _extra("redis", "redis"):
        from cdc.redis.publisher import Options, RedisPublisher  # noqa: PLC0415 - an extra
    plain = redis.model_dump(exclude={"url", "retention"})
    age_ms = 0 if redis.retention is None else redis.retention // timedelta(milliseconds=1)
    return RedisPublisher(
        name=settings.name,
        options=Options(url=redis.url.get_secret_value(), retention_ms=age_ms, **plain),
        position_key=settings.topics.position,
        on_partition_change=settings.topics.on_partition_change,
    )


def redis_reader(settings: Settings, redis: RedisSettings) -> RedisReader:
    """Return a reader of Redis's streams."""
    with _extra("redis", "redis"):
        from cdc.redis.reader import RedisReader  # noqa: PLC0415 - an extra
    url, position = redis.url.get_secret_value(), settings.topics.position
    return RedisReader(url=url, name=settings.name, position_key=position, sentinel=redis.sentinel)


def redis_groups(settings: Settings, redis: RedisSettings) -> Groups:
    """Return who moves the groups of Redis."""
    reader = redis_reader(settings, redis)
    from cdc.redis.offsets import RedisGroups  # noqa: PLC0415 - an extra, which is there

    return RedisGroups(reader, url=redis.url.get_secret_value(), name=settings.name, sentinel=redis.sentinel)


def redis_letters(settings: Settings, redis: RedisSettings, command: str, topic: str, streams: int) -> RedrivePublisher:
    """Return who publishes what dead letters become; their topic and the events' have this number of streams."""
    publisher = redis_publisher(settings, redis)
    from cdc.redis.letters import RedisLetters  # noqa: PLC0415 - an extra, which is there

    return RedisLetters(publisher, name=f"{settings.name}-{command}", topic=topic, streams=streams)


def rabbit_publisher(settings: Settings, rabbitmq: RabbitSettings) -> RabbitPublisher:
    """Return the publisher to RabbitMQ."""
    with _extra("rabbitmq", "pika"):
        from cdc.rabbitmq.publisher import RabbitPublisher  # noqa: PLC0415 - an extra
    return RabbitPublisher(
        name=settings.name,
        url=rabbitmq.url.get_secret_value(),
        exchange=rabbitmq.exchange,
        exchange_type=rabbitmq.exchange_type,
        position_queue=settings.topics.position,
        dead_letter_queue=settings.topics.dead_letter,
        audit=rabbitmq.audit,
        confirm_timeout_s=rabbitmq.confirm_timeout.total_seconds(),
    )


def rabbit_reader(settings: Settings, rabbitmq: RabbitSettings) -> Reader:
    """Return a reader of RabbitMQ's streams."""
    with _extra("rabbitmq", "pika"):
        from cdc.rabbitmq.reader import RabbitReader  # noqa: PLC0415 - an extra
    url, letters = rabbitmq.url.get_secret_value(), settings.topics.dead_letter
    return RabbitReader(url=url, name=settings.name, dead_letter=letters, audit=rabbitmq.audit)


def rabbit_letters(settings: Settings, rabbitmq: RabbitSettings, command: str, topic: str, queues: Sequence[str]) -> RedrivePublisher:
    """Return who publishes what dead letters in a stream become; `queues` are published to by name."""
    with _extra("rabbitmq", "pika"):
        from cdc.rabbitmq.letters import RabbitLetters  # noqa: PLC0415 - an extra
    url, name = rabbitmq.url.get_secret_value(), f"{settings.name}-{command}"
    return RabbitLetters(url=url, name=name, exchange=rabbitmq.exchange, topic=topic, queues=queues)


@contextmanager
def _extra(sink: str, library: str) -> Iterator[None]:
    """Say how to install what an import lacks."""
    try:
        yield
    except ImportError:
        raise ConfigurationError(f"the table [{sink}] needs a library that is missing: {library}", f'pip install "cdc[{sink}]"') from None
