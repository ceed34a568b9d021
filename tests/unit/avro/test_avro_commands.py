"""`cdc schemas` and `cdc try`, as people and CI call them."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc.avro.schema import Json
from cdc.cli import main
from tests.waiting import wait_for

SHOP = Path(__file__).parents[3] / "schemas"
KEPT = {"OrderPaid", "OrderPlaced", "types", "registry.lock", "registry.toml"}
ORDER = {
    "orderId": "o-1",
    "customer": {"id": 1, "name": "Ada"},
    "currency": "EUR",
    "lines": [{"sku": "x", "quantity": 1, "unitCents": 999}],
    "totalCents": 999,
}


@pytest.fixture
def schemas(tmp_path: Path) -> Path:
    """The shop's folder as it began: two subjects, so that the next id is 3."""
    folder = Path(shutil.copytree(SHOP, tmp_path / "schemas", ignore=lambda path, names: set(names) - KEPT if path == str(SHOP) else set()))
    lock = (folder / "registry.lock").read_text().splitlines()
    began = ["next 3" if line.startswith("next ") else line for line in lock if not line[0].isdigit() or line.split()[0] in {"1", "2"}]
    (folder / "registry.lock").write_text("\n".join(began) + "\n")
    toml = (folder / "registry.toml").read_text()
    (folder / "registry.toml").write_text(toml[: toml.index("[subjects.OrderRejected]")])
    return folder


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], schemas: Path) -> Iterator[object]:
    def command(*arguments: str, code: int = 0) -> Json:
        assert main([*arguments, "--folder", str(schemas), "--json"]) == code
        captured = capsys.readouterr()
        return json.loads(captured.out.splitlines()[-1]) if code == 0 else captured.err

    return command  # type: ignore[return-value]


def second_version(schemas: Path, default: Json = 0) -> None:
    schema = json.loads((schemas / "OrderPaid/1.avsc").read_text())
    schema["fields"].append({"name": "feeCents", "type": "long"} | ({} if default is None else {"default": default}))
    (schemas / "OrderPaid/2.avsc").write_text(json.dumps(schema))


def test_a_version_is_checked_and_gets_an_id(run: Json, schemas: Path) -> None:
    assert run("schemas", "check") == {"subjects": 2, "versions": 2, "warnings": []}
    assert run("schemas", "add", "--all") == {"added": [], "warnings": [], "notes": []}
    second_version(schemas)
    assert "OrderPaid/2 is not in registry.lock" in run("schemas", "check", code=2)
    assert run("schemas", "add", "OrderPaid/2")["added"] == [{"subject": "OrderPaid", "version": 2, "id": 3}]
    assert run("schemas", "check")["versions"] == 3
    versions = run("schemas", "list")["versions"]
    assert [(v["id"], v["subject"], v["version"]) for v in versions] == [(1, "OrderPaid", 1), (2, "OrderPlaced", 1), (3, "OrderPaid", 2)]


def test_an_incompatible_version_gets_none(run: Json, schemas: Path) -> None:
    before = (schemas / "registry.lock").read_bytes()
    second_version(schemas, None)
    error = run("schemas", "add", "--all", code=2)
    assert "OrderPaid/2 cannot read what OrderPaid/1 wrote: field 'feeCents' was not written and has no default" in error
    assert (schemas / "registry.lock").read_bytes() == before
    toml = schemas / "registry.toml"
    toml.write_text(toml.read_text().replace("[subjects.OrderPaid]", '[subjects.OrderPaid]\ncompatibility = "NONE"'))
    assert run("schemas", "add", "--all")["added"][0]["id"] == 3


