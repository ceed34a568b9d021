"""The smaller parts of the room: pass-through, columns, masks, changes, catalogue, fingerprints, varints."""

from __future__ import annotations

import io
import json
from decimal import Decimal
from pathlib import Path

import fastavro
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cdc.avro import columns, folder, wire
from cdc.avro.catalogue import asyncapi, page
from cdc.avro.changes import changes
from cdc.avro.decoder import Decoder
from cdc.avro.encoder import Encoder
from cdc.avro.fingerprint import fingerprint, guid
from cdc.avro.masking import MASK, masked, masked_text
from cdc.avro.parse import parse
from cdc.avro.passthrough import Passthrough
from cdc.avro.schema import Json
from cdc.errors import InvalidEvent
from tests.unit.avro.avro_generate import text_of, typed

SHOP = Path(__file__).parents[3] / "schemas"
patient = settings(deadline=None, suppress_health_check=list(HealthCheck), database=None)


@given(st.integers(-(2**63), 2**63 - 1))
def test_a_varint_is_that_of_fastavro(number: int) -> None:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, "long", number)
    assert wire.long(number) == out.getvalue()
    if -wire.SMALL <= number < wire.LARGE:
        assert wire.LONG[number] == out.getvalue()


@pytest.mark.parametrize("number", [-wire.SMALL, -1, 0, 63, 64, wire.LARGE - 1, wire.LARGE, 2**27, -(2**27), 2**41, 2**55])
def test_the_table_ends_where_it_says(number: int) -> None:
    assert wire.COUNTS[number] == wire.long(number)
    if number >= wire.LARGE:
        with pytest.raises(IndexError):
            wire.COUNT[number]
    with pytest.raises(OverflowError):
        wire.int32(2**31 + abs(number))
    with pytest.raises(OverflowError):
        wire.long(2**63 + abs(number))


def test_texts_and_lists_beyond_the_table_are_written() -> None:
    encoder = Encoder("S", 1, 1, parse({"type": "array", "items": "string"}, "S"))
    value = ["x" * (wire.LARGE + 10)] * 2
    assert fastavro.schemaless_reader(io.BytesIO(encoder.encode_value(value)[5:]), {"type": "array", "items": "string"}, None) == value


@pytest.mark.parametrize(
    ("base", "name", "text", "fix"),
    [
        ("long", "timestamp-millis", "2026-01-02T03:04:05.678901+00:00", "date_trunc('milliseconds', ..), or declare timestamp-micros"),
        ("long", "local-timestamp-millis", "2026-01-02T03:04:05.678901", "or declare local-timestamp-micros"),
        ("int", "time-millis", "03:04:05.678901", "or declare time-micros"),
        ("long", "timestamp-micros", "2026-01-02T03:04:05.6789012Z", "truncate the time to microseconds, or declare timestamp-nanos"),
        ("long", "time-micros", "03:04:05.6789012", "truncate the time to microseconds"),
    ],
)
def test_a_time_that_is_too_fine_is_refused_with_the_way_out(base: str, name: str, text: str, fix: str) -> None:
    fields = [{"name": "n", "type": "long"}, {"name": "at", "type": ["null", {"type": base, "logicalType": name}]}]
    encoder = Encoder("Paid", 1, 1, parse({"type": "record", "name": "Paid", "fields": fields}, "Paid"))
    with pytest.raises(InvalidEvent, match=rf"\$\.at: expected {name}, came a time with more than \d digits") as refused:
        encoder.encode(json.dumps({"n": "canary", "at": text}))
    assert refused.value.fix.endswith(fix)
    assert "canary" not in str(refused.value)
    with pytest.raises(InvalidEvent) as other:
        encoder.encode('{"n": "canary", "at": null}')
    assert not other.value.fix


@settings(patient, max_examples=150)
@given(st.data())
def test_what_is_encoded_passes_through_and_what_is_cut_does_not(data: st.DataObject) -> None:
    generated = data.draw(typed())
    schema = parse(generated.schema, "S")
    passthrough = Passthrough("S/1", 7, schema)
    check = passthrough.check
    for pair in data.draw(st.lists(generated.values, min_size=3, max_size=3)):
        framed = Encoder("S", 1, 7, schema).encode(text_of(pair.json))
        body = framed[5:]
        if body[:5] != framed[:5]:
            assert check(body) == Encoder("S", 1, 7, schema).pass_through(body) == framed
        if passthrough._problem(framed) is None:  # by chance the frame and the body are a value as well
            with pytest.raises(InvalidEvent, match="both with and without"):
                check(framed)
        else:
            assert check(framed) == framed
        # No value's bytes begin another value's of the same schema, but a broken one may look framed by chance.
        for broken in {body + b"\xff", body[:-1]} - {body}:
            if not broken.startswith(framed[:5]):
                with pytest.raises(InvalidEvent):
                    check(broken)


def long_block(count: int) -> bytes:
    return wire.long(count)


