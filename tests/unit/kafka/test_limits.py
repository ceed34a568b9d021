"""What does not fit a topic is refused before it is sent, with the reason and without the value."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.errors import InvalidEvent
from cdc.event import Record, Route
from cdc.kafka.limits import CLOCK_MARGIN_MS, UNLIMITED_MS, fits, name_fault, route_from, topic_limit

NOW_MS = 1_800_000_000_000
HOUR_MS = 3_600_000
ROUTE = Route("orders", 3, 1_000, compacted=False, timestamp_before_ms=None, timestamp_after_ms=HOUR_MS)
COMPACTED = Route("orders", 3, 1_000, compacted=True, timestamp_before_ms=HOUR_MS, timestamp_after_ms=HOUR_MS)
GOOD = Record("orders", b"key", b"value", [("ce_id", b"1")], NOW_MS)


def reason(record: Record, route: Route = ROUTE) -> str:
    with pytest.raises(InvalidEvent) as caught:
        fits(record, route, NOW_MS)
    assert caught.value.fix
    assert "secret" not in str(caught.value)
    return caught.value.reason


def test_a_record_that_fits() -> None:
    for route in (ROUTE, COMPACTED):
        for partition in (-1, 0, 2):
            fits(GOOD._replace(partition=partition), route, NOW_MS)
    fits(GOOD._replace(key=None), ROUTE, NOW_MS)
    fits(GOOD._replace(value=None), COMPACTED, NOW_MS)
    fits(GOOD._replace(timestamp_ms=0), COMPACTED, NOW_MS)


def test_size() -> None:
    assert reason(GOOD._replace(value=b"secret" * 200)) == "size"
    assert reason(GOOD._replace(key=b"secret" * 200)) == "size"
    assert reason(GOOD._replace(headers=[("h", b"secret" * 200)])) == "size"


@pytest.mark.parametrize("partition", [3, -2, 2**31])
def test_partition_out_of_range(partition: int) -> None:
    assert reason(GOOD._replace(partition=partition)) == "route"


def test_null_key_on_a_compacted_topic() -> None:
    assert reason(GOOD._replace(key=None), COMPACTED) == "route"
    fits(GOOD._replace(key=b""), COMPACTED, NOW_MS)


@pytest.mark.parametrize("offset_ms", [HOUR_MS + 1, HOUR_MS - CLOCK_MARGIN_MS + 1])
def test_time_out_of_limits(offset_ms: int) -> None:
    assert reason(GOOD._replace(timestamp_ms=NOW_MS + offset_ms)) == "route"
    assert reason(GOOD._replace(timestamp_ms=NOW_MS - offset_ms), COMPACTED) == "route"


def test_time_within_limits() -> None:
    offset_ms = HOUR_MS - CLOCK_MARGIN_MS
    fits(GOOD._replace(timestamp_ms=NOW_MS + offset_ms), COMPACTED, NOW_MS)
    fits(GOOD._replace(timestamp_ms=NOW_MS - offset_ms), COMPACTED, NOW_MS)
    fits(GOOD._replace(timestamp_ms=1), ROUTE, NOW_MS)


@given(st.text(max_size=300))
def test_legal_names_are_what_kafka_takes(name: str) -> None:
    legal = 0 < len(name) <= 249 and name not in {".", ".."} and name.isascii() and all(c.isalnum() or c in "._-" for c in name)
    assert (name_fault(name) is None) == legal


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "é", "x" * 250, "a\n"])
def test_illegal_names(name: str) -> None:
    assert name_fault(name)


@pytest.mark.parametrize("name", ["a", "_cdc.shop.position", "A-9", "x" * 249, "..."])
def test_names(name: str) -> None:
    assert name_fault(name) is None


def test_a_route_reads_the_topics_configuration() -> None:
    config = {
        "max.message.bytes": "20000",
        "cleanup.policy": "compact,delete",
        "message.timestamp.type": "CreateTime",
        "message.timestamp.before.max.ms": str(UNLIMITED_MS),
        "message.timestamp.after.max.ms": "3600000",
    }
    assert route_from("orders", 6, config, 1_000_000) == Route("orders", 6, 20_000, True, None, HOUR_MS)
    assert route_from("orders", 6, config, 500).max_message_bytes == 500
    assert route_from("orders", 6, config | {"message.timestamp.type": "LogAppendTime"}, 500).timestamp_after_ms is None


def test_a_route_of_an_older_broker() -> None:
    assert route_from("orders", 1, {"message.timestamp.difference.max.ms": "1000"}, 500) == Route("orders", 1, 500, False, 1000, 1000)
    assert topic_limit({}) == UNLIMITED_MS
