"""`cdc dead-letters`: what was parked and why, publishing it after all, and getting past a row that stops the pipeline."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from textwrap import wrap
from typing import Annotated, Any

import typer

from cdc import app as cdc_app
from cdc.audit.consumer_letters import ConsumerRedrive
from cdc.audit.dead_letters import Choice, DeadLetters, Letter, payload_text, texts
from cdc.audit.park import Parking
from cdc.audit.redrive import SHOWN, Redrive, Redriven
from cdc.audit.redrive import from_table as mended
from cdc.avro import folder
from cdc.cli.options import TIMEOUT_S, Config, Json, Sets, Timeout, settings_from
from cdc.cli.output import console, print_json, progress, say, table
from cdc.cli.patience import given_up, within
from cdc.cli.verify import milliseconds
from cdc.consumer.names import Names
from cdc.errors import AuditFailed, ConfigurationError, StoppedByPolicy
from cdc.settings import Settings

app = typer.Typer(help="Parked events: list, show, redrive, park.", no_args_is_help=True)

Reason = Annotated[str | None, typer.Option("--reason", metavar="WORD", help="schema, mapping, route, size, tombstone or refused.")]
Topic = Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help="The topic that the event was meant for.")]
Since = Annotated[str | None, typer.Option("--since", metavar="TIME", help="Committed at this time or later: 2026-01-31T12:00:00Z.")]
Until = Annotated[str | None, typer.Option("--until", metavar="TIME", help="Committed before this time.")]
Ids = Annotated[list[str] | None, typer.Argument(metavar="ID", help="Event ids; a place for a row without an id.")]

Parker = Annotated[str | None, typer.Option("--consumer", metavar="NAME", help="What this consumer has parked, not the pipeline.")]

OWN_HEADERS = ("cdc.", "__connect.errors.")


@app.command("list", epilog="Examples:\n\n  cdc dead-letters list\n\n  cdc dead-letters list --reason schema --all --json")
def list_(
    *,
    ids: Ids = None,
    reason: Reason = None,
    topic: Topic = None,
    since: Since = None,
    until: Until = None,
    every: Annotated[bool, typer.Option("--all", help="Also what was redriven.")] = False,
    consumer: Parker = None,
    config: Config = None,
    sets: Sets = None,
    timeout_s: Timeout = TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """List the dead letters that are open: never a key or a payload."""
    settings = settings_from(config, sets)
    choice = _choice(ids, reason, topic, since, until)
    with _reading(settings, consumer) as dead, progress("reading dead letters") as step:
        found = within(timeout_s, lambda: dead.letters(choice, step))
    shown = [letter for letter in found if every or letter.open]
    if as_json:
        print_json({"dead_letters": [_listed(letter) for letter in shown], "open": sum(letter.open for letter in found)})
        return
    out = console()
    for letter in shown:
        for line in entry(letter, min(out.width, ENTRY_WIDTH), words=consumer is None):
            out.print(line)
    opened = sum(letter.open for letter in found)
    tell = "see one whole: cdc dead-letters show ID"
    out.print(f"{opened:,} open; {tell}" if shown else "no open dead letter fits")


@app.command(epilog="Examples:\n\n  cdc dead-letters show 0189d3f4-7a0c-7b3e-9f1e-0a1b2c3d4e5f\n\n  cdc dead-letters show ID --payload")
def show(
    *,
    event: Annotated[str, typer.Argument(metavar="ID", help="The event's id, or the place of a row without one.")],
    payload: Annotated[bool, typer.Option("--payload", help="Also the row's payload and columns, personal fields masked.")] = False,
    unmasked: Annotated[bool, typer.Option("--unmasked", help="With --payload: as it is, personal fields included.")] = False,
    consumer: Parker = None,
    config: Config = None,
    sets: Sets = None,
    timeout_s: Timeout = TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Show one dead letter: why, where it was meant to go, its place and headers; the payload only when asked for."""
    if unmasked and not payload:
        raise ConfigurationError("--unmasked shows nothing by itself", "add --payload")
    settings = settings_from(config, sets)
    registry, mapping = folder.load(Path(settings.schemas.folder)), cdc_app.mapping(settings)
    with _reading(settings, consumer) as dead, progress("reading dead letters") as step:
        pairs = within(timeout_s, lambda: list(dead.whole(dead.letters(Choice(frozenset({event})), step))))
    if not pairs:
        raise AuditFailed(f"there is no dead letter {event}", "see `cdc dead-letters list --all`")
    documents = []
    for letter, seen in pairs:
        headers = texts(seen)
        row = headers.pop("cdc.row", None)
        document = {**_listed(letter), "partition": letter.partition, "offset": letter.offset, "headers": headers}
        if payload:
            document["key"] = None if seen.key is None else seen.key.decode(errors="backslashreplace")
            document["row"] = row
            document["payload"] = payload_text(seen, registry, mapping, unmasked=unmasked)
        documents.append(document)
    if as_json:
        print_json({"dead_letters": documents})
        return
    for document in documents:
        plain = [(name, value) for name, value in document.items() if name != "headers"]
        others = [(f"header {name}", value) for name, value in document["headers"].items() if not name.startswith(OWN_HEADERS)]
        console().print(table(("", ""), [*plain, *others]))


