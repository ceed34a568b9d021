"""What commands print: data to stdout, everything else to stderr.

Strategy: a command first has its answer as a document, a plain JSON object, and then prints it. With `--json` the last line
of stdout is that object, whatever came before; otherwise people get tables and sentences. Progress is shown only on a
terminal, on stderr, so that nothing else ever has to be filtered out.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import orjson

from cdc.errors import CdcError
from cdc.settings import mask

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


class Step(Protocol):
    """Takes progress: so many more units are done."""

    def __call__(self, done: float = 1) -> None: ...  # noqa: D102 - the class says it


def print_json(document: Mapping[str, object]) -> None:
    """Print one JSON object on one line, whole at once."""
    sys.stdout.write(orjson.dumps(document, default=str).decode() + "\n")
    sys.stdout.flush()


def say(text: str) -> None:
    """Tell people something on stderr: what is being done, never the answer."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def console(*, stderr: bool = False) -> Console:
    """Return a console that prints text as it is: what comes from outside is no markup."""
    from rich.console import Console  # noqa: PLC0415 - slow to load

    return Console(stderr=stderr, markup=False, highlight=False, soft_wrap=True)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None) -> Table:
    """Build a table for people; numbers stand on the right."""
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415 - slow to load
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    listed = [tuple(row) for row in rows]
    shown = Table(title=title, title_justify="left", box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for i, column in enumerate(columns):
        numbers = bool(listed) and all(isinstance(row[i], int | float) for row in listed)
        shown.add_column(column, justify="right" if numbers else "left", overflow="fold")
    for row in listed:
        shown.add_row(*(Text("-" if cell is None else f"{cell:,}" if type(cell) is int else str(cell)) for cell in row))
    return shown


@contextmanager
def progress(what: str, total: float | None = None) -> Iterator[Step]:
    """Show how far a command is that can take more than two seconds; silent unless stderr is a terminal."""
    if not sys.stderr.isatty():
        yield _unseen
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415 - slow to load

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.completed:,.0f}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done=1: bar.advance(task, done)


def _unseen(done: float = 1) -> None:
    """Take progress that nobody sees."""


def confirm(question: str, *, yes: bool) -> None:
    """Ask on a terminal whether to go on, and leave if not; a script that called us has decided already."""
    if not yes and sys.stdin.isatty() and sys.stderr.isatty():
        import typer  # noqa: PLC0415 - only when somebody is there

        typer.confirm(question, abort=True, err=True)


def error_line(error: CdcError) -> str:
    """One line that says what was wrong, where, and how to fix it; masked once more, in case a library's words came in."""
    return "cdc: " + mask(" ".join(str(error).split()))
