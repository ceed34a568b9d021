"""What the inbox costs: events a second of a shop's handler with and without it, into one PostgreSQL: `python -m benchmarks.inbox`.

One process consumes a topic that is full already; broker, database and consumer share the machine. The handler is what a shop's
inventory does: it takes pieces of a stock, one row of a thousand, and keeps the reservation. Each mode reads the same records with a
group of its own and starts with empty tables.

The last mode is the whole way at once: an application writes rows of an outbox, the pipeline publishes them, and the consumer applies
them by its inbox in the same PostgreSQL. Its rate is from the first insert to the last effect. `--json` ends with one line.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.rig import SCHEMAS, pipeline, rig
from cdc.consumer import Consumer, Event
from cdc.consumer.lane import Handle, Handled
from cdc.consumer.ports import Log
from cdc.devstack.stack import Stack
from tests.consumers import CREATE, Line, event, line
from tests.waiting import wait_for

PARTITIONS = 4

TOPIC = "outbox.event.order"

MODES: dict[str, dict[str, Any]] = {
    "inbox, one event a transaction": {"batch": 1},
    "no inbox, one event a transaction": {"batch": 1, "inbox": "off"},
    "inbox, batches of 500": {"batch": 500},
    "no inbox, batches of 500": {"batch": 500, "inbox": "off"},
    "high water, batches of 500": {"batch": 500, "inbox": "high-water"},
    "inbox, batches of 500, pipelined": {"batch": 500, "pipeline": True},
    "no inbox, batches of 500, pipelined": {"batch": 500, "inbox": "off", "pipeline": True},
    "inbox, lists of 500": {"batch": 500, "many": True},
    "no inbox, lists of 500": {"batch": 500, "inbox": "off", "many": True},
}

ALL = "inbox, lists of 500, with the pipeline"

SLOW = 4
"""A mode without batches reads this part of the records only."""

TABLES = """
CREATE TABLE IF NOT EXISTS stock (sku int PRIMARY KEY, pieces bigint NOT NULL CHECK (pieces >= 0)) WITH (fillfactor = 50);
CREATE TABLE IF NOT EXISTS reservations (event_id text NOT NULL, sku int NOT NULL);
TRUNCATE stock, reservations, processed_events, consumer_high_water;
INSERT INTO stock SELECT sku, 1000000 FROM generate_series(0, 999) sku;
"""


TAKE_ALL = (
    "UPDATE stock SET pieces = pieces - taken FROM (SELECT sku, count(*) AS taken FROM unnest(%s::int[]) AS sku GROUP BY sku) AS wanted"
    " WHERE stock.sku = wanted.sku"
)


class Counter(Log):
    """Counts what is settled, and when the first and the last was."""

    def __init__(self) -> None:
        self.settled = 0
        self.began = self.ended = 0.0

    def handled(self, consumer: str, job: Handle, result: Handled, seconds: float) -> None:  # noqa: ARG002 - what an observer takes
        self.ended = time.perf_counter()
        self.began = self.began or self.ended - seconds
        self.settled += result.settled


def sku_of(event: Event) -> int:
    """Return what is wanted: events of one article have one key, so no two workers wait for a row."""
    number: int = event.value["n"] if event.type == "Thing" else event.value["customer"]["id"]
    return number % 1000


def reserve(event: Event, connection: psycopg.Connection[Any]) -> None:
    """Reserve for one event."""
    sku = sku_of(event)
    connection.execute("UPDATE stock SET pieces = pieces - 1 WHERE sku = %s", (sku,))
    connection.execute("INSERT INTO reservations VALUES (%s, %s)", (event.id, sku))


def reserve_all(events: list[Event], connection: psycopg.Connection[Any]) -> None:
    """Reserve for a list of events, with as many statements as for one."""
    skus = [sku_of(event) for event in events]
    connection.execute(TAKE_ALL, (skus,))
    connection.execute("INSERT INTO reservations SELECT * FROM unnest(%s::text[], %s::int[])", ([event.id for event in events], skus))


def family_cpu_s(pid: int) -> float:
    """CPU seconds of a server's processes, those that have ended included."""
    ticks, place = os.sysconf("SC_CLK_TCK"), Path("/proc")
    total = 0
    for stat in place.glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            after = stat.read_text().rpartition(")")[2].split()
            if int(stat.parent.name) == pid:
                total += sum(map(int, after[11:15]))  # its own and its dead children's
            elif int(after[1]) == pid:
                total += sum(map(int, after[11:13]))
    return total / ticks


