"""The loop: rows in, records out, commit, confirm. No I/O of its own; it sees the log and Kafka through the ports.

Strategy: records of a transaction are kept back until its end, so that a row that stops the pipeline does not tear a Kafka
transaction that already holds others, and so that a small transaction never waits behind a large one. A transaction that
outgrows HELD_ROWS or HELD_BYTES first has everything before it committed, and is then produced as it is read, into a Kafka
transaction of its own that stays open until its end: memory stays bounded, and it still arrives whole or not at all.

Rules.
- A PostgreSQL transaction is never split over two Kafka transactions.
- `confirm` follows a commit that returned; a commit that raised has an unknown outcome, and the door settles it.
- A row becomes a record, or a dead letter in the same Kafka transaction, or StoppedByPolicy; never nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from cdc.errors import Fenced, InvalidEvent, Retriable, TransactionTimedOut
from cdc.event import Record, Route, name_of
from cdc.kafka.limits import fits
from cdc.outbox.router import Router
from cdc.pipeline.batch import Batch
from cdc.pipeline.parking import Policy, park
from cdc.pipeline.ports import Observer, Publisher, Source, Waiting
from cdc.position import Fingerprint, Position
from cdc.postgres.transaction import Row, TransactionEnd

HELD_ROWS = 2_000
"""Rows of one transaction that are kept back until its end."""

HELD_BYTES = 2_000_000
"""Payload bytes of one transaction that are kept back until its end; a few single records may be as large."""

IDLE_WAIT_S = 0.1
"""How long the loop sleeps in an idle log at most: the delay with which it sees a signal."""

ROUTES_KEPT_S = 60.0
"""How long a route's limits are trusted before the publisher is asked again (it has a cache of its own to refresh)."""

CLOCK_STEP_S = 60.0
"""Commit times may be ahead of our clock by so much before they are looked at: PostgreSQL's clock may be another one."""

PLAIN_HEADERS, PLAIN_BYTES = 8, 4096
"""A record with no more than our own headers, and by so much smaller than its route's limit, needs no closer look."""


class _Tally:
    """A topic's route, and what was made for it since the last report: records and payload bytes."""

    __slots__ = ("bytes", "plain_bytes", "records", "route")

    def __init__(self, route: Route, *, closely: bool) -> None:
        self.route = route
        self.plain_bytes = -1 if closely or route.timestamp_before_ms is not None else route.max_message_bytes - PLAIN_BYTES
        self.records = self.bytes = 0


