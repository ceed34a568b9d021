"""What people get wrong: one line that says what, where and how to fix it, the exit code of its kind, and nothing lost."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from confluent_kafka.admin import AdminClient
from psycopg import sql
from psycopg.conninfo import make_conninfo

from cdc.devstack.kafka import KafkaBroker
from cdc.devstack.postgres import PostgresServer
from tests.conftest import Pipelines
from tests.pipeline import SCHEMA, Answer, Pipeline, cdc, decode
from tests.waiting import wait_for

pytestmark = pytest.mark.servers

PASSWORD = "canary-right"
WRONG = "canary-wrong"


def refused(answer: Answer, code: int, *words: str) -> str:
    """Check how a command ended, and return its line."""
    assert answer.code == code, answer.err[-2000:]
    line = answer.line
    for word in words:
        assert word in line, line
    assert "canary" not in answer.err + answer.out
    return line


def settled(pipeline: Pipeline, number: int = 1) -> None:
    """Make a pipeline, and insert the row that nothing may lose."""
    pipeline.init()
    pipeline.insert(number)


def comes_back(pipeline: Pipeline, *numbers: int) -> None:
    """Show that nothing was lost over it."""
    pipeline.started()
    pipeline.wait_numbers(numbers or [1])
    pipeline.kill()


# PostgreSQL refuses


@pytest.fixture
def role(spare_postgres: PostgresServer, unique: str) -> Iterator[str]:
    """A role that may replicate and has to give its password; everybody else is trusted."""
    hba = spare_postgres.data / "pg_hba.conf"
    before = hba.read_text()
    hba.write_text(f"host all {unique} 127.0.0.1/32 scram-sha-256\nhost replication {unique} 127.0.0.1/32 scram-sha-256\n{before}")
    with psycopg.connect(spare_postgres.dsn(), autocommit=True) as admin:
        admin.execute("SELECT pg_reload_conf()")
        admin.execute(sql.SQL("CREATE ROLE {} LOGIN REPLICATION PASSWORD {}").format(sql.Identifier(unique), PASSWORD))
        yield unique
        hba.write_text(before)
        admin.execute("SELECT pg_reload_conf()")


@pytest.fixture
def guarded(pipelines: Pipelines, spare_database: str, role: str, kafka: str) -> Iterator[Pipeline]:
    """A pipeline with a role of its own, made by init with another one's rights."""
    pipeline = pipelines(spare_database, kafka)
    pipeline.settings["postgres.dsn"] = make_conninfo(spare_database, user=role, password=PASSWORD)
    pipeline.settings["postgres.admin_dsn"] = spare_database
    settled(pipeline)
    yield pipeline
    for process in pipeline.processes:
        pipeline.kill(process)
    pipeline.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(role)).as_string())
    pipeline.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)).as_string())


def test_a_wrong_password(guarded: Pipeline, spare_database: str, role: str) -> None:
    right = guarded.settings["postgres.dsn"]
    guarded.settings["postgres.dsn"] = make_conninfo(spare_database, user=role, password=WRONG)
    refused(guarded.command("run"), 3, "password authentication failed", role, "postgres.dsn")
    refused(guarded.here("init"), 3, "password authentication failed", role, "postgres.dsn")
    guarded.settings["postgres.dsn"] = right
    comes_back(guarded)


def test_a_password_that_is_wrong_after_a_while(guarded: Pipeline, role: str) -> None:
    guarded.started()
    guarded.wait_numbers([1])
    alter = sql.SQL("ALTER ROLE {} PASSWORD {}")
    guarded.execute(alter.format(sql.Identifier(role), WRONG).as_string())
    guarded.execute("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s", (guarded.slot_name,))
    guarded.insert(2)
    refused(guarded.wait_exit(), 3, "password authentication failed", "postgres.dsn")
    guarded.execute(alter.format(sql.Identifier(role), PASSWORD).as_string())
    comes_back(guarded, 1, 2)


def test_no_replication_privilege(guarded: Pipeline, role: str) -> None:
    guarded.execute(sql.SQL("ALTER ROLE {} NOREPLICATION").format(sql.Identifier(role)).as_string())
    refused(guarded.command("run"), 3, "REPLICATION", "ALTER ROLE")
    refused(guarded.here("init"), 3, role, "ALTER ROLE", "REPLICATION")
    guarded.execute(sql.SQL("ALTER ROLE {} REPLICATION").format(sql.Identifier(role)).as_string())
    comes_back(guarded)


def test_a_database_that_does_not_exist(pipeline: Pipeline, database: str) -> None:
    settled(pipeline)
    pipeline.settings["postgres.dsn"] = make_conninfo(database, dbname="nowhere")
    refused(pipeline.command("run"), 3, "nowhere", "does not exist", "postgres.dsn")
    refused(pipeline.here("init"), 3, "nowhere", "does not exist", "postgres.dsn")
    pipeline.settings["postgres.dsn"] = database
    comes_back(pipeline)


