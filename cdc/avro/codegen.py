"""Write the Python of one schema's encoder: a `Schema` in, source text and its constants out, no I/O.

Strategy: one function for the whole schema, records written inline, so that a row costs no call for each field. Every
scalar becomes a local variable, checked as it is fetched; the bytes are joined once, at the end, from a tuple of these and
of constants. Checks that cost nothing are preferred: only a text has `.encode`, a missing key is a KeyError, a length or a
count beyond the table is an IndexError. The generated code therefore only says *that* a value does not fit, by raising
anything; `explain` walks the value again and says where and why. Types that are used more than once, and those that stand
deep, get a function of their own: so recursion works, and neither the size nor the nesting of the source explodes.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cdc.avro.codegen_leaves import BULK, CONSTANTS, PRIMITIVES, logical
from cdc.avro.defaults import field_default
from cdc.avro.schema import NO_DEFAULT, Array, Enum, Fixed, Json, Map, Primitive, Record, Ref, Schema, Union, walk
from cdc.avro.unions import branches
from cdc.avro.wire import long

if TYPE_CHECKING:
    from collections.abc import Callable

    from cdc.avro.schema import Field, Node

MAX_INLINE_DEPTH: Final = 6
"""Loops inside loops in one function; Python compiles at most 20 nested blocks."""

MAX_PIECES: Final = 4
"""A branch of at most so many pieces is kept in variables; a longer one is joined on the spot."""


@dataclass(frozen=True, slots=True)
class Source:
    """Generated text that defines `encode`, and the objects that it names."""

    text: str
    constants: dict[str, Json]


def generate(schema: Schema, head: bytes) -> Source:
    """Write the encoder of `schema`; its output begins with `head`."""
    writer = Writer(schema)
    pieces = writer.node(schema.root, "v", 0)
    main = _function("encode", writer.lines, [_literal(head), *pieces], ", COUNT=COUNT")
    text = "".join(writer.functions) + main
    return Source(text, writer.constants)


def _function(name: str, lines: list[str], pieces: list[str], arguments: str) -> str:
    body = "".join(f"    {line}\n" for line in [*lines, f"return {_joined(pieces)}"])
    return f"def {name}(v{arguments}):\n{body}\n"


def _joined(pieces: list[str]) -> str:
    """Source of the bytes of all pieces; neighbouring constants become one."""
    merged: list[str] = []
    for piece in pieces:
        if piece.startswith("b'") and merged and merged[-1].startswith("b'"):
            merged[-1] = _literal(ast.literal_eval(merged[-1]) + ast.literal_eval(piece))
        elif piece != "b''":
            merged.append(piece)
    if not merged:
        return "b''"
    return merged[0] if len(merged) == 1 else f"join(({', '.join(merged)}))"


def _literal(data: bytes) -> str:
    """Source of a constant, always in single quotes: that is how `_joined` knows one."""
    text = repr(data)
    return text if text.startswith("b'") else "b'" + "".join(f"\\x{octet:02x}" for octet in data) + "'"


class Writer:
    """Lines written so far, at which indentation, and the names that they use."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.lines: list[str] = []
        self.indent = ""
        self.used = 0
        self.functions: list[str] = []
        self.named_functions: dict[str, str] = {}
        self.shared = {node.name for node in walk(schema.root) if isinstance(node, Ref)}
        self.constants: dict[str, Json] = CONSTANTS.copy()

    def name(self, prefix: str) -> str:
        """Return a fresh local name."""
        self.used += 1
        return f"{prefix}{self.used}"

    def constant(self, value: object, prefix: str) -> str:
        """Give an object a name in the generated module."""
        name = self.name(prefix)
        self.constants[name] = value
        return name

    def add(self, line: str) -> None:
        """Write one line."""
        self.lines.append(self.indent + line)

    def block(self, head: str) -> _Block:
        """Write a line that opens a block."""
        self.add(head)
        return _Block(self)

    def node(self, node: Node, var: str, depth: int) -> list[str]:
        """Write the checks for the value in `var`, and return the expressions of its bytes."""
        if isinstance(node, Ref) or (isinstance(node, Record) and node.name in self.shared):
            return [f"{self.function(self.schema.resolve(node), node.name)}({var}, COUNT)"]
        if depth > MAX_INLINE_DEPTH and isinstance(node, (Record, Array, Map, Union)):
            return [f"{self.function(node, None)}({var}, COUNT)"]
        return WRITERS[type(node)](self, node, var, depth)

    def function(self, node: Node, name: str | None) -> str:
        """Write `node` as a function of its own, once if it has a name."""
        if name is not None and name in self.named_functions:
            return self.named_functions[name]
        function = self.name("encode_")
        if name is not None:
            self.named_functions[name] = function
        outer = self.lines, self.indent
        self.lines, self.indent = [], ""
        pieces = WRITERS[type(node)](self, node, "v", 0)
        self.functions.append(_function(function, self.lines, pieces, ", COUNT"))
        self.lines, self.indent = outer
        return function

    def primitive(self, node: Primitive, var: str, _depth: int) -> list[str]:
        """Write a primitive, or the logical type that stands on it."""
        if node.logical is not None:
            return logical(self, node, var)
        return PRIMITIVES[node.type](self, var)

    def enum(self, node: Enum, var: str, _depth: int) -> list[str]:
        """Write an enum as a look-up of its symbol."""
        table = {symbol: long(index) for index, symbol in enumerate(node.symbols)}
        return [f"{self.constant(table, 'SYMBOLS')}[{var}]"]

    def fixed(self, node: Fixed, var: str, _depth: int) -> list[str]:
        """Write a fixed: text of the characters 0 to 255, or bytes."""
        if node.logical is not None:
            return logical(self, node, var)
        out = self.octets(var)
        self.add(f"if len({out}) != {node.size}: raise Misfit")
        return [out]

    def octets(self, var: str) -> str:
        """Write the conversion of a bytes value."""
        out = self.name("b")
        self.add(f"{out} = {var} if type({var}) is bytes else {var}.encode('latin-1')")
        return out

    def record(self, node: Record, var: str, depth: int) -> list[str]:
        """Write a record's fields; the count of members proves that there is no unknown one."""
        optional = [f for f in node.fields if f.default is not NO_DEFAULT]
        if len(optional) == len(node.fields):
            self.add(f"if type({var}) is not dict: raise Misfit")
        count = self.name("n")
        if optional:
            self.add(f"{count} = {len(node.fields)}")
        else:
            self.add(f"if len({var}) != {len(node.fields)}: raise Misfit")
        pieces: list[str] = []
        for field in node.fields:
            if field.default is NO_DEFAULT:
                here = self.name("v")
                self.add(f"{here} = {var}[{field.name!r}]")
                pieces += self.node(field.type, here, depth)
            else:
                pieces += self.defaulted(field, var, count, depth)
        if optional:
            self.add(f"if len({var}) != {count}: raise Misfit")
        return pieces

    def defaulted(self, field: Field, var: str, count: str, depth: int) -> list[str]:
        """Write a field that may be absent; then its default is what is encoded."""
        here = self.name("v")
        default = _literal(field_default(self.schema, field))
        node = field.type
        if isinstance(node, Union) and node.branches[0] == Primitive("null"):
            self.add(f"{here} = {var}.get({field.name!r})")
            return self.union(node, here, depth, on_null=f"if {field.name!r} not in {var}: {count} -= 1")
        self.add(f"{here} = {var}.get({field.name!r}, ABSENT)")
        alternatives = _Alternatives(self)
        with self.block(f"if {here} is ABSENT:"):
            self.add(f"{count} -= 1")
            alternatives.end([default])
        with self.block("else:"):
            alternatives.end(self.node(node, here, depth + 1))
        return alternatives.pieces()

    def union(self, node: Union, var: str, depth: int, on_null: str = "") -> list[str]:
        """Write a chain of type tests, as `unions.branches` has decided it."""
        rule = branches(self.schema, node)
        by_branch: dict[int, list[str]] = {}
        for kind, index in rule.plain.items():
            by_branch.setdefault(index, []).append(kind)
        alternatives = _Alternatives(self)
        type_of = f"type({var})"
        if len(by_branch) + rule.tagged > 2:  # noqa: PLR2004 - more than one test besides the one for null
            self.add(f"{(name := self.name('t'))} = {type_of}")
            type_of = name
        order = sorted(by_branch.items(), key=lambda item: item[1] != ["null"])
        word = "if"
        for index, kinds in order:
            branch = self.schema.resolve(node.branches[index])
            # A record or a map refuses every other kind by itself, so the last of the chain needs no test.
            closes = word == "elif" and index == order[-1][0] and not rule.tagged and isinstance(branch, (Record, Map))
            with self.block("else:" if closes else f"{word} {_test(kinds, var, type_of)}:"):
                pieces = [_literal(long(index))]
                if kinds != ["null"]:
                    pieces += self.node(node.branches[index], var, depth + 1)
                elif on_null:
                    self.add(on_null)
                alternatives.end(pieces)
            if closes:
                return alternatives.pieces()
            word = "elif"
        if rule.tagged:
            with self.block(f"{word} {type_of} is dict:"):
                self.tagged(node, var, rule.named, alternatives, depth)
        with self.block("else:"):
            self.add("raise Misfit")
        return alternatives.pieces()

    def tagged(self, node: Union, var: str, named: Json, alternatives: _Alternatives, depth: int) -> None:
        """Write the branches of an object that names its branch."""
        key, inner = self.name("k"), self.name("v")
        self.add(f"({key}, {inner}), = {var}.items()")
        word = "if"
        for name, index in named.items():
            with self.block(f"{word} {key} == {name!r}:"):
                alternatives.end([_literal(long(index)), *self.node(node.branches[index], inner, depth + 2)])
            word = "elif"
        with self.block("else:"):
            self.add("raise Misfit")

    def array(self, node: Array, var: str, depth: int) -> list[str]:
        """Write an array as one block; lists of numbers are checked and written in bulk."""
        self.add(f"if type({var}) is not list: raise Misfit")
        out = self.name("a")
        self.add(f"{out} = b'\\0'")
        with self.block(f"if {var}:"):
            items = node.items
            if items in BULK:
                BULK[items](self, out, var)
            else:
                element, parts = self.name("e"), self.name("p")
                self.add(f"{parts} = [COUNT[len({var})]]")
                with self.block(f"for {element} in {var}:"):
                    self.collect(parts, self.node(items, element, depth + 1))
                self.add(f"{parts}.append(b'\\0')")
                self.add(f"{out} = join({parts})")
        return [out]

    def map(self, node: Map, var: str, depth: int) -> list[str]:
        """Write a map as one block, in the order of the JSON object."""
        self.add(f"if type({var}) is not dict: raise Misfit")
        out, key, element, parts = (self.name(prefix) for prefix in "akep")
        self.add(f"{out} = b'\\0'")
        with self.block(f"if {var}:"):
            self.add(f"{parts} = [COUNT[len({var})]]")
            with self.block(f"for {key}, {element} in {var}.items():"):
                self.add(f"{key} = {key}.encode()")
                self.collect(parts, [f"COUNT[len({key})]", key, *self.node(node.values, element, depth + 1)])
            self.add(f"{parts}.append(b'\\0')")
            self.add(f"{out} = join({parts})")
        return [out]

    def collect(self, parts: str, pieces: list[str]) -> None:
        """Write the end of a loop's body."""
        if len(pieces) == 1:
            self.add(f"{parts}.append({pieces[0]})")
        elif pieces:
            self.add(f"{parts} += ({', '.join(pieces)})")


