"""The marker of a replayed record, and the router of a passage that begins below what was published before; no I/O.

After a rewind the log comes again from a bookmark on. What was published before carries `rewind:GENERATION` in its marker
(`ce_replay`, or `replay` among Debezium's headers) up to the position that the pipeline had (`replay_until`), by the rule by
which it would have been skipped; what follows is live.
"""

from __future__ import annotations

from collections.abc import Callable

from cdc.avro.encoder import Encoder
from cdc.event import Record
from cdc.outbox.mapping import OutboxMapping
from cdc.outbox.router import Router
from cdc.position import Lsn, Position
from cdc.postgres.pgoutput import Begin
from cdc.postgres.transaction import Row

Encoders = Callable[[str, int | None], Encoder]


def marked(record: Record, mapping: OutboxMapping, why: str) -> Record:
    """Return the record with the marker of a replay."""
    return record._replace(headers=[*record.headers, (mapping.replay_marker, why.encode())])


class ReplayRouter(Router):
    """A router that marks the records of transactions that were published before."""

    def __init__(self, mapping: OutboxMapping, encoder: Encoders, generation: int, until: Lsn) -> None:
        super().__init__(mapping, encoder, generation)
        self._until = until
        self._why = f"rewind:{generation}"

    def route(self, row: Row) -> Record:
        """See Router."""
        return self.mark(super().route(row), row[0])

    def mark(self, record: Record, begin: Begin) -> Record:
        """Return the record of a transaction, marked if that is a replay: strictly below, as in the rule of what is skipped."""
        return marked(record, self._mapping, self._why) if begin.final_lsn < self._until else record


def router_from(mapping: OutboxMapping, encoder: Encoders, position: Position) -> Router:
    """Return the router of a passage that begins at a position."""
    if position.replay_until is None:
        return Router(mapping, encoder, position.generation)
    return ReplayRouter(mapping, encoder, position.generation, position.replay_until)
