"""Publishes what dead letters become, beside the records that close them: one MULTI, given up when another one came first.

Strategy: `fence` watches the streams of letters before they are read. EXEC then does nothing if one has changed since, so of two
redrives at once one begins anew and finds the letters of the other closed. A letter that is parked meanwhile has the same effect, and
costs another try. What a Redis loses of its tail it loses whole: the letters are open again.

A command that fails inside of a MULTI leaves those beside it, so what could fail is looked at when a route is opened.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from redis import exceptions

from cdc.errors import Retriable, SinkRefused
from cdc.event import Record, Route, record_size
from cdc.redis.entry import entry_of, number_of, stream_of
from cdc.redis.link import Wire, fault
from cdc.redis.publisher import RedisPublisher
from cdc.resilience.call import Waiting


class RedisLetters:
    """Used by one thread; after an error `fence` begins anew. `publisher` is the pipeline's, and opens routes; it never fences.

    `streams` is the number of streams of each topic: the pipeline's own, or 1 for the topics of a consumer.
    """

    transaction_timeout_s = math.inf
    """Nothing is open in Redis before EXEC."""

    opened_at = None

    def __init__(self, publisher: RedisPublisher, *, name: str, topic: str, streams: int) -> None:
        self._publisher = publisher
        self._name = name
        self._topic = topic
        self._streams = streams
        self._wire: Wire | None = None
        self._records: list[Record] = []
        self._bytes = 0

    def __repr__(self) -> str:
        return f"<RedisLetters {self._topic}, {len(self._records)} records waiting>"

    def fence(self, waiting: Waiting) -> None:
        """Watch the letters."""
        waiting()
        self.close()
        self._records, self._bytes = [], 0
        self._ask("WATCH", *(stream_of(self._topic, number, self._streams) for number in range(self._streams)))

    def require(self, topics: Sequence[str], waiting: Waiting) -> None:
        """Do nothing: a stream comes with its first entry."""

    def route(self, topic: str, waiting: Waiting) -> Route:
        """See Publisher."""
        return self._publisher.route(topic, waiting)

    def produce(self, records: Sequence[Record], waiting: Waiting) -> None:
        """Keep records for the commit; raises SinkRefused when they are more than a commit takes."""
        waiting()
        self._records += records
        self._bytes += sum(map(record_size, records))
        if self._bytes > (most := self._publisher.options.transaction_max_bytes):
            msg = f"these dead letters are more than {most:,} bytes, and a commit takes no more; nothing was published"
            raise SinkRefused(msg, "redrive in parts (--since, --until), or raise redis.transaction_max_bytes")

    def commit(self, position: None, waiting: Waiting) -> None:  # noqa: ARG002 - of a pipeline
        """Add all records at once; raises Retriable, with nothing added, when the letters have changed."""
        waiting()
        records, self._records, self._bytes = self._records, [], 0
        self._ask("MULTI")
        for record in records:
            number = record.partition if record.partition >= 0 else number_of(record.key, self._streams)
            self._ask("XADD", stream_of(record.topic, number, self._streams), "*", *entry_of(record))
        answers = self._ask("EXEC")
        if answers is None:
            msg = "the dead letters have changed while they were read"
            raise Retriable(msg)
        for answer in answers:
            if isinstance(answer, exceptions.RedisError):
                raise fault(answer, "redriving letters: some were published, see the streams")

    def abort(self, timeout_s: float) -> None:  # noqa: ARG002 - nothing is open in Redis
        """Forget what was produced."""
        self._records, self._bytes = [], 0

    def close(self) -> None:
        """Hang up."""
        self._publisher.close()
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    def _ask(self, *words: object) -> Any:  # noqa: ANN401 - the command's own type
        if self._wire is None:
            options = self._publisher.options
            self._wire = Wire(options.url, self._name, options.sentinel)
        try:
            return self._wire.ask(*words)
        except (exceptions.RedisError, OSError) as error:
            self.close()
            raise fault(error, "redriving letters") from None
