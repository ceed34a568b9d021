"""Relays that are wrong on purpose: the judge must catch each, or it could not be trusted with the right one."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest
from tests.simulation.stage import Fault, World

from cdc.errors import CdcError, Retriable
from cdc.event import Record
from cdc.pipeline.ports import Waiting
from cdc.position import Lsn, Position
from cdc.postgres.stream import ReplicationStream
from cdc.postgres.transaction import Row, TransactionEnd
from tests.simulation.fake_kafka import FakePublisher
from tests.simulation.test_every_step import steps, workload


class ConfirmsTooEarly(ReplicationStream):
    """Confirms what it has read, before Kafka has it."""

    def receive(self, timeout_s: float) -> Sequence[Row | TransactionEnd]:
        items = super().receive(timeout_s)
        for item in items:
            if isinstance(item, TransactionEnd) and self._walsender is not None and item.end_lsn > self._walsender.confirmed:
                super().confirm(item.end_lsn)
        return items

    def confirm(self, lsn: Lsn) -> None:
        if self._walsender is not None and lsn > self._walsender.confirmed:
            super().confirm(lsn)


class IgnoresThePosition(ReplicationStream):
    """Streams from the slot's place on, whatever Kafka has committed."""

    def start(self, position: Position) -> None:
        super().start(dataclasses.replace(position, end_lsn=Lsn(0)))


class OneKafkaTransactionForEachEvent(FakePublisher):
    """Commits each record by itself."""

    def recover(self, waiting: Waiting, *, patient: bool = False) -> Position | None:
        self.last = super().recover(waiting, patient=patient)
        return self.last

    def produce(self, records: Sequence[Record], waiting: Waiting) -> None:
        assert self.last is not None
        for record in records:
            super().produce([record], waiting)
            super().commit(self.last, waiting)

    def commit(self, position: Position, waiting: Waiting) -> None:
        self.last = position
        super().commit(position, waiting)


class ReadsBeforeItFences(FakePublisher):
    """Takes the position that is there, then fences; what was under way arrives in between."""

    def recover(self, waiting: Waiting, *, patient: bool = False) -> Position | None:
        position, _ = self.peek()
        self.cluster.release()
        super().recover(waiting, patient=patient)
        return position


class CallsATimedOutCommitAgain(FakePublisher):
    """Believes the second answer, which librdkafka may give although nothing was committed."""

    def commit(self, position: Position, waiting: Waiting) -> None:
        epoch = self._epoch
        try:
            super().commit(position, waiting)
        except Retriable:
            self._epoch, self._open = epoch, False


def caught(fault: Fault, **wrong: type) -> set[str]:
    """Return the kinds of findings of a wrong relay over a fault at every step; a crash of its own counts as none."""
    kinds: set[str] = set()
    for step in range(1, steps() + 1):
        world = World({step: fault}, **wrong)
        workload(world)
        try:
            verdict = world.run()
        except (CdcError, AssertionError):
            kinds |= {finding.kind for finding in world.watch.verdict.findings}
            continue
        kinds |= {finding.kind for finding in verdict.findings}
    return kinds


@pytest.mark.parametrize(
    ("wrong", "fault", "kind"),
    [
        ({"stream": ConfirmsTooEarly}, Fault.CRASH, "forgotten"),
        ({"stream": IgnoresThePosition}, Fault.SERVER_CRASH, "duplicated"),
        ({"publisher": OneKafkaTransactionForEachEvent}, Fault.CRASH, "duplicated"),
        ({"publisher": ReadsBeforeItFences}, Fault.HOLD, "duplicated"),
        ({"publisher": CallsATimedOutCommitAgain}, Fault.CUT, "missing"),
    ],
    ids=lambda value: next(iter(value.values())).__name__ if isinstance(value, dict) else "",
)
def test_a_wrong_relay_is_caught(wrong: dict[str, type], fault: Fault, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cdc.pipeline.relay.HELD_ROWS", 4)
    assert kind in caught(fault, **wrong)


def test_the_right_one_is_not_caught_by_the_same_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cdc.pipeline.relay.HELD_ROWS", 4)
    for fault in (Fault.CRASH, Fault.SERVER_CRASH, Fault.HOLD, Fault.CUT):
        assert caught(fault) == set()
