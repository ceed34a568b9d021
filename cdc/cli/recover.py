"""`cdc recover`: make the pipeline able to go on when its log cannot."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Annotated

import typer

from cdc import app
from cdc.audit.diagnosis import Remedy
from cdc.audit.hold import Hold
from cdc.audit.recover import Ends, Plan, carried_out, lost, planned
from cdc.avro import folder
from cdc.cli.check import case
from cdc.cli.options import TIMEOUT_S, Config, Json, Sets, Timeout, Yes, settings_from
from cdc.cli.output import confirm, print_json, progress, say
from cdc.cli.patience import within
from cdc.cli.verify import milliseconds

NOTHING = "the slot and the position fit; nothing to recover (if the pipeline says that the log is another one: --rebuild)"


def recover(
    config: Config = None,
    sets: Sets = None,
    adopt: Annotated[
        bool,
        typer.Option(
            "--adopt", help="This server or cluster replaces the one before (pg_upgrade, a move), or Kafka has lost the position."
        ),
    ] = False,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="A new slot, and a look at every row, although slot and position fit: after a restored copy.")
    ] = False,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help="Rows without a record that are older were published, or are not wanted."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")] = False,
    yes: Yes = False,
    timeout_s: Timeout = TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Make a new slot and publish the rows that Kafka lacks, or go back to where the log forked; nothing is changed on refusal."""
    settings = settings_from(config, sets)
    app.require_events(settings)
    since_us = None if since is None else milliseconds(since) * 1000
    publisher, subscriber, catalog = app.publisher(settings), app.subscriber(settings), app.catalog(settings)
    ends = Ends(
        case=case(settings),
        admin_dsn=(settings.postgres.admin_dsn or settings.postgres.dsn).get_secret_value(),
        route=settings.topics.route,
        dead_letter=settings.topics.dead_letter,
        source=settings.outbox.source,
        policy=app.policy(settings),
        registry=folder.load(Path(settings.schemas.folder)),
        publisher=publisher,
        subscriber=subscriber,
        catalog=catalog,
        say=say,
        adopt=adopt,
        rebuild=rebuild,
        since_us=since_us,
    )
    now_us = time.time_ns() // 1000
    missing = (lambda: lost(ends, now_us)) if adopt else None
    hold = Hold("cdc recover", host=socket.gethostname(), now_us=now_us, ends_any=True, lost=missing)
    try:
        with progress("comparing both ends") as step:
            plan = within(timeout_s, lambda: planned(ends, hold, step))
        if plan is None:
            say(NOTHING)
            if as_json:
                print_json({"remedy": None})
            return
        say(told(plan))
        if not dry_run:
            confirm("Do it?", yes=yes)
            with progress("publishing what Kafka lacks") as step:
                plan = within(timeout_s, lambda: carried_out(ends, hold, step))
            say(f"done: {plan.events} events and {plan.dead_letters} dead letters were published; the pipeline goes on at {place(plan)}")
    finally:
        publisher.close()
        subscriber.close()
        catalog.close()
    if as_json:
        print_json(plan.document())


def told(plan: Plan) -> str:
    """Say what is wrong and what is to be done."""
    diagnosis, document = plan.diagnosis, plan.document()
    lines = [diagnosis.reason]
    match diagnosis.remedy:
        case Remedy.RELEASE:
            lines.append("nothing is missing: the hold ends, and the pipeline goes on where it was")
        case Remedy.FORK:
            lines.append(f"the position goes back to {diagnosis.begin}; what the log has from there on is published")
        case Remedy.REBUILD:
            lines += [
                f"a new slot is made; what was committed from {diagnosis.begin} on is looked for in the table:",
                f"  {document['rows']} rows, {document['known']} of them in Kafka",
                f"  {plan.events + plan.dead_letters} are published now ({plan.dead_letters} as dead letters)",
                f"  {document['skipped']} were skipped by init, {document['left_out']} are older than what can be missing",
                "rows that were deleted since, and messages without a table, cannot be found there",
            ]
    return "\n".join(lines)


def place(plan: Plan) -> str:
    """Return where the pipeline goes on."""
    return f"{plan.position.end_lsn}, generation {plan.position.generation}"