def test_wal_level_replica(pipelines: Pipelines, kafka: str) -> None:
    with PostgresServer(settings={"wal_level": "replica"}) as server:
        pipeline = pipelines(server.dsn(), kafka)
        refused(pipeline.here("init", "--create-table"), 3, "wal_level", "replica", "logical", "restart")
        with psycopg.connect(server.dsn()) as connection:
            assert connection.execute("SELECT count(*) FROM pg_publication").fetchone() == (0,)
        server.settings["wal_level"] = "logical"
        server.restart()
        pipeline.init()
        pipeline.insert(1)
        comes_back(pipeline)


def test_a_table_that_does_not_exist(pipeline: Pipeline) -> None:
    refused(pipeline.here("init"), 3, '"public"."outbox"', "does not exist", "outbox.table", "--create-table")
    settled(pipeline)
    pipeline.set(outbox__table="public.outbux")
    refused(pipeline.command("run"), 3, '"public"."outbux"', "does not exist", "outbox.table")
    pipeline.set(outbox__table="public.outbox")
    comes_back(pipeline)


def test_a_column_that_does_not_exist(pipeline: Pipeline) -> None:
    pipeline.execute("CREATE TABLE outbox (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregatetype text, aggregateid text, type text)")
    refused(pipeline.here("init"), 3, "payload", "outbox.columns.payload", '"public"."outbox"')
    pipeline.execute("ALTER TABLE outbox ADD COLUMN payload jsonb")
    settled(pipeline)
    pipeline.set(outbox__columns={"type": "event_type"})
    refused(pipeline.command("run"), 3, "event_type", "outbox.columns.type", '"public"."outbox"')
    pipeline.set(outbox__columns=None)
    comes_back(pipeline)


# The settings and the schema folder


def test_an_unknown_settings_key(pipeline: Pipeline) -> None:
    settled(pipeline)
    pipeline.set(postgres__slto="x")
    for answer in (pipeline.command("run"), pipeline.here("init")):
        refused(answer, 2, "postgres.slto", "cdc.toml:", "did you mean", "slot")
    pipeline.set(postgres__slto=None)
    comes_back(pipeline)


def test_a_missing_configuration_file(tmp_path: Path) -> None:
    refused(cdc("run", "--config", tmp_path / "none.toml"), 2, "none.toml")


def test_a_broken_schema_file(pipeline: Pipeline) -> None:
    settled(pipeline)
    path = pipeline.folder / "schemas" / "Thing" / "1.avsc"
    right = path.read_text()
    path.write_text(right[:-1])
    refused(pipeline.command("run"), 2, "Thing/1.avsc")
    path.write_text(right.replace('"long"', '"lung"'))
    refused(pipeline.here("schemas", "check"), 2, "Thing/1", "lung")
    path.write_text(right.replace('"long"', '"int"'))
    refused(pipeline.command("run"), 2, "Thing/1", "locked")
    path.write_text(right)
    comes_back(pipeline)


def test_a_version_that_is_not_locked(pipeline: Pipeline) -> None:
    settled(pipeline)
    second = {**SCHEMA, "fields": [*SCHEMA["fields"], {"name": "more", "type": "string", "default": ""}]}
    (pipeline.folder / "schemas" / "Thing" / "2.avsc").write_text(json.dumps(second))
    refused(pipeline.command("run"), 2, "Thing/2", "lock", "cdc schemas add")
    assert pipeline.here("schemas", "add", "Thing/2").code == 0
    pipeline.started()
    pipeline.wait_confirmed()
    [event] = pipeline.events()
    assert decode(event.value, second) == {"n": 1, "text": "", "more": ""}


def test_a_port_that_is_taken(pipeline: Pipeline) -> None:
    settled(pipeline)
    pipeline.started()
    refused(pipeline.command("run"), 2, "http.listen", str(pipeline.port), "in use")
    assert pipeline.ready()
    pipeline.wait_numbers([1])


# Kafka refuses, or is not there


def test_topics_that_are_demanded_and_missing(pipeline: Pipeline) -> None:
    create = {key: pipeline.settings.pop(key) for key in list(pipeline.settings) if key.startswith("topics.create")}
    refused(pipeline.here("init", "--create-table"), 5, pipeline.position_topic, "topics.create")
    pipeline.make_topic(pipeline.position_topic, cleanup_policy="compact")
    refused(pipeline.here("init", "--create-table"), 5, pipeline.dead_letter_topic)
    pipeline.make_topic(pipeline.dead_letter_topic)
    pipeline.init()
    pipeline.insert(1)
    pipeline.started()
    wait_for(lambda: pipeline.status()["totals"]["dead_letters"] == 1, 30, "a row without a topic is parked")
    pipeline.stop()
    pipeline.set(outbox__on_invalid="stop")
    pipeline.insert(2)
    refused(pipeline.command("run"), 7, pipeline.topic)
    pipeline.make_topic(pipeline.topic)
    comes_back(pipeline, 2)
    admin = AdminClient({"bootstrap.servers": pipeline.bootstrap, "log_level": 0})
    pipeline.set(topics__route=f"{pipeline.name}.fixed")
    refused(pipeline.command("run"), 5, f"{pipeline.name}.fixed")
    pipeline.set(topics__route=f"{pipeline.name}.{{aggregatetype}}", outbox__on_invalid="dead-letter")
    for deleted in admin.delete_topics([pipeline.dead_letter_topic]).values():
        deleted.result(30)
    pipeline.insert(3)
    refused(pipeline.command("run"), 5, pipeline.dead_letter_topic)
    pipeline.settings |= create
    comes_back(pipeline, 2, 3)


