"""A way to PostgreSQL that swallows everything: nobody waits for it for ever."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from psycopg.conninfo import make_conninfo

from cdc.devstack.process import LOOPBACK
from cdc.errors import Retriable
from cdc.pipeline.supervisor import WATCH_INTERVAL_S
from cdc.postgres import catalog
from cdc.postgres.catalog import LiveCatalog
from tests.pipeline import Pipeline
from tests.proxy import Proxy
from tests.waiting import wait_for

pytestmark = pytest.mark.servers


@pytest.fixture
def proxy(pipeline: Pipeline) -> Iterator[Proxy]:
    """The only way from the pipeline to its server."""
    with Proxy(pipeline.connection.info.port) as made:
        pipeline.set(postgres__dsn=make_conninfo(pipeline.dsn, host=LOOPBACK, port=str(made.port)))
        yield made


def test_a_question_to_the_catalog_is_given_up(pipeline: Pipeline, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "ANSWER_WITHIN_S", 0.3)
    live = LiveCatalog(make_conninfo(pipeline.dsn, host=LOOPBACK, port=str(proxy.port)), "test")
    assert live.setting("wal_level") == "logical"
    with pytest.raises(Retriable, match=r"no answer within 0\.3 s"):
        live.query("SELECT pg_sleep(1)")
    assert live.setting("wal_level") == "logical"
    live.close()


def test_a_stop_behind_a_cut_link_ends_within_its_grace(pipeline: Pipeline, proxy: Proxy) -> None:
    pipeline.init()
    pipeline.insert(1)
    pipeline.started()
    pipeline.wait_numbers([1])
    proxy.swallow()
    assert pipeline.terminate(timeout_s=20) == 0, pipeline.log


def test_a_link_that_is_cut_while_streaming_is_made_anew(pipeline: Pipeline, proxy: Proxy) -> None:
    """The server holds the slot for its timeout; until then the process stands by, and goes on by itself."""
    pipeline.init()
    pipeline.insert(1)
    process = pipeline.started()
    pipeline.wait_numbers([1])
    proxy.swallow()
    pipeline.insert(2)
    began = time.monotonic()
    wait_for(lambda: pipeline.log.count("passage failed") > 0, 60, "it is noticed")
    assert time.monotonic() - began < WATCH_INTERVAL_S + catalog.ANSWER_WITHIN_S + 10
    pipeline.wait_numbers([1, 2])
    assert process.poll() is None
    pipeline.stop()
