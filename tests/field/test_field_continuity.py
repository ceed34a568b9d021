"""Field cases 13, 22, 24, 25, 52, 56, 58, 60, 61, 135: slots that are busy, lost or remade, links that break, publications."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from cdc.devstack.postgres import PostgresServer
from cdc.devstack.process import LOOPBACK
from tests.conftest import Pipelines, drop_database
from tests.inside import refusal, streaming
from tests.pipeline import Pipeline, follow, since, sizes
from tests.proxy import Proxy
from tests.waiting import wait_for

pytestmark = pytest.mark.servers

PUBLICATION = "WITH (publish = 'insert', publish_via_partition_root = true)"
TABLE = "id bigserial PRIMARY KEY, aggregatetype text, aggregateid text, type text, payload jsonb"


@pytest.fixture(params=[15, 18])
def pipeline_of(request: pytest.FixtureRequest, pipelines: Pipelines, unique: str, kafka: str) -> Iterator[Pipeline]:
    """A pipeline on PostgreSQL 15, and one on the shared server."""
    dsn = request.getfixturevalue("postgres15").dsn() if request.param == 15 else request.getfixturevalue("postgres_dsn")
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(unique)))
        pipeline = pipelines(make_conninfo(dsn, dbname=unique), kafka)
        yield pipeline
        for process in pipeline.processes:
            pipeline.kill(process)
        pipeline.hang_up()
        drop_database(admin, unique)


def count_slots(pipeline: Pipeline) -> int:
    [(count,)] = pipeline.execute("SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s", (pipeline.slot_name,))
    return int(count)


def verified(pipeline: Pipeline) -> dict[str, int]:
    answer = pipeline.here("verify", "--json")
    document: dict[str, int] = json.loads(answer.out.splitlines()[-1])
    assert answer.code == 0, document
    return document


# 13


@sizes("2s", "10s")
def test_field_case_13_a_restart_meets_a_slot_that_is_active(pipeline: Pipeline, size: str) -> None:
    """The host vanished without a word: its walsender holds the slot until it gives up, and nobody ends it before."""
    pipeline.set(postgres__status_interval=size)
    pipeline.init()
    with Proxy(pipeline.connection.info.port) as proxy:
        pipeline.set(postgres__dsn=make_conninfo(pipeline.dsn, host=LOOPBACK, port=str(proxy.port)))
        first = pipeline.started()
        pipeline.insert(1)
        pipeline.wait_numbers([1])
        holder = pipeline.slot().active_pid
        proxy.swallow()
        pipeline.kill(first)
        pipeline.insert(2)
        pipeline.set(postgres__dsn=pipeline.dsn)
        second = pipeline.start()
        wait_for(lambda: pipeline.get("/health/ready")[1].startswith("standby"), 30, "it waits")
        assert pipeline.slot_name in pipeline.get("/health/ready")[1]
        assert str(holder) in pipeline.get("/health/ready")[1]
        pipeline.wait_ready(deadline_s=90)
        pipeline.wait_numbers([1, 2])
        log = pipeline.log_of(second)
        assert log.count('"state": "standby"') == 1, "it says so once"
        assert pipeline.slot_name in log
        assert str(holder) in log
        assert "passage failed" not in log
        pipeline.stop()


# 22


@contextmanager
def short_of_room(server: PostgresServer, **settings: str) -> Iterator[None]:
    server.settings.update(settings)
    server.restart()
    try:
        yield
    finally:
        for name in settings:
            del server.settings[name]
        server.restart()


def lose(pipeline: Pipeline) -> None:
    """Write more log than a slot may keep, until the server gives the slot up."""
    pipeline.noise(60)
    pipeline.execute("CHECKPOINT")
    state = "SELECT wal_status FROM pg_replication_slots WHERE slot_name = %s"
    wait_for(lambda: pipeline.execute(state, (pipeline.slot_name,)) == [("lost",)], 30, "the slot is lost")


def test_field_case_22_a_lost_slot(pipelines: Pipelines, spare_postgres: PostgresServer, spare_database: str, kafka: str) -> None:
    """Before the start, while a process stands still, and while a standby waits: each says so once and ends."""
    with short_of_room(spare_postgres, max_slot_wal_keep_size="16MB"):
        pipeline = pipelines(spare_database, kafka)
        pipeline.init()
        pipeline.insert(1)
        process = pipeline.started()
        pipeline.wait_numbers([1])
        waiting = pipeline.start(port=(port := pipeline.another_port()))
        wait_for(lambda: pipeline.get("/health/ready", port)[1].startswith("standby"), 30, "the second one stands by")
        process.send_signal(signal.SIGSTOP)
        lose(pipeline)
        process.send_signal(signal.SIGCONT)
        for each in (process, waiting):
            assert each.wait(60) == 4, pipeline.log_of(each)
            [line] = [line for line in pipeline.log_of(each).splitlines() if line.startswith("cdc: ")]
            assert f"slot '{pipeline.slot_name}' is lost" in line
            assert "`cdc recover`" in line
        refusal(pipeline, f"slot '{pipeline.slot_name}' is lost", "`cdc recover`")
        pipeline.insert(2)
        assert pipeline.here("recover").code == 0
        with streaming(pipeline):
            pipeline.wait_numbers([1, 2])


@since(18)
def test_field_case_22_a_slot_that_was_idle_for_too_long(
    pipelines: Pipelines, spare_postgres: PostgresServer, spare_database: str, kafka: str
) -> None:
    pipeline = pipelines(spare_database, kafka)
    pipeline.init()
    pipeline.hang_up()
    with short_of_room(spare_postgres, idle_replication_slot_timeout="1s"):
        reason = "SELECT invalidation_reason FROM pg_replication_slots WHERE slot_name = %s"

        def invalidated() -> bool:
            pipeline.execute("CHECKPOINT")
            return pipeline.execute(reason, (pipeline.slot_name,)) == [("idle_timeout",)]

        wait_for(invalidated, 30, "the slot is given up")
        refusal(pipeline, "is lost: idle_timeout", "`cdc recover`")
        pipeline.hang_up()


# 24


@pytest.fixture
def guarded(pipelines: Pipelines, spare_postgres: PostgresServer, spare_database: str, unique: str, kafka: str) -> Iterator[Pipeline]:
    """A pipeline whose role has to give its password, in a file of its own."""
    hba = spare_postgres.data / "pg_hba.conf"
    before = hba.read_text()
    hba.write_text(f"host all {unique} 127.0.0.1/32 scram-sha-256\nhost replication {unique} 127.0.0.1/32 scram-sha-256\n{before}")
    pipeline = pipelines(spare_database, kafka)
    pipeline.execute("SELECT pg_reload_conf()")
    pipeline.execute(f"CREATE ROLE {unique} LOGIN REPLICATION PASSWORD 'right'")
    pipeline.set(postgres__dsn=make_conninfo(spare_database, user=unique, password="right"), postgres__admin_dsn=spare_database)
    pipeline.init()
    yield pipeline
    for process in pipeline.processes:
        pipeline.kill(process)
    hba.write_text(before)
    pipeline.execute("SELECT pg_reload_conf()")
    pipeline.execute(f"DROP OWNED BY {unique}")
    pipeline.execute(f"DROP ROLE {unique}")
    pipeline.hang_up()


def end_backends(pipeline: Pipeline) -> None:
    """End all connections of the pipeline's role."""
    pipeline.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", (pipeline.name,))


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ("ALTER ROLE {} NOREPLICATION", "ALTER ROLE .. REPLICATION"),
        ("ALTER ROLE {} PASSWORD 'kept-to-itself'", "correct the user or the password"),
    ],
    ids=["privilege", "password"],
)
def test_field_case_24_what_no_waiting_heals_ends_the_process(guarded: Pipeline, broken: str, words: str) -> None:
    guarded.started()
    guarded.insert(1)
    guarded.wait_numbers([1])
    guarded.execute(broken.format(guarded.name))
    end_backends(guarded)
    answer = guarded.wait_exit()
    assert answer.code == 3, answer.err
    assert words in answer.line
    assert "kept-to-itself" not in answer.err