def test_the_broker_is_down(pipelines: Pipelines, database: str, spare_kafka: KafkaBroker) -> None:
    pipeline = pipelines(database, spare_kafka.bootstrap_servers)
    settled(pipeline)
    spare_kafka.stop()
    began = time.monotonic()
    refused(pipeline.command("init", "--timeout", "3"), 5, "3 s", "Kafka", "bootstrap.servers")
    assert time.monotonic() - began < 20
    pipeline.start()
    wait_for(lambda: pipeline.get("/health/ready")[1].startswith("backoff"), 30, "red, and says why")
    code, text = pipeline.get("/health/ready")
    assert code == 503
    assert "Kafka" in text
    assert pipeline.get("/health/live")[0] == 200
    assert pipeline.process.poll() is None
    spare_kafka.start()
    pipeline.wait_ready(deadline_s=20)
    pipeline.wait_numbers([1])
    pipeline.stop()
    assert "Traceback" not in pipeline.log
    assert '"trace"' not in pipeline.log


@pytest.mark.soak
def test_the_broker_goes_down_while_rows_come(pipelines: Pipelines, database: str, spare_kafka: KafkaBroker) -> None:
    pipeline = pipelines(database, spare_kafka.bootstrap_servers)
    settled(pipeline)
    pipeline.started()
    pipeline.wait_numbers([1])
    spare_kafka.stop()
    pipeline.insert(2)
    wait_for(lambda: pipeline.get("/health/ready")[0] == 503, 90, "red again")
    spare_kafka.start()
    pipeline.wait_ready(deadline_s=20)
    pipeline.wait_numbers([1, 2])
    assert pipeline.process.poll() is None


def test_postgresql_is_down(pipelines: Pipelines, spare_postgres: PostgresServer, spare_database: str, kafka: str) -> None:
    pipeline = pipelines(spare_database, kafka)
    settled(pipeline)
    pipeline.hang_up()
    spare_postgres.stop("fast")
    refused(pipeline.command("init", "--timeout", "2"), 3, "2 s", str(spare_postgres.port), "postgres.dsn")
    pipeline.start()
    wait_for(lambda: pipeline.get("/health/ready")[1].startswith("backoff"), 30, "red, and says why")
    code, text = pipeline.get("/health/ready")
    assert code == 503
    assert "PostgreSQL" in text
    assert pipeline.process.poll() is None
    spare_postgres.start()
    pipeline.wait_ready(deadline_s=20)
    pipeline.wait_numbers([1])
    pipeline.stop()
    assert "Traceback" not in pipeline.log
    assert '"trace"' not in pipeline.log


# Continuity: never guessed


def test_a_pipeline_that_was_never_made(pipeline: Pipeline) -> None:
    pipeline.execute("CREATE TABLE outbox (id bigserial, aggregatetype text, aggregateid text, type text, payload jsonb)")
    refused(pipeline.command("run"), 5, pipeline.position_topic, "cdc init")
    pipeline.make_topic(pipeline.position_topic, cleanup_policy="compact")
    refused(pipeline.command("run"), 4, pipeline.name, "cdc init")


def test_a_slot_that_is_gone(pipeline: Pipeline) -> None:
    settled(pipeline)
    pipeline.execute("SELECT pg_drop_replication_slot(%s)", (pipeline.slot_name,))
    refused(pipeline.command("run"), 4, pipeline.slot_name, "missing", "cdc recover")
    refused(pipeline.here("init"), 4, pipeline.slot_name, "missing")
    assert pipeline.numbers() == []


def test_rows_that_init_would_leave_out(pipeline: Pipeline) -> None:
    pipeline.execute("CREATE TABLE outbox (id bigserial, aggregatetype text, aggregateid text, type text, payload jsonb)")
    pipeline.insert(1, text="canary")
    refused(pipeline.here("init"), 2, "has rows", "--existing skip")
    assert pipeline.execute("SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s", (pipeline.slot_name,)) == [(0,)]
    pipeline.init("--existing", "skip")
    pipeline.insert(2)
    comes_back(pipeline, 2)
