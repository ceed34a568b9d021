"""What only time shows, watched from outside while faults come and go: I5 together, I6 confirmed, I7 the position.

Strategy: a plain consumer follows the topic and the positions; each look reads both to where they end, the slot first, so
each may only have moved on. Kafka's commit reaches partitions one after the other, and answers before it has: a look at which
the position has not come yet is made again, PATIENCE times, before it is judged.
"""

from __future__ import annotations

import json
import threading
import time
from types import TracebackType
from typing import Self

import psycopg
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from cdc.audit.judge import TRANSACTION, Watch, limit_of
from cdc.position import Lsn
from tests.pipeline import Event, Pipeline, _consumer, _event

EVERY_S = 0.1

PATIENCE = 200
"""Looks at a broker that answers before a position that is behind counts as one."""

ANSWER_S = 5.0


class Follower:
    """Reads one partition on and on, each time to where it ends for a read_committed consumer."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._bootstrap = bootstrap
        self._place = TopicPartition(topic, 0)
        self._found: list[Event] = []
        self._next = 0
        self._consumer: Consumer | None = None

    def __repr__(self) -> str:
        return f"<Follower {self._place.topic} next={self._next}>"

    def read(self) -> list[Event] | None:
        """Return what has become visible since, or None when the end could not be reached now."""
        consumer = self._consumer or self._assigned()
        try:
            _, end = consumer.get_watermark_offsets(self._place, timeout=ANSWER_S, cached=False)
        except KafkaException:
            return None
        deadline = time.monotonic() + ANSWER_S
        while self._next < end:
            for message in consumer.consume(10_000, 0.05):
                error = message.error()
                if error is None:
                    self._found.append(_event(message))
                if error is None or error.code() == KafkaError._PARTITION_EOF:
                    self._next = (message.offset() or 0) + (error is None)
            if time.monotonic() > deadline:
                self.close()  # whatever has befallen it, another one goes on where it stood
                return None
        found, self._found = self._found, []
        return found

    def _assigned(self) -> Consumer:
        self._consumer = _consumer(self._bootstrap, "read_committed")
        self._consumer.assign([TopicPartition(self._place.topic, 0, self._next)])
        return self._consumer

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None


class Spectator:
    """Looks until the block ends; `watch` holds the verdict and `seen` how many events were visible."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self._failure: BaseException | None = None
        self._limit: bytes | None = None
        self._pending: list[bytes] = []
        self._behind = 0
        self._last: object = None
        self.watch = Watch()
        self.seen = self.looks = 0

    def __repr__(self) -> str:
        return f"<Spectator seen={self.seen} looks={self.looks} behind={self._behind} last={self._last} {self.watch}>"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._closing.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _work(self) -> None:
        events = Follower(self._pipeline.bootstrap, self._pipeline.topic)
        positions = Follower(self._pipeline.bootstrap, self._pipeline.position_topic)
        slot: psycopg.Connection[tuple[str]] | None = None
        try:
            while not self._closing.wait(EVERY_S):
                try:
                    slot = slot or psycopg.connect(self._pipeline.dsn, autocommit=True)
                    self._look(self._confirmed(slot), events.read(), positions.read())
                except psycopg.OperationalError:
                    slot = None
        except BaseException as error:  # noqa: BLE001 - raised when the block ends
            self._failure = error
        finally:
            for each in (events, positions, slot):
                if each is not None:
                    each.close()

    def _confirmed(self, connection: psycopg.Connection[tuple[str]]) -> Lsn | None:
        found = connection.execute(
            "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s", (self._pipeline.slot_name,)
        ).fetchone()
        return None if found is None else Lsn.parse(found[0])

    def _look(self, confirmed: Lsn | None, events: list[Event] | None, positions: list[Event] | None) -> None:
        if events is not None:
            self.seen += len(events)
            self._pending += [event.headers["ce_sequence"] for event in events]
        for event in positions or ():
            document = json.loads(event.value or b"")
            self._limit = limit_of(document["generation"], Lsn.parse(document["end_lsn"]))
        if events is None or positions is None or self._limit is None:
            return
        self._last = (confirmed, self._limit)
        newest = max((place[:TRANSACTION] for place in self._pending), default=b"")
        if (newest < self._limit and b"%016x" % (confirmed or 0) <= self._limit[4:]) or self._behind == PATIENCE:
            self.watch.look(self._pending, self._limit, confirmed)
            self._pending, self._behind = [], 0
            self.looks += 1
        else:
            self._behind += 1
