"""Which broker a consumer reads from: the one file of this room that knows theirs. An extra is loaded when it is chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

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
        from cdc.redis.consuming import RedisBroker  # noqa: PLC0415 - an extra
    except ImportError:
        raise ConfigurationError("consumers of redis need a library that is missing: redis", 'pip install "cdc[redis]"') from None
    return RedisBroker(group=group.name, options=options, instance=group.instance, prefetch=group.in_flight, is_own=group.names.is_own)


def _rabbitmq(group: Group, options: Options) -> Broker:
    try:
        from cdc.rabbitmq import group as rabbitmq  # noqa: PLC0415 - an extra
        from cdc.rabbitmq.consuming import RabbitBroker  # noqa: PLC0415 - the same
    except ImportError:
        raise ConfigurationError("consumers of rabbitmq need a library that is missing: pika", 'pip install "cdc[rabbitmq]"') from None
    named = rabbitmq.Group(group.name, group.names.dead_letter, group.in_flight, DUE)
    return RabbitBroker(group=named, options=options)


BROKERS: Final[Mapping[str, Callable[[Group, Options], Broker]]] = {"kafka": _kafka, "redis": _redis, "rabbitmq": _rabbitmq}
"""By the name of the pipeline's table, which is the consumer's argument."""
