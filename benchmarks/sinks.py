"""The same backlog into each sink, beside a bare loop of that sink's client in the same run; then a trickle, for latency.

Kafka's bare loops are in the selection `backlog`; here it is what the others are compared with.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pika
import psycopg
import redis
from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient

from benchmarks.bare import TARGET
from benchmarks.drain import median
from benchmarks.rig import LATEST, NAME, PARTITIONS, PAYLOAD, SCHEMAS, Rig, cpu_s, pipeline, set_up
from cdc import app
from cdc.cli.demo_sink import SinkName, broker
from cdc.devstack.rabbitmq import RabbitBroker
from cdc.devstack.redis import RedisServer
from cdc.devstack.stack import Stack
from tests.waiting import wait_for

ROWS, PER_TRANSACTION = 100_000, 100

TOPIC = "outbox.event.order"

QUEUE = "bench.all"

SAMPLED_EVERY_S = 0.05

WITHIN_S = 300.0

TRICKLE_PER_S = 100
"""Single-row transactions a second, for latency."""

Figures = dict[str, Any]
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Sample:
    """What is seen at one moment."""

    at: float
    events: int
    ours_s: float
    broker_s: float


def measured(rows: int, rounds: int, seconds: float, tell: Tell) -> dict[str, Any]:
    """Return each sink's figures, as medians over rounds; the ratio to the bare loop is taken within each round."""
    found: dict[str, Figures] = {}
    for sink in SinkName:
        tell(f"{sink.label}: a backlog of {rows:,} rows in transactions of {PER_TRANSACTION}")
        with served(sink) as rig:
            turns = [_turn(rig, sink, rows) for _ in range(rounds)]
            found[sink.value] = {**median(turns), "ratios": [turn.get("ratio") for turn in turns], "latency_ms": latency(rig, seconds)}
        tell(f"    {found[sink.value]}")
    return {"rows": rows, "rounds": rounds, "per_transaction": PER_TRANSACTION, "trickle_per_s": TRICKLE_PER_S, "sinks": found}


def _turn(rig: Rig, sink: SinkName, rows: int) -> Figures:
    """Drain a backlog into an empty sink, and let the bare loop have its turn."""
    server = rig.stack.broker
    before = 0
    if isinstance(server, RedisServer):
        with redis.Redis.from_url(server.url, protocol=2) as client:
            client.delete(TOPIC, TARGET)
    elif isinstance(server, RabbitBroker):
        with _channel(server) as channel:  # a queue that held many messages is not as fast as a new one
            channel.queue_delete(TARGET)
            channel.queue_delete(QUEUE)
        _bind(server)
    else:
        with counted(rig) as count:
            before = count()
    found = drained(rig, rows, before)
    if sink is not SinkName.KAFKA:
        bare = looped(rig, sink, rows)
        found |= {f"bare_{name}": value for name, value in bare.items()}
        found["ratio"] = found["events_per_s"] / bare["events_per_s"]
    return found


@contextmanager
def served(sink: SinkName) -> Iterator[Rig]:
    """Start the servers of a sink, and set the pipeline up."""
    with Stack(broker=broker(sink)) as stack:
        environment = {
            "CDC_NAME": NAME,
            "CDC_POSTGRES__DSN": stack.postgres.dsn(),
            "CDC_SCHEMAS__FOLDER": str(SCHEMAS),
            "CDC_HTTP__LISTEN": "off",
            **_settings(stack),
        }
        rig = Rig(stack, set_up(environment), environment)
        if isinstance(stack.broker, RabbitBroker):
            _bind(stack.broker)
        elif sink is SinkName.KAFKA:
            rig.make_topics(TOPIC)
        yield rig


def _settings(stack: Stack) -> dict[str, str]:
    if isinstance(stack.broker, RedisServer):
        return {"CDC_REDIS__URL": stack.broker.url, "CDC_REDIS__MAXLEN": "0"}
    if isinstance(stack.broker, RabbitBroker):
        return {"CDC_RABBITMQ__URL": stack.broker.url, "CDC_RABBITMQ__EXCHANGE": NAME}
    create = f"{{ partitions = {PARTITIONS}, replication_factor = 1 }}"
    return {"CDC_KAFKA__BOOTSTRAP_SERVERS": stack.kafka.bootstrap_servers, "CDC_TOPICS__CREATE": create}


@contextmanager
def _channel(server: RabbitBroker) -> Iterator[Any]:
    connection = pika.BlockingConnection(pika.URLParameters(server.url))
    try:
        yield connection.channel()
    finally:
        connection.close()


def _bind(server: RabbitBroker) -> None:
    with _channel(server) as channel:
        channel.queue_declare(QUEUE, durable=True, arguments={"x-queue-type": "quorum"})
        channel.queue_bind(QUEUE, NAME, "#")


@contextmanager
def counted(rig: Rig) -> Iterator[Callable[[], int]]:
    """Give what tells how many events are in the sink."""
    server = rig.stack.broker
    if isinstance(server, RedisServer):
        with redis.Redis.from_url(server.url, protocol=2) as client:
            yield lambda: int(client.xlen(TOPIC))
    elif isinstance(server, RabbitBroker):
        with _channel(server) as channel:
            yield lambda: int(channel.queue_declare(QUEUE, passive=True).method.message_count)
    else:
        admin = AdminClient({"bootstrap.servers": rig.stack.kafka.bootstrap_servers})
        asked = {TopicPartition(TOPIC, number): LATEST for number in range(PARTITIONS)}
        yield lambda: sum(
            each.result().offset for each in admin.list_offsets(asked, isolation_level=IsolationLevel.READ_COMMITTED).values()
        )


