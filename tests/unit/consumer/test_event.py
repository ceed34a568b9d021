"""What a record says of itself, and how it is kept."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cdc.consumer.dead_letter import dead_letter, later, redriven
from cdc.consumer.event import Origin, envelope, idempotency_key, key_id, storable
from cdc.consumer.lane import Failure, Kind
from cdc.consumer.ports import told
from cdc.event import Record, record_size
from cdc.kafka.subscriber import Seen
from tests.unit.consumer.records import seen

BAD = Failure(Kind.HANDLER, "ValueError", "no such customer", "reserve", left=frozenset({"reserve"}))

LETTER = "cdc.shop.dead-letter"


def put(record: Record, offset: int = 0) -> Seen:
    return Seen(record.topic, 0, offset, record.key, record.value, record.headers, 0)


def test_both_styles_of_headers() -> None:
    cloud = envelope(seen(3, ce_id="a", ce_source="/s", ce_type="T", ce_sequence="01", ce_replay="redrive:a", correlationid="c"))
    assert (cloud.id, cloud.source, cloud.type, cloud.sequence, cloud.moved, cloud.correlation_id) == ("a", "/s", "T", "01", False, "c")
    assert envelope(seen(3, id="b")).id == "b"
    assert envelope(seen(3)).id == "t/0/3"


def test_names_are_cut_in_a_log_line() -> None:
    said = told(seen(3, ce_id="i" * 50_000, ce_type="t" * 50_000, correlationid="c" * 50_000))
    assert len(said) < 4_000
    assert said.startswith(" id=" + "i" * 1_000 + " type=")


@given(st.lists(st.tuples(st.text(), st.none() | st.binary())), st.none() | st.binary())
def test_any_headers_can_be_read(headers: list[tuple[str, bytes | None]], key: bytes | None) -> None:
    read = envelope(Seen("t", 0, 0, key, None, headers, 0))
    assert read.attempts >= 0
    assert "\0" not in storable(read.id)


@given(st.text(), st.text())
def test_two_texts_are_kept_as_two(one: str, other: str) -> None:
    assert (storable(one) == storable(other)) == (one == other) or "\\" in one + other
    assert len(storable(one * 1000)) <= 1000


def test_field_case_45_an_id_with_a_nul_is_kept_without_it() -> None:
    assert storable("a\0b") == "a\\0b"
    assert storable("a\\\0b") == "a\\\\\\0b"


def test_long_keys_are_kept_by_their_hash() -> None:
    assert key_id(b"k") == b"k"
    assert len(key_id(b"k" * 10_000)) == 39


def test_an_idempotency_key_is_stable_and_the_handlers_own() -> None:
    assert idempotency_key("a.h", "/s", "1") == idempotency_key("a.h", "/s", "1")
    assert len({idempotency_key(*names) for names in [("a.h", "/s", "1"), ("a.g", "/s", "1"), ("a.h", "/s", "2"), ("a.", "h/s", "1")]}) == 4


def test_a_letter_keeps_bytes_and_first_origin_through_every_move() -> None:
    first = seen(7, value=b"\0\xff", ce_id="e", ce_sequence="05", ce_type="T", own="x")
    retried = put(later("cdc.shop.retry-1", first, BAD, attempts=1, due_ms=99))
    assert (envelope(retried).attempts, envelope(retried).due_ms, envelope(retried).origin) == (1, 99, Origin("t", 0, 7))
    letter = dead_letter(LETTER, retried, BAD, consumer="shop", attempts=2, limit_bytes=10_000)
    headers = {name: (value or b"").decode() for name, value in letter.headers}
    assert (letter.key, letter.value, headers["own"], headers["cdc.sequence"]) == (b"k", b"\0\xff", "x", "05")
    assert [headers[f"__connect.errors.{name}"] for name in ("topic", "partition", "offset")] == ["t", "0", "7"]
    assert headers["__connect.errors.exception.message"] == "no such customer"
    again = put(redriven("cdc.shop.redriven", put(letter)))
    assert (envelope(again).replay, envelope(again).origin, envelope(again).attempts) == ("redrive:e", Origin("t", 0, 7), 0)
    assert envelope(again).headers["cdc.handlers"] == "reserve"
    second = dead_letter(LETTER, again, BAD, consumer="shop", attempts=1, limit_bytes=10_000)
    assert dict(second.headers)["cdc.sequence"] == b"05+1", "a letter of its own: the first one is closed"
    assert len(second.headers) == len({name for name, _ in second.headers})


@given(st.integers(1_500, 5_000), st.integers(0, 20_000), st.integers(0, 8_000))
def test_a_letter_fits_its_topic(limit: int, value: int, header: int) -> None:
    letter = dead_letter(LETTER, seen(0, value=b"x" * value, big="y" * header), BAD, consumer="shop", attempts=1, limit_bytes=limit)
    assert record_size(letter) <= limit
    told = dict(letter.headers)
    assert letter.value is not None or told["cdc.payload.bytes"] == str(value).encode()
    assert told["__connect.errors.offset"] == b"0"
