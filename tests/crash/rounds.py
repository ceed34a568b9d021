"""SIGKILL at random moments, again and again, and the verdict at the end."""

from __future__ import annotations

import json
import random
import time
from typing import Any

from cdc.audit.judge import REMARKS, Verdict, Watch, limit_of
from tests.crash.storm import Storm, judged
from tests.pipeline import Pipeline

KILL_WITHIN_S = 2.5
"""Longest life of a process that is killed whatever it does: most die on their way through the door, or just behind it."""

STREAM_WITHIN_S = 1.5
"""Longest life of one that streams already."""

DRAIN_S = 120.0


def rounds(pipeline: Pipeline, count: int, seed: int) -> dict[str, Any]:
    """Kill and restart `count` times under load; return the counts of both judges and what was done."""
    chance, watch = random.Random(seed), Watch()
    pipeline.init()
    with Storm(pipeline.dsn, seed) as storm:
        for number in range(count):
            process = pipeline.start()
            live(pipeline, chance, streaming=number % 2 == 1)
            assert process.poll() is None, pipeline.log_of(process)[-3000:]
            pipeline.kill(process)
            if pipeline.events(pipeline.position_topic):
                confirmed = pipeline.slot().confirmed
                watch.look([], limit_of(0, pipeline.position()), confirmed)
    pipeline.started()
    pipeline.wait_confirmed(deadline_s=DRAIN_S)
    verdict = judged(pipeline, storm.ledger)
    answer = pipeline.command("verify", "--json", "--timeout", str(DRAIN_S), timeout_s=2 * DRAIN_S)
    verified = json.loads(answer.out.splitlines()[-1])
    pipeline.stop()
    return {
        "seed": seed,
        "rounds": count,
        "kills": count,
        **{name: max(value, verified[name]) for name, value in verdict.document().items()},
        "transactions": storm.transactions,
        "given_up": storm.given_up,
        "findings": [list(finding) for finding in (*verdict.findings, *watch.verdict.findings)],
        "clean": clean(verdict) and watch.verdict.clean and answer.code == 0 and verified == verdict.document(),
    }


def live(pipeline: Pipeline, chance: random.Random, *, streaming: bool) -> None:
    """Let the process that was just started live until a random moment, on its way through the door or while it streams."""
    if streaming:
        pipeline.wait_ready()
    time.sleep(chance.uniform(0, STREAM_WITHIN_S if streaming else KILL_WITHIN_S))  # the random moment


def clean(verdict: Verdict) -> bool:
    """Whether nothing is wrong and nothing has to be explained either."""
    return verdict.clean and not any(verdict.counts.get(kind) for kind in REMARKS)
