"""One deterministic world: a simulated PostgreSQL, a simulated Kafka, Redis or RabbitMQ, the real pipeline in between, faults, the judge.

Strategy: every call through a port (of the pipeline, and below it of the link and the catalog) passes the gate, which counts
it and asks the plan what is to happen there. Between two calls nothing changes outside, so a process that dies before a
call is one that died after the call before. Time is a number that moves only when somebody waits, and the applications'
script runs by it. The judge sees every moment at which anything can have changed for an onlooker: each commit in the sink and each
confirmed LSN.

A process that is killed makes no more calls; the kernel closes its connections. `World.run` starts another one, until
everything is published and confirmed, and gives up with the invariant I9 after LAG_LIMIT_S. An `Actor` is a process that
goes on only when it is told to, one call at a time: with two of them one can sleep while the other takes over.
"""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, Protocol, TypeVar, cast

from cdc.audit.judge import Row as JudgedRow
from cdc.audit.judge import Verdict, Visible, Watch, digest, judge, limit_of
from cdc.audit.verify import visible
from cdc.avro.encoder import Encoder
from cdc.avro.parse import parse
from cdc.errors import InvalidEvent, Retriable
from cdc.event import Record
from cdc.kafka.subscriber import Seen
from cdc.outbox.mapping import OutboxMapping
from cdc.outbox.router import Router
from cdc.pipeline.parking import Policy
from cdc.pipeline.ports import Publisher, Source, Waiting
from cdc.pipeline.relay import Relay
from cdc.pipeline.supervisor import Identity, Supervisor
from cdc.position import Existing, Lsn, Position
from cdc.postgres.catalog import Catalog
from cdc.postgres.link import Link
from cdc.postgres.pgoutput import Insert, Message, Relation
from cdc.postgres.server import Server
from cdc.postgres.stream import ReplicationStream
from cdc.rabbitmq.publisher import RabbitPublisher
from cdc.redis.link import Link as RedisLink
from cdc.redis.publisher import Options, RedisPublisher
from tests.simulation.fake_kafka import Cluster, FakePublisher, Outcome, Topic, Transaction, Verb
from tests.simulation.fake_postgres import OUTBOX, FakeCatalog, FakeLink, FakePostgres, OpenTransaction
from tests.simulation.fake_rabbitmq import EXCHANGE, FakeRabbit, FakeRabbitLink
from tests.simulation.fake_redis import FakeRedis, FakeRedisLink

NAME, SLOT, PREFIX = "shop", "cdc_shop", "shop.outbox"
POSITIONS, EVENTS, DEAD = "_cdc.shop.position", "outbox.event.order", "cdc.shop.dead-letter"

STREAMS = 2
"""Partitions of the events' topic, or streams of each topic."""

LAG_LIMIT_S = 400.0
"""When faults are over, everything must be published within this: more than any timeout of the pipeline and the servers."""

CONFIRM_S = 5.0
"""rabbitmq.confirm_timeout_s by default."""

EPOCH_S = 1_800_000_000.0

ENCODER = Encoder(
    "OrderPlaced",
    1,
    7,
    parse(
        {"type": "record", "name": "OrderPlaced", "fields": [{"name": "n", "type": "int"}]},
        "OrderPlaced/1.avsc",
    ),
)


class Killed(BaseException):
    """The process ends here, as by SIGKILL."""


class Fault(Enum):
    """What happens at a call."""

    KILL = "the process dies before the call is made"
    FAIL = "the call is not made and raises Retriable"
    FAIL_AFTER = "the call is made and raises Retriable: its answer was lost"
    HOLD = "the request to the sink stays on its way when the client has given it up"
    RELEASE = "held requests arrive, before the call"
    RESTART = "PostgreSQL restarts with what it has on disk, before the call"


NEVER_RAISES = (".drop", ".close")
"""Calls that no fault makes raise, by the ports' contract."""

CALLS_LIMIT = 20_000
"""A run of so many calls does not come to an end."""

