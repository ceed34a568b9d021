"""Whether data written with one version can be read with another: two schemas in, reasons out, no I/O.

Strategy: walk reader and writer side by side by Avro's resolution rules, and look further where those are blind: a default
that is missing is not a default of null, a branch inside a union is compared like any other type, and logical types count,
because a changed scale or unit turns every old number into another one without an error. Each reason carries the steps
through the *writer's* value that lead to it, so that `examples.example` can show a value that the reader cannot read.

The modes: BACKWARD, the new version reads what the one before it wrote; FORWARD, the one before reads what the new one
writes; FULL, both; with _TRANSITIVE against every earlier version.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from cdc.avro.schema import NO_DEFAULT, Array, Enum, Fixed, Map, Primitive, Record, Union, branch_name, label

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from cdc.avro.schema import Field, Logical, Node, Schema

PROMOTIONS: Final = {
    "int": ("int", "long", "float", "double"),
    "long": ("long", "float", "double"),
    "float": ("float", "double"),
    "string": ("string", "bytes"),
    "bytes": ("bytes",),
    "boolean": ("boolean",),
    "double": ("double",),
    "null": ("null",),
}
"""What a reader may ask for, by what was written (Avro specification, "Schema Resolution"). Avro also reads bytes as a
string, and fails at the first bytes that are not UTF-8: that is left out."""

MEANING: Final = "so the same bytes would mean another value"
"""How a reason ends that Avro's own rules do not see: it would read on, and get it wrong."""


class Step(NamedTuple):
    """One step into a value: a record's field, an array's item, a map's value, a union's branch, an enum's symbol."""

    kind: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class Incompatibility:
    """Why a reader cannot read what a writer may write, and the way to it in the writer's value."""

    steps: tuple[Step, ...]
    reason: str

    @property
    def path(self) -> str:
        """The way as a JSON path."""
        return "$" + "".join(_PATH[step.kind].format(step.name) for step in self.steps)

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


_PATH: Final = {"field": ".{}", "item": "[*]", "value": ".*", "branch": "<{}>", "symbol": ""}


class Versioned(NamedTuple):
    """A version as the rules need it: its name for messages, and its schema."""

    name: str
    schema: Schema


class Breach(NamedTuple):
    """One rule that a new version breaks: who could not read whom, and why."""

    reader: str
    writer: str
    problem: Incompatibility

    def __str__(self) -> str:
        return f"{self.problem.path}: {self.reader} cannot read what {self.writer} wrote: {self.problem.reason}"


def breaches(new: Versioned, earlier: Sequence[Versioned], mode: str) -> list[Breach]:
    """Everything by which `new` breaks `mode` towards the versions before it, oldest first."""
    against = earlier if mode.endswith("_TRANSITIVE") else earlier[-1:]
    direction = mode.removesuffix("_TRANSITIVE")
    found: list[Breach] = []
    for old in against:
        if direction in ("BACKWARD", "FULL"):
            found += [Breach(new.name, old.name, problem) for problem in unreadable(new.schema, old.schema)]
        if direction in ("FORWARD", "FULL"):
            found += [Breach(old.name, new.name, problem) for problem in unreadable(old.schema, new.schema)]
    return found


def unreadable(reader: Schema, writer: Schema) -> list[Incompatibility]:
    """Everything that the writer's schema allows and the reader's cannot read; empty if there is nothing."""
    return list(_Comparison(reader, writer).nodes(reader.root, writer.root, ()))


