"""The limits: what PostgreSQL sends to a client that throws it away, and what Kafka takes from one that has nothing else to do.

`python -m benchmarks.peers.limits BROKERS SOURCE TARGET COUNT` is the second one.
"""

from __future__ import annotations

import sys
from itertools import cycle, islice

from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.peers.peer import Peer, Run, make_slot, slot
from benchmarks.rig import Child
from cdc.devstack.postgres import client
from cdc.kafka.properties import producer_properties

PER_TRANSACTION = 10_000

SAMPLE = 10_000
"""Records of the backlog that are produced again and again."""


def receive(run: Run) -> Child:
    """Start pg_recvlogical to /dev/null, up to the end of the backlog."""
    command = [
        *(str(client("pg_recvlogical")), "-d", run.rig.dsn, "--slot", slot(run, "recvlogical"), "--start"),
        *("--endpos", run.end_lsn, "-f", "/dev/null"),
        *("-o", "proto_version=1", "-o", f"publication_names={run.rig.settings.postgres.publication}"),
    ]
    return Child(command, {}, run.rig.stack.postgres.folder / "recvlogical.log")


def produce(run: Run) -> Child:
    """Start a producer of so many records as the backlog has."""
    arguments = (run.rig.stack.kafka.bootstrap_servers, run.source, PRODUCE.topic(run), str(run.rows))
    return Child([sys.executable, "-m", "benchmarks.peers.limits", *arguments], {}, run.rig.stack.postgres.folder / "produce.log")


Headers = dict[str, str | bytes | None] | list[tuple[str, str | bytes | None]] | None


def records(bootstrap_servers: str, topic: str) -> list[tuple[bytes | None, bytes | None, Headers]]:
    """Return key, value and headers of the first records of a topic's partitions."""
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "sample", "isolation.level": "read_committed"})
    numbers = consumer.list_topics(topic, 10).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, 0) for number in numbers])
    found: list[tuple[bytes | None, bytes | None, Headers]] = []
    while len(found) < SAMPLE and (batch := consumer.consume(SAMPLE - len(found), 5)):
        found += [(each.key(), each.value(), each.headers()) for each in batch if each.error() is None]
    consumer.close()
    return found


def write(bootstrap_servers: str, source: str, target: str, count: int) -> None:
    """Produce records like those of `source` in Kafka transactions, with our producer's properties."""
    sample = records(bootstrap_servers, source)
    assert sample, "nobody has published the backlog yet"
    producer = Producer(producer_properties({"bootstrap.servers": bootstrap_servers}, f"produce_{target}"))
    producer.init_transactions(30)
    endless = cycle(sample)
    for begun in range(0, count, PER_TRANSACTION):
        producer.begin_transaction()
        for key, value, headers in islice(endless, min(PER_TRANSACTION, count - begun)):
            while True:
                try:
                    producer.produce(target, value, key, headers=headers)
                    break
                except BufferError:
                    producer.poll(0.01)
        producer.commit_transaction(60)


RECVLOGICAL = Peer("recvlogical", "pg_recvlogical to /dev/null", receive, lambda run: make_slot(run, "recvlogical"), publishes=False)
PRODUCE = Peer("produce", "transactional producer alone", produce)

if __name__ == "__main__":
    write(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
