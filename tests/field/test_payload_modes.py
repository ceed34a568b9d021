"""Payloads that are Avro already, values that stay JSON, whose version counts, and columns that are no JSON: end to end.

Field case 42 among them. The database's own settings are set against us (DateStyle, TimeZone, bytea_output, ..): what a column
becomes must not depend on them.
"""

from __future__ import annotations

import datetime as dt
import io
import json
import secrets
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import fastavro
import pytest
from psycopg import sql

from tests.conftest import Pipelines
from tests.pipeline import SCHEMA, Event, Pipeline, decode, write_schemas

pytestmark = pytest.mark.servers

AWKWARD = {
    "DateStyle": "SQL, DMY",
    "TimeZone": "Asia/Kathmandu",
    "bytea_output": "escape",
    "IntervalStyle": "iso_8601",
    "extra_float_digits": "-5",
}
BLOB = b"\x00\x5c\x27\xff"


@pytest.fixture
def pipeline(pipelines: Pipelines, database: str, kafka: str) -> Iterator[Pipeline]:
    with pipelines(database, kafka) as made:
        name = made.execute("SELECT current_database()")[0][0]
        alter = sql.SQL("ALTER DATABASE {} SET {} = {}")
        for setting, value in AWKWARD.items():
            made.execute(alter.format(sql.Identifier(name), sql.Identifier(setting), sql.Literal(value)).as_string())
        made.hang_up()
        yield made


def make_table(pipeline: Pipeline, payload: str, key: str = "text", **more: str) -> None:
    extra = "".join(f", {name} {kind}" for name, kind in more.items())
    pipeline.execute(
        f"CREATE TABLE outbox (id text PRIMARY KEY, aggregatetype text, aggregateid {key}, type text, payload {payload}{extra})"
    )


def insert(pipeline: Pipeline, name: str, payload: object, kind: str = "Thing", **more: object) -> None:
    row = {"id": name, "aggregatetype": "thing", "aggregateid": "k", "type": kind, "payload": payload, **more}
    columns, values = list(row), list(row.values())
    pipeline.execute(f"INSERT INTO outbox ({', '.join(columns)}) VALUES ({', '.join(['%s'] * len(columns))})", values)


def published(pipeline: Pipeline) -> dict[str, Event]:
    pipeline.wait_confirmed()
    return {event.headers["ce_id"].decode(): event for event in pipeline.events()}


def dead(pipeline: Pipeline) -> dict[str, Event]:
    return {event.headers["cdc.id"].decode(): event for event in pipeline.events(pipeline.dead_letter_topic)}


def body(schema: Any, value: object) -> bytes:  # noqa: ANN401 - any Avro schema
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def value_of(event: Event, schema: Any) -> object:  # noqa: ANN401 - any Avro schema
    assert event.value is not None
    return fastavro.schemaless_reader(io.BytesIO(event.value[5:]), fastavro.parse_schema(schema), None)


def verified(pipeline: Pipeline) -> dict[str, int]:
    answer = pipeline.here("verify", "--json")
    assert answer.code == 0, answer
    return {name: count for name, count in json.loads(answer.out.splitlines()[-1]).items() if count}


@pytest.mark.parametrize("column", ["bytea", "blob"])
def test_bytes_that_are_avro_pass_and_others_are_kept_as_they_are(pipeline: Pipeline, column: str) -> None:
    pipeline.execute("CREATE DOMAIN blob AS bytea")
    make_table(pipeline, column)
    pipeline.set(outbox__payload="avro").init()
    pipeline.started()
    good = body(SCHEMA, {"n": 7, "text": "Grüße"})
    wrong = {"left over": good + b"\0", "cut off": good[:-1], "random": b"\xff" + BLOB, "nothing": b""}
    insert(pipeline, "good", good)
    insert(pipeline, "framed", b"\0\0\0\0\1" + good)
    insert(pipeline, "tombstone", None)
    for name, data in wrong.items():
        insert(pipeline, name, data)
    events = published(pipeline)
    assert events.keys() == {"good", "framed", "tombstone"}
    assert events["good"].value == events["framed"].value
    assert events["good"].value is not None
    assert events["good"].value[5:] == good
    assert events["good"].headers["content-type"] == b"application/avro"
    assert events["tombstone"].value is None
    letters = dead(pipeline)
    assert {name: event.value for name, event in letters.items()} == wrong
    assert {event.headers["cdc.reason"] for event in letters.values()} == {b"schema"}
    assert verified(pipeline) == {"rows": 7, "events": 3, "dead_letters": 4}


