"""Relays that are wrong on purpose: the judge must catch each, or it could not be trusted with the right one."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence

import pytest

from cdc.audit.judge import Finding
from cdc.errors import CdcError, Retriable
from cdc.event import Record
from cdc.pipeline.ports import Waiting
from cdc.pipeline.relay import Relay
from cdc.position import Lsn, Position
from cdc.postgres.stream import ReplicationStream
from cdc.rabbitmq.publisher import RabbitPublisher
from cdc.redis.publisher import RedisPublisher
from tests.simulation.fake_kafka import FakePublisher, Verb
from tests.simulation.fake_rabbitmq import Connection, FakeRabbit
from tests.simulation.fake_redis import FakeRedis
from tests.simulation.test_rabbitmq_loses import restart
from tests.simulation.test_zombies import alternate, slept
from tests.simulation.workloads import TINY, good, small
from tests.simulation.world import POSITIONS, Action, Actor, Build, Fault, Plan, RabbitBuild, RedisBuild, Script, World

APART: Script = [
    (0.0, small),
    *((at, lambda world, at=at: world.transaction((f"f{at}", "k1", good(5)), (f"g{at}", "k2", good(6)))) for at in (1.0, 2.0)),
]
"""So far apart that each position is told before the next transaction comes."""

LIVES = 10
"""How often a wrong relay that dies of its own mistake is started again."""


class ConfirmsTooEarly(Relay):
    """Lets the slot forget before Kafka has committed."""

    def _commit(self) -> None:
        self._source.confirm(self._batch.next().end_lsn)
        super()._commit()


class IgnoresThePosition(ReplicationStream):
    """Publishes whatever the slot sends again."""

    def start(self, position: Position) -> None:
        super().start(dataclasses.replace(position, end_lsn=Lsn(0)))


class OneKafkaTransactionForEachEvent(FakePublisher):
    """Commits each record by itself, with the position of the transaction before."""

    before: Position

    def recover(self, waiting: Waiting, *, patient: bool = False, blaming: bool = False) -> Position | None:
        position = super().recover(waiting, patient=patient, blaming=blaming)
        assert position is not None
        self.before = position
        return position

    def produce(self, records: Sequence[Record], waiting: Waiting) -> None:
        for record in records:
            super().produce([record], waiting)
            super().commit(self.before, waiting)

    def commit(self, position: Position, waiting: Waiting) -> None:
        self.before = position
        super().commit(position, waiting)


class ReadsBeforeItFences(FakePublisher):
    """Takes the position that is there; what its predecessor commits before it is fenced comes twice."""

    def recover(self, waiting: Waiting, *, patient: bool = False, blaming: bool = False) -> Position | None:
        position = self._last()
        super().recover(waiting, patient=patient, blaming=blaming)
        return position


class ReadsRedisBeforeItFences(RedisPublisher):
    """The same on Redis: two commands where there is one script."""

    def recover(self, waiting: Waiting, *, patient: bool = False, blaming: bool = False) -> Position | None:
        position = self.last()
        super().recover(waiting, patient=patient, blaming=blaming)
        return position


class PutsThePositionApart(RedisPublisher):
    """Adds the events with the position of the transaction before, and puts theirs there by another command."""

    before: Position

    def recover(self, waiting: Waiting, *, patient: bool = False, blaming: bool = False) -> Position | None:
        position = super().recover(waiting, patient=patient, blaming=blaming)
        assert position is not None
        self.before = position
        return position

    def commit(self, position: Position, waiting: Waiting) -> None:
        super().commit(self.before, waiting)
        super().commit(position, waiting)
        self.before = position


class WithoutAFence(FakeRedis):
    """Lets anybody commit who counts right."""

    def refuses(self, key: bytes, owner: bytes, commits: bytes) -> bool:
        return super().refuses(key, self.data.hashes[key][b"owner"], commits)


class WithoutAnyGuard(FakeRedis):
    """Lets anybody commit."""

    def refuses(self, key: bytes, owner: bytes, commits: bytes) -> bool:
        return False


class StoresBeforeTheConfirms(RabbitPublisher):
    """Publishes the position while its events are not confirmed."""

    def commit(self, position: Position, waiting: Waiting) -> None:
        assert self._lease is not None
        self._lease.store(position, waiting)


class LetsThePositionGo(RabbitPublisher):
    """Acknowledges the position before the next one is confirmed."""

    def commit(self, position: Position, waiting: Waiting) -> None:
        assert self._lease is not None
        self._lease._replace(self._lease._stored + 1)
        super().commit(position, waiting)


class SendsBackwards(RabbitPublisher):
    """Hands over the last record first."""

    def produce(self, records: Sequence[Record], waiting: Waiting) -> None:
        super().produce(records[::-1], waiting)


class Invents(RabbitPublisher):
    """Publishes what no committed row stands for, as one that was rolled back."""

    def produce(self, records: Sequence[Record], waiting: Waiting) -> None:
        headers = [(name, b"never" if name == "ce_id" else value) for name, value in records[-1].headers]
        super().produce([*records, records[-1]._replace(headers=headers)], waiting)


class ChangesWhatComesAgain(RabbitPublisher):
    """Publishes each event twice, with another value."""

    def produce(self, records: Sequence[Record], waiting: Waiting) -> None:
        super().produce([*records, *(record._replace(value=b"other") for record in records)], waiting)


class WithoutALease(FakeRabbit):
    """Gives the position to whoever came last, and lets the one before go on."""

    def consume(self, connection: Connection) -> None:
        for each in self.queues[self.position_queue]:
            each.holder = None
        self._consumers.insert(0, connection)


class CallsATimedOutCommitAgain(FakePublisher):
    """Believes the second answer: the client library may say success although nothing was committed."""

    def commit(self, position: Position, waiting: Waiting) -> None:
        epoch = self._epoch
        try:
            super().commit(position, waiting)
        except Retriable:
            if not self.cluster.held:
                raise
            self.cluster.held = [held for held in self.cluster.held if held[0] is not Verb.COMMIT]
            self._epoch, self._open = epoch, False


def findings(build: Build, plan: Plan) -> list[Finding]:
    """Run with faults, and judge; a wrong relay that dies of its own mistake is started again, as any process is."""
    world = World(APART, plan, build)
    for _ in range(LIVES):
        try:
            return world.run().verdict().findings
        except (CdcError, AssertionError):
            for link in list(world.postgres.links):
                link.break_()
    return world.verdict().findings


def kinds(found: Iterable[Finding]) -> Counter[str]:
    return Counter(str(finding.kind) for finding in found)


def right(build: Build) -> Build:
    """Return the build on the same sink with nothing wrong in it."""
    return type(build)(deep=build.deep)


def caught(build: Build, *faults: Fault | Action, at: str = "") -> Counter[str]:
    """Return what the judge finds with each of these faults at every call of the pipeline's ports, or at those whose name ends so."""
    names = World(APART, build=right(build)).run().gate.names
    calls = [call for call, name in enumerate(names) if name.endswith(at)]
    return kinds(finding for fault in faults for call in calls for finding in findings(build, {call: fault}))


