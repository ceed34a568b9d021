"""What the servers have in common: a folder, a process, and a life of start, stop, kill, freeze, restart and close."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from cdc.devstack.process import KILL_TIMEOUT_S, end, held_ports, kill, port_of, start_time, state_of, wait_ready
from cdc.errors import CdcError

OWNER = "owner"
"""The file in a temporary folder that says whose it is: pid and start."""


class Server(ABC):
    """One server process on loopback.

    `start` makes what its folder lacks, `stop` leaves the folder, and `close` removes it when it was temporary. A server
    that dies with us ends when the thread that started it ends, whatever ends it; another one stays until it is stopped.
    """

    NAME: ClassVar[str]
    START_TIMEOUT_S: ClassVar[float] = 60.0
    STOP_TIMEOUT_S: ClassVar[float] = 30.0
    STOP_SIGNAL: ClassVar[signal.Signals] = signal.SIGTERM

    def __init__(self, folder: Path | None, *, dies_with_us: bool) -> None:
        self._temporary = folder is None
        self.folder = _temporary_folder(f"cdc-{self.NAME.lower()}-", owned=dies_with_us) if folder is None else folder.absolute()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.log = self.folder / f"{self.NAME.lower()}.log"
        self._dies_with_us = dies_with_us
        self._process: subprocess.Popen[bytes] | None = None
        self._held: list[socket.socket] = []

    def _own_ports(self, count: int) -> list[int]:
        """Return free ports that stay ours until `close`, also while the server is down."""
        self._held = held_ports(count)
        return [port_of(each) for each in self._held]

    @abstractmethod
    def prepare(self) -> None:
        """Make what the folder lacks: the slow part of a first start, which any thread may do."""

    @abstractmethod
    def _launch(self) -> subprocess.Popen[bytes]:
        """Start the process."""

    @abstractmethod
    def _ready(self) -> bool:
        """Whether it answers a client."""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """Its pid, or None while it is down."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    @property
    def started(self) -> int | None:
        """When it started, in clock ticks since boot, or None while it is down."""
        return None if self.pid is None else start_time(self.pid)

    def start(self) -> None:
        """Start it and wait until it answers; nothing to do when it runs."""
        if self.pid is None:
            self.prepare()
            self.launch()
            self.wait()

    def launch(self) -> None:
        """Start the process of a server that is prepared, and do not wait for it."""
        self._process = self._launch()

    def wait(self) -> None:
        """Wait until it answers a client."""
        if self._process is None:
            msg = f"{self.NAME} was not started"
            raise CdcError(msg)
        wait_ready(self._process, self._ready, self.START_TIMEOUT_S, self.NAME, self.log)

    def kill(self) -> None:
        """SIGKILL it and its children, and return when they are gone."""
        if self._process is not None:
            kill(self._process)

    def freeze(self) -> None:
        """SIGSTOP: it keeps its connections and answers nobody."""
        if self._process is not None and self.pid is not None:
            self._process.send_signal(signal.SIGSTOP)
            wait_ready(self._process, lambda: state_of(self.pid or 0) == "T", KILL_TIMEOUT_S, f"{self.NAME}'s stop", self.log)

    def thaw(self) -> None:
        """SIGCONT after `freeze`."""
        if self._process is not None and self.pid is not None:
            self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End it; a temporary one in the quickest way, and its folder goes with it."""
        if self._temporary:
            self.kill()
            shutil.rmtree(self.folder, ignore_errors=True)
        else:
            self._end(self.STOP_SIGNAL)
        for each in self._held:
            each.close()

    def _end(self, signal_number: int) -> None:
        if self._process is not None:
            self.thaw()
            end(self._process, signal_number, self.STOP_TIMEOUT_S)


def _temporary_folder(prefix: str, *, owned: bool) -> Path:
    """Make a temporary folder, and remove those whose owner was killed before it could: data of servers that died with it."""
    for old in Path(tempfile.gettempdir()).glob(f"{prefix}*/{OWNER}"):
        with contextlib.suppress(OSError, ValueError):
            pid, started = map(int, old.read_text().split())
            if start_time(pid) != started:
                shutil.rmtree(old.parent, ignore_errors=True)  # others may be at it too: each goes on where the other was first
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    if owned:
        (folder / OWNER).write_text(f"{os.getpid()} {start_time(os.getpid())}")
    return folder
