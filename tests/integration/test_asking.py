"""Commands that change something say what they would do, and ask, where there is somebody to answer."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

from tests.integration.test_recover import drop_slot, recovered, state
from tests.pipeline import Pipeline, environment

pytestmark = pytest.mark.servers

INTERRUPTED = 130


def on_a_terminal(pipeline: Pipeline, answer: str, *command: str) -> tuple[int, str]:
    """Run a command on a terminal, and type an answer."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "cdc", *command, "--config", str(pipeline.write())],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**environment(), "TERM": "dumb"},
    )
    os.close(theirs)
    shown = b""
    try:
        while b"[y/N]" not in shown:
            shown += os.read(ours, 4096)
        os.write(ours, answer.encode() + b"\n")
        while True:
            shown += os.read(ours, 4096)
    except OSError:  # the other side has ended
        pass
    finally:
        os.close(ours)
    return process.wait(30), shown.decode(errors="replace")


def test_no_changes_nothing_and_yes_does_it(pipeline: Pipeline) -> None:
    pipeline.init()
    pipeline.insert(1, 3)
    drop_slot(pipeline)
    before = state(pipeline)
    code, shown = on_a_terminal(pipeline, "n", "recover")
    assert code == INTERRUPTED
    assert "3 are published now" in shown
    assert state(pipeline) == before
    code, shown = on_a_terminal(pipeline, "y", "recover")
    assert code == 0, shown
    assert "done: 3 events" in shown
    assert pipeline.numbers() == [1, 2, 3]


def test_servers_that_are_away_are_given_up_in_time(pipeline: Pipeline) -> None:
    pipeline.init()
    drop_slot(pipeline)
    no_kafka = pipeline.here("recover", "--timeout", "1", "--set", 'kafka."bootstrap.servers"=127.0.0.1:1')
    assert (no_kafka.code, "gave up after 1 s" in no_kafka.line) == (5, True)
    no_postgres = pipeline.here("recover", "--timeout", "1", "--set", "postgres.dsn=postgresql://postgres@127.0.0.1:1/shop")
    assert (no_postgres.code, "gave up after 1 s" in no_postgres.line) == (3, True)
    assert pipeline.here("slot", "list", "--timeout", "1", "--set", "postgres.dsn=postgresql://postgres@127.0.0.1:1/shop").code == 3
    assert recovered(pipeline)["published"] == 0
