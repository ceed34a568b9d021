"""What a consumer's group has in RabbitMQ: a queue for each topic, the stream of its dead letters, and how they are made.

Dead letters lie in a stream, which is read without taking from it. RabbitMQ itself puts there what a policy's length or age limit drops
from a queue of ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from cdc.errors import ConfigurationError
from cdc.rabbitmq.link import Link, new_link
from cdc.rabbitmq.message import SHORT_BYTES
from cdc.rabbitmq.positions import unlimited
from cdc.rabbitmq.topology import STREAM, Question, bind_question, exchange_question, queue_question
from cdc.resilience.call import nobody_waits

PATIENCE_S: Final = 10.0
"""How long the broker may take to confirm a record that is moved."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a consumer says of RabbitMQ, by the names of the pipeline's settings where they are the same.

    `single_active`: one member at a time reads a queue, which keeps its order; False lets all members of the group share it.
    """

    url: str = field(repr=False)
    exchange: str = "outbox"
    single_active: bool = True

    @classmethod
    def of(cls, table: Mapping[str, object]) -> Options:
        """Check a table of options that are known, with a url: see cdc.consumer.brokers."""
        given: Any = dict(table)
        exchange, single = given.get("exchange", ""), given.get("single_active", True)
        if not isinstance(exchange, str) or len(exchange.encode()) > SHORT_BYTES:
            fix = f'use the pipeline\'s rabbitmq.exchange, {SHORT_BYTES} bytes at most, or "" for queues by their names'
            raise ConfigurationError("a consumer's rabbitmq has an exchange that cannot be a name", fix)
        if not isinstance(single, bool):
            what = f"a consumer's rabbitmq cannot have a single_active of {single!r}"
            raise ConfigurationError(what, "use True, or False to let all members read a queue at a time")
        return cls(**given)


@dataclass(frozen=True, slots=True)
class Group:
    """A consumer by the names that it has in the broker; `due` is the header that says when a record is due, in ms."""

    name: str
    dead_letter: str
    prefetch: int
    due: str


class Queues:
    """What a group has in the broker, and how it is made."""

    def __init__(self, group: Group, options: Options, version: str) -> None:
        self._group = group
        self._options = options
        self._arguments: dict[str, object] = {
            "x-queue-type": "quorum",
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": group.dead_letter,
            **({"x-single-active-consumer": True} if options.single_active else {}),
            **unlimited(version),
        }

    def questions(self, topics: Sequence[str], own: Sequence[str]) -> list[tuple[str, Question]]:
        """Return what makes all of them."""
        exchange, letters = self._options.exchange, self._group.dead_letter
        for name in (letters, *own, *(queue_of(self._group.name, topic) for topic in topics)):
            if len(name.encode()) > SHORT_BYTES:
                msg = f"the queue's name {name!r} is longer than the {SHORT_BYTES} bytes that RabbitMQ takes"
                raise ConfigurationError(msg, "give the consumer or its topic a shorter name")
        found = [(f"declaring stream {letters!r}", queue_question(letters, STREAM, passive=False))]
        if exchange:
            found.append((f"looking for exchange {exchange!r}", exchange_question(exchange)))
        for topic in topics:
            name = queue_of(self._group.name, topic)
            found.append((f"declaring queue {name!r}", queue_question(name, self._arguments, passive=False)))
            if exchange:
                found.append((f"binding queue {name!r}", bind_question(name, exchange, topic)))
        return [
            *found,
            *((f"declaring queue {name!r}", queue_question(name, self._arguments, passive=False)) for name in own if name != letters),
        ]


def queue_of(group: str, topic: str) -> str:
    """Return the queue in which a group has a topic."""
    return f"{group}.{topic}"


def connected(url: str, name: str) -> Link:
    """Return a link that is open; raises CdcError."""
    link = new_link(url, name, PATIENCE_S)
    link.open(nobody_waits)
    return link
