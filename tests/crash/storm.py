"""Load with overlapping transactions, and the ledger of what was committed: the other half of every crash test.

Strategy: each writer draws what its next transaction is: short, long (others commit while it is open), given up, with
savepoints of which some are rolled back, or larger than what the relay keeps back. A row enters the ledger when COMMIT has
returned. When the server goes away instead, the writer looks for its row as soon as the server is back.
"""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import psycopg

from cdc.audit.judge import Row, Verdict, Visible, judge, limit_of
from cdc.audit.verify import visible
from cdc.kafka.subscriber import Seen
from tests.pipeline import Event, Pipeline

KEYS = 7
"""Few keys, so that most transactions share one with others that are open at the same time."""

LARGE_ROWS = 2_500
"""More than the relay keeps back (HELD_ROWS): produced while it is read."""

CANARY = "canary-93f1"
"""In every payload, and nowhere in a log."""

AWAY_S = 0.2
"""Before a writer tries again to reach a server that is away."""

INSERT = (
    "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload)"
    f" SELECT i::uuid, 'thing', %(key)s, %(type)s, jsonb_build_object('n', 1, 'text', '{CANARY}') FROM unnest(%(ids)s::text[]) i"
)


class Storm:
    """Eight writers, until the block ends."""

    def __init__(self, dsn: str, seed: int, *, writers: int = 8, pause_s: float = 0.02) -> None:
        self._dsn = dsn
        self._pause_s = pause_s
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._failure: BaseException | None = None
        self._threads = [threading.Thread(target=self._work, args=(random.Random(f"{seed}-{i}"),)) for i in range(writers)]
        self.ledger: list[Row] = []
        self.transactions = self.given_up = 0

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        """End the load; from then on the ledger is whole."""
        self._closing.set()
        for thread in self._threads:
            thread.join()
        if self._failure is not None:
            raise self._failure

    def _work(self, chance: random.Random) -> None:
        doubtful = list[Row]()
        try:
            while doubtful or not self._closing.is_set():
                try:
                    with psycopg.connect(self._dsn) as connection:
                        self._settle(connection, doubtful)
                        while not self._closing.wait(chance.expovariate(1 / self._pause_s)):
                            self._transaction(connection, chance, doubtful)
                except psycopg.OperationalError:
                    self._closing.wait(AWAY_S)
        except BaseException as error:  # noqa: BLE001 - raised when the block ends
            self._failure = error

    def _settle(self, connection: psycopg.Connection[Any], doubtful: list[Row]) -> None:
        """See whether a commit whose answer was lost has happened: nothing of the old server is at work any more."""
        if doubtful and connection.execute("SELECT 1 FROM outbox WHERE id = %s", (doubtful[0].id.decode(),)).fetchone():
            self.enter(doubtful)
        doubtful.clear()

    def enter(self, rows: list[Row]) -> None:
        """Put the rows of one committed transaction into the ledger."""
        with self._lock:
            self.transactions += 1
            self.ledger += [row._replace(transaction=self.transactions) for row in rows]

    def _transaction(self, connection: psycopg.Connection[Any], chance: random.Random, doubtful: list[Row]) -> None:
        kinds: list[Callable[..., list[Row]]] = [_short, _long, _savepoints, _large]
        [kind] = chance.choices(kinds, [70, 12, 15, 0.3])
        rows = kind(connection, chance, self._closing)
        if chance.random() < 0.1:
            connection.rollback()
            self.given_up += 1
            return
        doubtful += rows
        connection.commit()
        doubtful.clear()
        self.enter(rows)


def insert(connection: psycopg.Connection[Any], chance: random.Random, count: int = 1) -> list[Row]:
    """Insert so many rows of one key and type, and return them."""
    key, invalid = f"key-{chance.randrange(KEYS)}", chance.random() < 0.02
    kind = "Nobody" if invalid else "Thing"
    ids = [str(uuid.UUID(int=chance.getrandbits(128), version=4)) for _ in range(count)]
    connection.execute(INSERT, {"key": key, "type": kind, "ids": ids})
    return [Row(each.encode(), key.encode(), kind.encode()) for each in ids]


def _short(connection: psycopg.Connection[Any], chance: random.Random, _: threading.Event) -> list[Row]:
    return [row for _step in range(chance.randint(1, 4)) for row in insert(connection, chance)]


def _long(connection: psycopg.Connection[Any], chance: random.Random, closing: threading.Event) -> list[Row]:
    rows = []
    for _step in range(chance.randint(2, 5)):
        rows += insert(connection, chance)
        closing.wait(chance.uniform(0, 0.3))  # open for a while: that is what it is
    return rows


def _savepoints(connection: psycopg.Connection[Any], chance: random.Random, _: threading.Event) -> list[Row]:
    rows = insert(connection, chance)
    for _step in range(chance.randint(1, 4)):
        connection.execute("SAVEPOINT s")
        inner = insert(connection, chance)
        if chance.random() < 0.4:
            connection.execute("ROLLBACK TO SAVEPOINT s")
        else:
            connection.execute("RELEASE SAVEPOINT s")
            rows += inner
    return rows


def _large(connection: psycopg.Connection[Any], chance: random.Random, _: threading.Event) -> list[Row]:
    return insert(connection, chance, LARGE_ROWS)


def judged(pipeline: Pipeline, ledger: list[Row]) -> Verdict:
    """Judge the ledger against what a plain read_committed consumer finds."""
    events = pipeline.events(pipeline.topic, pipeline.dead_letter_topic)
    records = [_visible(pipeline, event) for event in events]
    return judge(ledger, [record for record in records if record is not None], limit=limit_of(0, pipeline.position()))


def _visible(pipeline: Pipeline, event: Event) -> Visible | None:
    seen = Seen(*event[:5], list(event.headers.items()), event.timestamp_ms)
    return visible(seen, pipeline.name, f"/{pipeline.name}", pipeline.dead_letter_topic)
