"""The publication: one that hides rows is refused by everybody, and one that was touched is never trusted again."""

from __future__ import annotations

import json
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql

from cdc.devstack.postgres import PostgresServer
from cdc.errors import ContinuityError
from cdc.pipeline import supervisor
from cdc.position import Lsn
from tests.conftest import Pipelines, drop_database
from tests.inside import Inside, refusal, streaming
from tests.pipeline import Pipeline

pytestmark = pytest.mark.servers

TABLE = """CREATE TABLE outbox (id bigserial, aggregatetype text, aggregateid text, type text, payload jsonb, tenant int) """
PARTITIONED = """
CREATE TABLE outbox (id bigserial, aggregatetype text, aggregateid text, type text, payload jsonb, tenant int DEFAULT 1)
PARTITION BY LIST (tenant);
CREATE TABLE outbox_1 PARTITION OF outbox FOR VALUES IN (1);
CREATE TABLE outbox_2 PARTITION OF outbox FOR VALUES IN (2)"""
INSERTS = "publish = 'insert', publish_via_partition_root = true"


@pytest.fixture
def old_pipeline(postgres15: PostgresServer, pipelines: Pipelines, unique: str, kafka: str) -> Iterator[Pipeline]:
    """A pipeline on PostgreSQL 15, whose walsender ends where a publication is missing."""
    with psycopg.connect(postgres15.dsn(), autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(unique)))
        pipeline = pipelines(postgres15.dsn(unique), kafka)
        yield pipeline
        for process in pipeline.processes:
            pipeline.kill(process)
        pipeline.hang_up()
        drop_database(admin, unique)


def version(pipeline: Pipeline) -> int:
    return int(pipeline.execute("SHOW server_version_num")[0][0]) // 10_000


# what hides rows is refused, by init, by run and by the doctor in the same words


@pytest.mark.parametrize(
    ("since", "table", "publication", "words"),
    [
        (14, TABLE, "FOR ALL TABLES WITH (publish = 'insert')", "is FOR ALL TABLES"),
        (14, TABLE, "FOR TABLE other WITH (publish = 'insert')", 'does not name "public"."outbox"'),
        (14, TABLE, "FOR TABLE outbox WITH (publish = 'update, delete')", "does not publish inserts"),
        (14, PARTITIONED, "FOR TABLE outbox WITH (publish = 'insert')", "publish_via_partition_root is off"),
        (15, TABLE, f"FOR TABLE outbox WHERE (tenant = 1) WITH ({INSERTS})", "has a row filter"),
        (15, TABLE, f"FOR TABLE outbox (id, aggregatetype, aggregateid, type) WITH ({INSERTS})", "has a column list that hides payload"),
        (15, TABLE, f"FOR TABLES IN SCHEMA public WITH ({INSERTS})", 'does not name "public"."outbox", only the schema public'),
    ],
    ids=["all tables", "another table", "no inserts", "partitions", "row filter", "column list", "schema"],
)
def test_what_hides_rows_is_refused_by_init_and_by_the_doctor(
    pipeline: Pipeline, since: int, table: str, publication: str, words: str
) -> None:
    if version(pipeline) < since:
        pytest.skip(f"PostgreSQL {since} brought it")
    pipeline.execute(table)
    pipeline.execute("CREATE TABLE other (id int)")
    pipeline.execute(f'CREATE PUBLICATION "{pipeline.slot_name}" {publication}')
    answer = pipeline.here("init")
    assert answer.code == 3, answer.err
    assert words in answer.line
    assert "drop it and run `cdc init`" in answer.line
    assert pipeline.execute("SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s", (pipeline.slot_name,)) == [(0,)]
    found = json.loads(pipeline.here("check", "--json").out.splitlines()[-1])["findings"]
    assert any(words in finding["what"] for finding in found if finding["check"] == "publication" and finding["status"] == "failed")
    pipeline.execute(f'DROP PUBLICATION "{pipeline.slot_name}"')
    pipeline.init(create_table=False)
    pipeline.execute("INSERT INTO outbox (aggregatetype, aggregateid, type, payload) VALUES ('thing', 'k', 'Thing', '{\"n\": 1}')")
    with streaming(pipeline):
        pipeline.wait_numbers([1])


def test_a_column_that_is_mapped_later_and_hidden_is_refused_at_start(pipeline: Pipeline) -> None:
    """The publication is the one that init took; it is the settings that ask for more."""
    if version(pipeline) < 15:
        pytest.skip("PostgreSQL 15 brought column lists")
    pipeline.execute(TABLE)
    columns = "(id, aggregatetype, aggregateid, type, payload)"
    pipeline.execute(f'CREATE PUBLICATION "{pipeline.slot_name}" FOR TABLE outbox {columns} WITH ({INSERTS})')
    pipeline.init(create_table=False)
    with streaming(pipeline):
        pass
    pipeline.set(outbox__columns={"aggregateid": "tenant"})
    answer = pipeline.command("run")
    assert answer.code == 3, answer.err
    assert "column list that hides tenant" in answer.line


# what was touched is not trusted


