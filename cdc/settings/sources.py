"""Where settings come from: a TOML file, the environment and flags, each read into the same form.

Strategy: every source becomes a flat dict from a key's path to its value and the place where it was written, so that one
loop can lay a later source over an earlier one, key by key and at any depth. Keys are checked here, where the place is
still known: one that does not exist is refused with the key that was probably meant. Nothing is read from `dsn_file` and
its like before it is certain that no later source overrides it.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, Secret

from cdc.errors import ConfigurationError, nearest
from cdc.settings.models import Origin, Path, Settings
from cdc.settings.values import is_secret

ENV_PREFIX = "CDC_"

ENV_OTHER = frozenset({"CDC_CONFIG", "CDC_LOG_FORMAT", "CDC_LOG_LEVEL"})
"""Variables with our prefix that are read elsewhere."""

_SERVICE_LINK = re.compile(r"CDC_(\w+_)?(SERVICE_(HOST|PORT(_\w+)?)|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)")
"""Kubernetes tells every container the address of each Service in its namespace, so of one that is called `cdc` as well."""

_FILE = "_file"


@dataclass(frozen=True, slots=True)
class Leaf:
    """One written value. `from_file`: the value is the path of a file that holds the real one."""

    value: object
    origin: Origin
    from_file: bool = False


Leaves = dict[Path, Leaf]


def from_toml(file: FilePath) -> Leaves:
    """Read the configuration file."""
    try:
        text = file.read_text(encoding="utf-8")
        document = tomllib.loads(text)
    except OSError as error:
        msg = f"the configuration file {file} cannot be read: {error.strerror}"
        raise ConfigurationError(msg, "name a file that exists with --config or CDC_CONFIG") from None
    except ValueError as error:
        msg = f"{file} is not TOML: {error}"
        raise ConfigurationError(msg, "mend the file at that place") from None
    leaves: Leaves = {}
    for path, value in _expand((), document):
        line = line_of(text, path)
        _add(leaves, path, value, Origin("file", f"{file}:{line}" if line else str(file)))
    return leaves


def from_environment(environ: Mapping[str, str]) -> Leaves:
    """Read the variables with our prefix."""
    leaves: Leaves = {}
    for variable in sorted(environ):
        if not variable.startswith(ENV_PREFIX) or variable in ENV_OTHER:
            continue
        path = tuple(variable.removeprefix(ENV_PREFIX).lower().split("__"))
        if len(path) == 1 and path[0] not in Settings.model_fields and _SERVICE_LINK.fullmatch(variable):
            continue
        if path[0] == "kafka" and len(path) > 1:
            path = ("kafka", _property_name(path[1:]))
        for leaf, value in _text(path, environ[variable], variable):
            _add(leaves, leaf, value, Origin("env", variable))
    return leaves


def from_flags(sets: Sequence[str]) -> Leaves:
    """Read `--set key=value` flags; of two for one key the later counts."""
    leaves: Leaves = {}
    for item in sets:
        key, equals, value = item.partition("=")
        if not equals:
            msg = f"--set {key} has no value"
            raise ConfigurationError(msg, "write it as --set postgres.slot=cdc_shop")
        path = tuple(key.strip().split("."))
        if path[0] == "kafka":
            path = ("kafka", key.strip().removeprefix("kafka").removeprefix(".").strip("\"'"))
        place = f"--set {key.strip()}"
        for leaf, part in _text(path, value, place):
            leaves.pop(known_path(leaf, place)[0], None)
            _add(leaves, leaf, part, Origin("flag", place))
    return leaves


def _property_name(parts: Sequence[str]) -> str:
    name = "__".join(parts)
    base = name.removesuffix(_FILE).replace("_", ".")
    return base + _FILE if name.endswith(_FILE) and is_secret(base) else name.replace("_", ".")


def _text(path: Path, value: str, place: str) -> Iterator[tuple[Path, object]]:
    """Take a text for what it is, or for a whole table written as TOML's inline table."""
    if not isinstance(kind_of(path), type) and path != ("kafka", ""):
        yield path, value
        return
    try:
        table = tomllib.loads(f"table = {value}")["table"]
    except tomllib.TOMLDecodeError:
        table = None
    if not isinstance(table, dict):
        raise _table_expected(path[:1] if path[0] == "kafka" else path, place)
    if not table:
        yield path, table
    yield from _expand(path[:1] if path[0] == "kafka" else path, table)


def _expand(path: Path, table: Mapping[str, Any]) -> Iterator[tuple[Path, object]]:
    """Walk through nested tables; below `kafka` a dotted key is one name."""
    for key, value in table.items():
        at = (*path[:1], ".".join((*path[1:], key))) if path and path[0] == "kafka" else (*path, key)
        if isinstance(value, dict) and (value or len(at) == 1):
            yield from _expand(at, value)
        else:
            yield at, value


