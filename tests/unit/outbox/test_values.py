"""Single values of a row: what they become, and why not."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.errors import InvalidEvent
from cdc.outbox import values


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"2026-01-31 12:00:00", b"2026-01-31T12:00:00Z"),
        (b"2026-01-31T12:00:00Z", b"2026-01-31T12:00:00Z"),
        (b"2026-01-31 12:00:00.5+00", b"2026-01-31T12:00:00.5Z"),
        (b"2026-01-31 12:00:00+01", b"2026-01-31T12:00:00+01:00"),
        (b"2026-01-31 12:00:00-0330", b"2026-01-31T12:00:00-03:30"),
        (b"2026-01-31 12:00:00+05:45", b"2026-01-31T12:00:00+05:45"),
    ],
)
def test_a_time_is_rfc_3339(value: bytes, text: bytes) -> None:
    assert values.time(value) == text
    assert values.timestamptz(value) == text


@given(st.binary(max_size=40))
def test_any_bytes_are_a_time_or_an_invalid_event(value: bytes) -> None:
    for read in (values.time, values.timestamptz):
        try:
            text = read(value)
        except InvalidEvent as error:
            found = error.reason
        else:
            found = "mapping" if re.match(rb"\d{4}-\d\d-\d\dT", text) or value.endswith(b"+00") else text.decode()
        assert found == "mapping"


@given(st.integers(0))
def test_a_number_is_read(number: int) -> None:
    if number < 10**400:
        assert values.number("partition", str(number).encode(), "route") == number


@pytest.mark.parametrize("value", [b"", b"-1", b"1.5", b" 1", b"x", "\u0661".encode()])
def test_what_is_no_number_is_refused_with_the_reason_that_was_given(value: bytes) -> None:
    with pytest.raises(InvalidEvent) as caught:
        values.number("partition", value, "route")
    assert caught.value.reason == "route"


def test_own_headers_keep_json_for_what_is_no_string() -> None:
    assert values.own_headers('{"a":"é","b":1.50,"c":{"d":[true]},"e":null,"":"x"}'.encode()) == [
        ("a", "é".encode()),
        ("b", b"1.5"),
        ("c", b'{"d":[true]}'),
        ("e", None),
        ("", b"x"),
    ]


def test_a_long_reserved_name_is_cut() -> None:
    with pytest.raises(InvalidEvent) as caught:
        values.own_headers(b'{"ce_' + b"x" * 1_000 + b'":1}')
    assert len(caught.value.what) < 120


def test_the_version_among_a_rows_headers() -> None:
    assert values.version_of([("a", b"b"), ("schema_version", b"3")]) == b"3"
    assert values.version_of([("a", b"b")]) is None


def test_bytea_is_read_from_hex() -> None:
    assert values.raw("payload", b"\\x00ff") == b"\0\xff"
    for wrong in (b"\\x0", b"\\xgg", b"\\x\xff\xff"):
        with pytest.raises(InvalidEvent, match=r"outbox.columns.payload is not bytea in hex form"):
            values.raw("payload", wrong)


def test_text_must_be_there() -> None:
    assert values.text("type", "é".encode()) == "é"
    with pytest.raises(InvalidEvent, match="the row has no type"):
        values.text("type", None)


def test_a_payload_is_parsed_for_its_paths() -> None:
    assert values.parsed(None) is None
    assert values.parsed(b'{"a":1}') == {"a": 1}
    with pytest.raises(InvalidEvent) as caught:
        values.parsed(b"secret")
    assert str(caught.value) == "the payload is not JSON"


@pytest.mark.parametrize(
    ("document", "path", "key", "found"),
    [
        ({"a": {"b": "x"}}, ("a", "b"), "type", b"x"),
        ({"a": {"b": 7}}, ("a", "b"), "partition", b"7"),
        ({"a": None}, ("a",), "type", None),
        ({"a": "x"}, ("a", "b"), "type", None),
        ({}, ("a",), "type", None),
        (None, ("a",), "type", None),
        ({"h": {"x": 1}}, ("h",), "headers", b'{"x":1}'),
    ],
)
def test_a_path_is_followed(document: object, path: tuple[str, ...], key: str, found: bytes | None) -> None:
    assert values.followed(document, path, key) == found


@pytest.mark.parametrize(
    ("oid", "text", "found"),
    [
        (16, b"t", b"true"),
        (23, b"-7", b"-7"),
        (701, b"1e+300", b"1e+300"),
        (701, b"Infinity", b'"Infinity"'),
        (1009, b'{a,NULL,"b \\"c"}', b'["a",null,"b \\"c"]'),
        (1184, b"2024-03-10 07:30:00.5+00", b'"2024-03-10 07:30:00.5+00"'),
        (1231, b"{1.10,{2}}", b"[1.10,[2]]"),
        (1700, b"12345678901234567890.1230", b"12345678901234567890.1230"),
        (1700, b"NaN", b'"NaN"'),
        (1001, b'{"\\\\x00ff"}', b'["\\u0000\\u00ff"]'),
        (3807, b'{"{\\"a\\": 1.10}"}', b'[{"a":1.10}]'),
    ],
)
def test_a_column_of_its_own_type_is_the_json_of_its_value(oid: int, text: bytes, found: bytes) -> None:
    assert values.is_typed(oid)
    assert values.json_of(oid, text) == found


@pytest.mark.parametrize("oid", [0, 17, 25, 114, 1042, 1043, 3802, 16_384, 70_000])
def test_json_text_bytes_and_users_types_are_taken_as_they_are(oid: int) -> None:
    assert not values.is_typed(oid)


def test_a_column_that_is_not_of_its_type_is_refused() -> None:
    with pytest.raises(InvalidEvent) as caught:
        values.json_of(23, b"seven")
    assert caught.value.reason == "mapping"
