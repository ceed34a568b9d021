"""Field cases 15, 18, 31, 34, 36, 49, 54, 63: transactions of every size and shape, and what the log says of their rows and times."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from cdc.devstack.postgres import PostgresServer
from cdc.devstack.process import LOOPBACK
from cdc.pipeline import supervisor
from tests.conftest import Pipelines
from tests.inside import streaming
from tests.measuring import peak_mb
from tests.pipeline import Pipeline, sizes
from tests.proxy import Proxy
from tests.waiting import wait_for

pytestmark = pytest.mark.servers

MEMORY_MB = 512

NAMES = "aggregatetype, aggregateid, type, payload"
COLUMNS = "aggregatetype text, aggregateid text, type text, payload jsonb"
VALUES = "'thing', 'k', 'Thing', jsonb_build_object('n', %s::int)"


# 15


@sizes((8_000, 2_000_000, "300ms"), (300_000, 20_000_000, "850ms"))
def test_field_case_15_a_huge_transaction_over_a_slow_link_comes_in_one_pass(
    pipelines: Pipelines, spare_postgres: PostgresServer, spare_database: str, kafka: str, size: tuple[int, float, str]
) -> None:
    """Reading takes longer than the server's timeout, several times over; the server hears from us all the while."""
    rows, rate, interval = size
    pipeline = pipelines(spare_database, kafka).set(postgres__status_interval=interval)
    pipeline.init()
    with Proxy(spare_postgres.port) as proxy:
        pipeline.set(postgres__dsn=make_conninfo(spare_database, host=LOOPBACK, port=str(proxy.port)))
        pipeline.started()
        pid = pipeline.slot().active_pid
        proxy.slow(rate)
        pipeline.insert(1, rows, text="x" * 1000)
        pipeline.wait_numbers(range(1, rows + 1), deadline_s=240)
        assert pipeline.slot().active_pid == pid
        assert pipeline.status()["totals"]["failures"] == 0
    assert f"[{pid}] " not in "".join(line for line in spare_postgres.log.read_text().splitlines() if "replication timeout" in line)


# 18


@sizes((150_000, "300ms"), (3_000_000, "1700ms"))
def test_field_case_18_a_long_silence_while_the_server_decodes_what_is_not_ours(pipeline: Pipeline, size: tuple[int, str]) -> None:
    rows, interval = size
    pipeline.set(postgres__status_interval=interval).init()
    pipeline.execute("CREATE TABLE unpublished (id int PRIMARY KEY, filler text)")
    pipeline.execute("INSERT INTO unpublished SELECT i, repeat('x', 100) FROM generate_series(1, %s) i", (rows,))
    pipeline.started()
    pid = pipeline.slot().active_pid
    pipeline.execute("UPDATE unpublished SET filler = 'y'")
    pipeline.insert(1)
    pipeline.wait_numbers([1], deadline_s=240)
    assert pipeline.slot().active_pid == pid
    assert pipeline.status()["totals"]["failures"] == 0


# 31


