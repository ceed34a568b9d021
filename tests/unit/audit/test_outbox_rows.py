"""Reading COPY's text, times and transaction numbers: what PostgreSQL writes, and what it means."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.audit.outbox_rows import FOR_EVER_MS, SeenBy, end_of_log, full_xid, milliseconds, murmur2, texts
from cdc.position import Lsn

ESCAPED = {"\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r", "\b": "\\b", "\f": "\\f", "\v": "\\v"}


def copied(values: list[str | None]) -> bytes:
    """Write a row as PostgreSQL's CopyAttributeOutText does."""
    columns = ["\\N" if value is None else "".join(ESCAPED.get(each, each) for each in value) for value in values]
    return "\t".join(columns).encode() + b"\n"


@given(st.lists(st.none() | st.text(alphabet=st.sampled_from("\\Nnt\n\t\r\b\f\vaé")), min_size=1, max_size=6))
def test_a_row_of_copy_is_read_as_it_was_written(values: list[str | None]) -> None:
    assert texts(copied(values)) == tuple(None if value is None else value.encode() for value in values)


@pytest.mark.parametrize(
    ("seconds", "ms"),
    [
        (b"0", 0),
        (b"1764494702.123999", 1764494702123),
        (b"1764494702.123", 1764494702123),
        (b"-0.0005", -1),
        (b"Infinity", FOR_EVER_MS),
        (b"-Infinity", -FOR_EVER_MS),
    ],
)
def test_seconds_become_milliseconds_without_rounding_up(seconds: bytes, ms: int) -> None:
    assert milliseconds(seconds) == ms


def test_a_transaction_number_gets_its_upper_half_from_the_snapshot() -> None:
    assert full_xid(5, 10) == 5
    assert full_xid(5, (1 << 32) + 10) == (1 << 32) + 5
    assert full_xid((1 << 32) - 1, (1 << 32) + 10) == (1 << 32) - 1
    assert full_xid(20, 10) == 20


def test_a_snapshot_tells_what_it_sees() -> None:
    seen = SeenBy("10:20:12,15")
    assert [xid for xid in range(8, 22) if xid in seen] == [8, 9, 10, 11, 13, 14, 16, 17, 18, 19]
    assert 3 in SeenBy("10:20:")


def test_a_position_stops_before_a_pages_header() -> None:
    assert [end_of_log(Lsn(8192 * 3 + offset)) - 8192 * 3 for offset in (0, 24, 32, 40, 48)] == [0, 0, 32, 0, 48]


@pytest.mark.parametrize(
    ("key", "hashed"),
    # Kafka's own test: org.apache.kafka.common.utils.UtilsTest.testMurmur2
    [(b"21", -973932308), (b"foobar", -790332482), (b"a-little-bit-long-string", -985981536), (b"abc", 479470107)],
)
def test_a_key_is_hashed_as_java_does(key: bytes, hashed: int) -> None:
    assert murmur2(key) == hashed & 0xFFFFFFFF