@pytest.mark.parametrize("payload", ["json", "avro"])
def test_field_case_42_bytea_through_the_whole_pipeline(pipeline: Pipeline, payload: str) -> None:
    write_schemas(pipeline.folder / "schemas", {"Blob": "bytes"})  # type: ignore[dict-item]  # a schema may be a name
    make_table(pipeline, "bytea", key="bytea")
    pipeline.set(outbox__payload=payload)
    pipeline.init()
    pipeline.started()
    contents = {"four": BLOB, "empty": b"", "large": secrets.token_bytes(900_000)}
    for name, data in contents.items():
        insert(pipeline, name, data if payload == "json" else body("bytes", data), "Blob", aggregateid=BLOB)
    events = published(pipeline)
    assert {name: value_of(event, "bytes") for name, event in events.items()} == contents
    assert {event.key for event in events.values()} == {BLOB}
    assert verified(pipeline) == {"rows": 3, "events": 3}


def test_values_that_stay_json_are_checked_all_the_same(pipeline: Pipeline) -> None:
    make_table(pipeline, "json")
    pipeline.set(topics__value="json").init()
    pipeline.started()
    text = '{ "n": 9007199254740993,\n "text": "Gr\\u00fc\\u00dfe" }'
    insert(pipeline, "good", text)
    insert(pipeline, "wrong", '{"n": "seven"}')
    events = published(pipeline)
    assert {name: event.value for name, event in events.items()} == {"good": text.encode()}
    assert events["good"].headers["content-type"] == b"application/json"
    assert events["good"].headers["ce_dataschema"] == b"Thing/1"
    assert {name: event.value for name, event in dead(pipeline).items()} == {"wrong": b'{"n": "seven"}'}
    assert verified(pipeline) == {"rows": 2, "events": 1, "dead_letters": 1}


def test_an_envelope_tells_all_that_a_consumer_without_avro_needs(pipeline: Pipeline) -> None:
    make_table(pipeline, "json", headers="jsonb", traceparent="text")
    pipeline.set(topics__value="envelope").init()
    pipeline.started()
    text = '{ "n": 9007199254740993,\n "text": "Gr\\u00fc\\u00dfe" }'
    insert(pipeline, "good", text, headers='{"correlationid": "c1"}', traceparent="00-" + "ab" * 16 + "-" + "cd" * 8 + "-01")
    insert(pipeline, "wrong", '{"n": "seven"}')
    event = published(pipeline)["good"]
    assert event.value is not None
    envelope = json.loads(event.value)
    assert event.value.endswith(text.encode() + b"}")
    assert (envelope["id"], envelope["type"], envelope["source"], envelope["subject"]) == ("good", "Thing", f"/{pipeline.name}", "k")
    assert envelope["metadata"]["correlation_id"] == "c1"
    assert envelope["metadata"]["sequence"].encode() == event.headers["ce_sequence"]
    assert dead(pipeline).keys() == {"wrong"}
    assert verified(pipeline) == {"rows": 2, "events": 1, "dead_letters": 1}
    shown = json.loads(pipeline.here("tail", "--from-beginning", "--json", event.topic).out.splitlines()[0])
    assert shown["value"]["n"] == 9007199254740993


