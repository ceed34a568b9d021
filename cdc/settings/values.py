"""What a value in the settings may look like: text in, a typed value out, no I/O.

Strategy: one small function for each kind of value. Whatever it refuses, it refuses with `Wrong`, which says what is wrong
and what would be right, and never repeats a secret.
"""

from __future__ import annotations

import ipaddress
import re
import string
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, PlainSerializer, Secret

from cdc.kafka.properties import SECRETS
from cdc.outbox.mapping import KEYS, RESERVED_HEADERS

NAME_MAX_BYTES = 63
"""Bytes in a PostgreSQL identifier or a slot's name (NAMEDATALEN - 1): the server cuts longer ones without an error."""

PIPELINE_NAME_MAX_CHARS = 59
"""Characters in a pipeline's name: `cdc_<name>` has to fit into NAME_MAX_BYTES."""

TOPIC_MAX_CHARS = 249
"""Characters in a topic's name: a broker's directory `<topic>-<partition>` has to fit into 255."""

TEMPLATE_KEYS = tuple(key for key in KEYS if key not in {"payload", "headers"})
"""What a template may name: payload and headers are left out, because a topic or subject is seen by everybody."""

MASK = "***"

_DURATION = re.compile(r"(\d{1,9})(ms|s|m|h|d)")
_UNITS = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
}
_IDENTIFIER = re.compile(r'"((?:[^"\0]|"")+)"|([^".\0]+)')
_SLOT = re.compile(r"[a-z0-9_]{1,63}")
_PIPELINE = re.compile(r"[a-z0-9_]{1,59}")
_TOPIC = re.compile(r"[a-zA-Z0-9._-]*")
_LISTEN = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\[\]:\s]+)):(\d{1,5})")
_SECRET = re.compile(r"password|passphrase|passwd|secret|token", re.IGNORECASE)
_DSN_WORD = re.compile(r"""(\b\w*(?:password|passphrase|passwd|secret|token)\w*\s*=\s*)('(?:\\.|[^'\\])*'?|[^\s&'"]+)""", re.IGNORECASE)
_DSN_URI = re.compile(r"(\b[a-z][a-z0-9+.-]*://)([^\s?'\"]*)@", re.IGNORECASE)


TOKEN_MIN_CHARS = 16
"""Shorter ones can be guessed."""


class Wrong(ValueError):
    """A value that cannot be used: `what` is wrong with it, and `fix` says what would be right."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(what)
        self.what = what
        self.fix = fix


def parse_duration(value: object) -> timedelta:
    """Read a number with its unit, such as "500ms", "10s" or "7d"."""
    if isinstance(value, timedelta):
        return value
    match = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        what = "is not a duration"
        raise Wrong(what, 'write a number and its unit (ms, s, m, h, d), such as "10s"')
    return int(match[1]) * _UNITS[match[2]]


def duration_text(value: timedelta) -> str:
    """Write a duration as `parse_duration` reads it, in the largest unit that fits."""
    for unit, size in reversed(_UNITS.items()):
        if value % size == timedelta(0) and value >= size:
            return f"{value // size}{unit}"
    return "0s"


Duration = Annotated[timedelta, BeforeValidator(parse_duration), PlainSerializer(duration_text)]


@dataclass(frozen=True, slots=True)
class TableName:
    """A table's literal name: case and all characters are kept, and quoting is up to us."""

    schema: str
    name: str

    @classmethod
    def parse(cls, value: object) -> TableName:
        """Read `schema.table`; a dot inside a name needs double quotes, and a name alone is in `public`."""
        if isinstance(value, TableName):
            return value
        parts = _identifiers(value) if isinstance(value, str) else ()
        if len(parts) == 1:
            parts = ("public", *parts)
        if len(parts) != 2:  # noqa: PLR2004 - schema and table
            what = "is not the name of a table"
            raise Wrong(what, 'write schema.table, with double quotes around a name that has a dot in it: App."Out.box"')
        for part in parts:
            if len(part.encode()) > NAME_MAX_BYTES:
                what = f"has a name of more than {NAME_MAX_BYTES} bytes"
                raise Wrong(what, "PostgreSQL cuts longer names: write the name as the catalog has it")
        return cls(*parts)

    @property
    def quoted(self) -> str:
        """The name as SQL takes it."""
        return f"{quote_identifier(self.schema)}.{quote_identifier(self.name)}"

    def __str__(self) -> str:
        return ".".join(quote_identifier(part) if set(part) & {".", '"'} else part for part in (self.schema, self.name))


