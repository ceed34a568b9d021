"""The SQL function for writers in other languages: made by `cdc init`, judged by `cdc check`, and its contract."""

from __future__ import annotations

import uuid
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from cdc import Event, Pressure, app, load_outbox
from cdc.audit.check_postgres import QUESTIONS
from cdc.cli.check import case
from cdc.settings import load
from tests.pipeline import Pipeline
from tests.statistics import told_at_once
from tests.waiting import wait_for

pytestmark = pytest.mark.servers

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def rows(pipeline: Pipeline) -> list[dict[str, Any]]:
    return [row for (row,) in pipeline.execute("SELECT to_jsonb(o) FROM outbox o ORDER BY occurred_at")]


def finding(pipeline: Pipeline) -> str:
    """What the doctor says of the function."""
    settings = load(pipeline.write())
    catalog = app.catalog(settings)
    [(status, what, fix)] = QUESTIONS["function for writers"](case(settings), catalog)
    catalog.close()
    return f"{status}: {what} {fix}"


def test_what_emit_writes_and_what_it_refuses(pipeline: Pipeline) -> None:
    pipeline.set(outbox__message_prefix="shop.outbox").init()
    [(made,)] = pipeline.execute("SELECT cdc.emit('Thing', 'k', '{\"n\": 1}', 'thing')")
    assert uuid.UUID(made).version == 7
    with pipeline.connection.transaction():
        pipeline.execute(f"SET LOCAL cdc.traceparent = '{TRACE}'; SET LOCAL cdc.correlation_id = 'c-1'")
        pipeline.execute(
            "SELECT cdc.emit('Thing', E'it''s \\\\ %s', jsonb_build_object('n', 2), 'thing', headers => '{\"tenant\": \"ü\"}')"
        )
    pipeline.execute(
        "SELECT cdc.emit(type => 'Thing', key => 'k', payload => NULL, aggregatetype => 'thing', id => %s, schema_version => 1,"
        " occurred_at => '2099-01-02T03:04:05Z')",
        (str(uuid.UUID(int=7)),),
    )
    first, second, third = rows(pipeline)
    assert (first["id"], first["payload"], first["headers"], first["schema_version"]) == (made, {"n": 1}, None, None)
    assert second["aggregateid"] == "it's \\ %s"
    assert second["headers"] == {"tenant": "ü", "correlationid": "c-1", "traceparent": TRACE}
    assert (third["id"], third["payload"], third["occurred_at"]) == (str(uuid.UUID(int=7)), None, "2099-01-02T03:04:05+00:00")

    for arguments, words in {
        "NULL, 'k', '{}', 'thing'": "no type",
        "'Thing', '', '{}', 'thing'": "no key",
        "'Thing', 'k', '{}'": "no aggregatetype",
        "'Thing', 'k', '{}', 'thing', headers => '{\"CE_id\": \"x\"}'": "headers that the pipeline sets",
        "'Thing', 'k', '{}', 'thing', headers => '[]'": "not a JSON object",
        "'Thing', 'k', '{}', 'thing', id => repeat('x', 1001)": "more than 1000 bytes",
        "'Thing', 'k', '{}', 'thing', schema_version => 0": "counted from 1",
        "'Thing', 'k', '{}', 'thing', occurred_at => 'infinity'": "infinite",
        "'Thing', 'k', '{', 'thing'": "invalid input syntax for type json",
    }.items():
        with pytest.raises(psycopg.Error, match=words):
            pipeline.execute(f"SELECT cdc.emit({arguments})")
    assert len(rows(pipeline)) == 3


