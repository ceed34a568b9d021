"""Genesis: the publication, the slot and the first position, made once and in an order that a crash cannot spoil.

A *pending* record comes first, so that a slot without a position can only be somebody else's; then the publication, the slot
(with the snapshot that tells which rows are not in its stream), and the genesis position, in one Kafka transaction with those
rows if they are to be published. A crash in between leaves the pending record, and the next init begins again. Once a position
exists init fences nobody and creates nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from psycopg import sql

from cdc.audit.outgoing import Outgoing, before, nobody_looks
from cdc.audit.table_rows import View, condition, looking, table_rows
from cdc.errors import CdcError, ConfigurationError, ContinuityError, PostgresRefused, SinkRefused, TransactionTimedOut
from cdc.kafka.topics import Create
from cdc.outbox.emit import FUNCTIONS, SCHEMA, Emit
from cdc.outbox.mapping import OutboxMapping
from cdc.outbox.publication import check_outbox
from cdc.outbox.replay import Encoders
from cdc.outbox.router import Router
from cdc.outbox.table import check_columns, create_sql
from cdc.pipeline import continuity
from cdc.pipeline.parking import Policy
from cdc.pipeline.ports import Sink
from cdc.position import Existing, Fingerprint, Lsn, Position, time_text
from cdc.postgres import partitions
from cdc.postgres.catalog import LiveCatalog
from cdc.postgres.link import PqLink
from cdc.postgres.server import Server
from cdc.postgres.slot import PARTS_SINCE, Administration, Table
from cdc.resilience.call import nobody_waits

Say = Callable[[str], None]
TakeOver = Callable[[Sink, Position, Callable[[], object], Say], Position]
"""Begins where somebody else's slot stands: gets the draft of the first position and what makes the publication, commits it."""

Progress = Callable[[float], object]

ABORT_S = 5.0
"""How long leaving may take, so that readers need not wait for the timeout of an open Kafka transaction."""

OLDEST_SERVER = 140_000
"""PostgreSQL 14: the first whose pgoutput has the options that we use."""


IDENTIFY_TIMEOUT_S = 60.0
"""wal_sender_timeout of the short connection that asks who the server is; it never streams."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What init is asked for."""

    pipeline: str
    slot: str
    publication: str
    table: Table
    mapping: OutboxMapping
    dsn: str
    admin_dsn: str
    application_name: str
    create: Create | None
    static_topics: tuple[str, ...]
    create_table: bool
    existing: Literal["skip", "publish"] | None
    deletes_by: str | None = None
    where: str | None = None
    encoder: Encoders | None = None
    policy: Policy | None = None
    emit: Emit | None = None
    take_over: TakeOver | None = None


@dataclass(frozen=True, slots=True)
class _Ends:
    """Both ends, and whom to tell what was done."""

    plan: Plan
    administration: Administration
    catalog: LiveCatalog
    publisher: Sink
    say: Say
    progress: Progress


def init(plan: Plan, publisher: Sink, now_us: int, say: Say, progress: Progress = nobody_looks) -> Position:
    """Create what is missing and return the position; raises what `cdc run` would raise for what is wrong."""
    administration = Administration(plan.admin_dsn, plan.dsn, plan.application_name)
    catalog = LiveCatalog(plan.admin_dsn, plan.application_name)
    ends = _Ends(plan, administration, catalog, publisher, say, progress)
    try:
        check_server(catalog, plan.table)
        _ensure_table(ends)
        _ensure_emit(ends)
        if administration.ensure_role(plan.dsn, plan.table, plan.deletes_by):
            say("created the pipeline's role")
        _ensure_topics(ends)
        position, cluster = publisher.peek()
        if position is None or position.pending is not None:
            return _genesis(ends, position, cluster, now_us)
        continuity.first_look(continuity.Evidence(plan.pipeline, plan.slot, _identify(ends), cluster, position))
        say(f"pipeline {plan.pipeline!r} exists already, at {position.end_lsn}; nothing was changed")
        return position
    finally:
        administration.close()
        catalog.close()


