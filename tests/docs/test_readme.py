"""The README's quick start works, step by step, as it stands there; only addresses and names are our own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cdc.devstack.postgres import client
from tests.docs.pages import ROOT, blocks
from tests.pipeline import environment

README = ROOT / "README.md"


@pytest.mark.servers
def test_the_quick_start(tmp_path: Path, database: str, kafka: str, unique: str) -> None:
    own = {
        '"postgresql://postgres@127.0.0.1:5432/shop"': f'"{database}"',
        "127.0.0.1:9092": kafka,
        'name = "shop"': f'name = "{unique}"',
        "outbox.event.Order": f"outbox.event.{unique}",
        "'Order'": f"'{unique}'",
        '"reader"': f'"{unique}"',
    }
    script = ["set -e", "trap 'kill %1 && wait %1' EXIT"]
    for block in blocks(README):
        text = block.text
        for theirs, ours in own.items():
            text = text.replace(theirs, ours)
        if block.mark.startswith("file: "):
            file = tmp_path / block.mark.removeprefix("file: ")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        elif block.mark == "run":
            script.append(text.replace("cdc run &", "cdc run 2>run.log &"))
    programs = os.pathsep.join([str(Path(sys.executable).parent), str(Path(client("psql")).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
        env={**environment(), "PATH": programs, "CDC_HTTP__LISTEN": "off"},
    )
    log = tmp_path / "run.log"
    assert done.returncode == 0, done.stdout + done.stderr + (log.read_text() if log.exists() else "")
    expected = [block.text for block in blocks(README) if block.language == "text"][-1]
    assert done.stdout.endswith(expected)
