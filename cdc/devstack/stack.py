"""Both servers together: for a test run or a demo they die with us, for development they stay until they are told to stop."""

from __future__ import annotations

import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from cdc.devstack.jars import cache_dir
from cdc.devstack.kafka import KafkaBroker
from cdc.devstack.postgres import PostgresServer

STOP_TIMEOUT_S = 30.0


class Stack:
    """A PostgreSQL and a Kafka, started side by side."""

    def __init__(self, folder: Path | None = None, *, dies_with_us: bool = True) -> None:
        self.postgres = PostgresServer(folder and folder / "postgres", dies_with_us=dies_with_us)
        self.kafka = KafkaBroker(folder and folder / "kafka", dies_with_us=dies_with_us)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def start(self) -> None:
        """Start both; when one does not come up, stop the other one."""
        try:
            if self.postgres._dies_with_us:  # noqa: SLF001 - the kernel's death signal follows the thread that started a child
                self.postgres.start()
                self.kafka.start()
                return
            with ThreadPoolExecutor(2) as pool:
                for started in [pool.submit(self.postgres.start), pool.submit(self.kafka.start)]:
                    started.result()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop both."""
        self.kafka.close()
        self.postgres.close()


@dataclass(frozen=True, slots=True)
class Running:
    """Servers that stay: their addresses and pids, with the start time that tells a pid from a later one."""

    postgres_dsn: str
    bootstrap_servers: str
    postgres_pid: int
    kafka_pid: int
    started: dict[str, int]


def state_folder(name: str = "dev") -> Path:
    """Return the folder of the servers that stay."""
    return cache_dir() / name


def up(folder: Path) -> Running:
    """Start servers that survive us, unless they run already."""
    running = status(folder)
    if running is not None:
        return running
    stack = Stack(folder, dies_with_us=False)
    stack.start()
    pids = (stack.postgres.pid or 0, stack.kafka.pid or 0)
    running = Running(
        stack.postgres.dsn(),
        stack.kafka.bootstrap_servers,
        *pids,
        {str(pid): _start_time(pid) or 0 for pid in pids},
    )
    (folder / "running.json").write_text(json.dumps(asdict(running)))
    return running


def status(folder: Path) -> Running | None:
    """Return the servers of a folder if both still run."""
    running = _recorded(folder)
    return running if running is not None and len(_alive(running)) == len(running.started) else None


def down(folder: Path) -> list[int]:
    """Stop the servers of a folder, by their own pids; return those that were stopped."""
    running = _recorded(folder)
    if running is None:
        return []
    alive = _alive(running)
    for pid in alive:
        os.kill(pid, signal.SIGINT if pid == running.postgres_pid else signal.SIGTERM)
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while _alive(running) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid in _alive(running):
        os.kill(pid, signal.SIGKILL)
    (folder / "running.json").unlink()
    return alive


def _recorded(folder: Path) -> Running | None:
    path = folder / "running.json"
    return Running(**json.loads(path.read_text())) if path.exists() else None


def _alive(running: Running) -> list[int]:
    return [int(pid) for pid, started in running.started.items() if _start_time(int(pid)) == started]


def _start_time(pid: int) -> int | None:
    """Start of a process in clock ticks since boot (proc(5), field 22 of stat), or None when it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[19])
