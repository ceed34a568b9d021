"""Debezium's PostgreSQL connector with its outbox router on Kafka Connect, exactly once: tuned by somebody who wants it to win,
and with its defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from benchmarks.peers.peer import Peer, Run, make_slot, slot
from cdc.devstack.connect import DEFAULT_JVM, TUNED_JVM, ConnectWorker, debezium

THROUGHPUT = {
    "max.batch.size": "8192",
    "max.queue.size": "32768",
    "poll.interval.ms": "100",
    "header.converter": "org.apache.kafka.connect.storage.StringConverter",
    "producer.override.compression.type": "lz4",
    "producer.override.linger.ms": "20",
    "producer.override.batch.size": "262144",
    "producer.override.buffer.memory": "67108864",
    "producer.override.max.request.size": "4194304",
}
"""Large batches, as our producer compressed; headers as text, because the default converter parses and prints JSON for each."""

LATENCY = {**THROUGHPUT, "poll.interval.ms": "10", "producer.override.linger.ms": "0"}
"""The same, and nothing waits for company."""

DEFAULTS_AT_MOST = 1_000_000
"""Events of a backlog: with defaults it is slow, and the machine's time is better spent on the tuned one."""


def start(run: Run, name: str, settings: Mapping[str, str], jvm: Sequence[str]) -> ConnectWorker:
    """Start a worker and give it the connector; its task starts in its own time."""
    worker = ConnectWorker(run.rig.stack.kafka.bootstrap_servers, f"connect-{name}-{run.name}", jvm=jvm)
    try:
        worker.start()
        outbox = debezium(
            run.rig.dsn,
            slot=slot(run, name),
            publication=run.rig.settings.postgres.publication,
            route=f"{name}.{run.name}.${{routedByValue}}",
        )
        worker.put("outbox", {**outbox, **settings})
    except BaseException:
        worker.close()
        raise
    return worker


def _peer(name: str, label: str, settings: Mapping[str, str], jvm: Sequence[str], at_most: int | None = None) -> Peer:
    begin = partial(start, name=name, settings=settings, jvm=jvm)
    return Peer(name, label, begin, lambda run: make_slot(run, name), at_most=at_most)


TUNED = _peer("debezium", "Debezium, tuned", THROUGHPUT, TUNED_JVM)
TUNED_FOR_LATENCY = _peer("debezium-latency", "Debezium, tuned for latency", LATENCY, TUNED_JVM)
DEFAULTS = _peer("debezium-defaults", "Debezium, defaults", {}, DEFAULT_JVM, DEFAULTS_AT_MOST)
