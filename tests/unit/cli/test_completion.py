"""The shell completes commands, their commands and options: by the words that each shell sends, and in a real bash."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cdc.cli import main

BASH = """
eval "$(_CDC_COMPLETE=source_bash cdc)"
COMP_WORDS=(cdc slot re) COMP_CWORD=2
_cdc_completion cdc
echo "${COMPREPLY[*]}"
complete -p cdc
"""


def completed(shell: str, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    words = line.split(" ")
    for name, value in {
        "_CDC_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
        "_TYPER_COMPLETE_ARGS": line,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as left:
        main([])
    assert left.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize(
    ("line", "found"),
    [("cdc st", "status"), ("cdc slot re", "rewind"), ("cdc run --log-f", "--log-format"), ("cdc run --log-format js", "json")],
)
def test_what_is_offered(shell: str, line: str, found: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert found in completed(shell, line, monkeypatch, capsys)


def test_a_real_bash() -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(["bash", "-c", BASH], check=True, capture_output=True, text=True, timeout=60, env={**os.environ, "PATH": path})
    assert done.stdout.splitlines()[0] == "rewind"
    assert "_cdc_completion" in done.stdout
