"""`--shards N`: a command for every shard of a pipeline, and `cdc run` as so many processes under one.

Strategy: each shard is a process of its own with the settings of its own, so one core each, and nothing is shared that could
fail for all. The parent only watches: when one child ends, whatever the reason, the others are stopped and the parent ends with
its code, so that whoever restarts the parent restarts them all. A child stops when its parent is gone, however that went: it
holds the reading end of a pipe whose writing end dies with the parent.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from cdc.cli.options import settings_from
from cdc.settings import Settings

Shards = Annotated[
    int | None,
    typer.Option(
        "--shards", metavar="N", min=1, help="For all N shards of the pipeline: keys divided by their hash, see the setting `shard`."
    ),
]
"""`shards: Shards = None`."""

LOOK_S = 0.1
"""How soon the end of a child is noticed."""

PARENT = "_CDC_PARENT_FD"
"""Names, to a child, the end of the pipe that tells when the parent is gone. What begins with CDC_ would be a setting."""


def each(config: Path | None, sets: Sequence[str] | None, shards: int | None) -> list[Settings]:
    """Return the settings of each shard, or those of the pipeline as it is when no number is given."""
    if shards is None:
        return [settings_from(config, list(sets or ()))]
    return [settings_from(config, [*(sets or ()), f"shard={number}/{shards}"]) for number in range(shards)]


def run_all(arguments: Sequence[str], shards: int) -> int:
    """Run `cdc run` with these arguments once for each shard, until SIGTERM or until one of them ends; return the exit code."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    reading, writing = os.pipe()
    children: list[subprocess.Popen[bytes]] = []
    try:
        for shard in range(shards):
            command = [sys.executable, "-m", "cdc", "run", *arguments, "--set", f"shard={shard}/{shards}"]
            environment = {**os.environ, PARENT: str(reading)}
            children.append(subprocess.Popen(command, env=environment, pass_fds=(reading,), start_new_session=True))  # noqa: S603 - ourselves
        while not stop.is_set() and all(child.poll() is None for child in children):
            stop.wait(LOOK_S)
        ended = [child.returncode for child in children if child.returncode is not None]
    finally:
        for child in children:
            child.terminate()
        codes = [child.wait() for child in children]
        os.close(writing)
        os.close(reading)
    code = next((code for code in [*ended, *codes] if code), 0)
    return code if code >= 0 else 128 - code


def stop_with_parent(stop: threading.Event) -> None:
    """In a child of `run_all`: set `stop` when the parent is gone."""
    number = os.environ.get(PARENT)
    if number is None:
        return

    def wait() -> None:
        os.read(int(number), 1)
        stop.set()

    threading.Thread(target=wait, name="cdc-parent", daemon=True).start()