Answer = TypeVar("Answer")


Plan = Mapping[int, "Fault | Action"]
"""What happens at a call, by its number: a fault, or anything before the call is made."""


class Gate:
    """Counts the calls of all processes, and lets the plan happen."""

    def __init__(self, plan: Plan) -> None:
        self.plan = dict(plan)
        self.names: list[str] = []

    @property
    def calls(self) -> int:
        return len(self.names)

    def pass_(self, process: Process, name: str, call: Callable[[], Answer]) -> Answer:
        process.turn()
        process.alive()
        world, fault = process.world, self.plan.pop(self.calls, None)
        self.names.append(name)
        assert self.calls < CALLS_LIMIT, f"no end: {self.names[-20:]}"
        if fault is None:
            return call()
        if not isinstance(fault, Fault):
            fault(world)
            return call()
        if fault is Fault.KILL:
            process.kill()
        elif fault is Fault.RESTART:
            world.postgres.restart()
        elif fault is Fault.RELEASE:
            world.sink.release()
        elif fault is Fault.HOLD:
            world.sink.hold_next = True
        if fault not in (Fault.FAIL, Fault.FAIL_AFTER) or name.endswith(NEVER_RAISES):
            return call()
        if fault is Fault.FAIL_AFTER:
            call()
        msg = f"{name}: {fault.value}"
        raise Retriable(msg)