class _Block:
    """An indented block; an empty one gets a `pass`."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer

    def __enter__(self) -> None:
        self.start = len(self.writer.lines)
        self.writer.indent += "    "

    def __exit__(self, *_: object) -> None:
        if len(self.writer.lines) == self.start:
            self.writer.add("pass")
        self.writer.indent = self.writer.indent[:-4]


class _Alternatives:
    """Branches of an `if` whose pieces must have the same names afterwards."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self.ends: list[tuple[int, str, list[str]]] = []

    def end(self, pieces: list[str]) -> None:
        """Note the end of one branch; its assignments are written when all branches are known."""
        if len(pieces) > MAX_PIECES:
            pieces = [_joined(pieces)]
        self.ends.append((len(self.writer.lines), self.writer.indent, pieces))
        self.writer.lines.append("")

    def pieces(self) -> list[str]:
        """Write the assignments and return the names."""
        width = max(len(pieces) for _, _, pieces in self.ends)
        names = [self.writer.name("x") for _ in range(width)]
        for line, indent, pieces in self.ends:
            padded = pieces + ["b''"] * (width - len(pieces))
            assignments = "; ".join(f"{name} = {piece}" for name, piece in zip(names, padded, strict=True))
            self.writer.lines[line] = indent + (assignments or "pass")
        return names


def _test(kinds: list[str], var: str, kind_var: str) -> str:
    """Source of the test whether a value is of one of these JSON kinds."""
    types = [t for kind in kinds for t in _TYPES[kind]]
    if types == ["NoneType"]:
        return f"{var} is None"
    return " or ".join(f"{kind_var} is {t}" for t in types)


_TYPES: Final = {
    "null": ("NoneType",),
    "boolean": ("bool",),
    "integer": ("int",),
    "number": ("float", "Decimal"),
    "string": ("str",),
    "bytes": ("bytes",),
    "array": ("list",),
    "object": ("dict",),
}


WRITERS: Final[dict[type, Callable[[Writer, Json, str, int], list[str]]]] = {
    Primitive: Writer.primitive,
    Enum: Writer.enum,
    Fixed: Writer.fixed,
    Record: Writer.record,
    Array: Writer.array,
    Map: Writer.map,
    Union: Writer.union,
}
