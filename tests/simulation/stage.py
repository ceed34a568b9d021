"""A whole pipeline in one thread: the real supervisor, relay, router, stream and decoder between simulated ends.

Every step that touches an end is counted. A fault is planned for a step: the process crashes before or after it, the link is
cut, Kafka refuses, its answer is lost, or a request is held back and arrives when nobody waits for it any more.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from pathlib import Path

from cdc.audit.judge import Row, Verdict, Visible, Watch, judge, limit_of, place_of
from cdc.avro import folder
from cdc.errors import Retriable
from cdc.outbox.mapping import OutboxMapping
from cdc.outbox.router import Router
from cdc.pipeline.ports import Waiting
from cdc.pipeline.relay import Policy, Relay
from cdc.pipeline.supervisor import Identity, Supervisor
from cdc.position import Existing, Fingerprint, Lsn, Position
from cdc.postgres.server import Server
from cdc.postgres.stream import ReplicationStream
from tests.simulation.fake_kafka import Cluster, FakePublisher, Outcome, Topic, Verb
from tests.simulation.fake_postgres import FakeCatalog, FakeLink, FakePostgres, OpenTransaction

REGISTRY = folder.load(Path(__file__).parents[2] / "schemas")
SLOT = PUBLICATION = "cdc_sim"
NAME, EVENTS, DEAD, POSITIONS = "sim", "outbox.event.order", "cdc.sim.dead-letter", "_cdc.sim.position"
STEPS_MAX = 3_000
"""A run that takes so many steps does not come to an end: I9."""


class Fault(Enum):
    """What happens at a step."""

    CRASH = "the process is killed before the step"
    CRASH_AFTER = "the process is killed after the step"
    CUT = "the link or the request fails before the step"
    LOST = "the step is made, and its answer is lost"
    HOLD = "the request arrives when nobody waits for it any more"
    SERVER_CRASH = "PostgreSQL loses what it had in memory"


class Crash(BaseException):
    """SIGKILL: nothing of the process is left."""


class Silent:
    """An Observer that nobody listens to."""

    def heartbeat(self) -> None:
        return

    def failed(self, error: Exception) -> None:
        return

    def state(self, state: str, reason: str) -> None:
        return

    def server(self, server: Server, position: Position | None) -> None:
        return

    def committed(self, position: Position, events: int, dead_letters: int, seconds: float) -> None:
        return

    def dead_letter(self, reason: str, event_id: str, sequence: str, what: str) -> None:
        return

    def ignored(self, kind: str, count: int) -> None:
        return

    def published(self, topics: Mapping[str, tuple[int, int]]) -> None:
        return


class SteppedLink(FakeLink):
    """A link whose every use is a step of the world."""

    def __init__(self, world: World) -> None:
        super().__init__(world.postgres, world.passes)
        self._world = world

    def identify(self) -> tuple[str, tuple[tuple[int, Lsn], ...], Lsn]:
        self._step("identify")
        return super().identify()

    def start(self, slot: str, publication: str, *, messages: bool) -> None:
        self._step("start")
        super().start(slot, publication, messages=messages)
        self._step("start!")

    def read(self, limit: int) -> list[bytes]:
        self._step("read")
        frames = super().read(limit)
        self._step("read!")
        return frames

    def write(self, frame: bytes) -> None:
        self._step("write")
        super().write(frame)
        self._step("write!")

    def _step(self, name: str) -> None:
        try:
            self._world.link_step(name)
        except Retriable:
            self.break_()
            raise


class World:
    """Both ends, the clock, the faults to come, and the judge."""

    def __init__(
        self,
        faults: dict[int, Fault] | None = None,
        *,
        stream: type[ReplicationStream] = ReplicationStream,
        publisher: type[FakePublisher] = FakePublisher,
    ) -> None:
        self.faults = faults or {}
        self.steps = 0
        self.names: list[str] = []
        self.now = 0.0
        self.watch = Watch()
        self.rows: list[Row] = []
        self.pending: list[Callable[[], object]] = []
        self._stream, self._publisher = stream, publisher
        self._seen: set[tuple[str, int, int]] = set()
        self._after: Fault | None = None
        self._asked_to_stop = False
        self.postgres = FakePostgres(SLOT, self._wall)
        self.cluster = Cluster(clock=self._wall)
        for name, partitions in ((EVENTS, 3), (DEAD, 1), (POSITIONS, 1)):
            self.cluster.create(Topic(name, partitions=partitions, compacted=name == POSITIONS))
        self._genesis()
        self.cluster.hook = self._kafka_step

    def insert(self, *rows: tuple[str, bytes]) -> None:
        """Commit a transaction of (key, payload) rows."""
        transaction = self.begin(*rows)
        self.postgres.commit(transaction)

    def begin(self, *rows: tuple[str, bytes]) -> OpenTransaction:
        """Write the rows of a transaction that is going to commit."""
        transaction = self.postgres.begin()
        for key, payload in rows:
            values = (str(uuid.uuid4()).encode(), b"order", key.encode(), b"OrderPaid", payload)
            self.postgres.insert(transaction, *values)
            self.rows.append(Row(values[0], values[2], values[3], transaction.xid))
        return transaction

    def other_tables(self, size: int) -> None:
        """Write log that has nothing for us."""
        self.postgres.write(size)

    @property
    def confirmed(self) -> Lsn:
        """The slot's confirmed_flush_lsn."""
        assert self.postgres.slot is not None
        return self.postgres.slot.confirmed

    def run(self) -> Verdict:
        """Run processes one after another until everything is published and confirmed; judge both ends."""
        while True:
            self._asked_to_stop = False
            try:
                self._process().run()
                if self._drained():
                    break
            except Crash:
                for link in list(self.postgres.links):
                    link.break_()
        self.cluster.release()
        self.look()
        verdict = judge(self.rows, self.visible(), limit=self._limit())
        self.watch.ended(self.postgres.end - self.confirmed)
        for finding in self.watch.verdict.findings:
            verdict.add(finding.kind, finding.what)
        return verdict

    def visible(self) -> list[Visible]:
        """Return what a read_committed consumer sees."""
        return [seen for _, seen in self._visible()]

    def look(self) -> None:
        """Show the judge this moment."""
        confirmed = self.confirmed
        fresh = [(place, seen) for place, seen in self._visible() if place not in self._seen]
        self._seen.update(place for place, _ in fresh)
        self.watch.look([seen.place or b"" for _, seen in fresh], self._limit(), confirmed)

    def _visible(self) -> Iterator[tuple[tuple[str, int, int], Visible]]:
        for topic in (EVENTS, DEAD):
            for partition, offset, record in self.cluster.committed(topic):
                headers = dict(record.headers)
                dead = topic == DEAD
                event_id = headers["cdc.id" if dead else "ce_id"] or b""
                place = place_of(headers["cdc.sequence" if dead else "ce_sequence"])
                yield (topic, partition, offset), Visible(event_id, place, record.key, topic, partition, offset, dead=dead)

    def _limit(self) -> bytes | None:
        position = self.position()
        return None if position is None else limit_of(position.generation, position.end_lsn)

    def position(self) -> Position | None:
        """Return the last committed position."""
        records = [record for _, _, record in self.cluster.committed(POSITIONS)]
        return Position.from_json(records[-1].value or b"") if records else None

    def connect(self, _timeout_s: float) -> SteppedLink:
        """Open a link."""
        self.link_step("connect")
        return SteppedLink(self)

    def passes(self, seconds: float, ready: Callable[[], bool]) -> None:
        """Let time pass while nothing is there to read."""
        self.now += seconds
        ready()

    def _wall(self) -> float:
        return 1_800_000_000.0 + self.now

    def _process(self) -> Supervisor:
        source = self._stream(
            slot=SLOT,
            publication=PUBLICATION,
            wanted=lambda _: True,
            status_interval_s=1.0,
            catalog=FakeCatalog(self.postgres),
            connect=self.connect,
            clock=lambda: self.now,
            wall=self._wall,
        )
        publisher = self._publisher(self.cluster, name=NAME, position_topic=POSITIONS)

        def relay(position: Position, waiting: Waiting) -> Relay:
            return Relay(
                source=source,
                publisher=publisher,
                router=Router(OutboxMapping(), REGISTRY.encoder, position.generation),
                policy=Policy(NAME, DEAD),
                observer=Silent(),
                position=position,
                waiting=waiting,
                clock=lambda: self.now,
                wall=self._wall,
            )

        return Supervisor(
            identity=Identity(NAME, SLOT, (DEAD,)),
            source=source,
            publisher=publisher,
            precheck=lambda: None,
            relay=relay,
            refresh=lambda: None,
            observer=Silent(),
            backoff=lambda _: 0.5,
            clock=lambda: self.now,
            stopping=self._stopping,
            pause=self._pause,
            grace_s=5.0,
        )

    def _stopping(self) -> bool:
        self.now += 0.05
        self.look()
        if self._drained() and self.pending:
            self.pending.pop(0)()
        self._asked_to_stop |= self._drained() and not self.pending
        return self._asked_to_stop

    def _drained(self) -> bool:
        return self.confirmed >= self.postgres.end

    def _pause(self, seconds: float) -> None:
        self.now += seconds

    def _step(self, name: str) -> Fault | None:
        self.steps += 1
        self.names.append(name)
        self.now += 0.01
        if self.steps > STEPS_MAX:
            msg = f"no end after {STEPS_MAX} steps"
            raise AssertionError(msg)
        fault = self.faults.get(self.steps)
        if fault is Fault.CRASH:
            raise Crash
        return fault

    def link_step(self, name: str) -> None:
        if name.endswith("!"):
            after, self._after = self._after, None
            if after is Fault.CRASH_AFTER:
                raise Crash
            if after is Fault.LOST:
                raise Retriable("cut after the step")
            return
        fault = self._step(name)
        self._after = fault
        if fault is Fault.SERVER_CRASH:
            self.postgres.restart()
            raise Retriable("PostgreSQL crashed")
        if fault in (Fault.CUT, Fault.HOLD):
            raise Retriable("cut before the step")

    def _kafka_step(self, verb: Verb, producer: str) -> Outcome:
        del producer
        fault = self._step(f"kafka {verb.value}")
        if fault is Fault.CUT:
            return Outcome.REJECT
        if fault in (Fault.LOST, Fault.CRASH_AFTER):
            return Outcome.LOST
        return Outcome.HOLD if fault is Fault.HOLD else Outcome.OK

    def _genesis(self) -> None:
        publisher = FakePublisher(self.cluster, name=NAME, position_topic=POSITIONS)
        publisher.recover(lambda: None)
        genesis = Position(
            pipeline=NAME,
            generation=0,
            system_id=self.postgres.system_id,
            timeline_history=self.postgres.history,
            slot=SLOT,
            publication_fingerprint=self.postgres.publication or NONE,
            kafka_cluster_id=self.cluster.cluster_id,
            end_lsn=self.confirmed,
            commit_time_us=0,
            witness="none",
            message_prefix=None,
            existing=Existing("none", ""),
        )
        publisher.commit(genesis, lambda: None)


NONE = Fingerprint(0, 0, (), Lsn(0))

VALID = b'{"orderId":"o","amountCents":1,"currency":"EUR","method":"CARD"}'
INVALID = b'{"orderId":"o"}'
