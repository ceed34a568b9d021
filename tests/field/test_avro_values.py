"""Field cases 39, 45, 46, 71, 93 to 97, 100, 101, 103, 104, 106, 108, 110, 112: values and schemas, without servers."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import fastavro
import pytest

from cdc.avro import folder
from cdc.avro.compatibility import Versioned, breaches
from cdc.avro.decoder import Decoder, MalformedError, UnknownSchemaError
from cdc.avro.encoder import Encoder
from cdc.avro.fingerprint import fingerprint
from cdc.avro.parse import parse
from cdc.avro.review import Candidate, review
from cdc.avro.schema import Json
from cdc.errors import ConfigurationError, InvalidEvent


def record(name: str = "R", **fields: Json) -> Json:
    return {"type": "record", "name": name, "fields": [{"name": key, "type": kind} for key, kind in fields.items()]}


def encoder(schema: Json) -> Encoder:
    return Encoder("S", 1, 7, parse(schema, "S/1.avsc"))


def decoded(schema: Json, payload: str) -> Json:
    """Encode with ours, decode with fastavro."""
    parsed = parse(schema, "S/1.avsc")
    body = io.BytesIO(Encoder("S", 1, 7, parsed).encode(payload)[5:])
    return fastavro.schemaless_reader(body, fastavro.parse_schema(parsed.document, named_schemas={}), None)


def refused(schema: Json, payload: str) -> str:
    with pytest.raises(InvalidEvent) as caught:
        encoder(schema).encode(payload)
    assert caught.value.reason == "schema"
    return str(caught.value)


def decimal(precision: int, scale: int, **fixed: Json) -> Json:
    return {"type": "bytes", **fixed, "logicalType": "decimal", "precision": precision, "scale": scale}


def test_field_case_39_nan_in_a_numeric_column() -> None:
    # to_jsonb writes the NaN of a numeric as the text "NaN"
    text = refused(record(amount=decimal(12, 2)), '{"amount": "NaN"}')
    assert "$.amount: expected decimal(12,2), came a text that is not a number" in text
    value = decoded(record(amount="double"), '{"amount": "NaN"}')["amount"]
    assert value != value  # noqa: PLR0124 - only NaN does


def test_field_case_45_a_nul_character_is_a_character() -> None:
    assert decoded(record(note="string"), r'{"note": "a\u0000b"}') == {"note": "a\0b"}


def test_field_case_46_numbers_keep_every_digit() -> None:
    schema = record(id="long", amt=decimal(38, 19), neg0="double")
    payload = '{"id": 9007199254740993, "amt": 0.1234567890123456789, "neg0": -0.0}'
    assert decoded(schema, payload) == {"id": 9007199254740993, "amt": Decimal("0.1234567890123456789"), "neg0": -0.0}
    assert str(decoded(schema, payload)["neg0"]) == "-0.0"
    assert "$.e: expected double, came a number out of the range of double" in refused(record(e="double"), '{"e": 1e400}')
    assert "$.e: expected double, came a number out of the range of double" in refused(
        record(e="double", d=decimal(4, 0)), '{"e": 1e400, "d": 1}'
    )
    assert "$.id: expected long, came a whole number of more than 64 bits" in refused(record(id="long"), '{"id": 9223372036854775808}')
    assert "more than 64 bits" in refused(record(id="long"), '{"id": 123456789012345678901234567890}')
    assert "more than 32 bits" in refused(record(id="int"), '{"id": 2147483648}')
    assert "$.d: expected double, came a whole number with more digits" in refused(record(d="double"), '{"d": 9007199254740993}')
    assert "a whole number with more digits" in refused(record(d="double"), '{"d": 123456789012345678901234567891}')
    assert "$.f: expected float, came a number with more digits" in refused(record(f="float"), '{"f": 0.123456789}')
    assert "$.id: expected long, came a number with a fraction" in refused(record(id="long"), '{"id": 1.5}')
    assert "$.id: expected long, came a text" in refused(record(id="long"), '{"id": "1"}')
    assert "$.id: expected long, came a boolean" in refused(record(id="long"), '{"id": true}')


def test_field_case_71_a_mix_of_numbers_and_empty_lists() -> None:
    meta = ["null", record("Meta", a="int")]
    schema = record(
        nums={"type": "array", "items": "double"}, items={"type": "array", "items": record("Item", a="int")}, meta=meta, n="double"
    )
    payload = '{"nums": [1, 2.5], "items": [], "meta": null, "n": 1}'
    assert decoded(schema, payload) == {"nums": [1.0, 2.5], "items": [], "meta": None, "n": 1.0}


@pytest.mark.parametrize(
    ("text", "value"),
    [("1.2300", "1.23"), ("1.23", "1.23"), ("1E+3", "1000.00"), ("-0.00", "0.00"), ("5", "5.00"), ("-7.1", "-7.10")],
)
@pytest.mark.parametrize("quoted", [True, False])
def test_field_case_93_a_decimal_is_rescaled_without_loss(text: str, value: str, *, quoted: bool) -> None:
    payload = json.dumps({"amount": text}) if quoted else f'{{"amount": {text}}}'
    assert decoded(record(amount=decimal(10, 2)), payload) == {"amount": Decimal(value)}


@pytest.mark.parametrize(
    "text", ["1.234", '"1.234"', "1e-3", '"Infinity"', '"12,50"', '""', '" 1"', "true", "null", "1e99999999999999999999"]
)
def test_field_case_93_a_decimal_is_never_rounded(text: str) -> None:
    assert "$.amount: expected decimal(10,2), came " in refused(record(amount=decimal(10, 2)), f'{{"amount": {text}}}')


def test_field_case_94_a_decimal_that_is_too_large() -> None:
    assert "$.a: expected decimal(6,2), came a number with more than 4 digits before" in refused(
        record(a=decimal(6, 2)), '{"a": 12345678.90}'
    )
    with pytest.raises(ConfigurationError, match="a fixed of 1 bytes cannot hold 4 digits"):
        encoder(decimal(4, 2, type="fixed", name="Small", size=1))
    fixed = decimal(4, 2, type="fixed", name="Small", size=2)
    assert decoded(record(a=fixed), '{"a": 99.99}') == {"a": Decimal("99.99")}
    assert "$.a: expected decimal(4,2) in fixed Small, came" in refused(record(a=fixed), '{"a": 999.99}')
    digits = "123456789012345678901234567890123456789012345678"
    body = encoder(record(a=decimal(50, 0))).encode(f'{{"a": {digits}}}')[5:]
    assert int.from_bytes(body[1:], "big", signed=True) == int(digits)


def test_field_case_95_a_time_means_the_same_on_every_host() -> None:
    code = (
        "from tests.field.test_avro_values import *\n"
        "micros = {'type': 'long', 'logicalType': 'timestamp-micros'}\n"
        "local = {'type': 'long', 'logicalType': 'local-timestamp-micros'}\n"
        "print(encoder(micros).encode('\"2024-03-10T02:30:00.5-05:00\"').hex(), encoder(local).encode('\"2024-03-10T02:30:00\"').hex())\n"
    )
    seen = set()
    for zone in ("UTC", "Asia/Tokyo", "America/New_York"):
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, "TZ": zone, "PYTHONPATH": "."})
        seen.add(done.stdout)
    assert len(seen) == 1
    stamp = {"type": "long", "logicalType": "timestamp-millis"}
    assert "a time without an offset" in refused(record(t=stamp), '{"t": "2024-03-10T02:30:00"}')
    local = {"type": "long", "logicalType": "local-timestamp-millis"}
    assert "a time with an offset" in refused(record(t=local), '{"t": "2024-03-10T02:30:00Z"}')
    assert "more than 3 digits after the second" in refused(record(t=stamp), '{"t": "2024-03-10T02:30:00.1234Z"}')
    for text in (
        "2024-02-30T00:00:00Z",
        "2024-03-10T24:00:00Z",
        "2024-03-10T02:30:60Z",
        "infinity",
        "1710037800",
        "2024-03-10T02:30:00+99:00",
    ):
        assert "$.t: expected timestamp-millis, came" in refused(record(t=stamp), json.dumps({"t": text}))


def test_field_case_96_a_uuid_is_one_and_is_written_one_way() -> None:
    schema = record(id={"type": "string", "logicalType": "uuid"})
    plain = "0189d3f4-7a0c-7b3e-9f1e-0a1b2c3d4e5f"
    for spelling in (plain, plain.upper(), f"{{{plain}}}", plain.replace("-", "")):
        assert encoder(schema).encode(json.dumps({"id": spelling}))[6:].decode() == plain
    for text in ("not-a-uuid", "", plain[:-1], plain + "0", "{" + plain, f"urn:uuid:{plain}", "0189d3f47a0c-7b3e-9f1e-0a1b2c3d4e5f"):
        assert "$.id: expected uuid, came a text that is not a uuid" in refused(schema, json.dumps({"id": text}))


def test_field_case_97_a_misspelt_optional_field_is_not_null() -> None:
    text = refused(record(customerEmail=["null", "string"]), '{"customerEmial": "a@example.com"}')
    assert "field 'customerEmail' is missing and has no default" in text
    assert "unknown field 'customerEmial'" in text
    assert "example.com" not in text
    with_default = {"type": "record", "name": "R", "fields": [{"name": "a", "type": ["null", "string"], "default": None}]}
    assert decoded(with_default, "{}") == {"a": None}
    assert "unknown field 'b'" in refused(with_default, '{"b": 1}')


def test_field_case_100_a_union_of_records_names_its_branch() -> None:
    card = record("Card", id="int", last4=["null", "string"])
    iban = record("Iban", id="int", bic=["null", "string"])
    for part in (card, iban):
        part["fields"][1]["default"] = None
        part["namespace"] = "shop"
    schema = record(pay=[card, iban])
    assert decoded(schema, '{"pay": {"shop.Iban": {"id": 1, "bic": "X"}}}') == {"pay": {"id": 1, "bic": "X"}}
    assert encoder(schema).encode('{"pay": {"shop.Card": {"id": 1}}}')[5:] == b"\0\2\0"
    assert encoder(schema).encode('{"pay": {"shop.Iban": {"id": 1}}}')[5:] == b"\2\2\0"
    text = refused(schema, '{"pay": {"id": 1}}')
    assert "$.pay: expected a member that names the branch, one of shop.Card, shop.Iban" in text
    words = record(w=["string", {"type": "enum", "name": "E", "symbols": ["A"]}])
    assert "$.w: a text could belong to several branches of the union" in refused(words, '{"w": "A"}')
    assert encoder(words).encode('{"w": {"E": "A"}}')[5:] == b"\2\0"
    numbers = record(n=["null", "long", "double"])
    assert "several branches" in refused(numbers, '{"n": 5}')
    assert encoder(numbers).encode('{"n": {"long": 5}}')[5:] == b"\2\x0a"
    assert decoded(numbers, '{"n": 5.5}') == {"n": 5.5}


def add_all(path: Path) -> None:
    contents = folder.scan(path)
    folder.write_lock(path, contents.lock.added((f.subject, f.number, f.fingerprint) for f in contents.unlocked))


def write(path: Path, schema: Json, **format_: Json) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(schema, **format_))


def test_field_case_101_old_bytes_are_read_with_the_schema_that_wrote_them(tmp_path: Path) -> None:
    old, new = record(a="int"), record(a="int")
    new["fields"].append({"name": "b", "type": ["null", "string"], "default": None})
    write(tmp_path / "R/1.avsc", old)
    write(tmp_path / "R/2.avsc", new)
    add_all(tmp_path)
    registry = folder.load(tmp_path)
    first, second = registry.encoder("R", 1).encode('{"a": 1}'), registry.encoder("R", 2).encode('{"a": 1, "b": "x"}')
    assert Decoder(registry, {"R": 2}).decode(first) == {"a": 1, "b": None}
    assert Decoder(registry, {"R": 1}).decode(second) == {"a": 1}
    assert Decoder(registry).decode(second) == {"a": 1, "b": "x"}
    with pytest.raises(UnknownSchemaError, match="schema id 99"):
        Decoder(registry).decode(b"\0\0\0\0\x63\2")
    for broken in (b"", b"\0", b"{}", b"\1" + first[1:], first + b"\0", first[:-1], second[:-1]):
        with pytest.raises(MalformedError):
            Decoder(registry).decode(broken)
    assert Decoder(registry).decode(None) is None


def test_field_case_103_a_type_that_two_files_share(tmp_path: Path) -> None:
    address = {**record("Address", street="string"), "namespace": "shop"}
    write(tmp_path / "types/address.avsc", address)
    write(tmp_path / "types/order.avsc", {**record("Order", to="Address"), "namespace": "shop"})
    write(tmp_path / "types/a_invoice.avsc", {**record("Invoice", to="Address"), "namespace": "shop"})
    write(tmp_path / "Event/1.avsc", {**record("Event", invoice="Invoice", order="Order", to="Address"), "namespace": "shop"})
    add_all(tmp_path)
    to = {"street": "Main"}
    payload = json.dumps({"invoice": {"to": to}, "order": {"to": to}, "to": to})
    registry = folder.load(tmp_path)
    assert Decoder(registry).decode(registry.encoder("Event").encode(payload)) == json.loads(payload)
    assert registry.latest("Event").text.count('"name":"shop.Address"') == 1
    write(tmp_path / "types/other.avsc", {**record("Address", street="int"), "namespace": "shop"})
    with pytest.raises(ConfigurationError) as caught:
        folder.load(tmp_path)
    assert "address.avsc" in str(caught.value)
    assert "other.avsc" in str(caught.value)


def test_field_case_104_names_without_a_namespace_and_types_in_themselves() -> None:
    node = record("Node", children={"type": "array", "items": "Node"})
    payload = '{"children": [{"children": []}, {"children": [{"children": []}]}]}'
    assert decoded(node, payload) == json.loads(payload)
    inner = {**record("Inner", self=["null", "Inner"]), "namespace": "b"}
    outer = {**record("Outer", one=inner, two="b.Inner"), "namespace": "a"}
    value = '{"one": {"self": {"self": null}}, "two": {"self": null}}'
    assert decoded(outer, value) == json.loads(value)
    with pytest.raises(ConfigurationError, match=r"a\.Inner is not defined"):
        encoder({**record("Outer", one=inner, two="Inner"), "namespace": "a"})
    twice = {**record("Outer", one=inner, two={**record("Inner", x="int"), "namespace": "a"}), "namespace": "a"}
    assert decoded(twice, '{"one": {"self": null}, "two": {"x": 1}}') == {"one": {"self": None}, "two": {"x": 1}}


def broken(old: Json, new: Json, mode: str = "BACKWARD") -> list[str]:
    return [str(b) for b in breaches(Versioned("2", parse(new, "2")), [Versioned("1", parse(old, "1"))], mode)]


def test_field_case_106_a_change_inside_a_union_is_seen() -> None:
    one, two = record("Item", a="int"), record("Item", a="int", b="int")
    for old, new, path in (
        (record(p=["null", one]), record(p=["null", two]), "$.p<Item>"),
        (record(p={"type": "array", "items": one}), record(p={"type": "array", "items": two}), "$.p[*]"),
        (record(p={"type": "map", "values": ["null", one]}), record(p={"type": "map", "values": ["null", two]}), "$.p.*<Item>"),
    ):
        (problem,) = broken(old, new)
        assert problem.startswith(f"{path}: 2 cannot read what 1 wrote: field 'b' was not written and has no default")
    assert broken(record(p=["null", "int"]), record(p=["null", "string"]))[0].startswith(
        "$.p<int>: 2 cannot read what 1 wrote: int is not among"
    )
    assert broken(record(p=["null", "string"]), record(p=["null"])) != []
    assert broken(record(p=["null"]), record(p=["null", "string"])) == []
    assert broken(record(p=["null"]), record(p=["null", "string"]), "FORWARD") != []


def test_field_case_108_no_default_is_not_a_default_of_null() -> None:
    old = record(a="int")
    without = record(a="int", f=["null", "int"])
    with_null = record(a="int", f=["null", "int"])
    with_null["fields"][1]["default"] = None
    assert "field 'f' was not written and has no default" in broken(old, without)[0]
    assert broken(old, with_null) == []
    only_null, defaulted = record(a="int", f="null"), record(a="int", f="null")
    defaulted["fields"][1]["default"] = None
    assert broken(old, only_null) != []
    assert broken(old, defaulted) == []


def test_field_case_110_pairwise_is_not_transitive() -> None:
    first, second, third = record(a="int"), record(a="int", b="int"), record(a="int", b="int")
    second["fields"][1]["default"] = 0
    parsed = [parse(schema, "S") for schema in (first, second, third)]
    candidates = [Candidate("S", i, s, fingerprint(s), f"S/{i}.avsc") for i, s in enumerate(parsed, 1)]
    refused_, _ = review(candidates[2], candidates[:2], "BACKWARD_TRANSITIVE")
    assert "S/3 cannot read what S/1 wrote" in str(refused_[0])
    refused_, warned = review(candidates[2], candidates[:2], "BACKWARD")
    assert refused_ == []
    assert "S/3 cannot read what S/1 wrote" in str(warned[0])


def test_field_case_112_formatting_makes_no_version(tmp_path: Path) -> None:
    schema = {**record("R", a="int"), "namespace": "shop", "doc": "short"}
    write(tmp_path / "R/1.avsc", schema)
    add_all(tmp_path)
    file = tmp_path / "R/1.avsc"
    before = folder.load(tmp_path).latest("R")
    other = {
        "fields": [{"type": {"type": "int"}, "doc": "extra", "name": "a", "order": "ascending"}],
        "doc": "longer",
        "type": "record",
        "name": "shop.R",
    }
    for text in (
        json.dumps(schema, indent=4).replace("\n", "\r\n"),
        "\ufeff" + json.dumps(schema),
        json.dumps(other, indent="\t"),
    ):
        file.write_bytes(text.encode())
        after = folder.load(tmp_path).latest("R")
        assert (after.id, after.fingerprint) == (before.id, before.fingerprint)
    write(tmp_path / "R/2.avsc", other)
    contents = folder.scan(tmp_path)
    refused_, _ = review(contents.files["R"][1], contents.files["R"][:1], "NONE")
    assert "R/2 is the same schema as R/1" in str(refused_[0])
    (tmp_path / "R/2.avsc").unlink()
    for change in ({"default": 1}, {"aliases": ["b"]}, {"order": "descending"}):
        changed = json.loads(json.dumps(schema))
        changed["fields"][0] |= change
        write(file, changed)
        with pytest.raises(ConfigurationError, match="is locked with id 1 and was changed"):
            folder.load(tmp_path)
