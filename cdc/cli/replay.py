"""`cdc replay`: publish rows of the table again."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Annotated

import typer

from cdc import app
from cdc.audit.replay import Choice, Replay, Replayed
from cdc.avro import folder
from cdc.cli.options import TIMEOUT_S, Config, Json, Sets, Timeout, Yes, settings_from
from cdc.cli.output import confirm, print_json, progress, say
from cdc.cli.patience import within
from cdc.cli.verify import milliseconds
from cdc.errors import ConfigurationError
from cdc.kafka.limits import name_fault


def replay(
    config: Config = None,
    sets: Sets = None,
    ids: Annotated[list[str] | None, typer.Option("--id", metavar="ID", help="The row with this id; may be given again.")] = None,
    keys: Annotated[list[str] | None, typer.Option("--key", metavar="KEY", help="Rows of this key; may be given again.")] = None,
    since: Annotated[str | None, typer.Option(metavar="TIME", help="Rows that were written from this time on.")] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Rows that were written before this time.")] = None,
    where: Annotated[str | None, typer.Option(metavar="SQL", help="Rows that fulfil this condition on the table's columns.")] = None,
    to_topic: Annotated[str | None, typer.Option(metavar="TOPIC", help="Publish to this topic instead of the rows' own.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be published, and publish nothing.")] = False,
    yes: Yes = False,
    timeout_s: Timeout = TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Publish chosen rows again, marked as a replay, beside the running pipeline."""
    settings = settings_from(config, sets)
    choice = Choice(tuple(ids or ()), tuple(keys or ()), _microseconds(since, "--since"), _microseconds(until, "--until"), where)
    if choice == Choice():
        raise ConfigurationError("it is not said which rows", "choose by --id, --key, --since, --until or --where")
    if to_topic is not None and (fault := name_fault(to_topic)) is not None:
        raise ConfigurationError(f"--to-topic {to_topic!r} is no topic: {fault}", "correct it")
    if to_topic in (settings.topics.position, settings.topics.dead_letter):
        raise ConfigurationError(f"--to-topic {to_topic!r} is the pipeline's own", "take another topic")
    catalog, pipeline, publisher = app.catalog(settings), app.kafka_publisher(settings), app.command_publisher(settings, "replay")

    def running() -> bool:
        slot = catalog.slot(settings.postgres.slot)
        return slot is not None and slot.active_pid is not None

    work = Replay(
        dsn=app.dsn(settings),
        application_name=app.application_name(settings),
        table=app.table(settings),
        mapping=app.mapping(settings),
        registry=folder.load(Path(settings.schemas.folder)),
        publisher=publisher,
        catalog=catalog,
        position=lambda: pipeline.peek()[0],
        running=running,
        choice=choice,
        to_topic=to_topic,
    )
    replay_id = uuid.uuid4().hex[:12]
    try:
        with progress("looking for the rows") as step:
            done = within(timeout_s, lambda: work.planned(replay_id, step))
        say(told(done, "would be published"))
        if not dry_run and done.topics:
            confirm("Publish them?", yes=yes)
            with progress("publishing", sum(done.topics.values())) as step:
                done = within(timeout_s, lambda: work.carried_out(replay_id, timeout_s, step))
            say(told(done, "were published"))
    finally:
        catalog.close()
        pipeline.close()
        publisher.close()
    if as_json:
        print_json(done.document() | {"dry_run": dry_run})


def told(found: Replayed, what: str) -> str:
    """Say what is or would be published."""
    lines = [f"{count:,} rows {what} to {topic}, with ce_replay replay:{found.replay_id}" for topic, count in sorted(found.topics.items())]
    lines += [f"{count:,} rows are left out: they cannot become an event ({reason})" for reason, count in sorted(found.invalid.items())]
    return "\n".join(lines) or "no row fulfils this"


def _microseconds(text: str | None, option: str) -> int | None:
    return None if text is None else milliseconds(text, option) * 1000
