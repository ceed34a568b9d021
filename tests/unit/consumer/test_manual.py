"""`help(cdc.consumer)` reads like a manual: it names all that can be set, and the first example of the pages is well typed."""

from __future__ import annotations

import inspect
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import cdc.consumer
from cdc.consumer import Consumer
from tests.docs.pages import blocks

ROOT = Path(__file__).parents[3]


def test_help_names_every_setting() -> None:
    manual = cdc.consumer.__doc__ or ""
    for function in (Consumer.__init__, Consumer.on, Consumer.breaker):
        for name in inspect.signature(function).parameters:
            if name not in {"self", "name", "event"}:
                assert name in manual, name
    for name in ("Unprocessable", "TryAgain", "idempotency_key", "newer_applied", "create_tables", "resource(", "context()", "Event["):
        assert name in manual


@pytest.mark.soak
def test_a_users_project_passes_mypy_strict(tmp_path: Path) -> None:
    [example, *_] = [block.text for block in blocks(ROOT / "docs" / "consuming.md") if block.language == "python"]
    sample = tmp_path / "inventory.py"
    sample.write_text(example)
    project = [shutil.copy(source, tmp_path) for source in (ROOT / "tests" / "sample").glob("*.py")]
    # An installed package is read for its types and not judged: its clients of brokers without types are no matter of the user's.
    options = ["--strict", "--follow-imports=silent", "--cache-dir", str(tmp_path / "cache")]
    command = [sys.executable, "-m", "mypy", *options, str(sample), *map(str, project)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "MYPYPATH": str(ROOT)})
    assert done.returncode == 0, done.stdout
