"""Judge what is new in a schema folder before it is locked: contents in, findings out, no I/O.

One function for `cdc schemas add`, `cdc schemas check` and the registry's compatibility endpoint, so that a pull request, a
developer and a client hear the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cdc.avro.compatibility import Breach, Versioned, breaches
from cdc.avro.schema import Fixed, Primitive, Record, children

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cdc.avro.schema import Node, Schema


class Candidate(NamedTuple):
    """A version, locked or not."""

    subject: str
    number: int
    schema: Schema
    fingerprint: str
    source: str

    def __str__(self) -> str:
        return f"{self.subject}/{self.number}"


class Finding(NamedTuple):
    """Something that keeps a version out of the lock, or (a warning) that its owner should know."""

    source: str
    text: str

    def __str__(self) -> str:
        return f"{self.source}: {self.text}"


def review(new: Candidate, earlier: Sequence[Candidate], mode: str) -> tuple[list[Finding], list[Finding]]:
    """Return what refuses `new` after the `earlier` versions of its subject, and what is worth a warning."""
    for old in earlier:
        if old.fingerprint == new.fingerprint:
            text = f"{new} is the same schema as {old}: formatting, doc and the order of attributes make no version"
            return [Finding(new.source, text)], []
    versions = [Versioned(str(old), old.schema) for old in earlier]
    refused = [_finding(new, breach, mode) for breach in breaches(Versioned(str(new), new.schema), versions, mode)]
    if refused or mode.endswith("_TRANSITIVE") or mode == "NONE":
        return refused, []
    further = breaches(Versioned(str(new), new.schema), versions, f"{mode}_TRANSITIVE")
    return [], [_finding(new, breach, f"{mode}_TRANSITIVE") for breach in further]


def notes(new: Candidate, earlier: Sequence[Candidate]) -> list[Finding]:
    """Return what its owner may not have meant and can still change: times in milliseconds that no earlier version has."""
    known = {place for old in earlier for place in _in_millis(old.schema)}
    coarse = [place for place in _in_millis(new.schema) if place not in known]
    if not coarse:
        return []
    what = "now() of PostgreSQL and of Python has microseconds, which are refused and not cut off"
    fix = "truncate each value, or take -micros before anything is published with this version"
    return [Finding(new.source, f"{', '.join(coarse)}: {what}; {fix}")]


def _in_millis(schema: Schema) -> Iterator[str]:
    """Yield the times of a schema that have milliseconds, each by its field."""
    fields: list[tuple[Node, str]] = [(schema.root, "")] if not isinstance(schema.root, Record) else []
    for record in schema.names.values():
        if isinstance(record, Record):
            prefix = "" if record is schema.root else f"{record.name.rpartition('.')[2]}."
            fields += [(field.type, f"{prefix}{field.name} ") for field in record.fields]
    for node, place in fields:
        for part in _parts(node):
            if isinstance(part, (Primitive, Fixed)) and part.logical is not None and part.logical.name.endswith("-millis"):
                yield f"{place}({part.logical.name})"


def _parts(node: Node) -> Iterator[Node]:
    """Yield a type and what it is made of, records left out: their fields have places of their own."""
    yield node
    for child in () if isinstance(node, Record) else children(node):
        yield from _parts(child)


def _finding(new: Candidate, breach: Breach, mode: str) -> Finding:
    return Finding(new.source, f"{breach} ({mode})")
