"""What the inbox costs: a shop's handlers with and without it, into one PostgreSQL; then everything at once.

One process consumes a topic that is full already; broker, database and consumer share the machine. What is measured takes pieces of one
of a thousand articles and keeps the reservation, in the shop's own tables: by handlers as one writes them first, and by the shop's
inventory itself (`cdc/devstack/demo/shop`), which also notes its decision and appends an event to its outbox. Orders of one article
have one key, so no two workers wait for a row. Each mode reads the same records with a group of its own and starts with empty tables;
its rate is from the beginning of the first transaction to the end of the last one.

The last modes are the whole way at once: rows are written into an outbox, the pipeline publishes them, and the consumer applies them by
its inbox in the same PostgreSQL. Their rate is from the first insert to the last effect, when all of it runs warm.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.drain import Figures, median
from benchmarks.rig import SCHEMAS, Rig, pipeline, rig
from cdc.consumer import Consumer, Create, Event
from cdc.consumer.lane import Handle, Handled
from cdc.consumer.ports import Log
from cdc.devstack.demo.shop.inventory import DDL, inventory
from cdc.devstack.demo.shop.place import DATABASES, ORDERS, Place
from tests.waiting import wait_for

PARTITIONS, ARTICLES, RECORDS = 4, 1_000, 50_000

TOPIC = f"outbox.event.{ORDERS}"

CREATE = Create(partitions=1, replication_factor=1, min_insync_replicas=1)

SLOW = 4
"""A mode without batches reads this part of the records only."""

PER_TRANSACTION = 20
"""Orders in a transaction of who writes while everything runs."""

WARM = 1_000

PAYLOAD = (
    """'{"orderId":"o-' || i || '","customer":{"id":' || i || ',"name":"Ada Lovelace","email":"ada@example.org"},"currency":"EUR","""
    f'"lines":[{{"sku":"sku-\' || i % {ARTICLES} || \'","quantity":1,"unitCents":1299}}],"totalCents":1299}}\''
)

EMPTY = f"""
TRUNCATE stock, reservations, decisions, processed_events, consumer_high_water, outbox;
INSERT INTO stock SELECT 'sku-' || sku, 1000000, 1000000 FROM generate_series(0, {ARTICLES - 1}) sku;
"""

TAKEN = "SELECT (SELECT sum(received - available) FROM stock)::text || ' ' || (SELECT sum(quantity) FROM reservations)"

TAKE = "UPDATE stock SET available = available - %s WHERE sku = %s"

TAKE_ALL = (
    "UPDATE stock SET available = available - taken FROM (SELECT sku, sum(pieces) AS taken FROM unnest(%s::text[], %s::int[]) AS each"
    " (sku, pieces) GROUP BY sku) AS wanted WHERE stock.sku = wanted.sku"
)

Tell = Callable[[str], None]


class Counter(Log):
    """Counts what is settled, and when the first began and the last ended."""

    def __init__(self) -> None:
        self.settled = 0
        self.began = self.ended = 0.0

    def handled(self, consumer: str, job: Handle, result: Handled, seconds: float) -> None:  # noqa: ARG002 - what an observer takes
        self.ended = time.perf_counter()
        self.began = self.began or self.ended - seconds
        self.settled += result.settled


@dataclass(frozen=True, slots=True)
class Watched(Place):
    """A place whose consumers are told `more`."""

    more: dict[str, Any] = field(default_factory=dict)

    def consumer(self, database: str | None) -> dict[str, Any]:
        return {**Place.consumer(self, database), **self.more}


def reserve(event: Event, connection: psycopg.Connection[Any]) -> None:
    """Reserve for one event."""
    for line in event.value["lines"]:
        connection.execute(TAKE, (line["quantity"], line["sku"]))
        connection.execute("INSERT INTO reservations VALUES (%s, %s, %s)", (event.value["orderId"], line["sku"], line["quantity"]))


def reserve_all(events: list[Event], connection: psycopg.Connection[Any]) -> None:
    """Reserve for a list of events, with as many statements as for one."""
    lines = [(event.value["orderId"], line["sku"], line["quantity"]) for event in events for line in event.value["lines"]]
    orders, articles, pieces = ([line[column] for line in lines] for column in range(3))
    connection.execute(TAKE_ALL, (articles, pieces))
    connection.execute("INSERT INTO reservations SELECT * FROM unnest(%s::text[], %s::text[], %s::int[])", (orders, articles, pieces))


