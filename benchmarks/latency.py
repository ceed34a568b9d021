"""From insert to a read_committed consumer, beside the floor that a bare transactional producer sets in the same rig.

The record's key is the time before the insert, in nanoseconds, for everybody. `python -m benchmarks.latency KIND ..` is the
writer, a process of its own.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import psycopg
from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.peers.debezium import DEFAULTS, TUNED, TUNED_FOR_LATENCY
from benchmarks.peers.ours import OURS
from benchmarks.peers.peer import Peer, Process, Run
from benchmarks.peers.polling import POLLING
from benchmarks.rig import PARTITIONS, PAYLOAD, Rig, cpu_s, pipeline, rig
from cdc.errors import CdcError
from tests.waiting import wait_for

WARM_UP_S = 6
"""Not counted: connections are made, caches filled."""

BROKER_WARM_UP_S = 30.0
"""How long the broker makes small Kafka transactions before anybody is measured: until then its compiler is at work beside us."""

LATE_S = 0.5
"""A writer that ends so much later than its rate says did not load the machine as it should have: the figure says so."""

TOPIC, FLOOR_TOPIC, WARM_UP_TOPIC = "outbox.event.latency{}", "bench.floor{}", "bench.warmup"

START_S = 120.0
"""For a peer to publish what was inserted before the first window: then it runs."""

Latency = dict[str, float | None]


@dataclass(frozen=True, slots=True)
class Load:
    """How many events a second, in transactions of how many rows, into how many partitions."""

    rate: int = 1_000
    per_transaction: int = 1
    partitions: int = 1
    seconds: float = 10.0

    def __str__(self) -> str:
        return f"{self.rate:,} events/s into {self.partitions} partition{'s' if self.partitions > 1 else ''}"

    @property
    def kind(self) -> str:
        """The aggregate type of its events, which names the topic."""
        return f"at{self.rate}in{self.partitions}"


USUAL = Load(partitions=PARTITIONS)

LOADS = (Load(rate=10, partitions=PARTITIONS), USUAL, Load(partitions=1), Load(rate=10_000, per_transaction=10, partitions=PARTITIONS))
"""One connection commits some thousand transactions a second, so 10,000 events come in transactions of ten rows."""

PEERS: Sequence[tuple[Peer, Sequence[Load]]] = (
    (OURS, LOADS),
    (TUNED_FOR_LATENCY, LOADS),
    (TUNED, (USUAL,)),
    (DEFAULTS, (USUAL,)),
    (POLLING, LOADS),
)
"""Who is measured under which loads; those that nobody would use for the sake of latency under the usual one only."""


def compare(peers: Sequence[Peer], seconds: float, tell: Callable[[str], None]) -> dict[str, Any]:
    """Return the latency of each peer under each load, and the floors."""
    with rig() as servers:
        run = Run(servers, "latency", 0)
        for load in LOADS:
            servers.make_topics(f"floor.{load.kind}", partitions=load.partitions)
        warm_up(servers)
        bare = _each(_long(LOADS, seconds), lambda load: measure(servers, "records", f"floor.{load.kind}", load), "floor", tell)
        found = {"floor": bare}
        for peer, loads in PEERS:
            if peer in peers:
                try:
                    found[peer.name] = _of(peer, run, _long(loads, seconds), tell)
                except (AssertionError, CdcError) as error:  # the others' figures took time as well
                    tell(f"    failed: {error}")
    labels = {"floor": "bare producer: the floor", **{peer.name: peer.label for peer, _ in PEERS if peer.name in found}}
    shown = {load.kind: asdict(load) for load in _long(LOADS, seconds)}
    return {"loads": shown, "labels": labels, "peers": found, "ratios": ratios(found)}


def ratios(found: Mapping[str, Mapping[str, Latency]]) -> dict[str, float]:
    """Return our median and 99th percentile as multiples of those of Debezium tuned for latency, into one partition."""
    pair = [found.get(name, {}).get(Load(partitions=1).kind, {}) for name in (OURS.name, TUNED_FOR_LATENCY.name)]
    both = {name: [each.get(name) for each in pair] for name in ("p50", "p99")}
    return {f"{name}_to_debezium": round(mine / theirs, 3) for name, (mine, theirs) in both.items() if mine and theirs}


def _long(loads: Sequence[Load], seconds: float) -> list[Load]:
    """Give loads their windows; a percentile of 100 events would be one event."""
    return [replace(load, seconds=max(seconds, 300 / load.rate)) for load in loads]


def _of(peer: Peer, run: Run, loads: Sequence[Load], tell: Callable[[str], None]) -> dict[str, Latency]:
    for load in loads:
        run.rig.make_topics(peer.topic(run, load.kind), partitions=load.partitions)
    run.rig.make_topics(ready := peer.topic(run, "ready"), partitions=1)
    peer.prepare(run)
    peer.fill(run)
    process = peer.start(run)
    try:
        _first(run, peer, ready)

        def one(load: Load) -> Latency:
            return measure(run.rig, peer.table(run), peer.topic(run, load.kind), load, process)

        return _each(loads, one, peer.label, tell)
    finally:
        process.close()


def _each(loads: Sequence[Load], one: Callable[[Load], Latency], label: str, tell: Callable[[str], None]) -> dict[str, Latency]:
    """Measure under each load; one that fails is left out, because the others took time as well."""
    found = {}
    for load in loads:
        tell(f"{label}: {load}")
        try:
            found[load.kind] = one(load)
        except AssertionError as error:
            tell(f"    failed: {error}")
    return found


def _first(run: Run, peer: Peer, topic: str) -> None:
    """Insert an event, and return when a consumer has it: the peer runs."""
    reader = _reader(run.rig, topic)
    run.rig.execute(
        f"INSERT INTO {peer.table(run)} (aggregatetype, aggregateid, type, payload)"
        f" SELECT 'ready', '1', 'OrderPlaced', ({PAYLOAD})::jsonb FROM (SELECT 1 AS i) one"
    )
    wait_for(lambda: reader.poll(0.1), START_S, f"the first event of {peer.name}")
    reader.close()


def warm_up(rig: Rig) -> None:
    """Let the broker make small Kafka transactions for a while."""
    rig.make_topics(WARM_UP_TOPIC, partitions=1)
    measure(rig, "records", WARM_UP_TOPIC, Load(seconds=BROKER_WARM_UP_S - WARM_UP_S))


def ours(rig: Rig, seconds: float, partitions: int) -> Latency:
    """Return the latency of rows that a writer process inserts while the rig's `cdc run` streams into a topic of so many partitions."""
    child = pipeline(rig)
    try:
        return measure(rig, "outbox", TOPIC.format(partitions), Load(seconds=seconds))
    finally:
        child.close()


