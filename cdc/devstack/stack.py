"""The servers together: for a test run or a demo they die with us, for development they stay until they are told to stop."""

from __future__ import annotations

import json
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from cdc.devstack.kafka import KafkaBroker
from cdc.devstack.postgres import PostgresServer, open_cache
from cdc.devstack.process import accepts, send, start_time, wait_gone
from cdc.devstack.server import Server

STOP_TIMEOUT_S = 30.0


class Stack:
    """A PostgreSQL and a Kafka, started side by side; or another `broker` in its place, which dies with us."""

    def __init__(
        self,
        folder: Path | None = None,
        *,
        dies_with_us: bool = True,
        postgres_port: int | None = None,
        kafka_ports: tuple[int, int] | None = None,
        broker: Server | None = None,
    ) -> None:
        self.postgres = PostgresServer(folder and folder / "postgres", port=postgres_port, dies_with_us=dies_with_us)
        self.broker = broker or KafkaBroker(folder and folder / "kafka", ports=kafka_ports, dies_with_us=dies_with_us)

    @property
    def kafka(self) -> KafkaBroker:
        """The broker, where it is Kafka."""
        assert isinstance(self.broker, KafkaBroker), "started with another broker"
        return self.broker

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def start(self) -> None:
        """Start both; when one does not come up, stop the other one."""
        servers: tuple[Server, ...] = (self.postgres, self.broker)
        try:
            with ThreadPoolExecutor(len(servers)) as pool:
                list(pool.map(lambda server: server.prepare(), servers))
            for server in servers:  # not in the pool: a server that dies with us dies with the thread that started it
                server.launch()
            for server in servers:
                server.wait()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End both; temporary folders go with them."""
        self.broker.close()
        self.postgres.close()


@dataclass(frozen=True, slots=True)
class Running:
    """Servers that stay: their addresses, ports and pids, with the start times that tell a pid from a later one."""

    postgres_dsn: str
    bootstrap_servers: str
    postgres_pid: int
    kafka_pid: int
    postgres_started: int
    kafka_started: int
    postgres_port: int
    kafka_ports: tuple[int, int]

    @property
    def processes(self) -> dict[int, int]:
        """Pids and start times; PostgreSQL's first."""
        return {self.postgres_pid: self.postgres_started, self.kafka_pid: self.kafka_started}

    @property
    def alive(self) -> list[int]:
        """The pids of those that still run."""
        return [pid for pid, started in self.processes.items() if start_time(pid) == started]


def state_folder(name: str = "dev") -> Path:
    """Return the folder of the servers that stay."""
    return open_cache() / name


def up(folder: Path) -> Running:
    """Start servers that survive us, unless they run already; on the ports they had before if those are free."""
    folder = folder.absolute()
    running = status(folder)
    if running is not None:
        return running
    down(folder)  # one of the two may be left
    before = _recorded(folder)
    stack = Stack(
        folder,
        dies_with_us=False,
        postgres_port=before.postgres_port if before and not accepts(before.postgres_port) else None,
        kafka_ports=before.kafka_ports if before and not any(map(accepts, before.kafka_ports)) else None,
    )
    stack.start()
    return record(stack, folder)


def record(stack: Stack, folder: Path) -> Running:
    """Write down servers that stay, for `status` and `down`."""
    running = Running(
        stack.postgres.dsn(),
        stack.kafka.bootstrap_servers,
        stack.postgres.pid or 0,
        stack.kafka.pid or 0,
        stack.postgres.started or 0,
        stack.kafka.started or 0,
        stack.postgres.port,
        (stack.kafka.port, stack.kafka.controller_port),
    )
    (folder / "running.json").write_text(json.dumps(asdict(running)))
    return running


def status(folder: Path) -> Running | None:
    """Return the servers of a folder if both still run."""
    running = _recorded(folder)
    return running if running is not None and len(running.alive) == len(running.processes) else None


def down(folder: Path) -> list[int]:
    """Stop the servers of a folder, by their own pids; return those that were stopped."""
    running = _recorded(folder)
    if running is None:
        return []
    alive = running.alive
    for pid in alive:
        send(pid, running.processes[pid], signal.SIGINT if pid == running.postgres_pid else signal.SIGTERM)
    for pid in wait_gone(running.processes.items(), STOP_TIMEOUT_S):
        send(pid, running.processes[pid], signal.SIGKILL)
    return alive


def _recorded(folder: Path) -> Running | None:
    try:
        document = json.loads((folder / "running.json").read_text())
        return Running(**{**document, "kafka_ports": tuple(document["kafka_ports"])})
    except (OSError, ValueError, KeyError, TypeError):
        return None  # none, or written by another version
