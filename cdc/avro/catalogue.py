"""Describe all events for people and for tools: a Registry in, a Markdown page or an AsyncAPI document out, no I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import orjson

from cdc.avro.examples import example
from cdc.avro.schema import NO_DEFAULT, Json, Record, label

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cdc.avro.registry import Registry, Version

AVRO_FORMAT: Final = "application/vnd.apache.avro;version=1.12.0"
"""How AsyncAPI 3.0 names Avro schemas."""


def page(registry: Registry, title: str) -> str:
    """Return the catalogue as Markdown."""
    return "\n".join(_page(registry, title)) + "\n"


def _page(registry: Registry, title: str) -> Iterator[str]:
    yield f"# {title}"
    for subject in sorted(registry.subjects):
        settings, newest = registry.settings_of(subject), registry.latest(subject)
        yield f"\n## {subject}\n"
        doc = newest.schema.root.doc if isinstance(newest.schema.root, Record) else ""
        for sentence in (doc, settings.description):
            if sentence:
                yield sentence + "\n"
        facts = {
            "Newest version": f"{newest} (schema id {newest.id})",
            "Version for rows that name none": str(registry.pinned(subject) or newest),
            "Compatibility": settings.compatibility,
            "Owner": settings.owner,
            "Topic": settings.topic,
            "Retention": settings.retention,
            "Consumers": ", ".join(settings.consumers),
            "Personal fields": ", ".join(f"`{path}`" for path in settings.personal),
        }
        yield "| | |\n|---|---|"
        yield from (f"| {name} | {_cell(text)} |" for name, text in facts.items() if text)
        yield from _fields(newest)
        yield f"\nThe smallest payload:\n\n```json\n{_json(example(newest.schema))}\n```"


def _fields(version: Version) -> Iterator[str]:
    schema = version.schema
    for name, node in schema.names.items():
        if not isinstance(node, Record):
            continue
        yield f"\n`{name}`:\n\n| field | type | default | |\n|---|---|---|---|"
        for field in node.fields:
            default = "" if field.default is NO_DEFAULT else f"`{_json(field.default, pretty=False)}`"
            yield f"| {field.name} | {_cell(label(schema.resolve(field.type)))} | {_cell(default)} | {_cell(field.doc)} |"


def asyncapi(registry: Registry, title: str) -> dict[str, Json]:
    """Return the catalogue as an AsyncAPI 3.0 document: a channel for each topic, a message for each subject."""
    channels: dict[str, Json] = {}
    messages: dict[str, Json] = {}
    for subject in sorted(registry.subjects):
        settings, newest = registry.settings_of(subject), registry.latest(subject)
        messages[subject] = {
            "name": subject,
            "contentType": "application/avro",
            "payload": {"schemaFormat": AVRO_FORMAT, "schema": newest.schema.document},
            "x-schema-id": newest.id,
            "x-schema-version": newest.number,
            "x-compatibility": settings.compatibility,
        }
        extra = {"x-owner": settings.owner, "x-consumers": settings.consumers, "x-personal-fields": settings.personal}
        messages[subject] |= {key: value for key, value in extra.items() if value}
        if settings.description:
            messages[subject]["description"] = settings.description
        if settings.topic:
            channel = channels.setdefault(_key(settings.topic), {"address": settings.topic, "messages": {}})
            channel["messages"][subject] = {"$ref": f"#/components/messages/{subject}"}
            if settings.retention:
                channel["x-retention"] = settings.retention
    return {
        "asyncapi": "3.0.0",
        "info": {"title": title, "version": str(max((v.id for v in registry.versions), default=0))},
        "defaultContentType": "application/avro",
        "channels": channels,
        "operations": {f"publish-{key}": {"action": "send", "channel": {"$ref": f"#/channels/{key}"}} for key in channels},
        "components": {"messages": messages},
    }


def _key(topic: str) -> str:
    """AsyncAPI's keys take letters, digits, . _ and -, as topics do."""
    return topic


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _json(value: Json, *, pretty: bool = True) -> str:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2 if pretty else 0).decode()
