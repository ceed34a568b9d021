"""Field cases 1, 2, 4, 6, 8, 10, 11: the slot's position and what acknowledges it."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cdc.avro import folder as schema_folder
from cdc.devstack.kafka import KafkaBroker
from cdc.outbox.mapping import OutboxMapping
from cdc.outbox.table import create_sql
from cdc.position import Lsn
from cdc.postgres.slot import Table
from tests.conftest import Pipelines
from tests.pipeline import SCHEMA, Pipeline, decode, sizes
from tests.waiting import wait_for

pytestmark = pytest.mark.servers

SEGMENT = 16 * 1024 * 1024


@contextmanager
def meanwhile(work: threading.Thread, stop: threading.Event) -> Iterator[None]:
    """Let a thread work beside us until the block ends."""
    work.start()
    try:
        yield
    finally:
        stop.set()
        work.join(60)
        assert not work.is_alive()


def insert_place(pipeline: Pipeline, number: int, payload: str | None = None) -> Lsn:
    """Insert one event in a transaction; return a place before its commit record."""
    with pipeline.connection.transaction():
        if payload is None:
            pipeline.insert(number)
        else:
            pipeline.execute(
                "INSERT INTO outbox (aggregatetype, aggregateid, type, payload) VALUES ('thing', 'k', 'Thing', %s)", (payload,)
            )
        [(text,)] = pipeline.execute("SELECT pg_current_wal_insert_lsn()::text")
    return Lsn.parse(text)


@sizes((20, 10), (200, 50))
def test_field_case_01_a_keepalives_answer_acknowledges_nothing(
    pipelines: Pipelines, database: str, spare_kafka: KafkaBroker, size: tuple[int, int]
) -> None:
    megabytes, answers = size
    pipeline = pipelines(database, spare_kafka.bootstrap_servers).set(postgres__status_interval="400ms")
    pipeline.init()
    pipeline.started()
    pipeline.insert(0)
    pipeline.wait_numbers([0])
    pid = pipeline.slot().active_pid
    spare_kafka.freeze()
    commit = insert_place(pipeline, 1)
    samples = []
    replies: set[object] = set()

    def sample() -> bool:
        samples.append(pipeline.slot())
        replies.update(pipeline.execute("SELECT reply_time FROM pg_stat_replication WHERE pid = %s", (pid,)))
        return len(replies) >= answers

    for _ in range(megabytes):
        pipeline.noise()
        sample()
    wait_for(sample, 60, "statuses keep coming while the broker is frozen")
    assert max(each.confirmed for each in samples) <= commit
    assert {each.active_pid for each in samples} == {pid}
    pipeline.kill()
    spare_kafka.thaw()
    pipeline.started()
    pipeline.wait_numbers([0, 1])


@sizes(0, 60)
def test_field_case_02_a_row_that_could_not_be_processed_is_not_acknowledged(pipeline: Pipeline, size: float) -> None:
    pipeline.set(outbox__on_invalid="stop").init()
    pipeline.started()
    pipeline.insert(1)
    pipeline.wait_numbers([1])
    end = pipeline.wait_confirmed()
    commit = insert_place(pipeline, 2, '{"n": 2, "extra": "new"}')
    stopped = pipeline.wait_exit()
    pipeline.insert(3)
    until = time.monotonic() + size
    rounds = 0
    while rounds < 2 or time.monotonic() < until:
        assert stopped.code == 7
        assert "extra" in stopped.line
        assert end <= pipeline.slot().confirmed <= commit
        assert pipeline.numbers() == [1]
        pipeline.start()
        stopped = pipeline.wait_exit()
        rounds += 1

    second = {**SCHEMA, "fields": [*SCHEMA["fields"], {"name": "extra", "type": "string", "default": ""}]}
    path = pipeline.folder / "schemas"
    (path / "Thing" / "2.avsc").write_text(json.dumps(second))
    contents = schema_folder.scan(path)
    schema_folder.write_lock(path, contents.lock.added((file.subject, file.number, file.fingerprint) for file in contents.unlocked))
    pipeline.started()
    pipeline.wait_confirmed()
    first, *others = pipeline.events()
    assert first.n == 1
    assert [decode(event.value, second)["n"] for event in others] == [2, 3]
    assert [event.headers["ce_dataschema"] for event in others] == [b"Thing/2", b"Thing/2"]


@sizes((100, 0.0), (500, 180.0))
def test_field_case_04_an_idle_outbox_does_not_pin_the_log(pipeline: Pipeline, size: tuple[int, float], figures: dict[str, Any]) -> None:
    megabytes, seconds = size
    pipeline.init()
    pipeline.started()
    before = pipeline.slot()
    began = time.monotonic()
    lags = []
    for i in range(megabytes):
        pipeline.noise()
        lags.append(pipeline.lsn() - pipeline.slot().confirmed)
        due = began + seconds * (i + 1) / megabytes
        wait_for(lambda due=due: time.monotonic() >= due, seconds + 1)  # type: ignore[misc]  # a rate is what is asked for
    wait_for(lambda: pipeline.lsn() - pipeline.slot().confirmed <= 2 * SEGMENT, 5, "the slot follows")
    if seconds:
        figures["idle_lag_max_mb"] = round(max(lags) / 1024 / 1024, 1)
        assert max(lags) <= 2 * SEGMENT
    for _ in range(2):
        pipeline.execute("CHECKPOINT")
        pipeline.wait_confirmed()
    wait_for(lambda: pipeline.slot().restart - before.restart >= (megabytes - 40) * 1024 * 1024, 30, "restart_lsn advances")
    assert pipeline.events() == []
    assert pipeline.events(pipeline.dead_letter_topic) == []
    assert len(pipeline.events(pipeline.position_topic)) > 1
    assert pipeline.status()["totals"]["failures"] == 0


@sizes(3, 200)
def test_field_case_06_begin_and_first_row_share_the_previous_commits_lsn(pipeline: Pipeline, size: int) -> None:
    pipeline.init()
    for i in range(size):
        pipeline.started()
        pipeline.insert(2 * i)
        pipeline.wait_confirmed()
        pipeline.stop()
        pipeline.insert(2 * i + 1)
    pipeline.started()
    pipeline.wait_numbers(range(2 * size))


@sizes(2, 50)
def test_field_case_06_with_concurrent_writers_and_kills(pipeline: Pipeline, size: int) -> None:
    pipeline.init()
    committed: list[int] = []
    stop = threading.Event()
    chance = random.Random(6)

    def write(writer: int) -> None:
        with psycopg.connect(pipeline.dsn) as connection:
            number = writer * 1_000_000
            while not stop.is_set():
                rows = chance.randint(1, 5)
                pipeline.insert(number, number + rows - 1, key=str(writer), on=connection)
                if chance.random() < 0.1:
                    connection.rollback()
                else:
                    connection.commit()
                    committed.extend(range(number, number + rows))
                number += rows
                stop.wait(0.01)

    writers = [threading.Thread(target=write, args=(number,)) for number in range(1, 5)]
    for writer in writers:
        writer.start()
    try:
        for _ in range(size):
            pipeline.started()
            seen = pipeline.status()["totals"]["events"]
            wait_for(lambda seen=seen: pipeline.status()["totals"]["events"] > seen + chance.randint(0, 50))  # type: ignore[misc]
            pipeline.kill()
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    pipeline.started()
    pipeline.wait_confirmed()
    assert sorted(pipeline.numbers()) == sorted(committed)
    by_key: dict[bytes | None, list[int]] = {}
    for event in pipeline.events():
        by_key.setdefault(event.key, []).append(event.n)
    assert all(numbers == sorted(numbers) for numbers in by_key.values())


def test_field_case_08_a_restart_filter_that_never_switches_off(pipeline: Pipeline) -> None:
    pipeline.init()
    pipeline.started()
    with psycopg.connect(pipeline.dsn) as open_transaction:
        pipeline.insert(1000, on=open_transaction)
        for number in range(300):
            pipeline.insert(number)
        pipeline.wait_confirmed()
        pipeline.stop()
        pipeline.started()
        open_transaction.commit()
    for number in range(300, 350):
        pipeline.insert(number)
    pipeline.wait_numbers([*range(300), 1000, *range(300, 350)])


@sizes(3, 100)
def test_field_case_10_the_acknowledged_position_survives_a_graceful_stop(pipeline: Pipeline, size: int) -> None:
    pipeline.set(postgres__status_interval="30s").init()
    for number in range(size):
        pipeline.started()
        commit = insert_place(pipeline, number)
        pipeline.wait_numbers(range(number + 1))
        pipeline.stop()
        assert commit < pipeline.slot().confirmed == pipeline.position()
        assert [event.n for event in pipeline.events(isolation="read_uncommitted")] == list(range(number + 1))
    pipeline.started()
    pipeline.wait_confirmed()
    assert [event.n for event in pipeline.events(isolation="read_uncommitted")] == list(range(size))


@sizes(1, 20)
def test_field_case_11_rows_that_are_committed_while_it_starts_for_the_first_time(
    tmp_path: Path, unique: str, database: str, kafka: str, size: int
) -> None:
    chance = random.Random(11)
    for i in range(size):
        folder = tmp_path / str(i)
        folder.mkdir()
        with Pipeline(folder, f"{unique}x{i}", database, kafka) as pipeline:
            _first_start(pipeline, chance.uniform(0, 1), first=i == 0)


def _first_start(pipeline: Pipeline, delay_s: float, *, first: bool) -> None:
    stop = threading.Event()

    def noise() -> None:
        with Pipeline(pipeline.folder, pipeline.name, pipeline.dsn, pipeline.bootstrap) as other:
            while not stop.is_set():
                other.noise()
                stop.wait(0.02)

    if first:
        pipeline.execute(create_sql(Table("public", "outbox"), OutboxMapping()))
        pipeline.insert(-10, -1)
    pipeline.init("--existing", "skip")
    with meanwhile(threading.Thread(target=noise), stop):
        stop.wait(delay_s)
        pipeline.start()
        for number in range(500):
            pipeline.insert(number)
        pipeline.wait_numbers(range(500))
