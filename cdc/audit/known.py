"""Which events Kafka has: the ids of a pipeline's committed records, and how far back each topic can tell.

Strategy: the topics that rows may lead to are read once, after everything that was open on them has ended, and the ids go into
a temporary file of SQLite's, which has no name and ends with us; so memory does not grow with the topics.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Sequence

from cdc.audit.verify import visible
from cdc.pipeline.ports import Reader
from cdc.resilience.call import nobody_waits

CACHE_KB = 24_000
"""Memory that SQLite may use for its pages."""

BATCH = 1_000

UNKNOWN_US = -1
"""How far back a topic can tell when nothing can be said: it is compacted, or keeps nothing of what it had."""


class Known:
    """Ids that are in Kafka. `told_since_us` holds the topics that no longer keep all they had: what is newer is still there.

    That is the time of the first record still kept (in the partition that was cut latest), or UNKNOWN_US. `generation` is the
    highest that a record has.
    """

    def __init__(self) -> None:
        self.told_since_us: dict[str, int] = {}
        self.records = 0
        self.generation = 0
        self._db = sqlite3.connect("", isolation_level=None)
        for pragma in ("journal_mode=OFF", "synchronous=OFF", f"cache_size=-{CACHE_KB}"):
            self._db.execute(f"PRAGMA {pragma}")
        self._db.execute("CREATE TABLE ids (id BLOB PRIMARY KEY) WITHOUT ROWID")
        self._db.execute("BEGIN")

    def __contains__(self, event: bytes) -> bool:
        return self._db.execute("SELECT 1 FROM ids WHERE id = ?", (event,)).fetchone() is not None

    def close(self) -> None:
        """Let the temporary file go."""
        self._db.close()

    def add(self, ids: Sequence[bytes]) -> None:
        """Store ids."""
        self._db.executemany("INSERT OR IGNORE INTO ids VALUES (?)", [(event,) for event in ids])


def known(  # noqa: PLR0913 - whose records, and where
    subscriber: Reader, topics: Collection[str], *, pipeline: str, source: str, dead_letter: str, progress: Callable[[float], object]
) -> Known:
    """Read the topics of a pipeline to where they end now."""
    there = sorted(set(topics) & set(subscriber.names(nobody_waits)))
    found = Known()
    if not there:
        return found
    subscriber.settle(there, nobody_waits)
    cut = {place for place, (low, _) in subscriber.bounds(there, nobody_waits).items() if low > 0}
    found.told_since_us = dict.fromkeys({topic for topic, _ in cut}, 0)
    compacted = {topic for topic, shape in subscriber.shapes(there, nobody_waits).items() if shape.compacted}
    ids: list[bytes] = []
    for seen in subscriber.read(there):
        place = (seen.topic, seen.partition)
        if place in cut:
            cut.discard(place)
            found.told_since_us[seen.topic] = max(found.told_since_us[seen.topic], seen.timestamp_ms * 1000)
        record = visible(seen, pipeline, source, dead_letter)
        if record is not None:
            ids.append(record.id)
            if record.place:
                found.generation = max(found.generation, int(record.place[:4], 16))
        found.records += 1
        if len(ids) >= BATCH:
            found.add(ids)
            ids.clear()
        if found.records % BATCH == 0:
            progress(BATCH)
    found.add(ids)
    # Of a partition that was cut and holds nothing any more, nobody can say what it had.
    found.told_since_us |= dict.fromkeys({topic for topic, _ in cut} | compacted, UNKNOWN_US)
    return found