Make = Callable[[Watched], Consumer]


def own(batch: int, *, many: bool = False, pipelined: bool = False) -> Make:
    """Return what makes a consumer with a handler as one writes it first."""

    def make(place: Watched) -> Consumer:
        consumer = Consumer(place.prefix + "own", topics=[TOPIC], batch=batch, workers=PARTITIONS, **place.consumer("inventory"))
        consumer.on("OrderPlaced", name="reserve", many=many, pipeline=pipelined)(reserve_all if many else reserve)
        return consumer

    return make


def shops(batch: int) -> Make:
    """Return what makes the shop's inventory."""
    return lambda place: inventory(place, batch=batch, workers=PARTITIONS)


LISTS, INVENTORY = "`batch=500`, `many=True`", "the shop's inventory, `batch=500`"

MODES: Mapping[str, tuple[Make, Sequence[str]]] = {
    "one event a transaction": (own(1), ("events", "off")),
    "`batch=500`": (own(500), ("events", "off", "high-water")),
    "`batch=500`, `pipeline=True`": (own(500, pipelined=True), ("events", "off")),
    LISTS: (own(500, many=True), ("events", "off")),
    "the shop's inventory, one event a transaction": (shops(1), ("events", "off")),
    INVENTORY: (shops(500), ("events", "off")),
}
"""What is measured, and with which inboxes."""

ALL = (LISTS, INVENTORY)
"""Of these, with everything else."""


def measured(records: int, rounds: int, tell: Tell) -> dict[str, Any]:
    """Return the figures of every mode, as medians over rounds; the modes take turns in each round."""
    found: dict[str, dict[str, list[Figures]]] = {name: {inbox: [] for inbox in inboxes} for name, (_, inboxes) in MODES.items()}
    with shop() as here:
        publisher = pipeline(here)
        here.insert(records, 100, f"'{ORDERS}'", payload=PAYLOAD)
        published = here.ask("SELECT pg_current_wal_lsn()::text")
        confirmed = f"SELECT (confirmed_flush_lsn >= '{published}')::text FROM pg_replication_slots"
        wait_for(lambda: here.ask(confirmed) == "true", 600, "all is published")
        publisher.close()
        for number in range(rounds):
            for place, (name, (make, inboxes)) in enumerate(MODES.items()):
                wanted = records // SLOW if "one event" in name else records
                for inbox in inboxes:
                    turn = consumed(here, make, inbox, wanted, f"bench-{number}-{place}-{inbox}-")
                    found[name][inbox].append(turn)
                    tell(f"    {name}, inbox {inbox}: {turn}")
    everything: dict[str, list[Figures]] = {name: [] for name in ALL}
    for _ in range(rounds):
        for name, turns in everything.items():
            turns.append(all_at_once(MODES[name][0], records))
            tell(f"    {name}, with everything else: {turns[-1]}")
    return {
        "records": records,
        "rounds": rounds,
        "modes": {name: {inbox: median(turns) for inbox, turns in kinds.items()} for name, kinds in found.items()},
        "all": {name: {**median(turns), "rates": [turn["events_per_s"] for turn in turns]} for name, turns in everything.items()},
    }


@contextlib.contextmanager
def shop() -> Iterator[Rig]:
    """Start the servers, with the tables of the shop and of its consumers."""
    with rig() as here:
        here.make_topics(TOPIC, partitions=PARTITIONS)
        here.execute(DDL)
        inventory(place_of(here, "", {})).create_tables()
        here.execute(EMPTY)
        yield here


def place_of(here: Rig, prefix: str, more: dict[str, Any]) -> Watched:
    """Return where the consumers of a mode are."""
    sink: dict[str, dict[str, Any]] = {"kafka": {"bootstrap.servers": here.stack.kafka.bootstrap_servers}}
    return Watched(sink, str(SCHEMAS), dict.fromkeys(DATABASES, here.dsn), prefix=prefix, more={"create": CREATE, **more})


@contextlib.contextmanager
def working(consumer: Consumer) -> Iterator[None]:
    """Run a consumer in a thread."""
    thread = threading.Thread(target=consumer.run)
    thread.start()
    try:
        yield
    finally:
        consumer.stop()
        thread.join()


