"""An event bus in memory with a consumer's own contract, for unit tests of handlers: no Kafka, and no PostgreSQL unless you give one.

    bus = Bus(consumer)                     # the consumer that you run in production, its handlers and rules
    bus.publish("OrderPlaced", {"orderId": "1"}, key="1")
    bus.run()                               # until nothing is left to do; time passes at once
    assert bus.parked == []

Strategy: records pass the consumer's real loop, reader and steps; what is missing is Kafka and the threads. So order, batches,
retries with their delays, retry topics, breakers, dead letters, redrives and priorities are decided by what decides in production.
Without a connection the inbox is a set in memory: a handler that raises leaves no marker, one that is called again for an event is
a defect, and handlers are given None for their connection; business keys and what is known of a key's dead letters need the real
tables, which are used with a connection in autocommit: `Bus(consumer, connection)`.
"""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cdc.consumer.dead_letter import dead_letter, later, redriven
from cdc.consumer.handler import Unit
from cdc.consumer.lane import Handle, Job, Load, Loaded, Move, Moved, Noted, Result, Share, Shared
from cdc.consumer.running import run, run_async
from cdc.consumer.shared import Act, Row
from cdc.consumer.steps import Inbox, transaction
from cdc.consumer.worker import Hand, Tools
from cdc.event import Record
from cdc.kafka.subscriber import Seen

if TYPE_CHECKING:
    import psycopg

    from cdc.consumer import Consumer, Event

LIMIT_BYTES = 1_000_000

MOST_TURNS = 10_000
"""More turns of the loop than any test needs: a record that fails for ever is told, and not waited for."""


class Bus:
    """Topics in memory and one consumer of them; `parked` are its dead letters, `log` what was applied, in order."""

    def __init__(self, consumer: Consumer, connection: psycopg.Connection[Any] | None = None) -> None:
        self._consumer = consumer
        self.log: list[tuple[str, Event]] = []
        self.parked: list[Seen] = []
        self.now = 0.0
        self._topics: dict[str, list[Seen]] = {}
        self._open_until: dict[str, float] = {}
        self._delivered: dict[str, int] = {}
        self._sequence = itertools.count(1)
        self._tools = consumer.tools()
        self._hand = _MemoryHand(self._tools, self.log, connection)
        self._loop = consumer.decisions(self._hand.reader)

    def __repr__(self) -> str:
        return f"<Bus {len(self.log)} applied, {len(self.parked)} parked>"

    def publish(  # noqa: PLR0913 - what an event has
        self,
        kind: str,
        value: object,
        *,
        key: str | None = None,
        event_id: str | None = None,
        topic: str | None = None,
        source: str = "/test",
        headers: Mapping[str, str] | None = None,
    ) -> str:
        """Publish an event, and return its id; the value is JSON, checked by nobody (bytes go as they are, None is a tombstone)."""
        identity = event_id or str(uuid.uuid4())
        told = {
            "ce_id": identity,
            "ce_source": source,
            "ce_type": kind,
            "ce_sequence": f"{1:04x}{next(self._sequence):016x}{0:08x}",
            **({} if value is None or isinstance(value, bytes) else {"content-type": "application/json"}),
            **(headers or {}),
        }
        body = value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
        pairs: list[tuple[str, bytes | None]] = [(name, text.encode()) for name, text in told.items()]
        self._put(Record(topic or self._consumer.topics[0], None if key is None else key.encode(), body, pairs, 0))
        return identity

    def again(self) -> None:
        """Deliver everything once more, as after a lost offset or a reset of the group."""
        for lane in list(self._loop.lanes):
            self._loop.revoked([lane])
        self._delivered.clear()

    def redrive(self, letters: Iterable[Seen] | None = None) -> None:
        """Give dead letters back to the consumer, all of them by default."""
        chosen = list(self.parked if letters is None else letters)
        self.parked = [letter for letter in self.parked if letter not in chosen]
        for letter in chosen:
            self._put(redriven(self._consumer.names.redriven, letter))

    def run(self) -> None:
        """Handle all that there is; waiting costs no time. Raises AssertionError when it does not come to an end.

        The consumer's resources are open meanwhile.
        """
        self._tools.open()
        try:
            self._run()
        finally:
            self._tools.close()

    def _run(self) -> None:
        for _ in range(MOST_TURNS):
            self._deliver()
            jobs = self._loop.jobs(self.now, round(self.now * 1000))
            for job in jobs:
                self._loop.finished(job, self._do(job), self.now)
            due = self._loop.next_at()
            waiting = any(lane.pending and not lane.paused for lane in self._loop.lanes.values())
            if jobs:
                continue
            if due is None or due <= self.now or not waiting:
                return
            self.now = due
        raise AssertionError(f"not at its end after {MOST_TURNS} turns: {self._loop!r}")

    def _put(self, record: Record) -> None:
        held = self._topics.setdefault(record.topic, [])
        held.append(Seen(record.topic, 0, len(held), record.key, record.value, record.headers, round(self.now * 1000)))

    def _deliver(self) -> None:
        for topic, held in self._topics.items():
            if (topic, 0) not in self._loop.lanes:
                self._loop.assigned([(topic, 0)])
            self._loop.received(held[self._delivered.get(topic, 0) :])
            self._delivered[topic] = len(held)

    def _do(self, job: Job) -> Result:
        if isinstance(job, Handle):
            return self._hand.perform(job)
        if isinstance(job, Load):
            return Loaded()
        if isinstance(job, Share):
            return Shared(self._shares(job))
        return self._move(job) if isinstance(job, Move) else Noted()

    def _shares(self, job: Share) -> Row:
        """Keep the rows of shared breakers, which nobody else shares."""
        until, granted = self._open_until.get(job.breaker), False
        if job.act is Act.CLOSE:
            self._open_until.pop(job.breaker, None)
        elif job.act is Act.OPEN or (job.act is Act.CLAIM and until is not None and until <= self.now):
            granted = job.act is Act.CLAIM
            self._open_until[job.breaker] = self.now + job.period_s
        left = self._open_until.get(job.breaker)
        return Row(None if left is None else left - self.now, granted)

    def _move(self, job: Move) -> Moved:
        names = self._consumer.names
        if job.delay_s is not None:
            due_ms = round((self.now + job.delay_s) * 1000)
            self._put(later(names.retry(job.attempts), job.record, job.failure, attempts=job.attempts, due_ms=due_ms))
            return Moved()
        letter = dead_letter(
            names.dead_letter, job.record, job.failure, consumer=self._consumer.name, attempts=job.attempts, limit_bytes=LIMIT_BYTES
        )
        self.parked.append(Seen(letter.topic, 0, len(self.parked), letter.key, letter.value, letter.headers, 0))
        return Moved()