class Relay:
    """One passage: from a proved position until something fails or the process is to stop."""

    def __init__(  # noqa: PLR0913 - the ports and what one passage needs, by keyword
        self,
        *,
        source: Source,
        publisher: Publisher,
        router: Router,
        policy: Policy,
        observer: Observer,
        position: Position,
        refused: Mapping[bytes, str] | None = None,
        waiting: Waiting,
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._source = source
        self._publisher = publisher
        self._router = router
        self._policy = policy
        self._refused = refused or {}
        self._observer = observer
        self._waiting = waiting
        self._clock = clock
        self._wall = wall
        self._batch = Batch(position, clock())
        self._held: list[Record] = []
        self._held_bytes = self._held_dead = 0
        self._whole = self._whole_dead = 0
        self._inside = self._large = False
        self._oldest_ms = 0
        self._routes: dict[str, _Tally] = {}
        self._routes_until = clock() + ROUTES_KEPT_S
        self._latest_ms = (wall() + CLOCK_STEP_S) * 1000

    def __repr__(self) -> str:
        return f"<Relay {self._batch!r} held={len(self._held)}>"

    @property
    def position(self) -> Position:
        """The position that was committed last."""
        return self._batch.position

    def proved(self, publication: Fingerprint) -> None:
        """The publication was looked at while streaming: the next positions say up to where it is proved."""
        self._batch.proved(publication)

    def step(self) -> None:
        """Take what the log has, hand it over, commit when it is time."""
        busy = self._batch.whole
        items = more = self._source.receive(0.0 if busy else IDLE_WAIT_S)
        while more and len(items) < HELD_ROWS and (left_s := self._batch.settles_in(self._clock())) > 0:
            more = self._source.receive(left_s)
            items = [*items, *more]
        self._take(items)
        # An idle advance may be pending when a large transaction begins; a commit now would tear it.
        if not self._inside and self._batch.due(self._clock(), quiet=not items or self._publisher.full, urgent=self._source.urgent):
            self._commit()

    def stop(self, timeout_s: float) -> None:
        """Leave cleanly within `timeout_s`: commit the whole transactions that were produced, or abort."""
        if self._batch.whole and not self._inside:
            self._commit()
        elif self._batch.opened_at is not None:
            self._publisher.abort(timeout_s)

    def _take(self, items: Sequence[Row | TransactionEnd]) -> None:
        """Turn rows into records, hand over those of whole transactions; the hot path, so what it needs is local."""
        routes, route_of, latest_ms = self._routes, self._router.route, self._latest_ms
        held = self._held
        hold = held.append
        held_bytes, outgrown_at = self._held_bytes, self._whole + HELD_ROWS
        for item in items:
            if isinstance(item, TransactionEnd):
                self._whole, self._whole_dead = len(held), self._held_dead
                held_bytes, outgrown_at = 0, self._whole + HELD_ROWS
                self._inside = False
                self._batch.end(item)
                continue
            try:
                record = route_of(item)
                topic, key, value, headers, timestamp_ms, partition = record
                tally = routes.get(topic) or self._open(topic)
                size = len(value) if value else 0
                if (
                    not key
                    or partition >= 0
                    or len(headers) > PLAIN_HEADERS
                    or size + len(key) > tally.plain_bytes
                    or timestamp_ms > latest_ms
                ):
                    self._heed(record)
                    fits(record, tally.route, round(self._wall() * 1000))
            except InvalidEvent as error:
                record, tally = self._invalid(item, error)
                outgrown_at = self._whole + HELD_ROWS
                size = len(record.value or b"")
            hold(record)
            tally.records += 1
            tally.bytes += size
            held_bytes += size
            if held_bytes >= HELD_BYTES or len(held) >= outgrown_at:
                self._outgrown()
                held_bytes, outgrown_at = 0, HELD_ROWS
        self._held_bytes = held_bytes
        self._produce()

    def _outgrown(self) -> None:
        """A transaction is large: commit what came before it, then produce it as it is read."""
        self._produce()
        if self._batch.whole:
            self._commit()
        self._inside = self._large = True
        self._whole, self._whole_dead = len(self._held), self._held_dead
        self._produce()

    def _invalid(self, row: Row, error: InvalidEvent) -> tuple[Record, _Tally]:
        if self._policy.may_stop and self._batch.whole:
            self._produce()
            self._commit()
        record, event_id, place, correlation_id = park(
            row,
            error,
            router=self._router,
            policy=self._policy,
            generation=self._batch.position.generation,
            route=lambda name: self._open(name).route,
            now_ms=round(self._wall() * 1000),
        )
        self._observer.dead_letter(error.reason, event_id, place, str(error), correlation_id)
        self._held_dead += 1
        return record, self._routes[record.topic]

    def _heed(self, record: Record) -> None:
        """Raise InvalidEvent for a record that the broker has refused in an earlier passage."""
        if (why := self._refused.get(name_of(record) or b"")) is not None:
            raise InvalidEvent("refused", f"topic {record.topic!r} refused the record: {why}", "see the broker's log")

    def _open(self, topic: str) -> _Tally:
        route = self._publisher.route(topic, self._waiting)
        return self._routes.setdefault(topic, _Tally(route, closely=bool(self._refused)))

    def _produce(self) -> None:
        """Hand over the records of whole transactions, and of a large one what has come of it."""
        whole, dead = self._whole, self._whole_dead
        if not whole:
            return
        held = self._held
        records = held[:whole]
        del held[:whole]
        self._held_dead -= dead
        self._whole = self._whole_dead = 0
        batch = self._batch
        if batch.opened_at is None:
            batch.open(self._clock())
            self._oldest_ms = records[0].timestamp_ms
        self._observer.pending(batch.events + batch.dead_letters + whole + len(held), self._oldest_ms)
        with self._own_clock():
            self._publisher.produce(records, self._waiting)
        batch.add(whole - dead, dead)

    def _commit(self) -> None:
        batch, position, began = self._batch, self._batch.next(), self._clock()
        with self._own_clock():
            self._publisher.commit(position, self._waiting)
        now = self._clock()
        opened_at = began if batch.opened_at is None else batch.opened_at
        self._observer.committed(position, batch.events, batch.dead_letters, now - opened_at)
        self._large = False
        if not self._held:  # what is held is counted as well, and belongs to the next Kafka transaction
            self._report(now)
        batch.committed(position, began, now)
        self._source.confirm(position.end_lsn)
        self._latest_ms = (self._wall() + CLOCK_STEP_S) * 1000

    def _report(self, now: float) -> None:
        """Tell what was published, and ask for the routes anew when they have been trusted for long enough."""
        counted = [tally for tally in self._routes.values() if tally.records]
        self._observer.published({tally.route.topic: (tally.records, tally.bytes) for tally in counted})
        for tally in counted:
            tally.records = tally.bytes = 0
        if now >= self._routes_until:
            self._routes.clear()
            self._routes_until = now + ROUTES_KEPT_S

    @contextmanager
    def _own_clock(self) -> Iterator[None]:
        """Tell a Kafka transaction that the broker has timed out from one that a newer instance has fenced.

        The broker reports both as fencing (protocol error PRODUCER_FENCED), so only our own clock can tell.
        """
        try:
            yield
        except Fenced as error:
            elapsed = self._elapsed()
            if elapsed < self._publisher.transaction_timeout_s:
                raise
            if self._large:
                raise self._timed_out(elapsed) from error
            msg = f"the broker ended a Kafka transaction that was open for {elapsed:.1f} s"
            raise Retriable(msg) from error
        if self._inside and (elapsed := self._elapsed()) >= self._publisher.transaction_timeout_s:
            raise self._timed_out(elapsed)

    def _elapsed(self) -> float:
        return 0.0 if self._batch.opened_at is None else self._clock() - self._batch.opened_at

    def _timed_out(self, elapsed: float) -> TransactionTimedOut:
        return TransactionTimedOut(self._batch.events, elapsed, self._publisher.transaction_timeout_s)