class Guarded:
    """A port whose calls pass the gate."""

    def __init__(self, process: Process, target: object) -> None:
        self._process = process
        self._target = target

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - stands for any method
        found = getattr(self._target, name)
        if not callable(found):
            return found
        process, label = self._process, f"{type(self._target).__name__}.{name}"

        def call(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the method's own
            return process.world.gate.pass_(process, label, lambda: found(*args, **kwargs))

        return call


class Silent:
    """Observer that remembers what ended a passage."""

    def __init__(self) -> None:
        self.failures: list[str] = []
        self.states: list[str] = []
        self.dead: list[tuple[str, str, str, str]] = []
        self.ignored_kinds: dict[str, int] = {}

    def heartbeat(self) -> None:
        pass

    def failed(self, error: Exception) -> None:
        self.failures.append(str(error))

    def state(self, state: str, reason: str) -> None:
        self.states.append(f"{state}: {reason}")

    def server(self, server: Server, position: Position | None) -> None:
        pass

    def committed(self, position: Position, events: int, dead_letters: int, seconds: float) -> None:
        pass

    def dead_letter(self, reason: str, event_id: str, sequence: str, what: str, correlation_id: str) -> None:
        self.dead.append((reason, event_id, sequence, what))

    def pending(self, rows: int, oldest_ms: int) -> None:
        pass

    def ignored(self, kind: str, count: int) -> None:
        self.ignored_kinds[kind] = self.ignored_kinds.get(kind, 0) + count

    def published(self, topics: Mapping[str, tuple[int, int]]) -> None:
        pass


class Connected(Protocol):
    """A connection of a process, as it can end."""

    def break_(self) -> None: ...
    def forsake(self) -> None: ...


class Sink(Protocol):
    """What a world needs of a simulated sink; it tells what becomes visible, at the moment when it does."""

    cluster_id: str
    hold_next: bool
    on_commit: Callable[[int, list[Record]], None]
    on_init: Callable[[int], None]

    def begin(self, position: Position, key: str) -> None: ...
    def committed(self, topic: str) -> Iterator[tuple[int, int, Record]]: ...
    def release(self) -> int: ...


@dataclass(frozen=True)
class Build:
    """How a process is made, and what it publishes to; planted wrong relays replace a part."""

    stream: type[ReplicationStream] = ReplicationStream
    publisher: type[FakePublisher] = FakePublisher
    relay: type[Relay] = Relay
    deep: bool = True
    """Whether links and the catalog pass the gate as well."""
    stop_at_invalid: bool = False
    once: bool = True
    """Whether the sink takes events and position together; else only what is delivered first is judged."""

    def sink(self, clock: Callable[[], float]) -> Sink:
        """Return the servers."""
        return JudgedCluster(clock)

    def publish(self, process: Process) -> object:
        """Return a process's publisher."""
        return self.publisher(process.world.kafka, name=NAME, position_topic=POSITIONS)


@dataclass(frozen=True)
class RedisBuild(Build):
    """The same on Redis: the real publisher, with a simulated server at the other end of its link."""

    redis: type[RedisPublisher] = RedisPublisher
    server: type[FakeRedis] = FakeRedis
    wait_replicas: int = 0

    def sink(self, clock: Callable[[], float]) -> Sink:
        """See Build."""
        return self.server()

    def publish(self, process: Process) -> object:
        """See Build."""
        options = Options("redis://", streams=STREAMS, maxlen=0, wait_replicas=self.wait_replicas)
        gate = partial(process.world.gate.pass_, process) if self.deep else pass_by

        def connect() -> RedisLink:
            return cast("RedisLink", FakeRedisLink(process.world.redis, gate))

        return self.redis(name=NAME, options=options, position_key=POSITIONS, clock=process.world.clock, connect=connect)


@dataclass(frozen=True)
class RabbitBuild(Build):
    """The same on RabbitMQ: the real publisher and its link, with a simulated broker instead of pika's connection."""

    rabbit: type[RabbitPublisher] = RabbitPublisher
    broker: type[FakeRabbit] = FakeRabbit
    once: bool = False

    def sink(self, clock: Callable[[], float]) -> Sink:
        """See Build."""
        return self.broker(clock)

    def publish(self, process: Process) -> object:
        """See Build."""
        world = process.world
        gate = partial(world.gate.pass_, process) if self.deep else pass_by

        def connect() -> FakeRabbitLink:
            link = FakeRabbitLink(world.rabbit, world.clock, world.pause, gate, CONFIRM_S)
            process.links.append(link)
            return link

        return self.rabbit(
            name=NAME,
            url="amqp://",
            exchange=EXCHANGE,
            exchange_type="topic",
            position_queue=POSITIONS,
            dead_letter_queue=DEAD,
            confirm_timeout_s=CONFIRM_S,
            clock=world.clock,
            connect=connect,
        )


class Process:
    """One instance of the pipeline, with all that it holds in memory."""

    def __init__(self, world: World, build: Build) -> None:
        self.world = world
        self.observer = Silent()
        self.dead = False
        self.links: list[Connected] = []
        self.leave = False
        self.turn: Callable[[], None] = nothing
        catalog = FakeCatalog(world.postgres)

        def connect(_timeout_s: float) -> Link:
            link = FakeLink(world.postgres, world.wait_until)
            self.links.append(link)
            return cast("Link", Guarded(self, link)) if build.deep else link

        stream = build.stream(
            slot=SLOT,
            publication=SLOT,
            message_prefix=PREFIX,
            wanted=is_outbox,
            status_interval_s=10.0,
            catalog=cast("Catalog", Guarded(self, catalog)) if build.deep else catalog,
            connect=connect,
            clock=world.clock,
            wall=world.wall,
        )
        self.source = cast("Source", Guarded(self, stream))
        self.publisher = cast("Publisher", Guarded(self, build.publish(self)))

        def relay(position: Position, waiting: Waiting, refused: Mapping[bytes, str]) -> Relay:
            return build.relay(
                source=self.source,
                publisher=self.publisher,
                router=Router(OutboxMapping(source="/shop", message_prefix=PREFIX), encoder, position.generation),
                policy=Policy(NAME, None if build.stop_at_invalid else DEAD),
                observer=self.observer,
                position=position,
                refused=refused,
                waiting=waiting,
                clock=world.clock,
                wall=world.wall,
            )

        self.supervisor = Supervisor(
            identity=Identity(NAME, SLOT, (DEAD,), PREFIX),
            source=self.source,
            publisher=self.publisher,
            precheck=self.alive,
            relay=relay,
            refresh=self.alive,
            observer=self.observer,
            backoff=lambda attempt: min(5.0, 0.2 * attempt),
            clock=world.clock,
            stopping=self.stopping,
            pause=world.pause,
            grace_s=10.0,
        )

    def stopping(self) -> bool:
        """Whether it was asked to stop, which is never taken back."""
        self.leave = self.leave or self.world.settled()
        return self.leave

    def alive(self) -> None:
        """Go no further when the process was killed."""
        if self.dead:
            raise Killed

    def kill(self) -> None:
        """End here; the kernel closes the connections."""
        self.dead = True
        for link in self.links:
            link.break_()
        raise Killed

    def run(self) -> None:
        """Run until killed, or until all is done."""
        try:
            self.supervisor.run()
        except Killed:
            return


def nothing() -> None:
    """Nobody else has a turn."""


def pass_by(_name: str, request: Callable[[], Answer]) -> Answer:
    """Make a request that no fault is meant for."""
    return request()


def first_deliveries(seen: Sequence[Visible]) -> list[Visible]:
    """Leave out what was delivered before; it must be the same."""
    first: dict[tuple[str, bytes | None], Visible] = {}
    for each in seen:
        known = first.setdefault((each.topic, each.place), each)
        if known._replace(offset=each.offset) != each:
            first[each.topic, b"again %d" % each.offset] = each
    return list(first.values())


def is_outbox(relation: Relation) -> bool:
    return (relation.namespace, relation.name) == ("public", "outbox")


def encoder(_subject: str, _version: int | None) -> Encoder:
    return ENCODER


class JudgedCluster(Cluster):
    """Tells what became visible, at the moment when it does; `hold_next` holds one request back."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(clock=clock)
        self.hook = self._hold
        self.hold_next = False
        self.on_commit: Callable[[int, list[Record]], None] = lambda _epoch, _records: None
        self.on_init: Callable[[int], None] = lambda _epoch: None

    def begin(self, position: Position, key: str) -> None:
        """Make the topics, and commit the first position."""
        self.create(Topic(key, compacted=True))
        self.create(Topic(EVENTS, partitions=STREAMS))
        self.create(Topic(DEAD))
        epoch = self.init_producer("genesis")
        self.append("genesis", epoch, Record(key, NAME.encode(), position.to_json(), [], 0, 0))
        self.end("genesis", epoch, commit=True)

    def init_producer(self, producer: str) -> int:
        epoch = super().init_producer(producer)
        self.on_init(epoch)
        return epoch

    def _hold(self, _verb: Verb, _producer: str) -> Outcome:
        held, self.hold_next = self.hold_next, False
        return Outcome.HOLD if held else Outcome.OK

    def _end(self, producer: str, transaction: Transaction, *, commit: bool) -> None:
        super()._end(producer, transaction, commit=commit)
        if commit:
            self.on_commit(transaction.epoch, [entry.record for _, _, entry in transaction.entries if entry.record is not None])


Action = Callable[["World"], None]
Script = Sequence[tuple[float, Action]]


class World:
    """Both servers, the clock, the applications' script and the judge."""

    def __init__(self, script: Script, plan: Plan | None = None, build: Build | None = None) -> None:
        self.now = 0.0
        self.gate = Gate(plan or {})
        self.build = build or Build()
        self.script = sorted(script, key=lambda each: each[0])
        self.postgres = FakePostgres(SLOT, self.wall)
        self.sink = self.build.sink(self.wall)
        self.rows: list[JudgedRow] = []
        self.watch = Watch()
        self.position = self._genesis()
        self.processes: list[Process] = []
        self.deadline = LAG_LIMIT_S + (self.script[-1][0] if self.script else 0.0)
        self.sink.on_commit = self._committed
        self.sink.on_init = self._recovered
        if isinstance(self.sink, FakeRedis):
            self.sink.on_loss = self._lost
        self.postgres.confirming = self._confirmed
        self._act()

    # time

    def clock(self) -> float:
        return self.now

    def wall(self) -> float:
        return EPOCH_S + self.now

    def pause(self, seconds: float) -> None:
        self.wait_until(seconds, lambda: False)

    def wait_until(self, seconds: float, ready: Callable[[], bool]) -> None:
        """Let time pass, at most so long, until `ready`; the applications and servers go on meanwhile."""
        until = self.now + seconds
        while not ready() and self.now < until:
            moment = self.script[0][0] if self.script else until
            self.now = min(until, max(self.now, moment))
            self._act()
            self.postgres.pump()

    def _act(self) -> None:
        while self.script and self.script[0][0] <= self.now:
            _, action = self.script.pop(0)
            action(self)

    def settled(self) -> bool:
        """Whether the script is over and all is confirmed, or never will be: processes may stop now."""
        if self.now > self.deadline:
            return True
        if self.script or self.confirmed < self.postgres.end:
            return False
        self.sink.release()
        return self.confirmed >= self.postgres.end

    @property
    def confirmed(self) -> Lsn:
        """The slot's confirmed_flush_lsn."""
        assert self.postgres.slot is not None
        return self.postgres.slot.confirmed

    @property
    def kafka(self) -> JudgedCluster:
        """The sink, where it is Kafka."""
        assert isinstance(self.sink, JudgedCluster)
        return self.sink

    @property
    def redis(self) -> FakeRedis:
        """The sink, where it is Redis."""
        assert isinstance(self.sink, FakeRedis)
        return self.sink

    @property
    def rabbit(self) -> FakeRabbit:
        """The sink, where it is RabbitMQ."""
        assert isinstance(self.sink, FakeRabbit)
        return self.sink

    # what applications do

    def transaction(self, *rows: tuple[str, str, str]) -> None:
        """Commit one transaction of rows (id, key, payload)."""
        self.commit(self.insert(self.postgres.begin(), *rows))

    def insert(self, transaction: OpenTransaction, *rows: tuple[str, str, str]) -> OpenTransaction:
        for event, key, payload in rows:
            self.postgres.insert(transaction, event.encode(), b"order", key.encode(), b"OrderPlaced", payload.encode())
        return transaction

    def emit(self, transaction: OpenTransaction, *rows: tuple[str, str, str]) -> OpenTransaction:
        """Write rows as logical messages."""
        for event, key, payload in rows:
            content = f'{{"id":"{event}","aggregatetype":"order","aggregateid":"{key}","type":"OrderPlaced","payload":{payload}}}'
            self.postgres.change(transaction, Message(True, self.postgres.end, PREFIX, content.encode()))
        return transaction

    def commit(self, transaction: OpenTransaction) -> None:
        self.postgres.commit(transaction)
        for _, message in transaction.changes:
            if isinstance(message, Insert) and message.relation_oid == OUTBOX.oid:
                event, _, key, event_type, payload = cast("tuple[bytes, ...]", message.values)
            elif isinstance(message, Message) and message.prefix == PREFIX:
                said = json.loads(message.content)
                event, key, event_type = (said[name].encode() for name in ("id", "aggregateid", "type"))
                payload = json.dumps(said["payload"], separators=(",", ":")).encode()
            else:
                continue
            try:
                payloads = frozenset({digest(ENCODER.encode(payload))})
            except InvalidEvent:
                payloads = frozenset()
            self.rows.append(JudgedRow(event, key, event_type, transaction.xid, payloads, digest(payload)))

    # running

    def start(self) -> Process:
        process = Process(self, self.build)
        self.processes.append(process)
        return process

    def run(self) -> World:
        """Start a process, and another one after each that ended too early, until all is done."""
        while True:
            process = self.start()
            process.run()
            if not process.dead and self.settled():
                return self

    def verdict(self) -> Verdict:
        """Judge what both ends hold now, and what was seen in time."""
        self.watch.ended(self.postgres.end - self.confirmed)
        limit = limit_of(self.position.generation, self.position.end_lsn)
        verdict = judge(self.rows, self.visible(), limit=limit)
        for finding in self.watch.verdict.findings:
            verdict.add(finding.kind, finding.what)
        return verdict

    def visible(self) -> list[Visible]:
        """Return every record that a read_committed consumer sees."""
        seen: list[Visible] = []
        for topic in (EVENTS, DEAD):
            for partition, offset, record in self.sink.committed(topic):
                made = visible(Seen(topic, partition, offset, record.key, record.value, record.headers, 0), NAME, "/shop", DEAD)
                assert made is not None, "only this pipeline writes here"
                seen.append(made)
        return seen if self.build.once else first_deliveries(seen)

    def _genesis(self) -> Position:
        fingerprint = self.postgres.publication
        assert fingerprint is not None
        position = Position(
            pipeline=NAME,
            generation=0,
            system_id=self.postgres.system_id,
            timeline_history=self.postgres.history,
            slot=SLOT,
            publication_fingerprint=dataclasses.replace(fingerprint, proved_lsn=self.postgres.end),
            kafka_cluster_id=self.sink.cluster_id,
            end_lsn=self.postgres.end,
            commit_time_us=round(self.wall() * 1_000_000),
            witness="none",
            message_prefix=PREFIX,
            existing=Existing("none", "740:740:"),
        )
        self.sink.begin(position, POSITIONS)
        return position

    def _recovered(self, epoch: int) -> None:
        self.watch.recovered(epoch)

    def _lost(self) -> None:
        """The sink went back in time, which ends nobody's promise but its own: what is seen from here on is judged."""
        verdict, self.watch = self.watch.verdict, Watch()
        self.watch.verdict = verdict
        self.position = self.redis.position(POSITIONS)

    def _committed(self, epoch: int, records: list[Record]) -> None:
        places = []
        for record in records:
            if record.topic == POSITIONS:
                assert record.value is not None
                self.position = Position.from_json(record.value)
            else:
                headers = dict(record.headers)
                places.append(headers.get("ce_sequence") or headers.get("cdc.sequence") or b"")
        self.watch.committed(epoch)
        self.look(places if self.build.once else [])

    def _confirmed(self, _lsn: int) -> None:
        self.look([])

    def look(self, places: Sequence[bytes]) -> None:
        """Show the judge this moment."""
        self.watch.look(places, limit_of(self.position.generation, self.position.end_lsn), self.confirmed)


class Actor:
    """A process in a thread of its own that goes on only when it is told to, call by call; only one thread runs at a time."""

    def __init__(self, world: World) -> None:
        self.process = world.start()
        self.process.turn = self._turn
        self.ended = False
        self._go, self._waits = threading.Semaphore(0), threading.Semaphore(0)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._waits.acquire()

    def step(self, calls: int = 1) -> bool:
        """Let it make so many calls; return whether there is more to come."""
        for _ in range(calls):
            if not self.ended:
                self._go.release()
                self._waits.acquire()
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        return not self.ended

    def until(self, name: str) -> bool:
        """Let it go on until it is about to return from a call whose name ends so; return whether it came so far."""
        names = self.process.world.gate.names
        while self.step():
            if names and names[-1].endswith(name):
                return self.step()
        return False

    def lose_slot(self, *, silently: bool = False) -> None:
        """The server gives its connections up; what lies in their sockets can still be read."""
        for link in self.process.links:
            if silently:
                link.forsake()
            else:
                link.break_()

    def kill(self) -> None:
        """End it here."""
        self.process.dead = True
        self.lose_slot()
        while self.step():
            pass

    def _run(self) -> None:
        try:
            self._turn()
            self.process.run()
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that steps
            self._error = error
        self.ended = True
        self._waits.release()

    def _turn(self) -> None:
        self._waits.release()
        self._go.acquire()