def test_field_case_24_what_heals_is_survived(guarded: Pipeline, spare_postgres: PostgresServer) -> None:
    """A walsender that was ended, a server that crashed, a connection that was reset in the middle of a message."""
    with Proxy(spare_postgres.port) as proxy:
        dsn = guarded.settings["postgres.dsn"]
        guarded.set(postgres__dsn=make_conninfo(dsn, host=LOOPBACK, port=str(proxy.port)))
        process = guarded.started()

        def broken_by(number: int, how: str) -> None:
            seen = guarded.log.count("passage failed")
            match how:
                case "ended":
                    end_backends(guarded)
                case "crashed":
                    guarded.hang_up()
                    spare_postgres.restart("immediate")
                case _:
                    proxy.reset(3_000)
            guarded.insert(number, number + 99)
            wait_for(lambda: guarded.log.count("passage failed") > seen, 30, f"{how} is seen")
            guarded.wait_ready()
            guarded.wait_numbers(range(100, number + 100))

        for i, how in enumerate(("ended", "crashed", "reset")):
            broken_by(100 + 100 * i, how)
        assert process.poll() is None
        guarded.stop()


# 25


@sizes(6_000, 200_000)
def test_field_case_25_the_server_restarts_in_the_middle_of_a_load(
    pipelines: Pipelines, spare_postgres: PostgresServer, spare_database: str, kafka: str, size: int
) -> None:
    pipeline = pipelines(spare_database, kafka)
    pipeline.init()
    chance = random.Random(25)
    first, transactions = 0, 0
    while first < size:
        last = min(first + chance.randint(1, 500), size) - 1
        pipeline.insert(first, last, key=str(transactions % 7))
        first, transactions = last + 1, transactions + 1
    process = pipeline.started()
    for restart in range(1, 4):
        follow(pipeline.bootstrap, pipeline.topic, restart * size // 5, 120)
        pipeline.hang_up()
        spare_postgres.restart("immediate")
        pipeline.wait_ready()
    pipeline.wait_confirmed(deadline_s=300)
    assert process.poll() is None
    numbers = pipeline.numbers()
    assert sorted(numbers) == list(range(size))
    by_key: dict[bytes | None, list[int]] = {}
    for event in pipeline.events():
        by_key.setdefault(event.key, []).append(event.n)
    assert all(each == sorted(each) for each in by_key.values())


# 52


def test_field_case_52_a_publication_that_was_made_after_the_slot(pipeline_of: Pipeline) -> None:
    """The bad order by hand ends at once with the way out, on the version that would fail for ever and on the one that would skip."""
    pipeline = pipeline_of
    pipeline.execute(f"CREATE TABLE outbox ({TABLE})")
    pipeline.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (pipeline.slot_name,))
    pipeline.insert(1, 2)
    pipeline.execute(f'CREATE PUBLICATION "{pipeline.slot_name}" FOR TABLE outbox {PUBLICATION}')
    pipeline.insert(3, 4)
    made = pipeline.here("init", "--existing", "skip")
    assert made.code == 4, made.err
    assert f"slot '{pipeline.slot_name}' exists but the position topic holds no position" in made.line
    assert "drop it" in made.line
    answer = pipeline.command("run")
    assert answer.code == 4, answer.err
    assert "drop the slot and run `cdc init`" in answer.line, answer.line
    pipeline.execute("SELECT pg_drop_replication_slot(%s)", (pipeline.slot_name,))
    pipeline.init("--existing", "skip", create_table=False)
    pipeline.insert(5)
    with streaming(pipeline):
        pipeline.wait_numbers([5])


