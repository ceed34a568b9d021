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
        streams = ", ".join(f"stream {name!r}" for name in (names.dead_letter, names.audit) if name)
        yield failed(f"one of queue {names.topic!r}, {streams} and exchange {names.exchange!r} is missing", "run `cdc init`")
        return
    names.verify(nothing)
    kind = f"exchange {names.exchange!r} is {names.exchange_type}" if names.exchange else "routing keys are names of queues"
    yield ok(f"{names.topic!r} is a quorum queue, {names.dead_letter!r} is a stream, {kind}")


def _audit(case: Case, publisher: RabbitPublisher) -> Told:  # noqa: ARG001 - a question's form
    audit = publisher.positions.audit
    if audit is None:
        yield ok("rabbitmq.audit is off: cdc verify, tail and recover cannot read the events")
    else:
        yield ok(f"stream {audit!r} gets a copy of each event")


def _routing(case: Case, publisher: RabbitPublisher) -> Told:
    key = case.mapping.route
    word = "keys" if placeholders(key) else "key"
    yield ok(
        f"routing {word} {key!r} at exchange {publisher.positions.exchange!r}: a row that no queue is bound for is refused as it comes"
    )


QUESTIONS = {"exchange and queues": _topology, "routing": _routing, "audit": _audit}
"""In the order of an operator's questions."""