def test_field_case_31_interleaved_transactions_that_would_be_streamed_come_whole(pipeline: Pipeline) -> None:
    """Streaming of transactions in progress is not asked for, so there are no chunks: whole transactions, in commit order."""
    pipeline.execute(f"ALTER DATABASE {pipeline.connection.info.dbname} SET logical_decoding_work_mem = '64kB'")
    pipeline.init()
    pipeline.started()
    with psycopg.connect(pipeline.dsn) as first, psycopg.connect(pipeline.dsn) as second:
        for i in range(0, 5_000, 100):
            pipeline.insert(10_000 + i, 10_000 + i + 99, key="first", on=first)
            pipeline.insert(20_000 + i, 20_000 + i + 99, key="second", on=second)
            pipeline.insert(i // 100, key="small")
        second.commit()
        pipeline.insert(50)
        first.commit()
    pipeline.insert(51)
    pipeline.wait_numbers([*range(50), *range(20_000, 25_000), 50, *range(10_000, 15_000), 51])


# 34


@sizes((20_000, 6), (400_000, 60))
def test_field_case_34_memory_is_bounded_whatever_a_transaction_or_a_row_holds(pipeline: Pipeline, size: tuple[int, int]) -> None:
    rows, megabytes = size
    pipeline.init()
    process = pipeline.started()
    pipeline.insert(1, rows, text="x" * 2_000)
    pipeline.wait_numbers(range(1, rows + 1), deadline_s=240)
    pipeline.insert(rows + 1, text="x" * megabytes * 1_000_000)
    pipeline.insert(rows + 2)
    pipeline.wait_confirmed(deadline_s=120)
    assert pipeline.numbers() == [*range(1, rows + 1), rows + 2]
    [dead] = pipeline.events(pipeline.dead_letter_topic)
    assert dead.headers["cdc.reason"] == b"size"
    assert peak_mb(process.pid) < MEMORY_MB
    assert pipeline.status()["totals"]["failures"] == 0


# 36


@pytest.fixture
def everything(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    """A pipeline on a table whose publication sends all that can be sent; what is ignored is counted soon."""
    monkeypatch.setattr(supervisor, "WATCH_INTERVAL_S", 0.5)
    pipeline.execute(f"CREATE TABLE outbox (id int PRIMARY KEY GENERATED ALWAYS AS IDENTITY, n int UNIQUE NOT NULL DEFAULT 0, {COLUMNS})")
    pipeline.execute(f'CREATE PUBLICATION "{pipeline.slot_name}" FOR TABLE outbox')
    pipeline.init(create_table=False)
    return pipeline


def test_field_case_36_old_rows_are_never_taken_for_new_ones(everything: Pipeline) -> None:
    """Of updates and deletes nothing is read, so no column of an old row can become a null; they are counted."""
    with streaming(everything) as inside:
        for number, identity in enumerate(("DEFAULT", "USING INDEX outbox_n_key", "FULL")):
            everything.execute(f"ALTER TABLE outbox REPLICA IDENTITY {identity}")
            everything.execute(f"INSERT INTO outbox (n, {NAMES}) VALUES (%s, {VALUES})", (10, number))
            everything.execute("UPDATE outbox SET id = DEFAULT, n = 20")
            everything.execute("UPDATE outbox SET payload = NULL, aggregateid = NULL")
            everything.execute("DELETE FROM outbox")
        everything.wait_confirmed()
        wait_for(lambda: inside.observer.metrics.ignored.counts == {("update",): 6, ("delete",): 3}, 30, "they are counted")
    assert everything.numbers() == [0, 1, 2]
    assert everything.events(everything.dead_letter_topic) == []


# 49


def test_field_case_49_a_commit_time_is_a_time_of_this_world(pipeline: Pipeline) -> None:
    """Bracketed by our own clock, whatever time zones the server and we live in."""
    pipeline.execute(f"ALTER DATABASE {pipeline.connection.info.dbname} SET timezone = 'Pacific/Kiritimati'")
    pipeline.init()
    pipeline.start(environment_={"TZ": "Pacific/Pago_Pago"})
    pipeline.wait_ready()
    pipeline.hang_up()
    before = time.time()
    pipeline.insert(1)
    after = time.time()
    pipeline.wait_numbers([1])
    [event] = pipeline.events()
    assert int(before * 1000) <= event.timestamp_ms <= int(after * 1000) + 1
    told = datetime.fromisoformat(event.headers["ce_time"].decode())
    assert told.utcoffset() is not None
    assert int(before) <= told.astimezone(UTC).timestamp() <= after + 0.001
    [(reply, now)] = pipeline.execute(
        "SELECT extract(epoch FROM reply_time), extract(epoch FROM clock_timestamp()) FROM pg_stat_replication WHERE pid = %s",
        (pipeline.slot().active_pid,),
    )
    assert before - 60 <= reply <= now


# 54


def test_field_case_54_each_row_is_read_by_the_shape_that_its_table_had(pipeline: Pipeline) -> None:
    pipeline.execute(f"CREATE TABLE outbox (id int PRIMARY KEY GENERATED ALWAYS AS IDENTITY, {COLUMNS})")
    pipeline.init(create_table=False)

    def insert(number: int, payload: str = "payload") -> None:
        pipeline.execute(f"INSERT INTO outbox (aggregatetype, aggregateid, type, {payload}) VALUES ({VALUES})", (number,))

    insert(1)
    pipeline.execute("ALTER TABLE outbox ADD COLUMN trace_id text")
    insert(2)
    pipeline.execute("ALTER TABLE outbox RENAME COLUMN payload TO body")
    insert(3, "body")
    pipeline.execute("ALTER TABLE outbox RENAME COLUMN body TO payload")
    insert(4)
    pipeline.execute("ALTER TABLE outbox ALTER COLUMN id TYPE bigint")
    insert(5)
    pipeline.started()
    pipeline.wait_confirmed()
    assert pipeline.numbers() == [1, 2, 4, 5]
    [dead] = pipeline.events(pipeline.dead_letter_topic)
    assert dead.headers["cdc.reason"] == b"mapping"
    assert b"payload" in dead.headers["__connect.errors.exception.message"]
    assert pipeline.status()["totals"]["failures"] == 0


# 63


def test_field_case_63_a_row_that_an_orm_writes_twice_is_one_event(everything: Pipeline) -> None:
    with streaming(everything) as inside:
        with everything.connection.transaction():
            everything.execute(f"INSERT INTO outbox (n, {NAMES}) VALUES (1, {VALUES})", (1,))
            everything.execute("""UPDATE outbox SET payload = '{"n": 2}'""")
        everything.execute("""UPDATE outbox SET payload = '{"n": 3}'""")
        everything.wait_confirmed()
        wait_for(lambda: inside.observer.metrics.ignored.counts == {("update",): 2}, 30, "they are counted")
    assert everything.numbers() == [1], "the image of the insert, once"
