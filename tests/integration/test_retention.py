"""Old rows go, in the real table beside the real pipeline: never one that is not confirmed, and never in the writers' way."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from cdc.errors import CdcError
from cdc.observe.exposition import Exposition
from cdc.observe.observer import PipelineObserver
from cdc.outbox import retention as module
from cdc.outbox.mapping import OutboxMapping
from cdc.outbox.retention import CONFIRMED_POLL_S, FAILED_S, Report, Retention, retained
from cdc.outbox.table import create_sql
from cdc.postgres.catalog import LiveCatalog
from cdc.postgres.link import PqLink
from cdc.postgres.slot import Part, Table, publication_sql
from tests.integration.test_recover import verified
from tests.pipeline import Pipeline, since, sizes
from tests.waiting import POLL_S, wait_for

pytestmark = pytest.mark.servers

OLD = (
    "INSERT INTO outbox (aggregatetype, aggregateid, type, payload, occurred_at) SELECT 'thing', 'k', 'Thing',"
    " jsonb_build_object('n', n), now() - interval '1 day' FROM generate_series(%s::int, %s::int) n"
)
PARTITIONED = """
CREATE TABLE outbox (
    id uuid DEFAULT gen_random_uuid(), aggregatetype text, aggregateid text, type text, payload jsonb,
    occurred_at timestamptz NOT NULL DEFAULT now()
) PARTITION BY RANGE (occurred_at)"""


@dataclass
class Told:
    """What a cleaner reported."""

    rows: int = 0
    partitions: int = 0
    errors: list[str] = field(default_factory=list)

    def deleted(self, rows: int, partitions: int) -> None:
        self.rows += rows
        self.partitions += partitions

    def retention_failed(self, error: CdcError) -> None:
        self.errors.append(str(error))


def cleaner(pipeline: Pipeline, report: Report | None = None, part: Part | None = None) -> tuple[Retention, Told]:
    """A cleaner of rows older than an hour that thinks it streams."""
    told = Told()
    made = Retention(
        dsn=pipeline.dsn,
        application_name=f"cdc-{pipeline.name}",
        pipeline=pipeline.name,
        slot=pipeline.slot_name,
        table=Table("public", "outbox", part),
        mapping=OutboxMapping(),
        age=timedelta(hours=1),
        active=lambda: True,
        report=report or told,
    )
    return made, told


def old_rows(pipeline: Pipeline) -> int:
    [(count,)] = pipeline.execute("SELECT count(*) FROM outbox WHERE occurred_at < now() - interval '1 hour'")
    return int(count)


@contextlib.contextmanager
def working(*cleaners: Retention) -> Iterator[None]:
    """Let cleaners work, each in a thread of its own."""
    stop = threading.Event()

    def work(each: Retention) -> None:
        while not stop.wait(min(each.step(), POLL_S)):  # its longer rests only spread the load
            pass
        each.close()

    threads = [threading.Thread(target=work, args=(each,)) for each in cleaners]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_the_pipeline_deletes_what_is_old_and_verify_misses_nothing(pipeline: Pipeline) -> None:
    pipeline.set(outbox__retention="1h").init()
    pipeline.execute(OLD, (1, 1_200))
    pipeline.insert(1_201, 1_203)
    assert old_rows(pipeline) == 1_200
    pipeline.started()
    wait_for(lambda: old_rows(pipeline) == 0, 60, "old rows are gone")
    pipeline.wait_numbers(range(1, 1_204))
    assert verified(pipeline) == {"rows": 3, "events": 1_203, "deleted": 1_200}
    assert "cdc_retention_rows_total 1200.0" in pipeline.get("/metrics")[1]
    assert pipeline.status()["retention_error"] is None
    assert pipeline.here("replay", "--key", "k").code == 0, "what is left"
    pipeline.stop()


def test_rows_that_are_not_confirmed_stay_however_old_they_say_they_are(pipeline: Pipeline) -> None:
    pipeline.init()
    pipeline.execute(OLD, (1, 10))
    retention, told = cleaner(pipeline)
    link = PqLink(pipeline.dsn, "holder", 60)
    try:
        for owner in ("nobody", "somebody who confirms nothing"):
            if owner != "nobody":
                link.start(pipeline.slot_name, pipeline.slot_name, messages=False)
            for _ in range(10):
                retention.step()
            assert (old_rows(pipeline), told.errors) == (10, []), owner
    finally:
        link.close()
    pipeline.started()
    with working(retention):
        wait_for(lambda: told.rows == 10, 30)
    pipeline.wait_numbers(range(1, 11))


@sizes(3_000, 500_000)
def test_field_case_73_cleanup_does_not_block_writers(pipeline: Pipeline, size: int) -> None:
    pipeline.init()
    pipeline.execute(OLD, (1, size))
    pipeline.started()
    pipeline.wait_confirmed(deadline_s=120)
    (first, one), (second, two) = cleaner(pipeline), cleaner(pipeline)
    stop, written = threading.Event(), [0] * 8

    def write(number: int) -> None:
        with psycopg.connect(pipeline.dsn, autocommit=True) as connection:
            while not stop.is_set():
                pipeline.insert(size + 1, key=f"w{number}", on=connection)
                written[number] += 1

    writers = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    with psycopg.connect(pipeline.dsn) as holder:
        held = holder.execute("SELECT id FROM outbox WHERE occurred_at < now() - interval '1 hour' LIMIT 100 FOR UPDATE").fetchall()
        for writer in writers:
            writer.start()
        try:
            with working(first, second):
                wait_for(lambda: old_rows(pipeline) == len(held) or one.errors or two.errors, 600, "all but the locked rows are gone")
        finally:
            stop.set()
            for writer in writers:
                writer.join()
        holder.rollback()
    assert one.rows + two.rows == size - len(held)
    assert one.errors == two.errors == []
    [(deadlocks,)] = pipeline.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
    assert deadlocks == 0
    with working(first):
        wait_for(lambda: old_rows(pipeline) == 0, 60, "the next sweep takes them")
    pipeline.wait_confirmed()
    assert verified(pipeline) == {"rows": sum(written), "events": size + sum(written), "deleted": size}


@since(15)
def test_a_shard_deletes_its_own_rows_alone(database: str, tmp_path: Path, unique: str) -> None:
    with Pipeline(tmp_path, unique, database, "") as pipeline:
        pipeline.execute(create_sql(Table("public", "outbox"), OutboxMapping()))
        pipeline.execute(OLD.replace("'k'", "'k' || n"), (1, 200))
        part = Part("aggregateid", 0, 2)
        pipeline.execute(publication_sql("shard", Table("public", "outbox", part)))
        pipeline.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (pipeline.slot_name,))
        rows = sql.SQL("SELECT count(*) FILTER (WHERE {0}), count(*) FILTER (WHERE NOT {0}) FROM outbox").format(part.condition)
        [(ours, theirs)] = pipeline.connection.execute(rows).fetchall()
        assert min(ours, theirs) > 0
        retention, told = cleaner(pipeline, part=part)
        wait_for(lambda: retention.step() == CONFIRMED_POLL_S, 30, "it has chosen, and waits for the slot")
        pipeline.execute("SELECT pg_logical_emit_message(true, '', '')")  # its commit writes the log down, whatever else is in it
        pipeline.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", (pipeline.slot_name,))
        link = PqLink(database, "holder", 60)
        link.start(pipeline.slot_name, "shard", messages=False)
        try:
            wait_for(lambda: retention.step() is not None and told.rows == ours, 30)
            for _ in range(10):
                retention.step()
        finally:
            retention.close()
            link.close()
        assert pipeline.connection.execute(rows).fetchall() == [(0, theirs)]
        assert (told.rows, told.errors) == (ours, [])


def test_a_lock_on_the_table_is_not_waited_for(database: str, tmp_path: Path, unique: str) -> None:
    with Pipeline(tmp_path, unique, database, "") as pipeline, psycopg.connect(database) as owner:
        pipeline.execute(create_sql(Table("public", "outbox"), OutboxMapping()))
        pipeline.execute(OLD, (1, 3))
        retention, told = cleaner(pipeline)
        owner.execute("LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE")
        wait_for(lambda: retention.step() == FAILED_S, 30)
        assert "lock timeout" in told.errors[0]
        owner.rollback()
        wait_for(lambda: retention.step() == CONFIRMED_POLL_S, 30, "it goes on, to wait for the slot")
        retention.close()


def test_old_partitions_are_dropped_whole_once_they_are_confirmed(pipeline: Pipeline) -> None:
    pipeline.execute(PARTITIONED)
    for name, first, last in (("before", "-2 days", "-12 hours"), ("now", "-12 hours", "1 day")):
        bounds = pipeline.execute("SELECT (now() + %s::interval)::text, (now() + %s::interval)::text", (first, last))[0]
        pipeline.execute(f"CREATE TABLE outbox_{name} PARTITION OF outbox FOR VALUES FROM ('{bounds[0]}') TO ('{bounds[1]}')")
    pipeline.init(create_table=False)
    pipeline.execute(OLD, (1, 50))
    pipeline.insert(51, 52)
    retention, told = cleaner(pipeline)
    for _ in range(10):
        retention.step()
    [(attached,)] = pipeline.execute("SELECT count(*) FROM pg_inherits WHERE inhparent = 'outbox'::regclass")
    assert attached == 1, "it is out of the way"
    assert pipeline.execute("SELECT count(*) FROM outbox_before") == [(50,)], "and waits until it is confirmed"
    retention.close()
    pipeline.started()
    with working(retention):
        wait_for(lambda: told.partitions == 1, 30)
    assert pipeline.execute("SELECT to_regclass('outbox_before')") == [(None,)]
    pipeline.wait_numbers(range(1, 53))
    assert told.errors == []
    assert verified(pipeline) == {"rows": 2, "events": 52, "deleted": 50}


def test_a_detachment_that_was_cut_short_is_finished(database: str, tmp_path: Path, unique: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STATEMENT_TIMEOUT", "200ms")
    old = "CREATE TABLE outbox_{0} PARTITION OF outbox FOR VALUES FROM ('2000-0{0}-01') TO ('2000-0{0}-02')"
    with Pipeline(tmp_path, unique, database, "") as pipeline, psycopg.connect(database) as reader:
        pipeline.execute(PARTITIONED)
        pipeline.execute(old.format(1))
        retention, told = cleaner(pipeline)
        reader.execute("SELECT FROM outbox")
        assert retention.step() == FAILED_S
        assert pipeline.execute("SELECT inhdetachpending FROM pg_inherits WHERE inhparent = 'outbox'::regclass") == [(True,)]
        reader.rollback()
        wait_for(lambda: retention.step() == CONFIRMED_POLL_S, 30, "it waits for the slot, before it drops it")
        assert pipeline.execute("SELECT FROM pg_inherits WHERE inhparent = 'outbox'::regclass") == []

        pipeline.execute("DROP TABLE outbox_1")
        pipeline.execute(old.format(2))
        pipeline.execute("CREATE TABLE outbox_rest PARTITION OF outbox DEFAULT")
        retention.close()
        wait_for(lambda: retention.step() == CONFIRMED_POLL_S, 30)
        assert pipeline.execute("SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'outbox'::regclass") == [
            ("outbox_rest",)
        ]
        assert len(told.errors) == 1
        retention.close()


def test_partitions_of_another_owner_are_emptied_by_rights_on_the_table_alone(pipeline: Pipeline) -> None:
    role = f"{pipeline.name}_role"
    pipeline.execute(PARTITIONED)
    pipeline.execute("CREATE TABLE outbox_all PARTITION OF outbox DEFAULT")
    pipeline.execute("CREATE TABLE outbox_old PARTITION OF outbox FOR VALUES FROM (MINVALUE) TO (now() - interval '12 hours')")
    admin = pipeline.dsn
    pipeline.set(postgres__admin_dsn=admin, postgres__dsn=make_conninfo(admin, user=role, password="secret"), outbox__retention="1h")
    try:
        pipeline.init(create_table=False)
        pipeline.execute(OLD, (1, 700))
        pipeline.insert(701)
        pipeline.started()
        wait_for(lambda: old_rows(pipeline) == 0, 60)
        assert pipeline.execute("SELECT count(*) FROM outbox") == [(1,)]
        checked = pipeline.here("check", "--json")
        assert "old rows are told by occurred_at, and may be deleted" in checked.out
        pipeline.execute(f"REVOKE DELETE ON outbox FROM {role}")
        pipeline.execute(OLD, (702, 703))
        refused = pipeline.here("check", "--json")
        assert refused.code == 8
        assert "outbox.retention needs the right to DELETE" in refused.out
        assert f'GRANT DELETE, UPDATE ("id") ON "public"."outbox" TO "{role}"' in pipeline.here("init", "--sql").out
        pipeline.stop()
    finally:
        for process in pipeline.processes:
            pipeline.kill(process)
        pipeline.execute(f"DROP OWNED BY {role}")
        pipeline.execute(f"DROP ROLE {role}")


def test_a_failure_is_shown_until_it_is_over(database: str, tmp_path: Path, unique: str) -> None:
    with Pipeline(tmp_path, unique, database, "") as pipeline:
        pipeline.execute(PARTITIONED.partition("    occurred_at")[0].rstrip(", \n") + ")")
        observer = PipelineObserver(unique)
        retention, _ = cleaner(pipeline, report=observer)
        assert retention.step() == FAILED_S
        assert "does not tell when a row was written" in observer.health.document()["retention_error"]
        assert b"cdc_retention_failures_total 1.0" in Exposition(observer.health, observer.metrics).text()
        observer.deleted(3, 1)
        assert observer.health.document()["retention_error"] is None
        text = Exposition(observer.health, observer.metrics).text()
        assert b"cdc_retention_rows_total 3.0" in text
        assert b"cdc_retention_partitions_total 1.0" in text


def test_how_age_is_told(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE outbox (id uuid, at date, text_at text, payload jsonb)")
    catalog = LiveCatalog(database, "tests")
    try:
        assert retained(catalog, Table("public", "outbox"), OutboxMapping({"occurred_at": "at"})).column == "at"
        for elsewhere in ("text_at", "payload.at"):
            with pytest.raises(CdcError, match="track_commit_timestamp"):
                retained(catalog, Table("public", "outbox"), OutboxMapping({"occurred_at": elsewhere}))
    finally:
        catalog.close()