@pytest.mark.parametrize(
    ("schema", "body", "words"),
    [
        ("boolean", b"\2", "stands no boolean"),
        ("int", wire.long(2**31), "more than 32 bits"),
        ("long", b"\xff" * 9 + b"\x7f", "more than 64 bits"),
        ("string", b"\x02\xff", "a text is not UTF-8"),
        ("bytes", b"\x01", "the bytes end too early"),
        ("string", b"\x08ab", "the bytes end too early"),
        (["null", "int"], b"\x04", "branch of a union that does not exist"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x02", "symbol of E that does not exist"),
        ({"type": "array", "items": "null"}, wire.long(2**40) + b"\0", "longer than the payload"),
        ({"type": "array", "items": "int"}, b"\x01\x06\x02\x00", "not as long as it says"),
        ({"type": "string", "logicalType": "uuid"}, b"\x02a", "not a uuid"),
        ({"type": "int", "logicalType": "time-millis"}, wire.long(86_400_000), "outside of the day"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 0}, b"\x02\x64", "more than 2 digits"),
        ({"type": "fixed", "name": "F", "size": 1, "logicalType": "decimal", "precision": 2}, b"\x64", "more than 2 digits"),
        ("int", b"\x02\x02", "1 bytes are left over"),
    ],
)
def test_bytes_that_no_writer_made_are_refused(schema: Json, body: bytes, words: str) -> None:
    with pytest.raises(InvalidEvent) as caught:
        Passthrough("S/1", 7, parse(schema, "S")).check(body)
    assert caught.value.reason == "schema"
    assert words in str(caught.value)


def test_lists_pass_in_blocks_of_any_size() -> None:
    check = Passthrough("S/1", 7, parse({"type": "array", "items": "int"}, "S")).check
    for body in (b"\0", b"\2\2\2\2\0", b"\1\2\2\0", b"\3\4\2\2\0"):
        assert check(body) == b"\0\0\0\0\7" + body


@pytest.mark.parametrize(
    ("oid", "text", "value"),
    [
        (columns.BOOL, "t", True),
        (columns.BYTEA, "\\x005c27ff", b"\x00\x5c\x27\xff"),
        (columns.BYTEA, "\\x", b""),
        (columns.INT8, "-9223372036854775808", -(2**63)),
        (columns.NUMERIC, "1.2300", Decimal("1.2300")),
        (columns.NUMERIC, "NaN", "NaN"),
        (columns.FLOAT8, "-0", -0.0),
        (columns.FLOAT8, "Infinity", "Infinity"),
        (columns.JSONB, '{"a": 0.10}', {"a": Decimal("0.10")}),
        (columns.TEXT, "t", "t"),
        (2950, "0189d3f4-7a0c-7b3e-9f1e-0a1b2c3d4e5f", "0189d3f4-7a0c-7b3e-9f1e-0a1b2c3d4e5f"),
        (1184, "2024-03-10 02:30:00+00", "2024-03-10 02:30:00+00"),
        (1007, "{1,NULL,-3}", [1, None, -3]),
        (1007, "{}", []),
        (1007, "[2:3]={1,2}", [1, 2]),
        (1007, "{{1,2},{3,4}}", [[1, 2], [3, 4]]),
        (1009, '{a,"b c","NULL",NULL,"q\\"\\\\",""}', ["a", "b c", "NULL", None, 'q"\\', ""]),
    ],
)
def test_a_column_is_decoded_by_its_type(oid: int, text: str, value: Json) -> None:
    assert columns.value(oid, text) == value
    assert type(columns.value(oid, text)) is type(value)


@pytest.mark.parametrize(("oid", "text"), [(16, "yes"), (17, "abc"), (23, "x"), (1007, "{1"), (1007, "1"), (1007, "{1}x"), (114, "{")])
def test_a_text_of_another_form_is_refused(oid: int, text: str) -> None:
    with pytest.raises(InvalidEvent) as caught:
        columns.value(oid, text)
    assert caught.value.reason == "mapping"


def test_personal_fields_are_masked_wherever_they_are() -> None:
    value = {
        "customer": {"email": "a", "id": 1, "name": "Ada, a text where an object was meant", "card": None},
        "lines": [{"name": "b"}, {"name": "c"}],
        "by": {"x": {"phone": 1}},
        "pay": {"shop.Card": {"no": 2}},
    }
    personal = ["customer.email", "$.lines.name", "by.*.phone", "pay.no", "absent.field", "customer.name.first", "customer.card.no"]
    shown = masked(value, personal)
    assert shown == {
        "customer": {"email": MASK, "id": 1, "name": MASK, "card": None},
        "lines": [{"name": MASK}, {"name": MASK}],
        "by": {"x": {"phone": MASK}},
        "pay": {"shop.Card": {"no": MASK}},
    }
    assert value["customer"]["email"] == "a"  # type: ignore[index]
    assert masked_text(b'{"email": "a"}', ["email"]) == '{"email":"***"}'
    assert masked_text(b"{broken a@example.com", ["email"]) == MASK
    assert masked_text(b"{broken", []) == "{broken"