@app.command(epilog="Examples:\n\n  cdc dead-letters redrive ID\n\n  cdc dead-letters redrive --reason schema --since 2026-01-31T00:00:00Z")
def redrive(
    *,
    ids: Ids = None,
    reason: Reason = None,
    topic: Topic = None,
    since: Since = None,
    until: Until = None,
    from_table: Annotated[
        bool, typer.Option("--from-table", help="Take the rows as the table has them now, mended or too large to be kept.")
    ] = False,
    consumer: Parker = None,
    config: Config = None,
    sets: Sets = None,
    timeout_s: Timeout = TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Encode open dead letters again and publish them to where they were meant to go, all in one Kafka transaction."""
    choice = _choice(ids, reason, topic, since, until)
    if choice == Choice():
        raise ConfigurationError("it is not said which dead letters", "name ids, or choose by --reason, --topic, --since or --until")
    settings = settings_from(config, sets)
    if consumer is not None:
        if from_table:
            raise ConfigurationError("a consumer's dead letters are events and no rows", "leave --from-table out")
        _tell(_redriven_for(settings, consumer, choice, timeout_s), as_json=as_json, readable=cdc_app.readable(settings))
        return
    registry, mapping = folder.load(Path(settings.schemas.folder)), cdc_app.mapping(settings)
    with ExitStack() as stack, progress("redriving") as step:
        row_of = None
        if from_table:
            row_of = stack.enter_context(
                mended(cdc_app.dsn(settings), cdc_app.application_name(settings), cdc_app.table(settings), mapping)
            )
        dead = stack.enter_context(_reading(settings))
        publisher = cdc_app.redrive_publisher(settings)
        stack.callback(publisher.close)
        job = Redrive(dead, publisher, mapping, registry.encoder, choice, step, row_of, cdc_app.readable(settings))
        done = within(timeout_s, job.run)
    _tell(done, as_json=as_json, readable=job.readable)


@app.command(epilog="Example, when `cdc run` has stopped with exit code 7:\n\n  cdc dead-letters park 0189d3f4-7a0c-7b3e-9f1e-0a1b2c3d4e5f")
def park(
    *,
    ids: Annotated[list[str], typer.Argument(metavar="ID", help="The row's id, or its place, as `cdc run` has named it.")],
    config: Config = None,
    sets: Sets = None,
    timeout_s: Timeout = TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Get past rows that stop the pipeline: they become dead letters, and `cdc run` can go on behind them."""
    settings = settings_from(config, sets)
    if settings.outbox.on_invalid != "stop":
        msg = "no row stops this pipeline: outbox.on_invalid is not stop, and invalid rows are parked by themselves"
        raise ConfigurationError(msg, "see `cdc dead-letters list`")
    stop = threading.Event()
    watch = Parking(frozenset(ids), stop.set, timeout_s, time.monotonic)
    say(f"publishing up to {', '.join(ids)}")
    stopped: StoppedByPolicy | None = None
    try:
        cdc_app.supervisor(settings, cdc_app.schemas(settings), watch, stop, park=frozenset(ids)).run()
    except StoppedByPolicy as error:
        stopped = error
    if watch.fault is not None and watch.missing:
        raise given_up(timeout_s, watch.fault)
    before = _parked_before(settings, watch.missing)
    missing = sorted(set(watch.missing) - before)
    _tell_parked(watch, before, missing, stopped, as_json=as_json)
    if missing and stopped is not None:
        raise stopped
    if missing:
        msg = f"no invalid row {', '.join(missing)} came up to {_end(watch)}; what came before is published"
        raise AuditFailed(msg, "name the row that `cdc run` has stopped at; a row that fits by now is published by `cdc run`")


ENTRY_WIDTH = 120
"""Columns that an entry of the list takes at most: longer lines are hard to read."""


def entry(letter: Letter, width: int, *, words: bool) -> list[str]:
    """Return the lines that tell of a letter: one to copy the id from, one where from and where to, and why.

    The pipeline's `words` quote no data; those of a consumer's handler may, and are left to `show`.
    """
    lines = [
        f"{letter.id or letter.sequence}  {letter.reason}, {'open' if letter.open else 'redriven'}",
        f"  {_time(letter)}  {letter.type or '-'}, meant for {letter.topic or '-'}",
    ]
    why = letter.message if words else letter.path
    return [*lines, *wrap(why, width, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)]


@contextmanager
def _reading(settings: Settings, consumer: str | None = None) -> Iterator[DeadLetters]:
    subscriber = cdc_app.subscriber(settings)
    topic = settings.topics.dead_letter if consumer is None else Names(consumer).dead_letter
    try:
        yield DeadLetters(subscriber, topic, consumer or settings.name)
    finally:
        subscriber.close()


def _redriven_for(settings: Settings, consumer: str, choice: Choice, timeout_s: float) -> list[Redriven]:
    """Give a consumer what it has parked once more."""
    with _reading(settings, consumer) as dead, ExitStack() as stack, progress("redriving") as step:
        names = Names(consumer)
        publisher = cdc_app.letters_publisher(settings, names)
        stack.callback(publisher.close)
        return within(timeout_s, ConsumerRedrive(dead, publisher, names, choice, step, cdc_app.readable(settings)).run)


def _choice(ids: list[str] | None, reason: str | None, topic: str | None, since: str | None, until: str | None) -> Choice:
    since_ms = None if since is None else milliseconds(since)
    until_ms = None if until is None else milliseconds(until, "--until")
    return Choice(frozenset(ids or ()), reason, topic, since_ms, until_ms)


def _tell(done: list[Redriven], *, as_json: bool, readable: bool) -> None:
    late = [each.letter.id or each.letter.sequence for each in done if each.late]
    if late:
        more = f" and {len(late) - SHOWN} more" if len(late) > SHOWN else ""
        say(f"warning: newer events of their keys have passed before {', '.join(late[:SHOWN])}{more}: consumers see an older state last")
    if done and not readable:
        say("whether newer events of their keys have passed before is not known: rabbitmq.audit, which would keep them, is not set")
    topics: dict[str, int] = {}
    for each in done:
        topics[each.topic] = topics.get(each.topic, 0) + 1
    if as_json:
        names = [each.letter.id or each.letter.sequence for each in done]
        print_json({"redriven": len(done), "ids": names, "topics": topics, "late": late})
    elif done:
        console().print(table(("topic", "redriven"), topics.items()))
    else:
        console().print("no open dead letter fits: nothing was published")


def _parked_before(settings: Settings, names: list[str]) -> set[str]:
    """Return which of these rows are dead letters already: a run that was killed may have parked them."""
    if not names:
        return set()
    with _reading(settings) as dead:
        found = dead.letters(Choice(frozenset(names)), lambda _: None)
    return {name for letter in found for name in (letter.id, letter.sequence)} & set(names)


def _tell_parked(watch: Parking, before: set[str], missing: list[str], stopped: StoppedByPolicy | None, *, as_json: bool) -> None:
    """Say what was parked, and at which row the pipeline stops next, as far as that was seen."""
    behind = None if stopped is None else stopped.what
    if as_json:
        parked = [row._asdict() for row in watch.parked]
        print_json({"parked": parked, "before": sorted(before), "missing": missing, "end_lsn": _end(watch), "next": behind})
        return
    if watch.parked:
        console().print(table(("parked", "place", "reason", "why"), watch.parked))
    if before:
        say(f"parked before: {', '.join(sorted(before))}")
    if behind is not None and not missing:
        say(f"the pipeline stops next at the {behind}")


def _listed(letter: Letter) -> dict[str, Any]:
    document = {name: value for name, value in letter._asdict().items() if name not in ("partition", "offset", "timestamp_ms")}
    return {**document, "path": letter.path, "committed": _time(letter)}


def _time(letter: Letter) -> str:
    return datetime.fromtimestamp(letter.timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _end(watch: Parking) -> str | None:
    return None if watch.position is None else str(watch.position.end_lsn)
