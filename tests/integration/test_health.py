"""Health and metrics of the real process: each end that fails turns it red within one look, and it says which end it was."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from cdc.devstack.kafka import KafkaBroker
from cdc.devstack.postgres import PostgresServer
from cdc.pipeline.supervisor import WATCH_INTERVAL_S
from tests.conftest import Pipelines
from tests.pipeline import Pipeline
from tests.waiting import wait_for

pytestmark = pytest.mark.servers


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def metric(pipeline: Pipeline, name: str, port: int | None = None) -> float | None:
    """One sample of `/metrics`, its labels as they are written there; None when it is not there."""
    found = re.search(rf"^{re.escape(name)} (\S+)$", pipeline.get("/metrics", port)[1], re.MULTILINE)
    return None if found is None else float(found[1])


def test_each_end_turns_it_red_and_a_standby_says_what_it_is(
    pipelines: Pipelines, spare_postgres: PostgresServer, spare_kafka: KafkaBroker, spare_database: str, tmp_path: Path, stack: ExitStack
) -> None:
    pipeline = pipelines(spare_database, spare_kafka.bootstrap_servers)
    systemd = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
    systemd.bind(str(tmp_path / "notify"))
    systemd.settimeout(30)
    pipeline.init()
    pipeline.start(environment_={"NOTIFY_SOCKET": str(tmp_path / "notify")})
    assert systemd.recv(1000) == b"READY=1"
    pipeline.wait_ready()
    other = pipeline.another_port()
    pipeline.start(port=other)

    wait_for(lambda: pipeline.get("/health/ready?standby=ok", other)[0] == 200, 60, "the standby is there")
    code, text = pipeline.get("/health/ready", other)
    assert code == 503
    assert re.fullmatch(r"standby: replication slot '\w+' is active for backend pid \d+\n", text)
    assert pipeline.get("/health/live", other)[0] == 200
    assert metric(pipeline, 'cdc_state{state="standby"}', other) == metric(pipeline, "cdc_ready") == 1
    pipeline.kill()

    spare_kafka.freeze()
    pipeline.insert(1)
    wait_for(lambda: metric(pipeline, "cdc_ready") == 0, WATCH_INTERVAL_S, "red while Kafka is silent")
    assert pipeline.get("/health/ready") == (503, "streaming: Kafka has not answered for 3 s\n")
    assert metric(pipeline, "cdc_live") == 1
    assert metric(pipeline, "cdc_pending_rows") in {0, 1}, "what waits for a position to be committed was not read yet"
    spare_kafka.thaw()
    wait_for(pipeline.ready, 60, "green again")
    wait_for(lambda: metric(pipeline, "cdc_pending_rows") == 0, 30, "nothing is under way")

    before = metric(pipeline, 'cdc_passages_failed_total{cause="retriable",side="postgres"}')
    spare_postgres.stop()
    wait_for(lambda: metric(pipeline, 'cdc_state{state="backoff"}') == 1, WATCH_INTERVAL_S, "red while PostgreSQL is away")
    assert pipeline.get("/health/live")[0] == 200
    assert pipeline.get("/health/ready?standby=ok")[0] == 503
    assert before == 0
    assert (metric(pipeline, 'cdc_passages_failed_total{cause="retriable",side="postgres"}') or 0) > 0
    assert metric(pipeline, 'cdc_passages_failed_total{cause="retriable",side="kafka"}') is not None
    assert (metric(pipeline, "cdc_failures_in_a_row") or 0) > 0
    spare_postgres.start()
    wait_for(pipeline.ready, 60, "green again")
    pipeline.wait_numbers([1])
    wait_for(lambda: metric(pipeline, "cdc_failures_in_a_row") == 0, 30, "it is over as soon as something is published")
    wait_for(lambda: systemd.recv(1000).endswith(b"STATUS=streaming"), 30, "systemd was told")
