"""The manual's page about settings, written from the models.

`python -m cdc.settings.reference > docs/configuration.md` writes it. A test compares the page with what this module writes,
so a key without words, or words without a key, cannot last.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from cdc.kafka.properties import LOCKED_PROPERTIES
from cdc.settings.models import DERIVED, KAFKA_DEFAULTS, SECTION_NOTES, SINKS, Path, Settings
from cdc.settings.sources import ENV_PREFIX, dotted, kind_of

SHOWN_NAME = "shop"

INTRODUCTION = """\
# Configuration

<!-- Written by `python -m cdc.settings.reference`; a test keeps it equal to the program. -->

Settings come from three sources. A later one overrides an earlier one, key by key, also inside of tables:

1. the file: `--config FILE`, else the variable `CDC_CONFIG`, else `cdc.toml` in the working folder if there is one;
2. the environment: `CDC_NAME`, `CDC_POSTGRES__DSN`, `CDC_TOPICS__CREATE__PARTITIONS`. Two underscores go one table
   deeper; in the `kafka` table one underscore stands for a dot: `CDC_KAFKA__BOOTSTRAP_SERVERS`;
3. flags: `--set postgres.slot=cdc_shop`, `--set kafka.bootstrap.servers=127.0.0.1:9092`, as often as needed.

A variable or a flag may hold a whole table: `--set 'topics.create={ partitions = 6 }'`. A key that does not exist is
refused with exit code 2, the place where it was written and the key that was probably meant. `cdc check` shows the
settings that hold and where each came from.

**Secrets** may come from files: `dsn_file` and `admin_dsn_file`, `"sasl.password_file"` and its like in the `kafka`
table, `CDC_POSTGRES__DSN_FILE` and `CDC_KAFKA__SASL_PASSWORD_FILE` in the environment. The file holds the secret alone;
line ends at its end are cut off. Wherever settings are shown, secrets and the passwords inside of connection strings are
masked.

**Paths** that the file names start at the file's folder, those of variables and flags at the working folder.

**Durations** are a whole number and a unit: `500ms`, `10s`, `5m`, `1h`, `7d`.

**Table names** are literal: case is kept and quoting is up to cdc. A dot inside a name needs double quotes, so
`App."Out.box"` is the table `Out.box` in the schema `App`. A name alone is in the schema `public`.

The defaults below are those of a pipeline called `shop`.
"""


def markdown() -> str:
    """Write the page."""
    return "\n".join((INTRODUCTION, *_table((), Settings), *_kafka())) + "\n"


def _table(path: Path, model: type[BaseModel]) -> Iterator[str]:
    tables: list[tuple[str, type[BaseModel]]] = []
    yield f"## `[{dotted(path)}]`\n" if path else "## Top level\n"
    if path:
        yield SECTION_NOTES[".".join(path)] + "\n"
    yield "| key | default | meaning |\n|---|---|---|"
    for key, field in model.model_fields.items():
        kind = kind_of((*path, key))
        if isinstance(kind, type):
            tables.append((key, kind))
        elif (*path, key) != ("kafka",):
            yield f"| `{key}` | {_default((*path, key), field)} | {_meaning((*path, key), field)} |"
    yield ""
    for key, table in tables:
        yield from _table((*path, key), table)


def _default(path: Path, field: FieldInfo) -> str:
    if path in DERIVED:
        return _code(DERIVED[path].format(name=SHOWN_NAME))
    if path[:2] == ("outbox", "columns"):
        return _code(path[-1])
    if field.is_required():
        return f"*needed*, e.g. {_code(field.examples[0])}" if field.examples else "*needed*"
    if field.default is None:
        return f"*none*, e.g. {_code(field.examples[0])}" if field.examples else "*none*"
    return _code(shown_default(path))


def shown_default(path: Path) -> object:
    """Return a default as the file would hold it."""
    shown: object = Settings.model_validate(
        {
            "name": SHOWN_NAME,
            "postgres": {"dsn": "dbname=shop"},
            **({path[0]: {}} if path[0] in SINKS else {"topics": {"create": {"partitions": 1}}}),
        }
    ).effective()
    for key in path:
        shown = shown[key]  # type: ignore[index]  # tables down to the leaf
    return shown["value"]  # type: ignore[index]


def _meaning(path: Path, field: FieldInfo) -> str:
    meaning = field.description or ""
    choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
    if choices:
        meaning += f" One of {', '.join(_code(choice) for choice in choices)}."
    variable = ENV_PREFIX + "__".join(path).upper()
    return f"{meaning} `{variable}`".replace("|", "\\|")


def _code(value: object) -> str:
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _kafka() -> Iterator[str]:
    yield "## `[kafka]`\n"
    yield SECTION_NOTES["kafka"] + "\n"
    yield "| property | default |\n|---|---|"
    for name, value in KAFKA_DEFAULTS.items():
        yield f'| `"{name}"` | `{value}` |'
    yield "\nRefused, because cdc sets them:\n\n| property | why |\n|---|---|"
    for name, reason in LOCKED_PROPERTIES.items():
        yield f'| `"{name}"` | {reason} |'


if __name__ == "__main__":
    sys.stdout.write(markdown())
