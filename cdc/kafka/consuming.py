"""A consumer's Broker and Member over Kafka: the group's membership, records, offsets and the partitions' ends.

Rules.
- Callbacks of a rebalance come inside of `consume`, in the polling thread: what the listener sees is whole.
- The offset of a record is committed as the next one's, as Kafka has it; markers and aborted records at a partition's end are
  passed by its EOF.
- An asynchronous commit is answered inside of `consume`, by librdkafka's callback.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from cdc.errors import KafkaRefused
from cdc.event import Place, Seen
from cdc.kafka.client import Notes, fault_of, make, raised
from cdc.kafka.faults import Code, Remedy, exception, remedy
from cdc.kafka.moving import Mover
from cdc.kafka.properties import Properties, admin_properties, client_properties, consumer_properties
from cdc.kafka.topics import Create, Topic, Topics
from cdc.resilience.call import nobody_waits

FETCH: Final = 1_000
"""Records that one look takes."""

LEAVE_S: Final = 5.0
"""How long leaving the group may take. A member that does not leave is missed after session.timeout.ms."""

METADATA_MS: Final = 2_000
"""How often Kafka is asked for its topics, so that one that is made later is found soon."""

EVICTED: Final = -147
"""_MAX_POLL_EXCEEDED: we did not poll for max.poll.interval.ms."""

RETENTION_MS: Final = 604_800_000
"""Kafka's own retention.ms, for a topic that does not tell: a week."""


class Listener(Protocol):
    """Who polls: see cdc.consumer.ports, from where this room imports nothing."""

    def assigned(self, places: Sequence[Place]) -> None: ...  # noqa: D102 - see there
    def revoked(self, places: Sequence[Place]) -> None: ...  # noqa: D102 - see there
    def lost(self, places: Sequence[Place]) -> None: ...  # noqa: D102 - see there
    def at_end(self, place: Place, offset: int) -> None: ...  # noqa: D102 - see there
    def committed(self, offsets: Mapping[Place, int], error: str = "") -> None: ...  # noqa: D102 - see there
    def hitch(self, what: str) -> None: ...  # noqa: D102 - see there


class KafkaBroker:
    """Kafka as a consumer's Broker; `dead_letter` is the topic of its dead letters, and all its moves use one producer's id.

    `kafka` are librdkafka's properties, checked at once; `instance` becomes the group.instance.id.
    """

    def __init__(self, *, group: str, kafka: Mapping[str, object], instance: str | None, dead_letter: str, create: Create | None) -> None:
        self._group = group
        self._kafka = client_properties(kafka)
        self._instance = instance
        self._dead_letter = dead_letter
        self._create = create

    def __repr__(self) -> str:
        return f"<KafkaBroker for {self._group}>"

    def prepare(self, topics: Sequence[str], own: Sequence[str]) -> Mapping[str, int]:
        """See cdc.consumer.ports.Broker."""
        admin = Topics(admin_properties(self._kafka, self._group))
        try:
            if self._create is not None:
                for name in own:
                    admin.create(name, self._create, {}, nobody_waits)
            described = admin.describe(list(topics), nobody_waits)
            return {name: int(each.config.get("retention.ms", RETENTION_MS)) for name, each in described.items() if isinstance(each, Topic)}
        finally:
            admin.close()

    def member(self, topics: Sequence[str], own: Sequence[str]) -> KafkaMember:
        """See cdc.consumer.ports.Broker."""
        return KafkaMember(self._properties(), topics, own)

    def mover(self) -> Mover:
        """Make what moves records. The group's generation fences, not the producer's id; an instance's own id ends sooner what was left."""
        name = f"{self._group}-moves-{self._instance or uuid.uuid4().hex[:12]}"
        return Mover(name=name, group=self._group, kafka=self._kafka, topic=self._dead_letter, create=self._create)

    def _properties(self) -> Properties:
        return consumer_properties(
            {"partition.assignment.strategy": "cooperative-sticky", "topic.metadata.refresh.interval.ms": METADATA_MS, **self._kafka},
            self._group,
        ) | {
            "group.id": self._group,
            "auto.offset.reset": "earliest",
            **({} if self._instance is None else {"group.instance.id": self._instance}),
        }


