"""What a pipeline has in RabbitMQ: the exchange of its events, the position's queue, the streams of dead letters and audit.

Only `cdc init` makes them. The pipeline asks for them passively, which makes nothing: a position's queue that is lost must not
come back empty without a word.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cdc.errors import SinkRefused
from cdc.rabbitmq.link import Link, Waiting
from cdc.rabbitmq.positions import arguments

QUORUM: dict[str, object] = {"x-queue-type": "quorum"}
"""On several nodes a copy on most of them; on one it is as durable as the node."""

STREAM: dict[str, object] = {"x-queue-type": "stream"}
"""The same, and reading takes nothing away."""

ALL = "#"
"""The binding of a topic exchange that takes every message; a fanout takes no notice of it."""

Question = Callable[[Any, Callable[[Any], None]], object]


class Topology:
    """The names, and how they are asked for and made; implements Positions."""

    def __init__(  # noqa: PLR0913 - plain names, by keyword
        self,
        connect: Callable[[Waiting], Link],
        *,
        position: str,
        dead_letter: str,
        exchange: str,
        exchange_type: str,
        audit: str | None = None,
    ) -> None:
        self._connect = connect
        self.topic = position
        self.dead_letter = dead_letter
        self.exchange = exchange
        self.exchange_type = exchange_type
        self.audit = audit

    def __repr__(self) -> str:
        return f"<Topology {self.topic} {self.exchange} ({self.exchange_type})>"

    def look(self, waiting: Waiting, *, position: bool = True, events: bool = True) -> None:
        """Raise SinkRefused when one of them is missing."""
        link = self._connect(waiting)
        for name, question in self._questions(link, passive=True, position=position, events=events):
            link.ask(question, waiting, f"looking for {name}")

    def exists(self, waiting: Waiting) -> bool:
        """Tell whether all of them are there."""
        try:
            self.look(waiting)
        except SinkRefused as error:
            if "NOT_FOUND" in error.what:
                return False
            raise
        return True

    def create(self, replication_factor: int, min_insync_replicas: int, waiting: Waiting) -> bool:  # noqa: ARG002 - the port's
        """Make what is missing; raises SinkRefused for one that is there with other arguments."""
        new = not self.exists(waiting)
        link = self._connect(waiting)
        for name, question in self._questions(link, passive=False):
            link.ask(question, waiting, f"declaring {name}")
        return new

    def verify(self, waiting: Waiting) -> None:
        """Raise SinkRefused unless all of them are there, and are what they must be."""
        self.look(waiting)
        self.create(1, 1, waiting)  # what is there is only compared

    def _questions(self, link: Link, *, passive: bool, position: bool = True, events: bool = True) -> list[tuple[str, Question]]:
        found: list[tuple[str, Question]] = []
        if position:
            found.append((f"the position's queue {self.topic!r}", queue_question(self.topic, arguments(link.version), passive=passive)))
        if events:
            found.append((f"the dead letters' queue {self.dead_letter!r}", queue_question(self.dead_letter, STREAM, passive=passive)))
            if self.exchange:
                found.append((f"exchange {self.exchange!r}", exchange_question(self.exchange, None if passive else self.exchange_type)))
            if self.audit is not None:
                found.append((f"the audit's stream {self.audit!r}", queue_question(self.audit, STREAM, passive=passive)))
                if not passive:
                    found.append((f"the audit's stream {self.audit!r}", bind_question(self.audit, self.exchange, ALL)))
        return found


def exchange_question(name: str, kind: str | None = None) -> Question:
    """Declare a durable exchange of a kind, or ask whether there is one of any."""

    def ask(channel: Any, done: Callable[[Any], None]) -> object:  # noqa: ANN401 - pika has no types
        return channel.exchange_declare(name, kind or "topic", passive=kind is None, durable=True, callback=done)

    return ask


def queue_question(name: str, arguments: dict[str, object], *, passive: bool) -> Question:
    """Declare a durable queue, or ask whether it is there."""

    def ask(channel: Any, done: Callable[[Any], None]) -> object:  # noqa: ANN401 - pika has no types
        return channel.queue_declare(name, passive=passive, durable=True, arguments=arguments, callback=done)

    return ask


def bind_question(queue: str, exchange: str, key: str) -> Question:
    """Bind a queue to an exchange."""

    def ask(channel: Any, done: Callable[[Any], None]) -> object:  # noqa: ANN401 - pika has no types
        return channel.queue_bind(queue, exchange, key, callback=done)

    return ask