def check_server(catalog: LiveCatalog, table: Table | None = None) -> None:
    """Refuse a server on which no slot can be made, or no shard of the table; raises PostgresRefused."""
    version = int(catalog.setting("server_version_num"))
    if version < OLDEST_SERVER:
        raise PostgresRefused(f"the server is PostgreSQL {catalog.setting('server_version')}", "use PostgreSQL 14 or newer")
    if table is not None and table.part is not None and version < PARTS_SINCE:
        msg = f"the server is PostgreSQL {catalog.setting('server_version')}, whose publications cannot choose the rows of a shard"
        raise PostgresRefused(msg, "use PostgreSQL 15 or newer, or one pipeline without shards")
    if catalog.setting("wal_level") != "logical":
        msg = f"wal_level is {catalog.setting('wal_level')!r}: the log holds no rows"
        raise PostgresRefused(msg, "set wal_level = logical in postgresql.conf and restart PostgreSQL")


def _ensure_table(ends: _Ends) -> None:
    plan = ends.plan
    columns = ends.catalog.columns(plan.table.schema, plan.table.name)
    if columns is None and plan.create_table:
        ends.administration.execute(create_sql(plan.table, plan.mapping))
        ends.say(f"created table {plan.table}")
        columns = ends.catalog.columns(plan.table.schema, plan.table.name)
    check_columns(plan.table, columns, plan.mapping)
    [(partitioned, stay)] = ends.catalog.query(partitions.STATE, (partitions.NAME, plan.table.schema, plan.table.name))
    if partitioned and not stay:
        for statement in partitions.keep_rows_sql(plan.table):
            ends.administration.execute(statement)
        ends.say(f"created trigger {partitions.NAME!r}: an UPDATE may not move rows of {plan.table} to another partition")


def _ensure_emit(ends: _Ends) -> None:
    """Make the writers' function, or say why not: the pipeline works without it, so nothing of it stops the pipeline."""
    emit, administration = ends.plan.emit, ends.administration
    if emit is None:
        return
    verdict, replaced = emit.judge(ends.catalog.query(FUNCTIONS, (emit.schema, emit.name)))
    if verdict == "foreign":
        ends.say(f"function {emit} was made by somebody else and was left as it is: name another one in outbox.emit")
    if verdict in ("same", "foreign"):
        return
    [(there,)] = ends.catalog.query(SCHEMA, (emit.schema,))
    statements = [*(f"DROP FUNCTION {each}" for each in replaced), *emit.statements(make_schema=not there)]
    try:
        administration.execute(";\n".join(statements))  # as one, so that the function is never missing
    except PostgresRefused as refused:
        ends.say(f'function {emit} was not made: {refused.what}; `cdc init --sql` prints it for a DBA, outbox.emit = "off" does without')
    else:
        ends.say(f"{'replaced' if replaced else 'created'} function {emit} for writers in other languages")


def _ensure_topics(ends: _Ends) -> None:
    positions, create = ends.publisher.positions, ends.plan.create
    if not positions.exists(nobody_waits):
        if create is None:
            msg = f"the position topic {positions.topic!r} does not exist"
            raise SinkRefused(msg, "let init make it (topics.create), or make it yourself: one partition, cleanup.policy=compact")
        positions.create(create.replication_factor, create.min_insync_replicas, nobody_waits)
        ends.say(f"created {positions.topic}, which keeps the position")
    positions.verify(nobody_waits)
    ends.publisher.require(ends.plan.static_topics, nobody_waits)


def _genesis(ends: _Ends, pending: Position | None, cluster: str, now_us: int) -> Position:
    plan, publisher, administration = ends.plan, ends.publisher, ends.administration
    slot = ends.catalog.slot(plan.slot)
    if slot is not None and pending is None and plan.take_over is None:
        msg = f"slot {plan.slot!r} exists but the position topic holds no position of pipeline {plan.pipeline!r}"
        fix = "point to the right Kafka and position topic; if Kafka has lost it: `cdc recover --adopt`; if the slot is nobody's, drop it"
        raise ContinuityError(msg, fix)
    check_outbox(ends.catalog, plan.publication, plan.table, plan.mapping)
    if plan.take_over is not None:
        return plan.take_over(publisher, _pending(plan, _identify(ends), cluster, now_us), lambda: _ensure_publication(ends), ends.say)
    if plan.existing is None:
        _refuse_rows(ends)
    position = _pending(plan, _identify(ends), cluster, now_us)
    publisher.recover(nobody_waits, patient=plan.existing == "publish")
    publisher.commit(position, nobody_waits)
    if slot is not None:
        administration.drop_slot(plan.slot)
    _ensure_publication(ends)
    ends.say(f"creating slot {plan.slot!r}; it waits for transactions that are open now")
    try:
        position = _begin(ends, position)
    except CdcError:
        publisher.abort(ABORT_S)
        administration.drop_slot(plan.slot)  # the next init makes another; until then it would keep the log for nothing
        raise
    ends.say(f"created slot {plan.slot!r}; pipeline {plan.pipeline!r} begins at {position.end_lsn}")
    return position