class KafkaMember:
    """See cdc.consumer.ports.Member."""

    def __init__(self, properties: Properties, topics: Sequence[str], own: Sequence[str]) -> None:
        self._topics = [*topics, *own]
        self._own = frozenset(own)
        self._notes = Notes()
        self._kafka = make(Consumer, {**properties, "on_commit": self._on_commit}, self._notes)
        self._listener: Listener

    def __repr__(self) -> str:
        return f"<KafkaMember of {', '.join(self._topics)}>"

    def join(self, listener: Listener) -> None:
        """Subscribe."""
        self._listener = listener
        self._kafka.subscribe(
            self._topics,
            on_assign=lambda _, partitions: listener.assigned(_places(partitions)),
            on_revoke=lambda _, partitions: listener.revoked(_places(partitions)),
            on_lost=lambda _, partitions: listener.lost(_places(partitions)),
        )

    def fetch(self, wait_s: float) -> Sequence[Seen]:
        """Take what is here."""
        try:
            messages = self._kafka.consume(1, wait_s) if wait_s else []
            messages += self._kafka.consume(FETCH, 0)
        except KafkaException as failure:
            raise raised(failure, "consuming", transactional=False) from None
        records = []
        for message in messages:
            error = message.error()
            if error is None:
                records.append(_seen(message))
            else:
                self._told(message, error)
        self._notes.check("consuming")
        return records

    def _told(self, message: Message, error: KafkaError) -> None:
        """Take what is no record; raises for what nothing heals."""
        fault = fault_of(error)
        if fault.fatal or fault.code == Code.FATAL:
            raise KafkaRefused(f"Kafka, while consuming: {fault}", "give each process of a consumer an instance name of its own")
        if fault.code == Code.PARTITION_EOF:
            topic, partition, offset = message.topic(), message.partition(), message.offset()
            assert topic is not None, "an EOF has a place"
            assert partition is not None, "an EOF has a place"
            assert offset is not None, "an EOF has a place"
            self._listener.at_end((topic, partition), offset)
        elif fault.code == EVICTED:
            self._listener.hitch("this member did not poll within max.poll.interval.ms and was evicted; it joins again")
        elif remedy(fault, transactional=False) is Remedy.EXIT and message.topic() not in self._own:
            raise exception(fault, "consuming", transactional=False)
        elif message.topic() not in self._own:
            if fault.code in (Code.UNKNOWN_TOPIC, Code.UNKNOWN_TOPIC_OR_PART):
                self._listener.hitch(
                    f"topic {message.topic()} does not exist yet, and is read once it does. Fix: publish an event, or correct topics="
                )
                return
            self._listener.hitch(f"Kafka: {fault.name}" + (f" for topic {message.topic()}" if message.topic() else ""))

    def pause(self, places: Sequence[Place]) -> None:
        """See cdc.consumer.ports.Member."""
        self._kafka.pause([TopicPartition(*place) for place in places])

    def resume(self, places: Sequence[Place]) -> None:
        """See cdc.consumer.ports.Member."""
        self._kafka.resume([TopicPartition(*place) for place in places])

    def commit(self, offsets: Mapping[Place, int]) -> None:
        """Commit offsets; the answer comes by `_on_commit`."""
        try:
            self._kafka.commit(offsets=_partitions(offsets), asynchronous=True)
        except KafkaException as error:
            self._listener.committed({}, fault_of(error.args[0]).name)

    def _on_commit(self, error: KafkaError | None, partitions: Sequence[TopicPartition]) -> None:
        if error is not None:
            self._listener.committed({}, fault_of(error).name)
            return
        good = {(each.topic, each.partition): each.offset for each in partitions if each.error is None}
        left = len(partitions) - len(good)
        self._listener.committed(good, f"refused for {left} partitions" if left else "")

    def hand_over(self, offsets: Mapping[Place, int]) -> Mapping[Place, int]:
        """Commit offsets inside of a callback, where nothing but the call itself may wait."""
        try:
            self._kafka.commit(offsets=_partitions(offsets), asynchronous=False)
        except KafkaException as error:
            self._listener.hitch(f"offsets were not committed: {fault_of(error.args[0]).name}")
            return {}
        return offsets

    def ticket(self, _: Place) -> object:
        """Return the group's metadata: its generation guards the offsets in a Kafka transaction."""
        return self._kafka.consumer_group_metadata()

    def lag(self, place: Place, here: int | None) -> int | None:
        """Return how many offsets are not settled, as far as the last fetch tells."""
        try:
            _, end = self._kafka.get_watermark_offsets(TopicPartition(*place), cached=True)
        except KafkaException:
            return None
        return None if end < 0 or here is None else max(0, end - here)

    def leave(self) -> None:
        """Leave the group; a broker that is away must not keep the process."""
        leaving = threading.Thread(target=self._kafka.close, name="cdc-consumer-leaving", daemon=True)
        leaving.start()
        leaving.join(LEAVE_S)


def _seen(message: Message) -> Seen:
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None, "a record has a place"
    assert partition is not None, "a record has a place"
    assert offset is not None, "a record has a place"
    headers: Any = message.headers() or []
    key: Any = message.key()
    value: Any = message.value()
    return Seen(topic, partition, offset, key, value, headers, message.timestamp()[1])


def _places(partitions: Sequence[TopicPartition]) -> list[Place]:
    return [(each.topic, each.partition) for each in partitions]


def _partitions(offsets: Mapping[Place, int]) -> list[TopicPartition]:
    return [TopicPartition(*place, offset) for place, offset in offsets.items()]
