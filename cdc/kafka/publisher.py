"""The transactional producer: implements Publisher.

Strategy: one producer for one passage through the door. `recover` makes it and fences with it, `drop` forgets it; after any
error it is never used again, because the position that the next passage reads is the only answer to "did it commit?".
A Kafka transaction begins with its first record and ends with the position record and the commit. What librdkafka calls
beginning asks no broker, so it is done in one go with the call before it: each of them costs two changes of thread.

Rules.
- `produce` is the hot path, 100,000 records a second: one loop, one call for each record, no object made on the way. A full
  local queue is waited for with the same record in hand, so order is kept.
- No callback for each event: librdkafka fails the commit when a delivery failed for good (delivery.report.only.error).
- recover() fences before it reads. The other way round: A commits, B reads the old position, B fences A, and B publishes
  A's batch again.
- Every transactional call is made once (see cdc/resilience/call.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from confluent_kafka import KafkaException, Producer

from cdc.errors import CdcError, InvalidEvent, KafkaRefused, Poisoned, Retriable
from cdc.event import Record, Route
from cdc.kafka.blame import Blame
from cdc.kafka.client import LOG, PAUSE_S, SETTLED_S, Notes, Waiting, fault_of, make, meet, retire
from cdc.kafka.faults import Code, Fault, exception
from cdc.kafka.limits import route_from, topic_limit
from cdc.kafka.positions import PositionTopic
from cdc.kafka.properties import (
    BATCH_BYTES,
    MESSAGE_MAX_BYTES,
    TRANSACTION_TIMEOUT_MS,
    admin_properties,
    client_properties,
    consumer_properties,
    number,
    producer_properties,
)
from cdc.kafka.topics import MISSING, Create, Topic, Topics, refusal
from cdc.position import Position
from cdc.resilience.call import Caller, PatienceEnded, nobody_waits

INIT_PATIENCE_S = 30.0
"""How long the fence may take: the broker first ends what the older instance left open, in half a second as a rule."""

COMMIT_PATIENCE_S = 30.0
"""How long a commit may take at least; it may take what is left of the transaction timeout."""

STALL_S = 30.0
"""How long the local queue may stay full with the same record in hand."""

ROUTE_FRESH_S = 60.0
"""How long an open route is believed."""

REFUSAL_FRESH_S = 5.0
"""How long a topic that cannot take records is believed to be so: a made one is found soon, and a flood of rows for it does
not ask the broker for each."""

INIT_HINT = (
    "if the broker is up, see whether it can make its __transaction_state topic: transaction.state.log.replication.factor "
    "and transaction.state.log.min.isr must not exceed the number of brokers"
)


@dataclass(frozen=True, slots=True)
class _Passage:
    producer: Producer
    caller: Caller
    notes: Notes
    batch_bytes: int
    blame: Blame | None


@dataclass(frozen=True, slots=True)
class _Opened:
    """A route or what is wrong with it, believed until `until`."""

    until: float
    route: Route | None
    refusal: tuple[str, str] = ("", "")


class KafkaPublisher:
    """Publishes records and positions of one pipeline; used by one thread, for the whole life of the process."""

    def __init__(  # noqa: PLR0913 - plain values from the settings, by keyword
        self,
        *,
        name: str,
        kafka: Mapping[str, object],
        position_topic: str,
        create: Create | None = None,
        on_partition_change: Literal["warn", "stop"] = "warn",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._kafka = client_properties(kafka)
        self._create = create
        self._on_partition_change = on_partition_change
        self._clock = clock
        self._message_max_bytes = number(kafka, "message.max.bytes", MESSAGE_MAX_BYTES)
        self._timeout_ms = self._usual_timeout_ms = number(kafka, "transaction.timeout.ms", TRANSACTION_TIMEOUT_MS)
        self.topics = Topics(admin_properties(self._kafka, name), clock)
        self.positions = PositionTopic(position_topic, name, self.topics, consumer_properties(self._kafka, name), clock)
        self.partition_changes: dict[str, tuple[int, int]] = {}
        self._passage: _Passage | None = None
        self._opened_at: float | None = None
        self._failed = False
        self._routes: dict[str, _Opened] = {}
        self._limits: dict[str, int] = {}
        self._partitions: dict[str, int] = {}

    def __repr__(self) -> str:
        if self._passage is None:
            return f"<KafkaPublisher {self._name} without a producer>"
        state = "failed" if self._failed else "idle" if self._opened_at is None else "in a Kafka transaction"
        return f"<KafkaPublisher {self._name} {state}, {len(self._passage.producer)} records waiting>"

    @property
    def transaction_timeout_s(self) -> float:
        """How long the broker lets a Kafka transaction of this passage stay open (transaction.timeout.ms)."""
        return self._timeout_ms / 1000

    @property
    def full(self) -> bool:
        """Whether a commit is due for Kafka's sake: never, its transactions take what comes."""
        return False

    @property
    def blocked(self) -> str:
        """See Sink; Kafka says so by refusing, which is an error."""
        return ""

    @property
    def opened_at(self) -> float | None:
        """When the present Kafka transaction began, by the clock of the constructor."""
        return self._opened_at

    def peek(self) -> tuple[Position | None, str]:
        """Return the last committed position as far as it can be seen without fencing, and the Kafka cluster's id."""
        self.positions.prepare()
        self.positions.verify(nobody_waits)
        return self.positions.peek(nobody_waits), self.topics.cluster_id(nobody_waits)

    def cluster_id(self, waiting: Waiting) -> str:
        """Return the id of the Kafka cluster."""
        return self.topics.cluster_id(waiting)

    def last(self) -> Position | None:
        """See Publisher; raises Retriable while a Kafka transaction stays open there."""
        return self.positions.read(nobody_waits)

    def recover(self, waiting: Waiting, *, patient: bool = False, blaming: bool = False) -> Position | None:
        """Fence older instances, then return the last position that they committed.

        A patient passage takes the longest transaction timeout that the broker allows; a blaming one finds the record that it refuses.
        """
        self.positions.prepare()
        self.fence(waiting, patient=patient, blaming=blaming)
        return self.positions.read(waiting)

    def fence(self, waiting: Waiting, *, patient: bool = False, blaming: bool = False) -> None:
        """Fence older instances; all that a command with a transactional.id of its own, and no position, needs of recover()."""
        self._forget()
        self._timeout_ms = self._usual_timeout_ms
        if patient:
            self._timeout_ms = max(self._timeout_ms, self.topics.transaction_max_timeout_ms(waiting))
        batch_bytes = min(self._limits.values(), default=BATCH_BYTES)
        properties = producer_properties(self._kafka, self._name, transaction_timeout_ms=self._timeout_ms, batch_bytes=batch_bytes)
        if blaming:
            properties |= {"batch.num.messages": 1}
        notes = Notes()
        producer = make(Producer, properties, notes)
        caller = Caller(f"cdc-kafka-{self._name}", PAUSE_S, self._clock)
        self._passage = _Passage(producer, caller, notes, properties["batch.size"], Blame() if blaming else None)
        self._call(lambda _: meet(producer, self.positions.topic), INIT_PATIENCE_S, waiting, "looking for the brokers")
        self._call(lambda timeout_s: _fence(producer, timeout_s), INIT_PATIENCE_S, waiting, "fencing older instances", INIT_HINT)

    def route(self, topic: str, waiting: Waiting) -> Route:
        """Open a route before its first record; raises InvalidEvent("route", ..) for a topic that cannot take records.

        Answers from its cache until the broker should be asked again. Raises Retriable when its limits need another producer.
        """
        opened = self._routes.get(topic)
        if opened is None or self._clock() >= opened.until:
            opened = self._refresh(topic, waiting)
        if opened.route is None:
            raise InvalidEvent("route", *opened.refusal)
        return opened.route

    def require(self, topics: Sequence[str], waiting: Waiting) -> None:
        """Open the topics that no row can change; raises KafkaRefused, with a fix, for one that cannot take records."""
        for topic in topics:
            try:
                self.route(topic, waiting)
            except InvalidEvent as error:
                raise KafkaRefused(error.what, error.fix) from None

    def produce(self, records: Sequence[Record], waiting: Waiting) -> None:
        """Hand over records in order; calls `waiting` while the local queue is full."""
        passage = self._passage
        assert passage is not None, "recover comes first"
        assert not self._failed, "a producer is never used again after an error"
        if self._opened_at is None:
            self._opened_at = self._clock()
        producer, blame = passage.producer, passage.blame
        produce: Callable[..., None] = producer.produce
        full_since: float | None = None
        try:
            producer.poll(0)
            for record in records:
                topic, key, value, headers, timestamp_ms, partition = record
                report = blame.of(record) if blame else None
                while True:
                    try:
                        produce(topic, value, key, partition, report, None, timestamp_ms, headers)
                        break
                    except BufferError:
                        full_since = self._make_room(full_since, waiting)
                if full_since is not None:
                    full_since = None
        except KafkaException as error:
            raise self._fault(error, "handing over records") from None

    def commit(self, position: Position | None, waiting: Waiting) -> None:
        """Commit what was produced and the position (if this producer keeps one) together, or raise; the outcome is then unknown."""
        if position is not None:
            record = Record(self.positions.topic, self._name.encode(), position.to_json(), [], 0, 0)
            self.produce([record], waiting)
        passage, opened_at = self._passage, self._opened_at
        assert passage is not None, "produce used a producer"
        assert opened_at is not None, "produce began a Kafka transaction"
        patience_s = max(COMMIT_PATIENCE_S, self.transaction_timeout_s - (self._clock() - opened_at))
        self._call(lambda timeout_s: _commit(passage.producer, timeout_s), patience_s, waiting, "committing")
        self._opened_at = None

    def abort(self, timeout_s: float) -> None:
        """On the way out of the process: abort the Kafka transaction under way, once, so that readers need not wait."""
        passage = self._passage
        if passage is None or self._failed or self._opened_at is None:
            return
        try:
            self._call(passage.producer.abort_transaction, timeout_s, nobody_waits, "aborting")
        except CdcError as error:
            LOG.info("the Kafka transaction was left to its timeout: %s", error)
        self._failed = True

    def drop(self) -> None:
        """Forget the producer as it is; never blocks, safe at any time and more than once."""
        self._forget()
        self.positions.close()

    def _forget(self) -> None:
        if self._failed:
            self._routes = {}
        after_s = 0.0 if self._opened_at is None else SETTLED_S
        passage, self._passage, self._opened_at, self._failed = self._passage, None, None, False
        if passage is not None:
            passage.caller.end()
            retire(passage.producer, after_s=after_s)

    def close(self) -> None:
        """Let every client go, at the end of the process."""
        self.drop()
        self.topics.close()

    def _call(self, function: Callable[[float], object], patience_s: float, waiting: Waiting, doing: str, hint: str = "") -> None:
        """Make a transactional call once, in the helper thread; any outcome but success ends the producer's use."""
        passage = self._passage
        assert passage is not None

        def look() -> None:
            passage.producer.poll(0)
            self._check(passage, doing)
            waiting()

        self._failed = True
        try:
            passage.caller.call(function, patience_s, look)
        except KafkaException as error:
            raise self._fault(error, doing, hint) from None
        except PatienceEnded:
            said = f" (last error: {passage.notes.last})" if passage.notes.last else ""
            msg = f"Kafka gave no answer within {patience_s:.0f} s while {doing}{said}"
            raise Retriable(msg, hint) from None
        self._failed = False

    def _make_room(self, full_since: float | None, waiting: Waiting) -> float:
        passage = self._passage
        assert passage is not None
        now = self._clock()
        if full_since is not None and now - full_since >= STALL_S:
            self._failed = True
            said = f" (last error: {passage.notes.last})" if passage.notes.last else ""
            msg = f"Kafka took no record within {STALL_S:.0f} s and the local queue is full{said}"
            raise Retriable(msg)
        passage.producer.poll(0.001)
        self._check(passage, "waiting for room in the local queue")
        waiting()
        return now if full_since is None else full_since

    def _fault(self, error: KafkaException, doing: str, hint: str = "") -> CdcError:
        """Return what to raise, and never use this producer again."""
        self._failed = True
        fault = fault_of(error.args[0])
        if fault.code == Code.FATAL:
            fault = self._fatal() or fault
        found = exception(fault, doing, transactional=True)
        if isinstance(found, Poisoned):
            found = self._accuse(found)
        return found if found.fix or not hint else type(found)(found.what, hint)

    def _check(self, passage: _Passage, doing: str) -> None:
        """Raise what the producer has reported on its own."""
        try:
            passage.notes.check(doing)
        except CdcError as error:
            self._failed = True
            raise (self._accuse(error) if isinstance(error, Poisoned) else error) from None

    def _accuse(self, found: Poisoned) -> Poisoned:
        """Name the record that was refused, in a passage that looks for it."""
        assert self._passage is not None
        producer, blame = self._passage.producer, self._passage.blame
        return found if blame is None else blame.accuse(found, lambda: producer.poll(PAUSE_S), self._clock)

    def _fatal(self) -> Fault | None:
        """Return the error behind `_FATAL`, which librdkafka tells once, by poll."""
        assert self._passage is not None
        try:
            self._passage.producer.poll(0)
        except KafkaException as error:
            return fault_of(error.args[0])
        return None

    def _refresh(self, topic: str, waiting: Waiting) -> _Opened:
        """Ask the broker for this topic, and for all others that are due in the same request."""
        now = self._clock()
        names = {topic, *(name for name, opened in self._routes.items() if opened.route and now >= opened.until)}
        for name, found in self.topics.describe(sorted(names), waiting).items():
            if isinstance(found, Fault) and found.code in MISSING and self._create is not None:
                found = self.topics.create(name, self._create, {}, waiting).topic  # noqa: PLW2901 - now as it was made
            self._routes[name] = self._open(name, found)
        self._suit()
        return self._routes[topic]

    def _open(self, name: str, found: Topic | Fault) -> _Opened:
        now = self._clock()
        if isinstance(found, Fault):
            return _Opened(now + REFUSAL_FRESH_S, None, refusal(name, found))
        if not found.writable:
            return _Opened(now + REFUSAL_FRESH_S, None, (f"we may not write to topic {name!r}", "grant WRITE on it"))
        before = self._partitions.setdefault(name, found.partitions)
        if before != found.partitions:
            self._partitions[name] = found.partitions
            self._partitions_changed(name, before, found.partitions)
        self._limits[name] = topic_limit(found.config)
        return _Opened(now + ROUTE_FRESH_S, route_from(name, found.partitions, found.config, self._message_max_bytes))

    def _partitions_changed(self, name: str, before: int, after: int) -> None:
        what = f"topic {name!r} had {before} partitions and has {after}: keys move, and order across the change is lost"
        if self._on_partition_change == "stop":
            raise KafkaRefused(what, 'start again if that is meant; set topics.on_partition_change = "warn" to go on')
        LOG.warning("%s", what)
        self.partition_changes[name] = (before, after)
        if self._passage is not None:
            # librdkafka would learn of it within five minutes; until then one key could go to two partitions in turn.
            self._routes = {}
            self._failed = True
            msg = f"topic {name!r} went from {before} to {after} partitions; another producer knows them all"
            raise Retriable(msg)

    def _suit(self) -> None:
        """Raise Retriable when a batch of this producer may be larger than a topic takes.

        The broker's limit is for a batch: many small records that fit each by itself can be refused together.
        """
        passage = self._passage
        smallest = min(self._limits.values(), default=BATCH_BYTES)
        if passage is not None and smallest < passage.batch_bytes:
            self._failed = True
            msg = f"a topic takes {smallest} bytes at a time; the next producer makes no larger batches"
            raise Retriable(msg)


def _fence(producer: Producer, timeout_s: float) -> None:
    producer.init_transactions(timeout_s)
    producer.begin_transaction()


def _commit(producer: Producer, timeout_s: float) -> None:
    producer.commit_transaction(timeout_s)
    producer.begin_transaction()
