"""Ports that do what a test says and remember what they were asked, in one list of calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cdc.event import Record, Route
from cdc.pipeline.ports import Waiting
from cdc.position import Lsn, Position
from cdc.postgres.server import Server
from cdc.postgres.transaction import Row, TransactionEnd
from tests.unit.pipeline.samples import POSITION, SERVER


class World:
    """The clock, the calls in their order, and what goes wrong: `faults` maps a call's name to errors, raised one after another."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.calls: list[str] = []
        self.faults: dict[str, list[BaseException | None]] = {}
        self.before: dict[str, Callable[[], object]] = {}

    def clock(self) -> float:
        return self.now

    def wall(self) -> float:
        return 1_800_000_000.0

    def pause(self, seconds: float) -> None:
        self.calls.append(f"pause {seconds:g}")
        self.now += seconds

    def called(self, name: str, detail: object = "") -> None:
        self.calls.append(f"{name} {detail}".strip())
        self.before.get(name, int)()
        queue = self.faults.get(name)
        if queue and (error := queue.pop(0)) is not None:
            raise error


class Log:
    """Source: `items` are handed out step by step."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.items: list[list[Row | TransactionEnd]] = []
        self.seen: list[Server] = []
        self.urgent = False
        self.confirmed: list[Lsn] = []

    def look(self) -> Server:
        self.world.called("look")
        return self._server()

    def open(self) -> Server:
        self.world.called("open")
        return self._server()

    def watch(self) -> Server:
        self.world.called("watch")
        return self._server()

    def start(self, position: Position) -> None:
        self.world.called("start", position.end_lsn)

    def receive(self, timeout_s: float) -> Sequence[Row | TransactionEnd]:
        self.world.called("receive", f"{timeout_s:g}")
        return self.items.pop(0) if self.items else []

    def take_ignored(self) -> Mapping[str, int]:
        return {"truncate": 2}

    def confirm(self, lsn: Lsn) -> None:
        self.confirmed.append(lsn)
        self.world.called("confirm", lsn)

    def keep_alive(self) -> None:
        self.world.called("keep_alive")

    def finish(self) -> None:
        self.world.called("finish")

    def drop(self) -> None:
        self.world.called("drop source")

    def _server(self) -> Server:
        return self.seen.pop(0) if self.seen else SERVER


class Kafka:
    """Publisher: `records` are what was produced, `committed` what each commit held."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.position: Position | None = POSITION
        self.routes: dict[str, Route | BaseException] = {}
        self.records: list[Record] = []
        self.committed: list[tuple[list[Record], Position]] = []
        self.transaction_timeout_s = 60.0
        self.full = False
        self.hidden: Position | None = None
        self.patient: list[bool] = []
        self.blaming: list[bool] = []

    def peek(self) -> tuple[Position | None, str]:
        self.world.called("peek")
        return self.position, "cluster"

    def last(self) -> Position | None:
        self.world.called("last")
        return self.hidden or self.position

    def require(self, topics: Sequence[str], waiting: Waiting) -> None:
        self.world.called("require", ",".join(topics))

    def recover(self, waiting: Waiting, *, patient: bool, blaming: bool = False) -> Position | None:
        self.patient.append(patient)
        self.blaming.append(blaming)
        self.world.called("recover")
        waiting()
        return self.position

    def route(self, topic: str, waiting: Waiting) -> Route:
        self.world.called("route", topic)
        found = self.routes.get(topic, Route(topic, 6, 1_000_000, compacted=False, timestamp_before_ms=None, timestamp_after_ms=3_600_000))
        if isinstance(found, BaseException):
            raise found
        return found

    def produce(self, records: Sequence[Record], waiting: Waiting) -> None:
        self.records += records
        self.world.called("produce", len(records))

    def commit(self, position: Position, waiting: Waiting) -> None:
        self.world.called("commit", position.end_lsn)
        self.committed.append((self.records, position))
        self.records = []

    def abort(self, timeout_s: float) -> None:
        self.world.called("abort", f"{timeout_s:g}")

    def drop(self) -> None:
        self.world.called("drop publisher")


class Heard:
    """Observer that remembers."""

    def __init__(self) -> None:
        self.heard: list[tuple[Any, ...]] = []
        self.states: list[str] = []
        self.waiting: list[tuple[int, int]] = []
        self.beats = 0

    def heartbeat(self) -> None:
        self.beats += 1

    def failed(self, error: Exception) -> None:
        self.heard.append(("failed", str(error)))

    def state(self, state: str, reason: str) -> None:
        self.states.append(str(state))
        self.heard.append(("state", str(state), reason))

    def server(self, server: Server, position: Position | None) -> None:
        self.heard.append(("server", server, position))

    def committed(self, position: Position, events: int, dead_letters: int, seconds: float) -> None:
        self.heard.append(("committed", position.end_lsn, events, dead_letters, seconds))

    def dead_letter(self, reason: str, event_id: str, sequence: str, what: str, correlation_id: str) -> None:
        self.heard.append(("dead_letter", reason, event_id, sequence, what))

    def pending(self, rows: int, oldest_ms: int) -> None:
        self.waiting.append((rows, oldest_ms))

    def ignored(self, kind: str, count: int) -> None:
        self.heard.append(("ignored", kind, count))

    def published(self, topics: Mapping[str, tuple[int, int]]) -> None:
        self.heard.append(("published", dict(topics)))