def test_the_version_comes_from_the_row_its_headers_the_pin_or_is_the_newest(pipeline: Pipeline) -> None:
    folder = pipeline.folder / "schemas"
    write_schemas(folder)
    for number, name in ((2, "second"), (3, "third")):
        fields: list[Any] = [*SCHEMA["fields"], {"name": name, "type": "int", "default": 0}]
        (folder / "Thing" / f"{number}.avsc").write_text(json.dumps({**SCHEMA, "fields": fields}))
    assert pipeline.here("schemas", "add", "--all").code == 0
    make_table(pipeline, "jsonb", schema_version="integer", headers="jsonb")
    pipeline.init()
    pipeline.started()
    headers = '{"schema_version": "2", "tenant": "a"}'

    def some(prefix: str) -> None:
        insert(pipeline, f"{prefix} none", '{"n": 1}')
        insert(pipeline, f"{prefix} headers", '{"n": 1}', headers=headers)
        insert(pipeline, f"{prefix} number", '{"n": 1}', headers='{"schema_version": 2}')
        insert(pipeline, f"{prefix} column", '{"n": 1}', headers=headers, schema_version=1)
        insert(pipeline, f"{prefix} unknown", '{"n": 1}', headers='{"schema_version": 9}')

    some("newest")
    pipeline.wait_confirmed()
    (folder / "registry.toml").write_text("[subjects.Thing]\npinned = 1\n")
    pipeline.stop()
    pipeline.started()
    some("pinned")
    events = published(pipeline)
    versions = {name: event.headers["ce_dataschema"].decode() for name, event in events.items()}
    assert versions == {
        "newest none": "Thing/3", "newest headers": "Thing/2", "newest number": "Thing/2", "newest column": "Thing/1",
        "pinned none": "Thing/1", "pinned headers": "Thing/2", "pinned number": "Thing/2", "pinned column": "Thing/1",
    }  # fmt: skip
    assert events["pinned headers"].headers["tenant"] == b"a"
    ids = {name: int.from_bytes((event.value or b"")[1:5], "big") for name, event in events.items()}
    assert ids["newest none"] == 3
    assert ids["pinned none"] == 1
    assert dead(pipeline).keys() == {"newest unknown", "pinned unknown"}


MICROS = {"type": "long", "logicalType": "timestamp-micros"}
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 4}
INSTANT = dt.datetime(2024, 3, 10, 7, 30, 0, 500_000, tzinfo=dt.UTC)
TYPED: dict[str, tuple[str, object, str, object]] = {
    "numeric": ("numeric(30,4)", DECIMAL, "12345678901234567890.1234", Decimal("12345678901234567890.1234")),
    "domain over numeric": ("amount", DECIMAL, "0.1000", Decimal("0.1000")),
    "timestamptz": ("timestamptz", MICROS, "2024-03-10 02:30:00.5-05", INSTANT),
    "domain over timestamptz": ("moment", MICROS, "2024-03-10 02:30:00.5-05", INSTANT),
    "date": ("date", {"type": "int", "logicalType": "date"}, "2024-03-10", dt.date(2024, 3, 10)),
    "boolean": ("boolean", "boolean", "t", True),
    "bigint": ("bigint", "long", "9007199254740993", 9007199254740993),
    "double": ("double precision", "double", "0.1", 0.1),
    "text array": ("text[]", {"type": "array", "items": ["null", "string"]}, '{a,NULL,"b,c"}', ["a", None, "b,c"]),
    "numeric array": ("numeric[]", {"type": "array", "items": DECIMAL}, "{1.5,2}", [Decimal("1.5000"), Decimal("2.0000")]),
    "uuid": ("uuid", {"type": "string", "logicalType": "uuid"}, "0189D3F4-7A0C-7B3E-9F1E-0A1B2C3D4E5F", None),
    "domain over jsonb": ("document", {"type": "map", "values": "int"}, '{"a": 1}', {"a": 1}),
}


