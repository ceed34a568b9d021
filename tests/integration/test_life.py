"""The life of the process: standing by, taking over, stopping, coming back; and what its logs never tell."""

from __future__ import annotations

import random
import threading
import time

import psycopg
import pytest

from cdc.devstack.postgres import PostgresServer
from tests.conftest import Pipelines
from tests.pipeline import Pipeline
from tests.waiting import wait_for

pytestmark = pytest.mark.servers

CANARY = "canary-5d1f"


def test_a_second_instance_stands_by_and_takes_over(pipeline: Pipeline) -> None:
    pipeline.init()
    first = pipeline.started()
    port = pipeline.another_port()
    second = pipeline.start(port=port)
    wait_for(lambda: pipeline.get("/health/ready", port)[1].startswith("standby"), 30, "the second one stands by")
    code, text = pipeline.get("/health/ready", port)
    assert code == 503
    assert pipeline.slot_name in text
    assert str(pipeline.slot().active_pid) in text
    assert pipeline.get("/health/live", port)[0] == 200
    status = pipeline.status(port)
    assert (status["state"], status["standby"], status["ready"]) == ("standby", True, False)
    pipeline.insert(1, 50)
    pipeline.kill(first)
    began = time.monotonic()
    pipeline.wait_ready(port, 30)
    assert time.monotonic() - began < 10
    pipeline.insert(51, 60)
    pipeline.wait_numbers(range(1, 61))
    assert pipeline.log_of(second).count('"state": "standby"') == 1, "it says so once"
    assert pipeline.terminate(second) == 0


def test_a_standby_stops_at_once(pipeline: Pipeline) -> None:
    pipeline.init()
    pipeline.started()
    port = pipeline.another_port()
    second = pipeline.start(port=port)
    wait_for(lambda: pipeline.get("/health/ready", port)[1].startswith("standby"), 30)
    assert pipeline.terminate(second, 5) == 0
    assert pipeline.ready()


@pytest.mark.parametrize("backlog", [1, 30_000])
def test_sigterm_ends_with_0_and_what_is_published_is_confirmed(pipeline: Pipeline, backlog: int) -> None:
    pipeline.init()
    pipeline.started()
    for first in range(0, backlog, 100):
        pipeline.insert(first, min(first + 99, backlog - 1))
    began = time.monotonic()
    assert pipeline.terminate() == 0
    assert time.monotonic() - began < 10
    position = pipeline.position()
    assert pipeline.slot().confirmed == position
    assert pipeline.slot().active_pid is None
    pipeline.started()
    pipeline.wait_numbers(range(backlog))


def test_a_terminated_walsender_is_replaced_under_load(pipeline: Pipeline) -> None:
    pipeline.init()
    pipeline.started()
    for first in range(0, 3000, 10):
        pipeline.insert(first, first + 9)
        if first % 1000 == 500:
            pipeline.execute(
                "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s", (pipeline.slot_name,)
            )
            wait_for(lambda: pipeline.slot().active_pid, 30)
    pipeline.wait_numbers(range(3000))
    assert pipeline.process.poll() is None


