"""Rows and records in temporary files, to be read back sorted: the judge's streams for what does not fit into memory.

Strategy: an external merge sort that leaves the work of every step to C. RUN tuples at a time are sorted in memory and written
as blocks of `marshal`; runs are merged a block of each at a time: whatever is not above the lowest of the blocks' ends is
taken from all of them and sorted at once, which is a merge for Python's sort. FAN runs become one when there are so many, so
memory stays the same for any number of tuples.

The files have no name and end with us. What is stored of a payload is its digest, and of a long key too: see `short`.
"""

from __future__ import annotations

import marshal
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import chain, islice
from operator import itemgetter
from typing import IO, Any, NamedTuple, Self

from cdc.audit.judge import Order, Row, Visible, digest

RUN = 24_000
"""Tuples that one sort holds in memory: about 14 MB of rows."""

BLOCK = 256
"""Tuples that are read back at once, of each run that is merged."""

FAN = 64
"""Runs that are merged at once: a million and a half of tuples; and as many files at most for each power of FAN."""

FORMAT = 2
"""Of marshal: without references, which nothing here would use."""

SHORT = 64
"""Bytes of a key that are kept as they are."""


class Run(NamedTuple):
    """Sorted tuples in a file of their own, and the length of each block."""

    file: IO[bytes]
    blocks: list[int]


class Sorter:
    """Takes tuples in any order and gives them back sorted by their first element (or by all), as often as it is asked."""

    def __init__(self, *, by_all: bool = False) -> None:
        self._key = None if by_all else itemgetter(0)
        self._held: list[tuple[Any, ...]] = []
        self._levels: list[list[Run]] = [[]]
        self._files = ExitStack()

    def __repr__(self) -> str:
        return f"<Sorter held={len(self._held)} runs={[len(level) for level in self._levels]}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let the files go."""
        self._files.close()

    def add(self, item: tuple[Any, ...]) -> None:
        """Take one; marshal knows no named tuples."""
        self._held.append(tuple(item))
        if len(self._held) >= RUN:
            self._spill()

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """Yield all that was taken, sorted."""
        if self._held:
            self._spill()
        return self._merged([run for level in self._levels for run in level])

    def unsorted(self) -> Iterator[tuple[Any, ...]]:
        """Yield all that was taken, in any order."""
        runs = [run for level in self._levels for run in level]
        return chain(self._held, chain.from_iterable(block for run in runs for block in _blocks(run)))

    def _spill(self) -> None:
        self._held.sort(key=self._key)
        held, self._held = self._held, []
        self._push(self._written(held), 0)

    def _push(self, run: Run, level: int) -> None:
        if level == len(self._levels):
            self._levels.append([])
        self._levels[level].append(run)
        if len(self._levels[level]) == FAN:
            full, self._levels[level] = self._levels[level], []
            merged = self._written(self._merged(full))
            for each in full:
                each.file.close()
            self._push(merged, level + 1)

    def _written(self, items: Iterable[tuple[Any, ...]]) -> Run:
        run = Run(self._files.enter_context(tempfile.TemporaryFile()), [])  # noqa: SIM115 - it is one
        left = iter(items)
        while block := list(islice(left, BLOCK)):
            run.blocks.append(run.file.write(marshal.dumps(block, FORMAT)))
        run.file.flush()
        return run

    def _merged(self, runs: list[Run]) -> Iterator[tuple[Any, ...]]:
        return chain.from_iterable(self._steps([_blocks(run) for run in runs]))

    def _steps(self, runs: list[Iterator[list[tuple[Any, ...]]]]) -> Iterator[list[tuple[Any, ...]]]:
        """Yield sorted lists, each above the one before."""
        key = self._key
        heads = [(block, run) for run in runs if (block := next(run, []))]
        while heads:
            bound = min((block[-1] for block, _ in heads), key=key)
            bound = bound if key is None else key(bound)
            taken, kept = list[tuple[Any, ...]](), list[tuple[list[tuple[Any, ...]], Iterator[list[tuple[Any, ...]]]]]()
            for block, run in heads:
                end = bisect_right(block, bound, key=key)
                taken += block[:end]
                if rest := block[end:] or next(run, []):
                    kept.append((rest, run))
            taken.sort(key=key)
            yield taken
            heads = kept


def _blocks(run: Run) -> Iterator[list[tuple[Any, ...]]]:
    at = 0
    for size in run.blocks:
        run.file.seek(at)
        block: list[tuple[Any, ...]] = marshal.loads(run.file.read(size))  # noqa: S302 - nobody else can write to a file without a name
        yield block
        at += size


class Spool:
    """One audit's rows and records, and the partitions in which a key may be out of order."""

    def __init__(self) -> None:
        self._rows, self._records, self._places = Sorter(), Sorter(), Sorter(by_all=True)
        self._order = Order()
        self.add_row: Callable[[Row], None] = self._rows.add

    def close(self) -> None:
        """Let the temporary files go."""
        for each in (self._rows, self._records, self._places):
            each.close()

    def add_record(self, record: Visible) -> None:
        """Take a record, each partition's in topic order."""
        if record.key is not None and len(record.key) > SHORT:
            record = record._replace(key=short(record.key))
        self._records.add(record)
        place = record.place
        if place and not record.replay:
            self._places.add((place, record.id))
            self._order.see((record.topic, record.partition), place)

    def rows(self) -> Iterator[Row]:
        """Yield rows by id."""
        return map(partial(tuple.__new__, Row), self._rows)

    def by_id(self) -> Iterator[Visible]:
        """Yield records by id."""
        return map(partial(tuple.__new__, Visible), self._records)

    def by_place(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield (place, id) of all records but replays, by place."""
        return iter(self._places)

    def by_key(self) -> Iterator[tuple[object, bytes, bytes]]:
        """Yield ((topic, partition, key), place, id) of all records but replays that may be out of order, each key in topic order."""
        if not self._order.suspects:
            return
        with Sorter() as sorter:
            for record in self.by_id():
                if (record.topic, record.partition) in self._order.suspects and record.place and not record.replay:
                    key = (record.topic, record.partition, record.key or b"", record.key is None)
                    sorter.add(((key, record.offset), record.place, record.id))
            for (key, _), place, event in sorter:
                yield key, place, event

    def transactions_of(self, events: set[bytes]) -> dict[bytes, int]:
        """Return the transactions of the rows with these ids, as far as they are there."""
        return {row[0]: row[3] for row in self._rows.unsorted() if row[0] in events} if events else {}


def short(key: bytes | None) -> bytes | None:
    """Return a key, or what stands for a long one: two keys are the same if and only if what stands for them is."""
    return key if key is None or len(key) <= SHORT else key[:SHORT] + digest(key)