def caught_asleep(build: Build) -> Counter[str]:
    """Return what the judge finds when a process sleeps at a call, and wakes while its successor is inside of `recover`."""
    found: list[Finding] = []
    for call in range(World(APART, build=right(build)).run().gate.calls):
        world = World(APART, build=build)
        sleeper = Actor(world)
        sleeper.step(call)
        sleeper.lose_slot(silently=True)
        successor = Actor(world)
        successor.until("ReplicationStream.open")
        while successor.step() and not world.gate.names[-1].endswith("recover"):
            pass
        sleeper.step(12)
        try:
            alternate(sleeper, successor)
        except (CdcError, AssertionError):
            sleeper.kill()
            successor.kill()
        found += world.verdict().findings
    return kinds(found)


def caught_beside(build: Build) -> Counter[str]:
    """Return what the judge finds when a process sleeps at a call, and wakes when its successor has recovered."""
    calls = range(World(TINY, build=right(build)).run().gate.calls)
    return kinds(finding for call in calls for finding in slept(call, "Publisher.recover", build, silently=True).verdict().findings)


@pytest.mark.parametrize("sink", [Build, RedisBuild], ids=["kafka", "redis"])
def test_the_right_relay_is_not_caught(sink: type[Build]) -> None:
    build = sink(deep=False)
    assert caught(build, Fault.KILL, Fault.HOLD, Fault.RESTART) + caught_asleep(build) == Counter()


