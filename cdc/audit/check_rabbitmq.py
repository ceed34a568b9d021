"""The doctor's questions to RabbitMQ: what init made, and whether it is what it must be. Makes nothing."""

from __future__ import annotations

from functools import partial

from cdc.audit.check_postgres import no_partitions
from cdc.audit.finding import Case, Doctor, Patience, Told, failed, nothing, ok
from cdc.outbox.mapping import placeholders
from cdc.rabbitmq.publisher import RabbitPublisher


def doctor(publisher: RabbitPublisher) -> Doctor:
    """Return what is asked of RabbitMQ."""
    questions = {check: partial(ask, publisher=publisher) for check, ask in QUESTIONS.items()}
    questions["partition column"] = partial(no_partitions, "RabbitMQ")
    return Doctor("rabbitmq", publisher, partial(_reached, publisher), questions, lambda: False)


def _reached(publisher: RabbitPublisher, patience: Patience) -> Told:
    yield ok(patience(lambda: publisher.server(nothing)))


def _topology(case: Case, publisher: RabbitPublisher) -> Told:  # noqa: ARG001 - a question's form
    names = publisher.positions
    if not names.exists(nothing):
        yield failed(
            f"one of queue {names.topic!r}, queue {names.dead_letter!r} and exchange {names.exchange!r} is missing", "run `cdc init`"
        )
        return
    names.verify(nothing)
    yield ok(f"queues {names.topic!r} and {names.dead_letter!r} are quorum queues, exchange {names.exchange!r} is {names.exchange_type}")


def _routing(case: Case, publisher: RabbitPublisher) -> Told:
    key = case.mapping.route
    word = "keys" if placeholders(key) else "key"
    yield ok(
        f"routing {word} {key!r} at exchange {publisher.positions.exchange!r}: a row that no queue is bound for is refused as it comes"
    )


QUESTIONS = {"exchange and queues": _topology, "routing": _routing}
"""In the order of an operator's questions."""
