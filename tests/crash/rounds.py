"""SIGKILL at random moments, again and again, or SIGSTOP beside a successor, and the verdict at the end."""

from __future__ import annotations

import json
import random
import signal
import time
from typing import Any

from cdc.audit.judge import REMARKS, Verdict, Watch, limit_of
from tests.crash.storm import Storm, judged
from tests.pipeline import Pipeline
from tests.waiting import wait_for

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


def zombie(pipeline: Pipeline) -> None:
    """Freeze a process under load until it has a successor, wake it up beside that, and let it take over again; judge at the end."""
    pipeline.init()
    port = pipeline.another_port()
    with Storm(pipeline.dsn, random.randrange(1 << 31)) as storm:
        old = pipeline.started()
        wait_for(lambda: storm.transactions > 50, what="load")
        old.send_signal(signal.SIGSTOP)
        successor = pipeline.start(port=port)
        wait_for(lambda: pipeline.ready(port), 90, "the successor streams: the servers have dropped the frozen one's connections")
        old.send_signal(signal.SIGCONT)
        before = storm.transactions
        wait_for(lambda: storm.transactions > before + 100, what="load beside the old process")
        assert old.poll() is None, pipeline.log_of(old)[-3000:]
        pipeline.kill(successor)
        wait_for(pipeline.ready, 60, "the old process, a standby by now, takes over")
    pipeline.wait_confirmed(deadline_s=DRAIN_S)
    pipeline.terminate(old)  # whoever has RabbitMQ's lease has the position alone
    verdict = judged(pipeline, storm.ledger)
    assert clean(verdict), verdict
    assert verdict.rows == len(storm.ledger) > 0


def live(pipeline: Pipeline, chance: random.Random, *, streaming: bool) -> None:
    """Let the process that was just started live until a random moment, on its way through the door or while it streams."""
    if streaming:
        pipeline.wait_ready()
    time.sleep(chance.uniform(0, STREAM_WITHIN_S if streaming else KILL_WITHIN_S))  # the random moment


def clean(verdict: Verdict) -> bool:
    """Whether nothing is wrong and nothing has to be explained either."""
    return verdict.clean and not any(verdict.counts.get(kind) for kind in REMARKS)
