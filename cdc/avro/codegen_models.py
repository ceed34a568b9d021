"""Write the folder's events as Python classes: a Registry in, the text of one module out, no I/O.

Strategy: one module for all subjects, in the version that rows get which name none, so that a type which several events share
is one class. Text depends on the folder alone, is sorted by subject, and every type stands before its first use. Fields keep
their Avro names; one that Python or the module does not allow gets an underscore and its Avro name as an alias. Enums are
Literals. In a union whose branches have one Python type (a string and an enum), the branch is named as in Avro's JSON
encoding: `{"shop.Color": "RED"}`. A default of a logical type is not carried over: that field must be given.
"""

from __future__ import annotations

import json
import keyword
import re
from itertools import chain, count
from typing import TYPE_CHECKING, Any, Final

from cdc.avro.native import python_types
from cdc.avro.schema import NO_DEFAULT, Array, Enum, Fixed, Json, Map, Node, Primitive, Record, Ref, Schema, Union, branch_name, children

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cdc.avro.registry import Registry, Version
    from cdc.avro.schema import Field

HEAD: Final = '''\
"""The events of the schema folder as classes. Written by `cdc schemas codegen`: change the folder, not this file."""

# ruff: noqa
# fmt: off
from __future__ import annotations

import datetime as _datetime
import decimal as _decimal
import uuid as _uuid
from typing import Annotated, Literal, TypeAlias

from pydantic import AwareDatetime, Field, NaiveDatetime

from cdc.outbox.model import EventModel, Int, Long, RecordModel
'''

_IMPORTED: Final = {
    "Annotated",
    "Literal",
    "TypeAlias",
    "AwareDatetime",
    "Field",
    "NaiveDatetime",
    "EventModel",
    "Int",
    "Long",
    "RecordModel",
}

_MEMBERS: Final = {
    "members", "key_text", "copy", "json", "dict", "schema", "construct", "validate", "parse_obj", "parse_raw", "parse_file", "from_orm",
    "schema_json", "update_forward_refs", "bool", "float", "bytes", "str", "list",
}  # fmt: skip
"""What a model's class has already, beside the names that begin with model_, and what its annotations name."""

_PRIMITIVES: Final = {
    "null": "None", "boolean": "bool", "int": "Int", "long": "Long", "float": "float", "double": "float", "bytes": "bytes", "string": "str",
}  # fmt: skip
_LOGICAL: Final = {
    "uuid": "_uuid.UUID", "date": "_datetime.date", "time": "_datetime.time", "timestamp": "AwareDatetime", "local": "NaiveDatetime",
    "duration": "str",
}  # fmt: skip


class _NoPythonError(Exception):
    """A default that is not carried over."""


def module(registry: Registry) -> str:
    """Return the module; subjects whose schema is no record are named in a comment and have no class."""
    writer = _Writer(registry)
    for subject in sorted(registry.subjects):
        writer.event(registry.pinned(subject) or registry.latest(subject))
    names = "".join(f"    {name!r},\n" for name in sorted(writer.taken - _IMPORTED)).replace("'", '"')
    return f"{HEAD}\n__all__ = [\n{names}]\n" + "".join(writer.parts)


