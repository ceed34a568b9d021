"""What a stream of dead letters holds already: asked before a record is parked, so that one is parked once.

A letter and the acknowledgement of its record are two steps, and what comes in between (a crash, a connection that is lost) brings the
record again; a pipeline may publish an event twice as well. What we have parked ourselves is remembered. What others may have
parked RabbitMQ marks as delivered before, and only for such a record the stream is read: from the event's time on, and from there to its
end for each of the next ones. A letter is told by its event's id, which lasts over a new connection.
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
        self._since_ms = self._next = 0

    def __repr__(self) -> str:
        return f"<Parked in {self._stream}, {len(self._names)} known>"

    def add(self, letter: Record) -> None:
        """Remember one that is there now."""
        if (name := _name(letter)) is not None:
            self._names.add(name)
        if len(self._names) > KEPT:
            self._forget()

    def has(self, letter: Record, first_ms: int, *, again: bool) -> bool:
        """Tell whether a letter is there; `again` when somebody else may have written it. Raises CdcError.

        It can't be older than its event, which was committed at `first_ms`.
        """
        name = _name(letter)
        if name is None or name in self._names or not again:
            return name in self._names
        since_ms = max(0, first_ms - MARGIN_MS)
        reader = self._new_reader()
        try:
            if not self._next or since_ms < self._since_ms or len(self._names) > KEPT:
                self._forget()
                self._since_ms = since_ms
                found = reader.read([self._stream], since_ms=since_ms)
            else:
                found = reader.read([self._stream], starts={(self._stream, 0): self._next})
            for seen in found:
                self._next = seen.offset + 1
                if (known := _name(seen)) is not None:
                    self._names.add(known)
        except BaseException:
            self._next = 0  # a part is not all
            raise
        finally:
            reader.close()
        return name in self._names

    def _forget(self) -> None:
        self._names.clear()
        self._next = 0


def _name(letter: Record | Seen) -> Name | None:
    """Return an event's id, its source, and what tells its later lives apart; None for an event without an id."""
    headers = dict(letter.headers)
    if not (headers.get("ce_id") or headers.get("id")):
        return None
    return headers.get("cdc.id"), headers.get("ce_source"), headers.get("ce_replay"), headers.get("cdc.redrives")