def test_a_new_time_in_milliseconds_is_worth_a_note(run: Json, schemas: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def stamp(name: str) -> Json:
        return {"type": "long", "logicalType": name}

    fields = [
        {"name": "at", "type": ["null", stamp("timestamp-millis")], "default": None},
        {"name": "fine", "type": stamp("timestamp-micros")},
        {"name": "in", "type": {"type": "record", "name": "In", "fields": [{"name": "t", "type": stamp("local-timestamp-millis")}]}},
    ]
    (schemas / "Paid").mkdir()
    (schemas / "Paid/1.avsc").write_text(json.dumps({"type": "record", "name": "Paid", "fields": fields}))
    added = run("schemas", "add", "--all")
    assert [each["subject"] for each in added["added"]] == ["Paid"], "a note, and no refusal"
    [note] = added["notes"]
    assert "Paid/1.avsc: In.t (local-timestamp-millis), at (timestamp-millis): now() of PostgreSQL and of Python has microseconds" in note
    fields.append({"name": "clock", "type": {"type": "int", "logicalType": "time-millis"}, "default": 0})
    (schemas / "Paid/2.avsc").write_text(json.dumps({"type": "record", "name": "Paid", "fields": fields}))
    assert main(["schemas", "add", "--all", "--folder", str(schemas)]) == 0
    captured = capsys.readouterr()
    assert "Paid/2.avsc: clock (time-millis): now()" in captured.err, "what the version before has is not told again"
    assert "Paid/2" in captured.out


def test_a_version_that_nothing_was_published_with_is_taken_back_by_hand(run: Json, schemas: Path) -> None:
    """As docs/schemas.md tells: the file, and its line of the lock; the id stays used, because `next` stands."""
    second_version(schemas)
    assert run("schemas", "add", "--all")["added"][0]["id"] == 3
    (schemas / "OrderPaid/2.avsc").unlink()
    assert "is locked with id 3 and missing" in run("schemas", "check", code=2)
    lock = schemas / "registry.lock"
    lock.write_text("".join(line for line in lock.read_text().splitlines(keepends=True) if " OrderPaid/2 " not in line))
    assert run("schemas", "check")["versions"] == 2
    second_version(schemas, 7)
    assert run("schemas", "add", "--all")["added"] == [{"subject": "OrderPaid", "version": 2, "id": 4}]


def test_versions_to_add_are_named_or_all(run: Json, schemas: Path) -> None:
    assert "name the versions" in run("schemas", "add", code=2)
    assert "either names or --all" in run("schemas", "add", "--all", "OrderPaid/1", code=2)
    assert "there is no version Nope/1" in run("schemas", "add", "Nope/1", code=2)
    second_version(schemas)
    shutil.copyfile(schemas / "OrderPaid/2.avsc", schemas / "OrderPaid/3.avsc")
    assert "OrderPaid/2 is not locked yet" in run("schemas", "add", "OrderPaid/3", code=2)
    assert "OrderPaid/3 is the same schema as OrderPaid/2" in run("schemas", "add", "--all", code=2)


def test_a_version_and_its_encoder_are_shown(run: Json, capsys: pytest.CaptureFixture[str]) -> None:
    shown = run("schemas", "show", "OrderPlaced", "--encoder")
    assert shown["schema"]["name"] == "shop.OrderPlaced"
    assert shown["encoder"].startswith("def encode(v")
    assert run("schemas", "show", "OrderPlaced/1")["id"] == 2
    assert "no version 9" in run("schemas", "show", "OrderPlaced/9", code=2)
    assert main(["schemas", "show", "OrderPaid", "--folder", str(SHOP)]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "shop.OrderPaid"
    assert main(["schemas", "list", "--folder", str(SHOP)]) == 0
    assert "OrderPaid/1" in capsys.readouterr().out


def test_a_difference_is_told_to_readers_and_writers(run: Json, schemas: Path, capsys: pytest.CaptureFixture[str]) -> None:
    second_version(schemas, None)
    told = run("schemas", "diff", "OrderPaid/1", "OrderPaid")
    assert told["changes"] == ["$.feeCents: added, long, without a default"]
    assert told["readers"] == []
    assert told["writers"][0]["reason"] == "field 'feeCents' was not written and has no default"
    assert "feeCents" not in told["writers"][0]["example"]
    assert main(["schemas", "diff", "OrderPaid/1", "OrderPaid/2", "--folder", str(schemas)]) == 0
    assert "readers that still have OrderPaid/1: read what OrderPaid/2 writes" in capsys.readouterr().out


def test_the_catalogue_is_printed(run: Json, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("schemas", "docs")["asyncapi"] == "3.0.0"
    assert main(["schemas", "docs", "--title", "Shop", "--folder", str(SHOP)]) == 0
    assert capsys.readouterr().out.startswith("# Shop\n")
    assert main(["schemas", "docs", "--asyncapi", "--folder", str(SHOP)]) == 0
    assert json.loads(capsys.readouterr().out)["info"]["title"] == "Events"


def test_a_payload_is_tried(run: Json, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "order.json"
    file.write_text(json.dumps(ORDER))
    record = run("try", str(file), "--type", "OrderPlaced", "--key", "o-1", "--column", "aggregatetype=Order")
    assert (record["topic"], record["key"], record["schema"]["id"]) == ("outbox.event.Order", "o-1", 2)
    assert record["headers"]["ce_dataschema"] == "OrderPlaced/1"
    assert record["decoded"] == {**ORDER, "customer": {"id": 1, "name": "Ada", "email": None}, "note": None}
    assert bytes.fromhex(record["value_hex"])[:5] == b"\0\0\0\0\2"
    file.write_text(json.dumps({**ORDER, "totalCents": "999"}))
    assert "OrderPlaced/1 $.totalCents: expected long, came a text" in run("try", str(file), "--type", "OrderPlaced", code=8)
    assert "no version 7" in run("try", str(file), "--type", "OrderPlaced", "--version", "7", code=8)
    assert "did you mean 'OrderPlaced'?" in run("try", str(file), "--type", "OrderPlacde", code=8)
    assert "give it: --type" in run("try", str(file), code=2)
    assert "cannot be read" in run("try", str(tmp_path / "none.json"), code=2)
    assert "has no value" in run("try", str(file), "--column", "x", code=2)
    file.write_text(json.dumps(ORDER))
    assert main(["try", str(file), "--type", "OrderPlaced", "--folder", str(SHOP)]) == 0
    assert "OrderPlaced/1 (id 2)" in capsys.readouterr().out


def test_a_payload_is_tried_as_a_row_of_the_table_that_the_settings_describe(run: Json, tmp_path: Path) -> None:
    """Optional columns that are mapped are NULL unless they are given, and what stands in the payload is read there."""
    config = tmp_path / "cdc.toml"
    config.write_text(
        'name = "shop"\npostgres.dsn = "postgresql://nobody@127.0.0.1:1/x"\nkafka."bootstrap.servers" = "127.0.0.1:1"\n'
        '[outbox.columns]\nid = "event"\ntype = "kind"\naggregateid = "payload.orderId"\noccurred_at = "created"\nheaders = "meta"\n'
        'schema_version = "v"\ntopic = "to"\npartition = "part"\ntraceparent = "trace"\n'
        '[topics]\nplacement = "id:header:event-id,tenant:header:tenant"\nheaders = "debezium"\n'
    )
    file = tmp_path / "order.json"
    file.write_text(json.dumps(ORDER))
    arguments = ["try", str(file), "--config", str(config), "--type", "OrderPlaced"]
    record = run(*arguments)
    assert (record["topic"], record["key"]) == ("outbox.event.Example", "o-1")
    assert record["decoded"]["orderId"] == "o-1"
    record = run(*arguments, "--key", "other", "--version", "1", "--column", "to=elsewhere", "--column", "tenant=a")
    assert (record["topic"], record["key"], record["headers"]["tenant"]) == ("elsewhere", "other", "a")


def test_a_served_folder_takes_up_added_versions(schemas: Path, run: Json) -> None:
    command = [sys.executable, "-m", "cdc", "schemas", "serve", "--folder", str(schemas), "--listen", "127.0.0.1:0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = json.loads(server.stdout.readline())["url"]

            def versions() -> Json:
                with urllib.request.urlopen(f"{url}/registry/subjects/OrderPaid/versions", timeout=10) as answer:
                    return json.loads(answer.read())

            assert versions() == [1]
            second_version(schemas)
            run("schemas", "add", "--all")
            server.send_signal(signal.SIGHUP)
            wait_for(lambda: versions() == [1, 2], 20)
        finally:
            server.terminate()
        assert server.wait(20) == 0


@pytest.mark.parametrize("listen", ["nowhere", ":1", "127.0.0.1:x", "127.0.0.1:99999"])
def test_an_address_that_is_none_is_refused(run: Json, listen: str) -> None:
    assert "--listen is not HOST:PORT" in run("schemas", "serve", "--listen", listen, code=2)


def test_a_push_without_a_registry_says_so(run: Json) -> None:
    assert "no URL" in run("schemas", "push", "nowhere", code=2)
