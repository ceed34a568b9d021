"""`cdc offsets`: move a consumer group."""

from __future__ import annotations

from typing import Annotated

import typer

from cdc import app as composition
from cdc.audit.offsets import Goal, Reset
from cdc.cli.options import TIMEOUT_S, Config, Json, Sets, Timeout, Yes, settings_from
from cdc.cli.output import confirm, console, print_json, progress, table
from cdc.cli.patience import within
from cdc.cli.verify import milliseconds
from cdc.errors import ConfigurationError

app = typer.Typer(no_args_is_help=True)


@app.callback()
def offsets() -> None:
    """Offsets of consumer groups."""


@app.command(epilog="Example:\n\n  cdc offsets reset --group billing --to-time 2026-01-31T12:00:00Z")
def reset(
    group: Annotated[str, typer.Option("--group", metavar="GROUP", help="The consumer group; none of its consumers may run.")],
    config: Config = None,
    sets: Sets = None,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the first record that is still there.")] = False,
    to_time: Annotated[str | None, typer.Option("--to-time", metavar="TIME", help="To the first record of this time or later.")] = None,
    to_event: Annotated[
        str | None, typer.Option("--to-event", metavar="ID", help="To this event; other partitions to the first record of its time.")
    ] = None,
    topics: Annotated[
        list[str] | None, typer.Option("--topic", metavar="TOPIC", help="Only here; else every topic of the pipeline that the group reads.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show where it would go, and move nothing.")] = False,
    yes: Yes = False,
    timeout_s: Timeout = TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Move a consumer group, so that it reads again what it has read, or leaves out what it has not."""
    if sum((to_earliest, to_time is not None, to_event is not None)) != 1:
        raise ConfigurationError("it is not said where to", "give one of --to-earliest, --to-time and --to-event")
    goal = Goal(None if to_time is None else milliseconds(to_time, "--to-time"), to_event)
    settings = settings_from(config, sets)
    groups, subscriber = composition.groups(settings), composition.subscriber(settings)
    work = Reset(groups, subscriber, group, settings.topics.route, tuple(topics or ()))
    try:
        with progress("looking for the place") as step:
            moves = within(timeout_s, lambda: work.planned(goal, step))
        if not as_json:
            console().print(table(("topic", "partition", "old offset", "new offset"), moves))
        if not dry_run:
            confirm(f"Move group {group}?", yes=yes)
            within(timeout_s, lambda: work.carried_out(moves))
    finally:
        groups.close()
        subscriber.close()
    if as_json:
        print_json({"group": group, "moved": not dry_run, "offsets": [move._asdict() for move in moves]})
