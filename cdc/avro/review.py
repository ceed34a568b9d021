"""Judge what is new in a schema folder before it is locked: contents in, findings out, no I/O.

One function for `cdc schemas add`, `cdc schemas check` and the registry's compatibility endpoint, so that a pull request, a
developer and a client hear the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cdc.avro.compatibility import Breach, Versioned, breaches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cdc.avro.schema import Schema


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


def _finding(new: Candidate, breach: Breach, mode: str) -> Finding:
    return Finding(new.source, f"{breach} ({mode})")
