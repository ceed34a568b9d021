"""What a peer is: how it is made ready before the backlog is written, and how it is started on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from benchmarks.rig import Rig


class Process(Protocol):
    """A started peer."""

    @property
    def pid(self) -> int | None:
        """Its pid, or None when it has ended."""

    def close(self) -> None:
        """End it, and forget what it kept."""


@dataclass(frozen=True, slots=True)
class Run:
    """One turn of every peer over one backlog: each has a slot, a name and topics of its own in it."""

    rig: Rig
    name: str
    rows: int
    end_lsn: str = ""
    source: str = ""
    """A topic with our records of the same backlog, for those who only produce."""


@dataclass(frozen=True, slots=True)
class Peer:
    """One who is measured. `prepare` comes before the backlog, `fill` after it and before the clock runs."""

    name: str
    label: str
    start: Callable[[Run], Process]
    prepare: Callable[[Run], None] = lambda _: None
    fill: Callable[[Run], None] = lambda _: None
    table: Callable[[Run], str] = lambda _: "outbox"
    publishes: bool = True
    at_most: int | None = None
    """So many events of a backlog are enough of it."""

    def topic(self, run: Run, kind: str = "order") -> str:
        """Return the topic that it publishes to."""
        return f"{self.name}.{run.name}.{kind}"


def slot(run: Run, peer: str) -> str:
    """Return the name of a peer's slot in a run."""
    return f"{peer}_{run.name}".replace("-", "_")


def make_slot(run: Run, peer: str) -> None:
    """Make it; what is written from here on is its backlog."""
    run.rig.ask(f"SELECT pg_create_logical_replication_slot('{slot(run, peer)}', 'pgoutput')")
