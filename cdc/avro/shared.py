"""Names in Avro schemas, and the named types that a file of schemas/types/ offers to all subjects. No I/O."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NoReturn

from cdc.avro.schema import PRIMITIVES, Json
from cdc.errors import ConfigurationError

MAX_DEPTH: Final = 64
"""Types inside types, shared ones included. Avro libraries walk schemas by recursion, and the smallest stacks among them end
near 200 levels; no event that people read comes near."""

MAX_PATH: Final = 80
"""Characters of a path that an error shows; the rest of a deep one tells nothing more."""

FULL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")


@dataclass(frozen=True, slots=True)
class SharedType:
    """A named type of schemas/types/: where it is written, as what, and in which namespace."""

    source: str
    path: str
    document: Json
    namespace: str


def definitions(document: object, source: str) -> dict[str, SharedType]:
    """Every named type that a file of schemas/types/ defines, nested ones included, by full name."""
    if not isinstance(document, dict) or document.get("type") not in ("record", "enum", "fixed"):
        refuse(source, "$", "a file of shared types holds one record, enum or fixed", "give it a type and a name")
    collector = _Collector(source)
    collector.node(document, "", "$", 0)
    return collector.found


class _Collector:
    """Finds the definitions in one file."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.found: dict[str, SharedType] = {}

    def node(self, node: object, namespace: str, path: str, depth: int) -> None:
        """Look at one type and at those inside it."""
        if depth > MAX_DEPTH:
            too_deep(self.source, path)
        if isinstance(node, list):
            for index, branch in enumerate(node):
                self.node(branch, namespace, f"{path}[{index}]", depth + 1)
        elif isinstance(node, dict):
            if node.get("type") in ("record", "enum", "fixed"):
                self.named(node, namespace, path, depth)
            elif isinstance(node.get("type"), (dict, list)):
                self.node(node["type"], namespace, f"{path}.type", depth + 1)
            for key in ("items", "values"):
                self.node(node.get(key), namespace, f"{path}.{key}", depth + 1)

    def named(self, node: dict[str, Json], namespace: str, path: str, depth: int) -> None:
        """Note a definition, and look into its fields."""
        name, inner = full_name(node, namespace, self.source, path)
        if name in self.found:
            refuse(self.source, path, f"{name} is defined twice in this file", "keep one definition and refer to it by name")
        self.found[name] = SharedType(self.source, path, node, namespace)
        fields = node.get("fields")
        for index, member in enumerate(fields if isinstance(fields, list) else ()):
            if isinstance(member, dict):
                self.node(member.get("type"), inner, f"{path}.fields[{index}].type", depth + 1)


def full_name(document: dict[str, Json], namespace: str, source: str, path: str) -> tuple[str, str]:
    """Return the full name of a definition, and the namespace in which names inside it are resolved."""
    name, given = document.get("name"), document.get("namespace", namespace)
    if not isinstance(name, str) or not FULL_NAME.fullmatch(name):
        refuse(source, path, f"{document['type']} needs a name: letters, digits, _ and dots")
    if "." in name:
        return name, name.rpartition(".")[0]
    if not isinstance(given, str) or (given and not FULL_NAME.fullmatch(given)):
        refuse(source, path, "a namespace is names joined by dots")
    if name in PRIMITIVES:
        refuse(source, path, f"{name} is the name of a primitive type")
    return (f"{given}.{name}" if given else name), given


def too_deep(source: str, path: str) -> NoReturn:
    """Refuse what is nested deeper than MAX_DEPTH."""
    short = path if len(path) <= MAX_PATH else path[:MAX_PATH] + ".."
    refuse(source, short, f"types are nested deeper than {MAX_DEPTH}", "flatten the schema")


def refuse(source: str, path: str, reason: str, fix: str = "") -> NoReturn:
    """Raise the one kind of error that reading a schema ends in."""
    msg = f"{source} {path}: {reason}"
    raise ConfigurationError(msg, fix or "correct the schema")
