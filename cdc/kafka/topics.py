"""Topics as their broker describes them: looked at, created where the settings say so, never made by accident.

Strategy: `Topics` asks with DescribeTopics and DescribeConfigs, which create nothing, and waits by PAUSE_S. What it returns is
a `Topic` or the Fault that stands in its place, so that callers decide whether a missing topic is a row's fault (a route)
or the pipeline's (position, dead letters).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # the package lists no exports
    AclOperation,
    AdminClient,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from cdc.errors import KafkaRefused, Retriable
from cdc.kafka.client import REQUEST_TIMEOUT_S, Notes, Waiting, answer, fault_of, make, raised, retire_after, unanswered
from cdc.kafka.faults import Code, Fault, Remedy, exception, remedy
from cdc.kafka.limits import name_fault
from cdc.kafka.properties import Properties

Key = TypeVar("Key")

CREATION_PATIENCE_S = 10.0
"""How long a new topic may take until every broker that we ask knows it."""

LEADER_PATIENCE_S = 5.0
"""How long a partition may have no leader that answers: a new topic's for a moment, any while leadership moves."""

PAUSE_S = 0.05
"""Time between two questions for what comes by itself."""

MISSING = frozenset({Code.UNKNOWN_TOPIC_OR_PART, Code.UNKNOWN_TOPIC})

DEFAULT_TRANSACTION_MAX_TIMEOUT_MS = 900_000
"""The broker's transaction.max.timeout.ms when it does not let us read it."""