CHANGES = {
    "dropped and recreated": (14, 'DROP PUBLICATION "{p}"; CREATE PUBLICATION "{p}" FOR TABLE outbox WITH ({i})', "dropped and made again"),
    "without the table for a while": (
        14,
        'ALTER PUBLICATION "{p}" DROP TABLE outbox; ALTER PUBLICATION "{p}" ADD TABLE outbox',
        "its tables, their row filters or column lists were changed",
    ),
    "without inserts for a while": (
        14,
        """ALTER PUBLICATION "{p}" SET (publish = 'update'); ALTER PUBLICATION "{p}" SET (publish = 'insert')""",
        "its options, name or owner were changed",
    ),
    "partitions for a while": (
        14,
        'ALTER PUBLICATION "{p}" SET (publish_via_partition_root = false); ALTER PUBLICATION "{p}" SET (publish_via_partition_root = true)',
        "its options, name or owner were changed",
    ),
    "filtered for a while": (
        15,
        'ALTER PUBLICATION "{p}" SET TABLE outbox WHERE (aggregateid = \'x\'); ALTER PUBLICATION "{p}" SET TABLE outbox',
        "its tables, their row filters or column lists were changed",
    ),
    "fewer columns for a while": (
        15,
        'ALTER PUBLICATION "{p}" SET TABLE outbox (id); ALTER PUBLICATION "{p}" SET TABLE outbox',
        "its tables, their row filters or column lists were changed",
    ),
    "a schema more": (15, 'ALTER PUBLICATION "{p}" ADD TABLES IN SCHEMA public', "its schemas were changed"),
    "gone": (14, 'DROP PUBLICATION "{p}"', "the publication is missing"),
}


def change(pipeline: Pipeline, case: str, *, at_once: bool = False) -> str:
    """Make a change, `at_once` when somebody looks meanwhile: statements in one string are one transaction."""
    since, statements, words = CHANGES[case]
    if version(pipeline) < since:
        pytest.skip(f"PostgreSQL {since} brought it")
    text = statements.format(p=pipeline.slot_name, i=INSERTS)
    for statement in [text] if at_once else text.split("; "):
        pipeline.execute(statement)
    return words


@pytest.mark.parametrize("case", CHANGES)
def test_a_publication_that_was_touched_while_nobody_looked(pipeline: Pipeline, case: str) -> None:
    """Changed and changed back as well: rows written in between may be missing from the log, and nothing else tells of it."""
    pipeline.init()
    pipeline.insert(1)
    with streaming(pipeline):
        pipeline.wait_numbers([1])
    proved = Lsn.parse(json.loads(pipeline.events(pipeline.position_topic)[-1].value or b"")["publication_fingerprint"]["proved_lsn"])
    words = change(pipeline, case)
    pipeline.insert(2)
    error = refusal(pipeline, words, f"({proved} to ", "`cdc recover`")
    assert error.exit_code == 4
    assert pipeline.numbers() == [1]


@pytest.mark.parametrize("case", ["dropped and recreated", "without inserts for a while", "gone"])
def test_a_publication_that_is_touched_while_streaming(pipeline: Pipeline, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "WATCH_INTERVAL_S", 0.2)
    pipeline.init()
    pipeline.insert(1)
    inside = Inside(pipeline)
    inside.wait_streaming()
    pipeline.wait_numbers([1])
    words = change(pipeline, case, at_once=True)
    with pytest.raises(ContinuityError) as caught:
        inside.end()
    assert words in caught.value.what


def test_a_stop_looks_once_more(pipeline: Pipeline) -> None:
    pipeline.init()
    pipeline.started()
    pipeline.execute(f'DROP PUBLICATION "{pipeline.slot_name}"')
    assert pipeline.terminate() == 4, pipeline.log
    assert "the publication is missing" in pipeline.log


def test_a_walsender_that_ends_where_the_publication_is_missing(old_pipeline: Pipeline) -> None:
    """Up to PostgreSQL 17 the stream ends there, for ever; from 18 on it goes on, and the watch or the next start finds out."""
    pipeline = old_pipeline
    pipeline.init()
    pipeline.insert(1)
    pipeline.started()
    pipeline.wait_numbers([1])
    pipeline.execute(f'DROP PUBLICATION "{pipeline.slot_name}"')
    pipeline.insert(2)
    answer = pipeline.wait_exit()
    assert answer.code == 4, answer.err
    assert f'publication "{pipeline.slot_name}" does not exist at the place of rows' in answer.line
    refusal(pipeline, "the publication is missing")
    pipeline.execute(f'CREATE PUBLICATION "{pipeline.slot_name}" FOR TABLE outbox WITH ({INSERTS})')
    refusal(pipeline, "dropped and made again")
    assert pipeline.numbers() == [1]


