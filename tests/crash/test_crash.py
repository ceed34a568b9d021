"""The pipeline is killed, or frozen and succeeded, under load; the judge finds nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.rounds import rounds, zombie
from tests.pipeline import Pipeline, sizes
from tests.streams import RedisPipeline

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
    zombie(pipeline)


@pytest.mark.packages
@sizes(2, 100)
def test_sigkill_at_random_moments_on_redis(streams: RedisPipeline, size: int) -> None:
    found = rounds(streams.set(redis__streams=3), size, random.randrange(1 << 31))
    print(found)  # with its seed
    assert found["clean"], found
    assert found["events"] > 0


@pytest.mark.packages
def test_a_frozen_process_on_redis_publishes_nothing_when_it_wakes_up(streams: RedisPipeline) -> None:
    zombie(streams)
