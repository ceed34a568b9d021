"""Holds on real servers: the pipeline makes way for a command, says so, and goes on by itself."""

from __future__ import annotations

import dataclasses
import os
import time

import pytest

from cdc import app
from cdc.audit.hold import Hold
from cdc.errors import ContinuityError, Fenced
from cdc.kafka.publisher import KafkaPublisher
from cdc.postgres.catalog import LiveCatalog
from cdc.resilience.call import nobody_waits
from cdc.settings import load
from tests.pipeline import Pipeline
from tests.waiting import wait_for

pytestmark = pytest.mark.servers


def ends(pipeline: Pipeline) -> tuple[KafkaPublisher, LiveCatalog]:
    settings = load(pipeline.write(), (), os.environ)
    return app.kafka_publisher(settings), app.catalog(settings)


def hold(command: str = "cdc recover", *, ends_any: bool = False) -> Hold:
    return Hold(command, host="here", now_us=time.time_ns() // 1000, ends_any=ends_any)


def test_instances_make_way_say_so_and_go_on_by_themselves(pipeline: Pipeline) -> None:
    pipeline.init()
    pipeline.started()
    port = pipeline.another_port()
    pipeline.start(port=port)
    wait_for(lambda: pipeline.get("/health/ready", port)[1].startswith("standby"), 30, "the second one stands by")
    pipeline.insert(1, 5)
    pipeline.wait_confirmed()
    publisher, catalog = ends(pipeline)
    held = hold()
    position = held.take(publisher, catalog, pipeline.slot_name)
    for each in (pipeline.port, port):
        wait_for(lambda each=each: pipeline.status(each)["state"] == "held", 30, "both are held")  # type: ignore[misc]
        status = pipeline.status(each)
        assert held.text in status["reason"]
        assert status["position"]["hold"] == held.text
        assert pipeline.get("/health/ready", each)[0] == 503
        assert pipeline.get("/health/live", each)[0] == 200
    pipeline.insert(6, 9)
    assert pipeline.slot().active_pid is None
    assert pipeline.numbers() == [1, 2, 3, 4, 5]
    held.end(publisher, dataclasses.replace(position, generation=position.generation + 1))
    pipeline.wait_numbers(range(1, 10))
    assert [event.headers["ce_sequence"][:4] for event in pipeline.events()] == [b"0000"] * 5 + [b"0001"] * 4
    assert pipeline.log.count('"state": "held"') == 2, "each says so once"
    assert pipeline.command("verify", "--json").code == 0
    publisher.close()
    catalog.close()


def test_a_command_that_was_killed_is_run_again_and_no_other_ends_its_hold(pipeline: Pipeline) -> None:
    pipeline.init()
    publisher, catalog = ends(pipeline)
    hold("cdc slot rewind").take(publisher, catalog, pipeline.slot_name)
    with pytest.raises(ContinuityError, match="another command is under way, or was interrupted: cdc slot rewind"):
        hold("cdc recover").take(publisher, catalog, pipeline.slot_name)
    second = hold("cdc slot rewind")
    position = second.take(publisher, catalog, pipeline.slot_name)
    assert position.hold == second.text
    other, spare = ends(pipeline)
    third = hold("cdc recover", ends_any=True)
    third.take(other, catalog, pipeline.slot_name)
    with pytest.raises(Fenced):
        second.end(publisher, position)
    with pytest.raises(ContinuityError, match="took over"):
        second.take(publisher, catalog, pipeline.slot_name)
    again = third.take(other, catalog, pipeline.slot_name)
    assert third.end(other, again).hold is None
    position_now = publisher.recover(nobody_waits)
    assert position_now == dataclasses.replace(again, hold=None)
    for each in (publisher, other, catalog, spare):
        each.close()


def test_nothing_is_held_that_is_not_there(pipeline: Pipeline) -> None:
    pipeline.init()
    publisher, catalog = ends(pipeline)
    position = publisher.recover(nobody_waits)
    assert position is not None
    pending = dataclasses.replace(position, pending="today")
    publisher.commit(pending, nobody_waits)
    with pytest.raises(ContinuityError, match="`cdc init` began at today"):
        hold().take(publisher, catalog, pipeline.slot_name)
    with pytest.raises(ContinuityError, match="holds no position"):
        hold().allows(None)
    publisher.close()
    catalog.close()
