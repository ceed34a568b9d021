"""Field cases 37, 42, 43, 45, 46, 47: what PostgreSQL's types become, from the insert to the consumer."""

from __future__ import annotations

import secrets

import psycopg
import pytest
from psycopg import sql

from cdc.avro import columns
from cdc.avro.encoder import Encoder
from cdc.avro.parse import parse
from cdc.avro.schema import Json
from cdc.errors import InvalidEvent
from tests.pipeline import Pipeline, decode, write_schemas

pytestmark = pytest.mark.servers

TEXT = "Grüße €, 漢字, 😀"
NOTE = {"type": "record", "name": "Note", "doc": "A note.", "fields": [{"name": "note", "type": "string"}]}


def dead(pipeline: Pipeline) -> dict[str, str]:
    """Why rows were parked, by their id."""
    found = pipeline.events(pipeline.dead_letter_topic)
    return {e.headers["cdc.id"].decode(): e.headers["__connect.errors.exception.message"].decode() for e in found}


def make_table(pipeline: Pipeline, payload: str = "jsonb", **more: str) -> None:
    extra = "".join(f", {name} {kind}" for name, kind in more.items())
    pipeline.execute(
        f"CREATE TABLE outbox (id text PRIMARY KEY, aggregatetype text, aggregateid text, type text, payload {payload}{extra})"
    )


def insert(pipeline: Pipeline, name: str, payload: object, event_type: str = "Note") -> None:
    pipeline.execute(
        "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) VALUES (%s, 'thing', 'k', %s, %s)", (name, event_type, payload)
    )


def test_field_case_37_an_infinite_time_is_refused_by_name(pipeline: Pipeline) -> None:
    stamp = {"type": "long", "logicalType": "timestamp-micros"}
    day = {"type": "int", "logicalType": "date"}
    schema = {"type": "record", "name": "When", "doc": "A time.", "fields": [{"name": "at", "type": stamp}, {"name": "day", "type": day}]}
    write_schemas(pipeline.folder / "schemas", {"When": schema})
    make_table(pipeline, occurred_at="timestamptz")
    pipeline.init()
    pipeline.started()
    statement = (
        "INSERT INTO outbox SELECT x, 'thing', 'k', 'When', jsonb_build_object('at', %s::timestamptz, 'day', %s::date), %s::timestamptz"
        " FROM (VALUES (%s)) v(x)"
    )
    good = "2024-03-10 02:30:00.5-05"
    for name, at, date, occurred in (
        ("good", good, "2024-03-10", good),
        ("at", "infinity", "2024-03-10", good),
        ("at minus", "-infinity", "2024-03-10", good),
        ("day", good, "infinity", good),
        ("occurred", good, "2024-03-10", "infinity"),
        ("null", good, "2024-03-10", None),
    ):
        pipeline.execute(statement, (at, date, occurred, name))
    pipeline.wait_confirmed()
    reasons = dead(pipeline)
    assert reasons.keys() == {"at", "at minus", "day", "occurred"}
    assert "$.at: expected timestamp-micros" in reasons["at"]
    assert "$.day: expected date" in reasons["day"]
    assert "occurred_at" in reasons["occurred"]
    published = {event.headers["ce_id"].decode(): event for event in pipeline.events()}
    assert published.keys() == {"good", "null"}
    assert str(decode(published["good"].value, schema)["at"]) == "2024-03-10 07:30:00.500000+00:00"