def consumed(here: Rig, make: Make, inbox: str, wanted: int, prefix: str) -> Figures:
    """Consume so many records, and return events a second, and CPU seconds a million."""
    here.execute(EMPTY)
    counter, server = Counter(), here.stack.postgres.pid or 0
    consumer = make(place_of(here, prefix, {"inbox": inbox, "observer": counter, "in_flight": 10_000}))
    cpu, database = time.process_time(), family_cpu_s(server)
    with working(consumer):
        wait_for(lambda: counter.settled >= wanted, 600, "all are consumed")
        cpu, database = time.process_time() - cpu, family_cpu_s(server) - database
        settled, ended = counter.settled, counter.ended
    balance(here, counter)
    return {
        "events_per_s": round(settled / (ended - counter.began)),
        "consumer_cpu_s_per_million": round(cpu * 1e6 / settled, 1),
        "postgres_cpu_s_per_million": round(database * 1e6 / settled, 1),
    }


def balance(here: Rig, counter: Counter) -> None:
    """See that every event had its effect once."""
    taken, reserved = map(int, here.ask(TAKEN).split())
    assert taken == reserved == counter.settled, (taken, reserved, counter.settled)


def all_at_once(make: Make, records: int) -> Figures:
    """Write, publish and apply at the same time; events a second from the first insert to the last effect, and CPU seconds a million."""
    counter = Counter()
    with shop() as here:
        server, publisher = here.stack.postgres.pid or 0, pipeline(here)
        with working(make(place_of(here, "all-", {"observer": counter, "in_flight": 10_000}))):
            here.insert(WARM, 100, f"'{ORDERS}'", payload=PAYLOAD)
            wait_for(lambda: counter.settled >= WARM, 60, "all of it runs")
            cpu, database, before = time.process_time(), family_cpu_s(server), publisher.cpu_s()
            began = time.perf_counter()
            here.insert(records, PER_TRANSACTION, f"'{ORDERS}'", payload=PAYLOAD)
            inserted_s = time.perf_counter() - began
            wait_for(lambda: counter.settled >= WARM + records, 600, "all are consumed")
            million = 1e6 / records
            figures: Figures = {
                "events_per_s": round(records / (counter.ended - began)),
                "consumer_cpu_s_per_million": round((time.process_time() - cpu) * million, 1),
                "postgres_cpu_s_per_million": round((family_cpu_s(server) - database) * million, 1),
                "pipeline_cpu_s_per_million": round((publisher.cpu_s() - before) * million, 1),
                "inserted_per_s": round(records / inserted_s),
            }
        publisher.close()
        balance(here, counter)
    return figures


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


def table(document: Mapping[str, Any]) -> str:
    """Return the figures as Markdown."""
    columns = ("events_per_s", "consumer_cpu_s_per_million", "postgres_cpu_s_per_million")
    labels = {"events": "inbox", "off": "no inbox", "high-water": "high water"}
    lines = [
        f"{document['records']:,} orders, a quarter of them where each is a transaction; rounds: {document['rounds']}, medians.",
        "",
        "| | | events/s | CPU s per million: consumer | PostgreSQL |",
        "|---|---|---:|---:|---:|",
    ]
    for name, kinds in document["modes"].items():
        for inbox, figures in kinds.items():
            lines.append(f"| {name} | {labels[inbox]} | " + " | ".join(f"{figures[column]:,.0f}" for column in columns) + " |")
    lines += [
        "",
        "Writers, pipeline, broker and consumer at once, with the inbox, all rows in one PostgreSQL:",
        "",
        "| | events/s | (rounds) | inserted/s | CPU s per million: consumer | PostgreSQL | pipeline |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, figures in document["all"].items():
        cells = [figures[column] for column in ("inserted_per_s", *columns[1:], "pipeline_cpu_s_per_million")]
        rates = f"{min(figures['rates']):,} to {max(figures['rates']):,}"
        lines.append(f"| {name} | {figures['events_per_s']:,.0f} | {rates} | " + " | ".join(f"{cell:,.0f}" for cell in cells) + " |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure by itself, without keeping anything; `make bench ARGS="--only inbox --store"` keeps it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--repeat", type=int, default=1)
    options = parser.parse_args(arguments)
    figures = measured(options.records, options.repeat, lambda line: print(line, file=sys.stderr))
    print(table(figures))
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", file=sys.stderr)
    if options.json:
        print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
