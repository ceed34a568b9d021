"""Generated event classes: what they say, what they refuse, and that the encoder takes what they hold."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
import uuid
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any

import fastavro
import pydantic
import pytest

from cdc.avro import folder
from cdc.avro.codegen_models import module
from cdc.avro.decoder import Decoder
from cdc.avro.native import json_text
from cdc.cli import main
from cdc.errors import InvalidEvent
from cdc.outbox import Event
from tests.pipeline import write_schemas

ROOT = Path(__file__).parents[3]

CARD = {"type": "record", "name": "Card", "fields": [{"name": "number", "type": "string"}]}
NOON = dt.datetime(2026, 1, 2, 12, 0, 0, 125000, tzinfo=dt.UTC)


def logical(base: str, name: str, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - a schema
    return {"type": base, "logicalType": name, **more}


FIELDS: list[tuple[str, Any]] = [
    ("id", "long"),
    ("class", "boolean"),
    ("schema", "int"),
    ("_hidden", "float"),
    ("str", "double"),
    ("Card", ["null", CARD]),
    ("how", ["null", "Card", {"type": "record", "name": "Invoice", "fields": [{"name": "number", "type": "string"}]}]),
    ("color", ["string", {"type": "enum", "name": "Color", "symbols": ["RED", "None"]}]),
    ("amount", logical("bytes", "decimal", precision=38, scale=19)),
    ("price", ["null", logical("bytes", "decimal", precision=9, scale=2), "string"]),
    ("uid", logical("string", "uuid")),
    ("day", logical("int", "date")),
    ("clock", logical("long", "time-micros")),
    ("at", logical("long", "timestamp-millis")),
    ("local", logical("long", "local-timestamp-micros")),
    ("took", {"type": "fixed", "name": "Took", "size": 12, "logicalType": "duration"}),
    ("raw", "bytes"),
    ("hash", {"type": "fixed", "name": "Hash", "size": 3}),
    ("tags", {"type": "array", "items": ["null", "long", "double"]}),
    ("by_name", {"type": "map", "values": "Card"}),
    ("child", ["null", "Everything"]),
]
DEFAULTS: list[tuple[str, Any, Any]] = [
    ("d_text", "string", 'a "b" \\ \n ü'),
    ("d_list", {"type": "array", "items": "int"}, [1, 2]),
    ("d_map", {"type": "map", "values": "string"}, {"a": "b"}),
    ("d_card", "Card", {"number": "1"}),
    ("d_raw", "bytes", "ÿ"),
    ("d_none", ["null", "Color"], None),
    ("d_at", logical("long", "timestamp-millis"), 0),
]
EVERYTHING: dict[str, Any] = {
    "type": "record",
    "name": "Everything",
    "namespace": "shop",
    "doc": 'Says "everything".',
    "fields": [{"name": name, "type": kind} for name, kind in FIELDS]
    + [{"name": name, "type": kind, "default": default} for name, kind, default in DEFAULTS],
}


@pytest.fixture(scope="module")
def schemas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "schemas"
    other = {"type": "record", "name": "Card", "namespace": "shop", "fields": [{"name": "other", "type": "int"}]}
    lone: dict[str, Any] = {"type": "record", "name": "Lone", "namespace": "shop", "fields": [{"name": "card", "type": other}]}
    write_schemas(path, {"Everything": EVERYTHING, "lone-event": lone, "Text": {"type": "string"}, "Again": EVERYTHING})
    (path / "registry.toml").write_text('[subjects.Everything]\nkey = "Card.number"\naggregatetype = "all"\n')
    return path


@pytest.fixture(scope="module")
def made(schemas: Path) -> ModuleType:
    text = module(folder.load(schemas))
    loaded = ModuleType("generated")
    sys.modules["generated"] = loaded
    exec(compile(text, "generated.py", "exec"), loaded.__dict__)
    return loaded


def everything(made: ModuleType, **more: Any) -> Any:  # noqa: ANN401 - generated
    values: dict[str, Any] = {
        "id": 2**63 - 1, "class_": True, "schema_": -(2**31), "hidden": 0.5, "str_": 1e300, "Card_": made.Card(number="7"),
        "how": made.Invoice(number="8"), "color": {"shop.Color": "None"}, "amount": Decimal("0.1234567890123456789"),
        "price": Decimal("1.20"), "uid": uuid.UUID(int=5), "day": NOON.date(), "clock": NOON.time(), "at": NOON,
        "local": NOON.replace(tzinfo=None), "took": "P1M2DT3S", "raw": b"\x00\xff", "hash": b"abc", "tags": [None, 1, 1.5],
        "by_name": {"x": made.Card(number="9")}, "child": None, "d_at": NOON,
    }  # fmt: skip
    return made.Everything(**{**values, **more})


def test_what_a_class_holds_is_encoded_and_read_back(schemas: Path, made: ModuleType) -> None:
    registry = folder.load(schemas)
    version = registry.latest("Everything")
    event = everything(made, child=everything(made))
    text = json_text(version.schema, event)
    decoded = Decoder(registry).decode(registry.encoder("Everything").encode(text))
    assert decoded["child"].pop("child") is None
    for read in (decoded, decoded.pop("child")):
        read.pop("took")
        assert read == {
            "id": 2**63 - 1, "class": True, "schema": -(2**31), "_hidden": 0.5, "str": 1e300, "Card": {"number": "7"},
            "how": {"number": "8"}, "color": "None", "amount": Decimal("0.1234567890123456789"), "price": Decimal("1.20"),
            "uid": uuid.UUID(int=5), "day": NOON.date(), "clock": NOON.time(), "at": NOON, "local": NOON.replace(tzinfo=None),
            "raw": b"\x00\xff", "hash": b"abc", "tags": [None, 1, 1.5], "by_name": {"x": {"number": "9"}},
            "d_text": 'a "b" \\ \n ü', "d_list": [1, 2], "d_map": {"a": "b"}, "d_card": {"number": "1"}, "d_raw": b"\xff", "d_none": None,
            "d_at": NOON,
        }  # fmt: skip
    assert fastavro.parse_schema(version.schema.document)


def test_classes_are_strict_and_show_nothing(made: ModuleType) -> None:
    wrong: dict[str, Any]
    for wrong in ({"id": "1"}, {"id": 2**63}, {"class_": 1}, {"at": NOON.replace(tzinfo=None)}, {"hash": b"ab"}, {"unknown": "canary"},
                  {"color": "RED"},
                  {"amount": Decimal("1.12345678901234567891")}, {"local": NOON}, {"how": {"number": 1}}):  # fmt: skip
        with pytest.raises(pydantic.ValidationError) as refused:
            everything(made, **wrong)
        assert "canary" not in str(refused.value)
    event = everything(made, color={"string": "canary"})
    assert repr(event) == "Everything()"
    assert "canary" not in repr(Event.of(event))
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        event.id = 1


def test_an_event_is_made_of_a_class(made: ModuleType) -> None:
    event = Event.of(everything(made), correlation_id="c")
    assert (event.type, event.key, event.aggregatetype, event.schema_version) == ("Everything", "7", "all", 1)
    assert Event.of(everything(made, Card_=None), key="k").key == "k"
    with pytest.raises(InvalidEvent, match=r"key, 'Card\.number', is no text"):
        Event.of(everything(made, Card_=None))
    with pytest.raises(InvalidEvent, match="not said which field is the key"):
        Event.of(made.LoneEvent(card=made.LoneEventCard(other=1)))


def test_types_of_one_name_and_subjects_of_one_type(schemas: Path, made: ModuleType) -> None:
    text = module(folder.load(schemas))
    assert text == module(folder.load(schemas)), "the folder alone decides"
    assert "Text/1: its schema is no record" in text
    assert issubclass(made.Everything, made.Again)
    assert made.Everything.__cdc__.type == "Everything"
    assert made.Again.__cdc__.type == "Again"
    assert set(made.__all__) == {"Again", "Card", "Color", "Everything", "Invoice", "LoneEvent", "LoneEventCard"}


def test_values_without_a_form_in_json_are_refused_by_their_path(schemas: Path) -> None:
    schema = folder.load(schemas).latest("Everything").schema
    loop: list[Any] = []
    loop.append(loop)
    for value, words in {
        "object": ({"tags": [object()]}, r"\$\.tags\[0\]: came a object"),
        "name": ({"by_name": {1: 2}}, r"\$\.by_name: an object has a name that is no text"),
        "loop": (loop, "holds itself"),
        "surrogate": ({"color": "\ud800"}, "half of a surrogate pair"),
    }.values():
        with pytest.raises(InvalidEvent, match=words):
            json_text(schema, value)
    assert json.loads(json_text(schema, {"str": float("nan"), "d_raw": b"\xff", "id": float("-inf")})) == {
        "str": "NaN",
        "d_raw": "ÿ",
        "id": "-Infinity",
    }


def test_the_command_writes_compares_and_prints(schemas: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "events.py"
    arguments = ["schemas", "codegen", "--folder", str(schemas), "--out", str(out)]
    assert main([*arguments, "--check"]) == 8
    assert not out.exists()
    assert main(arguments) == 0
    assert main([*arguments, "--check"]) == 0
    capsys.readouterr()
    assert main(arguments[:-2]) == 0
    assert capsys.readouterr().out == out.read_text()
    out.write_text(out.read_text() + "\n# edited")
    assert main([*arguments, "--check", "--json"]) == 8
    assert "is not what the schema folder says" in capsys.readouterr().err
    assert main(["schemas", "codegen", "--folder", str(schemas), "--check"]) == 2
    assert main([*arguments[:-1], str(tmp_path / "none" / "x.py")]) == 2


def test_a_users_project_is_typed(tmp_path: Path) -> None:
    """`mypy --strict` without a plugin and without our settings, on the sample project and on every kind of field."""
    generated = tmp_path / "generated.py"
    path = tmp_path / "schemas"
    write_schemas(path, {"Everything": EVERYTHING})
    generated.write_text(module(folder.load(path)))
    sample = ROOT / "tests" / "sample"
    # An installed package is read for its types and not judged: its clients of brokers without types are no matter of the user's.
    options = ["--strict", "--config-file=", "--follow-imports=silent", "--explicit-package-bases"]
    options += ["--cache-dir", str(ROOT / ".mypy_cache" / "sample")]
    command = [sys.executable, "-m", "mypy", *options, *map(str, sorted(sample.glob("*.py"))), str(generated)]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