def drained(rig: Rig, rows: int, before: int = 0) -> Figures:
    """Let the pipeline drain a backlog; rates and costs run from the first events that are seen to the last."""
    rig.insert(rows, PER_TRANSACTION)
    rig.execute("CHECKPOINT")
    server = rig.stack.broker.pid or 0
    began = time.perf_counter()
    child = pipeline(rig)
    samples: list[Sample] = []
    try:
        with counted(rig) as count:
            while not samples or samples[-1].events < rows:
                assert time.perf_counter() - began < WITHIN_S, f"{samples[-1].events:,} of {rows:,} events came"
                samples.append(Sample(time.perf_counter(), count() - before, child.cpu_s(), cpu_s(server)))
                time.sleep(SAMPLED_EVERY_S)
    finally:
        child.close()
    first, last = next(each for each in samples if each.events), samples[-1]
    events = max(1, last.events - first.events)
    return {
        "events_per_s": round(events / (last.at - first.at)),
        "cpu_s_per_million": round((last.ours_s - first.ours_s) / events * 1e6, 1),
        "broker_cpu_s_per_million": round((last.broker_s - first.broker_s) / events * 1e6, 1),
        "rss_mb": round(child.peak_rss_mb),
        "start_s": round(first.at - began, 2),
    }


def looped(rig: Rig, sink: SinkName, rows: int) -> Figures:
    """Run the bare loop of a sink's client with what the pipeline has published."""
    server = rig.stack.broker
    assert isinstance(server, RedisServer | RabbitBroker), "the others"
    source = TOPIC if sink is SinkName.REDIS else QUEUE
    command = [sys.executable, "-m", "benchmarks.bare", sink, server.url, source, str(rows)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    told = json.loads(done.stdout.splitlines()[-1])
    return {"events_per_s": told["events_per_s"], "cpu_s_per_million": round(told["cpu_s"] / rows * 1e6, 1)}


def latency(rig: Rig, seconds: float) -> Figures:
    """Return the times from commit to a consumer, of single-row transactions at TRICKLE_PER_S."""
    stop, took = threading.Event(), list[float]()
    began_ms = time.time() * 1000

    def watch() -> None:
        for each in _arrivals(rig, began_ms, stop):
            took.append(each)

    watching = threading.Thread(target=watch)
    child = pipeline(rig)
    watching.start()
    try:
        with psycopg.connect(rig.dsn, autocommit=True) as connection:
            statement = (
                "INSERT INTO outbox (aggregatetype, aggregateid, type, payload)"
                f" SELECT 'order', 'k', 'OrderPlaced', ({PAYLOAD})::jsonb FROM (SELECT 1 AS i) AS n"
            ).encode()
            connection.execute(statement)
            wait_for(lambda: took, 60, "the pipeline streams")
            due = time.perf_counter()
            for _ in range(round(seconds * TRICKLE_PER_S)):
                connection.execute(statement)
                due += 1 / TRICKLE_PER_S
                time.sleep(max(0.0, due - time.perf_counter()))
        time.sleep(1.0)  # what is on its way
    finally:
        stop.set()
        watching.join()
        child.close()
    steady = sorted(took[len(took) // 10 :])
    return {"p50": round(statistics.median(steady), 1), "p99": round(steady[int(len(steady) * 0.99)], 1)}


class _Enough(Exception):
    """The window is over."""


def _arrivals(rig: Rig, began_ms: float, stop: threading.Event) -> Iterator[float]:
    """Yield how long after its commit each event came."""
    server = rig.stack.broker
    if isinstance(server, RabbitBroker):
        with _channel(server) as channel:
            channel.queue_purge(QUEUE)
            for _, properties, _ in channel.consume(QUEUE, auto_ack=True, inactivity_timeout=0.05):
                if properties is not None:
                    yield time.time() * 1000 - properties.headers["timestamp_in_ms"]
                if stop.is_set():
                    return

    def waiting() -> None:
        if stop.is_set():
            raise _Enough

    reader = app.subscriber(rig.settings)
    try:
        for seen in reader.read([TOPIC], since_ms=int(began_ms), follow=True, waiting=waiting):
            yield time.time() * 1000 - seen.timestamp_ms
    except _Enough:
        return
    finally:
        reader.close()


def table(document: Mapping[str, Any]) -> str:
    """Return the figures as Markdown."""
    lines = [
        (
            f"{document['rows']:,} rows in transactions of {document['per_transaction']}, {document['rounds']} rounds, medians; "
            f"latency at {document['trickle_per_s']} a second"
        ),
        "",
        "| | events/s | to a bare loop | CPU s per million | of the bare loop | of the broker | RSS, MB | latency p50, ms | p99, ms |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for sink, each in document["sinks"].items():
        cells = [
            f"{each['events_per_s']:,}",
            each.get("ratio", "-"),
            each["cpu_s_per_million"],
            each.get("bare_cpu_s_per_million", "-"),
            each["broker_cpu_s_per_million"],
            each["rss_mb"],
            each["latency_ms"]["p50"],
            each["latency_ms"]["p99"],
        ]
        lines.append(f"| {SinkName(sink).label} | " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)
