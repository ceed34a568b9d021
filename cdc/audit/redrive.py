"""`cdc dead-letters redrive`: parked rows are encoded again with today's schemas and published to where they were meant to go.

Strategy: fence, then read, then publish all events and, for each, the record that closes its dead letter, in one Kafka
transaction of an identity of its own (`cdc-<name>-redrive`), which never fences the pipeline. What was redriven is in the
topic, so an attempt whose outcome is unknown is made again from the start: it finds what it had published closed.

Rules.
- Fence before you read. The other way round: A and B see the same letter open, A commits, B fences A and publishes it again.
- The topic is read to where it ended after the fence, open Kafka transactions waited for: behind one of the pipeline's the
  record that closes a letter cannot be seen yet.
- Everything that was chosen fits, or nothing is published. To know that, all is encoded before anything is produced, and thrown
  away: what is kept of a letter is its place and its words, not its payload.
- Letters of one key lie in one partition, in the order of the log, and are published in that order.
- An event keeps its id, key, `ce_time` and `ce_sequence`, and says `ce_replay: redrive:ID`. The record's own timestamp is
  now: retention would delete one that is as old as the row.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from psycopg import sql

from cdc.audit.dead_letters import STEP, Choice, DeadLetters, Letter, Progress
from cdc.audit.table_rows import looking, table_rows
from cdc.avro.encoder import Encoder
from cdc.errors import AuditFailed, Fenced, InvalidEvent, KafkaRefused
from cdc.event import Record, Route
from cdc.kafka.limits import fits
from cdc.kafka.subscriber import Seen
from cdc.outbox.dead_letter import REDRIVEN, original, transaction
from cdc.outbox.mapping import REPLAY_MARKERS, OutboxMapping
from cdc.outbox.replay import marked
from cdc.outbox.router import Router
from cdc.position import Lsn
from cdc.postgres.catalog import LiveCatalog
from cdc.postgres.slot import Table
from cdc.postgres.transaction import Row
from cdc.resilience.call import Waiting, nobody_waits

HANDED_OVER = 500
"""Records that are handed over at once."""

SHOWN = 5
"""Refusals that are told one by one."""

ABORT_S = 5.0
"""How long leaving may take, so that readers of the events' topics need not wait for the Kafka transaction's timeout."""

Key = tuple[str, bytes | None]
"""A topic and a record's key."""

RowOf = Callable[[Letter, Seen], Row]
"""Gives the row of a letter where it is not what the letter kept; raises InvalidEvent."""


class RedrivePublisher(Protocol):
    """Publishes records at once and once: who fences later makes the commit of who fenced before fail.

    RabbitMQ can do neither at once: events come first there, and who is killed in between publishes them again.
    """

    def fence(self, waiting: Waiting) -> None: ...  # noqa: D102 - see above
    def require(self, topics: Sequence[str], waiting: Waiting) -> None: ...  # noqa: D102 - see Publisher
    def route(self, topic: str, waiting: Waiting) -> Route: ...  # noqa: D102 - see Publisher
    def produce(self, records: Sequence[Record], waiting: Waiting) -> None: ...  # noqa: D102 - see Publisher
    def commit(self, position: None, waiting: Waiting) -> None: ...  # noqa: D102 - see Publisher
    def abort(self, timeout_s: float) -> None: ...  # noqa: D102 - see Publisher
    def close(self) -> None: ...  # noqa: D102 - see Publisher
    @property
    def opened_at(self) -> float | None: ...  # noqa: D102 - see Publisher
    @property
    def transaction_timeout_s(self) -> float: ...  # noqa: D102 - see Publisher


class Redriven(NamedTuple):
    """A letter that was published, where to, and whether newer events of its key had passed before."""

    letter: Letter
    topic: str
    late: bool


class Newest(NamedTuple):
    """The last event of a key: its place, or where the headers have none, its commit time."""

    place: str
    time_ms: int

    def passed(self, letter: Letter) -> bool:
        """Whether it is newer than a letter."""
        return self.place > letter.sequence or self.time_ms > letter.timestamp_ms