class _Writer:
    """What is written so far, and under which names."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.parts: list[str] = []
        self.taken = set(_IMPORTED)
        self.definitions: dict[str, Node] = {}
        self.classes: dict[str, str] = {}
        self.events = {name: self.unused(_pascal(name)) for name in sorted(registry.subjects)}

    def event(self, version: Version) -> None:
        """Write the classes of one subject that are not there yet."""
        schema, root = version.schema, version.schema.root
        if not isinstance(root, Record):
            self.taken.discard(self.events[version.subject])
            self.parts.append(f"\n# {version}: its schema is no record, so it has no class.\n")
            return
        flat = {name: _flat(node) for name, node in schema.names.items()}
        if any(self.definitions.get(name, node) != node for name, node in flat.items()):
            classes: dict[str, str] = {}  # another version of a type that an earlier subject has: these are its own
            prefix = self.events[version.subject]
        else:
            self.definitions |= flat
            classes, prefix = self.classes, ""
        settings = self.registry.settings_of(version.subject)
        about = f'type="{version.subject}", version={version.number}'
        about += f", aggregatetype={_string(settings.aggregatetype)}" if settings.aggregatetype else ""
        about += f", key={_string(settings.key)}" if settings.key else ""
        name = self.events[version.subject]
        if root.name in classes:
            self.parts.append(f'\n\nclass {name}({classes[root.name]}, EventModel, avro="{root.name}", {about}):\n    {_doc(root)}\n')
            return
        classes[root.name] = name
        module_ = _Types(self, schema, classes, prefix)
        module_.dependencies(root)
        module_.record(root, "EventModel", about)

    def unused(self, *wanted: str) -> str:
        """Take the first of these names that nobody has, else the first one with a number."""
        numbered = (f"{wanted[0]}{number}" for number in count(2))
        name = next(name for name in chain(wanted, numbered) if name not in self.taken and not keyword.iskeyword(name))
        self.taken.add(name)
        return name

    def name(self, full: str, prefix: str) -> str:
        """Take a class name for a named type."""
        return self.unused(prefix + _pascal(full.rpartition(".")[2]), prefix + _pascal(full))


class _Types:
    """Writes the types of one schema."""

    def __init__(self, writer: _Writer, schema: Schema, classes: dict[str, str], prefix: str) -> None:
        self.writer, self.schema, self.classes, self.prefix = writer, schema, classes, prefix

    def dependencies(self, node: Node) -> None:
        """Write what a type is made of, deepest first."""
        for child in children(node):
            here = self.schema.resolve(child)
            if isinstance(here, (Record, Enum)):
                if here.name in self.classes:
                    continue
                self.classes[here.name] = self.writer.name(here.name, self.prefix)
            if not isinstance(child, Ref) or isinstance(here, (Record, Enum)):
                self.dependencies(here)
            if isinstance(here, Record):
                self.record(here, "RecordModel", "")
            elif isinstance(here, Enum):
                symbols = ", ".join(f'"{symbol}"' for symbol in here.symbols)
                self.writer.parts.append(f"\n\n{self.classes[here.name]}: TypeAlias = Literal[{symbols}]\n")

    def record(self, node: Record, base: str, about: str) -> None:
        """Write a record's class."""
        more = f", {about}" if about else ""
        lines = [f'\n\nclass {self.classes[node.name]}({base}, avro="{node.name}"{more}):\n    {_doc(node)}\n']
        if node.fields:
            lines.append("\n")
        for field in node.fields:
            name = self.field_name(field.name)
            lines.append(f"    {name}: {self.type(field.type)}{self.assigned(field, name)}\n")
            if field.doc:
                lines.append(f"    {_text(field.doc)}\n")
        self.writer.parts += lines

    def field_name(self, name: str) -> str:
        """Return the Python name of a field."""
        bad = keyword.iskeyword(name) or name in _MEMBERS or name.startswith("model_")
        name = name.lstrip("_") or "field" if name.startswith("_") else name
        return name + "_" if bad or name in self.writer.taken else name

    def type(self, node: Node) -> str:  # noqa: PLR0911 - one for each kind of type
        """Return the annotation of a type."""
        node = self.schema.resolve(node)
        if isinstance(node, (Primitive, Fixed)) and node.logical is not None:
            kind = node.logical
            if kind.name == "decimal":
                return f"Annotated[_decimal.Decimal, Field(max_digits={kind.precision}, decimal_places={kind.scale})]"
            return _LOGICAL[kind.name.split("-")[0]]
        if isinstance(node, Primitive):
            return _PRIMITIVES[node.type]
        if isinstance(node, Fixed):
            return f"Annotated[bytes, Field(min_length={node.size}, max_length={node.size})]"
        if isinstance(node, Array):
            return f"list[{self.type(node.items)}]"
        if isinstance(node, Map):
            return f"dict[str, {self.type(node.values)}]"
        if isinstance(node, Union):
            return " | ".join(dict.fromkeys(self.branch(node, branch) for branch in node.branches))
        return self.classes[node.name]

    def branch(self, union: Union, node: Node) -> str:
        """Return the annotation of a union's branch, which names itself where its Python type would not tell it."""
        written = self.type(node)
        return f'dict[Literal["{branch_name(self.schema.resolve(node))}"], {written}]' if self.is_tagged(union, node) else written

    def is_tagged(self, union: Union, node: Node) -> bool:
        """Whether another branch takes values of the same Python type."""
        here = self.schema.resolve(node)
        others = [self.schema.resolve(branch) for branch in union.branches if branch is not node]
        return any(
            set(python_types(here)) & set(python_types(o)) for o in others if not (isinstance(here, Record) and isinstance(o, Record))
        )

    def assigned(self, field: Field, name: str) -> str:
        """Return what stands behind a field's annotation."""
        arguments = []
        alone = ""
        if field.default is not NO_DEFAULT:
            try:
                default = self.default(field.type, field.default)
            except _NoPythonError:
                default = ""
            if default[:1] in {"[", "{"} or default.endswith(")"):
                arguments.append(f"default_factory=lambda: {default}")
            elif default:
                arguments.append(f"default={default}")
                alone = f" = {default}"
        if name != field.name:
            arguments.append(f'validation_alias="{field.name}", serialization_alias="{field.name}"')
            alone = ""
        return alone or (f" = Field({', '.join(arguments)})" if arguments else "")

    def default(self, node: Node, value: Json) -> str:  # noqa: PLR0911 - one for each kind of type
        """Return a default as an expression; raises _NoPythonError for one that is not carried over."""
        node = self.schema.resolve(node)
        if isinstance(node, (Primitive, Fixed)):
            if node.logical is not None:
                raise _NoPythonError
            if isinstance(node, Fixed) or node.type == "bytes":
                return repr(str(value).encode("latin-1"))
            return _string(value) if isinstance(value, str) else repr(value)
        if isinstance(node, Enum):
            return f'"{value}"'
        if isinstance(node, Array):
            return "[" + ", ".join(self.default(node.items, item) for item in value) + "]"
        if isinstance(node, Map):
            return "{" + ", ".join(f"{_string(key)}: {self.default(node.values, item)}" for key, item in value.items()) + "}"
        if isinstance(node, Union):
            first = node.branches[0]
            inner = self.default(first, value)
            return f'{{"{branch_name(self.schema.resolve(first))}": {inner}}}' if self.is_tagged(node, first) else inner
        assert isinstance(node, Record), "nothing else is left"
        return f"{self.classes[node.name]}({', '.join(self.arguments(node, value))})"

    def arguments(self, node: Record, value: Json) -> Iterator[str]:
        """Yield the keyword arguments of a record that is a default."""
        for field in node.fields:
            given = value.get(field.name, field.default)
            yield f"{self.field_name(field.name)}={self.default(field.type, given)}"


