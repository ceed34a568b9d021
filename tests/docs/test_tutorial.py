"""The tutorial works as it stands there; only addresses and names are our own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks
from tests.pipeline import environment


@pytest.mark.servers
def test_two_listeners_and_a_kill(tmp_path: Path, database: str, kafka: str, unique: str) -> None:
    own = {
        '"postgresql://postgres@127.0.0.1:5432/shop"': f'"{database}"',
        "127.0.0.1:9092": kafka,
        'name = "users"': f'name = "{unique}"',
        "outbox.event.User": f"outbox.event.{unique}",
        'aggregatetype = "User"': f'aggregatetype = "{unique}"',
        '"welcome",': f'"{unique}-welcome",',
        '"loyalty",': f'"{unique}-loyalty",',
    }
    script = ["set -e", "trap 'kill $(jobs -p) && wait' EXIT"]
    page = blocks(ROOT / "docs" / "tutorial.md")
    for block in page:
        text = block.text
        for theirs, ours in own.items():
            text = text.replace(theirs, ours)
        if block.mark.startswith("file: "):
            file = tmp_path / block.mark.removeprefix("file: ")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        elif block.mark == "run":
            script.append(text.replace(" &\n", " 2>>run.log &\n"))
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)],
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
        cwd=tmp_path,
        env={**environment(), "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]), "CDC_HTTP__LISTEN": "off"},
    )
    log = tmp_path / "run.log"
    assert done.returncode == 0, done.stdout + done.stderr + (log.read_text() if log.exists() else "")
    assert done.stdout.endswith([block.text for block in page if block.language == "text"][-1]), done.stdout
