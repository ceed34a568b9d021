"""Which handlers take a record, in which shape they get it, and what follows from names."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from cdc.avro import folder
from cdc.avro.decoder import MalformedError, UnknownSchemaError
from cdc.avro.registry import Registry
from cdc.consumer.event import Event
from cdc.consumer.handler import ANY, Handler, Reader
from cdc.consumer.names import Names, business_key, called, surrounded, too_short, validator
from cdc.consumer.retry import Retry
from cdc.errors import ConfigurationError
from cdc.kafka.subscriber import Seen
from tests.consumers import event
from tests.pipeline import write_schemas
from tests.unit.consumer.records import seen

DAY_MS = 86_400_000


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    write_schemas(tmp_path / "schemas")
    return folder.load(tmp_path / "schemas")


def handler(name: str = "h", kind: str = "Thing", **settings: Any) -> Handler:  # noqa: ANN401 - whatever a handler has
    return Handler(name, f"c.{name}", kind, lambda *_: None, is_async=False, **settings)


def thing(n: int = 1, more: Mapping[str, str] | None = None) -> Seen:
    made = event(n)
    told = {name: value.decode() for name, value in made["headers"]} | dict(more or {})
    return seen(0, value=made["value"], more={name: text for name, text in told.items() if text})


def test_values_by_schema_json_and_as_they_are(registry: Registry) -> None:
    [unit] = Reader([handler()], registry).read(thing())
    assert (unit.event.value, unit.event.schema_version, unit.event.type) == ({"n": 1, "text": ""}, 1, "Thing")
    [unit] = Reader([handler()], registry).read(thing(more={"ce_type": ""}))
    assert unit.event.type == "Thing", "told by its schema"
    plain = seen(0, value=b'{"n": 2}', ce_type="Thing", ce_dataschema="Thing/7", more={"content-type": "application/json"})
    [unit] = Reader([handler()], None).read(plain)
    assert (unit.event.value, unit.event.schema_version) == ({"n": 2}, 7)
    envelope = {"content-type": "application/cloudevents+json"}
    wrapped = seen(0, value=b'{"id":"e1","data":{"n": 3}}', ce_type="Thing", ce_dataschema="Thing/7", more=envelope)
    [unit] = Reader([handler()], None).read(wrapped)
    assert (unit.event.value, unit.event.schema_version) == ({"n": 3}, 7)
    with pytest.raises(MalformedError, match="without data"):
        Reader([handler()], None).read(seen(0, value=b"[]", ce_type="Thing", more=envelope))
    [unit] = Reader([handler()], None).read(seen(0, value=b"raw", ce_type="Thing"))
    assert unit.event.value == b"raw"


@pytest.mark.parametrize("value", [b"", b"\0\0", b"\1\0\0\0\1", b"\0\0\0\0\1\xff"])
def test_what_cannot_be_read_is_told_as_that(registry: Registry, value: bytes) -> None:
    with pytest.raises(MalformedError):
        Reader([handler()], registry).read(seen(0, value=value, ce_type="Thing"))


def test_unknown_ids_empty_values_and_bad_json(registry: Registry) -> None:
    with pytest.raises(UnknownSchemaError):
        Reader([handler()], registry).read(seen(0, value=b"\0\0\0\0\x63", ce_type="Thing"))
    assert Reader([handler()], registry).read(seen(0, value=b"\0\0\0\0\x63", ce_type="Other")) == [], "nobody wants it"
    with pytest.raises(MalformedError):
        Reader([handler()], None).read(seen(0, value=b"", ce_type="Thing"))
    with pytest.raises(MalformedError):
        Reader([handler()], None).read(seen(0, value=b"{", ce_type="Thing", more={"content-type": "application/json"}))


def test_who_takes_a_record(registry: Registry) -> None:
    reader = Reader([handler("a"), handler("b"), handler("all", ANY), handler("c", "Other")], registry)

    def names(record: Seen, done: Collection[str] = ()) -> list[str]:
        return [unit.handler.name for unit in reader.read(record, done=done)]

    assert names(thing()) == ["a", "b", "all"]
    assert names(thing(), done=frozenset({"a"})) == ["b", "all"]
    assert names(thing(more={"cdc.handlers": "b"})) == ["b"]
    assert names(thing(more={"cdc.handlers": "renamed"})) == ["a", "b", "all"], "the inbox tells who is done"
    assert reader.breaker(thing()) is None
    assert Reader([handler(breaker="mail")], registry).breaker(thing()) == "mail"


class Thing(BaseModel):
    n: int
    text: str


def test_models(registry: Registry) -> None:
    [unit] = Reader([handler(model=validator(Thing))], registry).read(thing(5))
    assert unit.event.value == Thing(n=5, text="")
    with pytest.raises(MalformedError, match="ValidationError") as raised:
        Reader([handler(model=Thing.model_validate)], None).read(
            seen(0, value=json.dumps({"n": "secret"}).encode(), ce_type="Thing", more={"content-type": "application/json"})
        )
    assert "secret" not in str(raised.value)
    with pytest.raises(ConfigurationError, match="model_validate"):
        validator(int)


def an_event(value: object) -> Event:
    return Event("e", "/s", "T", "k", value, "", "", 1, {}, "t", 0, 0, 0)


def test_business_keys() -> None:
    assert business_key("welcome:{id}")(an_event({"id": 7})) == "welcome:7"
    assert business_key("{a.b}/{event.key}")(an_event({"a": {"b": "x"}})) == "x/k"
    assert business_key("{n}")(an_event(Thing(n=3, text=""))) == "3"
    with pytest.raises(KeyError):
        business_key("{id}")(an_event({}))
    with pytest.raises(ConfigurationError, match="same for every event"):
        business_key("welcome")


def test_what_surrounds_a_call_and_what_it_takes() -> None:
    told: list[str] = []

    @contextlib.contextmanager
    def around(event: Event, name: str) -> Iterator[None]:
        told.append(f"{name} of {event.id}")
        yield

    assert called(lambda event: event.id, "h")(an_event(None), None) == "e"
    assert called(lambda event, connection: (event.id, connection), "h")(an_event(None), 1) == ("e", 1)
    assert surrounded(lambda event, _: event.id, "h", around)(an_event(None), None) == "e"
    assert told == ["h of e"]
    with pytest.raises(ConfigurationError, match="takes 3"):
        called(lambda a, b, c: (a, b, c), "h")


def test_an_inbox_that_forgets_too_early() -> None:
    week = timedelta(days=7)
    assert too_short("t", 7 * DAY_MS, week, timedelta(0)) is None
    assert "replay" in (too_short("t", 7 * DAY_MS, week, timedelta(days=1)) or "")
    assert "for ever" in (too_short("t", -1, week, timedelta(0)) or "")


def test_own_topics() -> None:
    names = Names("shop")
    assert names.own(None) == ["cdc.shop.redriven"]
    assert names.own(Retry.listed(1, 2)) == ["cdc.shop.redriven", "cdc.shop.retry-1", "cdc.shop.retry-2"]
    assert len(names.own(Retry.listed(1).but({OSError: Retry.fixed(1, 5)}))) == 5
    assert names.is_own("cdc.shop.retry-1")
    assert not names.is_own("orders")