@dataclass(slots=True)
class Redrive:
    """One redrive; `run` may be called again after a Retriable error. `encoder` is the registry's.

    `readable`: whether events can be read, and so whether newer ones have passed a letter.
    """

    letters: DeadLetters
    publisher: RedrivePublisher
    mapping: OutboxMapping
    encoder: Callable[[str, int | None], Encoder]
    choice: Choice
    progress: Progress
    row_of: RowOf | None = None
    readable: bool = True
    _tried: dict[str, Redriven] = field(default_factory=dict)
    _routers: dict[int, Router] = field(default_factory=dict)

    def run(self) -> list[Redriven]:
        """Publish what is chosen and open; raises AuditFailed, with nothing published, for what still does not fit."""
        self.publisher.fence(nobody_waits)
        self.letters.subscriber.settle([self.letters.topic], nobody_waits)
        chosen, done = self._chosen()
        newest = self._newest(chosen, self._keys(chosen))
        return [*done, *self._published(chosen, newest)]

    def _chosen(self) -> tuple[list[Letter], list[Redriven]]:
        """Return the open letters, and those that an attempt of ours has published already."""
        found = self.letters.letters(self.choice, self.progress)
        named = {name for letter in found for name in (letter.id, letter.sequence)}
        if missing := sorted(self.choice.names - named):
            raise AuditFailed(f"there is no dead letter {', '.join(missing[:SHOWN])}", "see `cdc dead-letters list --all`")
        closed = [letter for letter in found if not letter.open and letter.sequence not in self._tried]
        if self.choice.names and closed:
            msg = f"redriven before: {', '.join(letter.id or letter.sequence for letter in closed[:SHOWN])}; nothing was published"
            raise AuditFailed(msg, "to publish an event once more use `cdc replay`")
        done = [self._tried[letter.sequence] for letter in found if not letter.open and letter.sequence in self._tried]
        return [letter for letter in found if letter.open], done

    def _keys(self, chosen: Sequence[Letter]) -> set[Key]:
        """See that everything fits, and return the keys of the events by topic."""
        keys, refused = set[Key](), list[str]()
        for letter, seen in self.letters.whole(chosen):
            try:
                event, _ = self._encoded(letter, seen)
                keys.add((event.topic, event.key))
            except InvalidEvent as error:
                refused.append(f"{letter.id or letter.sequence} ({error.reason}): {error.what}")
            self.progress(1)
        if refused:
            more = f"; and {len(refused) - SHOWN} more" if len(refused) > SHOWN else ""
            msg = f"{len(refused)} of {len(chosen)} still cannot become an event, nothing was published: {'; '.join(refused[:SHOWN])}{more}"
            raise AuditFailed(msg, "mend the schema folder, the settings or the topic; rows mended in the table: --from-table")
        return keys

    def _encoded(self, letter: Letter, seen: Seen) -> tuple[Record, Record]:
        """Return the event of a letter and the record that closes it; raises InvalidEvent."""
        row = original(self.mapping, dict(seen.headers), seen.key, seen.value) if self.row_of is None else self.row_of(letter, seen)
        record = self._router(int(letter.sequence[:4], 16)).route(row)
        # A row that its topic refused may have been meant for a wrong one; all others were meant for the topic they name.
        topic = letter.topic if letter.topic and letter.reason != "route" else record.topic
        event = marked(record._replace(topic=topic, timestamp_ms=0), self.mapping, f"redrive:{letter.id}")
        fits(event, self.publisher.route(topic, nobody_waits), time.time_ns() // 1_000_000)
        headers: list[tuple[str, bytes | None]] = [
            (REDRIVEN, topic.encode()),
            ("cdc.id", letter.id.encode()),
            ("cdc.sequence", letter.sequence.encode()),
        ]
        return event, Record(self.letters.topic, seen.key, None, headers, 0)

    def _router(self, generation: int) -> Router:
        if generation not in self._routers:
            self._routers[generation] = Router(self.mapping, self.encoder, generation)
        return self._routers[generation]

    def _newest(self, chosen: Sequence[Letter], keys: set[Key]) -> dict[Key, Newest]:
        """Return the last place of each key that was published since the first of these rows; replays are older news."""
        newest = dict.fromkeys(keys, Newest("", 0))
        if not newest or not self.readable:
            return newest
        since_ms = min(letter.timestamp_ms for letter in chosen)
        topics = sorted({topic for topic, _ in newest})
        for done, seen in enumerate(self.letters.subscriber.read(topics, since_ms=since_ms), 1):
            key = (seen.topic, seen.key)
            if key in newest:
                headers, (place, time_ms) = dict(seen.headers), newest[key]
                if not headers.keys() & REPLAY_MARKERS.values():
                    own = headers.get("ce_sequence")
                    newest[key] = (
                        Newest(place, max(time_ms, seen.timestamp_ms)) if own is None else Newest(max(place, own.decode()), time_ms)
                    )
            if done % STEP == 0:
                self.progress(STEP)
        return newest

    def _published(self, chosen: Sequence[Letter], newest: dict[Key, Newest]) -> list[Redriven]:
        """Encode everything once more, which costs less than to keep it, and publish it."""
        outcome, held = list[Redriven](), list[Record]()
        if not chosen:
            return outcome
        self.publisher.require([self.letters.topic], nobody_waits)
        try:
            for letter, seen in self.letters.whole(chosen):
                event, closing = self._encoded(letter, seen)
                late = event.key is not None and newest[event.topic, event.key].passed(letter)
                outcome.append(Redriven(letter, event.topic, late))
                held += (event, closing)
                if len(held) >= HANDED_OVER:
                    self.publisher.produce(held, nobody_waits)
                    held = []
            if len(outcome) < len(chosen):
                msg = (
                    f"{len(chosen) - len(outcome)} of {len(chosen)} were deleted from {self.letters.topic} meanwhile; nothing was published"
                )
                raise AuditFailed(msg, "try again: what is left will be taken")
            self._tried |= {each.letter.sequence: each for each in outcome}
            self.publisher.produce(held, nobody_waits)
            self.publisher.commit(None, nobody_waits)
        except InvalidEvent as error:
            self.publisher.abort(ABORT_S)
            raise AuditFailed(f"{error.what}; nothing was published", error.fix) from error
        except Fenced as error:
            if self._open_s() < self.publisher.transaction_timeout_s:
                raise
            msg = f"{len(chosen)} dead letters took longer than transaction.timeout.ms; nothing was published"
            raise KafkaRefused(msg, 'redrive in parts (--since, --until), or raise kafka."transaction.timeout.ms"') from error
        except BaseException:
            self.publisher.abort(ABORT_S)
            raise
        return outcome

    def _open_s(self) -> float:
        """How long the Kafka transaction has been open: the broker reports its own timeout as fencing."""
        return 0.0 if self.publisher.opened_at is None else time.monotonic() - self.publisher.opened_at


@contextmanager
def from_table(dsn: str, application_name: str, table: Table, mapping: OutboxMapping) -> Iterator[RowOf]:
    """Give rows as the table has them now, in one snapshot, at the place that their dead letters name."""
    catalog = LiveCatalog(dsn, application_name)
    try:
        rows = table_rows(catalog, table, mapping)
    finally:
        catalog.close()
    with looking(dsn, application_name) as view:

        def row_of(letter: Letter, seen: Seen) -> Row:
            where = sql.SQL("{}::text = {}").format(rows.column("id"), sql.Literal(letter.id))
            found = [each.row for each in rows.read(view, Lsn(0), where)]
            if len(found) != 1:
                raise InvalidEvent("mapping", f"the table has {len(found) or 'no'} row{'s' if len(found) > 1 else ''} with this id")
            _, relation, _, values = found[0]
            begin, ordinal = transaction(dict(seen.headers))
            return begin, relation, ordinal, values

        yield row_of
