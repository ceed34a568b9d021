"""A schema folder that is wrong: one clear line, within a second."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cdc.avro import folder
from cdc.avro.encoder import Encoder
from cdc.avro.schema import Json
from cdc.avro.shared import MAX_DEPTH
from cdc.cli import main
from cdc.errors import ConfigurationError, InvalidEvent


def record(name: str = "R", **fields: Json) -> Json:
    return {"type": "record", "name": name, "fields": [{"name": key, "type": kind} for key, kind in fields.items()]}


def write(path: Path, schema: Json) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(schema if isinstance(schema, str) else json.dumps(schema))


def lock(path: Path) -> None:
    contents = folder.scan(path)
    folder.write_lock(path, contents.lock.added((f.subject, f.number, f.fingerprint) for f in contents.unlocked))


def two_files_with_one_version(path: Path) -> None:
    write(path / "R/01.avsc", record(a="int"))


def a_gap(path: Path) -> None:
    write(path / "R/3.avsc", record(a="int", b="int"))


def an_edited_version(path: Path) -> None:
    write(path / "R/1.avsc", record(a="long"))


def a_missing_version(path: Path) -> None:
    (path / "R/1.avsc").unlink()
    (path / "R").rmdir()


def an_edited_shared_type(path: Path) -> None:
    write(path / "types/T.avsc", record("T", x="int"))
    write(path / "Q/1.avsc", record("Q", t="T"))
    lock(path)
    write(path / "types/T.avsc", record("T", x="long"))


def an_unlocked_version(path: Path) -> None:
    schema = record(a="int", b="int")
    schema["fields"][1]["default"] = 0
    write(path / "R/2.avsc", schema)


def an_unknown_logical_type(path: Path) -> None:
    write(path / "Q/1.avsc", record("Q", a={"type": "long", "logicalType": "timestamp-picos"}))


def a_logical_type_on_the_wrong_type(path: Path) -> None:
    write(path / "Q/1.avsc", record("Q", a={"type": "int", "logicalType": "timestamp-millis"}))


def a_name_defined_twice(path: Path) -> None:
    write(path / "Q/1.avsc", record("Q", a=record("T", x="int"), b=record("T", x="int")))


def a_name_defined_in_two_files(path: Path) -> None:
    write(path / "types/T.avsc", record("T", x="int"))
    write(path / "types/U.avsc", record("T", x="long"))


def a_name_that_a_shared_type_has(path: Path) -> None:
    write(path / "types/T.avsc", record("T", x="int"))
    write(path / "Q/1.avsc", record("Q", a=record("T", x="long")))


def a_cycle_without_an_end(path: Path) -> None:
    write(path / "types/A.avsc", record("A", b="B"))
    write(path / "types/B.avsc", record("B", a="A"))
    write(path / "Q/1.avsc", record("Q", a="A"))


def a_cycle_of_names(path: Path) -> None:
    write(path / "types/A.avsc", '"B"')
    write(path / "types/B.avsc", '"A"')


def a_type_that_is_nowhere(path: Path) -> None:
    write(path / "Q/1.avsc", record("Q", a="Missing"))


def nested(depth: int) -> Json:
    kind: Json = "int"
    for i in range(depth):
        kind = record(f"R{i}", x=kind)
    return kind


def too_deep(path: Path) -> None:
    write(path / "Q/1.avsc", nested(200))


def lists_too_deep(path: Path) -> None:
    write(path / "Q/1.avsc", '{"type":"array","items":' * 5000 + '"int"' + "}" * 5000)


def no_json(path: Path) -> None:
    write(path / "Q/1.avsc", '{"type": "record",}')


def no_utf8(path: Path) -> None:
    (path / "Q").mkdir()
    (path / "Q/1.avsc").write_bytes(b'{"type": "\xff"}')


def a_member_twice(path: Path) -> None:
    write(path / "Q/1.avsc", '{"type": "int", "type": "long"}')


def a_wrong_default(path: Path) -> None:
    schema = record("Q", a=["null", "int"])
    schema["fields"][0]["default"] = 1
    write(path / "Q/1.avsc", schema)


def two_equal_branches(path: Path) -> None:
    write(path / "Q/1.avsc", record("Q", a=["int", "int"]))


def an_empty_subject(path: Path) -> None:
    (path / "Q").mkdir()


def a_stray_file(path: Path) -> None:
    write(path / "Q.avsc", record("Q", a="int"))


def a_decimal_without_precision(path: Path) -> None:
    write(path / "Q/1.avsc", record("Q", a={"type": "bytes", "logicalType": "decimal"}))


def a_conflict_in_the_lock(path: Path) -> None:
    text = (path / "registry.lock").read_text()
    (path / "registry.lock").write_text(text + "<<<<<<< HEAD\n")


def one_id_twice(path: Path) -> None:
    write(path / "Q/1.avsc", record("Q", a="int"))
    text = (path / "registry.lock").read_text()
    (path / "registry.lock").write_text(text + text.splitlines()[-1].replace(" R/1 ", " Q/1 ") + "\n")


def an_id_beyond_the_next(path: Path) -> None:
    text = (path / "registry.lock").read_text()
    (path / "registry.lock").write_text(text.replace("\n1 R/1", "\n7 R/1"))


def an_unknown_key(path: Path) -> None:
    (path / "registry.toml").write_text('[subjects.R]\nowners = "x"\n')


def an_unknown_mode(path: Path) -> None:
    (path / "registry.toml").write_text('[subjects.R]\ncompatibility = "SIDEWAYS"\n')


def an_unknown_subject(path: Path) -> None:
    (path / "registry.toml").write_text('[subjects.Q]\nowner = "x"\n')


def a_pin_beyond_the_newest(path: Path) -> None:
    (path / "registry.toml").write_text("[subjects.R]\npinned = 2\n")


WRONG: dict[Callable[[Path], None], str] = {
    two_files_with_one_version: "version 1 of R stands in two files",
    a_gap: "version 2 of R is missing",
    an_edited_version: "R/1 is locked with id 1 and was changed since",
    a_missing_version: "is locked with id 1 and missing",
    an_edited_shared_type: "Q/1 is locked with id 2 and was changed since, or a shared type in it",
    an_unlocked_version: "R/2 is not in registry.lock",
    an_unknown_logical_type: "unknown logical type 'timestamp-picos'",
    a_logical_type_on_the_wrong_type: "logical type timestamp-millis stands on long, not on int",
    a_name_defined_twice: "T is defined twice, in this file",
    a_name_defined_in_two_files: "T is defined twice and differently, in",
    a_name_that_a_shared_type_has: "T is defined twice and differently, in",
    a_cycle_without_an_end: "always contains itself",
    a_cycle_of_names: "a file of shared types holds one record, enum or fixed",
    a_type_that_is_nowhere: "Missing is not defined",
    too_deep: f"types are nested deeper than {MAX_DEPTH}",
    lists_too_deep: "nested far too deeply",
    no_json: "is not JSON",
    no_utf8: "is not UTF-8 (at byte 10)",
    a_member_twice: "an object has two members 'type'",
    a_wrong_default: "the default of Q.a does not fit",
    two_equal_branches: "the union has two branches int",
    an_empty_subject: "the subject has no version",
    a_stray_file: "a schema file stands in a folder named after its subject",
    a_decimal_without_precision: "a decimal needs a precision",
    a_conflict_in_the_lock: "a merge conflict that was not resolved",
    one_id_twice: "id 1 is given to R/1 and to Q/1",
    an_id_beyond_the_next: "R/1 has id 7, but the next free id is 2",
    an_unknown_key: "unknown key 'owners'",
    an_unknown_mode: "compatibility must be one of NONE, BACKWARD",
    an_unknown_subject: "subject 'Q' has no folder",
    a_pin_beyond_the_newest: "R pins version 2, which is not locked",
}


@pytest.fixture
def schemas(tmp_path: Path) -> Path:
    write(tmp_path / "R/1.avsc", record(a="int"))
    lock(tmp_path)
    return tmp_path


@pytest.mark.parametrize("breaking", WRONG, ids=lambda function: function.__name__)
def test_a_wrong_folder_is_one_clear_line(schemas: Path, capsys: pytest.CaptureFixture[str], breaking: Callable[[Path], None]) -> None:
    breaking(schemas)
    began = time.process_time()
    with pytest.raises(ConfigurationError) as caught:
        folder.load(schemas)
    assert time.process_time() - began < 1
    assert WRONG[breaking] in caught.value.what
    assert caught.value.fix
    assert main(["schemas", "check", "--folder", str(schemas)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert WRONG[breaking] in line
    assert "Fix: " in line


def test_a_missing_folder_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="does not exist"):
        folder.load(tmp_path / "nowhere")


def test_5000_fields_work_within_a_second(schemas: Path) -> None:
    write(schemas / "Q/1.avsc", record("Q", **{f"f{i}": "string" if i % 2 else ["null", "long"] for i in range(5000)}))
    began = time.process_time()
    lock(schemas)
    registry = folder.load(schemas)
    assert time.process_time() - began < 2  # the folder is read twice
    encoder = registry.encoder("Q")
    value = {f"f{i}": "x" if i % 2 else None for i in range(5000)}
    assert len(encoder.encode(json.dumps(value))) == 5 + 2500 * 2 + 2500


def test_the_deepest_schema_that_is_allowed_works(schemas: Path) -> None:
    write(schemas / "Q/1.avsc", nested(MAX_DEPTH // 2))
    lock(schemas)
    value: Json = 1
    for _ in range(MAX_DEPTH // 2):
        value = {"x": value}
    assert folder.load(schemas).encoder("Q").encode(json.dumps(value))[5:] == b"\2"


def test_a_running_pipeline_takes_added_versions_and_refuses_changed_ones(schemas: Path) -> None:
    registry = folder.load(schemas)
    encoder = registry.encoder("R")
    assert folder.refreshed(registry) is registry
    added = record(a="int", b="int")
    added["fields"][1]["default"] = 0
    write(schemas / "R/2.avsc", added)
    warned = folder.refreshed(registry)
    assert warned.latest("R").number == 1
    assert "R/2 is not in registry.lock" in warned.warnings[0]
    lock(schemas)
    newer = folder.refreshed(warned)
    assert (newer.latest("R").number, newer.latest("R").id) == (2, 2)
    assert newer.encoder("R", 1) is encoder
    assert newer.encoder("R").version == 2
    write(schemas / "R/1.avsc", record(a="string"))
    with pytest.raises(ConfigurationError, match="was changed"):
        folder.refreshed(newer)
    write(schemas / "R/1.avsc", record(a="int"))
    (schemas / "R/2.avsc").unlink()
    (schemas / "registry.lock").unlink()
    with pytest.raises(ConfigurationError, match="while the pipeline runs"):
        folder.refreshed(newer)


def test_a_deleted_id_is_never_used_again(schemas: Path) -> None:
    write(schemas / "Q/1.avsc", record("Q", a="int"))
    lock(schemas)
    file = schemas / "registry.lock"
    file.write_text("".join(line for line in file.read_text().splitlines(keepends=True) if "Q/1" not in line))
    lock(schemas)
    assert folder.load(schemas).latest("Q").id == 3


def test_a_row_without_a_version_gets_the_pinned_one(schemas: Path) -> None:
    second = record(a="int", b="int")
    second["fields"][1]["default"] = 0
    write(schemas / "R/2.avsc", second)
    lock(schemas)
    assert folder.load(schemas).encoder("R").version == 2
    (schemas / "registry.toml").write_text("[subjects.R]\npinned = 1\n")
    registry = folder.load(schemas)
    assert registry.encoder("R").version == 1
    assert registry.encoder("R", 2).version == 2
    for subject, version in (("Q", None), ("R", 3), ("R", 0), ("R", -1)):
        with pytest.raises(InvalidEvent) as caught:
            registry.encoder(subject, version)
        assert caught.value.reason == "schema"


def test_two_branches_that_add_a_version_meet_in_a_conflict(schemas: Path) -> None:
    base = (schemas / "registry.lock").read_text()
    lines = {}
    for name in ("Ours", "Theirs"):
        write(schemas / f"{name}/1.avsc", record(name, a="int"))
        lock(schemas)
        lines[name] = (schemas / "registry.lock").read_text().removeprefix(base.replace("next 2", "next 3"))
        (schemas / f"{name}/1.avsc").unlink()
        (schemas / name).rmdir()
        (schemas / "registry.lock").write_text(base)
    # both append behind the same line, which is what a merge cannot decide
    assert lines["Ours"].startswith("2 Ours/1 ")
    assert lines["Theirs"].startswith("2 Theirs/1 ")


def test_an_encoder_says_what_it_is(schemas: Path) -> None:
    encoder = folder.load(schemas).encoder("R")
    assert repr(encoder) == "<Encoder R/1 id=1>"
    assert (encoder.subject, encoder.version, encoder.schema_id, encoder.dataschema) == ("R", 1, 1, "R/1")
    assert isinstance(encoder, Encoder)
    assert encoder.source.startswith("def encode(v")
    assert encoder.validate(b'{"a": 1}') == b'{"a": 1}'
    with pytest.raises(InvalidEvent):
        encoder.validate(b'{"a": "canary"}')
