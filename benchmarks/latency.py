"""From insert to a read_committed consumer, beside the floor that a bare transactional producer sets in the same rig."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psycopg
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # not listed in its stub

from benchmarks.rig import PAYLOAD, Rig, pipeline
from tests.waiting import wait_for

RATE = 1_000
"""Single-row transactions a second."""

WARM_UP_S = 6
"""Not counted: connections are made, caches filled."""

TOPIC, FLOOR_TOPIC = "outbox.event.latency{}", "bench.floor{}"


def make_topics(rig: Rig, counts: Sequence[int]) -> None:
    """Make the topics of both, for each number of partitions; they are ready when the first measurement comes."""
    admin = AdminClient({"bootstrap.servers": rig.stack.kafka.bootstrap_servers})
    topics = [NewTopic(form.format(partitions), partitions, 1) for partitions in counts for form in (TOPIC, FLOOR_TOPIC)]
    for made in admin.create_topics(topics).values():
        made.result()


def ours(rig: Rig, seconds: float, partitions: int) -> dict[str, float]:
    """Return the latency of rows that a writer process inserts while `cdc run` streams into a topic of so many partitions."""
    child = pipeline(rig)
    try:
        return _measure(rig, "rows", TOPIC.format(partitions), seconds)
    finally:
        child.stop()


def floor(rig: Rig, seconds: float, partitions: int) -> dict[str, float]:
    """Return the latency of records that a producer commits as fast as it can, one Kafka transaction after another."""
    return _measure(rig, "records", FLOOR_TOPIC.format(partitions), seconds)


def _measure(rig: Rig, what: str, topic: str, seconds: float) -> dict[str, float]:
    consumer = Consumer({"bootstrap.servers": rig.stack.kafka.bootstrap_servers, "group.id": "bench", "isolation.level": "read_committed"})
    partitions = wait_for(lambda: consumer.list_topics(topic, 5).topics[topic].partitions, 20, "the topic's partitions")
    consumer.assign(
        [TopicPartition(topic, number, consumer.get_watermark_offsets(TopicPartition(topic, number))[1]) for number in partitions]
    )
    consumer.poll(1)
    address = rig.dsn if what == "rows" else rig.stack.kafka.bootstrap_servers
    count = round(RATE * (WARM_UP_S + seconds))
    writer = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.latency", what, address, topic, str(count)], cwd=Path(__file__).parent.parent
    )
    latencies: list[float] = []
    deadline = time.monotonic() + 3 * (WARM_UP_S + seconds) + 30
    while len(latencies) < count and time.monotonic() < deadline:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            latencies.append(time.time_ns() - int(message.key() or 0))
    consumer.close()
    writer.wait(30)
    assert len(latencies) == count, f"{len(latencies)} of {count} records came"
    counted = sorted(latencies[RATE * WARM_UP_S :])
    return {
        "p50": round(counted[len(counted) // 2] / 1e6, 2),
        "p99": round(counted[len(counted) * 99 // 100] / 1e6, 2),
        "max": round(counted[-1] / 1e6, 2),
    }


def write_rows(dsn: str, topic: str, count: int) -> None:
    """Insert rows at RATE; the key is the time of the insert in nanoseconds."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        kind = topic.rpartition(".")[2]
        statement = f"INSERT INTO outbox (aggregatetype, aggregateid, type, payload) VALUES ('{kind}', %s, 'OrderPlaced', %s)"
        [payload] = connection.execute(f"SELECT ({PAYLOAD})::text FROM (SELECT 1 AS i) one".encode()).fetchone() or ("",)
        _paced(count, lambda key: connection.execute(statement.encode(), (key, payload)))


def write_records(bootstrap_servers: str, topic: str, count: int) -> None:
    """Commit records at RATE: what has gathered while a commit was under way goes into the next one."""
    producer = Producer({"bootstrap.servers": bootstrap_servers, "transactional.id": "bench-floor", "linger.ms": 0})
    producer.init_transactions(30)
    began, sent = time.monotonic(), 0
    while sent < count:
        due = min(count, int((time.monotonic() - began) * RATE) + 1)
        if due > sent:
            producer.begin_transaction()
            while sent < due:
                producer.produce(topic, key=str(time.time_ns()), value=b"x" * 300)
                sent += 1
            producer.commit_transaction(30)
        else:
            time.sleep(began + sent / RATE - time.monotonic() if began + sent / RATE > time.monotonic() else 0)


def _paced(count: int, send: Callable[[str], object]) -> None:
    began = time.monotonic()
    for i in range(count):
        wait = began + i / RATE - time.monotonic()
        if wait > 0:
            time.sleep(wait)
        send(str(time.time_ns()))


if __name__ == "__main__":
    {"rows": write_rows, "records": write_records}[sys.argv[1]](sys.argv[2], sys.argv[3], int(sys.argv[4]))
