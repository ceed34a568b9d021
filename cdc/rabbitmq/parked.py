"""What a stream of dead letters holds already: asked before a record is parked that may have been parked before.

A letter and the acknowledgement of its record are two steps, and a crash between them brings the record again. RabbitMQ marks what it
delivers once more, so only such a record costs a look. The stream is read once from the event's time on, and from there
to its end for each of the next ones; a letter is told by its event's id, which lasts over a new connection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cdc.event import Record, Seen
from cdc.rabbitmq.reader import RabbitReader

KEPT: Final = 100_000
"""Names that are remembered; beyond it the stream is read anew from the next event's time on."""

MARGIN_MS: Final = 60_000
"""How far PostgreSQL's clock, by which an event tells its commit, may be ahead of ours, by which a letter tells its time."""

Name = tuple[bytes | None, ...]


class Parked:
    """The letters of one stream, as far as they were read; for one thread."""

    def __init__(self, stream: str, reader: Callable[[], RabbitReader]) -> None:
        self._stream = stream
        self._new_reader = reader
        self._names: set[Name] = set()
        self._since_ms: int | None = None
        self._next = 0

    def __repr__(self) -> str:
        return f"<Parked in {self._stream}, {len(self._names)} known>"

    def has(self, letter: Record, first_ms: int) -> bool:
        """Tell whether a letter is there; it can't be older than its event, which was committed at `first_ms`. Raises CdcError."""
        name = _name(letter)
        if name is None or name in self._names:
            return name is not None
        since_ms = max(0, first_ms - MARGIN_MS)
        reader = self._new_reader()
        try:
            if self._since_ms is None or since_ms < self._since_ms or len(self._names) > KEPT:
                self._names.clear()
                self._since_ms = since_ms
                found = reader.read([self._stream], since_ms=since_ms)
            else:
                found = reader.read([self._stream], starts={(self._stream, 0): self._next})
            for seen in found:
                self._next = seen.offset + 1
                if (known := _name(seen)) is not None:
                    self._names.add(known)
        except BaseException:
            self._since_ms = None  # a part is not all
            raise
        finally:
            reader.close()
        return name in self._names


def _name(letter: Record | Seen) -> Name | None:
    """Return an event's id, its source, and what tells its later lives apart; None for an event without an id."""
    headers = dict(letter.headers)
    if not (headers.get("ce_id") or headers.get("id")):
        return None
    return headers.get("cdc.id"), headers.get("ce_source"), headers.get("ce_replay"), headers.get("cdc.redrives")