@dataclass(frozen=True, slots=True)
class Create:
    """How topics are made that do not exist (the settings' topics.create)."""

    partitions: int
    replication_factor: int
    min_insync_replicas: int


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as described: `replication_factor` and `in_sync` are its least, `config` what is in force, `writable` our right to write."""

    name: str
    partitions: int
    replication_factor: int
    config: Mapping[str, str]
    readable: bool
    writable: bool
    in_sync: int = 1


class Created(NamedTuple):
    """A topic as it was made, or as it was there already: then it is not `new`."""

    topic: Topic
    new: bool


class Topics:
    """An administrative client, made when it is first needed and again after a fault."""

    def __init__(self, properties: Properties, clock: Callable[[], float] = time.monotonic) -> None:
        self._properties = properties
        self._clock = clock
        self._admin: AdminClient | None = None
        self._notes = Notes()
        self._asked: list[Future[Any]] = []

    def __repr__(self) -> str:
        return f"<Topics {'connected' if self._admin else 'closed'}>"

    def close(self) -> None:
        """Let the client go; it comes back when it is needed."""
        if self._admin is not None:
            retire_after(self._admin, self._asked)
            self._admin, self._asked = None, []

    def cluster_id(self, waiting: Waiting) -> str:
        """Return the id of the Kafka cluster."""
        future = self._ask(self._client().describe_cluster(request_timeout=REQUEST_TIMEOUT_S))
        return str(self._answer(future, waiting, "asking for the cluster's id").cluster_id)

    def names(self, waiting: Waiting) -> list[str]:
        """Return the names of all topics that we may see; raises Retriable or KafkaRefused, soon, while there is no broker to ask."""
        self.cluster_id(waiting)  # an answer that is waited for as every other one, and says what is wrong
        try:
            return sorted(self._client().list_topics(timeout=REQUEST_TIMEOUT_S).topics)
        except KafkaException as error:
            raise raised(error, "listing the topics", transactional=False) from None

    def brokers(self, waiting: Waiting) -> list[int]:
        """Return the ids of the brokers that are up."""
        future = self._ask(self._client().describe_cluster(request_timeout=REQUEST_TIMEOUT_S))
        return [node.id for node in self._answer(future, waiting, "asking for the brokers").nodes]

    def broker_config(self, waiting: Waiting) -> dict[str, str]:
        """Return the configuration of one broker; raises KafkaRefused when we may not read it."""
        resource = ConfigResource(ResourceType.BROKER, str(self.brokers(waiting)[0]))
        future = self._ask(self._client().describe_configs([resource], request_timeout=REQUEST_TIMEOUT_S)[resource])
        entries = self._answer(future, waiting, "reading the broker's configuration")
        return {name: entry.value for name, entry in entries.items() if entry.value is not None}

    def transaction_max_timeout_ms(self, waiting: Waiting) -> int:
        """Return the longest Kafka transaction that the broker takes."""
        try:
            config = self.broker_config(waiting)
        except KafkaRefused:
            return DEFAULT_TRANSACTION_MAX_TIMEOUT_MS
        return int(config.get("transaction.max.timeout.ms", DEFAULT_TRANSACTION_MAX_TIMEOUT_MS))

    def describe(self, names: Collection[str], waiting: Waiting) -> dict[str, Topic | Fault]:
        """Describe topics; a topic that is missing, forbidden or illegal is told by its Fault.

        Raises Retriable while the broker cannot be asked.
        """
        found: dict[str, Topic | Fault] = {}
        legal = []
        for name in names:
            if (fault := name_fault(name)) is None:
                legal.append(name)
            else:
                found[name] = Fault(Code.TOPIC_EXCEPTION, "TOPIC_EXCEPTION", f"the name is illegal: {fault}")
        if not legal:
            return found
        client = self._client()
        described = self._ask_all(
            client.describe_topics(TopicCollection(legal), include_authorized_operations=True, request_timeout=REQUEST_TIMEOUT_S)
        )
        resources = {name: ConfigResource(ResourceType.TOPIC, name) for name in legal}
        configs = self._ask_all(client.describe_configs(list(resources.values()), request_timeout=REQUEST_TIMEOUT_S))
        for name in legal:
            description = self._try(described[name], waiting, f"describing topic {name!r}")
            entries = self._try(configs[resources[name]], waiting, f"reading the configuration of topic {name!r}")
            if isinstance(description, Fault):
                found[name] = description
            elif isinstance(entries, Fault):
                found[name] = entries
            else:
                found[name] = _topic(name, description, entries)
        return found

    def partitions(self, names: Collection[str], waiting: Waiting) -> dict[str, int]:
        """Return the number of partitions of each topic; raises KafkaRefused for one that cannot be read."""
        described = self._ask_all(self._client().describe_topics(TopicCollection(list(names)), request_timeout=REQUEST_TIMEOUT_S))
        counts = {}
        for name in names:
            found = self._try(described[name], waiting, f"describing topic {name!r}")
            if isinstance(found, Fault):
                msg = f"topic {name!r} cannot be read: {found}"
                raise KafkaRefused(msg, "see its name, and grant READ and DESCRIBE on it")
            counts[name] = len(found.partitions)
        return counts

    def create(self, name: str, create: Create, config: Mapping[str, str], waiting: Waiting) -> Created:
        """Create a topic and wait until it can be described; another broker may still not know it a moment later."""
        topic = NewTopic(
            name,
            num_partitions=create.partitions,
            replication_factor=create.replication_factor,
            config={"min.insync.replicas": str(create.min_insync_replicas), **config},
        )
        future = self._ask(self._client().create_topics([topic], request_timeout=REQUEST_TIMEOUT_S)[name])
        doing = f"creating topic {name!r}"
        outcome = self._try(future, waiting, doing)
        if isinstance(outcome, Fault) and outcome.code != Code.TOPIC_ALREADY_EXISTS:
            raise exception(outcome, doing, transactional=False)
        deadline = self._clock() + CREATION_PATIENCE_S
        while isinstance(found := self.describe([name], waiting)[name], Fault):
            if found.code not in MISSING:
                raise exception(found, doing, transactional=False)
            if self._clock() >= deadline:
                msg = f"topic {name!r} was created, but the broker does not show it"
                raise Retriable(msg)
            self._pause(waiting)
        return Created(found, outcome is None)

    def offsets(self, partitions: Mapping[TopicPartition, OffsetSpec], isolation: Any, waiting: Waiting) -> list[int]:  # noqa: ANN401 - an enum without a public stub
        """Ask the partitions' leaders for offsets (ListOffsets), in the order of `partitions`."""
        deadline = self._clock() + LEADER_PATIENCE_S
        while True:
            try:
                return self._offsets(partitions, isolation, waiting)
            except Retriable:
                if self._clock() >= deadline:
                    raise
                self._pause(waiting)

    def _offsets(self, partitions: Mapping[TopicPartition, OffsetSpec], isolation: Any, waiting: Waiting) -> list[int]:  # noqa: ANN401 - see above
        futures = self._ask_all(self._client().list_offsets(dict(partitions), isolation_level=isolation, request_timeout=REQUEST_TIMEOUT_S))
        doing = f"asking for the offsets of {', '.join(sorted({partition.topic for partition in partitions}))}"
        return [self._answer(futures[partition], waiting, doing).offset for partition in partitions]

    def _client(self) -> AdminClient:
        if self._admin is None:
            self._notes = Notes()
            self._admin = make(AdminClient, self._properties, self._notes)
        # What it said before this request is no reason to give this one up.
        self._notes.last = None
        return self._admin

    def _ask(self, future: Future[Any]) -> Future[Any]:
        """Remember a request until it is answered: the client must not go before."""
        self._asked = [*(each for each in self._asked if not each.done()), future]
        return future

    def _ask_all(self, futures: dict[Key, Future[Any]]) -> dict[Key, Future[Any]]:
        """Remember the requests for several things."""
        for future in futures.values():
            self._ask(future)
        return futures

    def _answer(self, future: Future[Any], waiting: Waiting, doing: str) -> Any:  # noqa: ANN401 - the request's own type
        outcome = self._try(future, waiting, doing)
        if isinstance(outcome, Fault):
            raise exception(outcome, doing, transactional=False)
        return outcome

    def _try(self, future: Future[Any], waiting: Waiting, doing: str) -> Any:  # noqa: ANN401 - the request's own type
        """Return the answer, or the Fault that the broker gave instead; raise when the broker could not be asked."""
        assert self._admin is not None, "a request was made"
        try:
            return answer(future, self._admin, self._notes, waiting, doing)
        except Retriable:
            self.close()
            raise
        except KafkaException as error:
            fault = fault_of(error.args[0])
            if remedy(fault, transactional=False) is Remedy.REPEAT:
                failure = unanswered(fault, self._notes, doing)
                self.close()
                raise failure from None
            return fault

    def _pause(self, waiting: Waiting) -> None:
        until = self._clock() + PAUSE_S
        while self._clock() < until:
            waiting()
            time.sleep(0.003)


