"""The thin driver: one thread that polls Kafka, hands jobs to threads and results to the loop, and commits offsets.

Strategy: while nothing is under way it waits in Kafka's poll, else for results, looking at Kafka in between: so it polls all the
time, however long a handler takes, and is no member that seems dead. It never runs a handler and never waits for a database.

Rules.
- Callbacks of a rebalance come inside of `consume`, in this thread: what they see of the loop is whole.
- Before partitions are given back their jobs may end, for HANDOVER_S at most, and their offsets are committed; partitions that the
  group took without asking are let go at once, with nothing committed.
- One commit at a time, and none beside a move of the same partition (see `loop`).
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from cdc.consumer.lane import Handle, Handled, Job, Load, Loaded, Move, Moved, Note, Place, Result, Share, Shared, Standing
from cdc.consumer.loop import Loop
from cdc.consumer.ports import Observer
from cdc.consumer.worker import Workers
from cdc.errors import KafkaRefused
from cdc.kafka.client import Notes, fault_of, make, raised
from cdc.kafka.faults import Code, Remedy, exception, remedy
from cdc.kafka.properties import Properties
from cdc.kafka.subscriber import Seen

IDLE_S: Final = 0.1
"""Longest wait in Kafka's poll."""

GLANCE_S: Final = 0.005
"""How long results are waited for before Kafka is looked at again, while jobs are under way."""

FETCH: Final = 1_000
"""Records that one look takes."""

COMMIT_S: Final = 0.5
"""How often offsets are committed. What is committed too late is read again after a crash and skipped by its markers."""

COMMIT_LOST_S: Final = 60.0
"""After so long a commit without an answer is forgotten, and another one made."""

HANDOVER_S: Final = 5.0
"""How long jobs of partitions that are to be given back may take; the whole group waits for it."""

LEAVE_S: Final = 5.0
"""How long leaving the group may take. A member that does not leave is missed after session.timeout.ms."""

TURN_S: Final = 1.0
HITCH_S: Final = 30.0
"""How often the same complaint is repeated."""

EVICTED: Final = -147
"""_MAX_POLL_EXCEEDED: we did not poll for max.poll.interval.ms."""


