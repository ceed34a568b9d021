"""The application object: what a user writes, made into handlers, a loop and a driver.

Strategy: declarations are checked where they are made, so that a mistake is told at import and not at the first event. `run` builds
everything anew, so one object can be run again (tests do) and holds no server's state between runs.
"""

from __future__ import annotations

import contextlib
import inspect
import queue
import random
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from cdc.avro import folder
from cdc.avro.registry import Registry
from cdc.consumer import console
from cdc.consumer.brokers import Create, Group, chosen
from cdc.consumer.desk import Desk, Janitor
from cdc.consumer.driver import Driver
from cdc.consumer.event import Event, envelope
from cdc.consumer.handler import Function, Handler, Reader
from cdc.consumer.inbox import DDL, Store
from cdc.consumer.lane import Job, Result
from cdc.consumer.loop import Limits, Loop, Rules
from cdc.consumer.names import Around, Names, business_key, choice, surrounded, too_short, validator
from cdc.consumer.names import called as as_called
from cdc.consumer.ports import Log, Observer
from cdc.consumer.resources import Resource, Thing
from cdc.consumer.retry import Retry
from cdc.consumer.shared import SharedBreaker
from cdc.consumer.shares import WEIGHTS, Shares
from cdc.consumer.steps import Inbox, Policy
from cdc.consumer.worker import Hand, Tools, Workers
from cdc.errors import CdcError, ConfigurationError
from cdc.resilience.breaker import Breaker

if TYPE_CHECKING:
    import psycopg

F = TypeVar("F", bound=Callable[..., Any])

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

CONNECT_TIMEOUT_S: Final = 5
GRACE_S: Final = 10.0

UNREACHABLE: Final = "start the broker, or correct its address; it is tried again"


@dataclass(frozen=True, slots=True)
class _Dependency:
    breaker: Callable[[], Breaker]
    errors: tuple[type[BaseException], ...]


