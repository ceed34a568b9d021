"""Read and write registry.lock, which gives every schema version its id for good. Text in, text out, no I/O.

One line for each version, in the order in which they were added, and before them the next free id:

    next 3
    1 OrderPlaced/1 sha256:5c1f..
    2 OrderPaid/1 sha256:90ab..

Rules. An id is stored, never computed, and never given out again: `next` only grows, also when a line is deleted. A line is
only ever appended, so two branches that each add a version change the same place of the file and meet in a merge conflict;
where a merge kept both lines all the same, one id stands twice, and that is refused with both names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from cdc.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable

HEADER: Final = (
    "# The id of every schema version, for good. Written by `cdc schemas add`; commit it, never edit it.\n"
    "# After a merge conflict keep the lines of the main branch, drop your own, and run `cdc schemas add` again.\n"
)

MAX_ID: Final = (1 << 31) - 1
"""Clients read the id as a signed number of four bytes."""

_NEXT = re.compile(r"next (\d{1,10})")
_LINE = re.compile(r"(\d{1,10}) (\S+)/(\d{1,9}) (sha256:[0-9a-f]{64})")
_AGAIN: Final = "keep the lines of the main branch, drop the others, and run `cdc schemas add`"


@dataclass(frozen=True, slots=True)
class Entry:
    """One locked version."""

    id: int
    subject: str
    version: int
    fingerprint: str

    @property
    def key(self) -> tuple[str, int]:
        """Subject and version."""
        return self.subject, self.version


@dataclass(frozen=True, slots=True)
class Lock:
    """All locked versions, and the id that the next one gets."""

    entries: tuple[Entry, ...] = ()
    next_id: int = 1
    by_key: dict[tuple[str, int], Entry] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_key", {entry.key: entry for entry in self.entries})

    def added(self, versions: Iterable[tuple[str, int, str]]) -> Lock:
        """Lock further versions: subject, version, fingerprint."""
        entries, next_id = list(self.entries), self.next_id
        for subject, version, fingerprint in versions:
            entries.append(Entry(next_id, subject, version, fingerprint))
            next_id += 1
        return Lock(tuple(entries), next_id)


def render(lock: Lock) -> str:
    """Write the file."""
    lines = [f"{e.id} {e.subject}/{e.version} {e.fingerprint}\n" for e in lock.entries]
    return f"{HEADER}next {lock.next_id}\n{''.join(lines)}"


def read(text: str, source: str) -> Lock:
    """Read the file; everything that `render` does not write is a ConfigurationError with the line."""
    entries: list[Entry] = []
    next_id: int | None = None
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        where = f"{source} line {number}"
        if line.startswith(("<<<<<<<", "=======", ">>>>>>>", "|||||||")):
            raise ConfigurationError(f"{where}: a merge conflict that was not resolved", _AGAIN)
        if not line or line.startswith("#"):
            continue
        if (match := _NEXT.fullmatch(line)) and next_id is None:
            next_id = int(match[1])
        elif match := _LINE.fullmatch(line):
            entries.append(Entry(int(match[1]), match[2], int(match[3]), match[4]))
        else:
            raise ConfigurationError(f"{where}: this is no line that `cdc schemas add` writes", "restore it from git")
    if next_id is None:
        raise ConfigurationError(f"{source}: the line `next` is missing", "restore it from git")
    _check(entries, next_id, source)
    return Lock(tuple(entries), next_id)


def _check(entries: list[Entry], next_id: int, source: str) -> None:
    ids: dict[int, Entry] = {}
    keys: dict[tuple[str, int], Entry] = {}
    for entry in entries:
        name = f"{entry.subject}/{entry.version}"
        if (other := ids.setdefault(entry.id, entry)) is not entry:
            what = f"{source}: id {entry.id} is given to {other.subject}/{other.version} and to {name}"
            raise ConfigurationError(what, f"two branches each added a version: {_AGAIN}")
        if (other := keys.setdefault(entry.key, entry)) is not entry:
            what = f"{source}: {name} is locked twice, with id {other.id} and with id {entry.id}"
            raise ConfigurationError(what, _AGAIN)
        if not 1 <= entry.id < next_id or entry.id > MAX_ID:
            what = f"{source}: {name} has id {entry.id}, but the next free id is {next_id}"
            raise ConfigurationError(what, "restore registry.lock from git: ids are given out by `cdc schemas add` alone")
