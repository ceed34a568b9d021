"""A logical message read as a row: the same contract as the table's, digit for digit."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.errors import InvalidEvent
from cdc.outbox.mapping import OutboxMapping
from cdc.outbox.message import read, relation_of
from cdc.outbox.router import Router
from cdc.postgres.transaction import MESSAGES, Row
from tests.unit.outbox.samples import BEGIN, BODY, BYTEA, SEQUENCE, Asked, row

MAPPING = OutboxMapping(source="/shop", message_prefix="outbox")
TABLE = relation_of(MAPPING)
EVENT = {"id": "m1", "aggregatetype": "order", "aggregateid": "k1", "type": "OrderPlaced"}


def text(payload: str = '{"n":5,"kind":"x"}', **changes: object) -> bytes:
    """Write an event with this text as its payload."""
    members = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in (EVENT | changes).items()]
    return ("{ " + ", ".join([*members, f'"payload" : {payload}']) + " }").encode()


def message(content: bytes, ordinal: int = 0) -> Row:
    return (BEGIN, MESSAGES, ordinal, (content,))


def values(content: bytes) -> dict[str, bytes | None]:
    return {column.name: value for column, value in zip(TABLE.columns, read(content, TABLE), strict=True) if value is not None}


def made(mapping: OutboxMapping = MAPPING) -> Router:
    return Router(mapping, Asked(), 3)


def test_a_message_becomes_what_its_row_would() -> None:
    router = made()
    record = router.route(message(text(), 1))
    as_row = router.route(row(id=b"m1", ordinal=1))
    assert record == as_row
    assert record.value == b"\0\0\0\0\x08" + BODY
    assert ("ce_sequence", SEQUENCE + b"00000001") in record.headers


def test_rows_and_messages_mix_without_compiling_anew() -> None:
    router = made()
    plain = row()
    first = router.route(plain)
    router.route(message(text()))
    converters = [known[2] for known in router._known.values()]
    assert [router.route(plain), router.route(message(text())).topic] == [first, first.topic]
    assert [known[2] for known in router._known.values()] == converters


def test_the_payload_is_taken_as_it_is_written() -> None:
    exact = '{"n": 12345678901234567890.10,"a":[1,  2],"t":"\\u00e9"}'
    assert values(text(exact))["payload"] == exact.encode()
    assert values(text("[1]", headers={"a": "b"}))["headers"] == b'{"a": "b"}'


def test_numbers_are_texts_and_null_is_null() -> None:
    found = values(text(schema_version=2, partition=3, occurred_at=None))
    assert (found["schema_version"], found["partition"], "occurred_at" in found) == (b"2", b"3", False)
    assert "payload" not in values(text("null"))


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"x", b"[]", b"{", b'{"id"}', b'{"id":1,}', b'{"id":1} x', b'{"id":1 "type":2}', b"{1:2}", b'{"id":1,"id":2}'),
        *(b"\xff", b"[" * 100_000),
    ],
    ids=lambda content: content[:20].decode(errors="replace"),
)
def test_what_is_no_object_is_refused(content: bytes) -> None:
    with pytest.raises(InvalidEvent, match="not a JSON object"):
        read(content, TABLE)


def test_an_object_without_members_lacks_its_id() -> None:
    with pytest.raises(InvalidEvent, match="no id"):
        made().route(message(b" { } "))


def test_a_name_that_is_no_column_is_refused_by_name() -> None:
    with pytest.raises(InvalidEvent, match="'agregateid'") as caught:
        read(text(agregateid="secret"), TABLE)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(("value", "words"), [({"a": 1}, "is an object"), ([1], "is an array"), ("\ud800", "surrogate")])
def test_a_value_that_is_neither_text_nor_number_is_refused(value: object, words: str) -> None:
    with pytest.raises(InvalidEvent, match=words):
        read(text(id=value), TABLE)


def test_a_dead_letter_keeps_what_can_be_read_else_all_of_it() -> None:
    router = made()
    assert router.values(message(text()))["id"] == b"m1"
    assert router.values(message(b"no json")) == {"payload": b"no json"}


def test_mapped_columns_and_paths() -> None:
    mapping = OutboxMapping(columns={"id": "event_id", "type": "payload.kind"}, source="/shop", message_prefix="p")
    content = b'{"event_id":"m1","aggregatetype":"order","aggregateid":"k1","payload":{"n":5,"kind":"OrderPlaced"}}'
    record = made(mapping).route(message(content))
    assert ("ce_id", b"m1") in record.headers
    assert ("ce_type", b"OrderPlaced") in record.headers


def test_encoded_bytes_are_written_as_postgresql_writes_bytea() -> None:
    mapping = OutboxMapping(source="/shop", payload="avro", message_prefix="p")
    assert next(column.type_oid for column in relation_of(mapping).columns if column.name == "payload") == BYTEA
    record = made(mapping).route(message(text('"\\\\x' + BODY.hex() + '"')))
    assert record.value == b"\0\0\0\0\x08" + BODY


@given(st.text() | st.binary().map(lambda raw: raw.decode(errors="replace")))
def test_any_content_is_values_or_an_invalid_event(content: str) -> None:
    with contextlib.suppress(InvalidEvent):
        assert len(read(content.encode(errors="replace"), TABLE)) == len(TABLE.columns)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8
)


@given(JSON, st.sampled_from([None, 1]), st.booleans())
def test_what_json_writes_is_read(payload: object, indent: int | None, ascii_: bool) -> None:
    written = json.dumps(EVENT | {"payload": payload}, indent=indent, ensure_ascii=ascii_).encode(errors="replace")
    found = values(written)
    assert found["id"] == b"m1"
    assert ("payload" in found) == (payload is not None)
    if payload is not None:
        assert json.loads(found["payload"] or b"") == json.loads(written)["payload"]