def floor(rig: Rig, seconds: float, partitions: int) -> Latency:
    """Return the latency of records that a producer commits as fast as it can, one Kafka transaction after another."""
    return measure(rig, "records", FLOOR_TOPIC.format(partitions), Load(seconds=seconds))


def measure(rig: Rig, what: str, topic: str, load: Load, process: Process | None = None) -> Latency:
    """Return p50, p99 and max in ms, and the CPU of a process in per cent of one core.

    `what` is a table, or `records` for the floor. One who does not keep up is measured all the same, and `missing` says how many
    events had not come by the deadline.
    """
    reader = _reader(rig, topic)
    address = rig.stack.kafka.bootstrap_servers if what == "records" else rig.dsn
    count = round(load.rate * (WARM_UP_S + load.seconds))
    arguments = (what, address, topic, str(count), str(load.rate), str(load.per_transaction))
    command = [sys.executable, "-m", "benchmarks.latency", *arguments]
    writer = subprocess.Popen(command, cwd=Path(__file__).parent.parent, stdout=subprocess.PIPE, text=True)
    latencies: list[float] = []
    deadline = time.monotonic() + 3 * (WARM_UP_S + load.seconds) + 30
    warm, spent = load.rate * WARM_UP_S, [0.0, 0.0]
    while len(latencies) < count and time.monotonic() < deadline:
        message = reader.poll(0.1)
        if message is not None and message.error() is None:
            latencies.append(time.time_ns() - int(message.key() or 0))
            if len(latencies) in {warm, count} and process is not None:
                spent[len(latencies) == count] = cpu_s(process.pid or 0)
    reader.close()
    late_s = _late_s(writer)
    counted = sorted(latencies[warm:])
    assert counted, f"{topic}: {len(latencies)} of {count} records came"
    return {
        "p50": round(counted[len(counted) // 2] / 1e6, 2),
        "p99": round(counted[len(counted) * 99 // 100] / 1e6, 2),
        "max": round(counted[-1] / 1e6, 2),
        **({"cpu_percent": round((spent[1] - spent[0]) / load.seconds * 100, 1)} if process is not None and spent[1] else {}),
        **({"writer_late_s": round(late_s, 1)} if late_s > LATE_S else {}),
        **({"missing": count - len(latencies)} if len(latencies) < count else {}),
    }


def _late_s(writer: subprocess.Popen[str]) -> float:
    """Return how late a writer was in the end; raises AssertionError when it is not there yet."""
    try:
        return float(writer.communicate(timeout=10)[0])
    except subprocess.TimeoutExpired:
        writer.kill()
        msg = "the writer could not keep its rate: the machine is too busy for this load"
        raise AssertionError(msg) from None


def _reader(rig: Rig, topic: str) -> Consumer:
    """Return a consumer that stands at the topic's end."""
    reader = Consumer({"bootstrap.servers": rig.stack.kafka.bootstrap_servers, "group.id": "bench", "isolation.level": "read_committed"})
    partitions = wait_for(lambda: reader.list_topics(topic, 5).topics[topic].partitions, 20, "the topic's partitions")
    reader.assign([TopicPartition(topic, number, reader.get_watermark_offsets(TopicPartition(topic, number))[1]) for number in partitions])
    reader.poll(1)
    return reader


def write_rows(dsn: str, table: str, kind: str, count: int, load: Load) -> None:
    """Insert rows at a rate; the key is the time before the insert in nanoseconds."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        statement = (
            f"INSERT INTO {table} (aggregatetype, aggregateid, type, payload) SELECT '{kind}', %s, 'OrderPlaced', %s::jsonb"
            f" FROM generate_series(1, {load.per_transaction})"
        ).encode()
        [payload] = connection.execute(f"SELECT ({PAYLOAD})::text FROM (SELECT 1 AS i) one".encode()).fetchone() or ("",)
        began = time.monotonic()
        for i in range(0, count, load.per_transaction):
            _wait_until(began + i / load.rate)
            connection.execute(statement, (str(time.time_ns()), payload))
        print(time.monotonic() - began - count / load.rate)


def write_records(bootstrap_servers: str, topic: str, count: int, load: Load) -> None:
    """Commit records at a rate: what has gathered while a commit was under way goes into the next one."""
    producer = Producer({"bootstrap.servers": bootstrap_servers, "transactional.id": "bench-floor", "linger.ms": 0})
    producer.init_transactions(30)
    began, sent = time.monotonic(), 0
    while sent < count:
        due = min(count, int((time.monotonic() - began) * load.rate) + 1)
        if due > sent:
            producer.begin_transaction()
            while sent < due:
                producer.produce(topic, key=str(time.time_ns()), value=b"x" * 300)
                sent += 1
            producer.commit_transaction(30)
        else:
            _wait_until(began + sent / load.rate)
    print(time.monotonic() - began - count / load.rate)


def _wait_until(moment: float) -> None:
    wait = moment - time.monotonic()
    if wait > 0:
        time.sleep(wait)


def main(*arguments: str) -> None:
    """Write."""
    what, address, topic, count, rate, per_transaction = arguments
    load = Load(int(rate), int(per_transaction))
    if what == "records":
        write_records(address, topic, int(count), load)
    else:
        write_rows(address, what, topic.rpartition(".")[2], int(count), load)


if __name__ == "__main__":
    main(*sys.argv[1:])
