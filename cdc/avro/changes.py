"""Say in words what differs between two versions of a schema: two schemas in, sentences out, no I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdc.avro.schema import NO_DEFAULT, Array, Enum, Fixed, Map, Record, Union, branch_name, label

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cdc.avro.schema import Field, Node, Schema


def changes(old: Schema, new: Schema) -> list[str]:
    """Everything by which `new` differs from `old`, with its path; what formatting alone changes is not among it."""
    return list(_Walk(old, new).nodes(old.root, new.root, "$"))


class _Walk:
    """One walk through two schemas; named types are compared once."""

    def __init__(self, old: Schema, new: Schema) -> None:
        self.old = old
        self.new = new
        self.seen: set[tuple[str, str]] = set()

    def nodes(self, old: Node, new: Node, path: str) -> Iterator[str]:
        """Compare what stands at one place."""
        old, new = self.old.resolve(old), self.new.resolve(new)
        if type(old) is not type(new):
            yield f"{path}: {label(old)} became {label(new)}"
        elif isinstance(old, Array) and isinstance(new, Array):
            yield from self.nodes(old.items, new.items, f"{path}[*]")
        elif isinstance(old, Map) and isinstance(new, Map):
            yield from self.nodes(old.values, new.values, f"{path}.*")
        elif isinstance(old, Union) and isinstance(new, Union):
            yield from self.unions(old, new, path)
        elif isinstance(old, (Record, Enum, Fixed)) and isinstance(new, (Record, Enum, Fixed)):
            yield from self.named(old, new, path)
        elif old != new:
            yield f"{path}: {label(old)} became {label(new)}"

    def named(self, old: Record | Enum | Fixed, new: Record | Enum | Fixed, path: str) -> Iterator[str]:
        """Compare two named types."""
        if old.name != new.name:
            yield f"{path}: {old.name} is now named {new.name}"
        if set(old.aliases) != set(new.aliases):
            yield f"{path}: the aliases of {new.name} changed"
        if (old.name, new.name) in self.seen:
            return
        self.seen.add((old.name, new.name))
        if isinstance(old, Record) and isinstance(new, Record):
            yield from self.records(old, new, path)
        elif isinstance(old, Enum) and isinstance(new, Enum):
            yield from _enums(old, new, path)
        elif isinstance(old, Fixed) and isinstance(new, Fixed) and (old.size, old.logical) != (new.size, new.logical):
            yield f"{path}: {label(old)} of {old.size} bytes became {label(new)} of {new.size}"

    def records(self, old: Record, new: Record, path: str) -> Iterator[str]:
        """Compare fields by name."""
        before, after = {f.name: f for f in old.fields}, {f.name: f for f in new.fields}
        for name, field in after.items():
            if name not in before:
                default = "without a default" if field.default is NO_DEFAULT else "with a default"
                yield f"{path}.{name}: added, {label(self.new.resolve(field.type))}, {default}"
        for name in before:
            if name not in after:
                yield f"{path}.{name}: removed"
        both = [name for name in before if name in after]
        if both != [name for name in after if name in before]:
            yield f"{path}: the fields stand in another order"
        for name in both:
            yield from self.fields(before[name], after[name], f"{path}.{name}")

    def fields(self, old: Field, new: Field, path: str) -> Iterator[str]:
        """Compare one field."""
        if (old.default is NO_DEFAULT) != (new.default is NO_DEFAULT):
            yield f"{path}: " + ("the default was taken away" if new.default is NO_DEFAULT else "got a default")
        elif old.default != new.default:
            yield f"{path}: the default changed"
        if set(old.aliases) != set(new.aliases):
            yield f"{path}: the aliases changed"
        if old.order != new.order:
            yield f"{path}: the sort order changed from {old.order} to {new.order}"
        yield from self.nodes(old.type, new.type, path)

    def unions(self, old: Union, new: Union, path: str) -> Iterator[str]:
        """Compare branches by name."""
        before, after = {branch_name(b): b for b in old.branches}, {branch_name(b): b for b in new.branches}
        for name in after:
            if name not in before:
                yield f"{path}: branch {name} added"
        for name in before:
            if name not in after:
                yield f"{path}: branch {name} removed"
        if [n for n in before if n in after] != [n for n in after if n in before]:
            yield f"{path}: the branches stand in another order"
        for name, branch in before.items():
            if name in after:
                yield from self.nodes(branch, after[name], path)


def _enums(old: Enum, new: Enum, path: str) -> Iterator[str]:
    added = [s for s in new.symbols if s not in old.symbols]
    removed = [s for s in old.symbols if s not in new.symbols]
    if added:
        yield f"{path}: symbols added to {new.name}: {', '.join(added)}"
    if removed:
        yield f"{path}: symbols removed from {new.name}: {', '.join(removed)}"
    if [s for s in old.symbols if s in new.symbols] != [s for s in new.symbols if s in old.symbols]:
        yield f"{path}: the symbols of {new.name} stand in another order"
    if old.default != new.default:
        yield f"{path}: the default of {new.name} changed from {old.default} to {new.default}"
