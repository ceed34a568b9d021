"""Genesis: the publication, the slot and the first position, made once and in an order that a crash cannot spoil.

A *pending* record comes first, so that a slot without a position can only be somebody else's; then the publication, the slot
(with the snapshot that tells which rows are not in its stream), and the genesis position. A crash in between leaves the
pending record, and the next init begins again. Once a position exists init fences nobody and creates nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from cdc.errors import ConfigurationError, ContinuityError, KafkaRefused, PostgresRefused
from cdc.kafka.client import nobody_waits
from cdc.kafka.publisher import KafkaPublisher
from cdc.kafka.topics import Create
from cdc.outbox.mapping import OutboxMapping
from cdc.outbox.publication import check_outbox
from cdc.outbox.table import check_columns, create_sql
from cdc.pipeline import continuity
from cdc.position import Existing, Fingerprint, Lsn, Position, time_text
from cdc.postgres import partitions
from cdc.postgres.catalog import LiveCatalog
from cdc.postgres.link import PqLink
from cdc.postgres.server import Server
from cdc.postgres.slot import Administration, NewSlot, Table

Say = Callable[[str], None]

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
    existing: Literal["skip"] | None


@dataclass(frozen=True, slots=True)
class _Ends:
    """Both ends, and whom to tell what was done."""

    plan: Plan
    administration: Administration
    catalog: LiveCatalog
    publisher: KafkaPublisher
    say: Say


def init(plan: Plan, publisher: KafkaPublisher, now_us: int, say: Say) -> Position:
    """Create what is missing and return the position; raises what `cdc run` would raise for what is wrong."""
    administration = Administration(plan.admin_dsn, plan.dsn, plan.application_name)
    catalog = LiveCatalog(plan.admin_dsn, plan.application_name)
    ends = _Ends(plan, administration, catalog, publisher, say)
    try:
        check_server(catalog)
        _ensure_table(ends)
        if administration.ensure_role(plan.dsn, plan.table):
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


def check_server(catalog: LiveCatalog) -> None:
    """Refuse a server on which no slot can be made; raises PostgresRefused."""
    if int(catalog.setting("server_version_num")) < OLDEST_SERVER:
        raise PostgresRefused(f"the server is PostgreSQL {catalog.setting('server_version')}", "use PostgreSQL 14 or newer")
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


def _ensure_topics(ends: _Ends) -> None:
    positions, create = ends.publisher.positions, ends.plan.create
    if not positions.exists(nobody_waits):
        if create is None:
            msg = f"the position topic {positions.topic!r} does not exist"
            raise KafkaRefused(msg, "let init make it (topics.create), or make it yourself: one partition, cleanup.policy=compact")
        positions.create(create.replication_factor, create.min_insync_replicas, nobody_waits)
        ends.say(f"created topic {positions.topic}")
    positions.verify(nobody_waits)
    ends.publisher.require(ends.plan.static_topics, nobody_waits)


def _genesis(ends: _Ends, pending: Position | None, cluster: str, now_us: int) -> Position:
    plan, publisher, administration = ends.plan, ends.publisher, ends.administration
    slot = ends.catalog.slot(plan.slot)
    if slot is not None and pending is None:
        msg = f"slot {plan.slot!r} exists but the position topic holds no position of pipeline {plan.pipeline!r}"
        raise ContinuityError(msg, "point to the right Kafka and position topic, or drop the slot if it is nobody's")
    check_outbox(ends.catalog, plan.publication, plan.table, plan.mapping)
    if plan.existing is None:
        _refuse_rows(ends)
    position = _pending(plan, _identify(ends), cluster, now_us)
    publisher.recover(nobody_waits)
    publisher.commit(position, nobody_waits)
    if slot is not None:
        administration.drop_slot(plan.slot)
    if administration.ensure_publication(plan.publication, plan.table):
        ends.say(f"created publication {plan.publication!r} for inserts into {plan.table}")
    ends.say(f"creating slot {plan.slot!r}; it waits for transactions that are open now")
    made = administration.create_slot(plan.slot, plan.table)
    if made.rows_before and plan.existing is None:
        administration.drop_slot(plan.slot)
        _refuse_rows(ends)
    position = _first_position(plan, ends.catalog, position, made)
    publisher.commit(position, nobody_waits)
    ends.say(f"created slot {plan.slot!r}; pipeline {plan.pipeline!r} begins at {position.end_lsn}")
    return position


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
        message_prefix=None,
        existing=Existing("none", ""),
        pending=time_text(now_us),
    )


def _first_position(plan: Plan, catalog: LiveCatalog, pending: Position, made: NewSlot) -> Position:
    fingerprint = catalog.publication(plan.publication, made.consistent_point)
    if fingerprint is None:
        raise PostgresRefused(f"publication {plan.publication!r} was dropped meanwhile", "run `cdc init` again")
    return replace(
        pending,
        publication_fingerprint=fingerprint,
        end_lsn=made.consistent_point,
        existing=Existing("skip" if made.rows_before else "none", made.snapshot),
        pending=None,
    )


def _refuse_rows(ends: _Ends) -> None:
    plan = ends.plan
    [(rows,)] = ends.administration.execute(f"SELECT EXISTS (SELECT FROM {plan.table})")  # noqa: S608 - quoted by Table
    if rows:
        msg = f"table {plan.table} has rows that the slot will not stream"
        raise ConfigurationError(msg, "say what becomes of them: cdc init --existing skip")


def _identify(ends: _Ends) -> Server:
    plan = ends.plan
    link = PqLink(plan.dsn, plan.application_name, IDENTIFY_TIMEOUT_S)
    try:
        system_id, history, _ = link.identify()
        return ends.catalog.server(plan.slot, plan.publication, system_id, history, link.backend_pid)
    finally:
        link.close()
