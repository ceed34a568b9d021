"""Two instances of the pipeline, started anew whenever one ends: what an init system or an orchestrator does."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Collection
from types import TracebackType
from typing import Self

from tests.pipeline import Pipeline
from tests.waiting import wait_for

RESTART_S = 1.0
"""Between an end and the next start, as init systems wait."""

EXCUSED_S = 30.0
"""How long after a fault an instance may still end with a code that the fault allows: it may only just have started."""


class Keeper:
    """Whoever waits for something while instances are kept waits with `wait`, which looks after them meanwhile."""

    def __init__(self, pipeline: Pipeline, chance: random.Random) -> None:
        self._pipeline = pipeline
        self._chance = chance
        self._ports = (pipeline.port, pipeline.another_port())
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._start_at = dict.fromkeys(self._ports, 0.0)
        self._allowed: dict[int, float] = {}
        self.codes = Counter[int]()
        self.findings: list[str] = []

    def __repr__(self) -> str:
        return f"<Keeper {self.owner} codes={dict(self.codes)}>"

    def __enter__(self) -> Self:
        self.tend()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for process in self._running.values():
            self._pipeline.kill(process)

    def tend(self) -> None:
        """Start those that are down, and note how they ended."""
        now = time.monotonic()
        for port in self._ports:
            process = self._running.get(port)
            if process is not None and process.poll() is not None:
                self._ended(process, now)
                del self._running[port]
                self._start_at[port] = now + RESTART_S
            elif process is None and now >= self._start_at[port]:
                self._running[port] = self._pipeline.start(port=port)

    def _ended(self, process: subprocess.Popen[bytes], now: float) -> None:
        code = process.returncode
        self.codes[code] += 1
        if now > self._allowed.get(code, 0.0):
            self.findings.append(f"an instance ended with {code}: {self._pipeline.log_of(process).splitlines()[-1][:500]}")

    def allow(self, *codes: int) -> None:
        """Say how instances may end by what is done to them now."""
        self._allowed |= dict.fromkeys(codes, time.monotonic() + EXCUSED_S)

    def wait(self, fact: Callable[[], object], deadline_s: float, what: str) -> None:
        """Wait for a fact; instances are looked after meanwhile."""

        def tended() -> object:
            self.tend()
            return fact()

        wait_for(tended, deadline_s, what)

    def spend(self, seconds: float) -> None:
        """Let time pass: for how long a fault lasts, and until the next one."""
        end = time.monotonic() + seconds
        self.wait(lambda: time.monotonic() >= end, seconds + 60, "time")

    @property
    def owner(self) -> int | None:
        """The port of the instance that streams."""
        return next((port for port in self._running if self._pipeline.ready(port)), None)

    def streams(self, but: int | None = None) -> bool:
        """Whether one of them does, other than `but`, which is frozen and answers nobody."""
        return any(self._pipeline.ready(port) for port in self._running if port != but)

    def pick(self) -> int:
        """Return the port of the owner, or of any that runs."""
        self.wait(lambda: self._running, 10, "an instance runs")
        return self.owner or self._chance.choice([*self._running])

    def signal(self, port: int, number: signal.Signals) -> subprocess.Popen[bytes]:
        """Send a signal to one of them."""
        process = self._running[port]
        process.send_signal(number)
        return process

    def kill(self, ports: Collection[int] | None = None) -> None:
        """SIGKILL, to all of them if none is named."""
        self.allow(-signal.SIGKILL)
        for port in [*self._running] if ports is None else ports:
            self._pipeline.kill(self._running[port])

    def stop(self) -> None:
        """SIGTERM to all; each must end with 0."""
        for process in self._running.values():
            code = self._pipeline.terminate(process)
            self.codes[code] += 1
            if code != 0:
                self.findings.append(f"an instance that was asked to stop ended with {code}")
        self._running.clear()