def _identifiers(text: str) -> tuple[str, ...]:
    parts: list[str] = []
    at = 0
    while True:
        match = _IDENTIFIER.match(text, at)
        if match is None:
            return ()
        parts.append(match[1].replace('""', '"') if match[1] else match[2])
        at = match.end()
        if at == len(text):
            return tuple(parts)
        if text[at] != ".":
            return ()
        at += 1


def quote_identifier(name: str) -> str:
    """Quote a name for SQL."""
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


def _slot_name(value: str) -> str:
    if not _SLOT.fullmatch(value):
        what = "is not the name of a replication slot"
        raise Wrong(what, f"use lower-case letters, digits and underscores, at most {NAME_MAX_BYTES}")
    return value


def _pipeline_name(value: str) -> str:
    if not _PIPELINE.fullmatch(value):
        what = "is not the name of a pipeline"
        raise Wrong(what, f"use lower-case letters, digits and underscores, at most {PIPELINE_NAME_MAX_CHARS}")
    return value


def _identifier(value: str) -> str:
    if not value or "\0" in value or len(value.encode()) > NAME_MAX_BYTES:
        what = "is not a name that PostgreSQL can keep"
        raise Wrong(what, f"use 1 to {NAME_MAX_BYTES} bytes; the name is taken literally, without quotes")
    return value


def _topic_name(value: str) -> str:
    if not _TOPIC.fullmatch(value) or not 1 <= len(value) <= TOPIC_MAX_CHARS or value in {".", ".."}:
        what = "is not the name of a topic"
        raise Wrong(what, f"use letters, digits, dots, underscores and dashes, 1 to {TOPIC_MAX_CHARS}")
    return value


def _column(value: str) -> str:
    if not value.strip() or "\0" in value:
        what = "names no column"
        raise Wrong(what, "write the name of a column, or a path into the payload such as payload.eventType")
    return value


def template_parts(template: str, keys: Iterable[str] = TEMPLATE_KEYS) -> tuple[tuple[str, str | None], ...]:
    """Split a template into (text, placeholder after it) pairs; refuses anything but plain placeholders out of `keys`."""
    known = tuple(keys)
    try:
        fields = list(string.Formatter().parse(template))
    except ValueError:
        what = "is not a template: its braces do not match"
        raise Wrong(what, "write placeholders such as {type}") from None
    for text, key, form, conversion in fields:
        if set(text) & set("{}"):
            what = "has a brace in its text"
            raise Wrong(what, "write placeholders such as {type}, and no other braces")
        if key is not None and (key not in known or form or conversion):
            what = f"has a placeholder {{{key}}} that does not exist"
            raise Wrong(what, f"use one of {', '.join(f'{{{name}}}' for name in known)}")
    return tuple((text, key) for text, key, _, _ in fields)


def _subject_template(value: str) -> str:
    if not template_parts(value):
        what = "is empty"
        raise Wrong(what, "write a subject or a template of it, such as {type}")
    return value


def _topic_template(value: str) -> str:
    parts = template_parts(value)
    if not any(key for _, key in parts):
        return _topic_name("".join(text for text, _ in parts))
    if not all(_TOPIC.fullmatch(text) for text, _ in parts):
        what = "has characters that a topic's name cannot have"
        raise Wrong(what, "use letters, digits, dots, underscores and dashes around the placeholders")
    return value


def parse_placement(value: str) -> dict[str, str]:
    """Read `column:header:name, ..` (without a name it is the column's) into columns by the header that holds them."""
    placed: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in value.split(","))):
        column, _, rest = part.partition(":")
        kind, _, name = rest.partition(":")
        name = name or column
        if not column or kind != "header":
            what = f"has {part!r}, which places no column in a header"
            raise Wrong(what, "write column:header or column:header:name; a partition is outbox.columns.partition")
        if name in placed or any(reserved.fullmatch(name) for reserved in RESERVED_HEADERS.values()):
            what = f"places a column in the header {name!r}, which is {'named twice' if name in placed else 'set by the pipeline'}"
            raise Wrong(what, "give it another name: column:header:name")
        placed[name] = column
    return placed


def _placement(value: str) -> str:
    parse_placement(value)
    return value


