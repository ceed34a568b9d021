"""`cdc slot`: keep a place in the log, and go back to it."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from cdc import app as composition
from cdc.audit import bookmarks
from cdc.audit.bookmarks import Rewind
from cdc.audit.hold import Hold
from cdc.cli.check import case
from cdc.cli.options import TIMEOUT_S, Config, Json, Sets, Timeout, Yes, settings_from
from cdc.cli.output import confirm, console, print_json, say, table
from cdc.cli.patience import within
from cdc.postgres.bookmarks import Bookmark
from cdc.postgres.bookmarks import bookmarks as bookmarks_of
from cdc.postgres.catalog import LiveCatalog
from cdc.postgres.slot import Administration
from cdc.settings import Settings

app = typer.Typer(no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Lower-case letters, digits and _.")]


@app.command("bookmark", epilog="Example:\n\n  cdc slot bookmark before_release")
def keep(name: Name, config: Config = None, sets: Sets = None, timeout_s: Timeout = TIMEOUT_S, as_json: Json = False) -> None:
    """Keep the place where the pipeline is now; PostgreSQL keeps the log from there on until the bookmark is dropped."""
    settings = settings_from(config, sets)

    def make() -> Bookmark:
        with _database(settings) as (administration, catalog):
            return bookmarks.bookmark(administration, catalog, settings.postgres.slot, name)

    made = within(timeout_s, make)
    say(f"bookmark {made.name!r} is at {made.lsn}; it keeps the log from there on: drop it when it has served")
    if as_json:
        print_json(made.document())


@app.command("rewind", epilog="Example:\n\n  cdc slot rewind before_release --yes")
def rewind(
    name: Name, config: Config = None, sets: Sets = None, yes: Yes = False, timeout_s: Timeout = TIMEOUT_S, as_json: Json = False
) -> None:
    """Go back to a bookmark: what was published since comes again, marked as a replay, and live rows go on after it."""
    settings = settings_from(config, sets)
    publisher, catalog = composition.publisher(settings), composition.catalog(settings)
    hold = Hold("cdc slot rewind", host=socket.gethostname(), now_us=time.time_ns() // 1000)
    work = Rewind(case(settings), _admin_dsn(settings), publisher, catalog, say)
    try:
        found, position = within(timeout_s, lambda: work.planned(hold, name))
        say(f"from {position.end_lsn} back to {found.lsn}: the rows in between are published again with ce_replay rewind:GENERATION")
        confirm("Do it?", yes=yes)
        position = within(timeout_s, lambda: work.carried_out(hold, name))
    finally:
        publisher.close()
        catalog.close()
    say(f"the pipeline goes on at {position.end_lsn}, generation {position.generation}; replays end at {position.replay_until}")
    if as_json:
        document = {"bookmark": name, "slot": position.slot, "end_lsn": str(position.end_lsn), "generation": position.generation}
        print_json({**document, "replay_until": str(position.replay_until)})


@app.command("list", epilog="Example:\n\n  cdc slot list --json")
def listed(config: Config = None, sets: Sets = None, timeout_s: Timeout = TIMEOUT_S, as_json: Json = False) -> None:
    """Show the bookmarks, and how much log each of them keeps."""
    settings = settings_from(config, sets)

    def look() -> list[Bookmark]:
        catalog = composition.catalog(settings)
        try:
            return bookmarks_of(catalog, settings.postgres.slot)
        finally:
            catalog.close()

    found = within(timeout_s, look)
    if as_json:
        print_json({"slot": settings.postgres.slot, "bookmarks": [each.document() for each in found]})
        return
    rows = [(each.name, each.lsn or "gone", each.wal_status, each.retained_bytes, each.transactions_old) for each in found]
    console().print(table(("bookmark", "place", "log", "bytes kept", "transactions old"), rows))


@app.command("drop", epilog="Example:\n\n  cdc slot drop before_release")
def drop(name: Name, config: Config = None, sets: Sets = None, timeout_s: Timeout = TIMEOUT_S) -> None:
    """Drop a bookmark, so that PostgreSQL can forget the log that it keeps."""
    settings = settings_from(config, sets)
    copy = bookmarks.named(settings.postgres.slot, name)

    def forget() -> bool:
        with _database(settings) as (administration, catalog):
            there = catalog.slot(copy) is not None
            if there:
                administration.drop_slot(copy)
            return there

    say(f"bookmark {name!r} is dropped" if within(timeout_s, forget) else f"there is no bookmark {name!r}")


def _admin_dsn(settings: Settings) -> str:
    return (settings.postgres.admin_dsn or settings.postgres.dsn).get_secret_value()


@contextmanager
def _database(settings: Settings) -> Iterator[tuple[Administration, LiveCatalog]]:
    catalog = composition.catalog(settings)
    try:
        administration = Administration(_admin_dsn(settings), composition.dsn(settings), composition.application_name(settings))
        try:
            yield administration, catalog
        finally:
            administration.close()
    finally:
        catalog.close()