def test_confirming_too_early_is_caught() -> None:
    found = caught(Build(relay=ConfirmsTooEarly, deep=False), Fault.KILL)
    assert found["missing"]
    assert found["forgotten"]


def test_ignoring_the_position_is_caught() -> None:
    found = caught(Build(stream=IgnoresThePosition, deep=False), Fault.KILL)
    assert found["duplicated"]
    assert found["torn"], "an old transaction becomes visible after a newer one"


def test_one_kafka_transaction_for_each_event_is_caught() -> None:
    found = caught(Build(publisher=OneKafkaTransactionForEachEvent, deep=False), Fault.KILL)
    assert found["torn"]
    assert found["duplicated"]


def test_reading_before_fencing_is_caught() -> None:
    assert caught_asleep(Build(publisher=ReadsBeforeItFences, deep=False))["duplicated"]


def test_reading_redis_before_fencing_is_caught() -> None:
    assert caught_asleep(RedisBuild(redis=ReadsRedisBeforeItFences, deep=False))["duplicated"]


def test_a_position_apart_from_its_events_is_caught() -> None:
    found = caught(RedisBuild(redis=PutsThePositionApart, deep=False), Fault.KILL)
    assert found["duplicated"]
    assert found["position"], "an event is visible above the position"


def test_a_redis_without_the_fence_is_caught() -> None:
    assert caught_beside(RedisBuild(server=WithoutAFence, deep=False))["fenced"]
    assert caught_beside(RedisBuild(server=WithoutAnyGuard, deep=False))["duplicated"]


@pytest.mark.parametrize(
    ("rabbit", "lost", "kind"),
    [(StoresBeforeTheConfirms, restart(POSITIONS), "missing"), (LetsThePositionGo, restart(), "lag")],
    ids=["stored", "let go"],
)
def test_a_position_that_does_not_wait_for_confirms_is_caught(rabbit: type[RabbitPublisher], lost: Action, kind: str) -> None:
    """When the broker is restarted while it is waited for, and keeps one queue but not the other."""
    assert caught(RabbitBuild(rabbit=rabbit, deep=False), lost, at="keep_alive")[kind]
    assert not caught(RabbitBuild(deep=False), lost, at="keep_alive")


def test_a_rabbitmq_without_the_lease_is_caught() -> None:
    assert caught_beside(RabbitBuild(broker=WithoutALease, deep=False))["fenced"]


@pytest.mark.parametrize(
    ("rabbit", "kind"), [(SendsBackwards, "reordered"), (Invents, "unexpected"), (ChangesWhatComesAgain, "unexpected")]
)
def test_what_at_least_once_does_not_allow_is_caught(rabbit: type[RabbitPublisher], kind: str) -> None:
    assert kinds(findings(RabbitBuild(rabbit=rabbit, deep=False), {}))[kind]


def test_calling_a_timed_out_commit_again_is_caught() -> None:
    build = Build(publisher=CallsATimedOutCommitAgain, deep=False)
    found = caught(build, Fault.HOLD)
    assert found["forgotten"]
    held = [call for call, name in enumerate(World(APART, build=build).run().gate.names) if name.endswith(".commit")]
    lost = kinds(
        finding for call in held for later in range(1, 12) for finding in findings(build, {call: Fault.HOLD, call + later: Fault.KILL})
    )
    assert lost["missing"]


@pytest.mark.parametrize("fault", list(Fault), ids=lambda fault: fault.name)
def test_without_the_right_fault_even_a_wrong_relay_may_look_right(fault: Fault) -> None:
    """Why the faults come at every call: most places hide the mistake."""
    build = Build(stream=IgnoresThePosition, deep=False)
    assert not findings(build, {})
    assert not findings(build, {0: fault})