class _MemoryHand(Hand):
    """A worker whose inbox is a set, unless it has a connection."""

    def __init__(self, tools: Tools, log: list[tuple[str, Event]], connection: psycopg.Connection[Any] | None) -> None:
        tools.connect = None if connection is None else lambda: connection
        tools.connect_async = None
        if connection is None:
            tools.inbox = Inbox.OFF
        super().__init__(tools)
        self.reader = tools.reader
        self._log = log
        self._seen: set[tuple[str, str, str]] = set()

    def _apply(self, units: Any, *, pipeline: bool = False, releases: bool = False) -> list[bool]:  # noqa: ANN401 - a sequence of units
        real = self._tools.connect is not None
        fresh = super()._apply(units, pipeline=pipeline, releases=releases) if real else self._in_memory(units)
        self._log.extend((unit.handler.name, unit.event) for unit, new in zip(units, fresh, strict=True) if new)
        return fresh

    def _in_memory(self, units: Sequence[Unit]) -> list[bool]:
        """Do what the real inbox does: all units are marked and applied, or none is."""
        marked: set[tuple[str, str, str]] = set()
        fresh = []
        units = self._computed(units)
        for unit in units:
            marker = (unit.handler.marker, unit.event.source, unit.event.id)
            fresh.append(marker not in self._seen | marked)
            if fresh[-1]:
                marked.add(marker)
        new = [unit._replace(handler=replace(unit.handler, unique=None), key=None) for unit, each in zip(units, fresh, strict=True) if each]
        steps = transaction(new, Inbox.OFF, self._tools.consumer)
        if units[0].handler.is_async:
            self._tools.wait_for(run_async(steps, None))
        else:
            run(steps, None)
        self._seen |= marked
        return fresh
