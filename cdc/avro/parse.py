"""Read the JSON of an Avro schema: a document in, a `Schema` out, no I/O.

Strategy: one walk that checks, resolves names by Avro's rules (a name without a dot belongs to the namespace of the
definition around it), writes shared types out at their first use, and builds the tree and the document side by side. What
Avro would ignore and a team would regret is refused: an unknown logical type, a default that does not fit, a type that
can have no finite value. Every error is a ConfigurationError that names the file, the path in it, and the reason.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NoReturn

from cdc.avro.defaults import DefaultError, encode_default
from cdc.avro.schema import (
    NO_DEFAULT,
    PRIMITIVES,
    Array,
    Enum,
    Field,
    Fixed,
    Json,
    Logical,
    Map,
    Named,
    Node,
    Primitive,
    Record,
    Ref,
    Schema,
    Union,
    branch_name,
    children,
    label,
)
from cdc.avro.shared import FULL_NAME, MAX_DEPTH, SharedType, full_name, refuse, too_deep

if TYPE_CHECKING:
    from collections.abc import Mapping

LOGICAL: Final = {
    "uuid": ("string",),
    "date": ("int",),
    "time-millis": ("int",),
    "time-micros": ("long",),
    "timestamp-millis": ("long",),
    "timestamp-micros": ("long",),
    "timestamp-nanos": ("long",),
    "local-timestamp-millis": ("long",),
    "local-timestamp-micros": ("long",),
    "local-timestamp-nanos": ("long",),
    "decimal": ("bytes",),
}
"""Logical types and the primitive that each stands on; on fixed there are decimal, uuid (16 bytes) and duration (12)."""

FIXED_SIZES: Final = {"uuid": 16, "duration": 12}

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ORDERS: Final = ("ascending", "descending", "ignore")


def parse(document: object, source: str, shared: Mapping[str, SharedType] | None = None) -> Schema:
    """Read one schema; `source` is the file that errors name."""
    parser = _Parser(source, shared or {})
    root, written = parser.node(document, "", "$", 0)
    schema = Schema(root, parser.names, written)
    parser.check_finite(schema)
    parser.check_defaults(schema)
    return schema


class _Parser:
    """The state of one walk: where it is, and which names it has met."""

    def __init__(self, source: str, shared: Mapping[str, SharedType]) -> None:
        self.source = source
        self.shared = shared
        self.names: dict[str, Named] = {}
        self.open: dict[str, tuple[str, Json]] = {}

    def node(  # noqa: C901, PLR0911 - one branch for each kind of type
        self, document: object, namespace: str, path: str, depth: int
    ) -> tuple[Node, Json]:
        """Read the type that stands at `path`."""
        if depth > MAX_DEPTH:
            too_deep(self.source, path)
        if isinstance(document, str):
            return self.reference(document, namespace, path, depth)
        if isinstance(document, list):
            return self.union(document, namespace, path, depth)
        if not isinstance(document, dict):
            self.refuse(path, f"a type is a name, a list or an object, not {_json_kind(document)}")
        kind = document.get("type")
        if isinstance(kind, (dict, list)):
            return self.node(kind, namespace, f"{path}.type", depth + 1)
        if not isinstance(kind, str):
            self.refuse(path, "an object that describes a type needs a member `type`")
        if kind in PRIMITIVES:
            return self.primitive(document, kind, path)
        if kind == "array":
            items, written = self.inner(document, "items", namespace, path, depth)
            return Array(items), {**document, "items": written}
        if kind == "map":
            values, written = self.inner(document, "values", namespace, path, depth)
            return Map(values), {**document, "values": written}
        if kind in ("record", "enum", "fixed"):
            return self.named(document, namespace, path, depth)
        return self.reference(kind, namespace, f"{path}.type", depth)

    def inner(self, document: dict[str, Json], key: str, namespace: str, path: str, depth: int) -> tuple[Node, Json]:
        """Read the element type of an array or a map."""
        if key not in document:
            self.refuse(path, f"{document['type']} needs a member `{key}`")
        return self.node(document[key], namespace, f"{path}.{key}", depth + 1)

    def reference(self, name: str, namespace: str, path: str, depth: int) -> tuple[Node, Json]:
        """A primitive, a type that was defined before, or a shared type, which is written out here."""
        if name in PRIMITIVES:
            return Primitive(name), name
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        if full in self.open:
            return Ref(full), full
        if full not in self.shared:
            self.refuse(path, f"{full} is not defined", "define it before its first use, or in schemas/types/")
        found = self.shared[full]
        here, self.source = self.source, found.source
        try:
            return self.named(found.document, found.namespace, found.path, depth)
        finally:
            self.source = here

    def union(self, document: list[Json], namespace: str, path: str, depth: int) -> tuple[Node, Json]:
        """Read a list of branches: no union in a union, no unnamed type twice."""
        if not document:
            self.refuse(path, "a union needs at least one branch")
        branches: list[Node] = []
        written: list[Json] = []
        seen: set[str] = set()
        for index, branch in enumerate(document):
            node, text = self.node(branch, namespace, f"{path}[{index}]", depth + 1)
            if isinstance(node, Union):
                self.refuse(f"{path}[{index}]", "a union cannot stand directly in a union")
            name = branch_name(node)
            if name in seen:
                self.refuse(f"{path}[{index}]", f"the union has two branches {name}")
            seen.add(name)
            branches.append(node)
            written.append(text)
        return Union(tuple(branches)), written

    def primitive(self, document: dict[str, Json], kind: str, path: str) -> tuple[Node, Json]:
        """Read a primitive in object form, with its logical type."""
        name = document.get("logicalType")
        if name is None:
            return Primitive(kind), document
        if name not in LOGICAL:
            known = ", ".join(sorted({*LOGICAL, "duration"}))
            self.refuse(path, f"unknown logical type {name!r}", f"known are {known}")
        if kind not in LOGICAL[name]:
            self.refuse(path, f"logical type {name} stands on {' or '.join(LOGICAL[name])}, not on {kind}")
        logical = self.decimal(document, path) if name == "decimal" else Logical(name)
        return Primitive(kind, logical), document

    def decimal(self, document: dict[str, Json], path: str, size: int | None = None) -> Logical:
        """Precision and scale of a decimal, and whether a fixed of `size` bytes can hold it."""
        precision, scale = document.get("precision"), document.get("scale", 0)
        if type(precision) is not int or precision < 1:
            self.refuse(path, "a decimal needs a precision of at least 1")
        if type(scale) is not int or not 0 <= scale <= precision:
            self.refuse(path, f"a decimal's scale is a whole number from 0 to its precision {precision}")
        if size is not None and 10**precision - 1 > (1 << (8 * size - 1)) - 1:
            self.refuse(path, f"a fixed of {size} bytes cannot hold {precision} digits")
        return Logical("decimal", precision, scale)

    def named(self, document: dict[str, Json], namespace: str, path: str, depth: int) -> tuple[Node, Json]:
        """Read a definition of a record, an enum or a fixed."""
        name, inner = full_name(document, namespace, self.source, path)
        self.enter(name, document, path)
        aliases = self.aliases(document, inner, path)
        written = {key: value for key, value in document.items() if key != "namespace"} | {"name": name}
        if namespace and "." not in name:
            written["namespace"] = ""
        if aliases:
            written["aliases"] = list(aliases)
        node: Named
        if document["type"] == "record":
            node, written["fields"] = self.record(document, name, inner, aliases, path, depth)
        elif document["type"] == "enum":
            node = self.enum(document, name, aliases, path)
        else:
            node = self.fixed(document, name, aliases, path)
        self.names[name] = node
        return node, written

    def enter(self, name: str, document: dict[str, Json], path: str) -> None:
        """Note that `name` is defined here, and refuse a second, different definition."""
        if name in self.open:
            source, _ = self.open[name]
            where = "in this file" if source == self.source else f"in {source} and in {self.source}"
            self.refuse(path, f"{name} is defined twice, {where}", "keep one definition and refer to it by name")
        other = self.shared.get(name)
        if other is not None and other.document != document:
            self.refuse(
                path,
                f"{name} is defined twice and differently, in {other.source} and in {self.source}",
                "keep one definition, or give one of them another name",
            )
        self.open[name] = (self.source, document)

    def aliases(self, document: dict[str, Json], namespace: str, path: str) -> tuple[str, ...]:
        """Full names under which an older writer may have known this type."""
        given = document.get("aliases", [])
        if not isinstance(given, list) or not all(isinstance(a, str) and FULL_NAME.fullmatch(a) for a in given):
            self.refuse(f"{path}.aliases", "aliases are a list of names")
        return tuple(a if "." in a or not namespace else f"{namespace}.{a}" for a in given)

    def record(  # noqa: PLR0913, PLR0917 - what every method gets, and what named() has read
        self, document: dict[str, Json], name: str, namespace: str, aliases: tuple[str, ...], path: str, depth: int
    ) -> tuple[Record, list[Json]]:
        """Read a record's fields."""
        given = document.get("fields")
        if not isinstance(given, list):
            self.refuse(path, f"record {name} needs a list `fields`")
        fields: list[Field] = []
        written: list[Json] = []
        seen: set[str] = set()
        for index, member in enumerate(given):
            field, text = self.field(member, namespace, f"{path}.fields[{index}]", depth)
            if field.name in seen:
                self.refuse(f"{path}.fields[{index}]", f"record {name} has two fields {field.name!r}")
            seen.add(field.name)
            fields.append(field)
            written.append(text)
        return Record(name, tuple(fields), aliases, str(document.get("doc", ""))), written

    def field(self, member: object, namespace: str, path: str, depth: int) -> tuple[Field, Json]:
        """Read one field."""
        if not isinstance(member, dict) or "type" not in member:
            self.refuse(path, "a field is an object with `name` and `type`")
        name = member.get("name")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            self.refuse(path, "a field's name is letters, digits and _, not starting with a digit")
        node, text = self.node(member["type"], namespace, f"{path}.type", depth + 1)
        order = member.get("order", "ascending")
        if order not in _ORDERS:
            self.refuse(f"{path}.order", f"order is one of {', '.join(_ORDERS)}")
        aliases = member.get("aliases", [])
        if not isinstance(aliases, list) or not all(isinstance(a, str) and _NAME.fullmatch(a) for a in aliases):
            self.refuse(f"{path}.aliases", "aliases are a list of names")
        default = member.get("default", NO_DEFAULT)
        doc = str(member.get("doc", ""))
        return Field(name, node, default, tuple(aliases), order, doc), {**member, "type": text}

    def enum(self, document: dict[str, Json], name: str, aliases: tuple[str, ...], path: str) -> Enum:
        """Read an enum's symbols and its default."""
        symbols = document.get("symbols")
        if not isinstance(symbols, list) or not symbols:
            self.refuse(path, f"enum {name} needs a list `symbols`")
        if not all(isinstance(s, str) and _NAME.fullmatch(s) for s in symbols):
            self.refuse(f"{path}.symbols", "a symbol is letters, digits and _, not starting with a digit")
        if len(set(symbols)) < len(symbols):
            self.refuse(f"{path}.symbols", f"enum {name} names a symbol twice")
        default = document.get("default")
        if default is not None and default not in symbols:
            self.refuse(f"{path}.default", f"the default of enum {name} is not among its symbols")
        return Enum(name, tuple(symbols), default, aliases)

    def fixed(self, document: dict[str, Json], name: str, aliases: tuple[str, ...], path: str) -> Fixed:
        """Read a fixed's size and its logical type."""
        size = document.get("size")
        if type(size) is not int or size < 1:
            self.refuse(path, f"fixed {name} needs a size of at least 1")
        given = document.get("logicalType")
        if given is None:
            return Fixed(name, size, aliases)
        if given == "decimal":
            return Fixed(name, size, aliases, self.decimal(document, path, size))
        if given not in FIXED_SIZES:
            self.refuse(path, f"unknown logical type {given!r} on fixed", "known there are decimal, duration, uuid")
        if size != FIXED_SIZES[given]:
            self.refuse(path, f"logical type {given} stands on a fixed of {FIXED_SIZES[given]} bytes, not {size}")
        return Fixed(name, size, aliases, Logical(given))

    def check_finite(self, schema: Schema) -> None:
        """Refuse a record that always contains itself: no value of it would end."""
        finite: set[str] = set()
        grown = True
        while grown:
            grown = False
            for name, node in self.names.items():
                if name not in finite and (not isinstance(node, Record) or _ends(children(node), finite)):
                    finite.add(name)
                    grown = True
        for name in schema.names:
            if name not in finite:
                source, _ = self.open[name]
                refuse(source, "$", f"{name} always contains itself, so no value of it ends", "make one link optional")

    def check_defaults(self, schema: Schema) -> None:
        """Refuse a default that does not fit its field's type."""
        for name, record in schema.names.items():
            for field in record.fields if isinstance(record, Record) else ():
                if field.default is NO_DEFAULT:
                    continue
                try:
                    encode_default(schema, field.type, field.default)
                except DefaultError as error:
                    source, _ = self.open[name]
                    where = f"the default of {name}.{field.name} does not fit {label(field.type)}"
                    refuse(source, "$", f"{where}: {error}", "a union's default belongs to its first branch")

    def refuse(self, path: str, reason: str, fix: str = "") -> NoReturn:
        """Raise the one kind of error that comes out of here."""
        refuse(self.source, path, reason, fix)


def _ends(nodes: tuple[Node, ...], finite: set[str]) -> bool:
    """Whether values of all these types can end, given the named types that can."""
    for node in nodes:
        if isinstance(node, (Ref, Record)):
            if node.name not in finite:
                return False
        elif isinstance(node, Union) and not any(_ends((branch,), finite) for branch in node.branches):
            return False
    return True


def _json_kind(value: object) -> str:
    return {type(None): "null", bool: "a boolean", int: "a number", float: "a number"}.get(type(value), "that")
