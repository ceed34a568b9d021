"""The doctor's questions to Kafka: topics that forget, limits that are too low, rights that are missing. Makes nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from confluent_kafka import IsolationLevel, TopicPartition

from cdc.audit.finding import Case, Doctor, Patience, Told, failed, nothing, ok, warning
from cdc.errors import CdcError
from cdc.kafka.faults import Fault
from cdc.kafka.positions import SAFE_REPLICAS
from cdc.kafka.publisher import KafkaPublisher
from cdc.kafka.topics import MISSING, Topic, latest
from cdc.outbox.mapping import placeholders

TRANSACTION_STATE = "__transaction_state"


def doctor(publisher: KafkaPublisher) -> Doctor:
    """Return what is asked of Kafka."""
    questions = {check: lambda case, ask=ask: ask(case, publisher) for check, ask in QUESTIONS.items()}
    return Doctor("kafka", publisher, partial(reached, publisher), questions, partial(hides, publisher))


def hides(publisher: KafkaPublisher) -> bool:
    """Tell whether an open Kafka transaction may hide a position: readers of committed records see less than there is."""
    partition = TopicPartition(publisher.positions.topic, 0)
    (seen,) = publisher.topics.offsets({partition: latest()}, IsolationLevel.READ_COMMITTED, nothing)
    (end,) = publisher.topics.offsets({partition: latest()}, IsolationLevel.READ_UNCOMMITTED, nothing)
    return seen < end


def reached(publisher: KafkaPublisher, patience: Patience) -> Told:
    """Ask for the cluster and its brokers."""
    cluster, brokers = patience(lambda: (publisher.topics.cluster_id(nothing), publisher.topics.brokers(nothing)))
    yield ok(f"cluster {cluster}, {len(brokers)} broker(s)")


def _position_topic(case: Case, publisher: KafkaPublisher) -> Told:
    if case.create is not None and not publisher.positions.exists(nothing):
        yield failed(f"the position topic {publisher.positions.topic!r} does not exist", "run `cdc init`")
        return
    publisher.positions.verify(nothing)
    yield ok(f"{publisher.positions.topic!r} keeps the last position whatever happens")


def _static_topics(case: Case, publisher: KafkaPublisher) -> Told:
    for name, described in publisher.topics.describe(case.static_topics, nothing).items():
        yield from _event_topic(case, name, described)
    if placeholders(case.mapping.route):
        yield ok(f"topics of {case.mapping.route!r} are opened, and checked, before their first record")


def _event_topic(case: Case, name: str, described: Topic | Fault) -> Told:
    if isinstance(described, Fault):
        if described.code not in MISSING:
            yield failed(f"topic {name!r}: {described}", "see its name, and grant WRITE, DESCRIBE and DESCRIBE_CONFIGS on it")
        elif case.create is None:
            yield failed(f"topic {name!r} does not exist", "create it, or let the pipeline do it: topics.create")
        else:
            yield ok(f"topic {name!r} will be made by topics.create")
        return
    problems = list(_flaws(name, described))
    yield from problems or [ok(f"topic {name!r} has {described.partitions} partition(s) and may be written")]


def _flaws(name: str, topic: Topic) -> Told:
    if not topic.writable:
        yield failed(f"we may not write topic {name!r}", "grant WRITE, DESCRIBE and DESCRIBE_CONFIGS on it")
    insync = int(topic.config.get("min.insync.replicas", SAFE_REPLICAS))
    if topic.replication_factor >= SAFE_REPLICAS and insync < 2:  # noqa: PLR2004 - one more than one
        what = f"topic {name!r} has {topic.replication_factor} replicas and min.insync.replicas {insync}: one broker can lose it"
        yield failed(what, "set min.insync.replicas=2")
    if topic.config.get("unclean.leader.election.enable", "false") != "false":
        yield failed(
            f"topic {name!r} allows unclean leader election: confirmed events can vanish", "set unclean.leader.election.enable=false"
        )
    if "compact" in topic.config.get("cleanup.policy", ""):
        yield warning(f"topic {name!r} is compacted: late readers miss events", "set cleanup.policy=delete, unless that is meant")


def _transaction_state(_: Case, publisher: KafkaPublisher) -> Told:
    topic = publisher.topics.describe([TRANSACTION_STATE], nothing)[TRANSACTION_STATE]
    if isinstance(topic, Fault):
        if topic.code in MISSING:
            yield ok(f"{TRANSACTION_STATE} is made by the broker at the first Kafka transaction")
        else:
            yield warning(f"{TRANSACTION_STATE} cannot be seen: {topic}", "grant DESCRIBE and DESCRIBE_CONFIGS on it, or look yourself")
        return
    insync = int(topic.config.get("min.insync.replicas", SAFE_REPLICAS))
    if topic.replication_factor >= SAFE_REPLICAS and insync < 2:  # noqa: PLR2004 - one more than one
        what = f"{TRANSACTION_STATE} has {topic.replication_factor} replicas and min.insync.replicas {insync}"
        yield failed(what, "set transaction.state.log.min.isr=2 on the brokers, and min.insync.replicas=2 on the topic")
    else:
        yield ok(f"{TRANSACTION_STATE} has {topic.replication_factor} replica(s), min.insync.replicas {insync}")


def _limits(case: Case, publisher: KafkaPublisher) -> Told:
    longest = publisher.topics.transaction_max_timeout_ms(nothing)
    if case.transaction_timeout_ms > longest:
        what = f"transaction.timeout.ms is {case.transaction_timeout_ms}, the broker takes at most {longest}"
        yield failed(what, 'lower kafka."transaction.timeout.ms" or raise transaction.max.timeout.ms of the broker')
    else:
        yield ok(f"transaction.timeout.ms is {case.transaction_timeout_ms} of at most {longest}")
    brokers = len(publisher.topics.brokers(nothing))
    if case.create is not None and case.create.replication_factor > brokers:
        what = f"topics.create asks for {case.create.replication_factor} replicas of {brokers} broker(s)"
        yield failed(what, "lower topics.create.replication_factor, or add brokers")


def _broker(_: Case, publisher: KafkaPublisher) -> Told:
    try:
        config = publisher.topics.broker_config(nothing)
    except CdcError as error:
        yield warning(f"the broker's settings cannot be read: {error.what}", "grant DESCRIBE_CONFIGS on the cluster, or look yourself")
        return
    if config.get("auto.create.topics.enable", "true") == "true":
        what = "auto.create.topics.enable is on: a consumer that comes early makes a topic with the broker's defaults"
        yield warning(what, "set it to false, or create the topics before anybody reads them")
    else:
        yield ok("topics are made only on purpose")


QUESTIONS: Mapping[str, Callable[[Case, KafkaPublisher], Told]] = {
    "position topic": _position_topic,
    "topics": _static_topics,
    "transaction state": _transaction_state,
    "limits": _limits,
    "broker": _broker,
}
"""What is asked once the cluster answers, in this order."""
