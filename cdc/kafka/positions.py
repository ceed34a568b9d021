"""The position topic: the last record that a pipeline committed, read from the end backwards; verified; created by init.

Rules.
- The end is what the leader answers to ListOffsets for uncommitted readers, asked after the fence. The last stable offset or
  an EOF is not the end: behind another writer's open Kafka transaction both hide positions that we have committed, and an
  older position publishes everything after it once more.
- Everything below that end is waited for. While somebody else's Kafka transaction is open on the topic we wait, say so, and
  then go through the door again; there is no way around it that is safe. It may be one of ours: a coordinator that commits or
  aborts while a partition has no leader leaves out its marker there, and calls the transaction complete (Kafka 4.4.0,
  TransactionMarkerChannelManager and KRaftMetadataCache.getPartitionLeaderEndpoint). Which of the two it decided, nobody
  can be asked: a marker of ours could lose events as well as double them.
- The topic is compacted, but its active segment never is: a reader from the beginning would read millions of records. So the
  last thousand are read first, then twice as many, and so on.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from confluent_kafka import Consumer, IsolationLevel, KafkaException, Message, TopicPartition

from cdc.errors import KafkaRefused, Retriable
from cdc.kafka.client import LOG, PAUSE_S, Notes, Waiting, learn, make, raised, retire, usable
from cdc.kafka.faults import Fault, exception
from cdc.kafka.properties import Properties
from cdc.kafka.topics import MISSING, Create, Topic, Topics, earliest, latest
from cdc.position import Position

SPAN = 1_000
"""Offsets that the first look from the end takes in; a commit takes two (the record and the end of its transaction)."""

READ_PATIENCE_S = 30.0
"""How long the position may be out of sight before we go through the door again."""

FOREIGN_WARN_S = 1.0
"""How long somebody else's Kafka transaction may stay open on the topic before it is worth a warning."""

FETCH = 500
"""Records that one call hands over."""

CONFIG = {
    "cleanup.policy": "compact",
    "segment.bytes": str(16 * 1024 * 1024),
    "min.cleanable.dirty.ratio": "0.1",
    "unclean.leader.election.enable": "false",
}
"""What init gives a new position topic, beside min.insync.replicas."""

SAFE_REPLICAS = 3
"""From this many replicas on, one that acknowledges alone is a needless way to lose positions."""