def test_a_server_that_is_restarted_at_once_under_load(
    pipelines: Pipelines, spare_postgres: PostgresServer, spare_database: str, kafka: str
) -> None:
    pipeline = pipelines(spare_database, kafka)
    pipeline.init()
    pipeline.execute("ALTER TABLE outbox ADD COLUMN writer int")
    pipeline.started()
    stop = threading.Event()
    chance = random.Random(25)

    def write(writer: int) -> None:
        number = writer * 1_000_000
        while not stop.is_set():
            try:
                with psycopg.connect(spare_database) as connection:
                    while not stop.is_set():
                        rows = chance.randint(1, 20)
                        pipeline.insert(number, number + rows - 1, key=str(writer), on=connection)
                        connection.commit()
                        number += rows
                        stop.wait(0.002)
            except psycopg.Error:
                number += 20  # its outcome is unknown: the table will tell
                stop.wait(0.05)

    writers = [threading.Thread(target=write, args=(number,)) for number in range(1, 5)]
    for writer in writers:
        writer.start()
    try:
        for _ in range(2):
            pipeline.wait_ready(deadline_s=30)
            seen = pipeline.status()["totals"]["events"]
            wait_for(lambda seen=seen: pipeline.status()["totals"]["events"] > seen + 500)  # type: ignore[misc]
            spare_postgres.restart("immediate")
            pipeline.hang_up()
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    pipeline.wait_ready(deadline_s=30)
    pipeline.wait_confirmed()
    numbers = pipeline.numbers()
    committed = [n for (n,) in pipeline.execute("SELECT (payload->>'n')::int FROM outbox")]
    assert sorted(numbers) == sorted(committed)
    for writer_number in range(1, 5):
        of_one = [n for n in numbers if n // 1_000_000 == writer_number]
        assert of_one == sorted(of_one)


def test_a_large_transaction_arrives_whole(pipeline: Pipeline) -> None:
    pipeline.init()
    pipeline.started()
    pipeline.insert(1)
    with psycopg.connect(pipeline.dsn) as large:
        for first in range(100_000, 120_000, 1000):
            pipeline.insert(first, first + 999, key="large", on=large)
        pipeline.insert(2)
        pipeline.wait_numbers([1, 2])
        large.commit()
    pipeline.insert(3)
    seen = set()

    def look() -> bool:
        numbers = pipeline.numbers()
        seen.add(len([number for number in numbers if number >= 100_000]))
        return 3 in numbers

    wait_for(look, 60)
    assert seen <= {0, 20_000}
    assert pipeline.numbers() == [1, 2, *range(100_000, 120_000), 3]


INVALID = (
    ("thing", "k", "Thing", '{"n": "not a number"}', "schema"),
    ("thing", "k", "Unknown", '{"n": 1}', "schema"),
    ("no such topic!", "k", "Thing", '{"n": 1}', "route"),
)


def insert_invalid(pipeline: Pipeline, aggregatetype: str, aggregateid: str, kind: str, payload: str) -> None:
    pipeline.execute(
        "INSERT INTO outbox (aggregatetype, aggregateid, type, payload) VALUES (%s, %s, %s, %s)",
        (aggregatetype, aggregateid, kind, payload.replace("}", f', "text": "{CANARY}"}}')),
    )


def test_invalid_rows_are_parked_beside_their_neighbours_and_never_told(pipeline: Pipeline) -> None:
    pipeline.init()
    pipeline.started("--log-level", "debug")
    with pipeline.connection.transaction():
        pipeline.insert(1, text=CANARY, key=CANARY)
        for *row, _ in INVALID:
            insert_invalid(pipeline, *row)
        pipeline.insert(2, text=CANARY)
    pipeline.wait_confirmed()
    assert pipeline.numbers() == [1, 2]
    dead = pipeline.events(pipeline.dead_letter_topic)
    assert [event.headers["cdc.reason"].decode() for event in dead] == [reason for *_, reason in INVALID]
    assert all(CANARY.encode() in (event.value or b"") for event in dead), "the original bytes"
    ids = [str(event_id) for (event_id,) in pipeline.execute("SELECT id FROM outbox WHERE payload->>'n' NOT IN ('1', '2') OR true")]
    assert {event.headers["cdc.id"].decode() for event in dead} <= set(ids)
    status = pipeline.status()
    assert (status["totals"]["events"], status["totals"]["dead_letters"]) == (2, 3)
    pages = [pipeline.get(path)[1] for path in ("/", "/metrics", "/status", "/health/ready", "/health/live")]
    pipeline.kill()
    pipeline.started("--log-level", "debug")
    pipeline.stop()
    assert all(pages)
    assert not any(CANARY in page for page in pages)
    assert "dead letter" in pipeline.log
    assert CANARY not in pipeline.log


@pytest.mark.parametrize("row", INVALID, ids=["value", "subject", "route"])
def test_invalid_rows_stop_the_pipeline_by_policy(pipeline: Pipeline, row: tuple[str, str, str, str, str]) -> None:
    pipeline.set(outbox__on_invalid="stop").init()
    pipeline.started()
    *values, reason = row
    pipeline.insert(1)
    with pipeline.connection.transaction():
        pipeline.insert(2, text=CANARY)
        insert_invalid(pipeline, *values)
    pipeline.insert(3)
    stopped = pipeline.wait_exit()
    assert stopped.code == 7
    assert reason in stopped.line
    assert CANARY not in stopped.err
    assert pipeline.numbers() == [1]
    pipeline.set(outbox__on_invalid="dead-letter").started()
    pipeline.wait_numbers([1, 2, 3])
    assert len(pipeline.events(pipeline.dead_letter_topic)) == 1