def test_a_payload_of_a_type_of_its_own_is_decoded_by_it(pipeline: Pipeline) -> None:
    domains = (("amount", "numeric(30,4)"), ("moment", "timestamptz"), ("inner_document", "jsonb"), ("document", "inner_document"))
    for domain, base in domains:
        pipeline.execute(f"CREATE DOMAIN {domain} AS {base}")
    kinds = {case: case.replace(" ", "_") for case in TYPED}
    write_schemas(pipeline.folder / "schemas", {kinds[case]: schema for case, (_, schema, _, _) in TYPED.items()})  # type: ignore[misc]
    make_table(pipeline, "text")
    pipeline.init()
    pipeline.started()
    pipeline.execute("SET DateStyle = 'ISO'")
    for number, (case, (column, schema, text, value)) in enumerate(TYPED.items()):
        pipeline.execute("DELETE FROM outbox")
        pipeline.execute(f"ALTER TABLE outbox ALTER payload TYPE {column} USING NULL")
        insert(pipeline, case, text, kinds[case])
        event = published(pipeline)[case]
        found = value_of(event, schema)
        assert str(found) == text.lower() if value is None else found == value, case
        assert verified(pipeline) == {"rows": 1, "events": number + 1, **({"deleted": number} if number else {})}
    assert dead(pipeline) == {}


KEYS = {
    "numeric(10,2)": ("1.50", b"1.50"),
    "timestamptz": ("2024-03-10 02:30:00.5-05", b"2024-03-10 07:30:00.5+00"),
    "text[]": ('{a,"b c"}', b'{a,"b c"}'),
    "mood": ("glad", b"glad"),
    "short": ("ab", b"ab"),
    "bytea": (BLOB, BLOB),
}


def test_keys_and_headers_do_not_depend_on_the_databases_settings(pipeline: Pipeline) -> None:
    pipeline.execute("CREATE TYPE mood AS ENUM ('glad', 'sad')")
    pipeline.execute("CREATE DOMAIN short AS varchar(5)")
    pipeline.execute("CREATE DOMAIN moment AS timestamptz")
    make_table(pipeline, "jsonb", happened="moment", mood="mood", part="numeric")
    pipeline.set(outbox__columns={"occurred_at": "happened", "type": "mood", "partition": "part"}, schemas__subject="Thing").init()
    pipeline.started()
    pipeline.execute("SET DateStyle = 'ISO'")
    more: dict[str, Any] = {"happened": "2024-12-31 23:00:00.25-02", "mood": "sad", "part": 0}
    for column, (text, key) in KEYS.items():
        pipeline.execute("DELETE FROM outbox")
        pipeline.execute(f"ALTER TABLE outbox ALTER aggregateid TYPE {column} USING NULL")
        insert(pipeline, column, '{"n": 1}', aggregateid=text, **more)
        event = published(pipeline)[column]
        assert event.key == key
        assert event.headers["ce_time"] == b"2025-01-01T01:00:00.25Z"
        assert event.headers["ce_type"] == b"sad"
        assert decode(event.value, SCHEMA)["n"] == 1
    assert dead(pipeline) == {}


def test_ids_by_a_path_are_in_the_dead_letter_and_it_can_be_redriven(pipeline: Pipeline) -> None:
    schema = {**SCHEMA, "fields": [*SCHEMA["fields"], {"name": "event", "type": {"type": "map", "values": "string"}}]}
    write_schemas(pipeline.folder / "schemas", {"Other": schema})
    pipeline.execute("CREATE TABLE outbox (payload jsonb)")
    paths = {"id": "payload.event.id", "type": "payload.event.type", "aggregateid": "payload.event.key"}
    pipeline.set(outbox__columns=paths, topics__route=pipeline.topic).init()
    pipeline.started()
    pipeline.execute('INSERT INTO outbox VALUES (\'{"n": 1, "text": "", "event": {"id": "e-1", "type": "Thing", "key": "k-1"}}\')')
    pipeline.wait_confirmed()
    (letter,) = dead(pipeline).values()
    assert (letter.headers["cdc.id"], letter.headers["cdc.type"], letter.key) == (b"e-1", b"Thing", b"k-1")
    write_schemas(pipeline.folder / "schemas", {"Thing": {**schema, "name": "Thing2"}}, locked=False)
    assert pipeline.here("schemas", "add", "--all").code == 0
    done = pipeline.here("dead-letters", "redrive", "e-1")
    assert done.code == 0, done
    (event,) = published(pipeline).values()
    assert (event.headers["ce_id"], event.key, event.headers["ce_replay"]) == (b"e-1", b"k-1", b"redrive:e-1")
    assert verified(pipeline) == {"rows": 1, "dead_letters": 1, "replayed": 1}