class Driver:
    """Runs one loop until it is told to stop."""

    def __init__(  # noqa: PLR0913 - the parts that it connects
        self,
        *,
        name: str,
        loop: Loop,
        properties: Properties,
        topics: Sequence[str],
        optional: Sequence[str],
        workers: Workers,
        desk: Workers,
        observer: Observer,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._loop = loop
        self._topics = [*topics, *optional]
        self._optional = frozenset(optional)
        self._workers = workers
        self._desk = desk
        self._observer = observer
        self._clock = clock
        self._results = workers.results
        self._notes = Notes()
        self._kafka = make(KafkaConsumer, {**properties, "on_commit": self._on_commit}, self._notes)
        self._commit_at = self._turn_at = 0.0
        self._commit_since = 0.0
        self._told: dict[str, float] = {}
        self._moved = 0
        self.stopping = False

    def __repr__(self) -> str:
        return f"<Driver {self._name} {self._loop!r}>"

    def run(self, grace_s: float) -> None:
        """Consume until `stopping`, then let jobs end within `grace_s`, commit and leave the group."""
        self._kafka.subscribe(self._topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost)
        try:
            while not self.stopping:
                self._turn()
            self._loop.releasing(list(self._loop.lanes))
            self._settle(None, grace_s)
            self._commit_at_end(grace_s)
        finally:
            self._leave()

    def _turn(self) -> None:
        now = self._clock()
        for job in self._loop.jobs(now, time.time_ns() // 1_000_000):
            self._start(job)
        if self._loop.busy():
            self._take_results(GLANCE_S)
            self._fetch(0)
        else:
            self._fetch(self._idle_s(now))
            self._take_results(0)
        pause, resume = self._loop.pauses()
        if pause:
            self._kafka.pause([TopicPartition(*place) for place in pause])
        if resume:
            self._kafka.resume([TopicPartition(*place) for place in resume])
        if now >= self._commit_at:
            self._commit(now)
        if now >= self._turn_at:
            self._turn_at = now + TURN_S
            self._observer.turned(self._name, self.state())

    def _idle_s(self, now: float) -> float:
        """Return how long Kafka may be waited for: not beyond the time when a lane goes on."""
        due = self._loop.next_at()
        return IDLE_S if due is None else min(IDLE_S, max(0.0, due - now)) if due > now else GLANCE_S

    def _start(self, job: Job) -> None:
        if isinstance(job, Handle):
            self._workers.submit(job)
        else:
            # A move needs the group's state of now, while the partition is ours.
            self._desk.submit(replace(job, group=self._kafka.consumer_group_metadata()) if isinstance(job, Move) else job)

    # Results

    def _take_results(self, wait_s: float) -> None:
        try:
            job, result = self._results.get(timeout=wait_s) if wait_s else self._results.get_nowait()
            while True:
                self._finished(job, result)
                job, result = self._results.get_nowait()
        except queue.Empty:
            pass

    def _finished(self, job: Job, result: Result) -> None:
        now = self._clock()
        if isinstance(job, Note | Share):
            self._loop.finished(job, result, now)
            self._unasked(job, result)
            return
        lane = job.lane
        failed = result.failure if isinstance(result, Handled) else None
        head = lane.pending[0] if isinstance(job, Move) and lane.pending else None
        self._loop.finished(job, result, now)
        if lane.lost:
            self._observer.late(self._name, lane)
            return
        if isinstance(job, Handle) and isinstance(result, Handled):
            self._observer.handled(self._name, job, result, now - job.started)
            if failed is not None:
                self._observer.failed(self._name, job.records[result.settled], failed, lane.attempts, lane)
        elif isinstance(job, Move) and isinstance(result, Moved):
            self._observer.moved(self._name, job, result.error)
            if lane.standing is Standing.STOPPED:
                self._observer.stopped(self._name, lane)
            elif result.error and lane.move is None and head is not None:
                self._observer.skipped(self._name, head)
        else:
            self._unasked(job, result)

    def _unasked(self, job: Job, result: Result) -> None:
        """Say what the database did not answer."""
        if isinstance(job, Load) and isinstance(result, Loaded) and result.error:
            self._hitch(f"the database cannot be asked about {job.lane.topic}[{job.lane.partition}]: {result.error}")
        elif isinstance(job, Share) and isinstance(result, Shared) and result.error:
            self._hitch(f"the database cannot be asked about breaker {job.breaker}: {result.error}")

    def _settle(self, places: Sequence[Place] | None, patience_s: float) -> None:
        """Wait until jobs have ended."""
        deadline = self._clock() + patience_s
        while self._loop.busy(places) and self._clock() < deadline:
            self._take_results(GLANCE_S)

    def _commit_at_end(self, patience_s: float) -> None:
        """Commit what is settled, and wait for the answer as long as it is worth."""
        deadline = self._clock() + patience_s
        for _ in range(2):  # another commit may be under way
            self._commit(self._clock())
            while self._loop.committing and self._clock() < deadline:
                self._kafka.consume(1, GLANCE_S)

    def _hand_over(self, places: Sequence[Place]) -> None:
        """Commit what is settled of partitions that are given back; inside of a callback nothing but the call itself may wait."""
        offsets = {place: offset for place, offset in self._loop.offsets().items() if place in places}
        if not offsets:
            return
        try:
            self._kafka.commit(offsets=_partitions(offsets), asynchronous=False)
            self._loop.committed(offsets)
        except KafkaException as error:
            self._hitch(f"offsets were not committed: {fault_of(error.args[0]).name}")

    # Kafka

    def _fetch(self, wait_s: float) -> None:
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
                self._told_by_kafka(message, error)
        self._loop.received(records)
        self._notes.check("consuming")

    def _told_by_kafka(self, message: Message, error: KafkaError) -> None:
        """Take what is no record; raises for what nothing heals."""
        fault = fault_of(error)
        if fault.fatal or fault.code == Code.FATAL:
            raise KafkaRefused(f"Kafka, while consuming: {fault}", "give each process of a consumer an instance name of its own")
        if fault.code == Code.PARTITION_EOF:
            topic, partition, offset = message.topic(), message.partition(), message.offset()
            assert topic is not None, "an EOF has a place"
            assert partition is not None, "an EOF has a place"
            assert offset is not None, "an EOF has a place"
            self._loop.at_end((topic, partition), offset)
        elif fault.code == EVICTED:
            self._hitch("this member did not poll within max.poll.interval.ms and was evicted; it joins again")
        elif remedy(fault, transactional=False) is Remedy.EXIT and message.topic() not in self._optional:
            raise exception(fault, "consuming", transactional=False)
        elif message.topic() not in self._optional:
            self._hitch(f"Kafka: {fault.name}" + (f" for topic {message.topic()}" if message.topic() else ""))

    def _commit(self, now: float) -> None:
        self._commit_at = now + COMMIT_S
        if self._loop.committing and now - self._commit_since < COMMIT_LOST_S:
            return
        offsets = self._loop.offsets()
        self._loop.committing = bool(offsets)
        if offsets:
            self._commit_since = now
            try:
                self._kafka.commit(offsets=_partitions(offsets), asynchronous=True)
            except KafkaException as error:
                self._loop.committing = False
                self._hitch(f"offsets were not committed: {fault_of(error.args[0]).name}")

    def _on_commit(self, error: KafkaError | None, partitions: Sequence[TopicPartition]) -> None:
        self._loop.committing = False
        if error is not None:
            self._hitch(f"offsets were not committed: {fault_of(error).name}")
            return
        good = [each for each in partitions if each.error is None]
        if len(good) < len(partitions):
            self._hitch(f"offsets of {len(partitions) - len(good)} partitions were not committed")
        self._loop.committed({(each.topic, each.partition): each.offset for each in good})

    def _on_assign(self, _: KafkaConsumer, partitions: Sequence[TopicPartition]) -> None:
        places = [(each.topic, each.partition) for each in partitions]
        self._loop.assigned(places)
        self._observer.assigned(self._name, places)

    def _on_revoke(self, _: KafkaConsumer, partitions: Sequence[TopicPartition]) -> None:
        places = [(each.topic, each.partition) for each in partitions]
        self._loop.releasing(places)
        self._settle(places, 0.0 if self.stopping else HANDOVER_S)
        self._hand_over(places)
        self._loop.revoked(places)
        self._observer.revoked(self._name, places, lost=False)

    def _on_lost(self, _: KafkaConsumer, partitions: Sequence[TopicPartition]) -> None:
        places = [(each.topic, each.partition) for each in partitions]
        self._loop.revoked(places)
        self._observer.revoked(self._name, places, lost=True)

    def _leave(self) -> None:
        """Leave the group; a broker that is away must not keep the process."""
        leaving = threading.Thread(target=self._kafka.close, name="cdc-consumer-leaving", daemon=True)
        leaving.start()
        leaving.join(LEAVE_S)

    def _hitch(self, what: str) -> None:
        now = self._clock()
        if now - self._told.get(what, -HITCH_S) >= HITCH_S:
            self._told[what] = now
            self._observer.hitch(self._name, what)

    # For those who watch

    def state(self) -> Mapping[str, object]:
        """Return what `Observer.turned` is told."""
        lanes = self._loop.lanes
        now = self._clock()
        return {
            "lag": {place: lag for place in lanes if (lag := self._lag(place)) is not None},
            "standing": {place: str(lane.standing) for place, lane in lanes.items()},
            "pending": sum(len(lane.pending) for lane in lanes.values()),
            "running": self._loop.running,
            "breakers": {name: breaker.state(now).value for name, breaker in self._loop.breakers.items()},
            "busy_s": self._loop.shares.busy_s(),
        }

    def _lag(self, place: Place) -> int | None:
        """Return how many offsets are not settled, as far as the last fetch tells; None before the first one."""
        try:
            _, end = self._kafka.get_watermark_offsets(TopicPartition(*place), cached=True)
        except KafkaException:
            return None
        lane = self._loop.lanes[place]
        if end < 0:
            return None
        if lane.end is not None and not lane.pending and lane.end >= end:
            return 0
        here = lane.settled if lane.settled is not None or not lane.pending else lane.pending[0].offset
        return None if here is None else max(0, end - here)


def _seen(message: Message) -> Seen:
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None, "a record has a place"
    assert partition is not None, "a record has a place"
    assert offset is not None, "a record has a place"
    headers: Any = message.headers() or []
    key: Any = message.key()
    value: Any = message.value()
    return Seen(topic, partition, offset, key, value, headers, message.timestamp()[1])


def _partitions(offsets: Mapping[Place, int]) -> list[TopicPartition]:
    return [TopicPartition(*place, offset) for place, offset in offsets.items()]