class _Comparison:
    """One walk through two schemas; pairs of named types under way are taken for granted, which ends recursion."""

    def __init__(self, reader: Schema, writer: Schema) -> None:
        self.reader = reader
        self.writer = writer
        self.seen: set[tuple[str, str]] = set()

    def nodes(self, reader: Node, writer: Node, steps: tuple[Step, ...]) -> Iterator[Incompatibility]:
        """Compare what stands at one place."""
        reader, writer = self.reader.resolve(reader), self.writer.resolve(writer)
        if isinstance(writer, Union):
            for branch in writer.branches:
                yield from self.nodes(reader, branch, (*steps, Step("branch", branch_name(branch))))
        elif isinstance(reader, Union):
            yield from self.into_union(reader, writer, steps)
        elif type(reader) is not type(writer):
            yield Incompatibility(steps, f"{label(writer)} became {label(reader)}")
        else:
            yield from _COMPARE[type(reader)](self, reader, writer, steps)

    def into_union(self, reader: Union, writer: Node, steps: tuple[Step, ...]) -> Iterator[Incompatibility]:
        """A value that was no union must fit one of the reader's branches."""
        nearest: list[Incompatibility] | None = None
        for branch in reader.branches:
            seen = set(self.seen)
            problems = list(self.nodes(branch, writer, steps))
            if not problems:
                return
            self.seen = seen
            if self.alike(branch, writer) or all(problem.reason.endswith(MEANING) for problem in problems):
                nearest = nearest or problems
        if nearest:
            yield from nearest
        else:
            offered = ", ".join(label(branch) for branch in reader.branches)
            yield Incompatibility(steps, f"{label(writer)} is not among the reader's branches ({offered})")

    def alike(self, reader: Node, writer: Node) -> bool:
        """Whether a branch is the one that was meant, so that its own problems are worth telling."""
        reader, writer = self.reader.resolve(reader), self.writer.resolve(writer)
        if type(reader) is not type(writer):
            return False
        if isinstance(reader, (Record, Enum, Fixed)) and isinstance(writer, (Record, Enum, Fixed)):
            return _same_name(reader, writer)
        return not isinstance(reader, Primitive) or reader.type == writer.type  # type: ignore[union-attr]

    def primitives(self, reader: Primitive, writer: Primitive, steps: tuple[Step, ...]) -> Iterator[Incompatibility]:
        """Compare by the table of promotions, and the logical types."""
        if reader.type not in PROMOTIONS[writer.type]:
            yield Incompatibility(steps, f"{label(writer)} became {label(reader)}")
        else:
            yield from _logicals(reader, writer, steps, promoted=reader.type != writer.type)

    def arrays(self, reader: Array, writer: Array, steps: tuple[Step, ...]) -> Iterator[Incompatibility]:
        """Compare the items."""
        yield from self.nodes(reader.items, writer.items, (*steps, Step("item")))

    def maps(self, reader: Map, writer: Map, steps: tuple[Step, ...]) -> Iterator[Incompatibility]:
        """Compare the values."""
        yield from self.nodes(reader.values, writer.values, (*steps, Step("value")))

    def enums(self, reader: Enum, writer: Enum, steps: tuple[Step, ...]) -> Iterator[Incompatibility]:
        """Every written symbol must be known, or the reader must have a default."""
        if not _same_name(reader, writer):
            yield _renamed(reader, writer, steps)
        elif reader.default is None:
            for symbol in writer.symbols:
                if symbol not in reader.symbols:
                    reason = f"enum {writer.name} has the symbol {symbol}, which the reader does not know and has no default for"
                    yield Incompatibility((*steps, Step("symbol", symbol)), reason)

    def fixeds(self, reader: Fixed, writer: Fixed, steps: tuple[Step, ...]) -> Iterator[Incompatibility]:
        """Name, size and logical type must be the same."""
        if not _same_name(reader, writer):
            yield _renamed(reader, writer, steps)
        elif reader.size != writer.size:
            yield Incompatibility(steps, f"fixed {writer.name} of {writer.size} bytes became one of {reader.size}")
        else:
            yield from _logicals(reader, writer, steps, promoted=False)

    def records(self, reader: Record, writer: Record, steps: tuple[Step, ...]) -> Iterator[Incompatibility]:
        """Every field that the reader asks for was written, or has a default."""
        if not _same_name(reader, writer):
            yield _renamed(reader, writer, steps)
            return
        if (reader.name, writer.name) in self.seen:
            return
        self.seen.add((reader.name, writer.name))
        written = {field.name: field for field in writer.fields}
        for field in reader.fields:
            source = _source(field, written)
            if source is not None:
                yield from self.nodes(field.type, source.type, (*steps, Step("field", source.name)))
            elif field.default is NO_DEFAULT:
                yield Incompatibility(steps, f"field {field.name!r} was not written and has no default")


def _source(field: Field, written: dict[str, Field]) -> Field | None:
    """Return the writer's field that a reader's field takes its value from."""
    for name in (field.name, *field.aliases):
        if name in written:
            return written[name]
    return None


def _same_name(reader: Record | Enum | Fixed, writer: Record | Enum | Fixed) -> bool:
    """Names match without their namespace, or by an alias of the reader."""
    return _short(reader.name) == _short(writer.name) or writer.name in reader.aliases


def _short(name: str) -> str:
    return name.rpartition(".")[2]


def _renamed(reader: Record | Enum | Fixed, writer: Record | Enum | Fixed, steps: tuple[Step, ...]) -> Incompatibility:
    return Incompatibility(steps, f"{label(writer)} became {label(reader)}, which has no alias {writer.name}")


def _logicals(
    reader: Primitive | Fixed, writer: Primitive | Fixed, steps: tuple[Step, ...], *, promoted: bool
) -> Iterator[Incompatibility]:
    """Compare logical types: numbers must keep their meaning."""
    old, new = writer.logical, reader.logical
    if old is None and new is None:
        return
    if old is not None and new is None and old.name == "uuid" and isinstance(reader, Primitive):
        return  # the text of a uuid is a text
    if promoted or old is None or new is None or not _same_meaning(new, old):
        yield Incompatibility(steps, f"{label(writer)} became {label(reader)}, {MEANING}")


def _same_meaning(new: Logical, old: Logical) -> bool:
    """The same logical type; a decimal of the same scale may get more digits."""
    return (new.name, new.scale) == (old.name, old.scale) and new.precision >= old.precision


_COMPARE: Final[dict[type, Callable[..., Iterator[Incompatibility]]]] = {
    Primitive: _Comparison.primitives,
    Array: _Comparison.arrays,
    Map: _Comparison.maps,
    Enum: _Comparison.enums,
    Fixed: _Comparison.fixeds,
    Record: _Comparison.records,
}
