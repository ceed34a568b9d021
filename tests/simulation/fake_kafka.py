"""A simulated Kafka cluster and a Publisher on it: deterministic, in one thread, with faults on demand.

Strategy: `Cluster` is the broker: producer epochs, open transactions, the last stable offset, topics with limits. It knows
nothing of the pipeline. `FakePublisher` implements the Publisher port on it with the semantics of the real one: what the
broker refuses shows at the commit, a newer epoch fences, a lost answer leaves the outcome unknown.

Faults are chosen by a hook that sees every request before the cluster does:

    OK      the request is done and answered
    REJECT  nothing is done; the client sees an error
    LOST    the request is done; the client sees an error (fail after)
    HOLD    the client gives up; the request stays on its way until `Cluster.release` lets it arrive, perhaps too late

A zombie needs no hook: keep a FakePublisher, let another recover, use the first one again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeVar

from cdc.errors import Fenced, InvalidEvent, KafkaRefused, Poisoned, Retriable
from cdc.event import Record, Route, record_size
from cdc.kafka.limits import name_fault
from cdc.position import Position

Waiting = Callable[[], None]
Answer = TypeVar("Answer")

PATIENCE = 3
"""How many times a client calls `waiting` before it gives up a request that is held."""


class Verb(Enum):
    """The requests that a fault can meet."""

    PEEK = "peek"
    INIT = "init"
    READ = "read"
    DESCRIBE = "describe"
    PRODUCE = "produce"
    COMMIT = "commit"
    ABORT = "abort"


class Outcome(Enum):
    """What becomes of a request."""

    OK = "ok"
    REJECT = "reject"
    LOST = "lost"
    HOLD = "hold"


Hook = Callable[[Verb, str], Outcome]
"""Chooses the outcome of a request, by verb and transactional id."""


class BrokerError(Exception):
    """The broker's answer when it refuses; `fenced` tells that the epoch is too old."""

    def __init__(self, text: str, *, fenced: bool = False) -> None:
        super().__init__(text)
        self.fenced = fenced


@dataclass
class Topic:
    """A topic and its limits."""

    name: str
    partitions: int = 1
    max_message_bytes: int = 1_048_588
    compacted: bool = False
    timestamp_before_ms: int | None = None
    timestamp_after_ms: int | None = 3_600_000
    writable: bool = True


@dataclass
class Entry:
    """One offset of a partition: a record, or the marker that ends a transaction (record None)."""

    producer: str
    epoch: int
    record: Record | None
    committed: bool | None = None


@dataclass
class Transaction:
    """An open transaction of one epoch."""

    epoch: int
    opened_at: float
    timeout_s: float
    entries: list[tuple[str, int, Entry]] = field(default_factory=list)


