"""The pipeline is killed, or frozen and succeeded, under load; the judge finds nothing."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.rounds import clean, rounds
from tests.crash.storm import Storm, judged
from tests.pipeline import Pipeline, sizes
from tests.streams import RedisPipeline
from tests.waiting import wait_for

pytestmark = [pytest.mark.servers, pytest.mark.timeout(1800)]


@pytest.fixture
def pipeline(tmp_path: Path, unique: str, database: str, kafka: str) -> Iterator[Pipeline]:
    with Pipeline(tmp_path, unique, database, kafka) as each:
        yield each


@sizes(5, 100)
def test_sigkill_at_random_moments(pipeline: Pipeline, size: int) -> None:
    found = rounds(pipeline, size, random.randrange(1 << 31))
    print(found)  # with its seed
    assert found["clean"], found
    assert found["events"] > 0


def test_a_frozen_process_that_wakes_up_beside_its_successor_publishes_nothing(pipeline: Pipeline) -> None:
    _zombie(pipeline)


def _zombie(pipeline: Pipeline) -> None:
    pipeline.init()
    port = pipeline.another_port()
    with Storm(pipeline.dsn, random.randrange(1 << 31)) as storm:
        old = pipeline.started()
        wait_for(lambda: storm.transactions > 50, what="load")
        old.send_signal(signal.SIGSTOP)
        successor = pipeline.start(port=port)
        wait_for(lambda: pipeline.ready(port), 60, "the successor streams: the server has dropped the frozen one's connection")
        old.send_signal(signal.SIGCONT)
        before = storm.transactions
        wait_for(lambda: storm.transactions > before + 100, what="load beside the old process")
        assert old.poll() is None, pipeline.log_of(old)[-3000:]
        pipeline.kill(successor)
        wait_for(pipeline.ready, 60, "the old process, a standby by now, takes over")
    pipeline.wait_confirmed(deadline_s=60)
    verdict = judged(pipeline, storm.ledger)
    assert clean(verdict), verdict
    assert verdict.rows == len(storm.ledger) > 0
    pipeline.terminate(old)


@pytest.mark.packages
@sizes(2, 100)
def test_sigkill_at_random_moments_on_redis(streams: RedisPipeline, size: int) -> None:
    found = rounds(streams.set(redis__streams=3), size, random.randrange(1 << 31))
    print(found)  # with its seed
    assert found["clean"], found
    assert found["events"] > 0


@pytest.mark.packages
def test_a_frozen_process_on_redis_publishes_nothing_when_it_wakes_up(streams: RedisPipeline) -> None:
    _zombie(streams)
