"""Frames that we make are those that pika makes of the same record."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pika import frame, spec

from cdc.errors import Poisoned
from cdc.event import Record
from cdc.rabbitmq.message import properties_of, seen_of
from cdc.rabbitmq.wire import Frames

BODY_MAX = 100
QUEUES = frozenset({"letters"})

NAMES = st.sampled_from(["ce_id", "id", "ce_type", "cdc.type", "correlationid", "content-type", "own", "ü"])
VALUES = st.none() | st.binary(max_size=300) | st.text(max_size=100).map(str.encode)
RECORDS = st.builds(
    Record,
    st.sampled_from(["letters", "outbox.event.order"]),
    st.none() | st.binary(max_size=20),
    st.none() | st.binary(max_size=350),
    st.lists(st.tuples(NAMES, VALUES), max_size=8),
    st.integers(0, 2**45),
)


def by_pika(record: Record) -> bytes:
    exchange = "" if record.topic in QUEUES else "shop"
    body = record.value or b""
    frames = [
        frame.Method(1, spec.Basic.Publish(exchange=exchange, routing_key=record.topic, mandatory=True)),
        frame.Header(1, len(body), properties_of(record)),
        *(frame.Body(1, body[start : start + BODY_MAX]) for start in range(0, len(body), BODY_MAX)),
    ]
    return b"".join(each.marshal() for each in frames)


@given(RECORDS)
def test_a_record_becomes_the_frames_that_pika_makes(record: Record) -> None:
    assert Frames(1, BODY_MAX, "shop", QUEUES)(record) == by_pika(record)


@pytest.mark.parametrize("length", [100_000, 99_000])
def test_a_dead_letter_goes_without_its_row_when_the_row_does_not_fit(length: int) -> None:
    record = Record("letters", None, None, [("cdc.id", b"1" * 900), ("cdc.row", b"x" * length)], 0)
    assert Frames(1, BODY_MAX, "shop", QUEUES)(record) == by_pika(record)


def test_a_header_whose_name_does_not_fit_is_refused() -> None:
    with pytest.raises(Poisoned, match="name has 256 bytes"):
        Frames(1, BODY_MAX, "shop", QUEUES)(Record("t", None, b"", [("n" * 256, b"")], 0))


@given(RECORDS)
def test_a_message_becomes_the_record_that_it_was(record: Record) -> None:
    seen = seen_of(record.topic, 7, properties_of(record), record.value or b"")
    told = {name: value for name, value in record.headers if name != "content-type"}
    assert (seen.topic, seen.offset, seen.key, seen.value or None) == (record.topic, 7, record.key, record.value or None)
    assert {name: value for name, value in seen.headers if name != "content-type"} == told
    assert seen.timestamp_ms == record.timestamp_ms
