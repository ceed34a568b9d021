"""The pipeline as a child process, to be killed and started again."""

from __future__ import annotations

import http.client
import signal
import subprocess
import sys
from pathlib import Path

from cdc.devstack.process import LOOPBACK, end, kill, start, wait_ready

READY_WITHIN_S = 60.0
STOP_WITHIN_S = 30.0


class PipelineProcess:
    """`cdc run` with a configuration file; its log goes to a file beside that."""

    def __init__(self, config: Path, port: int) -> None:
        self._config = config
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None
        self.log = config.with_name("pipeline.log")
        self.kills = 0

    def __repr__(self) -> str:
        return f"<PipelineProcess pid={self._process and self._process.pid} kills={self.kills}>"

    def start(self) -> None:
        """Start it; from the main thread, because it dies with the thread that started it."""
        command: list[str | Path] = [sys.executable, "-m", "cdc", "run", "--config", self._config, "--log-format", "json"]
        self._process = start(command, self.log, dies_with_us=True)

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

    @property
    def exit_code(self) -> int | None:
        """How it ended by itself, or None while it runs."""
        return None if self._process is None else self._process.poll()

    def kill(self) -> None:
        """SIGKILL it, at whatever instruction it is."""
        if self._process is not None and self._process.poll() is None:
            kill(self._process)
            self.kills += 1

    def stop(self) -> None:
        """Stop it as an operator does."""
        if self._process is not None:
            end(self._process, signal.SIGTERM, STOP_WITHIN_S)
