"""How many dead letters are open, kept up to date from what was added to their topic since the last look.

Open is what `cdc dead-letters list` shows: no redrive has left a record beside it, and the topic still holds it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from cdc.audit.dead_letters import LAST, Letter, letter_of, texts
from cdc.event import Place, Seen
from cdc.kafka.client import Waiting
from cdc.outbox.dead_letter import REDRIVEN
from cdc.pipeline.ports import Reader

RECORDS_MAX = 100_000
"""A topic with more records is not counted: reading it would take seconds from the pipeline, and the open ones 20 MB."""


class OpenLetters:
    """One pipeline's open dead letters; `connect` makes a reader, which lives for one look; `most` records are read at all."""

    def __init__(self, connect: Callable[[], Reader], topic: str, pipeline: str, most: int | None = None) -> None:
        self._connect = connect
        self._topic = topic
        self._pipeline = pipeline
        self._most = most
        self._read: dict[Place, int] = {}
        self._open: dict[str, tuple[Place, int]] = {}
        self._closed: set[str] = set()
        self._last = deque[Letter](maxlen=LAST)

    def __repr__(self) -> str:
        return f"<OpenLetters {len(self._open)} in {self._topic}>"

    def last(self) -> tuple[Letter, ...]:
        """Return the letters that were read last, newest first, and whether they are open."""
        return tuple(letter._replace(open=letter.sequence in self._open) for letter in reversed(self._last))

    def count(self, waiting: Waiting) -> int | None:
        """Return how many there are now, or None when the topic is too large; raises what reading raises."""
        subscriber = self._connect()
        try:
            bounds = subscriber.bounds([self._topic], waiting)
            if sum(end - start for start, end in bounds.values()) > (self._most or RECORDS_MAX):
                return None
            starts = {place: max(start, self._read.get(place, 0)) for place, (start, _) in bounds.items()}
            if any(starts[place] < end for place, (_, end) in bounds.items()):
                for seen in subscriber.read([self._topic], starts=starts, waiting=waiting):
                    self._take(seen)
        finally:
            subscriber.close()
        self._read = {place: max(end, self._read.get(place, 0)) for place, (_, end) in bounds.items()}
        self._open = {name: (place, offset) for name, (place, offset) in self._open.items() if offset >= bounds[place][0]}
        return len(self._open)

    def _take(self, seen: Seen) -> None:
        headers = texts(seen)
        name, place = headers.get("cdc.sequence", ""), (seen.topic, seen.partition)
        self._read[place] = seen.offset + 1
        if REDRIVEN in headers:
            # It may lie in another partition, and be read before the letter that it closes.
            if self._open.pop(name, None) is None:
                self._closed.add(name)
        elif headers.get("__connect.errors.connector.name", self._pipeline) == self._pipeline and name not in self._closed:
            self._open[name] = (place, seen.offset)
            self._last.append(letter_of(seen, headers))
