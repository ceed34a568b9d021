"""A page of the manual, played as it stands there: its files are written, its commands run; only addresses and names are our own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from cdc.devstack.postgres import client
from tests.docs.pages import Block
from tests.pipeline import environment

LOG = "run.log"
"""Where what runs beside the commands logs to."""


def addresses(database: str, kafka: str) -> dict[str, str]:
    """Return the pages' addresses of servers, and ours in their place."""
    return {'"postgresql://postgres@127.0.0.1:5432/shop"': f'"{database}"', "127.0.0.1:9092": kafka}


def as_written(page: Sequence[Block], own: Mapping[str, str], folder: Path) -> str:
    """Write the page's files and run its commands in a folder; return what they printed."""
    write_files(page, own, folder)
    return play(page, own, folder)


def write_files(page: Iterable[Block], own: Mapping[str, str], folder: Path) -> None:
    """Write the files that the page shows, with our own words in the place of some of theirs."""
    for block in page:
        if block.mark.startswith("file: "):
            file = folder / block.mark.removeprefix("file: ")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(_ours(block.text, own), encoding="utf-8")


def play(page: Iterable[Block], own: Mapping[str, str], folder: Path, *first: str) -> str:
    """Run these commands and the page's in a folder, in one shell; return what they printed. All must succeed."""
    script = ["set -e", "trap 'kill $(jobs -p) && wait' EXIT", *first]
    script += [_ours(block.text, own).replace(" &\n", f" 2>>{LOG} &\n") for block in page if block.mark == "run"]
    path = os.pathsep.join([str(Path(sys.executable).parent), str(Path(client("psql")).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)],
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
        cwd=folder,
        env={**environment(), "PATH": path, "CDC_HTTP__LISTEN": "off"},
    )
    log = folder / LOG
    assert done.returncode == 0, done.stdout + done.stderr + (log.read_text() if log.exists() else "")
    return done.stdout


def _ours(text: str, own: Mapping[str, str]) -> str:
    for theirs, ours in own.items():
        text = text.replace(theirs, ours)
    return text
