"""What `Outbox.statement` makes of an event, without a server: envelope, context, versions, limits, messages."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

import cdc
from cdc.avro.folder import scan, write_lock
from cdc.errors import ConfigurationError, InvalidEvent
from cdc.outbox import Event, Outbox, OutboxMapping, event_context
from cdc.outbox.event import uuid7
from cdc.outbox.executor import together
from cdc.settings.writer import load_outbox
from tests.pipeline import SCHEMA, write_schemas

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
NOON = datetime(2026, 1, 2, 12, 0, tzinfo=UTC)


@pytest.fixture(scope="module")
def schemas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("writer") / "schemas"
    money = {
        "type": "record",
        "name": "Paid",
        "fields": [{"name": "sum", "type": {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 19}}],
    }
    write_schemas(path, {"Thing": SCHEMA, "Paid": money})
    return path


def said(outbox: Outbox, event: Event) -> dict[str, Any]:
    """The columns that would be written, by name."""
    _, statement = outbox.statement(event)
    names = statement.sql.split("(")[1].split(")")[0].replace('"', "").split(", ")
    return dict(zip(names, statement.parameters, strict=True))


def thing(n: object = 1, **more: Any) -> Event:  # noqa: ANN401 - the fields of Event
    return Event("Thing", "k", {"n": n}, "thing", **more)


def test_ids_are_of_version_7_and_new_for_each_event() -> None:
    ids = [thing().id for _ in range(100)]
    assert len(set(ids)) == 100
    first, last = uuid7(), uuid7()
    assert (first.version, first.variant) == (7, last.variant)
    assert abs((first.int >> 80) / 1000 - datetime.now(UTC).timestamp()) < 60
    assert first.int >> 80 <= last.int >> 80


def test_the_context_is_added_and_the_event_goes_before_it(schemas: Path) -> None:
    outbox = Outbox(schemas=schemas)
    assert "headers" not in said(outbox, thing())
    with (
        event_context(correlation_id="outer", headers={"tenant": "a", "more": "1"}),
        event_context(traceparent=TRACE, headers={"tenant": "b"}),
    ):
        assert json.loads(said(outbox, thing())["headers"]) == {"tenant": "b", "more": "1", "correlationid": "outer", "traceparent": TRACE}
        own = thing(correlation_id="own", traceparent="t", headers={"tenant": "c"})
        assert json.loads(said(outbox, own)["headers"]) == {"tenant": "c", "more": "1", "correlationid": "own", "traceparent": "t"}
        seen: list[dict[str, Any]] = []
        other = threading.Thread(target=lambda: seen.append(said(outbox, thing())))
        other.start()
        other.join()
        assert "headers" not in seen[0], "a thread has a context of its own"
        bare = Outbox(schemas=schemas, lacks=("headers",))
        assert "headers" not in said(bare, thing()), "no column, no place"
    assert "headers" not in said(outbox, thing())


def test_the_current_span_of_opentelemetry_is_the_trace(schemas: Path) -> None:
    span = SpanContext(0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331, is_remote=False, trace_flags=TraceFlags(1))
    columns = {"traceparent": "trace"}
    outbox = Outbox(schemas=schemas, mapping=OutboxMapping(columns=columns))
    with trace.use_span(NonRecordingSpan(span)):
        assert json.loads(said(Outbox(schemas=schemas), thing())["headers"]) == {"traceparent": TRACE}
        assert said(outbox, thing())["trace"] == TRACE
        with event_context(traceparent="named"):
            assert said(outbox, thing())["trace"] == "named"
    assert "trace" not in said(outbox, thing())


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (Event("Thing", "", {"n": 1}, "thing"), "no key"),
        (Event("", "k", {"n": 1}, "thing"), "no type"),
        (Event("Thing", "k", {"n": 1}), "no aggregatetype"),
        (Event("Nothing", "k", {"n": 1}, "thing"), "subject 'Nothing' is not in the schema folder"),
        (Event("Thingy", "k", {"n": 1}, "thing"), r"subject 'Thingy' is not .*Fix: did you mean 'Thing'\?"),
        (Event("Thing", 7, {"n": 1}, "thing"), "aggregateid is a int"),  # type: ignore[arg-type]
        (Event("Thing", "k\0", {"n": 1}, "thing"), "NUL character"),
        (thing(schema_version=2), "no version 2"),
        (thing(id="x" * 1001), "more than 1000 bytes"),
        (thing(headers={"ce_id": "1"}), "reserved name"),
        (thing(headers={"n": 1}), "a header is no text"),
        (thing(headers={"n": "\ud800"}), "half of a surrogate pair"),
        (thing(occurred_at=NOON.replace(tzinfo=None)), "no time zone"),
        (thing(topic="t"), "has topic, and the outbox has no column"),
        (thing("canary"), r"\$\.n: expected long, came a text"),
        (Event("Thing", "k", {"n": 1, "text": "x" * 1_100_000}, "thing"), "the topic takes 1048588"),
    ],
)
def test_what_is_refused_says_what_and_not_the_value(schemas: Path, event: Event, words: str) -> None:
    with pytest.raises(InvalidEvent, match=words) as refused:
        Outbox(schemas=schemas).statement(event)
    assert "canary" not in str(refused.value)


def test_tombstones_and_headers_may_be_refused_by_the_outbox(schemas: Path) -> None:
    with pytest.raises(InvalidEvent, match="tombstones is off"):
        Outbox(schemas=schemas, mapping=OutboxMapping(tombstones=False)).statement(Event("Thing", "k", None, "thing"))
    with pytest.raises(InvalidEvent, match="has headers, and the outbox has no column"):
        Outbox(schemas=schemas, lacks=("headers",)).statement(thing(headers={"a": "b"}))


def test_the_version_that_was_checked_is_the_one_that_is_written(schemas: Path, tmp_path: Path) -> None:
    path = tmp_path / "schemas"
    write_schemas(path)
    outbox = Outbox(schemas=path)
    assert said(outbox, thing())["schema_version"] == "1"
    newer = {**SCHEMA, "fields": [*SCHEMA["fields"], {"name": "more", "type": "int"}]}
    (path / "registry.toml").write_text('[defaults]\ncompatibility = "NONE"\n')
    (path / "Thing" / "2.avsc").write_text(json.dumps(newer))
    contents = scan(path)
    write_lock(path, contents.lock.added((file.subject, file.number, file.fingerprint) for file in contents.unlocked))
    assert said(outbox, Event("Thing", "k", {"n": 1, "more": 2}, "thing", schema_version=2))["schema_version"] == "2", "taken up"
    assert said(Outbox(schemas=path), thing(schema_version=1))["schema_version"] == "1"
    bare = Outbox(schemas=path, lacks=("schema_version",))
    assert json.loads(said(bare, thing(schema_version=1))["headers"]) == {"schema_version": "1"}
    assert "schema_version" not in said(bare, Event("Thing", "k", {"n": 1, "more": 2}, "thing"))
    barest = Outbox(schemas=path, lacks=("schema_version", "headers"))
    written = said(barest, Event("Thing", "k", {"n": 1, "more": 2}, "thing", schema_version=2))
    assert not {"schema_version", "headers"} & set(written), "rows get this version anyway"
    with pytest.raises(InvalidEvent, match=r"names version 1 of 'Thing', and the table has no column to say so.*rows get version 2"):
        barest.statement(thing(schema_version=1))


def test_field_case_46_numbers_keep_every_digit(schemas: Path) -> None:
    written = said(Outbox(schemas=schemas), Event("Paid", "k", {"sum": Decimal("0.1234567890123456789")}, "thing"))
    assert written["payload"] == '{"sum":"0.1234567890123456789"}'
    assert said(Outbox(schemas=schemas), thing(9007199254740993))["payload"] == '{"n":9007199254740993}'
    with pytest.raises(InvalidEvent, match=r"\$\.sum: expected decimal"):
        Outbox(schemas=schemas).statement(Event("Paid", "k", {"sum": Decimal("0.12345678901234567891")}, "thing"))


def test_field_case_114_a_tombstone_has_a_key_and_no_payload(schemas: Path) -> None:
    outbox = Outbox(schemas=schemas)
    written = said(outbox, Event("Thing", "k", None, "thing"))
    assert (written["aggregateid"], written["payload"]) == ("k", None)
    assert "schema_version" not in written
    with pytest.raises(InvalidEvent, match="no key"):
        outbox.statement(Event("Thing", "", None, "thing"))
    nothing: object
    for nothing in ("", b"", {}):
        with pytest.raises(InvalidEvent, match="Thing/1"):
            outbox.statement(Event("Thing", "k", nothing, "thing"))


def test_a_message_is_the_row_as_json(schemas: Path) -> None:
    outbox = Outbox(schemas=schemas, mapping=OutboxMapping(columns={"type": "kind"}, message_prefix="out"))
    event, statement = outbox.statement(thing(headers={"a": 'b"'}, occurred_at=NOON))
    assert statement.sql == "SELECT pg_logical_emit_message(true, %s::text, %s::text)"
    prefix, content = statement.parameters
    assert prefix == "out"
    assert event.payload == {"n": 1}, "as it was given"
    assert json.loads(str(content)) == {
        "id": str(event.id), "aggregatetype": "thing", "aggregateid": "k", "kind": "Thing", "payload": {"n": 1}, "schema_version": "1",
        "headers": {"a": 'b"'}, "occurred_at": "2026-01-02T12:00:00+00:00",
    }  # fmt: skip
    encoded = Outbox(schemas=schemas, mapping=OutboxMapping(payload="avro", message_prefix="out"))
    assert json.loads(str(encoded.statement(thing())[1].parameters[1]))["payload"] == "\\x00000000020200"


def test_names_that_are_none_are_refused(schemas: Path, tmp_path: Path) -> None:
    wrong: dict[str, Any]
    for wrong in ({"table": "a.b.c"}, {"table": 'a."b"'}, {"lacks": ("payload",)}, {"mapping": OutboxMapping(columns={"kind": "x"})}):
        with pytest.raises(ConfigurationError, match="Outbox: "):
            Outbox(schemas=schemas, **wrong)
    with pytest.raises(ConfigurationError, match="does not exist"):
        Outbox(schemas=tmp_path / "none")


def test_nothing_that_is_written_is_shown(schemas: Path) -> None:
    outbox = Outbox(schemas=schemas)
    event, statement = outbox.statement(Event("Thing", "canary", {"n": 1, "text": "canary"}, "thing", headers={"a": "canary"}))
    [several] = together([statement, statement])
    assert several.more == (statement.parameters,)
    assert "canary" not in f"{event!r} {statement!r} {several!r} {outbox!r}"


def test_the_settings_make_the_same_outbox(schemas: Path, tmp_path: Path) -> None:
    config = tmp_path / "cdc.toml"
    config.write_text(
        f'name = "shop"\npostgres.dsn = "postgresql://nobody@127.0.0.1:1/x"\nschemas.folder = "{schemas}"\n'
        'outbox = { table = "App.out", columns = { type = "kind" } }\n'
    )
    written = load_outbox(config).statement(thing())[1]
    assert written.sql.startswith('INSERT INTO "App"."out" ("id", "aggregatetype", "aggregateid", "kind"')
    with pytest.raises(ConfigurationError, match="message_prefix is not set"):
        load_outbox(config, messages=True)


def test_the_library_loads_no_broker_no_server_and_no_framework() -> None:
    heavy = "confluent_kafka psycopg uvicorn starlette typer prometheus_client structlog sqlalchemy django opentelemetry"
    check = f"import sys, cdc; from cdc.outbox import append; sys.exit(','.join(set({heavy!r}.split()) & set(sys.modules)) or None)"
    done = subprocess.run([sys.executable, "-c", check], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert set(cdc.__all__) <= {name for name in cdc.__all__ if getattr(cdc, name)}
    with pytest.raises(AttributeError, match="nothing"):
        cdc.nothing  # noqa: B018
