"""What the dead-letter topic holds: which rows were parked, why, and which of them are still open.

Strategy: the topic is the only store. A redrive leaves a record beside the dead letter in the Kafka transaction that carries
the event (header `cdc.redriven`), so what is open is what has no such record. A dead letter is told by its place, because an
id may be missing or come twice; people name it by its id.

Payloads are read only when they are asked for, and not kept while the topic is gone through.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from sys import intern
from typing import NamedTuple

from cdc.avro.masking import MASK, masked_text
from cdc.avro.registry import Registry
from cdc.errors import InvalidEvent
from cdc.event import Seen
from cdc.outbox.dead_letter import REDRIVEN, said
from cdc.outbox.mapping import OutboxMapping
from cdc.outbox.router import fill
from cdc.pipeline.ports import Reader
from cdc.resilience.call import nobody_waits

Progress = Callable[[float], object]

_PATH = re.compile(r"\$[.\[][^\s:;,]*")

STEP = 1_000
"""Records between two reports of progress."""

LAST = 25
"""Letters that a running pipeline keeps to be shown; the topic has all."""


class Letter(NamedTuple):
    """A parked row; `topic` is where it was meant for, `sequence` its place in the log, `open` that it was not redriven."""

    id: str
    sequence: str
    reason: str
    type: str
    topic: str
    message: str
    timestamp_ms: int
    partition: int
    offset: int
    open: bool = True

    @property
    def path(self) -> str:
        """The first place in the payload that the reason names, as a JSON path; empty when it names none."""
        found = _PATH.search(self.message)
        return found[0].rstrip(".") if found else "$" * ("$" in self.message)


@dataclass(frozen=True, slots=True)
class Choice:
    """Which dead letters are meant; what is empty or None leaves all. `names` holds ids, or places for rows without an id."""

    names: frozenset[str] = frozenset()
    reason: str | None = None
    topic: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None

    def takes(self, letter: Letter) -> bool:
        """Whether this one is meant."""
        return (
            (not self.names or letter.id in self.names or letter.sequence in self.names)
            and self.reason in (None, letter.reason)
            and self.topic in (None, letter.topic)
            and (self.since_ms is None or letter.timestamp_ms >= self.since_ms)
            and (self.until_ms is None or letter.timestamp_ms < self.until_ms)
        )


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """One pipeline's dead letters, and what reads them."""

    subscriber: Reader
    topic: str
    pipeline: str

    def letters(self, choice: Choice, progress: Progress) -> list[Letter]:
        """Return the letters that are meant, open or not, as they lie in the topic."""
        found, redriven = list[Letter](), set[str]()
        for done, seen in enumerate(self.subscriber.read([self.topic], since_ms=choice.since_ms, waiting=nobody_waits), 1):
            headers = texts(seen)
            if REDRIVEN in headers:
                redriven.add(headers.get("cdc.sequence", ""))
            elif headers.get("__connect.errors.connector.name", self.pipeline) == self.pipeline:
                letter = letter_of(seen, headers)
                if choice.takes(letter):
                    found.append(letter)
            if done % STEP == 0:
                progress(STEP)
        return [letter._replace(open=letter.sequence not in redriven) for letter in found]

    def whole(self, letters: Sequence[Letter]) -> Iterator[tuple[Letter, Seen]]:
        """Yield letters with their records, payloads included, as they lie in the topic."""
        wanted = {(letter.partition, letter.offset): letter for letter in letters}
        if not wanted:
            return
        since_ms = min(letter.timestamp_ms for letter in letters)
        for seen in self.subscriber.read([self.topic], since_ms=since_ms, waiting=nobody_waits):
            letter = wanted.pop((seen.partition, seen.offset), None)
            if letter is not None:
                yield letter, seen
            if not wanted:
                return


def payload_text(seen: Seen, registry: Registry, mapping: OutboxMapping, *, unmasked: bool = False) -> str | None:
    """Return a dead letter's payload for people: None for a tombstone, MASK alone where personal fields cannot be told.

    Of a subject with personal fields nothing is shown that its schema does not know: a misspelt name is a usual reason.
    """
    if seen.value is None:
        return None
    if unmasked:
        return seen.value.decode(errors="backslashreplace")
    headers = dict(seen.headers)
    try:
        subject = fill(mapping.subject, said(headers))
        schema = registry.latest(subject).schema
    except InvalidEvent:
        return MASK
    return masked_text(seen.value, registry.settings_of(subject).personal, schema)


def texts(seen: Seen) -> dict[str, str]:
    """Return a record's headers as text."""
    return {name: (value or b"").decode(errors="backslashreplace") for name, value in seen.headers}


def letter_of(seen: Seen, headers: dict[str, str]) -> Letter:
    """Return what a record of the topic tells, its headers as text."""
    return Letter(
        id=headers.get("cdc.id", ""),
        sequence=headers.get("cdc.sequence", ""),
        # The same for most of many: kept once.
        reason=intern(headers.get("cdc.reason", "")),
        type=intern(headers.get("cdc.type", "")),
        topic=intern(headers.get("__connect.errors.topic", "")),
        message=headers.get("__connect.errors.exception.message", ""),
        timestamp_ms=seen.timestamp_ms,
        partition=seen.partition,
        offset=seen.offset,
    )