def test_rows_and_messages_of_every_writer_reach_kafka(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline.set(outbox__message_prefix="shop.outbox").init()
    pressure = Pressure(pipeline.slot_name, max_pending_rows=2, every_s=0)
    assert pressure.look(pipeline.connection) is None
    pipeline.started()
    monkeypatch.setenv("CDC_CONFIG", str(pipeline.config))
    by_rows, by_messages = load_outbox(), load_outbox(messages=True)
    with pipeline.connection.transaction():
        pipeline.execute("SELECT cdc.emit('Thing', 'k', '{\"n\": 1}', 'thing', traceparent => %s)", (TRACE,))
        row = by_rows.append(pipeline.connection, Event("Thing", "k", {"n": 2}, "thing", correlation_id="c-2"))
        message = by_messages.append(pipeline.connection, Event("Thing", "k", {"n": 3}, "thing", headers={"tenant": "a"}))
        pipeline.execute("SELECT cdc.emit('Thing', 'k', '{\"n\": 4}', 'thing', message => true, correlation_id => 'c-4')")
    pipeline.wait_numbers([1, 2, 3, 4])
    first, second, third, fourth = pipeline.events()
    assert first.headers["traceparent"] == TRACE.encode()
    assert (second.headers["ce_id"], second.headers["correlationid"]) == (str(row.id).encode(), b"c-2")
    assert (third.headers["ce_id"], third.headers["tenant"]) == (str(message.id).encode(), b"a")
    assert fourth.headers["correlationid"] == b"c-4"
    assert not pipeline.events(pipeline.dead_letter_topic)

    pipeline.wait_confirmed()
    assert pressure.look(pipeline.connection) is None
    pipeline.stop()
    pipeline.insert(5, 7)
    told_at_once(pipeline.connection)
    busy = wait_for(lambda: pressure.look(pipeline.connection), what="the statistics tell of three rows")
    assert busy is not None
    assert busy.reason == "3 events wait to be published, more than 2"
    assert 0 < busy.backlog.lag_bytes < 1_000_000
    pipeline.started()
    wait_for(lambda: pressure.look(pipeline.connection) is None, what="the backlog is published")


def test_emit_is_made_once_told_when_it_differs_and_left_out_when_off(pipeline: Pipeline) -> None:
    pipeline.init()
    assert finding(pipeline).startswith("ok:")
    assert "emit" not in pipeline.here("init").err, "it is there"

    pipeline.set(outbox__message_prefix="later")
    assert "warning" in finding(pipeline)
    assert "not what the settings ask for" in finding(pipeline)
    assert "replaced function" in pipeline.here("init").err
    assert finding(pipeline).startswith("ok:")

    pipeline.execute("DROP FUNCTION cdc.emit")
    assert "does not exist" in finding(pipeline)
    pipeline.set(outbox__emit="off")
    assert finding(pipeline).startswith("ok: outbox.emit is off")
    assert "emit" not in pipeline.here("init").err
    assert "emit" not in pipeline.here("init", "--sql").out

    pipeline.execute("CREATE FUNCTION cdc.emit(int) RETURNS int LANGUAGE sql AS 'SELECT 1'")
    pipeline.set(outbox__emit="cdc.emit")
    assert "somebody else" in finding(pipeline)
    assert "was left as it is" in pipeline.here("init").err
    assert pipeline.execute("SELECT cdc.emit(2)") == [(1,)]

    pipeline.set(outbox__emit='App."E.mit $emit$"')
    made = pipeline.here("init")
    assert 'created function "App"."E.mit $emit$"' in made.err
    pipeline.execute("""SELECT "App"."E.mit $emit$"('Thing', 'k', '{"n": 1}', 'thing')""")
    assert finding(pipeline).startswith("ok:")
    pipeline.set(outbox__emit="a.b.c")
    refused = pipeline.here("init")
    assert refused.code == 2
    assert "outbox.emit" in refused.line
    assert 'write schema.function, or "off"' in refused.line


def test_init_without_rights_goes_on_and_a_dba_can_run_what_sql_prints(pipeline: Pipeline, unique: str) -> None:
    role = sql.Identifier(unique)
    pipeline.init()
    pipeline.execute("DROP SCHEMA cdc CASCADE")
    pipeline.connection.execute(sql.SQL("CREATE ROLE {} LOGIN REPLICATION").format(role))
    pipeline.connection.execute(sql.SQL("GRANT SELECT ON outbox TO {}").format(role))
    owner = pipeline.dsn
    try:
        pipeline.set(postgres__dsn=make_conninfo(owner, user=unique))
        made = pipeline.here("init")
        assert made.code == 0, made.err
        assert 'function "cdc"."emit" was not made: ' in made.err
        assert "permission denied" in made.err
        assert "cdc init --sql" in made.err

        printed = pipeline.here("init", "--sql").out
        statements = printed[printed.index("CREATE SCHEMA IF NOT EXISTS") :]
        for _ in range(2):
            pipeline.execute(statements)
        assert finding(pipeline).startswith("ok:")
        with psycopg.connect(make_conninfo(owner, user=unique), autocommit=True) as writer:
            assert Pressure(pipeline.slot_name).look(writer) is None, "that takes no right"
            with pytest.raises(psycopg.errors.InsufficientPrivilege, match="permission denied for table outbox"):
                writer.execute("SELECT cdc.emit('Thing', 'k', '{\"n\": 1}', 'thing')")
            pipeline.connection.execute(sql.SQL("GRANT INSERT ON outbox TO {}").format(role))
            writer.execute("SELECT cdc.emit('Thing', 'k', '{\"n\": 1}', 'thing')")
    finally:
        pipeline.connection.execute(sql.SQL("DROP OWNED BY {}").format(role))
        pipeline.connection.execute(sql.SQL("DROP ROLE {}").format(role))


def test_a_second_pipeline_of_the_database_leaves_the_first_ones_function(pipeline: Pipeline) -> None:
    pipeline.init()
    pipeline.execute("CREATE TABLE second (LIKE outbox INCLUDING ALL)")
    pipeline.set(name=f"{pipeline.name}_2", outbox__table="public.second", postgres__slot=f"{pipeline.slot_name}_2")
    answer = pipeline.here("init")
    assert answer.code == 0, answer.err
    assert "was left as it is" in answer.err
    pipeline.execute("SELECT cdc.emit('Thing', 'k', '{\"n\": 1}', 'thing')")
    assert pipeline.execute("SELECT count(*) FROM second") == [(0,)]
