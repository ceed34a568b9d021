"""Commands that change the position, killed at each of their steps and run again, with instances that wait meanwhile."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from cdc.outbox.mapping import OutboxMapping
from cdc.outbox.table import create_sql
from cdc.postgres.slot import Table
from tests.crash.step import KILLED
from tests.integration.test_recover import recovered, verified
from tests.pipeline import Pipeline, environment, sizes
from tests.waiting import wait_for

pytestmark = pytest.mark.servers

PUBLISHER, SLOT = "cdc.kafka.publisher:KafkaPublisher", "cdc.postgres.slot:Administration"

Step = tuple[str, int, str]

HELD: list[Step] = [
    (f"{PUBLISHER}.commit", 1, "before"),
    (f"{PUBLISHER}.commit", 1, "after"),
    ("cdc.audit.hold:free", 1, "after"),
    (f"{SLOT}.drop_slot", 1, "after"),
]
"""Steps that every command under a hold has."""


def killed(pipeline: Pipeline, step: Step, *command: str) -> None:
    """Run a command until it kills itself."""
    arguments = [sys.executable, "-m", "tests.crash.step", step[0], str(step[1]), step[2], *command, "--config", str(pipeline.write())]
    done = subprocess.run(arguments, check=False, capture_output=True, text=True, timeout=90, env=environment())
    assert done.returncode == KILLED, (step, done.stderr)


def hold_of(pipeline: Pipeline) -> str | None:
    found: str | None = json.loads(pipeline.events(pipeline.position_topic)[-1].value or b"").get("hold")
    return found


RECOVER: list[Step] = [
    *HELD,
    ("cdc.kafka.subscriber:Subscriber.settle", 2, "before"),
    (f"{PUBLISHER}.produce", 2, "after"),
    (f"{PUBLISHER}.commit", 2, "before"),
    (f"{PUBLISHER}.commit", 2, "after"),
]


@sizes([RECOVER[1], RECOVER[3], RECOVER[5], RECOVER[-1]], RECOVER)
def test_recover_killed_at_each_step_ends_in_the_same_clean_state(pipeline: Pipeline, size: list[Step]) -> None:
    pipeline.init()
    pipeline.started()
    total = 0
    for step in size:
        pipeline.insert(total, total + 4)
        pipeline.wait_numbers(range(total + 5))
        pipeline.wait_confirmed()
        pipeline.stop()
        pipeline.insert(total + 5, total + 9)
        pipeline.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", (pipeline.slot_name,))
        killed(pipeline, step, "recover")
        held = hold_of(pipeline)
        if held is not None:
            pipeline.start()
            wait_for(lambda: pipeline.get("/health/ready")[1].startswith("held"), 30, "an instance waits for the command")
        again = recovered(pipeline)
        ended = step == RECOVER[-1]
        assert again.get("published") == (None if ended else 5), step
        if held is None:
            pipeline.start()
        pipeline.wait_ready()
        total += 10
        pipeline.wait_numbers(range(total))
        assert verified(pipeline) == {"rows": total, "events": total}, step
        assert hold_of(pipeline) is None


REWIND: list[Step] = [
    *HELD,
    (f"{SLOT}.copy_slot", 1, "before"),
    (f"{SLOT}.copy_slot", 1, "after"),
    (f"{PUBLISHER}.commit", 2, "before"),
    (f"{PUBLISHER}.commit", 2, "after"),
]


@sizes([REWIND[1], REWIND[3], REWIND[5], REWIND[-1]], REWIND)
def test_rewind_killed_at_each_step_ends_in_the_same_clean_state(pipeline: Pipeline, size: list[Step]) -> None:
    """One instance streams and one stands by all the time; nobody restarts them."""
    pipeline.init()
    first = pipeline.started()
    port = pipeline.another_port()
    second = pipeline.start(port=port)
    wait_for(lambda: pipeline.get("/health/ready", port)[1].startswith("standby"), 30, "a second one stands by")
    total = replayed = 0
    for number, step in enumerate(size):
        name = f"b{number}"
        assert pipeline.here("slot", "bookmark", name).code == 0
        pipeline.insert(total, total + 4)
        total += 5
        wait_for(lambda: len(pipeline.events()) == total + replayed, 60, "published")  # noqa: B023 - called here and now
        pipeline.wait_confirmed()
        killed(pipeline, step, "slot", "rewind", name)
        if step != REWIND[-1]:
            assert pipeline.here("slot", "rewind", name).code == 0
        pipeline.insert(total)
        total += 1
        replayed += 5
        wait_for(lambda: len(pipeline.events()) == total + replayed, 60, f"came again after {step}")  # noqa: B023 - as above
        pipeline.wait_confirmed()
        assert verified(pipeline) == {"rows": total, "events": total, "replayed": replayed}, step
        assert pipeline.here("slot", "drop", name).code == 0
    assert first.poll() is None
    assert second.poll() is None
    firsts = [event.n for event in pipeline.events() if "ce_replay" not in event.headers]
    assert firsts == list(range(total))


INIT: list[Step] = [
    (f"{PUBLISHER}.commit", 1, "before"),
    (f"{PUBLISHER}.commit", 1, "after"),
    (f"{SLOT}.ensure_publication", 1, "after"),
    (f"{PUBLISHER}.produce", 2, "before"),
    (f"{PUBLISHER}.produce", 2, "after"),
    (f"{PUBLISHER}.commit", 2, "before"),
    (f"{PUBLISHER}.commit", 2, "after"),
]


@sizes([INIT[1], INIT[4], INIT[-1]], INIT)
def test_init_that_publishes_killed_at_each_step_ends_in_the_same_clean_state(pipeline: Pipeline, size: list[Step]) -> None:
    pipeline.execute(create_sql(Table("public", "outbox"), OutboxMapping()))
    pipeline.insert(0, 9)
    for number, step in enumerate(size):
        with Pipeline(pipeline.folder, f"{pipeline.name}x{number}", pipeline.dsn, pipeline.bootstrap) as each:
            killed(each, step, "init", "--existing", "publish")
            each.insert(10 + 2 * number)
            each.init("--existing", "publish")
            each.started()
            each.insert(11 + 2 * number)
            total = 12 + 2 * number
            each.wait_numbers(range(total))
            assert verified(each) == {"rows": total, "events": total}, step
            each.stop()


REPLAY: list[Step] = [
    (f"{PUBLISHER}.fence", 1, "after"),
    (f"{PUBLISHER}.produce", 1, "after"),
    (f"{PUBLISHER}.commit", 1, "before"),
    (f"{PUBLISHER}.commit", 1, "after"),
]


def test_replay_killed_at_each_step_leaves_nothing_open_and_nobody_fenced(pipeline: Pipeline) -> None:
    pipeline.init()
    pipeline.started()
    pipeline.insert(0, 9)
    pipeline.wait_confirmed()
    replayed = 0
    for step in REPLAY:
        killed(pipeline, step, "replay", "--key", "k")
        replayed += 10 * (step == REPLAY[-1])
        assert pipeline.here("replay", "--key", "k").code == 0, "the next one ends what this one left open"
        replayed += 10
        wait_for(lambda: len(pipeline.events()) == 10 + replayed, 30, f"after {step}")  # noqa: B023 - called here and now
    assert verified(pipeline) == {"rows": 10, "events": 10, "replayed": replayed}
    assert "passage failed" not in pipeline.log


def test_two_at_once_end_in_one_clean_state(pipeline: Pipeline) -> None:
    """Each fences the other; whoever finds the other's hold stops, and what the other broke is seen and mended."""
    pipeline.init()
    pipeline.started()
    pipeline.insert(0, 4)
    pipeline.wait_confirmed()
    pipeline.stop()
    pipeline.insert(5, 9)
    pipeline.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", (pipeline.slot_name,))
    command = [sys.executable, "-m", "cdc", "recover", "--config", str(pipeline.write())]
    both = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment()) for _ in range(2)]
    ends = [(each.communicate(timeout=90)[1], each.returncode) for each in both]
    assert 0 in {code for _, code in ends}, ends
    assert {code for _, code in ends} <= {0, 3, 4, 5}, ends
    recovered(pipeline)
    pipeline.started()
    pipeline.insert(10)
    pipeline.wait_numbers(range(11))
    assert verified(pipeline) == {"rows": 11, "events": 11}
