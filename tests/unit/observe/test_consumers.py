"""A consumer's metrics: counted where it happens, shown by name, and silent about ids and keys."""

from __future__ import annotations

import logging

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cdc.consumer.lane import Failure, Handle, Handled, Kind, Lane, Move
from cdc.kafka.subscriber import Seen
from cdc.observe.consumers import CONSUMER_METRICS, LIVE_WITHIN_S, ConsumerMetrics

CANARY = "canary-5d1c"

RECORD = Seen(
    "orders",
    2,
    7,
    CANARY.encode(),
    CANARY.encode(),
    [("ce_id", b"id-1"), ("ce_type", b"T"), ("correlationid", b"c-1"), ("own", CANARY.encode())],
    0,
)


def watched(clock: list[float]) -> ConsumerMetrics:
    """Tell one of everything."""
    made = ConsumerMetrics(lambda: clock[0])
    lane, failed = Lane("orders", 2, "default"), Failure(Kind.HANDLER, "ValueError", CANARY, "h")
    made.handled("shop", Handle(lane, (RECORD,), 1, frozenset(), 0, 0), Handled(3, None, 2, 1), 0.02)
    made.failed("shop", RECORD, failed, 1, lane)
    made.moved("shop", Move(lane, RECORD, failed, 1, None), "")
    made.moved("shop", Move(lane, RECORD, failed, 1, 5.0), "")
    made.moved("shop", Move(lane, RECORD, failed, 1, None), "KafkaRefused")
    made.skipped("shop", RECORD)
    made.late("shop", lane)
    made.assigned("shop", [("orders", 2)])
    made.revoked("shop", [("orders", 2)], lost=True)
    standing = {("orders", 2): "ready", ("orders", 3): "stopped"}
    state = {"lag": {("orders", 2): 4}, "standing": standing, "pending": 9, "running": 1, "breakers": {"mail": "half open"}}
    made.turned("shop", {**state, "busy_s": {"low": 1.5}})
    return made


def test_everything_is_counted_by_name_and_nothing_tells_data(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    clock = [0.0]
    made = watched(clock)
    text = made.text().decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert set(families) == {each.name.removesuffix("_total") for each in CONSUMER_METRICS}
    values = {(sample.name, *sample.labels.values()): sample.value for family in families.values() for sample in family.samples}
    assert values["cdc_consumer_events_total", "shop", "applied"] == 2
    assert values["cdc_consumer_events_total", "shop", "skipped"] == 1
    assert values["cdc_consumer_parked_total", "shop", "ValueError"] == 1
    assert values["cdc_consumer_retried_total", "shop"] == 1
    assert values["cdc_consumer_lag", "shop", "2", "orders"] == 4
    assert values["cdc_consumer_partitions", "shop", "stopped"] == 1
    assert values["cdc_consumer_breaker_open", "mail", "shop"] == 0.5
    assert CANARY not in text
    assert CANARY not in caplog.text
    [line] = [each for each in caplog.messages if "failed" in each]
    for said in (
        "shop",
        "id=id-1",
        "type=T",
        "correlation=c-1",
        "topic=orders",
        "partition=2",
        "offset=7",
        "error=ValueError",
        "handler=h",
    ):
        assert said in line.replace(":", " ").split(), (said, line)


def test_a_stopped_partition_is_not_ready_and_one_that_hangs_is_not_live() -> None:
    clock = [0.0]
    made = watched(clock)
    assert made.live
    assert not made.ready
    clock[0] = LIVE_WITHIN_S + 1
    assert not made.live
