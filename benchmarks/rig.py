"""The servers, the backlog and the processes that a benchmark measures; every peer gets the same rows and the same machine."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec  # type: ignore[attr-defined]  # not listed in its stub

from cdc import app
from cdc.audit.init import init
from cdc.cli.init import plan_of
from cdc.devstack.stack import Stack
from cdc.settings import Settings, load
from tests.measuring import peak_mb
from tests.waiting import wait_for

LATEST = OffsetSpec.latest()  # type: ignore[no-untyped-call]

SCHEMAS = Path(__file__).parent.parent / "schemas"

NAME = "bench"

PARTITIONS = 6
"""Of each topic that nothing else is said of. Each one that a Kafka transaction touches costs the broker a request of its own
(KIP-890's verification and librdkafka's one produce request for each), so latency is shown for one partition and for several."""

PAYLOAD = (
    """'{"orderId":"o-' || i || '","customer":{"id":' || i || ',"name":"Ada Lovelace","email":"ada@example.org"},"""
    """"currency":"EUR","lines":[{"sku":"sku-1","quantity":2,"unitCents":1299},{"sku":"sku-22","quantity":1,"unitCents":4999}],"""
    """"totalCents":7597,"note":"leave it at the door, please, if nobody is at home, thank you"}'"""
)
"""About 300 bytes of JSON; the number makes each one another."""


@dataclass(frozen=True, slots=True)
class Rig:
    """A database with an outbox and a pipeline that has been set up, and the settings that reach it."""

    stack: Stack
    settings: Settings
    environment: dict[str, str]

    @property
    def dsn(self) -> str:
        """A superuser's connection string."""
        return self.stack.postgres.dsn()

    def execute(self, statement: str) -> None:
        """Run one statement."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(statement.encode())

    def ask(self, query: str) -> str:
        """Return the one text that a query finds."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            [answer] = connection.execute(query.encode()).fetchone() or ("",)
        return str(answer)

    def insert(self, rows: int, per_transaction: int, kind: str = "'order'", subject: str = "OrderPlaced", payload: str = PAYLOAD) -> str:
        """Write a backlog: `rows` in transactions of `per_transaction`; return the LSN at which it ends.

        Kind and payload are SQL in which `i` counts the rows.
        """
        self.execute(
            f"DO $$ BEGIN FOR batch IN 0..{rows // per_transaction - 1} LOOP INSERT INTO outbox (aggregatetype, aggregateid, type, payload)"
            f" SELECT {kind}, 'customer-' || i % 1000, '{subject}', ({payload})::jsonb"
            f" FROM generate_series(batch * {per_transaction} + 1, (batch + 1) * {per_transaction}) i; COMMIT; END LOOP; END $$"
        )
        return self.ask("SELECT pg_current_wal_lsn()::text")

    def make_topics(self, *names: str, partitions: int = PARTITIONS) -> None:
        """Make topics and wait until they have leaders, so that nobody's first event waits for one."""
        admin = AdminClient({"bootstrap.servers": self.stack.kafka.bootstrap_servers})
        for made in admin.create_topics([NewTopic(name, partitions, 1) for name in names]).values():
            made.result()
        asked = {TopicPartition(name, number): LATEST for name in names for number in range(partitions)}

        def led() -> bool:
            return all(answer.exception() is None for answer in admin.list_offsets(asked).values())

        wait_for(led, 60, "the leaders of new topics")

    def delete_topics(self, *names: str) -> None:
        """Delete topics that nobody reads any more."""
        admin = AdminClient({"bootstrap.servers": self.stack.kafka.bootstrap_servers})
        for deleted in admin.delete_topics(list(names)).values():
            deleted.result()


def set_up(environment: dict[str, str], *, skip: bool = False) -> Settings:
    """Do what `cdc init` does; rows that are there already are skipped, or there must be none."""
    loaded = load(None, (), environment)
    publisher = app.publisher(loaded)
    init(plan_of(loaded, create_table=True, skip=skip), publisher, time.time_ns() // 1000, lambda _: None)
    publisher.close()
    return loaded


@contextmanager
def rig(settings: dict[str, str] | None = None) -> Iterator[Rig]:
    """Start the servers and set the pipeline up."""
    with Stack() as stack:
        environment = {
            "CDC_NAME": NAME,
            "CDC_POSTGRES__DSN": stack.postgres.dsn(),
            "CDC_KAFKA__BOOTSTRAP_SERVERS": stack.kafka.bootstrap_servers,
            "CDC_SCHEMAS__FOLDER": str(SCHEMAS),
            "CDC_TOPICS__CREATE": f"{{ partitions = {PARTITIONS}, replication_factor = 1 }}",
            "CDC_HTTP__LISTEN": "off",
            **(settings or {}),
        }
        yield Rig(stack, set_up(environment), environment)


class Child:
    """A measured process: its CPU seconds and its peak RSS."""

    def __init__(self, command: list[str], environment: dict[str, str], log: Path) -> None:
        with log.open("ab") as output:
            self.process = subprocess.Popen(command, env={**os.environ, **environment}, stdout=output, stderr=output)
        self.peak_rss_mb = 0.0
        self._end = threading.Event()
        self._watch = threading.Thread(target=self._sample, daemon=True)
        self._watch.start()

    @property
    def pid(self) -> int | None:
        """Its pid, or None when it has ended."""
        return self.process.pid if self.process.poll() is None else None

    def cpu_s(self) -> float:
        """User and system seconds so far."""
        return cpu_s(self.process.pid)

    def close(self) -> None:
        """SIGTERM, and wait."""
        self._end.set()
        self.process.terminate()
        self.process.wait(30)
        self._watch.join()

    def _sample(self) -> None:
        while not self._end.wait(0.05):
            self.peak_rss_mb = peak_mb(self.process.pid) or self.peak_rss_mb


def cpu_s(pid: int) -> float:
    """Return the user and system seconds of a process so far, 0 when it is gone (proc(5), stat)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def pipeline(rig: Rig, environment: dict[str, str] | None = None) -> Child:
    """Start `cdc run`, the rig's own or that of another environment."""
    command = [sys.executable, "-m", "cdc", "run", "--log-format", "json"]
    return Child(command, environment or rig.environment, rig.stack.postgres.folder / "cdc.log")