def _ensure_publication(ends: _Ends) -> None:
    plan = ends.plan
    if ends.administration.ensure_publication(plan.publication, plan.table):
        ends.say(f"created publication {plan.publication!r} for inserts into {plan.table}")


def _begin(ends: _Ends, pending: Position) -> Position:
    """Make the slot, and commit the first position with what is published of the rows that its snapshot shows."""
    plan, publisher = ends.plan, ends.publisher
    with (
        ends.administration.new_slot(plan.slot) as (consistent_point, exported),
        looking(plan.admin_dsn, plan.application_name, exported) as view,
    ):
        rows = view.connection.execute(sql.SQL("SELECT EXISTS (SELECT FROM {})").format(plan.table.identifier)).fetchone() == (True,)
        if rows and plan.existing is None:
            raise _rows_there(plan)
        position = _first_position(plan, ends.catalog, pending, consistent_point, view.snapshot, rows=rows)
        if rows and plan.existing == "publish":
            _publish(ends, view, consistent_point)
        publisher.commit(position, nobody_waits)
        return position


def _publish(ends: _Ends, view: View, consistent_point: Lsn) -> None:
    """Produce the rows of the slot's snapshot, into the Kafka transaction that the first position ends: all of them, or none."""
    plan = ends.plan
    assert plan.encoder is not None, "whoever asks for publish brings the schemas"
    outgoing = Outgoing(ends.publisher, Router(plan.mapping, plan.encoder, 0), 0, plan.policy)
    rows = table_rows(ends.catalog, plan.table, plan.mapping)
    where = None if plan.where is None else condition(plan.where)
    try:
        outgoing.publish((row.row for row in rows.read(view, before(consistent_point), where)), ends.progress)
    except TransactionTimedOut as error:
        msg = f"{error.rows} rows so far took {error.seconds:.1f} s, longer than one Kafka transaction of {error.timeout_s:.0f} s"
        raise SinkRefused(msg, f"{error.fix}, or publish fewer rows: --where") from error
    ends.say(f"publishing {outgoing.events} rows that were there before, and {outgoing.dead_letters} as dead letters")


def _pending(plan: Plan, server: Server, cluster: str, now_us: int) -> Position:
    return Position(
        pipeline=plan.pipeline,
        generation=0,
        system_id=server.system_id,
        timeline_history=server.timeline_history,
        slot=plan.slot,
        publication_fingerprint=Fingerprint(0, 0, (), Lsn(0)),
        kafka_cluster_id=cluster,
        end_lsn=Lsn(0),
        commit_time_us=now_us,
        witness="none",
        message_prefix=plan.mapping.message_prefix,
        existing=Existing("none", ""),
        pending=time_text(now_us),
    )


def _first_position(  # noqa: PLR0913 - what init and the new slot know
    plan: Plan, catalog: LiveCatalog, pending: Position, consistent_point: Lsn, snapshot: str, *, rows: bool
) -> Position:
    fingerprint = catalog.publication(plan.publication, consistent_point)
    if fingerprint is None:
        raise PostgresRefused(f"publication {plan.publication!r} was dropped meanwhile", "run `cdc init` again")
    # What --where left out was skipped: a row of the snapshot then needs no record.
    mode: Literal["none", "skip", "publish"] = "publish" if plan.existing == "publish" and plan.where is None else "skip"
    return replace(
        pending,
        publication_fingerprint=fingerprint,
        end_lsn=consistent_point,
        existing=Existing(mode if rows else "none", snapshot),
        pending=None,
    )


def _refuse_rows(ends: _Ends) -> None:
    plan = ends.plan
    [(rows,)] = ends.administration.execute(f"SELECT EXISTS (SELECT FROM {plan.table})")  # noqa: S608 - quoted by Table
    if rows:
        raise _rows_there(plan)


def _rows_there(plan: Plan) -> ConfigurationError:
    msg = f"table {plan.table} has rows that the slot will not stream"
    return ConfigurationError(msg, "say what becomes of them: cdc init --existing publish, or --existing skip")


def _identify(ends: _Ends) -> Server:
    plan = ends.plan
    link = PqLink(plan.dsn, plan.application_name, IDENTIFY_TIMEOUT_S)
    try:
        system_id, history, _ = link.identify()
        return ends.catalog.server(plan.slot, plan.publication, system_id, history, link.backend_pid)
    finally:
        link.close()
