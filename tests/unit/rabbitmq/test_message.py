"""From a record to the properties of AMQP."""

from __future__ import annotations

from cdc.event import Record
from cdc.rabbitmq.message import properties_of


def test_what_amqp_has_a_property_for_is_that_property_and_headers_stay() -> None:
    headers: list[tuple[str, bytes | None]] = [
        *(("ce_id", b"e1"), ("ce_type", b"OrderPaid"), ("content-type", b"application/json"), ("correlationid", b"c1")),
        *(("none", None), ("bytes", b"\xff")),
    ]
    made = properties_of(Record("t", b"k", b"v", headers, 1_800_000_000_999))
    assert (made.message_id, made.type, made.content_type, made.correlation_id) == ("e1", "OrderPaid", "application/json", "c1")
    assert (made.timestamp, made.delivery_mode) == (1_800_000_000, 2)
    assert made.headers == {
        "ce_id": "e1",
        "ce_type": "OrderPaid",
        "correlationid": "c1",
        "none": None,
        "bytes": b"\xff",
        "ce_partitionkey": "k",
        "timestamp_in_ms": 1_800_000_000_999,
    }


def test_a_dead_letter_has_its_own_names_and_leaves_out_what_fits_no_frame() -> None:
    headers: list[tuple[str, bytes | None]] = [("cdc.id", b"e1"), ("cdc.type", b"T"), ("cdc.row", b"x" * 200_000)]
    made = properties_of(Record("dead", None, None, headers, 0))
    assert (made.message_id, made.type, made.timestamp) == ("e1", "T", None)
    assert made.headers == {"cdc.id": "e1", "cdc.type": "T"}


def test_a_name_that_is_too_long_for_a_property_is_in_its_header_alone() -> None:
    made = properties_of(Record("t", None, b"v", [("id", b"i" * 256)], 0))
    assert made.message_id is None
    assert made.headers == {"id": "i" * 256}