class Cluster:
    """The broker's side. `clock` is the broker's clock in seconds since 1970."""

    def __init__(self, cluster_id: str = "fake-cluster", clock: Callable[[], float] = lambda: 1_800_000_000.0) -> None:
        self.cluster_id = cluster_id
        self.clock = clock
        self.hook: Hook = lambda _verb, _producer: Outcome.OK
        self.refuses: Callable[[Record], bool] = lambda _record: False
        self.topics: dict[str, Topic] = {}
        self.max_timeout_s = 900.0
        self.held: list[tuple[Verb, str, Callable[[], object]]] = []
        self._logs: dict[tuple[str, int], list[Entry]] = {}
        self._epochs: dict[str, int] = {}
        self._open: dict[str, Transaction] = {}

    def __repr__(self) -> str:
        return f"<Cluster {len(self.topics)} topics, {len(self._open)} open, {len(self.held)} held>"

    # topics

    def create(self, topic: Topic) -> None:
        """Make a topic, or change the limits and add partitions of one."""
        self.topics[topic.name] = topic
        for partition in range(topic.partitions):
            self._logs.setdefault((topic.name, partition), [])

    def delete(self, name: str) -> None:
        """Delete a topic with its records."""
        for partition in range(self.topics.pop(name).partitions):
            del self._logs[name, partition]

    # what a client asks for

    def init_producer(self, producer: str) -> int:
        """Raise the epoch, and end what the older one left open (InitProducerId)."""
        if (transaction := self._open.pop(producer, None)) is not None:
            self._end(producer, transaction, commit=False)
        self._epochs[producer] = self._epochs.get(producer, -1) + 1
        return self._epochs[producer]

    def append(self, producer: str, epoch: int, record: Record, timeout_s: float = 60.0) -> None:
        """Add one record to the producer's open transaction, opening one at need (AddPartitions, Produce)."""
        self._check(producer, epoch)
        transaction = self._open.get(producer)
        if transaction is None:
            transaction = self._open[producer] = Transaction(epoch, self.clock(), timeout_s)
        topic = self.topics.get(record.topic)
        if topic is None:
            msg = "UNKNOWN_TOPIC_OR_PART"
            raise BrokerError(msg)
        refusal = "INVALID_RECORD" if self.refuses(record) else self._refusal(record, topic)
        if refusal is not None:
            raise BrokerError(refusal)
        partition = record.partition if record.partition >= 0 else partition_for(record.key, topic.partitions)
        entry = Entry(producer, epoch, record)
        self._logs[topic.name, partition].append(entry)
        transaction.entries.append((topic.name, partition, entry))

    def end(self, producer: str, epoch: int, *, commit: bool) -> None:
        """Commit or abort (EndTxn)."""
        self._check(producer, epoch)
        transaction = self._open.pop(producer, None)
        if transaction is None:
            if commit:
                msg = "INVALID_TXN_STATE"
                raise BrokerError(msg)
            return
        self._end(producer, transaction, commit=commit)

    def end_offset(self, topic: str, partition: int) -> int:
        """Return the offset after the last entry (ListOffsets for uncommitted readers)."""
        return len(self._logs[topic, partition])

    def stable_offset(self, topic: str, partition: int) -> int:
        """Return the last stable offset: the first entry of an open transaction, or the end."""
        log = self._logs[topic, partition]
        return next((i for i, entry in enumerate(log) if entry.committed is None), len(log))

    def committed(self, topic: str) -> Iterator[tuple[int, int, Record]]:
        """Yield (partition, offset, record) as a read_committed consumer sees the topic now."""
        for partition in range(self.topics[topic].partitions):
            log = self._logs[topic, partition]
            for offset in range(self.stable_offset(topic, partition)):
                entry = log[offset]
                if entry.committed and entry.record is not None:
                    yield partition, offset, entry.record

    # what happens to a cluster

    def release(self) -> int:
        """Let every held request arrive, oldest first; what the broker refuses then reaches nobody. Return their number."""
        held, self.held = self.held, []
        for _verb, _producer, request in held:
            try:
                request()
            except BrokerError:
                continue
        return len(held)

    def expire(self) -> None:
        """Abort the transactions that are open for longer than their timeout; their producers are fenced."""
        for producer, transaction in list(self._open.items()):
            if self.clock() - transaction.opened_at >= transaction.timeout_s:
                self.init_producer(producer)

    def open_transactions(self) -> list[str]:
        """Return the transactional ids with an open transaction."""
        return sorted(self._open)

    def _check(self, producer: str, epoch: int) -> None:
        self.expire()
        if epoch != self._epochs.get(producer):
            msg = "PRODUCER_FENCED"
            raise BrokerError(msg, fenced=True)

    def _end(self, producer: str, transaction: Transaction, *, commit: bool) -> None:
        touched: dict[tuple[str, int], None] = {}
        for topic, partition, entry in transaction.entries:
            entry.committed = commit
            touched[topic, partition] = None
        for place in touched:
            if place in self._logs:
                self._logs[place].append(Entry(producer, transaction.epoch, None, commit))

    def _refusal(self, record: Record, topic: Topic) -> str | None:
        ahead_ms = record.timestamp_ms - self.clock() * 1000 if record.timestamp_ms else 0
        after_ms, before_ms = topic.timestamp_after_ms, topic.timestamp_before_ms
        refusals = {
            "TOPIC_AUTHORIZATION_FAILED": not topic.writable,
            "MSG_SIZE_TOO_LARGE": record_size(record) > topic.max_message_bytes,
            "_UNKNOWN_PARTITION": record.partition >= topic.partitions,
            "INVALID_RECORD": topic.compacted and record.key is None,
            "INVALID_TIMESTAMP": (after_ms is not None and ahead_ms > after_ms) or (before_ms is not None and -ahead_ms > before_ms),
        }
        return next((name for name, refused in refusals.items() if refused), None)


