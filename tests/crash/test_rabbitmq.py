"""The pipeline to RabbitMQ is killed and the broker restarted under load: I1, I3, I4 of first deliveries, I6, I9, I10."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from cdc.audit.judge import Watch, limit_of
from tests.crash.rounds import clean, live, zombie
from tests.crash.storm import Storm, judged
from tests.pipeline import sizes
from tests.rabbit import RabbitPipeline
from tests.waiting import wait_for

pytestmark = [pytest.mark.servers, pytest.mark.packages, pytest.mark.timeout(1800)]

DRAIN_S = 120.0


def verdict_of(rabbit: RabbitPipeline, storm: Storm) -> dict[str, Any]:
    """Stop a pipeline that has drained the log, and judge; `again` counts deliveries that were not the first ones."""
    rabbit.wait_confirmed(deadline_s=DRAIN_S)  # I9
    rabbit.stop()
    verdict = judged(rabbit, storm.ledger)  # I1, I3, I4; a second delivery is left out before
    events = rabbit.events()
    assert all(event.n == 1 for event in events)  # I10
    ids = Counter(event.headers["ce_id"] for event in rabbit.deliveries(rabbit.queue))
    again = sum(ids.values()) - len(ids)
    return {"clean": clean(verdict), **verdict.document(), "again": again, "findings": verdict.findings}


@sizes(2, 40)
def test_sigkill_and_restarts_of_the_broker_lose_nothing(rabbit: RabbitPipeline, size: int) -> None:
    seed = random.randrange(1 << 31)
    chance, watch = random.Random(seed), Watch()
    rabbit.init()
    with Storm(rabbit.dsn, seed, writers=4, pause_s=0.1) as storm:
        for number in range(size):
            process = rabbit.start()
            live(rabbit, chance, streaming=number % 2 == 1)
            if number % 4 == 1:  # every second one that streams
                (rabbit.broker.kill if chance.random() < 0.5 else rabbit.broker.stop)()
                rabbit.broker.start()
                rabbit.wait_ready()
            assert process.poll() is None, rabbit.log_of(process)[-3000:]
            rabbit.kill(process)
            stored = rabbit.stored()
            assert stored is not None
            watch.look([], limit_of(stored.generation, stored.end_lsn), rabbit.slot().confirmed)  # I6
        rabbit.started()
    found = verdict_of(rabbit, storm) | {"seed": seed, "rounds": size, "transactions": storm.transactions}
    print(found)
    assert found["clean"], found
    assert watch.verdict.clean, watch.verdict
    assert found["events"] > 0


@pytest.mark.soak
def test_a_broker_that_hangs_and_one_without_memory_at_the_start_are_waited_for(rabbit: RabbitPipeline) -> None:
    rabbit.init()
    rabbit.started()
    rabbit.broker.freeze()
    rabbit.insert(1, 100)
    wait_for(lambda: "no answer within 5 s" in rabbit.log, 60, "the confirms do not come")
    rabbit.broker.thaw()
    rabbit.wait_numbers(range(1, 101))
    rabbit.stop()
    with rabbit.broker.alarm():
        rabbit.start()
        wait_for(lambda: "low on memory" in rabbit.get("/status")[1], 60, "the door says what it waits for")
        rabbit.insert(101, 200)
    rabbit.wait_numbers(range(1, 201))
    rabbit.stop()


@pytest.mark.soak
def test_a_frozen_process_that_wakes_up_beside_its_successor_takes_nothing_out_of_order(rabbit: RabbitPipeline) -> None:
    zombie(rabbit)
