"""What happens to a slot while the pipeline streams from it, and to the position that belongs to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from confluent_kafka.admin import AdminClient
from psycopg import pq, sql

from cdc.errors import ContinuityError, KafkaRefused
from cdc.postgres.connection import connect_replication
from cdc.postgres.walsender import _STATUS
from tests.inside import Inside, refusal, streaming
from tests.pipeline import Pipeline
from tests.waiting import wait_for

pytestmark = pytest.mark.servers

DROP = """
DO $$ BEGIN
    FOR i IN 1..1000 LOOP
        PERFORM pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '{slot}';
        BEGIN
            PERFORM pg_drop_replication_slot('{slot}');
            RETURN;
        EXCEPTION WHEN object_in_use THEN
            PERFORM pg_sleep(0.001);
        END;
    END LOOP;
    RAISE 'the slot is in use for ever';
END $$"""


def test_a_slot_that_is_dropped_while_streaming(pipeline: Pipeline) -> None:
    pipeline.init()
    pipeline.insert(1)
    process = pipeline.started()
    pipeline.wait_numbers([1])
    waiting = pipeline.start(port=(port := pipeline.another_port()))
    wait_for(lambda: pipeline.get("/health/ready", port)[1].startswith("standby"), 30, "a second one stands by")
    pipeline.execute(DROP.format(slot=pipeline.slot_name))
    for each in (process, waiting):
        assert each.wait(30) == 4, pipeline.log_of(each)
        [line] = [line for line in pipeline.log_of(each).splitlines() if line.startswith("cdc: ")]
        assert f"slot '{pipeline.slot_name}' is missing: the log after " in line
        assert "`cdc recover`" in line


@contextmanager
def taken_away(pipeline: Pipeline) -> Iterator[pq.abc.PGconn]:
    """Take the slot from whoever has it, as somebody with the right to replicate can; it is free again afterwards."""
    connection = connect_replication(pipeline.dsn, "somebody", 60.0)
    command = sql.SQL("START_REPLICATION SLOT {} LOGICAL 0/0 (proto_version '1', publication_names {})").format(
        sql.Identifier(pipeline.slot_name), sql.Literal(f'"{pipeline.slot_name}"')
    )

    def take() -> bool:
        pipeline.execute("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s", (pipeline.slot_name,))
        return connection.pgconn.exec_(command.as_string().encode()).status == pq.ExecStatus.COPY_BOTH

    try:
        wait_for(take, 30, "the slot is taken")
        yield connection.pgconn
    finally:
        connection.close()


def test_a_slot_that_somebody_takes_is_waited_for(pipeline: Pipeline) -> None:
    pipeline.init()
    with streaming(pipeline) as inside:
        pipeline.insert(1)
        pipeline.wait_numbers([1])
        with taken_away(pipeline):
            pipeline.insert(2)
            wait_for(lambda: inside.observer.health.snapshot.standby, 30, "it stands by")
        pipeline.wait_numbers([1, 2])


def test_a_slot_that_somebody_takes_and_moves_is_ahead(pipeline: Pipeline) -> None:
    """Whoever confirms what it was not ours to confirm lets the log forget rows; the next look says which part."""
    pipeline.init()
    inside = Inside(pipeline)
    inside.wait_streaming()
    pipeline.insert(1)
    pipeline.wait_numbers([1])
    with taken_away(pipeline) as taker:
        pipeline.insert(2)
        end = pipeline.lsn()
        taker.put_copy_data(_STATUS.pack(b"r", end, end, end, 0, 0))
        taker.flush()
        wait_for(lambda: pipeline.slot().confirmed >= end, 30, "it is confirmed")
    with pytest.raises(ContinuityError) as caught:
        inside.end()
    assert f"slot '{pipeline.slot_name}' is ahead: it forgot everything up to {end}" in caught.value.what
    assert pipeline.numbers() == [1]


def test_positions_that_kafka_lost(pipeline: Pipeline) -> None:
    """The topic was deleted, and made anew by somebody: a slot without a position is nobody's guess."""
    pipeline.init()
    pipeline.insert(1)
    with streaming(pipeline):
        pipeline.wait_numbers([1])
    admin = AdminClient({"bootstrap.servers": pipeline.bootstrap, "log_level": 0})
    for deleted in admin.delete_topics([pipeline.position_topic]).values():
        deleted.result(30)
    wait_for(lambda: pipeline.position_topic not in admin.list_topics(timeout=10).topics, 30, "the topic is gone")
    pipeline.insert(2)
    with pytest.raises(KafkaRefused, match="does not exist"):
        Inside(pipeline).end()
    pipeline.make_topic(pipeline.position_topic, cleanup_policy="compact")
    refusal(pipeline, f"slot '{pipeline.slot_name}' exists but the position topic holds no position")
    assert pipeline.numbers() == [1]


def test_a_server_with_other_settings_for_the_same_name(pipeline: Pipeline) -> None:
    """A slot of another plugin, and one that the position does not belong to."""
    pipeline.init()
    pipeline.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (f"{pipeline.slot_name}_other",))
    pipeline.set(postgres__slot=f"{pipeline.slot_name}_other")
    refusal(pipeline, f"the position was made with slot '{pipeline.slot_name}'", "correct postgres.slot")
    with psycopg.connect(pipeline.dsn, autocommit=True) as connection:
        connection.execute("SELECT pg_drop_replication_slot(%s)", (f"{pipeline.slot_name}_other",))
