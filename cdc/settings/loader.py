"""Load the settings once, at the door: file, then environment, then flags, into frozen models.

Strategy: lay the sources over each other, read secrets from the files that are still named after that, refuse what the
guarantee rests on, and let the models judge the rest. Every refusal is a ConfigurationError of one line: where the value was
written, which setting it is, what is wrong with it, and what would be right. The value itself is shown only when it
cannot be a secret.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path as FilePath
from typing import Any

from pydantic import ValidationError

from cdc.errors import ConfigurationError
from cdc.kafka.properties import LOCKED_PROPERTIES
from cdc.settings.models import Origin, Path, SchemaSettings, Settings
from cdc.settings.sources import Leaf, Leaves, dotted, from_environment, from_flags, from_toml
from cdc.settings.values import Wrong, is_secret

DEFAULT_FILE = "cdc.toml"

SECRET_FILE_MAX_BYTES = 65_536
"""A secret is short; a larger file is a wrong path, and must not end up in a connection string."""

VALUE_SHOWN_MAX_CHARS = 60
"""A refused value is repeated up to here: enough to recognise it, and the message stays one line."""


def load(config: FilePath | None, sets: Sequence[str] = (), environ: Mapping[str, str] | None = None) -> Settings:
    """Return the settings that hold: `config` (else CDC_CONFIG, else ./cdc.toml if there is one), environment, flags."""
    leaves, folder = _gather(config, sets, environ or {})
    for path, leaf in leaves.items():
        _refuse_locked(path, leaf)
    tree = _tree(leaves, folder)
    try:
        settings = Settings.model_validate(tree)
    except ValidationError as error:
        refusal = _refused(error, leaves)
        if not (config or (environ or {}).get("CDC_CONFIG") or FilePath(DEFAULT_FILE).exists()) and "is missing" in refusal.what:
            fix = f"go to the folder of your {DEFAULT_FILE}, or name it with --config; without one, {refusal.fix.partition(', or ')[2]}"
            refusal = ConfigurationError(f"there is no {DEFAULT_FILE} in this folder: {refusal.what}", fix)
        raise refusal from None
    settings._origins.update({path: leaf.origin for path, leaf in leaves.items()})  # noqa: SLF001 - filled once, here
    return settings


def load_schemas(config: FilePath | None, sets: Sequence[str] = (), environ: Mapping[str, str] | None = None) -> SchemaSettings:
    """Return the table `[schemas]` alone, for commands that need neither a name nor a server."""
    leaves, folder = _gather(config, sets, environ or {})
    tree = _tree({path: leaf for path, leaf in leaves.items() if path[0] == "schemas"}, folder)
    try:
        return SchemaSettings.model_validate(tree["schemas"])
    except ValidationError as error:
        raise _refused(error, leaves, ("schemas",)) from None


def _gather(config: FilePath | None, sets: Sequence[str], environ: Mapping[str, str]) -> tuple[Leaves, FilePath]:
    """Lay the sources over each other; the folder is where relative paths in the file start."""
    named = config or (FilePath(environ["CDC_CONFIG"]) if environ.get("CDC_CONFIG") else None)
    file = named or FilePath(DEFAULT_FILE)
    leaves: Leaves = {}
    if named is not None or file.exists():
        leaves |= from_toml(file)
    leaves |= from_environment(environ)
    leaves |= from_flags(sets)
    folder = file.parent
    return {path: _read_secret(path, leaf, folder) if leaf.from_file else leaf for path, leaf in leaves.items()}, folder


def _read_secret(path: Path, leaf: Leaf, folder: FilePath) -> Leaf:
    file = FilePath(str(leaf.value))
    if leaf.origin.source == "file":
        file = folder / file
    try:
        with file.open(encoding="utf-8") as stream:
            secret = stream.read(SECRET_FILE_MAX_BYTES + 1)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        msg = f"{leaf.origin.place}: the file for {dotted(path)}, {file}, cannot be read: {reason}"
        raise ConfigurationError(msg, "name a file that this user can read") from None
    if len(secret) > SECRET_FILE_MAX_BYTES:
        msg = f"{leaf.origin.place}: the file for {dotted(path)}, {file}, is too large for a secret"
        raise ConfigurationError(msg, "name the file that holds the secret and nothing else")
    return Leaf(secret.rstrip("\r\n"), Origin(leaf.origin.source, f"{leaf.origin.place} (file {file})"))


def _refuse_locked(path: Path, leaf: Leaf) -> None:
    reason = LOCKED_PROPERTIES.get(path[1]) if path[0] == "kafka" else None
    if reason is not None:
        msg = f"{leaf.origin.place}: {dotted(path)} cannot be set: {reason}"
        raise ConfigurationError(msg, "leave it out")


def _tree(leaves: Leaves, folder: FilePath) -> dict[str, Any]:
    tree: dict[str, Any] = {"schemas": {"folder": str(folder / SchemaSettings().folder)}}
    for path, leaf in leaves.items():
        table = tree
        for key in path[:-1]:
            table = table.setdefault(key, {})
        if leaf.value != {}:
            table[path[-1]] = leaf.value
        else:
            table.setdefault(path[-1], {})
        if path == ("schemas", "folder") and leaf.origin.source == "file" and isinstance(leaf.value, str):
            table[path[-1]] = str(folder / leaf.value) if leaf.value else ""
    for section in ("postgres", "outbox", "topics"):
        tree.setdefault(section, {})
    return tree


def _refused(error: ValidationError, leaves: Leaves, above: Path = ()) -> ConfigurationError:
    """Make one line of the first thing that the models refused."""
    first, *others = error.errors(include_url=False, include_input=False)
    path = (*above, *(str(key) for key in first["loc"]))
    leaf = leaves.get(path) or next((leaves[each] for each in leaves if each[: len(path)] == path), None)
    more = f" (and {len(others)} more)" if others else ""
    if first["type"] == "missing":
        variable = "CDC_" + "__".join(path).upper()
        msg = f"the setting {dotted(path)} is missing{more}"
        return ConfigurationError(msg, f"write it into {DEFAULT_FILE}, or set {variable} or --set {dotted(path)}=..")
    wrong = first.get("ctx", {}).get("error")
    what, fix = (wrong.what, wrong.fix) if isinstance(wrong, Wrong) else _in_our_words(first["msg"])
    place = f"{leaf.origin.place}: " if leaf else ""
    value = f" = {_shown(path, leaf.value)}" if leaf and path in leaves else ""
    return ConfigurationError(f"{place}{dotted(path)}{value} {what}{more}", fix)


def _in_our_words(message: str) -> tuple[str, str]:
    """Pydantic says what would be right: "Input should be 'json' or 'avro'"."""
    return "cannot be used", re.sub(r"^\w+ should", "it should", message)


def _shown(path: Path, value: object) -> str:
    if path[-1].endswith(("dsn", "url")) or is_secret(path[-1]):
        return "***"
    text = str(value).lower() if isinstance(value, bool) else repr(value).replace("'", '"')
    return text if len(text) <= VALUE_SHOWN_MAX_CHARS else text[:VALUE_SHOWN_MAX_CHARS] + ".."
