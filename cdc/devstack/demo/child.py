"""The demo's processes: the pipelines and the shop's services, to be killed and started again."""

from __future__ import annotations

import http.client
import signal
import subprocess
import sys
from pathlib import Path

from cdc.devstack.process import LOOPBACK, accepts, end, kill, start, wait_ready

READY_WITHIN_S = 60.0
STOP_WITHIN_S = 30.0


class Child:
    """A Python process whose log goes to a file."""

    def __init__(self, name: str, arguments: list[str | Path], log: Path) -> None:
        self._name = name
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None
        self.log = log
        self.kills = 0

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name} pid={self._process and self._process.pid} kills={self.kills}>"

    def start(self) -> None:
        """Start it; from the main thread, because it dies with the thread that started it."""
        self._process = start([sys.executable, "-m", *self._arguments], self.log, dies_with_us=True)

    @property
    def exit_code(self) -> int | None:
        """How it ended by itself, or None while it runs."""
        return None if self._process is None else self._process.poll()

    def kill(self) -> None:
        """SIGKILL it, at whatever instruction it is."""
        if self._process is not None and self._process.poll() is None:
            kill(self._process)
            self.kills += 1

    def ask_to_end(self) -> None:
        """Tell it to end, and do not wait for it."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()

    def stop(self) -> None:
        """Stop it as an operator does."""
        if self._process is not None:
            end(self._process, signal.SIGTERM, STOP_WITHIN_S)


class PipelineProcess(Child):
    """`cdc run` with a configuration file; its log goes to a file beside that."""

    def __init__(self, config: Path, port: int) -> None:
        super().__init__("pipeline", ["cdc", "run", "--config", config, "--log-format", "json"], config.with_suffix(".log"))
        self._port = port

    def wait_up(self) -> None:
        """Wait until it streams."""
        assert self._process is not None, "started"
        wait_ready(self._process, self._streams, READY_WITHIN_S, "the pipeline", self.log)

    def _streams(self) -> bool:
        client = http.client.HTTPConnection(LOOPBACK, self._port, timeout=1)
        try:
            client.request("GET", "/health/ready")
            return client.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            client.close()


class Service(Child):
    """A service of the shop; `place` is the file that tells it where everything is."""

    def __init__(self, name: str, place: Path) -> None:
        super().__init__(name, ["cdc.devstack.demo.shop", name, place], place.with_name(f"shop-{name}.log"))
        self.name = name

    def wait_listening(self, port: int) -> None:
        """Wait until it takes connections."""
        assert self._process is not None, "started"
        wait_ready(self._process, lambda: accepts(port), READY_WITHIN_S, f"the shop's {self.name}", self.log)
