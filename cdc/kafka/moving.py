"""Records that leave their partition: written to another topic and settled with their offset in one Kafka transaction. A consumer's Mover.

Strategy: the group's offsets are part of the Kafka transaction (send_offsets_to_transaction), and its generation guards them.
Either the letter is there and the record is done with, or neither; a member that has lost the partition can do neither.

Rules.
- The group's metadata is taken by the thread that polls, while the partition is ours: a later generation would let us commit for a
  partition that somebody else has by then.
- A topic is looked at before its first record, and a record before it is sent: what the broker refuses would poison the Kafka
  transaction and be told a minute later (ADR 12).
- After an error the producer is dropped. Its successor has the same id: its fence ends what was left open, one way or the other,
  and then the group's offset tells which. To write the letter again without that look would park it twice.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from confluent_kafka import TopicPartition

from cdc.errors import CdcError, Retriable
from cdc.event import Record
from cdc.kafka.groups import Groups, Place
from cdc.kafka.limits import fits
from cdc.kafka.properties import admin_properties, client_properties
from cdc.kafka.publisher import KafkaPublisher
from cdc.kafka.topics import Create
from cdc.resilience.call import nobody_waits

TIMEOUT_MS: Final = 10_000
"""transaction.timeout.ms of a move. Should we be killed in the middle of one, the partition's offset is undecided for so long (and up
to 10 s more, until the broker looks), and whoever takes the partition over waits for it."""

OFFSETS_PATIENCE_S: Final = 30.0
TRIES: Final = 2
"""The first look at a topic with smaller batches than usual asks for another producer."""


class MovingPublisher(KafkaPublisher):
    """A publisher whose Kafka transactions carry a group's offsets."""

    def send_offsets(self, offsets: list[TopicPartition], group: object) -> None:
        """Make offsets of a group part of the Kafka transaction under way; raises like `commit`."""
        passage = self._passage
        assert passage is not None, "produce used a producer"
        producer = passage.producer
        self._call(
            lambda timeout_s: producer.send_offsets_to_transaction(offsets, group, timeout_s),
            OFFSETS_PATIENCE_S, nobody_waits, "sending offsets",
        )  # fmt: skip


class Mover:
    """Moves records of one consumer; used by one thread."""

    def __init__(self, *, name: str, group: str, kafka: Mapping[str, object], topic: str, create: Create | None) -> None:
        self._publisher = MovingPublisher(
            name=name, kafka={"transaction.timeout.ms": TIMEOUT_MS, **kafka}, position_topic=topic, create=create
        )
        self._groups = Groups(admin_properties(client_properties(kafka), name))
        self._group = group
        self._undecided = set[Place]()
        self._ready = False

    def __repr__(self) -> str:
        return f"<Mover {self._publisher!r}>"

    def limit_bytes(self, topic: str) -> int:
        """Return the largest record that a topic takes; raises KafkaRefused for one that takes none."""
        self._publisher.require([topic], nobody_waits)
        return self._publisher.route(topic, nobody_waits).max_message_bytes

    def move(self, record: Record, settled: Mapping[Place, int], ticket: object) -> bool:
        """Write a record and commit the offsets, both or neither; raises CdcError, and may then be called again with the same."""
        for tried in range(1, TRIES + 1):
            try:
                self.fence()
                if self._done(settled):
                    return True
                self._look(record)
                break
            except Retriable:
                self._drop()
                if tried == TRIES:
                    raise
        self._undecided |= settled.keys()
        try:
            self._publisher.produce([record], nobody_waits)
            self._publisher.send_offsets([TopicPartition(*place, offset) for place, offset in settled.items()], ticket)
            self._publisher.commit(None, nobody_waits)
        except CdcError:
            self._drop()
            raise
        self._undecided -= settled.keys()
        return True

    def fence(self) -> None:
        """End what an older producer of this name left open; needed once, and `move` sees to it."""
        if not self._ready:
            self._publisher.fence(nobody_waits)
            self._ready = True

    def _done(self, settled: Mapping[Place, int]) -> bool:
        """Whether an attempt whose outcome was unknown has moved this after all: the fence has ended it one way or the other."""
        if not self._undecided & settled.keys():
            return False
        committed = self._groups.offsets_of(self._group, nobody_waits)
        self._undecided -= settled.keys()
        return all(committed.get(place, -1) >= offset for place, offset in settled.items())

    def _look(self, record: Record) -> None:
        """See that the record's topic takes it; raises KafkaRefused or InvalidEvent."""
        self._publisher.require([record.topic], nobody_waits)
        fits(record, self._publisher.route(record.topic, nobody_waits), time.time_ns() // 1_000_000)

    def _drop(self) -> None:
        self._publisher.drop()
        self._ready = False

    def close(self) -> None:
        """Let the clients go."""
        self._publisher.close()
        self._groups.close()
        self._ready = False