def test_what_is_proved_moves_on_with_the_position(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """So the gap that a change leaves is as short as the watch's interval, not as long as the pipeline's life."""
    monkeypatch.setattr(supervisor, "WATCH_INTERVAL_S", 0.1)
    pipeline.init()
    with streaming(pipeline):
        for number in (1, 2, 3):
            pipeline.insert(number)
            pipeline.wait_numbers(list(range(1, number + 1)))
    records = [json.loads(event.value or b"") for event in pipeline.events(pipeline.position_topic)]
    proved = [Lsn.parse(record["publication_fingerprint"]["proved_lsn"]) for record in records]
    assert proved == sorted(proved)
    assert proved[-1] > Lsn.parse(next(record["end_lsn"] for record in records if "pending" not in record))


# rows of a partitioned outbox stay where they are


@pytest.mark.parametrize(
    "key",
    ["LIST (tenant)", "RANGE (id)", "HASH (aggregateid)", "RANGE (lower(aggregateid))", "nested"],
)
def test_an_update_may_not_move_a_row_to_another_partition(pipeline: Pipeline, key: str) -> None:
    partitioned(pipeline, key)
    pipeline.init(create_table=False)
    pipeline.execute("INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) VALUES (1, 'thing', 'b', 'Thing', '{\"n\": 1}')")
    with pytest.raises(psycopg.errors.RestrictViolation, match="may not move a row of the outbox to another partition"):
        moves(pipeline)
    pipeline.execute("UPDATE outbox SET type = 'Thing', payload = payload")
    if key != "HASH (aggregateid)":
        pipeline.execute("UPDATE outbox SET aggregateid = 'c'")
    pipeline.execute("DELETE FROM outbox WHERE id = 77")
    with streaming(pipeline):
        pipeline.wait_numbers([1])
        pipeline.wait_confirmed()
    assert pipeline.numbers() == [1]
    again = pipeline.here("init")
    assert again.code == 0, again.err
    assert "trigger" not in again.err
    assert "rows of" in pipeline.here("check").out + pipeline.here("check").err


def partitioned(pipeline: Pipeline, key: str) -> None:
    columns = "id bigint, aggregatetype text, aggregateid text, type text, payload jsonb, tenant int DEFAULT 1"
    by = "LIST (tenant)" if key == "nested" else key
    pipeline.execute(f'CREATE TABLE outbox ({columns}, "Odd column" int) PARTITION BY {by}')
    match key.split(maxsplit=1)[0]:
        case "LIST":
            parts = ["FOR VALUES IN (1)", "DEFAULT"]
        case "HASH":
            parts = [f"FOR VALUES WITH (MODULUS 8, REMAINDER {i})" for i in range(8)]
        case "nested":
            parts = ["FOR VALUES IN (1) PARTITION BY RANGE (id)"]
        case _:
            values = ("0", "50", "100") if "id)" in key and "lower" not in key else ("'a'", "'m'", "'zz'")
            parts = [f"FOR VALUES FROM ({values[i]}) TO ({values[i + 1]})" for i in range(2)]
    for i, part in enumerate(parts):
        pipeline.execute(f"CREATE TABLE outbox_{i} PARTITION OF outbox {part}")
    if key == "nested":
        for i, (low, high) in enumerate([(0, 50), (50, 100)]):
            pipeline.execute(f"CREATE TABLE outbox_0_{i} PARTITION OF outbox_0 FOR VALUES FROM ({low}) TO ({high})")


def moves(pipeline: Pipeline) -> None:
    """Move the row, whatever the key is: one of these does."""
    for statement in (
        "UPDATE outbox SET tenant = 2 WHERE to_regclass('outbox_1') IS NOT NULL",
        "UPDATE outbox SET id = 60",
        *(f"UPDATE outbox SET aggregateid = '{letter}'" for letter in "xyzwvu"),
    ):
        pipeline.execute(statement)


def test_the_doctor_misses_the_trigger_and_sees_partitions_that_are_not_logged(pipeline: Pipeline) -> None:
    pipeline.execute(PARTITIONED)
    pipeline.init(create_table=False)
    pipeline.execute("DROP TRIGGER cdc_rows_stay ON outbox")
    pipeline.execute("CREATE UNLOGGED TABLE outbox_3 PARTITION OF outbox FOR VALUES IN (3)")
    found = json.loads(pipeline.here("check", "--json").out.splitlines()[-1])["findings"]
    told = {finding["status"]: finding["what"] for finding in found if finding["check"] == "partitions"}
    assert "nothing keeps an UPDATE from moving a row" in told["warning"]
    assert "rows of the partition outbox_3 never reach the log" in told["failed"]
    pipeline.execute("DROP TABLE outbox_3")
    assert "created trigger 'cdc_rows_stay'" in pipeline.here("init").err


def test_what_a_dba_runs_keeps_rows_where_they_are(pipeline: Pipeline) -> None:
    pipeline.execute(PARTITIONED)
    script = pipeline.here("init", "--sql").out
    assert "cdc_rows_stay" in script
    statement = script[script.index("DO $if$") :]
    pipeline.execute(statement)
    pipeline.execute("INSERT INTO outbox (aggregateid) VALUES ('k')")
    with pytest.raises(psycopg.errors.RestrictViolation):
        pipeline.execute("UPDATE outbox SET tenant = 2")
    pipeline.execute("DROP TABLE outbox; CREATE TABLE outbox (id int)")
    pipeline.execute(statement)
    assert pipeline.execute("SELECT count(*) FROM pg_trigger WHERE tgrelid = 'outbox'::regclass") == [(0,)]
