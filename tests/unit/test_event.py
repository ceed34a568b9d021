"""The bound of a record's size holds for what a broker counts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cdc.event import HEADER_OVERHEAD_BYTES, RECORD_OVERHEAD_BYTES, Record, record_size

BYTES = st.none() | st.binary(max_size=300)


def varint(number: int) -> int:
    """Return the bytes of a zigzag varint."""
    return max(1, -(-(number << 1).bit_length() // 7))


@given(BYTES, BYTES, st.lists(st.tuples(st.text(max_size=20), BYTES), max_size=10))
def test_the_size_is_an_upper_bound(key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]) -> None:
    record = Record("t", key, value, headers, 0)
    body = 1 + 10 + 5 + varint(len(key or b"")) + len(key or b"") + varint(len(value or b"")) + len(value or b"") + varint(len(headers))
    body += sum(varint(len(n.encode())) + len(n.encode()) + varint(len(v or b"")) + len(v or b"") for n, v in headers)
    assert record_size(record) >= 61 + varint(body) + body


def test_the_size_counts_each_part() -> None:
    assert record_size(Record("t", b"kk", b"vvv", [("é", b"1"), ("n", None)], 0)) == (
        RECORD_OVERHEAD_BYTES + 2 + 3 + 2 * HEADER_OVERHEAD_BYTES + 2 + 1 + 1
    )
    assert record_size(Record("t", None, None, [], 0)) == RECORD_OVERHEAD_BYTES


def test_a_record_goes_by_its_key_unless_told_otherwise() -> None:
    assert Record("t", b"k", None, [], 0).partition == -1
