"""A polling relay as its users write it: SELECT .. FOR UPDATE SKIP LOCKED, publish, mark. At least once, without a schema check.

It has a table of its own with the same rows, because it needs a number to order by, a column for the mark and an index on
what is not marked. `python -m benchmarks.peers.polling DSN BROKERS TABLE PREFIX` runs it.
"""

from __future__ import annotations

import sys
import time

import psycopg
from confluent_kafka import KafkaError, Message, Producer

from benchmarks.peers.peer import Peer, Run, slot
from benchmarks.rig import Child

BATCH = 1_000
"""Rows in one transaction: more gain little, fewer cost a round trip each."""

POLL_S = 0.1
"""Between two looks at a table that had nothing new."""

AT_MOST = 300_000
"""Rows of a backlog: its rate does not change after them."""


def fill(run: Run) -> None:
    """Copy the backlog, in its order."""
    table = polled(run)
    run.rig.execute(
        f"CREATE TABLE {table} (seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, id uuid NOT NULL DEFAULT gen_random_uuid(),"
        " aggregatetype text NOT NULL, aggregateid text NOT NULL, type text NOT NULL, payload jsonb, published_at timestamptz)"
    )
    run.rig.execute(f"CREATE INDEX ON {table} (seq) WHERE published_at IS NULL")
    if run.rows:
        columns = "id, aggregatetype, aggregateid, type, payload"
        run.rig.execute(f"INSERT INTO {table} ({columns}) SELECT {columns} FROM outbox LIMIT {min(AT_MOST, run.rows)}")
        run.rig.execute(f"VACUUM ANALYZE {table}")


def polled(run: Run) -> str:
    """Return its table's name."""
    return slot(run, "polled")


def start(run: Run) -> Child:
    """Start it."""
    arguments = (run.rig.dsn, run.rig.stack.kafka.bootstrap_servers, polled(run), f"polling.{run.name}.")
    return Child([sys.executable, "-m", "benchmarks.peers.polling", *arguments], {}, run.rig.stack.postgres.folder / "polling.log")


def relay(dsn: str, bootstrap_servers: str, table: str, prefix: str) -> None:
    """Publish and mark, for ever."""
    producer = Producer({"bootstrap.servers": bootstrap_servers, "enable.idempotence": True})
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failed.append(error)

    select = (
        f"SELECT seq, id::text, aggregatetype, aggregateid, type, payload::text FROM {table}"
        f" WHERE published_at IS NULL ORDER BY seq LIMIT {BATCH} FOR UPDATE SKIP LOCKED"
    )
    mark = f"UPDATE {table} SET published_at = now() WHERE seq = ANY(%s)"
    with psycopg.connect(dsn) as connection:
        while True:
            with connection.transaction():
                rows = connection.execute(select.encode()).fetchall()
                for _, id_, kind, key, type_, payload in rows:
                    producer.produce(prefix + kind, payload, key, headers={"id": id_, "eventType": type_}, on_delivery=delivered)
                producer.flush()
                assert not failed, failed
                if rows:
                    connection.execute(mark.encode(), ([row[0] for row in rows],))
            if len(rows) < BATCH:
                time.sleep(POLL_S)


POLLING = Peer("polling", "polling relay, at least once", start, fill=fill, table=polled, at_most=AT_MOST)

if __name__ == "__main__":
    relay(*sys.argv[1:])