def _source(value: str) -> str:
    if not value or not value.isprintable() or " " in value:
        what = "is not a URI reference"
        raise Wrong(what, "write something like /shop or https://example.com/shop")
    return value


def parse_listen(value: str) -> tuple[str, int] | None:
    """Read host and port of "127.0.0.1:8642" or "[::1]:8642"; "" and "off" mean none."""
    if value in {"", "off"}:
        return None
    match = _LISTEN.fullmatch(value)
    if match is None or int(match[3]) > 65535:  # noqa: PLR2004 - the largest port
        what = "is not an address to listen on"
        raise Wrong(what, 'write host:port, such as "127.0.0.1:8642", or "off"')
    return match[1] or match[2], int(match[3])


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listen(value: str) -> str:
    parse_listen(value)
    return value


SlotName = Annotated[str, AfterValidator(_slot_name)]
PipelineName = Annotated[str, AfterValidator(_pipeline_name)]
Identifier = Annotated[str, AfterValidator(_identifier)]
TopicName = Annotated[str, AfterValidator(_topic_name)]
Column = Annotated[str, AfterValidator(_column)]
SubjectTemplate = Annotated[str, AfterValidator(_subject_template)]
TopicTemplate = Annotated[str, AfterValidator(_topic_template)]
SourceUri = Annotated[str, AfterValidator(_source)]
Placement = Annotated[str, AfterValidator(_placement)]
Listen = Annotated[str, AfterValidator(_listen)]
Table = Annotated[TableName, BeforeValidator(TableName.parse), PlainSerializer(str)]


def is_secret(key: str) -> bool:
    """Whether the value of a setting or a librdkafka property of this name must not be shown."""
    return key in SECRETS or _SECRET.search(key) is not None


def mask(text: str) -> str:
    """Hide what looks like a password in a text: in a URI's user part, and after `password=` and its like."""
    return _DSN_WORD.sub(rf"\1{MASK}", _DSN_URI.sub(_mask_user, text))


def _mask_user(match: re.Match[str]) -> str:
    user, colon, _ = match[2].partition(":")
    return f"{match[1]}{user}:{MASK}@" if colon else match[0]


class Dsn(Secret[str]):
    """A libpq connection string or URI; shown with its password masked."""

    def _display(self) -> str:
        return mask(self.get_secret_value())


def _not_empty(dsn: Dsn) -> Dsn:
    if not dsn.get_secret_value().strip():
        what = "is empty"
        raise Wrong(what, "write a libpq URI such as postgresql://cdc@127.0.0.1:5432/shop")
    return dsn


class Token(Secret[str]):
    """What a caller has to know; never shown."""

    def _display(self) -> str:
        return MASK


def _long_enough(token: Token) -> Token:
    if len(token.get_secret_value().strip()) < TOKEN_MIN_CHARS:
        what = f"has fewer than {TOKEN_MIN_CHARS} characters"
        raise Wrong(what, "make one with: openssl rand -hex 24")
    return token


HttpToken = Annotated[Token, AfterValidator(_long_enough)]
ConnectionString = Annotated[Dsn, AfterValidator(_not_empty)]


class KafkaProperties(Mapping[str, str]):
    """librdkafka's properties by name, all as text; shown with secrets masked."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        self._properties = dict(properties)

    @classmethod
    def parse(cls, value: object) -> KafkaProperties:
        """Read a table of properties: text, whole numbers, decimals, true and false."""
        if isinstance(value, KafkaProperties):
            return value
        if not isinstance(value, Mapping):
            what = "is not a table"
            raise Wrong(what, "write a table of librdkafka properties")
        return cls({str(key): _property_text(str(key), item) for key, item in value.items()})

    def shown(self) -> dict[str, str]:
        """Return the properties as they may be printed."""
        return {key: MASK if is_secret(key) else mask(value) for key, value in self.items()}

    def __getitem__(self, key: str) -> str:
        return self._properties[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._properties)

    def __len__(self) -> int:
        return len(self._properties)

    def __repr__(self) -> str:
        return f"KafkaProperties({self.shown()})"


def _property_text(key: str, value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str() | int() | float():
            return str(value)
        case _:
            what = f'has "{key}" with a value that is neither text nor a number nor true or false'
            raise Wrong(what, "librdkafka takes a list as one text with commas in it")