def test_what_a_schema_does_not_know_is_masked_as_well_where_there_are_personal_fields() -> None:
    inner = {"type": "record", "name": "Inner", "fields": [{"name": "a", "type": "string"}]}
    schema = parse(
        record(
            email="string",
            one=inner,
            many={"type": "array", "items": "Inner"},
            by={"type": "map", "values": "Inner"},
            some=["null", "Inner"],
            either=["Inner", {"type": "map", "values": "string"}],
        ),
        "R",
    )
    value = {
        "emial": "ada@example.com",
        "email": "ada@example.com",
        "one": {"a": 1, "b": "Ada"},
        "many": [{"b": 1}, {"a": "x"}],
        "by": {"k": {"a": "x", "b": "Ada"}},
        "some": {"b": "Ada"},
        "either": {"a": "x", "b": "y"},
    }
    shown = json.loads(masked_text(json.dumps(value), ["email"], schema))
    assert shown == {
        "emial": MASK,
        "email": MASK,
        "one": {"a": 1, "b": MASK},
        "many": [{"b": MASK}, {"a": "x"}],
        "by": {"k": {"a": "x", "b": MASK}},
        "some": {"b": MASK},
        "either": MASK,
    }
    named = {"either": {"Inner": {"a": "x", "b": "y"}}, "one": ["Ada"], "many": {"a": "Ada"}, "some": None}
    assert json.loads(masked_text(json.dumps(named), ["email"], schema)) == {
        "either": {"Inner": {"a": "x", "b": MASK}}, "one": MASK, "many": MASK, "some": None,
    }  # fmt: skip
    assert json.loads(masked_text(json.dumps(value), [], schema)) == value


def record(**fields: Json) -> Json:
    return {"type": "record", "name": "R", "fields": [{"name": key, "type": kind} for key, kind in fields.items()]}


def test_changes_are_said_in_words() -> None:
    enum = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
    old = record(a="int", b=["null", "int"], e=enum, f={"type": "fixed", "name": "F", "size": 1}, l={"type": "array", "items": "int"})
    new = record(
        b=["null", "string"], e={**enum, "symbols": ["B", "C"], "default": "B"}, f={"type": "fixed", "name": "F", "size": 2},
        l={"type": "array", "items": "long"}, m={"type": "map", "values": "int"},
    )  # fmt: skip
    assert set(changes(parse(old, "1"), parse(new, "2"))) == {
        "$.m: added, map, without a default",
        "$.a: removed",
        "$.b: branch string added",
        "$.b: branch int removed",
        "$.e: symbols added to E: C",
        "$.e: symbols removed from E: A",
        "$.e: the default of E changed from None to B",
        "$.f: fixed F of 1 bytes became fixed F of 2",
        "$.l[*]: int became long",
    }
    same = parse(old, "1")
    assert changes(same, same) == []


@settings(patient, max_examples=200)
@given(typed())
def test_no_change_is_the_same_fingerprint_and_the_other_way_round(generated: Json) -> None:
    schema = parse(generated.schema, "S")
    again = parse(json.loads(json.dumps(schema.document)), "S")
    assert fingerprint(schema) == fingerprint(again)
    assert changes(schema, again) == []
    assert guid(fingerprint(schema)).version == 8


def test_the_catalogue_shows_every_subject() -> None:
    registry = folder.load(SHOP)
    text = page(registry, "Events")
    document = asyncapi(registry, "Events")
    assert document["asyncapi"] == "3.0.0"
    for subject in registry.subjects:
        assert f"\n## {subject}\n" in text
        assert document["components"]["messages"][subject]["payload"]["schema"] == registry.latest(subject).schema.document
        topic = registry.settings_of(subject).topic
        assert document["channels"][topic]["messages"][subject] == {"$ref": f"#/components/messages/{subject}"}
    assert json.loads(json.dumps(document))["operations"]


def test_the_shops_events_decode_as_they_were() -> None:
    registry = folder.load(SHOP)
    value = {"orderId": "1", "amountCents": 5, "currency": "EUR", "method": "CARD"}
    assert Decoder(registry).decode(registry.encoder("OrderPaid").encode(json.dumps(value))) == value


CANARY = "canary-7f3a"


@settings(patient, max_examples=200)
@given(st.data())
def test_no_refusal_repeats_a_value(data: st.DataObject) -> None:
    schema = parse(data.draw(typed()).schema, "S")
    leaf = st.sampled_from([CANARY, 4711.4711, True, None, 10**30])
    value = data.draw(
        st.recursive(leaf, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.just(CANARY + "@"), inner, max_size=1))
    )
    words = ""
    try:
        Encoder("S", 1, 7, schema).encode(json.dumps(value))
    except InvalidEvent as refused:
        words = str(refused)
    assert CANARY not in words
    assert "4711" not in words