def _flat(node: Node) -> Node:
    """Return a named type with the named types in it as references: equal wherever they are defined."""
    if isinstance(node, Record):
        fields: Any = tuple((f.name, _inner(f.type), repr(f.default), f.doc) for f in node.fields)
        return Record(node.name, fields, node.aliases, node.doc)
    return node


def _inner(node: Node) -> Node:
    if isinstance(node, (Record, Enum, Fixed)):
        return Ref(node.name)
    if isinstance(node, Array):
        return Array(_inner(node.items))
    if isinstance(node, Map):
        return Map(_inner(node.values))
    return Union(tuple(map(_inner, node.branches))) if isinstance(node, Union) else node


def _pascal(name: str) -> str:
    words = re.split(r"[^A-Za-z0-9]+", name)
    joined = "".join(word[:1].upper() + word[1:] for word in words)
    return joined if joined[:1].isalpha() else f"Event{joined}"


def _doc(node: Record) -> str:
    return _text(node.doc or f"{node.name}.")


def _text(text: str) -> str:
    """Return a text as a docstring on one line."""
    line = " ".join(text.split()).replace("\\", "\\\\").replace('"""', "'''")
    return f'"""{line} """' if line.endswith('"') else f'"""{line}"""'


def _string(text: str) -> str:
    """Return a text as a literal: JSON's are Python's too."""
    return json.dumps(text, ensure_ascii=False)
