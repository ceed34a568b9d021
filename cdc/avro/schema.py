"""What an Avro schema is once it has been read: an immutable tree, names resolved, no I/O.

Strategy: one class for each kind of type. A named type (record, enum, fixed) stands in the tree where it is defined first;
every further use is a `Ref`, so that recursive and shared types need no cycles in the tree. `Schema.names` resolves a `Ref`.
`Schema.document` is the same schema as JSON with every shared type written out: what other Avro libraries are given.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Json: TypeAlias = Any
"""A value as a JSON parser returns it, or as fastavro does: what it holds is known to a schema, not to the type checker."""

PRIMITIVES: Final = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")


class _NoDefault:
    """The type of NO_DEFAULT: a field without a default is not a field whose default is null."""

    def __repr__(self) -> str:
        return "NO_DEFAULT"


NO_DEFAULT: Final = _NoDefault()


@dataclass(frozen=True, slots=True)
class Logical:
    """A logical type; precision and scale are 0 for all but decimals."""

    name: str
    precision: int = 0
    scale: int = 0

    def __str__(self) -> str:
        return f"{self.name}({self.precision},{self.scale})" if self.name == "decimal" else self.name


@dataclass(frozen=True, slots=True)
class Primitive:
    """One of PRIMITIVES, with its logical type."""

    type: str
    logical: Logical | None = None


@dataclass(frozen=True, slots=True)
class Array:
    """A list of one type."""

    items: Node


@dataclass(frozen=True, slots=True)
class Map:
    """String keys to values of one type."""

    values: Node


@dataclass(frozen=True, slots=True)
class Union:
    """One of several types, told by its index on the wire."""

    branches: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Enum:
    """A name out of a list; `default` is what a reader takes for a symbol that it does not know."""

    name: str
    symbols: tuple[str, ...]
    default: str | None
    aliases: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Fixed:
    """Bytes of one length."""

    name: str
    size: int
    aliases: tuple[str, ...]
    logical: Logical | None = None


@dataclass(frozen=True, slots=True)
class Field:
    """A member of a record; `default` is the JSON value that the schema gives, or NO_DEFAULT."""

    name: str
    type: Node
    default: Json
    aliases: tuple[str, ...]
    order: str
    doc: str


@dataclass(frozen=True, slots=True)
class Record:
    """Fields in the order in which they are written."""

    name: str
    fields: tuple[Field, ...]
    aliases: tuple[str, ...]
    doc: str


@dataclass(frozen=True, slots=True)
class Ref:
    """A further use of a named type, by its full name."""

    name: str


Node = Primitive | Array | Map | Union | Enum | Fixed | Record | Ref
Named = Enum | Fixed | Record


@dataclass(frozen=True, slots=True)
class Schema:
    """A whole schema: its root, its named types by full name, and the JSON of it with shared types written out."""

    root: Node
    names: Mapping[str, Named] = field(repr=False)
    document: Json = field(repr=False)

    def resolve(self, node: Node) -> Primitive | Array | Map | Union | Enum | Fixed | Record:
        """Follow a `Ref` to its definition."""
        return self.names[node.name] if isinstance(node, Ref) else node


def children(node: Node) -> tuple[Node, ...]:
    """Return the types that stand directly in this one."""
    if isinstance(node, Array):
        return (node.items,)
    if isinstance(node, Map):
        return (node.values,)
    if isinstance(node, Union):
        return node.branches
    if isinstance(node, Record):
        return tuple(f.type for f in node.fields)
    return ()


def walk(node: Node) -> Iterator[Node]:
    """Every node of the tree once, top down; a `Ref` is not followed."""
    waiting = [node]
    while waiting:
        here = waiting.pop()
        yield here
        waiting.extend(reversed(children(here)))


def label(node: Node) -> str:  # noqa: PLR0911 - one for each kind of type
    """Name a type as an error message names it."""
    if isinstance(node, Primitive):
        return str(node.logical) if node.logical else node.type
    if isinstance(node, Array):
        return "array"
    if isinstance(node, Map):
        return "map"
    if isinstance(node, Union):
        return "one of " + ", ".join(label(b) for b in node.branches)
    if isinstance(node, Record):
        return f"record {node.name}"
    if isinstance(node, Enum):
        return f"enum {node.name}"
    if isinstance(node, Fixed):
        return f"{node.logical} in fixed {node.name}" if node.logical else f"fixed {node.name}"
    return node.name


def branch_name(node: Node) -> str:
    """Name a union's branch as Avro's JSON encoding names it: the full name, or the name of the type."""
    if isinstance(node, Primitive):
        return node.type
    if isinstance(node, Array):
        return "array"
    if isinstance(node, Map):
        return "map"
    if isinstance(node, Union):
        msg = "a union cannot stand directly in a union"
        raise TypeError(msg)
    return node.name
