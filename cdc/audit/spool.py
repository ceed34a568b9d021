"""Rows and records in a temporary file, to be read back sorted: the judge's streams for what does not fit into memory.

Strategy: SQLite with an unnamed database, which it keeps in a temporary file that has no name and ends with us; its sorter
spills to such files too. What is stored of a payload is its digest.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from cdc.audit.judge import Visible

CACHE_KB = 24_000
"""Memory that SQLite may use: for its pages, and as much again for a sort."""

BATCH = 1_000
"""Rows that one statement inserts or one fetch returns."""

DIGEST_BYTES = 16


class StoredRow(NamedTuple):
    """An outbox row as it waits to be judged; `payloads` holds digests one after the other, `early` is told by `--since`."""

    id: bytes
    key: bytes | None
    type: bytes | None
    xid: int
    payloads: bytes
    original: bytes
    topic: str
    partition: int
    time_ms: int | None
    early: bool = False


class Spool:
    """One audit's rows and records."""

    def __init__(self) -> None:
        self._db = sqlite3.connect("", isolation_level=None)
        for pragma in ("journal_mode=OFF", "synchronous=OFF", f"cache_size=-{CACHE_KB}", "temp_store=FILE"):
            self._db.execute(f"PRAGMA {pragma}")
        self._db.execute("CREATE TABLE rows (id, key, type, xid, payloads, original, topic, part, time_ms, early)")
        self._db.execute("CREATE TABLE records (id, place, key, topic, part, offset, type, payload, replay, dead)")
        self._db.execute("CREATE TABLE outcomes (xid, seen)")
        self._db.execute("BEGIN")

    def close(self) -> None:
        """Let the temporary file go."""
        self._db.close()

    def add_rows(self, rows: Iterable[StoredRow]) -> None:
        """Store rows."""
        self._db.executemany("INSERT INTO rows VALUES (?,?,?,?,?,?,?,?,?,?)", rows)

    def add_records(self, records: Iterable[Visible]) -> None:
        """Store records."""
        self._db.executemany("INSERT INTO records VALUES (?,?,?,?,?,?,?,?,?,?)", records)

    def add_outcomes(self, outcomes: Iterable[tuple[int, bool]]) -> None:
        """Store whether rows were seen, by transaction."""
        self._db.executemany("INSERT INTO outcomes VALUES (?,?)", outcomes)

    def topics(self) -> list[str]:
        """Return the topics that rows are meant for."""
        return [topic for (topic,) in self._db.execute("SELECT DISTINCT topic FROM rows WHERE topic <> ''")]

    def xid_of(self, event: bytes) -> int | None:
        """Return the transaction of a row, when it is there."""
        found = self._db.execute("SELECT xid FROM rows WHERE id = ? LIMIT 1", (event,)).fetchone()
        return None if found is None else int(found[0])

    def rows(self) -> Iterator[StoredRow]:
        """Yield rows by id; an early one only if a record of it was read."""
        self._db.execute("CREATE INDEX IF NOT EXISTS by_id ON records (id)")
        query = "SELECT * FROM rows WHERE NOT early OR id IN (SELECT id FROM records) ORDER BY id"
        return (StoredRow(*row) for row in self._fetch(query))

    def by_id(self) -> Iterator[Visible]:
        """Yield records by id."""
        for row in self._fetch("SELECT * FROM records ORDER BY id"):
            yield Visible(*row)

    def by_place(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield (place, id) of all records but replays, by place."""
        return self._fetch("SELECT place, id FROM records WHERE NOT replay AND place IS NOT NULL ORDER BY place, id")

    def by_key(self) -> Iterator[tuple[object, bytes, bytes]]:
        """Yield ((topic, partition, key), place, id) of all records but replays, each key in topic order."""
        query = "SELECT topic, part, key, place, id FROM records WHERE NOT replay AND place IS NOT NULL ORDER BY topic, part, key, offset"
        for topic, part, key, place, event in self._fetch(query):
            yield (topic, part, key), place, event

    def outcomes(self) -> Iterator[tuple[int, bool]]:
        """Yield (transaction, seen), by transaction."""
        return self._fetch("SELECT xid, seen FROM outcomes ORDER BY xid")

    def _fetch(self, query: str) -> Iterator[Any]:
        cursor = self._db.execute(query)
        cursor.arraysize = BATCH
        while rows := cursor.fetchmany():
            yield from rows


class Buffer:
    """Collects rows of one kind for `sink`, BATCH at a time."""

    def __init__(self, sink: Any) -> None:  # noqa: ANN401 - a method of Spool, whichever
        self._sink = sink
        self._held: list[Any] = []

    def __call__(self, row: object) -> None:
        """Take one."""
        self._held.append(row)
        if len(self._held) >= BATCH:
            self.flush()

    def flush(self) -> None:
        """Hand over what is held."""
        self._sink(self._held)
        self._held = []