class FakePublisher:
    """The Publisher port on a Cluster."""

    def __init__(
        self, cluster: Cluster, *, name: str, position_topic: str, timeout_s: float = 60.0, message_max_bytes: int = 1_000_000
    ) -> None:
        self.cluster = cluster
        self._name = name
        self._id = f"cdc-{name}"
        self._position_topic = position_topic
        self._usual_timeout_s = self._timeout_s = timeout_s
        self._message_max_bytes = message_max_bytes
        self._epoch: int | None = None
        self._open = False
        self._poison: str | None = None
        self._culprit: Record | None = None
        self._blaming = False

    def __repr__(self) -> str:
        return f"<FakePublisher {self._name} epoch={self._epoch}>"

    @property
    def transaction_timeout_s(self) -> float:
        """How long the broker lets a Kafka transaction of this passage stay open."""
        return self._timeout_s

    @property
    def full(self) -> bool:
        """Never: what is produced lies in Kafka."""
        return False

    def peek(self) -> tuple[Position | None, str]:
        """Return the last committed position as far as it can be seen without fencing, and the Kafka cluster's id."""
        return self._request(Verb.PEEK, self._last, _nothing), self.cluster.cluster_id

    def last(self) -> Position | None:
        """Return the last committed position: nothing is hidden here, and a request may fail as any other."""
        return self._request(Verb.PEEK, self._last, _nothing)

    def recover(self, waiting: Waiting, *, patient: bool = False, blaming: bool = False) -> Position | None:
        """Fence older instances, then return the last position that they committed."""
        self.drop()
        self._blaming = blaming
        self._timeout_s = self.cluster.max_timeout_s if patient else self._usual_timeout_s
        self._epoch = self._request(Verb.INIT, lambda: self.cluster.init_producer(self._id), waiting)
        return self._request(Verb.READ, self._newest, waiting)

    def route(self, topic: str, waiting: Waiting) -> Route:
        """Open a route before its first record; raises InvalidEvent("route", ..) for a topic that cannot take records."""
        if (fault := name_fault(topic)) is not None:
            reason, what = "route", f"topic {topic!r} cannot be used: {fault}"
            raise InvalidEvent(reason, what)
        found = self._request(Verb.DESCRIBE, lambda: self.cluster.topics.get(topic), waiting)
        if found is None or not found.writable:
            reason, what = "route", f"topic {topic!r} does not exist" if found is None else f"we may not write to topic {topic!r}"
            raise InvalidEvent(reason, what)
        return Route(
            topic=topic,
            partitions=found.partitions,
            max_message_bytes=min(found.max_message_bytes, self._message_max_bytes),
            compacted=found.compacted,
            timestamp_before_ms=found.timestamp_before_ms,
            timestamp_after_ms=found.timestamp_after_ms,
        )

    def require(self, topics: Sequence[str], waiting: Waiting) -> None:
        """Open the topics that no row can change; raises KafkaRefused for one that cannot take records."""
        for topic in topics:
            try:
                self.route(topic, waiting)
            except InvalidEvent as error:
                raise KafkaRefused(error.what, error.fix) from None

    def produce(self, records: Sequence[Record], waiting: Waiting) -> None:
        """Hand over records in order."""
        epoch = self._live()
        self._open = True
        self._request(Verb.PRODUCE, lambda: self._append(epoch, records), waiting)

    def commit(self, position: Position, waiting: Waiting) -> None:
        """Commit what was produced and the position together, or raise; the outcome is then unknown."""
        epoch = self._live()
        record = Record(self._position_topic, self._name.encode(), position.to_json(), [], 0, 0)

        def request() -> None:
            # The position travels with the commit: a held commit brings both, or neither, when it arrives.
            self._append(epoch, [record])
            if self._poison is not None:
                headers = dict(self._culprit.headers) if self._blaming and self._culprit else {}
                raise Poisoned(f"Kafka, committing: {self._poison}", place=headers.get("ce_sequence"), why=self._poison)
            self.cluster.end(self._id, epoch, commit=True)

        self._request(Verb.COMMIT, request, waiting)
        self._open = False

    def abort(self, timeout_s: float) -> None:
        """On the way out of the process: abort the Kafka transaction under way, once."""
        del timeout_s
        if self._epoch is None or not self._open:
            return
        epoch, self._epoch = self._epoch, None
        try:
            self._request(Verb.ABORT, lambda: self.cluster.end(self._id, epoch, commit=False), _nothing)
        except Retriable:
            return

    def drop(self) -> None:
        """Forget the producer as it is."""
        self._epoch, self._open, self._poison, self._culprit = None, False, None, None

    def _live(self) -> int:
        assert self._epoch is not None, "a producer is used from recover until its first error"
        return self._epoch

    def _append(self, epoch: int, records: Sequence[Record]) -> None:
        for record in records:
            try:
                self.cluster.append(self._id, epoch, record, self._timeout_s)
            except BrokerError as error:
                if error.fenced:
                    raise
                # As with librdkafka: a failed delivery shows at the commit, and nothing of the transaction survives.
                if self._poison is None:
                    self._poison, self._culprit = str(error), record

    def _last(self) -> Position | None:
        return self._find(self.cluster.committed(self._topic()))

    def _newest(self) -> Position | None:
        topic = self._topic()
        if self.cluster.stable_offset(topic, 0) < self.cluster.end_offset(topic, 0):
            msg = f"topic {topic!r}: another producer's Kafka transaction is open there"
            raise Retriable(msg)
        return self._find(self.cluster.committed(topic))

    def _find(self, records: Iterator[tuple[int, int, Record]]) -> Position | None:
        value = None
        for _partition, _offset, record in records:
            if record.key == self._name.encode():
                value = record.value
        return None if value is None else Position.from_json(value)

    def _topic(self) -> str:
        if self._position_topic not in self.cluster.topics:
            msg = f"the position topic {self._position_topic!r} does not exist"
            raise KafkaRefused(msg, "run `cdc init`")
        return self._position_topic

    def _request(self, verb: Verb, request: Callable[[], Answer], waiting: Waiting) -> Answer:
        outcome = self.cluster.hook(verb, self._id)
        waiting()
        try:
            if outcome is Outcome.OK:
                return request()
            if outcome is Outcome.LOST:
                request()
        except Poisoned:
            self._epoch = None
            raise
        except BrokerError as error:
            self._epoch = None
            what = f"Kafka, {verb.value}: {error}"
            raise (Fenced if error.fenced else Retriable)(what) from None
        self._epoch = None
        if outcome is Outcome.HOLD:
            self.cluster.held.append((verb, self._id, request))
            for _ in range(PATIENCE):
                waiting()
        msg = f"Kafka, {verb.value}: {outcome.value}"
        raise Retriable(msg)


def partition_for(key: bytes | None, partitions: int) -> int:
    """Return the partition that Java clients give a key (murmur2); a record without key goes to the first one here."""
    return 0 if key is None else (murmur2(key) & 0x7FFFFFFF) % partitions


def murmur2(data: bytes) -> int:
    """MurmurHash2 as in org.apache.kafka.common.utils.Utils, as an unsigned number."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = 0x9747B28C ^ len(data)
    whole = len(data) & ~3
    for i in range(0, whole, 4):
        k = int.from_bytes(data[i : i + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = (h * m & mask) ^ k
    if tail := data[whole:]:
        h = (h ^ int.from_bytes(tail, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15


def _nothing() -> None:
    """Nobody has to be kept waiting."""
