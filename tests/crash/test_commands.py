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
from tests.pipeline import Pipeline, environment
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


def test_recover_killed_at_each_step_ends_in_the_same_clean_state(pipeline: Pipeline) -> None:
    pipeline.init()
    pipeline.started()
    total = 0
    for step in RECOVER:
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


def test_rewind_killed_at_each_step_ends_in_the_same_clean_state(pipeline: Pipeline) -> None:
    """One instance streams and one stands by all the time; nobody restarts them."""
    pipeline.init()
    first = pipeline.started()
    port = pipeline.another_port()
    second = pipeline.start(port=port)
    wait_for(lambda: pipeline.get("/health/ready", port)[1].startswith("standby"), 30, "a second one stands by")
    total = replayed = 0
    for number, step in enumerate(REWIND):
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


@pytest.mark.parametrize("step", INIT, ids=lambda step: f"{step[0].rpartition('.')[2]}-{step[1]}-{step[2]}")
def test_init_that_publishes_killed_at_each_step_ends_in_the_same_clean_state(pipeline: Pipeline, step: Step) -> None:
    pipeline.execute(create_sql(Table("public", "outbox"), OutboxMapping()))
    pipeline.insert(0, 9)
    killed(pipeline, step, "init", "--existing", "publish")
    pipeline.insert(10)
    pipeline.init("--existing", "publish")
    pipeline.started()
    pipeline.insert(11)
    pipeline.wait_numbers(range(12))
    assert verified(pipeline) == {"rows": 12, "events": 12}


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