@pytest.mark.parametrize("output", ["hex", "escape"])
def test_field_case_42_bytea_arrives_byte_for_byte(database: str, output: str) -> None:
    large = secrets.token_bytes(1_000_000)
    encoder = Encoder("Blob", 1, 1, parse("bytes", "Blob/1.avsc"))
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("SET bytea_output = hex")  # as our connection sets it, whatever the role says
        for data in (b"\x00\x5c\x27\xff", b"", large):
            row = connection.execute("SELECT %s::bytea::text", (data,)).fetchone()
            assert row is not None
            value = columns.value(columns.BYTEA, row[0])
            assert value == data
            assert encoder.encode_value(value)[5:].endswith(data)
        connection.execute(sql.SQL("SET bytea_output = {}").format(sql.Literal(output)))
        row = connection.execute("SELECT %s::bytea::text", (b"\x00\x5c\x27\xff",)).fetchone()
        assert row is not None
        if output == "escape":
            with pytest.raises(InvalidEvent, match="type 17"):
                columns.value(columns.BYTEA, row[0])


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_field_case_43_text_does_not_depend_on_the_roles_encoding(pipeline: Pipeline, encoding: str) -> None:
    write_schemas(pipeline.folder / "schemas", {"Note": NOTE})
    make_table(pipeline)
    pipeline.init()
    name = pipeline.execute("SELECT current_database()")[0][0]
    pipeline.connection.execute(sql.SQL("ALTER DATABASE {} SET client_encoding = {}").format(sql.Identifier(name), sql.Literal(encoding)))
    pipeline.started()
    insert(pipeline, "1", f'{{"note": "{TEXT}"}}')
    pipeline.wait_confirmed()
    (event,) = pipeline.events()
    assert decode(event.value, NOTE) == {"note": TEXT}


def test_field_case_45_a_nul_in_a_json_column_is_carried(pipeline: Pipeline) -> None:
    write_schemas(pipeline.folder / "schemas", {"Note": NOTE})
    make_table(pipeline, "json")
    pipeline.init()
    pipeline.started()
    insert(pipeline, "1", r'{"note": "a\u0000b"}')
    pipeline.wait_confirmed()
    (event,) = pipeline.events()
    assert decode(event.value, NOTE) == {"note": "a\0b"}


def test_field_case_46_numbers_keep_every_digit_from_jsonb(pipeline: Pipeline) -> None:
    amount = {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 19}
    fields: Json = [{"name": "id", "type": "long"}, {"name": "amt", "type": amount}]
    schema = {"type": "record", "name": "Amount", "doc": "An amount.", "fields": fields}
    write_schemas(pipeline.folder / "schemas", {"Amount": schema})
    make_table(pipeline)
    pipeline.init()
    pipeline.started()
    insert(pipeline, "1", '{"id": 9007199254740993, "amt": 0.1234567890123456789}', "Amount")
    insert(pipeline, "2", '{"id": 1, "amt": 1e400}', "Amount")
    pipeline.wait_confirmed()
    (event,) = pipeline.events()
    value = decode(event.value, schema)
    assert value["id"] == 9007199254740993
    assert str(value["amt"]) == "0.1234567890123456789"
    assert "$.amt: expected decimal(38,19)" in dead(pipeline)["2"]


def test_field_case_47_domains_and_enums_are_what_they_stand_on(pipeline: Pipeline) -> None:
    write_schemas(pipeline.folder / "schemas", {"Note": NOTE})
    pipeline.execute("CREATE DOMAIN doc AS jsonb CHECK (VALUE ? 'note')")
    pipeline.execute("CREATE DOMAIN key AS uuid")
    pipeline.execute("CREATE TYPE etype AS ENUM ('Note', 'Other')")
    pipeline.execute("CREATE TABLE outbox (id text PRIMARY KEY, aggregatetype text, aggregateid key, type etype, payload doc)")
    pipeline.init()
    pipeline.started()
    key = "0189d3f4-7a0c-7b3e-9f1e-0a1b2c3d4e5f"
    pipeline.execute("INSERT INTO outbox VALUES ('1', 'thing', %s, 'Note', %s)", (key, '{"note": "x"}'))
    pipeline.wait_confirmed()
    (event,) = pipeline.events()
    assert event.key == key.encode()
    assert event.headers["ce_type"] == b"Note"
    assert decode(event.value, NOTE) == {"note": "x"}