def test_field_case_52_init_makes_the_publication_first(pipeline_of: Pipeline) -> None:
    pipeline_of.init()
    pipeline_of.insert(1, 2)
    with streaming(pipeline_of):
        pipeline_of.wait_numbers([1, 2])


# 56


def test_field_case_56_a_partitioned_outbox(pipeline_of: Pipeline) -> None:
    pipeline = pipeline_of
    columns = TABLE.replace(" PRIMARY KEY", "")
    pipeline.execute(f"CREATE TABLE outbox ({columns}, created_at date DEFAULT '2026-01-15') PARTITION BY RANGE (created_at)")
    for month in (1, 2):
        bounds = f"FROM ('2026-0{month}-01') TO ('2026-0{month + 1}-01')"
        pipeline.execute(f"CREATE TABLE outbox_{month} PARTITION OF outbox FOR VALUES {bounds}")
    name = pipeline.slot_name
    pipeline.execute(f"CREATE PUBLICATION \"{name}\" FOR TABLE outbox WITH (publish = 'insert')")
    refused = pipeline.here("init")
    assert refused.code == 3, refused.err
    alter = f'ALTER PUBLICATION "{name}" SET (publish_via_partition_root = true)'
    assert alter in refused.line
    pipeline.execute(alter)
    pipeline.init(create_table=False)
    pipeline.insert(1)
    values = "('thing', 'k', 'Thing', jsonb_build_object('n', {}), '2026-02-02')"
    insert = f"INSERT INTO {{}} (aggregatetype, aggregateid, type, payload, created_at) VALUES {values}"
    pipeline.execute(insert.format("outbox", 2))
    pipeline.execute(insert.format("outbox_2", 3))
    with streaming(pipeline):
        pipeline.wait_numbers([1, 2, 3])
        pipeline.execute("CREATE TABLE outbox_3 PARTITION OF outbox FOR VALUES FROM ('2026-03-01') TO ('2026-04-01')")
        pipeline.execute(insert.format("outbox", 4).replace("2026-02-02", "2026-03-03"))
        pipeline.wait_numbers([1, 2, 3, 4])


