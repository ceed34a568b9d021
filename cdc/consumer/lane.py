"""A consumer's partitions, jobs and results, as values: what `loop` decides with. No I/O.

LOADING --(what is known of the partition)--> READY --(records, a worker)--> BUSY --> READY
BUSY --(failed, another attempt)--> WAITING --(time)--> BUSY
BUSY --(failed for good, or to be tried later)--> PARKING --(moved, with its offset)--> READY
PARKING --(cannot be moved, several times)--> STOPPED, until the partition is assigned anew
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from cdc.consumer.retry import NEVER, Retry
from cdc.consumer.shared import Act, Row

if TYPE_CHECKING:
    from cdc.event import Seen

Place = tuple[str, int]
"""A topic's name and a partition's number, or what another broker has in its place."""


class Standing(StrEnum):
    """What a lane is about."""

    LOADING = "loading"
    READY = "ready"
    BUSY = "busy"
    WAITING = "waiting"
    PARKING = "parking"
    STOPPED = "stopped"


class Kind(StrEnum):
    """Whose fault a failure is."""

    HANDLER = "handler"
    UNREADABLE = "schema"
    DATABASE = "database"
    BLOCKED = "blocked"


class Failure(NamedTuple):
    """Why a record was not settled: the first failure, which handlers are done, and which failed (none when it was not read).

    `message` may quote data: it goes into the dead letter and nowhere else. `where` names what may be logged: tables, not values.
    """

    kind: Kind
    error_class: str
    message: str = ""
    handler: str = ""
    rule: Retry = NEVER
    after_s: float | None = None
    breaker: str | None = None
    done: frozenset[str] = frozenset()
    left: frozenset[str] = frozenset()
    where: str = ""


@dataclass(frozen=True, slots=True)
class Handle:
    """Apply records, in order, until one fails."""

    lane: Lane
    records: tuple[Seen, ...]
    attempt: int
    done: frozenset[str]
    started: float
    charged_s: float


@dataclass(frozen=True, slots=True)
class Load:
    """Look up what is known of a partition."""

    lane: Lane


@dataclass(frozen=True, slots=True)
class Move:
    """Write a record to another topic and commit its offset with it: a dead letter, or for a later attempt (`delay_s`).

    `ticket` proves that the place is ours; the driver adds it when it starts it.
    """

    lane: Lane
    record: Seen
    failure: Failure
    attempts: int
    delay_s: float | None
    ticket: object = None


@dataclass(frozen=True, slots=True)
class Note:
    """Keep the number of failed attempts of a record over a restart; 0 forgets it. `number` is what the rules call the record."""

    lane: Lane
    number: int
    attempts: int


@dataclass(frozen=True, slots=True)
class Share:
    """Look at the row of a shared breaker, or change it; belongs to no lane."""

    breaker: str
    act: Act
    period_s: float


Job = Handle | Load | Move | Note | Share


class Handled(NamedTuple):
    """Of a Handle: how many records are settled, and why the next one is not; how many events were applied, or were before."""

    settled: int
    failure: Failure | None = None
    applied: int = 0
    skipped: int = 0


class Loaded(NamedTuple):
    """Of a Load: failed attempts by the record's number, and the keys whose events have left the partition; or why it cannot be told."""

    attempts: Mapping[int, int] = {}
    keys: frozenset[bytes] = frozenset()
    error: str = ""


class Moved(NamedTuple):
    """Of a Move: why it failed, if it did, and whether the record is acknowledged with it; else the next commit does that."""

    error: str = ""
    acknowledged: bool = True


class Noted(NamedTuple):
    """Of a Note."""


class Shared(NamedTuple):
    """Of a Share: the row, or why it cannot be told."""

    row: Row | None
    error: str = ""


Result = Handled | Loaded | Moved | Noted | Shared


@dataclass(slots=True, eq=False)
class Lane:
    """One partition while it is ours."""

    topic: str
    partition: int
    priority: str
    standing: Standing = Standing.LOADING
    pending: deque[Seen] = field(default_factory=deque)
    fetched: int = -1
    end: int | None = None
    settled: int | None = None
    committed: int | None = None
    attempts: int = 0
    done: frozenset[str] = frozenset()
    not_before: float = 0.0
    hitches: int = 0
    known: Loaded = field(default_factory=Loaded)
    job: Job | None = None
    move: Move | None = None
    paused: bool = False
    closing: bool = False
    lost: bool = False
    why: str = ""

    @property
    def place(self) -> Place:
        """Topic and number."""
        return self.topic, self.partition

    def __repr__(self) -> str:
        why = f" ({self.why})" if self.why else ""
        return f"<Lane {self.topic}[{self.partition}] {self.standing}{why} settled={self.settled} pending={len(self.pending)}>"