def _add(leaves: Leaves, path: Path, value: object, origin: Origin) -> None:
    real, from_file = known_path(path, origin.place)
    if (real == ("kafka",) or isinstance(kind_of(real), type)) and not isinstance(value, dict):
        raise _table_expected(real, origin.place)
    if real in leaves:
        msg = f"{origin.place}: {dotted(real)} is given twice, as itself and as {path[-1]}"
        raise ConfigurationError(msg, "leave one of them out")
    leaves[real] = Leaf(value, origin, from_file)


def _table_expected(path: Path, place: str) -> ConfigurationError:
    msg = f"{place}: {dotted(path)} is a table"
    return ConfigurationError(msg, "name a key in it, or write an inline table such as { key = value }")


def known_path(path: Path, place: str) -> tuple[Path, bool]:
    """Return the path of the setting that is meant, and whether its value stands in a file; refuse what does not exist."""
    if path[0] == "kafka" and len(path) == 2 and path[1]:  # noqa: PLR2004 - kafka and the property
        base = path[1].removesuffix(_FILE)
        from_file = base != path[1] and is_secret(base)
        return ("kafka", base if from_file else path[1]), from_file
    if kind_of(path) is not None:
        return path, False
    if path[-1].endswith(_FILE):
        base_path = (*path[:-1], path[-1].removesuffix(_FILE))
        if kind_of(base_path) == "secret":
            return base_path, True
    near = _nearest(path)
    msg = f"{place}: there is no setting {dotted(path)}"
    raise ConfigurationError(msg, f"did you mean {near}?" if near else "docs/configuration.md lists every setting")


def kind_of(path: Path) -> type[BaseModel] | str | None:
    """Return the model of a table, "secret" or "value"; None when there is no such setting."""
    model: type[BaseModel] = Settings
    kind: type[BaseModel] | str | None = Settings
    for i, key in enumerate(path):
        field = model.model_fields.get(key)
        if field is None:
            return None
        kinds = [part for part in _parts(field.annotation) if isinstance(part, type)]
        table = next((part for part in kinds if issubclass(part, BaseModel)), None)
        if table is None:
            return ("secret" if any(issubclass(part, Secret) for part in kinds) else "value") if i == len(path) - 1 else None
        model = kind = table
    return kind


def _parts(annotation: object) -> tuple[object, ...]:
    """Yield the types in an annotation such as `X | None` or `Annotated[X, ..]`."""
    if get_origin(annotation) in {Union, UnionType}:
        return tuple(part for arg in get_args(annotation) for part in _parts(arg))
    if get_origin(annotation) is Annotated:
        return _parts(get_args(annotation)[0])
    return (annotation,)


def all_paths(model: type[BaseModel] = Settings, path: Path = ()) -> Iterator[Path]:
    """Every setting that exists, tables left out."""
    for key in model.model_fields:
        kind = kind_of((*path, key))
        if isinstance(kind, type):
            yield from all_paths(kind, (*path, key))
        else:
            yield (*path, key)


def _nearest(path: Path) -> str | None:
    """Guess which setting was meant: the same key in another table, a similar path, a similar key anywhere."""
    known = list(all_paths())
    keys = [each[-1] for each in known]
    if path[-1] in keys:
        return dotted(known[keys.index(path[-1])])
    near = nearest(dotted(path), map(dotted, known))
    if near is not None:
        return near
    near = nearest(path[-1], keys)
    return None if near is None else dotted(known[keys.index(near)])


def dotted(path: Path) -> str:
    """Write a path as it stands in the file."""
    return ".".join(f'"{key}"' if "." in key or not key else key for key in path)


def line_of(text: str, path: Path) -> int | None:
    """Return the line on which a key is written: a plain scan, good enough to show the place."""
    table: Path = ()
    best: tuple[int, int] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        code = line.strip()
        if code.startswith("["):
            table = _key_parts(code.strip("[] \t").split("]")[0])
        elif "=" in code and not code.startswith("#"):
            here = (*table, *_key_parts(code.partition("=")[0]))
            if table[:1] == ("kafka",) or here[0] == "kafka":
                here = ("kafka", ".".join(here[1:]))
            if here == path[: len(here)] and (best is None or len(here) > best[0]):
                best = (len(here), number)
    return best[1] if best else None


def _key_parts(text: str) -> Path:
    return tuple(a or b or c for a, b, c in re.findall(r'"([^"]*)"|\'([^\']*)\'|([\w-]+)', text))
