"""What differs in the demo from sink to sink: its server, its table of the settings, and how topics are opened."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from cdc import app
from cdc.devstack import debian
from cdc.devstack.rabbitmq import RabbitBroker
from cdc.devstack.redis import RedisServer
from cdc.devstack.server import Server
from cdc.devstack.stack import Stack
from cdc.kafka.topics import Create
from cdc.resilience.call import nobody_waits
from cdc.settings import Settings

TOPIC: Final = "outbox.event.Order"

EXCHANGE: Final = "shop"


class SinkName(StrEnum):
    """What the demo can publish to."""

    KAFKA = "kafka"
    REDIS = "redis"
    RABBITMQ = "rabbitmq"

    @property
    def label(self) -> str:
        """What people call it."""
        return app.SINK_NAMES[self]


def broker(sink: SinkName) -> Server | None:
    """Return the server of a sink that the stack does not have by itself; raises ConfigurationError where it is not installed."""
    if sink is SinkName.KAFKA:
        return None
    return debian.redis_server() if sink is SinkName.REDIS else debian.rabbit_broker()


def consumer_sink(stack: Stack) -> dict[str, dict[str, str]]:
    """Return what a consumer is told of the broker."""
    if isinstance(stack.broker, RedisServer):
        return {"redis": {"url": stack.broker.url}}
    if isinstance(stack.broker, RabbitBroker):
        return {"rabbitmq": {"url": stack.broker.url, "exchange": EXCHANGE}}
    return {"kafka": {"bootstrap.servers": stack.kafka.bootstrap_servers}}


def sink_table(stack: Stack, pipeline: str) -> str:
    """Return the settings' table of a broker; the pipelines of the shop share it."""
    if isinstance(stack.broker, RedisServer):
        return f'[redis]\nurl = "{stack.broker.url}"\nmaxlen = 0'
    if isinstance(stack.broker, RabbitBroker):
        return f'[rabbitmq]\nurl = "{stack.broker.url}"\nexchange = "{EXCHANGE}"\naudit = "{pipeline}.audit"'
    kafka = f'[kafka]\n"bootstrap.servers" = "{stack.kafka.bootstrap_servers}"'
    return f"{kafka}\n\n[topics]\ncreate = {{ partitions = 3, replication_factor = 1 }}"


def open_topics(settings: Settings, topics: list[str]) -> None:
    """Make the topics, so that who watches finds them before the first row."""
    if settings.sink == "kafka":
        admin = app.kafka_subscriber(settings).topics
        for topic in topics:
            admin.create(topic, Create(3, 1, 1), {}, nobody_waits)
        admin.close()
        return
    publisher = app.publisher(settings)
    publisher.require([*topics, settings.topics.dead_letter], nobody_waits)
    publisher.close()
