"""Read registry.toml: what a team decided for each subject. Text in, settings out, no I/O.

[defaults]
compatibility = "BACKWARD_TRANSITIVE"

[subjects.OrderPlaced]
compatibility = "FULL_TRANSITIVE"
owner = "team-orders"
topic = "outbox.event.Order"
retention = "90d"
consumers = ["billing", "shipping"]
personal = ["customer.email"]       # masked wherever people read events
pinned = 1                          # for rows that name no version
aggregatetype = "Order"             # of events that generated classes write
key = "orderId"                     # the field that is their key
"""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Any, Final, NoReturn

from cdc.avro.registry import MODES, SubjectSettings
from cdc.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Collection

_KEYS: Final = {
    "compatibility": str,
    "owner": str,
    "topic": str,
    "retention": str,
    "consumers": list,
    "personal": list,
    "pinned": int,
    "description": str,
    "aggregatetype": str,
    "key": str,
}


def read_settings(text: str, source: str, subjects: Collection[str]) -> dict[str, SubjectSettings]:
    """Read the file; every subject of the folder gets settings."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        _refuse(source, f"is not TOML: {error}")
    unknown = document.keys() - {"defaults", "subjects"}
    if unknown:
        _refuse(source, f"unknown table {min(unknown)!r}; known are defaults and subjects")
    defaults, given = _table(document, "defaults", source), _table(document, "subjects", source)
    if defaults.keys() - {"compatibility"}:
        _refuse(source, f"unknown key {min(defaults.keys() - {'compatibility'})!r} in defaults; known is compatibility")
    for subject in given:
        if subject not in subjects:
            _refuse(source, f"subject {subject!r} has no folder")
    return {s: _subject({**defaults, **_table(given, s, source)}, f"{source} {s}") for s in subjects}


def _subject(table: dict[str, Any], source: str) -> SubjectSettings:
    for key, value in table.items():
        if key not in _KEYS:
            _refuse(source, f"unknown key {key!r}; known are {', '.join(_KEYS)}")
        if type(value) is not _KEYS[key]:
            _refuse(source, f"{key} must be {_KINDS[_KEYS[key]]}")
        if type(value) is list and not all(isinstance(item, str) for item in value):
            _refuse(source, f"{key} must be a list of texts")
    if table.get("compatibility", "NONE") not in MODES:
        _refuse(source, f"compatibility must be one of {', '.join(MODES)}")
    if table.get("pinned", 1) < 1:
        _refuse(source, "pinned must be the number of a version")
    given: dict[str, Any] = {key: tuple(value) if type(value) is list else value for key, value in table.items()}
    return SubjectSettings(**given)


def _table(document: dict[str, Any], key: str, source: str) -> dict[str, Any]:
    value = document.get(key, {})
    if not isinstance(value, dict):
        _refuse(source, f"{key} must be a table")
    return value


def _refuse(source: str, reason: str) -> NoReturn:
    msg = f"{source}: {reason}"
    raise ConfigurationError(msg, "correct registry.toml")


_KINDS: Final = {str: "a text", list: "a list of texts", int: "a whole number"}