class Consumer:
    """One consumer group: its topics, its handlers and its rules. `help(cdc.consumer)` is the manual."""

    def __init__(  # noqa: PLR0913 - what can be set, each by keyword and with a default
        self,
        name: str,
        *,
        topics: Sequence[str] | Mapping[str, str],
        kafka: Mapping[str, object] | None = None,
        redis: Mapping[str, object] | None = None,
        rabbitmq: Mapping[str, object] | None = None,
        instance: str | None = None,
        postgres: str | None = None,
        schemas: str | Path | Registry | None = None,
        inbox: str = "events",
        retention: timedelta | None = timedelta(days=30),
        replay: timedelta = timedelta(0),
        retry: Retry | None = None,
        retry_topics: bool = False,
        dead_letter_topic: str | None = None,
        unparkable: str = "stop",
        after_parked: str = "flag",
        create: Create | None = None,
        batch: int = 1,
        workers: int = 4,
        processes: int = 0,
        in_flight: int = 2_000,
        rate: float | None = None,
        shares: Mapping[str, int] | None = None,
        worker_limits: Mapping[str, int] | None = None,
        observer: Observer | None = None,
        around: Around | None = None,
        tracebacks: bool = False,
    ) -> None:
        if not NAME.fullmatch(name):
            raise ConfigurationError(f"a consumer cannot be called {name!r}", "use letters, digits, dots, hyphens and underscores")
        self.name = name
        self.names = Names(name, dead_letter_topic)
        self._topics = dict(topics) if isinstance(topics, Mapping) else dict.fromkeys(topics, "default")
        self._weights = {**WEIGHTS, **(shares or {})}
        for topic, priority in self._topics.items():
            if priority not in self._weights:
                raise ConfigurationError(f"topic {topic} has an unknown priority {priority!r}", f"use one of {', '.join(self._weights)}")
        if instance is not None and not NAME.fullmatch(instance):
            raise ConfigurationError(f"an instance of consumer {name} cannot be called {instance!r}", "use a name such as a-1")
        self._instance = instance
        tables = {"kafka": kafka, "redis": redis, "rabbitmq": rabbitmq}
        self._broker = chosen(Group(name, self.names, instance, create, in_flight), tables)
        self._lasting = rabbitmq is None  # offsets of the others outlive a connection
        self._postgres, self._schemas = postgres, schemas
        self._inbox = Inbox.OFF if postgres is None else choice(Inbox, inbox, "inbox")
        self._retention, self._replay = retention, replay
        self._retry, self._retry_topics = retry or Retry(), retry_topics
        self._unparkable = unparkable
        self._policy = choice(Policy, after_parked, "after_parked")
        if unparkable not in {"stop", "skip"}:
            raise ConfigurationError(f"unparkable cannot be {unparkable!r}", 'use "stop" or "skip"')
        if self._policy is Policy.BLOCK and (postgres is None or retry_topics):
            raise ConfigurationError('after_parked="block" needs a database and retries in place', "leave retry_topics off")
        self._limits = Limits(workers, batch, in_flight, rate)
        self._processes = processes
        self._worker_limits = dict(worker_limits or {})
        self._observer: Observer = observer or Log()
        self._around = around
        self._tracebacks = tracebacks
        self._handlers: list[Handler] = []
        self._dependencies: dict[str, _Dependency] = {}
        self._resources: list[Resource[Any]] = []
        self._driver: Driver | None = None
        self._stop = threading.Event()

    def __repr__(self) -> str:
        return f"<Consumer {self.name} handlers={len(self._handlers)} {self._driver or 'not running'}>"

    # Declarations

    def breaker(  # noqa: PLR0913 - what can be said of a breaker
        self,
        name: str,
        *,
        errors: tuple[type[BaseException], ...],
        failures: int = 5,
        open_s: float = 300.0,
        probes: int = 1,
        shared: bool = False,
    ) -> None:
        """Declare a dependency: after `failures` in a row of these errors its events wait for `open_s`, then `probes` are tried.

        Each process has its own breaker, or all of them `shared` one.
        """
        if name in self._dependencies:
            raise ConfigurationError(f"consumer {self.name} has two breakers called {name!r}", "give one of them another name")
        if shared and self._postgres is None:
            raise ConfigurationError(f"breaker {name!r} of consumer {self.name} is shared and there is no database", "set postgres")
        kind = SharedBreaker if shared else Breaker
        self._dependencies[name] = _Dependency(lambda: kind(failures, open_s, probes), errors)

    def resource(self, make: Callable[[], AbstractContextManager[Thing] | AbstractAsyncContextManager[Thing]]) -> Resource[Thing]:
        """Declare what handlers need, by what makes its context manager; it is open while the consumer runs, and calling it gives it."""
        self._resources.append(Resource(make))
        return self._resources[-1]

    def on(  # noqa: PLR0913 - what can be said of a handler
        self,
        event: str | type,
        *,
        name: str | None = None,
        version: int | None = None,
        model: Function | None = None,
        retry: Retry | None = None,
        breaker: str | None = None,
        unique: str | Callable[[Event], str] | None = None,
        unique_for: float | None = None,
        compute: Function | None = None,
        pipeline: bool = False,
        many: bool = False,
    ) -> Callable[[F], F]:
        """Declare a handler for a type of event, "*" for every type; use it as a decorator.

        `event` may be a class whose `model_validate` makes its instances (a pydantic model, named as the event's type).
        """
        kind, model = (event, model) if isinstance(event, str) else (event.__name__, model or validator(event))

        def declare(function: F) -> F:
            called = name or str(getattr(function, "__name__", ""))
            self._check(called, breaker, unique, unique_for)
            self._handlers.append(
                Handler(
                    name=called,
                    marker=f"{self.name}.{called}",
                    type=kind,
                    call=surrounded(as_called(function, called), called, self._around),
                    is_async=inspect.iscoroutinefunction(function),
                    version=version,
                    model=model,
                    retry=retry or self._retry,
                    breaker=breaker,
                    dependency_errors=self._dependencies[breaker].errors if breaker else (),
                    unique=business_key(unique) if isinstance(unique, str) else unique,
                    unique_for_s=unique_for,
                    compute=compute,
                    pipeline=pipeline,
                    many=many,
                )
            )
            return function

        return declare

    def _check(self, name: str, breaker: str | None, unique: object, unique_for: float | None) -> None:
        where = f"handler {name!r} of consumer {self.name}"
        if not NAME.fullmatch(name) or "," in name:
            raise ConfigurationError(f"{where} has no usable name", "give it one: on(.., name=..)")
        if any(handler.name == name for handler in self._handlers):
            raise ConfigurationError(f"{where} is declared twice", "its name is its place in the inbox: give one of them another name")
        if breaker is not None and breaker not in self._dependencies:
            raise ConfigurationError(f"{where} names a breaker {breaker!r} that is not declared", "call breaker(..) before")
        if unique is not None and self._postgres is None:
            raise ConfigurationError(f"{where} has a business key and the consumer no database", "set postgres")
        if unique_for is not None and unique is None:
            raise ConfigurationError(f"{where} has unique_for without unique", 'name the key, such as unique="welcome:{id}"')

    # Running

    @property
    def ddl(self) -> str:
        """The statements that make the consumer's tables, for a migration of yours; safe to run again."""
        return DDL

    def create_tables(self) -> None:
        """Make the consumer's tables where they are missing."""
        store = Store(self.name, self._connect)
        try:
            store.create_tables()
        finally:
            store.close()

    def main(self) -> None:
        """Do all that a program of this consumer does: make its tables, and run; end it with a line and an exit code for a mistake."""
        try:
            if self._postgres is not None:
                self.create_tables()
            self.run()
        except Exception as error:
            if (code := console.ended(self.name, error)) is None:
                raise
            sys.exit(code)

    def run(self, *, grace: float = GRACE_S, signals: bool = True) -> None:
        """Consume until `stop`, SIGTERM or SIGINT; jobs under way may take `grace` seconds more.

        Raises ConfigurationError or KafkaRefused for what a person has to mend. In another thread than the main one there are no
        signals.
        """
        if not self._handlers:
            raise ConfigurationError(f"consumer {self.name} has no handler", "declare one with on(..)")
        with self._signals() if signals and threading.current_thread() is threading.main_thread() else contextlib.nullcontext():
            try:
                with console.shown():
                    self._run(grace)
            finally:
                self._stop.clear()

    def stop(self) -> None:
        """Let `run` end, or not begin; may be called by any thread."""
        self._stop.set()
        driver = self._driver
        if driver is not None:
            driver.stopping = True

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        numbers = (signal.SIGTERM, signal.SIGINT)
        before = [signal.signal(number, lambda *_: self.stop()) for number in numbers]
        try:
            yield
        finally:
            for number, handler in zip(numbers, before, strict=True):
                signal.signal(number, handler)

    def _run(self, grace_s: float) -> None:
        tools = self.tools()
        self._prepare()
        results: queue.SimpleQueue[tuple[Job, Result]] = queue.SimpleQueue()
        workers, desk = Workers(results), Workers(results)
        clerk = Desk(self.name, self.names, self._store(), self._broker.mover, returning=self._instance is not None)
        janitor = Janitor(self._store(), [handler.marker for handler in self._handlers], self._retention)
        try:
            tools.open()
            desk.start(f"{self.name}-desk", clerk.perform, clerk.close, clerk.begin)
            self._driver = Driver(
                name=self.name,
                loop=self.decisions(tools.reader),
                member=self._broker.member(list(self._topics), self._own_topics()),
                workers=workers,
                desk=desk,
                observer=self._observer,
            )
            self._driver.stopping = self._stop.is_set()
            for number in range(self._limits.workers):
                hand = Hand(tools)
                workers.start(f"{self.name}-{number}", hand.perform, hand.close)
            janitor.start()
            self._driver.run(grace_s)
        finally:
            self._driver = None
            janitor.close()
            workers.close(1.0)
            desk.close(1.0)
            tools.close()

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics of its events."""
        return tuple(self._topics)

    def tools(self) -> Tools:
        """Return what workers need; for `run`, and for a bus in memory."""
        asynchronous = any(handler.is_async for handler in self._handlers)
        return Tools(
            self.name,
            Reader(self._handlers, self._registry()),
            self._retry,
            self._inbox,
            self._policy,
            None if self._postgres is None else self._connect,
            self._connect_async if self._postgres is not None and asynchronous else None,
            None if isinstance(self._schemas, Registry) else folder.refreshed,
            self._processes,
            self._resources,
            self._tracebacks,
        )

    def decisions(self, reader: Reader) -> Loop:
        """Return what decides, with nothing assigned yet."""
        rules = Rules(
            draw=random.random,
            priority=lambda topic: self._topics.get(topic, "default"),
            depends=reader.breaker if self._dependencies else lambda _: None,
            due_ms=lambda record: envelope(record).due_ms if self.names.is_own(record.topic) else 0,
            attempts=lambda record: envelope(record).attempts if self.names.is_own(record.topic) else 0,
            lasting=self._lasting,
            alone=lambda record: self.names.is_own(record.topic) or (bool(self._dependencies) and reader.alone(record)),
            later=self._retry_topics,
            skip_unparkable=self._unparkable == "skip",
        )
        breakers = {name: dependency.breaker() for name, dependency in self._dependencies.items()}
        return Loop(self._limits, rules, breakers, Shares(self._weights, self._worker_limits))

    def _registry(self) -> Registry | None:
        if self._schemas is None or isinstance(self._schemas, Registry):
            return self._schemas
        return folder.load(Path(self._schemas))

    def _own_topics(self) -> list[str]:
        """Return what is read beside the events' topics."""
        return self.names.own(self._retry if self._retry_topics else None)

    def _store(self) -> Store | None:
        return None if self._postgres is None else Store(self.name, self._connect)

    def create_topics(self) -> None:
        """Make the consumer's own topics, as `run` does; with RabbitMQ also its queues, which get what is published from then on."""
        self._broker.prepare(list(self._topics), [self.names.dead_letter, *self._own_topics()])

    def _prepare(self) -> None:
        """Make the topics that are ours, if we may, and warn of an inbox that forgets too early."""
        try:
            kept = self._broker.prepare(list(self._topics), [self.names.dead_letter, *self._own_topics()])
        except ConfigurationError:
            raise
        except CdcError as error:
            self._observer.hitch(self.name, f"topics could not be looked at: {error if error.fix else f'{error}. Fix: {UNREACHABLE}'}")
            return
        if self._inbox is Inbox.EVENTS and self._retention is not None:
            for name, kept_ms in kept.items():
                if warning := too_short(name, kept_ms, self._retention, self._replay):
                    self._observer.hitch(self.name, warning)

    def _connect(self) -> psycopg.Connection[Any]:
        import psycopg  # noqa: PLC0415 - a consumer without a database needs none

        assert self._postgres is not None, "asked for with a database only"
        return psycopg.connect(
            self._postgres, autocommit=True, connect_timeout=CONNECT_TIMEOUT_S, application_name=f"cdc-consumer-{self.name}"
        )

    async def _connect_async(self) -> psycopg.AsyncConnection[Any]:
        import psycopg  # noqa: PLC0415 - see above

        assert self._postgres is not None, "asked for with a database only"
        return await psycopg.AsyncConnection.connect(
            self._postgres, autocommit=True, connect_timeout=CONNECT_TIMEOUT_S, application_name=f"cdc-consumer-{self.name}"
        )
