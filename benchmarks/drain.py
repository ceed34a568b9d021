"""Let one peer drain a backlog, and see from outside how far it is and what it costs.

How far: the last stable offsets of its topic, which is what a read_committed consumer may see. Markers of Kafka transactions
count among offsets (less than one in two hundred), so whoever drains all of a backlog is counted once more at the end, record by
record. What it costs: CPU seconds from /proc, of the peer, of the broker, and of those PostgreSQL processes that serve clients.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Consumer, IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from benchmarks.peers.peer import Peer, Process, Run
from benchmarks.rig import LATEST, PARTITIONS, cpu_s
from tests.measuring import peak_mb

SAMPLED_EVERY_S = 0.05

QUIET_S = 2.0
"""A backlog is drained when all is there and nothing has come for so long; the clock stops at the last thing that came."""

STALL_S = 180.0
"""One who publishes nothing for so long has failed."""

FIRST = 500_000
"""Events that are counted by themselves: a virtual machine compiles while it works on them."""

Figures = dict[str, float | None]


@dataclass(frozen=True, slots=True)
class Sample:
    """What was seen at one moment: offsets behind it, and CPU seconds so far."""

    at: float
    events: int
    peer_s: float
    kafka_s: float
    postgres_s: float


class Watch:
    """Takes samples of one drain."""

    def __init__(self, run: Run, topic: str | None, process: Callable[[], Process | None]) -> None:
        self._kafka, self._postgres = run.rig.stack.kafka.pid or 0, run.rig.stack.postgres.pid or 0
        self._admin = AdminClient({"bootstrap.servers": run.rig.stack.kafka.bootstrap_servers})
        self._offsets = {TopicPartition(topic, number): LATEST for number in range(PARTITIONS)} if topic else {}
        self._process = process
        self._serving: dict[int, float] = {}
        self._own_s = self.peak_mb = 0.0
        self._events = 0

    def sample(self) -> Sample:
        """Look once."""
        if self._offsets:
            found = self._admin.list_offsets(self._offsets, isolation_level=IsolationLevel.READ_COMMITTED)
            with contextlib.suppress(KafkaException):  # a broker that is busy is asked again
                self._events = sum(each.result().offset for each in found.values())
        at = time.perf_counter()
        process = self._process()
        if process is not None and (pid := process.pid) is not None:
            self._own_s = max(self._own_s, cpu_s(pid))
            self.peak_mb = max(self.peak_mb, peak_mb(pid))
        return Sample(at, self._events, self._own_s, cpu_s(self._kafka), self._serving_s())

    def _serving_s(self) -> float:
        """Seconds of the processes that serve clients: their title has the client's address. One that has ended keeps its last."""
        children = Path(f"/proc/{self._postgres}/task/{self._postgres}/children").read_text().split()
        for pid in map(int, children):
            try:
                if b"127.0.0.1(" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    self._serving[pid] = cpu_s(pid) or self._serving.get(pid, 0.0)
            except OSError:
                continue
        return sum(self._serving.values())


def drain(peer: Peer, run: Run) -> Figures:
    """Return what a peer did with a backlog; raises AssertionError when it stalls, ends early, or publishes another number of events."""
    peer.fill(run)
    rows = min(run.rows, peer.at_most or run.rows)
    process: Process | None = None
    watch = Watch(run, peer.topic(run) if peer.publishes else None, lambda: process)
    samples = [watch.sample()]
    began = samples[0].at
    whole = rows == run.rows
    process = peer.start(run)
    try:
        while not _done(samples, rows, process, QUIET_S if whole else 0.0):
            time.sleep(SAMPLED_EVERY_S)
            samples.append(watch.sample())
            stalled = peer.publishes and _still_s(samples) > STALL_S
            assert not stalled, f"{peer.name} published {samples[-1].events:,} of {rows:,} and stopped"
    finally:
        process.close()
    assert samples[-1].events >= rows or not peer.publishes, f"{peer.name} published {samples[-1].events:,} of {rows:,} and ended"
    published = _count(run, peer.topic(run)) if whole and peer.publishes else None
    assert published in {None, rows}, f"{peer.name} published {published:,} events for {rows:,} rows"
    return {**figures(samples, rows, began), "rss_mb": round(watch.peak_mb), "published": published}


def _done(samples: list[Sample], rows: int, process: Process, quiet_s: float) -> bool:
    if process.pid is None:  # a limit ends by itself; of another one the count tells that it ended too early
        return True
    return samples[-1].events >= rows and _still_s(samples) >= quiet_s


def _still_s(samples: list[Sample]) -> float:
    """Return for how long nothing has come."""
    return samples[-1].at - next(each.at for each in samples if each.events == samples[-1].events)


def figures(samples: list[Sample], rows: int, began: float) -> Figures:
    """Return rate, CPU and times of a drain of so many rows.

    Rates and costs run from the first events that were seen, which come some thousand at once, to the last: `first_*` over the
    first half million (or the first half of less), `steady_*` over the rest. Who is not seen in a topic is seen from its start.
    """
    last = next((each for each in samples if each.events >= samples[-1].events), samples[-1])
    if not last.events:
        end = samples[-1]
        cost = _costs(samples[0], end, rows)
        return {"events": rows, "seconds": round(end.at - began, 2), "events_per_s": round(rows / (end.at - began)), **cost}
    first = next(each for each in samples if each.events)
    warm = next(each for each in samples if each.events >= min(FIRST, rows // 2))
    found: Figures = {"events": rows, "seconds": round(last.at - began, 2), "start_s": round(first.at - began, 2)}
    scale = min(1.0, rows / last.events)  # markers are no events
    for prefix, begin, end in (("", first, last), ("first_", first, warm), ("steady_", warm, last)):
        events = (end.events - begin.events) * scale
        if events:
            found[f"{prefix}events_per_s"] = round(events / (end.at - begin.at))
            found |= {f"{prefix}{name}": value for name, value in _costs(begin, end, events).items()}
    return found


def _costs(begin: Sample, end: Sample, events: float) -> Figures:
    """CPU seconds per million events."""
    spent = {"cpu": end.peer_s - begin.peer_s, "kafka_cpu": end.kafka_s - begin.kafka_s, "postgres_cpu": end.postgres_s - begin.postgres_s}
    return {f"{name}_s_per_million": round(seconds / events * 1e6, 2) for name, seconds in spent.items()}


def _count(run: Run, topic: str) -> int:
    """Return how many records a read_committed consumer finds in a topic."""
    consumer = Consumer(
        {
            "bootstrap.servers": run.rig.stack.kafka.bootstrap_servers,
            "group.id": "count",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "queued.max.messages.kbytes": 65536,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    count = ends = 0
    deadline = time.monotonic() + STALL_S
    while ends < PARTITIONS:
        assert time.monotonic() < deadline, f"{topic} could not be read to its end"
        batch = consumer.consume(10_000, 0.5)
        wrong = sum(each.error() is not None for each in batch)
        ends += wrong
        count += len(batch) - wrong
    consumer.close()
    return count


def median(rounds: list[Figures]) -> Figures:
    """Return the median of each figure over rounds; of memory the most."""
    names = dict.fromkeys(name for each in rounds for name in each)
    values = {name: [value for each in rounds if (value := each.get(name)) is not None] for name in names}
    return {
        name: round(max(found) if name == "rss_mb" else statistics.median(found), 2) if found else None for name, found in values.items()
    }
