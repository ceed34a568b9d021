"""Which broker a consumer reads from: the one file of this room that knows theirs. An extra is loaded when it is chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from cdc.consumer.event import DUE
from cdc.consumer.names import Names
from cdc.consumer.ports import Broker
from cdc.errors import ConfigurationError
from cdc.kafka.consuming import KafkaBroker
from cdc.kafka.topics import Create

__all__ = ["Create", "Group", "chosen"]

Options = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Group:
    """What a broker is told of its consumer; `in_flight` is the number of records that it may hold."""

    name: str
    names: Names
    instance: str | None
    create: Create | None
    in_flight: int


def chosen(group: Group, tables: Mapping[str, Options | None]) -> Broker:
    """Return the broker whose table of options is given; raises ConfigurationError unless it is exactly one."""
    given = {sink: options for sink, options in tables.items() if options is not None}
    if len(given) != 1:
        what = f"consumer {group.name} names {' and '.join(given) or 'no broker'}"
        raise ConfigurationError(what, f"give it one of {', '.join(f'{sink}=' for sink in BROKERS)}")
    [(sink, options)] = given.items()
    return BROKERS[sink](group, options)


def _kafka(group: Group, options: Options) -> Broker:
    return KafkaBroker(group=group.name, kafka=options, instance=group.instance, dead_letter=group.names.dead_letter, create=group.create)


def _redis(group: Group, options: Options) -> Broker:
    try:
        from cdc.redis import consuming as redis  # noqa: PLC0415 - an extra
    except ImportError:
        raise ConfigurationError("consumers of redis need a library that is missing: redis", 'pip install "cdc[redis]"') from None
    _refuse_strangers("redis", options, redis.Options, "redis://user@host:6379/0")
    names = group.names
    return redis.RedisBroker(group=group.name, options=options, instance=group.instance, prefetch=group.in_flight, is_own=names.is_own)


def _rabbitmq(group: Group, options: Options) -> Broker:
    try:
        from cdc.rabbitmq import group as rabbitmq  # noqa: PLC0415 - an extra
        from cdc.rabbitmq.consuming import RabbitBroker  # noqa: PLC0415 - the same
    except ImportError:
        raise ConfigurationError("consumers of rabbitmq need a library that is missing: pika", 'pip install "cdc[rabbitmq]"') from None
    _refuse_strangers("rabbitmq", options, rabbitmq.Options, "amqp://user:password@host:5672/vhost")
    named = rabbitmq.Group(group.name, group.names.dead_letter, group.in_flight, DUE)
    return RabbitBroker(group=named, options=options)


def _refuse_strangers(sink: str, given: Options, known: type[Any], example: str) -> None:
    """Raise ConfigurationError for an option that is no field of the broker's own class, and without a url."""
    names = [each.name for each in fields(known)]
    if unknown := sorted(given.keys() - set(names), key=str):
        raise ConfigurationError(f"a consumer's {sink} has no option {unknown[0]!r}", f"use {', '.join(names)}")
    if not isinstance(given.get("url"), str):
        raise ConfigurationError(f"a consumer's {sink} has no url", f"write it as {example}")


BROKERS: Final[Mapping[str, Callable[[Group, Options], Broker]]] = {"kafka": _kafka, "redis": _redis, "rabbitmq": _rabbitmq}
"""By the name of the pipeline's table, which is the consumer's argument."""
