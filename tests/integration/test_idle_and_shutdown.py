"""A server that shuts down never waits for us, whatever Kafka does; nothing is lost over it."""

from __future__ import annotations

import time

import pytest

from cdc.devstack.kafka import KafkaBroker
from cdc.devstack.postgres import PostgresServer
from tests.conftest import Pipelines
from tests.pipeline import Pipeline
from tests.waiting import wait_for

pytestmark = pytest.mark.servers


def stopped_within(server: PostgresServer, pipeline: Pipeline, seconds: float) -> None:
    pipeline.hang_up()
    began = time.monotonic()
    server.stop("fast")
    assert server.pid is None
    assert time.monotonic() - began < seconds
    assert "database system is shut down" in server.log.read_text().splitlines()[-1], "it had to be killed"


def test_a_fast_shutdown_with_the_pipeline_attached_ends_in_seconds(
    pipelines: Pipelines, spare_postgres: PostgresServer, spare_database: str, kafka: str
) -> None:
    pipeline = pipelines(spare_database, kafka)
    pipeline.init()
    pipeline.started()
    pipeline.insert(1, 100)
    pipeline.noise(2)
    stopped_within(spare_postgres, pipeline, 5)
    wait_for(lambda: pipeline.get("/health/ready")[0] == 503, 10, "red")
    assert pipeline.get("/health/live")[0] == 200
    spare_postgres.start()
    pipeline.wait_ready(deadline_s=20)
    pipeline.insert(101, 110)
    pipeline.wait_numbers(range(1, 111))


@pytest.mark.parametrize("rows", [0, 10])
def test_a_fast_shutdown_while_kafka_is_frozen_ends_within_ten_seconds(
    pipelines: Pipelines, spare_postgres: PostgresServer, spare_database: str, spare_kafka: KafkaBroker, rows: int
) -> None:
    pipeline = pipelines(spare_database, spare_kafka.bootstrap_servers).set(postgres__status_interval="10s")
    pipeline.init()
    pipeline.started()
    spare_kafka.freeze()
    if rows:
        pipeline.insert(1, rows)
    pipeline.noise(1)
    stopped_within(spare_postgres, pipeline, 10)
    spare_postgres.start()
    spare_kafka.thaw()
    pipeline.wait_ready(deadline_s=60)
    pipeline.insert(rows + 1, rows + 5)
    pipeline.wait_numbers(range(1, rows + 6))
