"""Reads everything. A new question is a new table and a new consumer's name: it reads all topics from their beginning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cdc.consumer import Consumer, Event
from cdc.devstack.demo.shop.place import ORDERS, STOCK, USERS, Place

if TYPE_CHECKING:
    import psycopg

DDL: Final = """
CREATE TABLE IF NOT EXISTS {table} (
    seen bigserial, event_id text NOT NULL, type text NOT NULL, key text NOT NULL, source text NOT NULL,
    sequence text COLLATE "C" NOT NULL, correlation_id text NOT NULL
)"""
"""`seen` tells in which order the events of a key were applied."""

NOTE: Final = """
INSERT INTO {table} (event_id, type, key, source, sequence, correlation_id)
SELECT event_id, type, key, source, sequence, correlation_id
FROM unnest(%s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[]) WITH ORDINALITY
    AS f (event_id, type, key, source, sequence, correlation_id, number)
ORDER BY number"""


def analytics(place: Place, *, name: str = "analytics", table: str = "facts") -> Consumer:
    """Make the consumer; with another name and another table it is a replay from the start, beside the one that goes on."""
    consumer = Consumer(place.prefix + name, topics=place.topics(ORDERS, STOCK, USERS), batch=200, workers=2, **place.consumer("analytics"))
    query = NOTE.format(table=table).encode()

    @consumer.on("*", many=True)
    def note(events: list[Event], connection: psycopg.Connection[Any]) -> None:
        facts = [(each.id, each.type, each.key, each.source, each.sequence, each.correlation_id) for each in events]
        connection.execute(query, [list(column) for column in zip(*facts, strict=True)])

    return consumer
