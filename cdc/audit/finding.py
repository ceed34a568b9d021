"""What the doctor finds, and what his questions share: values and names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol, TypeVar

from cdc.errors import CdcError
from cdc.kafka.topics import Create
from cdc.outbox.emit import Emit
from cdc.outbox.mapping import OutboxMapping
from cdc.pipeline.ports import Sink
from cdc.postgres.slot import Table

Answer = TypeVar("Answer")


class Status(StrEnum):
    """How a finding turned out."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Finding:
    """One answer: what was asked, how it is, and what to do where it is not well."""

    area: str
    check: str
    status: Status
    what: str
    fix: str = ""


class Patience(Protocol):
    """Tries again while something is Retriable, for as long as the person who asked wants to wait."""

    def __call__(self, attempt: Callable[[], Answer], /) -> Answer: ...  # noqa: D102 - the class says it


@dataclass(frozen=True, slots=True)
class Case:
    """What is examined: the names from the settings."""

    pipeline: str
    slot: str
    publication: str
    table: Table
    mapping: OutboxMapping
    dsn: str
    application_name: str
    schemas: Path
    create: Create | None
    static_topics: tuple[str, ...]
    transaction_timeout_ms: int
    retention: bool
    emit: Emit | None


Told = Iterator[tuple[Status, str, str]]
"""What a question yields: how it is, what was seen, and what to do."""


@dataclass(frozen=True, slots=True)
class Doctor:
    """What is asked of a sink, under the name of `area`: first `reached`, and once it answers, the `questions` in their order.

    `hides` tells whether a newer position may be there that cannot be seen now.
    """

    area: str
    sink: Sink
    reached: Callable[[Patience], Told]
    questions: Mapping[str, Callable[[Case], Told]]
    hides: Callable[[], bool]


def asked(area: str, check: str, answers: Told) -> Iterator[Finding]:
    """Name the answers, and make a finding of whatever keeps the question from being answered."""
    try:
        for status, what, fix in answers:
            yield Finding(area, check, status, what, fix)
    except CdcError as error:
        yield Finding(area, check, Status.FAILED, error.what, error.fix or "see the server's log")


def ok(what: str) -> tuple[Status, str, str]:
    """Answer that all is well."""
    return Status.OK, what, ""


def failed(what: str, fix: str) -> tuple[Status, str, str]:
    """Answer that the pipeline cannot work, or would lose something."""
    return Status.FAILED, what, fix


def warning(what: str, fix: str) -> tuple[Status, str, str]:
    """Answer that it works, and will not always."""
    return Status.WARNING, what, fix


def nothing() -> None:
    """Nobody has to be kept waiting."""
