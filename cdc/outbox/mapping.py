"""What the settings say of a row, and where a table keeps it: names and places, no values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from cdc.errors import InvalidEvent, nearest

KEYS = (
    "id",
    "aggregatetype",
    "aggregateid",
    "type",
    "payload",
    "schema_version",
    "headers",
    "occurred_at",
    "topic",
    "partition",
    "traceparent",
)
"""What a row can say; each is a column of that name by default, as in Debezium's outbox event router."""

REQUIRED = ("id", "aggregateid", "type", "payload")
"""What every outbox must have; aggregatetype only if the topic's template names it."""

NAME_LIMIT = 1_000
"""Bytes of an id or a type: they become headers, and a record's headers must never be what makes it too large."""


@dataclass(frozen=True, slots=True)
class OutboxMapping:
    """How rows become records; see the [outbox], [schemas] and [topics] settings."""

    columns: Mapping[str, str] = field(default_factory=dict)
    route: str = "outbox.event.{aggregatetype}"
    subject: str = "{type}"
    source: str = "/"
    tombstones: bool = True
    payload: Literal["json", "avro"] = "json"
    value: Literal["avro", "json", "envelope"] = "avro"
    headers: Literal["cloudevents", "debezium"] = "cloudevents"
    placed: Mapping[str, str] = field(default_factory=dict)
    message_prefix: str | None = None

    @property
    def keys(self) -> list[str]:
        """All that is looked for in a row: KEYS, and `header:NAME` for each header that holds a column."""
        return [*KEYS, *map(header_key, self.placed)]

    def required(self) -> list[str]:
        """Keys that must be found: what every outbox has, what the templates name, what the user mapped himself."""
        named = {*placeholders(self.route), *placeholders(self.subject), *self.columns, *map(header_key, self.placed)}
        return [key for key in self.keys if key in REQUIRED or key in named]

    def column(self, key: str) -> str:
        """Return the name that a key is mapped to."""
        return self.placed.get(key.removeprefix(PLACED), key) if key.startswith(PLACED) else self.columns.get(key, key)

    @property
    def replay_marker(self) -> str:
        """The header that tells a replayed record."""
        return REPLAY_MARKERS[self.headers]


PLACED = "header:"
"""What the key of a column begins with that becomes a header of its own."""

REPLAY_MARKERS = {"cloudevents": "ce_replay", "debezium": "replay"}
"""By style of headers; whoever reads records knows both, because a topic may hold records of both."""


_OURS = r"ce_.*|content-type|cdc\..*|__connect\.errors\..*"
RESERVED_HEADERS = {"cloudevents": re.compile(_OURS, re.IGNORECASE), "debezium": re.compile(rf"{_OURS}|id|replay", re.IGNORECASE)}
"""Header names that a row's own headers may not take, by style: consumers trust them to be ours."""


def header_key(name: str) -> str:
    """Return the key of what becomes the header `name`."""
    return PLACED + name


def setting_of(key: str) -> str:
    """Return where a key is mapped, as the settings call it."""
    return f"topics.placement ({key.removeprefix(PLACED)})" if key.startswith(PLACED) else f"outbox.columns.{key}"


class Located(NamedTuple):
    """Where a relation keeps each key: a column's index, or a path into the payload; keys that it lacks are in neither."""

    columns: dict[str, int]
    paths: dict[str, tuple[str, ...]]


def placeholders(template: str) -> list[str]:
    """Return the keys that a template names, in order."""
    return re.findall(r"\{(\w+)\}", template)


def topics_of(route: str, names: Iterable[str]) -> list[str]:
    """Return the topics among `names` that a route's template can lead to, sorted."""
    fits = re.compile(".+".join(map(re.escape, re.split(r"\{\w+\}", route))))
    return sorted(name for name in names if fits.fullmatch(name))


def locate(mapping: OutboxMapping, column_names: Sequence[str]) -> Located:
    """Find every key among a table's columns; raises InvalidEvent("mapping") that names what is missing.

    A mapped name is a column if the table has one of that name, else a path into the payload: its first part is "payload"
    or the payload's column.
    """
    located = found(mapping, column_names)
    for key in mapping.required():
        if key not in located.columns and key not in located.paths:
            name = mapping.column(key)
            near = nearest(name, column_names)
            guess = f"the table has {', '.join(column_names)};" if near is None else f"did you mean {near!r}?"
            msg = f"the table has no column {name!r} for {setting_of(key)}"
            raise InvalidEvent("mapping", msg, f"{guess} name the column in outbox.columns, or add it to the table")
    return located


def found(mapping: OutboxMapping, column_names: Sequence[str]) -> Located:
    """Find the keys that a table has."""
    index = {name: i for i, name in enumerate(column_names)}
    payload = mapping.column("payload")
    located = Located({}, {})
    for key in mapping.keys:
        name = mapping.column(key)
        first, *path = name.split(".")
        if name in index:
            located.columns[key] = index[name]
        elif path and first in ("payload", payload) and payload in index:
            located.paths[key] = tuple(path)
    return located