def _topic(name: str, description: Any, entries: Mapping[str, Any]) -> Topic:  # noqa: ANN401 - the client's own types
    operations: Iterable[AclOperation] | None = description.authorized_operations
    # A broker that does not tell our rights is believed to grant them; a refusal then shows at the commit.
    allowed = None if not operations else set(operations)
    return Topic(
        name=name,
        partitions=len(description.partitions),
        replication_factor=min((len(partition.replicas) for partition in description.partitions), default=0),
        config={key: entry.value for key, entry in entries.items() if entry.value is not None},
        readable=allowed is None or AclOperation.READ in allowed,
        writable=allowed is None or AclOperation.WRITE in allowed,
        in_sync=min((len(partition.isr) for partition in description.partitions), default=0),
    )


def refusal(name: str, fault: Fault) -> tuple[str, str]:
    """Return why a topic cannot take records, and what to do."""
    if fault.code in MISSING:
        return f"topic {name!r} does not exist", "create it, or let cdc do so with topics.create"
    if fault.code == Code.TOPIC_AUTHORIZATION_FAILED:
        return f"we may not use topic {name!r}", "grant WRITE, DESCRIBE and DESCRIBE_CONFIGS on it"
    return f"topic {name!r} cannot be used: {fault.text}", "see topics.route and the topic column"


def earliest() -> OffsetSpec:
    """Ask for the first offset that is still there."""
    spec: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
    return spec


def latest() -> OffsetSpec:
    """Ask for the end."""
    spec: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    return spec


def at_time(timestamp_ms: int) -> OffsetSpec:
    """Ask for the first record of this time or later."""
    spec: OffsetSpec = OffsetSpec.for_timestamp(timestamp_ms)
    return spec
