"""Run a command as a process of its own, and see how long it took and how much memory it held at most."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.pipeline import Pipeline, environment

SAMPLED_EVERY_S = 0.05


@dataclass(frozen=True, slots=True)
class Measured:
    """How a command ended, what its last line said, and what it cost."""

    code: int
    document: dict[str, Any]
    seconds: float
    peak_mb: float


def measured(pipeline: Pipeline, *command: str) -> Measured:
    """Run `cdc COMMAND --json` of a pipeline."""
    began, peak = time.monotonic(), 0.0
    whole = [sys.executable, "-m", "cdc", *command, "--json", "--config", str(pipeline.write())]
    with subprocess.Popen(whole, stdout=subprocess.PIPE, text=True, env=environment()) as process:
        while process.poll() is None:
            peak = max(peak, peak_mb(process.pid))
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(SAMPLED_EVERY_S)
        seconds = time.monotonic() - began
        assert process.stdout is not None
        lines = process.stdout.read().splitlines()
    return Measured(process.returncode, json.loads(lines[-1]) if lines else {}, round(seconds, 1), round(peak))


def peak_mb(pid: int) -> float:
    """Return the most memory that a process has held so far (proc(5), status); 0 when it has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return 0.0