def measure(shop: Line, server: int, number: int, records: int, mode: dict[str, Any]) -> dict[str, float]:
    """Consume so many records of each partition, and return events a second, and CPU seconds a million."""
    shop.execute(TABLES)
    counter = Counter()
    settings = {"batch": 1, "inbox": "events", **{name: value for name, value in mode.items() if name not in {"pipeline", "many"}}}
    consumer = Consumer(
        f"bench-{number}", topics=[shop.topic], kafka={"bootstrap.servers": shop.bootstrap}, postgres=shop.dsn, schemas=shop.schemas,
        workers=PARTITIONS, in_flight=10_000, create=CREATE, observer=counter, **settings,
    )  # fmt: skip

    if mode.get("many"):
        consumer.on("Thing", many=True)(reserve_all)
    else:
        consumer.on("Thing", pipeline=mode.get("pipeline", False))(reserve)
    thread = threading.Thread(target=consumer.run)
    cpu, database = time.process_time(), family_cpu_s(server)
    thread.start()
    wait_for(lambda: counter.settled >= records, 600, "all are consumed")
    cpu, database = time.process_time() - cpu, family_cpu_s(server) - database
    consumer.stop()
    thread.join()
    [(effects, taken)] = shop.execute("SELECT count(*), (SELECT sum(1000000 - pieces) FROM stock) FROM reservations")
    assert effects == taken, "the stock balances"
    million = 1e6 / counter.settled
    return {
        "events_per_s": round(effects / (counter.ended - counter.began)),
        "consumer_cpu_s_per_million": round(cpu * million, 1),
        "database_cpu_s_per_million": round(database * million, 1),
    }


def measure_all(records: int) -> dict[str, float]:
    """Write, publish and apply at the same time; events a second from the first insert to the last effect, and CPU seconds a million."""
    counter = Counter()
    with rig() as here:
        kafka = {"bootstrap.servers": here.stack.kafka.bootstrap_servers}
        consumer = Consumer(
            "bench", topics=[TOPIC], kafka=kafka, postgres=here.dsn, schemas=SCHEMAS, batch=500, in_flight=10_000, create=CREATE,
            observer=counter,
        )  # fmt: skip
        consumer.create_tables()
        here.execute(TABLES)
        here.make_topics(TOPIC, partitions=PARTITIONS)
        consumer.on("OrderPlaced", many=True)(reserve_all)
        publisher, thread = pipeline(here), threading.Thread(target=consumer.run)
        thread.start()
        here.insert(1000, 100)
        wait_for(lambda: counter.settled >= 1000, 60, "all of it runs")
        counter.settled, counter.began = 0, 0.0
        cpu, database, before = time.process_time(), family_cpu_s(here.stack.postgres.pid or 0), publisher.cpu_s()
        began = time.perf_counter()
        here.insert(records, 20)
        inserted_s = time.perf_counter() - began
        wait_for(lambda: counter.settled >= records, 600, "all are consumed")
        million = 1e6 / counter.settled
        figures = {
            "events_per_s": round(counter.settled / (counter.ended - began)),
            "consumer_cpu_s_per_million": round((time.process_time() - cpu) * million, 1),
            "database_cpu_s_per_million": round((family_cpu_s(here.stack.postgres.pid or 0) - database) * million, 1),
            "pipeline_cpu_s_per_million": round((publisher.cpu_s() - before) * million, 1),
            "inserted_per_s": round(records / inserted_s),
        }
        consumer.stop()
        thread.join()
        publisher.close()
    return figures


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure every mode."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--records", type=int, default=100_000)
    options = parser.parse_args(arguments)
    with Stack() as stack, tempfile.TemporaryDirectory() as folder:
        shop = line("bench", stack.kafka.bootstrap_servers, stack.postgres.dsn(), Path(folder))
        shop.make_topic(PARTITIONS)
        shop.consumer()
        part = max(1, options.records // 1000)
        for first in range(part):
            shop.publish(*[event(n, partition=n % PARTITIONS) for n in range(first * 1000, first * 1000 + 1000)])
        figures = {}
        for number, (name, mode) in enumerate(MODES.items()):
            wanted = part * 1000 if mode["batch"] > 1 else part * 1000 // SLOW
            figures[name] = measure(shop, stack.postgres.pid or 0, number, wanted, mode)
            rate, cpu, database = figures[name].values()
            print(f"{name:36} {rate:7,.0f} events/s, CPU s/million: {cpu:5.0f} here, {database:5.0f} PostgreSQL", file=sys.stderr)
    figures[ALL] = measure_all(options.records)
    print(f"{ALL:36} {figures[ALL]['events_per_s']:7,.0f} events/s, {figures[ALL]}", file=sys.stderr)
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", file=sys.stderr)
    if options.json:
        print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
