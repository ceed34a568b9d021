"""What a consumer's member and its thread tell each other: events come from the thread, commands go to it. Values, no I/O."""

from __future__ import annotations

import queue
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cdc.event import Place, Seen


@dataclass(frozen=True, slots=True)
class Group:
    """What a member reads, and how: `topics` with the number of their streams; from `own` ones what is acknowledged is deleted.

    `session_s` is how long a member may be silent before others take its streams.
    """

    name: str
    instance: str | None
    topics: Mapping[str, int]
    own: frozenset[str]
    prefetch: int
    session_s: float
    from_end: bool


class Assigned(NamedTuple):
    """Streams are ours."""

    places: Sequence[Place]
    epoch: int
    token: str


class Revoked(NamedTuple):
    """Streams are to be given back."""

    places: Sequence[Place]
    epoch: int


class Lost(NamedTuple):
    """Streams are ours no more."""

    places: Sequence[Place]


class Records(NamedTuple):
    """What was read."""

    records: Sequence[Seen]


class Committed(NamedTuple):
    """The answer to an Ack that is not waited for."""

    offsets: Mapping[Place, int]
    error: str = ""


class Hitch(NamedTuple):
    """Something failed that is tried again."""

    what: str


Event = Assigned | Revoked | Lost | Records | Committed | Hitch | BaseException


class Ack(NamedTuple):
    """Acknowledge entries; `offsets` is what the answer says, to `reply` if somebody waits there."""

    entries: Mapping[Place, Sequence[int]]
    offsets: Mapping[Place, int]
    reply: queue.SimpleQueue[Mapping[Place, int]] | None = None


class Release(NamedTuple):
    """Give streams back."""

    places: Sequence[Place]
    epoch: int


class Leave(NamedTuple):
    """End."""


Command = Ack | Release | Leave
