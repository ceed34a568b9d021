"""Worker threads: each applies one job at a time with a connection of its own; asynchronous handlers share one event loop.

Strategy: the records of a job are tried together, in one database transaction for all synchronous units and one for all
asynchronous ones. If anything goes wrong that is rolled back, and each record is applied for itself, in order, until one fails: the
failure is then its own and no other record's. Of several handlers of one record each has its own transaction, and one that
fails does not keep the others from theirs.

Rules.
- Whatever a handler raises becomes a Failure, SystemExit and cancellation included: a thread that dies would hold its partition.
- A connection that broke is opened again for the next transaction. That none can be opened is the database's fault.
- Between two records the lane is looked at: when it was taken from us, its next owner goes on from there.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any, Final, TypeVar

from cdc.avro.decoder import UnknownSchemaError
from cdc.consumer import console
from cdc.consumer.handler import Reader, Unit
from cdc.consumer.lane import Failure, Handle, Handled, Job, Kind, Result
from cdc.consumer.ports import LOG
from cdc.consumer.resources import Resource
from cdc.consumer.retry import NEVER, Retry, TryAgain
from cdc.consumer.running import run, run_async
from cdc.consumer.steps import Blocked, Inbox, Policy, transaction
from cdc.errors import InvalidEvent

if TYPE_CHECKING:
    import psycopg

    from cdc.avro.registry import Registry
    from cdc.event import Seen

MESSAGE_LIMIT: Final = 1_000

CONFLICTS_MAX: Final = 3
"""How often a transaction is tried again at once that PostgreSQL ended for the sake of another one (deadlock, serialization)."""

CONFLICTS: Final = frozenset({"40001", "40P01"})

REFRESH_S: Final = 10.0
"""How often the schema folder is read again for a schema id that it does not have."""

Answer = TypeVar("Answer")


class _DatabaseAway(Exception):
    """No connection can be opened; the class of the error, and what may be said of it."""

    def __init__(self, error: Exception) -> None:
        super().__init__(type(error).__name__)
        self.where = f" ({why})" if (why := console.refusal(error)) else ""


@dataclass(slots=True)
class Tools:
    """What the workers of a consumer share. `connect` and `connect_async` are None without a database."""

    consumer: str
    reader: Reader
    retry: Retry
    inbox: Inbox
    policy: Policy
    connect: Callable[[], psycopg.Connection[Any]] | None = None
    connect_async: Callable[[], Coroutine[Any, Any, psycopg.AsyncConnection[Any]]] | None = None
    refresh: Callable[[Registry], Registry] | None = None
    processes: int = 0
    resources: Sequence[Resource[Any]] = ()
    tracebacks: bool = False
    _opened: ExitStack = field(default_factory=ExitStack)
    _refreshed: float = 0.0
    _pool: Executor | None = None
    _events: asyncio.AbstractEventLoop | None = None
    _thread: threading.Thread | None = None

    def open(self) -> None:
        """Start what all workers share, and open the handlers' resources; raises what opening one of them raises."""
        if self.connect_async is not None or any(handler.is_async for handler in self.reader.every):
            self._serve()
        for resource in self.resources:
            self._opened.enter_context(resource.opened(self._on_loop))

    def close(self) -> None:
        """End it."""
        try:
            self._opened.close()
        finally:
            if self._events is not None and self._thread is not None:
                self._events.call_soon_threadsafe(self._events.stop)
                self._thread.join(1.0)
            if self._pool is not None:
                self._pool.shutdown(wait=False, cancel_futures=True)
            self._events = self._thread = self._pool = None

    def _serve(self) -> None:
        self._events = asyncio.new_event_loop()
        self._thread = threading.Thread(target=_serve, args=(self._events,), name="cdc-consumer-events", daemon=True)
        self._thread.start()

    def _on_loop(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        """Run something of a resource, which may be the only one that needs a loop."""
        if self._events is None:
            self._serve()
        return self.wait_for(work)

    def wait_for(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        """Run something on the event loop and wait for it."""
        assert self._events is not None, "asynchronous handlers have a loop"
        return asyncio.run_coroutine_threadsafe(work, self._events).result()

    def computing(self, function: Callable[[Any], Any], value: object) -> Future[Any]:
        """Start a handler's computation, in a process if there are any."""
        if not self.processes:
            done = Future[Any]()
            done.set_result(function(value))
            return done
        if self._pool is None:
            self._pool = ProcessPoolExecutor(self.processes, mp_context=get_context("spawn"))
        try:
            return self._pool.submit(function, value)
        except BrokenProcessPool:
            self._pool = None  # one of them was killed; the next attempt has new ones
            raise

    def renewed(self) -> bool:
        """Read the schema folder again, now and then; whether there is anything new."""
        registry, now = self.reader.registry, time.monotonic()
        if self.refresh is None or registry is None or now - self._refreshed < REFRESH_S:
            return False
        self._refreshed = now
        newer = self.refresh(registry)
        if newer is registry:
            return False
        self.reader.renewed(newer)
        return True


def _serve(events: asyncio.AbstractEventLoop) -> None:
    """Run an event loop until it is stopped, then end what still runs on it."""
    events.run_forever()
    for task in asyncio.all_tasks(events):
        task.cancel()
    events.run_until_complete(asyncio.sleep(0))
    events.close()


class Hand:
    """One worker: a connection of each kind, opened when it is first needed."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._connection: psycopg.Connection[Any] | None = None
        self._async: psycopg.AsyncConnection[Any] | None = None

    def close(self) -> None:
        """Hang up."""
        if self._connection is not None:
            self._connection.close()
        if self._async is not None:
            self._tools.wait_for(self._async.close())

    def perform(self, job: Handle) -> Handled:
        """Apply the records of a job, in order, until one fails."""
        applied = skipped = 0
        done = dict[tuple[int, str], bool]()
        if len(job.records) > 1:
            together = self._together(job, done)
            if together is not None:
                applied = sum(done.values())
                return together._replace(applied=applied, skipped=len(done) - applied)
            done.clear()
        for settled, record in enumerate(job.records):
            if job.lane.lost:
                return Handled(settled, None, applied, skipped)
            outcome: list[bool] = []
            failure = self._alone(job, record, outcome)
            applied += sum(outcome)
            skipped += len(outcome) - sum(outcome)
            if failure is not None:
                return Handled(settled, failure, applied, skipped)
        return Handled(len(job.records), None, applied, skipped)

    def _together(self, job: Handle, done: dict[tuple[int, str], bool]) -> Handled | None:
        """Apply as many records as can be read in one transaction; None when that failed and nothing was applied."""
        groups, settled, failure = self._groups(job)
        if all(groups) and self._tools.inbox is Inbox.OFF:
            return None  # were the second transaction to fail, nothing would tell that the first one was committed
        try:
            for group in groups:
                if group:
                    fresh = self._patiently(group, pipeline=all(unit.handler.pipeline for unit in group))
                    done.update(((unit.event.offset, unit.handler.name), new) for unit, new in zip(group, fresh, strict=True))
        except BaseException:  # noqa: BLE001 - each record for itself will tell what it was
            return None
        return Handled(settled, failure)

    def _groups(self, job: Handle) -> tuple[tuple[list[Unit], list[Unit]], int, Failure | None]:
        """Return the units of the records, synchronous and asynchronous ones, of how many records they are, and why of no more.

        The two kinds are two transactions, one behind the other. So they come together only where all records are for the same handlers:
        else an event could be applied before an earlier one of its partition.
        """
        groups: tuple[list[Unit], list[Unit]] = ([], [])
        first: list[str] = []
        for settled, record in enumerate(job.records):
            units = self._read(record, 1, frozenset(), job.lane.known.keys)
            if isinstance(units, Failure):
                return groups, settled, units
            names = [unit.handler.name for unit in units]
            first = first or names
            both = len({unit.handler.is_async for unit in (*units, *groups[0][:1], *groups[1][:1])}) > 1
            if both and names != first:
                return groups, settled, None
            for unit in units:
                groups[unit.handler.is_async].append(unit)
        return groups, len(job.records), None

    def _alone(self, job: Handle, record: Seen, outcome: list[bool]) -> Failure | None:
        """Apply one record, each of its handlers in a transaction of its own; return why it is not settled, if it is not."""
        finished = set(job.done)
        units = self._read(record, job.attempt, job.done, job.lane.known.keys)
        if isinstance(units, Failure):
            return units._replace(done=frozenset(finished))
        first: Failure | None = None
        left = set[str]()
        for number, unit in enumerate(units):
            last = number == len(units) - 1 and first is None
            try:
                outcome += self._patiently([unit], releases=last and unit.key is not None and unit.event.moved)
            except BaseException as error:  # noqa: BLE001 - whatever it is, it is this handler's failure
                first = first or _failure(error, unit)
                if self._tools.tracebacks and not isinstance(error, _DatabaseAway):
                    LOG.warning("%s: handler %s raised", self._tools.consumer, unit.handler.name, exc_info=error)
                left.add(unit.handler.name)
            else:
                finished.add(unit.handler.name)
        return None if first is None else first._replace(done=frozenset(finished), left=frozenset(left))

    def _read(self, record: Seen, attempt: int, done: frozenset[str], watched: frozenset[bytes]) -> list[Unit] | Failure:
        """Return the units of a record with their computations done, or why it cannot be read."""
        reader = self._tools.reader
        try:
            try:
                return reader.read(record, attempt, done, watched)
            except UnknownSchemaError:
                if not self._tools.renewed():
                    raise
                return reader.read(record, attempt, done, watched)
        except UnknownSchemaError as error:
            # A newer writer's: the reader's copy of the folder may follow, so it is worth waiting for.
            return Failure(Kind.UNREADABLE, type(error).__name__, str(error), rule=self._tools.retry)
        except InvalidEvent as error:
            return Failure(Kind.UNREADABLE, type(error).__name__, str(error), rule=NEVER)
        except Exception as error:  # noqa: BLE001 - such as a business key that the event does not have
            return Failure(Kind.UNREADABLE, type(error).__name__, rule=NEVER)

    def _patiently(self, units: Sequence[Unit], *, pipeline: bool = False, releases: bool = False) -> list[bool]:
        """Apply units in one transaction; one that lost against another transaction is tried again at once."""
        for tried in range(1, CONFLICTS_MAX + 1):
            try:
                return self._apply(units, pipeline=pipeline, releases=releases)
            except Exception as error:
                if tried == CONFLICTS_MAX or getattr(error, "sqlstate", None) not in CONFLICTS:
                    raise
        raise AssertionError  # the last one has returned or raised

    def _apply(self, units: Sequence[Unit], *, pipeline: bool = False, releases: bool = False) -> list[bool]:
        """Apply units in one transaction; all of them are synchronous, or none is."""
        units = self._computed(units)
        tools = self._tools
        if tools.connect is None:  # nothing is known of open dead letters, nor of what was applied meanwhile
            units = [unit._replace(key=None) for unit in units]
        steps = transaction(units, tools.inbox, tools.consumer, tools.policy, releases=releases and tools.connect is not None)
        try:
            if units[0].handler.is_async:
                return tools.wait_for(run_async(steps, self._open_async()))
            return run(steps, self._open(), pipeline=pipeline)
        finally:
            steps.close()

    def _computed(self, units: Sequence[Unit]) -> Sequence[Unit]:
        """Return units with what their handlers' `compute` gave, all of them at once."""
        started = [unit.handler.compute and self._tools.computing(unit.handler.compute, unit.event.value) for unit in units]
        if not any(started):
            return units
        return [
            unit if future is None else unit._replace(event=replace(unit.event, prepared=future.result()))
            for unit, future in zip(units, started, strict=True)
        ]

    def _open(self) -> psycopg.Connection[Any] | None:
        if self._tools.connect is None:
            return None
        if self._connection is None or self._connection.closed or self._connection.broken:
            try:
                self._connection = self._tools.connect()
            except Exception as error:
                raise _DatabaseAway(error) from error
        return self._connection

    def _open_async(self) -> psycopg.AsyncConnection[Any] | None:
        if self._tools.connect_async is None:
            return None
        if self._async is None or self._async.closed or self._async.broken:
            try:
                self._async = self._tools.wait_for(self._tools.connect_async())
            except Exception as error:
                raise _DatabaseAway(error) from error
        return self._async


def _failure(error: BaseException, unit: Unit) -> Failure:
    """Read an exception as values."""
    handler = unit.handler
    if isinstance(error, _DatabaseAway):
        return Failure(Kind.DATABASE, str(error), where=error.where)
    if isinstance(error, Blocked):
        return Failure(Kind.BLOCKED, "Blocked", "an earlier event of this key is parked", handler.name)
    return Failure(
        Kind.HANDLER,
        type(error).__name__,
        str(error)[:MESSAGE_LIMIT],
        handler.name,
        handler.retry.rule_for(error),
        error.after_s if isinstance(error, TryAgain) else None,
        handler.breaker if isinstance(error, handler.dependency_errors) else None,
        where=console.places(error),
    )


class Workers:
    """Threads that perform jobs; results come out of `results` as (job, result)."""

    def __init__(self, results: queue.SimpleQueue[tuple[Job, Result]]) -> None:
        self.results = results
        self._threads: list[threading.Thread] = []
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()

    def start(
        self, name: str, perform: Callable[[Any], Result], close: Callable[[], None], begin: Callable[[], None] = lambda: None
    ) -> None:
        """Start one more thread, which calls `begin`, `perform` for each job, and `close` at its end."""
        thread = threading.Thread(target=self._work, args=(perform, close, begin), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def submit(self, job: Job) -> None:
        """Hand over a job."""
        self._jobs.put(job)

    def close(self, timeout_s: float) -> None:
        """Let every thread end after its present job, and wait for them."""
        for _ in self._threads:
            self._jobs.put(None)
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _work(self, perform: Callable[[Any], Result], close: Callable[[], None], begin: Callable[[], None]) -> None:
        begin()
        while (job := self._jobs.get()) is not None:
            self.results.put((job, perform(job)))
        close()
