"""Publishes what a consumer's dead letters become, beside the records that close them: one MULTI, given up when another one came first.

Strategy: `fence` watches the stream of letters before it is read. EXEC then does nothing if the stream has changed since, so of two
redrives at once one begins anew and finds the letters of the other closed. A letter that is parked meanwhile has the same effect, and
costs another try.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis import exceptions

from cdc.errors import Retriable
from cdc.event import Record
from cdc.redis.entry import entry_of
from cdc.redis.link import Wire, fault
from cdc.resilience.call import Waiting


class RedisLetters:
    """Used by one thread; after an error `fence` begins anew."""

    def __init__(self, *, url: str, name: str, sentinel: str | None, topic: str) -> None:
        self._address = (url, name, sentinel)
        self._topic = topic
        self._wire: Wire | None = None
        self._records: list[Record] = []

    def __repr__(self) -> str:
        return f"<RedisLetters {self._topic}, {len(self._records)} records waiting>"

    def fence(self, waiting: Waiting) -> None:
        """Watch the letters."""
        waiting()
        self.close()
        self._records = []
        self._ask("WATCH", self._topic)

    def require(self, topics: Sequence[str], waiting: Waiting) -> None:
        """Do nothing: a stream comes with its first entry."""

    def produce(self, records: Sequence[Record], waiting: Waiting) -> None:
        """Keep records for the commit."""
        waiting()
        self._records += records

    def commit(self, position: None, waiting: Waiting) -> None:  # noqa: ARG002 - of a pipeline
        """Add all records at once; raises Retriable, with nothing added, when the letters have changed."""
        waiting()
        records, self._records = self._records, []
        self._ask("MULTI")
        for record in records:
            self._ask("XADD", record.topic, "*", *entry_of(record))
        if self._ask("EXEC") is None:
            msg = "the dead letters have changed while they were read"
            raise Retriable(msg)

    def close(self) -> None:
        """Hang up."""
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    def _ask(self, *words: object) -> Any:  # noqa: ANN401 - the command's own type
        if self._wire is None:
            self._wire = Wire(*self._address)
        try:
            return self._wire.ask(*words)
        except (exceptions.RedisError, OSError) as error:
            self.close()
            raise fault(error, "redriving letters") from None
