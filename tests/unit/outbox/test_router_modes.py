"""Payloads that are Avro already, values that stay JSON, and versions that a row's headers name."""

from __future__ import annotations

import pytest

from cdc.avro.encoder import Encoder
from cdc.avro.parse import parse
from cdc.errors import InvalidEvent
from cdc.event import Record
from cdc.outbox.mapping import OutboxMapping
from cdc.outbox.router import Router
from cdc.position import Lsn
from cdc.postgres.pgoutput import Begin, Column, Relation

BYTEA, JSONB, TEXT = 17, 3802, 25
SCHEMA = {"type": "record", "name": "Thing", "fields": [{"name": "n", "type": "long"}]}
PAYLOAD = b'{"n": 7}'


def encoder(subject: str, version: int | None) -> Encoder:
    number = version or 2
    return Encoder(subject, number, 40 + number, parse(SCHEMA, subject))


def route(mapping: OutboxMapping, payload: bytes | None, *, payload_type: int = JSONB, headers: bytes | None = None) -> Record:
    names = (("id", TEXT), ("aggregatetype", TEXT), ("aggregateid", TEXT), ("type", TEXT), ("payload", payload_type), ("headers", JSONB))
    relation = Relation(1, "public", "outbox", "d", tuple(Column(name, oid, -1, False) for name, oid in names))
    values = (b"e-1", b"thing", b"k", b"Thing", payload, headers)
    return Router(mapping, encoder, 0).route((Begin(Lsn(100), 0, 7), relation, 0, values))


def test_a_json_payload_becomes_avro() -> None:
    record = route(OutboxMapping(), PAYLOAD)
    assert record.value == b"\0\0\0\0\x2a\x0e"
    assert ("content-type", b"application/avro") in record.headers
    assert ("ce_dataschema", b"Thing/2") in record.headers


def test_a_value_stays_json_when_that_is_asked_for_and_is_checked_all_the_same() -> None:
    mapping = OutboxMapping(value="json")
    record = route(mapping, PAYLOAD)
    assert record.value == PAYLOAD
    assert ("content-type", b"application/json") in record.headers
    with pytest.raises(InvalidEvent, match=r"\$\.n"):
        route(mapping, b'{"n": "seven"}')


def test_bytes_that_are_avro_pass_through_and_others_are_refused() -> None:
    mapping = OutboxMapping(payload="avro")
    assert route(mapping, rb"\x0e", payload_type=BYTEA).value == b"\0\0\0\0\x2a\x0e"
    with pytest.raises(InvalidEvent):
        route(mapping, rb"\x0eff", payload_type=BYTEA)


def test_json_in_a_bytea_column_is_read_as_its_bytes() -> None:
    assert route(OutboxMapping(), b"\\x" + PAYLOAD.hex().encode(), payload_type=BYTEA).value == b"\0\0\0\0\x2a\x0e"


def test_the_rows_headers_may_name_the_version() -> None:
    record = route(OutboxMapping(), PAYLOAD, headers=b'{"schema_version": 1, "tenant": "a"}')
    assert ("ce_dataschema", b"Thing/1") in record.headers
    assert ("tenant", b"a") in record.headers
    assert record.value == b"\0\0\0\0\x29\x0e"


def test_a_version_that_is_no_number_is_refused() -> None:
    with pytest.raises(InvalidEvent, match="schema_version"):
        route(OutboxMapping(), PAYLOAD, headers=b'{"schema_version": "new"}')


def test_paths_into_the_payload_keep_every_digit() -> None:
    mapping = OutboxMapping(columns={"type": "payload.kind"}, subject="Thing")
    with pytest.raises(InvalidEvent, match="unknown field 'kind'"):
        route(mapping, b'{"n": 7, "kind": "Thing"}')
