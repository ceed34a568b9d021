"""`cdc tail`: decoded events as they are committed, personal fields masked."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any

import orjson
import typer

from cdc import app
from cdc.avro.decoder import Decoder
from cdc.avro.masking import MASK, masked
from cdc.avro.registry import Registry
from cdc.cli.options import Config, Json, Sets, settings_from
from cdc.cli.output import say
from cdc.errors import InvalidEvent, Retriable, SinkRefused
from cdc.event import Seen
from cdc.outbox import envelope
from cdc.outbox.mapping import KEYS, OutboxMapping, topics_of
from cdc.outbox.router import CONTENT_TYPES, fill
from cdc.pipeline.ports import Reader
from cdc.resilience.call import nobody_waits
from cdc.settings import Settings


def tail(
    topics: Annotated[list[str] | None, typer.Argument(metavar="[TOPIC]..", help="Which; else all that fit topics.route.")] = None,
    from_beginning: Annotated[bool, typer.Option("--from-beginning", help="Also what is there already, and then end.")] = False,
    limit: Annotated[int, typer.Option(min=0, help="End after so many events; 0 for no end.")] = 0,
    config: Config = None,
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """Show decoded events as they are committed; personal fields are masked."""
    settings = settings_from(config, sets)
    if topics is None:
        app.require_events(settings)
    registry = app.schemas(settings).registry
    subscriber, mapping = app.subscriber(settings), app.mapping(settings)
    try:
        chosen = topics or routed(settings, subscriber)
        say(f"reading {', '.join(chosen)}")
        for count, seen in enumerate(_records(subscriber, chosen, from_beginning=from_beginning), 1):
            document = described(seen, registry, mapping)
            print(orjson.dumps(document).decode() if as_json else _line(document), flush=True)
            if count == limit:
                return
    except KeyboardInterrupt:
        return
    except Retriable as error:
        raise SinkRefused(error.what, error.fix or 'start the broker, or correct kafka."bootstrap.servers"') from error
    finally:
        subscriber.close()


def routed(settings: Settings, subscriber: Reader) -> list[str]:
    """Return the topics that exist and fit the route; raises SinkRefused when there is none."""
    own = {settings.topics.position, settings.topics.dead_letter}
    found = [name for name in topics_of(settings.topics.route, subscriber.names(nobody_waits)) if name not in own]
    if not found:
        msg = f"no topic fits topics.route = {settings.topics.route!r} yet"
        raise SinkRefused(msg, "publish an event, name a topic, or see `cdc dead-letters list` for what could not be published")
    return found


def described(seen: Seen, registry: Registry, mapping: OutboxMapping) -> dict[str, Any]:
    """Return a record as a document: its place, its headers, its decoded and masked value."""
    headers = {name: None if value is None else value.decode(errors="replace") for name, value in seen.headers}
    document: dict[str, Any] = {
        "topic": seen.topic,
        "partition": seen.partition,
        "offset": seen.offset,
        "timestamp_ms": seen.timestamp_ms,
        "key": None if seen.key is None else seen.key.decode(errors="replace"),
        "headers": headers,
    }
    if seen.value is None:
        return {**document, "value": None}
    try:
        kind = headers.get("content-type", CONTENT_TYPES[mapping.value].decode())
        if kind == "application/json":
            subject, value = _subject(headers, mapping), orjson.loads(seen.value)
        elif kind == envelope.CONTENT_TYPE:
            subject, value = _subject(headers, mapping), orjson.loads(envelope.data_of(seen.value))
        else:
            value, version = Decoder(registry).decode_with_version(seen.value)
            subject = version.subject
    except (InvalidEvent, ValueError) as error:
        return {**document, "value": MASK, "error": str(error) if isinstance(error, InvalidEvent) else "the value is not JSON"}
    return {**document, "value": masked(_plain(value), registry.settings_of(subject).personal)}


def _subject(headers: dict[str, str | None], mapping: OutboxMapping) -> str:
    """Return the subject of a JSON value: its header tells it, or what is placed beside the id; raises InvalidEvent."""
    if dataschema := headers.get("ce_dataschema"):
        return dataschema.rpartition("/")[0]
    said = {key: headers.get(name) for key in KEYS for name, column in mapping.placed.items() if mapping.column(key) == column}
    try:
        return fill(mapping.subject, {key: None if text is None else text.encode() for key, text in said.items()})
    except InvalidEvent:
        msg = "no header tells the schema, and so which fields are personal"
        raise InvalidEvent("mapping", msg, "place the type in one: topics.placement") from None


def _plain(value: Any) -> Any:  # noqa: ANN401 - whatever a schema holds
    """Return a decoded value as JSON has it: bytes as base64, what else is no JSON as text."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _records(subscriber: Reader, topics: list[str], *, from_beginning: bool) -> Iterator[Seen]:
    if from_beginning:
        return subscriber.read(topics)
    return subscriber.read(topics, since_ms=_END_OF_TIME_MS, follow=True)


_END_OF_TIME_MS = 2**53
"""No record is as new, so that reading since then begins at the end."""


def _line(document: dict[str, Any]) -> str:
    headers = document["headers"]
    what = headers.get("ce_type") or headers.get("cdc.reason") or "-"
    place = f"{document['topic']}[{document['partition']}]@{document['offset']}"
    return f"{place}  {what}  key={document['key']}  {orjson.dumps(document['value']).decode()}"
