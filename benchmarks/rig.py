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

from cdc import app
from cdc.audit.init import init
from cdc.cli.init import plan_of
from cdc.devstack.stack import Stack
from cdc.settings import Settings, load

SCHEMAS = Path(__file__).parent.parent / "schemas"

NAME = "bench"

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

    def insert(self, rows: int, per_transaction: int) -> None:
        """Write a backlog: `rows` in transactions of `per_transaction`."""
        self.execute(
            f"DO $$ BEGIN FOR batch IN 0..{rows // per_transaction - 1} LOOP INSERT INTO outbox (aggregatetype, aggregateid, type, payload)"
            f" SELECT 'order', 'customer-' || i % 1000, 'OrderPlaced', ({PAYLOAD})::jsonb"
            f" FROM generate_series(batch * {per_transaction} + 1, (batch + 1) * {per_transaction}) i; COMMIT; END LOOP; END $$"
        )


@contextmanager
def rig(settings: dict[str, str] | None = None) -> Iterator[Rig]:
    """Start the servers and set the pipeline up."""
    with Stack() as stack:
        environment = {
            "CDC_NAME": NAME,
            "CDC_POSTGRES__DSN": stack.postgres.dsn(),
            "CDC_KAFKA__BOOTSTRAP_SERVERS": stack.kafka.bootstrap_servers,
            "CDC_SCHEMAS__FOLDER": str(SCHEMAS),
            "CDC_TOPICS__CREATE": "{ partitions = 6, replication_factor = 1 }",
            "CDC_HTTP__LISTEN": "off",
            **(settings or {}),
        }
        loaded = load(None, (), environment)
        publisher = app.publisher(loaded)
        init(plan_of(loaded, create_table=True, skip=False), publisher, time.time_ns() // 1000, lambda _: None)
        publisher.close()
        yield Rig(stack, loaded, environment)


class Child:
    """A measured process: its CPU seconds and its peak RSS."""

    def __init__(self, command: list[str], environment: dict[str, str], log: Path) -> None:
        with log.open("ab") as output:
            self.process = subprocess.Popen(command, env={**os.environ, **environment}, stdout=output, stderr=output)
        self.peak_rss_mb = 0.0
        self._end = threading.Event()
        self._watch = threading.Thread(target=self._sample, daemon=True)
        self._watch.start()

    def cpu_s(self) -> float:
        """User and system seconds so far (proc(5), stat)."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        """SIGTERM, and wait."""
        self._end.set()
        self.process.terminate()
        self.process.wait(30)
        self._watch.join()

    def _sample(self) -> None:
        while not self._end.wait(0.05):
            try:
                status = Path(f"/proc/{self.process.pid}/status").read_text()
            except OSError:
                return
            for line in status.splitlines():
                if line.startswith("VmHWM:"):
                    self.peak_rss_mb = int(line.split()[1]) / 1024


def pipeline(rig: Rig) -> Child:
    """Start `cdc run`."""
    return Child([sys.executable, "-m", "cdc", "run", "--log-format", "json"], rig.environment, rig.stack.postgres.folder / "cdc.log")
