"""`cdc verify`: compare the outbox rows with the committed records."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from cdc import app
from cdc.audit.judge import DEFECTS, Verdict
from cdc.audit.outbox_rows import OutboxRows
from cdc.audit.verify import Ends, Progress
from cdc.audit.verify import verify as judged
from cdc.avro import folder
from cdc.cli.garbage import seldom_collected
from cdc.cli.options import TIMEOUT_S, Config, Json, Sets, Timeout
from cdc.cli.output import console, print_json, progress, say, table
from cdc.cli.patience import within
from cdc.cli.shards import Shards, each
from cdc.errors import AuditFailed, ConfigurationError
from cdc.pipeline.ports import Reader
from cdc.settings import Settings


def verify(
    config: Config = None,
    sets: Sets = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="Only what was written from this time on, such as 2026-01-31T12:00:00Z.")
    ] = None,
    timeout_s: Timeout = TIMEOUT_S,
    shards: Shards = None,
    as_json: Json = False,
) -> None:
    """Compare the outbox rows with the committed records; exit code 8 when rows are lost, doubled, torn or out of order."""
    pipelines = each(config, sets, shards)
    since_ms = None if since is None else milliseconds(since)
    verdict = Verdict()
    with seldom_collected(), progress("reading both ends") as step:
        for settings in pipelines:
            verdict.include(within(timeout_s, partial(audit, settings, since_ms, timeout_s, step)))
    show(verdict, as_json=as_json)
    conclude(verdict)


def audit(settings: Settings, since_ms: int | None, timeout_s: float, step: Progress) -> Verdict:
    """Judge both ends of a pipeline."""
    if settings.shard is not None and settings.topics.headers == "debezium":
        msg = 'records with topics.headers = "debezium" do not tell which shard they are of, so a shard cannot be judged by itself'
        raise ConfigurationError(msg, "compare ids, or use CloudEvents headers")
    app.require_events(settings)
    publisher, subscriber, catalog = app.publisher(settings), app.subscriber(settings), app.catalog(settings)

    def running() -> bool:
        slot = catalog.slot(settings.postgres.slot)
        return slot is not None and slot.active_pid is not None

    ends = Ends(
        pipeline=settings.name,
        source=settings.outbox.source,
        route=settings.topics.route,
        dead_letter=settings.topics.dead_letter,
        position_topic=settings.topics.position,
        rows=OutboxRows(
            app.dsn(settings),
            app.application_name(settings),
            table=app.table(settings),
            mapping=app.mapping(settings),
            registry=folder.load(Path(settings.schemas.folder)),
            since_ms=since_ms,
            hash_key=app.key_hash(settings),
        ),
        subscriber=subscriber,
        position=lambda: publisher.peek()[0],
        running=running,
    )
    try:
        verdict = judged(ends, since_ms=since_ms, timeout_s=timeout_s, progress=step)
        if again := redelivered(subscriber):
            say(f"{again:,} events were delivered more than once, and counted once: RabbitMQ delivers at least once")
        return verdict
    finally:
        publisher.close()
        subscriber.close()
        catalog.close()


def redelivered(reader: Reader) -> int:
    """Return how many deliveries were no first ones; only a sink that delivers at least once has any."""
    again: int = getattr(reader, "again", 0)
    return again


def show(verdict: Verdict, *, as_json: bool) -> None:
    """Print the counts, and what shows that something is wrong: ids and places, never a key or a payload."""
    if as_json:
        print_json(verdict.document())
        return
    out = console()
    out.print(table(("", ""), verdict.document().items()))
    if verdict.findings:
        out.print(table(("finding", "where"), verdict.findings, title="Some of the findings"))


def conclude(verdict: Verdict) -> None:
    """Raise AuditFailed unless every invariant holds."""
    if not verdict.clean:
        found = ", ".join(f"{count} {kind}" for kind in DEFECTS if (count := verdict.counts.get(kind, 0)))
        msg = f"the audit found {found}"
        raise AuditFailed(msg, "look at these events on both ends: `cdc verify` without --json names some of them")


def milliseconds(text: str, option: str = "--since") -> int:
    """Read an ISO 8601 time, in UTC unless it says otherwise."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        msg = f"{option} {text!r} is not a time"
        raise ConfigurationError(msg, "write it as 2026-01-31T12:00:00Z") from None
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
