"""`cdc init`: create what the pipeline needs, or print it for a DBA."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from cdc import app
from cdc.audit.init import Plan
from cdc.audit.init import init as make
from cdc.avro import folder
from cdc.cli.import_debezium import connector_of
from cdc.cli.options import TIMEOUT_S, Config, Json, Sets, Timeout
from cdc.cli.output import print_json, progress, say
from cdc.cli.patience import within
from cdc.cli.shards import Shards, each
from cdc.errors import ConfigurationError
from cdc.outbox.table import create_sql
from cdc.postgres.partitions import keep_rows_if_partitioned_sql
from cdc.postgres.slot import publication_sql, role_sql
from cdc.settings import Settings


def init(
    config: Config = None,
    sets: Sets = None,
    create_table: Annotated[bool, typer.Option("--create-table", help="Make the outbox table if it does not exist.")] = False,
    existing: Annotated[
        str | None,
        typer.Option(metavar="publish|skip", help="What becomes of the rows that the table has: they are published, or left out."),
    ] = None,
    where: Annotated[
        str | None, typer.Option("--where", metavar="SQL", help="With --existing publish: only rows that fulfil this condition.")
    ] = None,
    from_debezium: Annotated[
        Path | None,
        typer.Option("--from-debezium", metavar="FILE", help="Take over the slot of this stopped connector (its JSON)."),
    ] = None,
    offsets_topic: Annotated[
        str | None, typer.Option("--offsets-topic", metavar="TOPIC", help="The worker's offset.storage.topic; else connect-offsets.")
    ] = None,
    sql: Annotated[bool, typer.Option("--sql", help="Print what a DBA must run, and do nothing.")] = False,
    timeout_s: Timeout = TIMEOUT_S,
    shards: Shards = None,
    instead_of: Annotated[
        int | None,
        typer.Option("--instead-of", metavar="N", min=0, help="With --shards: take over from N running shards, from one pipeline with 0."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Create what the pipeline needs: role, publication, slot, topics, genesis position. Safe to run again."""
    if shards is not None and from_debezium is not None:
        raise ConfigurationError("a slot that is taken over cannot be divided into shards", "leave --shards out")
    if instead_of is not None:
        _instead_of(each(config, sets, instead_of or None), each(config, sets, shards), as_json=as_json)
        return
    for settings in each(config, sets, shards):
        _init(settings, create_table, existing, where, from_debezium, offsets_topic, sql, timeout_s, as_json)


def _init(
    settings: Settings,
    create_table: bool,
    existing: str | None,
    where: str | None,
    from_debezium: Path | None,
    offsets_topic: str | None,
    sql: bool,
    timeout_s: float,
    as_json: bool,
) -> None:
    if existing not in (None, "skip", "publish"):
        msg = f"--existing {existing!r} is not known"
        raise ConfigurationError(msg, "use --existing publish or --existing skip")
    if where is not None and existing != "publish":
        msg = "--where chooses among rows that are published"
        raise ConfigurationError(msg, "add --existing publish, or leave it out")
    plan = plan_of(settings, create_table=create_table, skip=existing == "skip")
    if existing == "publish":
        plan = replace(plan, existing="publish", where=where, encoder=folder.load(Path(settings.schemas.folder)).encoder)
    if sql:
        print(_sql(settings, plan))
        return
    with ExitStack() as opened:
        if from_debezium is not None:
            if existing is not None:
                raise ConfigurationError("a slot that is taken over has no rows from before", "leave --existing out")
            connector = connector_of(from_debezium)
            if connector.slot != plan.slot:
                msg = f"the connector reads slot {connector.slot!r}, and postgres.slot is {plan.slot!r}"
                raise ConfigurationError(msg, f'set postgres.slot = "{connector.slot}"')
            subscriber = opened.enter_context(closing(app.kafka_subscriber(settings)))
            plan = replace(plan, take_over=app.takeover(settings, subscriber, connector, offsets_topic).begin)
        publisher = opened.enter_context(closing(app.publisher(settings)))
        with progress("publishing rows") as step:
            position = within(timeout_s, lambda: make(plan, publisher, time.time_ns() // 1000, say, step))
    if as_json:
        print_json({"pipeline": settings.name, "slot": plan.slot, "publication": plan.publication, "end_lsn": str(position.end_lsn)})


def _instead_of(old: list[Settings], new: list[Settings], *, as_json: bool) -> None:
    """Let other shards begin where these end."""
    from cdc.audit.reshard import Shard, reshard  # noqa: PLC0415 - only here

    if {each.name for each in old} & {each.name for each in new}:
        msg = f"these are the shards that are there already: {', '.join(each.name for each in new)}"
        raise ConfigurationError(msg, "name another number with --shards")
    with ExitStack() as opened:
        before, after = (
            [Shard(plan_of(each, create_table=False, skip=True), opened.enter_context(closing(app.publisher(each)))) for each in settings]
            for settings in (old, new)
        )
        start = within(TIMEOUT_S, lambda: reshard(before, after, host=socket.gethostname(), now_us=time.time_ns() // 1000, say=say))
    if as_json:
        print_json({"pipelines": [each.name for each in new], "end_lsn": str(start)})


def plan_of(settings: Settings, *, create_table: bool, skip: bool) -> Plan:
    """Return what init is asked for by the settings and its flags."""
    return Plan(
        pipeline=settings.name,
        slot=settings.postgres.slot,
        publication=settings.postgres.publication,
        table=app.table(settings),
        mapping=app.mapping(settings),
        dsn=app.dsn(settings),
        admin_dsn=(settings.postgres.admin_dsn or settings.postgres.dsn).get_secret_value(),
        application_name=app.application_name(settings),
        create=app.create(settings),
        static_topics=tuple(app.static_topics(settings)),
        create_table=create_table,
        existing="skip" if skip else None,
        deletes_by=None if settings.outbox.retention is None else app.mapping(settings).column("id"),
        policy=app.policy(settings),
        emit=app.emit(settings),
    )


def _sql(settings: Settings, plan: Plan) -> str:
    from psycopg.conninfo import conninfo_to_dict  # noqa: PLC0415 - only here

    target = conninfo_to_dict(app.dsn(settings))
    user = str(target.get("user") or "cdc")
    role = role_sql(user, str(target.get("dbname") or settings.name), plan.table, plan.deletes_by)
    if user == "postgres":
        role = ["-- postgres, the superuser, needs no rights; for production name a role of its own in postgres.dsn, and print this again"]
    lines = [
        "-- postgresql.conf needs wal_level = logical. Run this as the owner of the table, or as a superuser;",
        "-- then `cdc init` as the pipeline's role makes the slot, the topics and the first position.",
        *([create_sql(plan.table, plan.mapping)] if plan.create_table else []),
        *role,
        publication_sql(plan.publication, plan.table),
        keep_rows_if_partitioned_sql(plan.table),
        *(plan.emit.statements() if plan.emit else []),
    ]
    return "\n".join(line if line.startswith("--") else line + ";" for line in lines)
