"""How long events wait after each kind of fault, and what an aborted Kafka transaction costs: `python -m benchmarks.recovery`.

A writer inserts a row every 20 ms; a consumer sees them as they are committed. What counts is the longest time from a row's
insert to its arrival around the fault, less than which nobody waits. Each fault is made ROUNDS times, the median is shown.
The table of the manual goes to stdout; `--store` keeps the figures that it is made of.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, Self

import orjson
import psycopg
from confluent_kafka import OFFSET_END, Consumer, Producer, TopicPartition, libversion

from cdc.devstack.jars import locked
from cdc.devstack.process import held_ports, port_of
from cdc.devstack.stack import Stack
from tests.pipeline import Pipeline
from tests.waiting import wait_for

STORED = Path(__file__).with_name("recovery.json")

EVERY_S = 0.02

AFTER_S = 3.0
"""The fault is over when rows have come in time again for so long."""

IN_TIME_S = 0.5

GIVE_UP_S = 120.0


class Traffic:
    """Rows written at a steady pace, and when each of them came."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._leaving = threading.Event()
        self._written: dict[int, float] = {}
        self.late: list[tuple[float, float]] = []
        """(when it came, how long it took), by monotonic seconds."""
        self._threads = [threading.Thread(target=self._write), threading.Thread(target=self._read)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        wait_for(lambda: self.late, 60, "the first row comes")
        return self

    def __exit__(self, *_: object) -> None:
        self._leaving.set()
        for thread in self._threads:
            thread.join()

    def gap_s(self, fault: Callable[[], object]) -> float:
        """Make a fault and return the longest time that a row took because of it."""
        began = time.monotonic()
        fault()
        wait_for(lambda: self._calm(began), GIVE_UP_S, "events flow again")
        return max(took for came, took in self.late if came >= began)

    def _calm(self, began: float) -> bool:
        now = time.monotonic()
        recent = [took for came, took in self.late[-400:] if came >= max(began, now - AFTER_S)]
        return now - began >= 2 * AFTER_S and len(recent) > AFTER_S / EVERY_S / 3 and max(recent) < IN_TIME_S

    def _write(self) -> None:
        number, connection = 0, None
        while not self._leaving.wait(EVERY_S):
            try:
                if connection is None:
                    connection = psycopg.connect(self._pipeline.dsn, autocommit=True, connect_timeout=2)
                number += 1
                self._written[number] = time.monotonic()
                self._pipeline.insert(number, key=str(number), on=connection)
            except psycopg.Error:  # the server is what has failed
                connection = None

    def _read(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self._pipeline.bootstrap,
                "group.id": "recovery",
                "isolation.level": "read_committed",
                "reconnect.backoff.max.ms": 100,
                "log_level": 0,
            }
        )
        consumer.assign([TopicPartition(self._pipeline.topic, 0, OFFSET_END)])
        while not self._leaving.is_set():
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                now, number = time.monotonic(), int(message.key() or b"0")
                self.late.append((now, now - self._written[number]))
        consumer.close()


def faults(stack: Stack, pipeline: Pipeline) -> dict[str, Callable[[], object]]:
    """Name to what is done."""

    def walsender() -> None:
        pipeline.execute("SELECT pg_terminate_backend(%s)", (pipeline.slot().active_pid,))

    def with_a_standby(end: Callable[[subprocess.Popen[bytes]], object]) -> Callable[[], object]:
        def act() -> None:
            active = pipeline.process
            [port] = held_ports(1)
            pipeline.start(port=port_of(port))
            port.close()
            wait_for(lambda: "standby" in pipeline.log_of(pipeline.process), 30, "a standby waits")
            end(active)

        return act

    def killed_and_started() -> None:
        for process in pipeline.processes:
            pipeline.kill(process)
        pipeline.start()

    def postgres(mode: Literal["fast", "immediate"]) -> Callable[[], None]:
        def restart() -> None:
            stack.postgres.stop(mode)
            stack.postgres.start()

        return restart

    def broker_killed() -> None:
        stack.kafka.kill()
        stack.kafka.start()

    return {
        "SIGKILL, a standby takes over": with_a_standby(pipeline.kill),
        "SIGKILL, started again": killed_and_started,
        "SIGSTOP, a standby takes over (wal_sender_timeout 3 s)": with_a_standby(lambda active: active.send_signal(signal.SIGSTOP)),
        "the walsender is terminated": walsender,
        "PostgreSQL is restarted (fast)": postgres("fast"),
        "PostgreSQL is restarted (immediate)": postgres("immediate"),
        "Kafka is restarted": stack.kafka.restart,
        "Kafka is killed and started": broker_killed,
    }


def abort_ms(bootstrap: str, topic: str) -> dict[str, float]:
    """Return how long an abort takes beside a commit, each of 1,000 records."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "abort", "log_level": 0})
    producer.init_transactions(30)
    took: dict[str, list[float]] = {"commit_ms": [], "abort_ms": []}
    for turn in range(60):
        name = "abort_ms" if turn % 2 else "commit_ms"
        producer.begin_transaction()
        for _ in range(1000):
            producer.produce(topic, b"x" * 300, b"k")
        producer.flush(30)
        began = time.perf_counter()
        (producer.abort_transaction if turn % 2 else producer.commit_transaction)(30)
        took[name].append((time.perf_counter() - began) * 1000)
    return {name: round(statistics.median(times[5:]), 1) for name, times in took.items()}


def table(figures: Mapping[str, Any]) -> str:
    """Return the figures as the manual shows them."""
    waits = [f"| {name} | {seconds:.1f} s |" for name, seconds in figures["waits_s"].items()]
    servers = f"PostgreSQL {figures['postgres']}, Kafka {figures['kafka']}, librdkafka {figures['librdkafka']}"
    where = f"{figures['date']}, {figures['cpus']} cores, {servers}"
    costs = f"A Kafka transaction of 1,000 records takes {figures['commit_ms']} ms to commit and {figures['abort_ms']} ms to abort."
    return "\n".join(["| fault | the longest wait of an event |", "|---|---|", *waits, "", f"{costs} ({where})"])


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recovery", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--store", action="store_true", help="keep the figures for the manual")
    options = parser.parse_args()
    waits: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder, Stack() as stack:
        pipeline = Pipeline(Path(folder), "recovery", stack.postgres.dsn(), stack.kafka.bootstrap_servers)
        try:
            pipeline.init()
            pipeline.started()
            with Traffic(pipeline) as traffic:
                for name, fault in faults(stack, pipeline).items():
                    waits[name] = round(statistics.median(traffic.gap_s(fault) for _ in range(options.rounds)), 2)
                    print(f"{waits[name]:6.2f} s  {name}", file=sys.stderr, flush=True)
                    for process in pipeline.processes[:-1]:
                        pipeline.kill(process)
            pipeline.hang_up()  # the server was restarted
            [(version,)] = pipeline.execute("SHOW server_version")
        finally:
            for process in pipeline.processes:
                pipeline.kill(process)
            pipeline.hang_up()
        costs = abort_ms(stack.kafka.bootstrap_servers, pipeline.topic)
    figures = {
        "date": time.strftime("%Y-%m-%d"),
        "cpus": os.cpu_count(),
        "postgres": version,
        "kafka": next(jar.version for jar in locked("kafka") if jar.artifact.startswith("kafka_")),
        "librdkafka": libversion()[0],
        "waits_s": waits,
        **costs,
    }
    if options.store:
        STORED.write_bytes(orjson.dumps(figures, option=orjson.OPT_INDENT_2) + b"\n")
    print(table(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