# 58


def test_field_case_58_our_publication_leaves_the_applications_updates_alone(pipeline_of: Pipeline) -> None:
    pipeline = pipeline_of
    pipeline.execute(f"CREATE TABLE outbox ({TABLE.replace(' PRIMARY KEY', '')})")
    pipeline.execute("CREATE TABLE other (id bigint, type text)")
    pipeline.init(create_table=False)
    with streaming(pipeline):
        pipeline.insert(1)
        pipeline.execute("INSERT INTO other VALUES (1, 'x')")
        for table in ("outbox", "other"):
            pipeline.execute(f"UPDATE {table} SET id = 2")
            pipeline.execute(f"DELETE FROM {table}")
        pipeline.insert(2)
        pipeline.wait_numbers([1, 2])
        pipeline.wait_confirmed()
    assert pipeline.numbers() == [1, 2]


# 60


def test_field_case_60_a_column_that_is_generated_is_refused_by_name(pipeline_of: Pipeline) -> None:
    """At start too: on a table that became like this afterwards, and whatever publish_generated_columns says."""
    pipeline = pipeline_of
    pipeline.execute(f"CREATE TABLE outbox ({TABLE}, topic_key text GENERATED ALWAYS AS (lower(aggregatetype)) STORED)")
    pipeline.init(create_table=False)
    for command, key in (("init", "aggregateid"), ("run", "topic")):
        pipeline.set(outbox__columns={key: "topic_key"})
        answer = pipeline.here("init") if command == "init" else pipeline.command("run")
        assert answer.code == 3, answer.err
        assert f"column 'topic_key' (outbox.columns.{key}) is generated" in answer.line
        assert "map an ordinary column" in answer.line


# 61


@since(15)
def test_field_case_61_a_column_list_that_is_shorter_than_the_table(pipeline_of: Pipeline) -> None:
    """A needed column is missed by name; one that nobody needs is not; the values are found by name, whatever their order."""
    pipeline = pipeline_of
    pipeline.execute(f"CREATE TABLE outbox (unused int DEFAULT 7, {TABLE}, tenant int DEFAULT 2)")
    name = pipeline.slot_name
    for how, words in (
        ("(id, payload)", "hides aggregateid, aggregatetype, type"),
        ("WHERE (tenant = 1)", "has a row filter"),
    ):
        pipeline.execute(f'CREATE PUBLICATION "{name}" FOR TABLE outbox {how} {PUBLICATION}')
        answer = pipeline.here("init")
        assert answer.code == 3, answer.err
        assert words in answer.line
        pipeline.execute(f'DROP PUBLICATION "{name}"')
    pipeline.execute(f'CREATE PUBLICATION "{name}" FOR TABLE outbox (type, payload, id, aggregateid, aggregatetype) {PUBLICATION}')
    pipeline.init(create_table=False)
    pipeline.insert(1)
    with streaming(pipeline):
        pipeline.wait_numbers([1])


# 135


def test_field_case_135_a_slot_that_was_dropped_and_recreated(pipeline_of: Pipeline) -> None:
    pipeline = pipeline_of
    pipeline.init()
    pipeline.insert(1)
    with streaming(pipeline):
        pipeline.wait_numbers([1])
        pipeline.wait_confirmed()
    position = pipeline.position()
    pipeline.insert(2)
    pipeline.execute("SELECT pg_drop_replication_slot(%s)", (pipeline.slot_name,))
    pipeline.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (pipeline.slot_name,))
    pipeline.insert(3)
    answer = pipeline.command("run")
    assert answer.code == 4, answer.err
    begin = pipeline.slot().confirmed
    assert f"slot '{pipeline.slot_name}' is ahead" in answer.line
    assert f"({position} to {begin}, " in answer.line
    assert "`cdc recover`" in answer.line
    assert pipeline.numbers() == [1]
    assert count_slots(pipeline) == 1
    recovered = pipeline.here("recover")
    assert recovered.code == 0, recovered.err
    with streaming(pipeline):
        pipeline.insert(4)
        pipeline.wait_confirmed()
    assert pipeline.numbers() == [1, 2, 3, 4]
    assert verified(pipeline)["missing"] == 0