class PositionTopic:
    """The topic that holds one pipeline's positions, one record for each commit, keyed by the pipeline's name."""

    def __init__(
        self,
        topic: str,
        pipeline: str,
        topics: Topics,
        consumer: Properties,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.topic = topic
        self._key = pipeline.encode()
        self._topics = topics
        self._consumer = consumer
        self._clock = clock
        self._reader: _Reader | None = None

    def __repr__(self) -> str:
        return f"<PositionTopic {self.topic}>"

    def exists(self, waiting: Waiting) -> bool:
        """Tell whether the topic is there; raises KafkaRefused when we may not know."""
        found = self._topics.describe([self.topic], waiting)[self.topic]
        if isinstance(found, Fault) and found.code not in MISSING:
            raise exception(found, f"describing the position topic {self.topic!r}", transactional=False)
        return isinstance(found, Topic)

    def create(self, replication_factor: int, min_insync_replicas: int, waiting: Waiting) -> bool:
        """Create the topic as it must be; return False when it was there already."""
        return self._topics.create(self.topic, Create(1, replication_factor, min_insync_replicas), CONFIG, waiting).new

    def verify(self, waiting: Waiting) -> None:
        """Raise KafkaRefused unless the topic is there, is ours to use, and keeps the last position whatever happens.

        Raises Retriable while too few replicas are in sync for a commit.
        """
        found = self._topics.describe([self.topic], waiting)[self.topic]
        if isinstance(found, Fault):
            if found.code in MISSING:
                msg = f"the position topic {self.topic!r} does not exist"
                raise KafkaRefused(msg, "run `cdc init`; if it existed before, see `cdc recover`")
            raise exception(found, f"describing the position topic {self.topic!r}", transactional=False)
        for wrong, fix in flaws(found):
            msg = f"the position topic {self.topic!r} is not safe: {wrong}"
            raise KafkaRefused(msg, fix)
        needed = min(int(found.config.get("min.insync.replicas", "1")), found.replication_factor)
        if found.in_sync < needed:
            # The client only says that its records timed out, and waits for the fence without a word.
            msg = f"the position topic {self.topic!r} has {found.in_sync} of {needed} replicas in sync (NOT_ENOUGH_REPLICAS)"
            raise Retriable(msg, "bring the missing brokers back: min.insync.replicas asks for them, and nothing can be committed before")

    def peek(self, waiting: Waiting) -> Position | None:
        """Return the last position that a reader sees now; an open Kafka transaction may hide a newer one."""
        return self._last(IsolationLevel.READ_COMMITTED, waiting)

    def read(self, waiting: Waiting) -> Position | None:
        """Return the last position that was committed; only after the fence does nothing newer follow."""
        return self._last(IsolationLevel.READ_UNCOMMITTED, waiting)

    def prepare(self) -> None:
        """Let the consumer of the next `peek` or `read` connect while the caller has other things to do."""
        if self._reader is None:
            self._reader = _Reader(self.topic, self._consumer, self._clock)

    def close(self) -> None:
        """Let a consumer go that was prepared and is not needed."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _last(self, isolation: IsolationLevel, waiting: Waiting) -> Position | None:
        self.prepare()
        reader, self._reader = self._reader, None
        assert reader is not None, "it was made just now"
        try:
            partition = TopicPartition(self.topic, 0)
            (low,) = self._topics.offsets({partition: earliest()}, isolation, waiting)
            (end,) = self._topics.offsets({partition: latest()}, isolation, waiting)
            if end <= low:
                return None
            stop, span = end, SPAN
            while True:
                start = max(low, end - span)
                found, value = reader.last(self._key, start, stop, waiting)
                if found:
                    return None if value is None else Position.from_json(value)
                if start == low:
                    return None
                stop, span = start, span * 2
        finally:
            reader.close()


def flaws(topic: Topic) -> list[tuple[str, str]]:
    """Return what is wrong with a position topic, each with its fix."""
    config = topic.config
    found = []
    if topic.partitions != 1:
        found.append((f"it has {topic.partitions} partitions and must have 1", "make another, and name it in topics.position"))
    if not topic.readable or not topic.writable:
        found.append(("we may not read or not write it", "grant READ, WRITE, DESCRIBE and DESCRIBE_CONFIGS on it"))
    if config.get("cleanup.policy", "compact") != "compact":
        fix = "set cleanup.policy=compact: with delete a quiet week erases the position"
        found.append((f"cleanup.policy is {config['cleanup.policy']!r}", fix))
    if config.get("unclean.leader.election.enable", "false") != "false":
        found.append(("unclean.leader.election.enable is true", "set it to false: an old replica would bring an old position"))
    insync = int(config.get("min.insync.replicas", SAFE_REPLICAS))
    if topic.replication_factor >= SAFE_REPLICAS and insync < 2:  # noqa: PLR2004 - one more than one
        fix = "set min.insync.replicas=2: a position that one broker has is lost with it"
        found.append((f"min.insync.replicas is {insync} with {topic.replication_factor} replicas", fix))
    return found


class _Reader:
    """A consumer of one partition that goes where it is told."""

    def __init__(self, topic: str, properties: Properties, clock: Callable[[], float]) -> None:
        self._topic = topic
        self._clock = clock
        self._notes = Notes()
        self._consumer = make(Consumer, properties, self._notes)
        self._warned = False

    def close(self) -> None:
        retire(self._consumer)

    def last(self, key: bytes, start: int, stop: int, waiting: Waiting) -> tuple[bool, bytes | None]:
        """Return whether a committed record with this key lies in [start, stop), and the value of the last one."""
        learn(self._consumer, self._topic)
        self._consumer.assign([TopicPartition(self._topic, 0, start)])
        found, value = False, None
        began, seen = self._clock(), start
        while True:
            for message in self._fetch(waiting):
                offset = message.offset()
                assert offset is not None, "a record and an EOF have an offset"
                seen = max(seen, offset)
                if message.error() is None and offset < stop and message.key() == key:
                    found, value = True, message.value()
                if offset >= stop:
                    return found, value
            self._check(self._clock() - began, seen, stop)

    def _fetch(self, waiting: Waiting) -> list[Message]:
        """Return records and EOFs (an EOF's offset is the place that was reached)."""
        doing = f"reading topic {self._topic!r}"
        try:
            messages = self._consumer.consume(FETCH, PAUSE_S)
        except KafkaException as error:
            raise raised(error, doing, transactional=False) from None
        self._notes.check(doing)
        waiting()
        return usable(messages, doing)

    def _check(self, seconds: float, seen: int, stop: int) -> None:
        if seconds < FOREIGN_WARN_S:
            return
        reason = f"topic {self._topic!r} ends at offset {stop}, committed records are seen up to {seen}: "
        reason += "a Kafka transaction has no end there (another producer's, or one whose end Kafka lost), or the broker does not answer"
        if not self._warned:
            self._warned = True
            LOG.warning("waiting for the position: %s", reason)
        if seconds >= READ_PATIENCE_S:
            fix = f"find who writes to it: kafka-transactions.sh find-hanging, or describe-producers --topic {self._topic} --partition 0"
            raise Retriable(reason, fix)
