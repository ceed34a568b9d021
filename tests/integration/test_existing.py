"""`cdc init --existing publish` on real servers: rows from before the slot, and the stream after it, without a seam."""

from __future__ import annotations

import json
import threading

import pytest

from cdc.outbox.mapping import OutboxMapping
from cdc.outbox.table import create_sql
from cdc.postgres.slot import Table
from tests.integration.test_recover import verified
from tests.pipeline import Pipeline, sizes

pytestmark = pytest.mark.servers


@pytest.fixture
def filled(pipeline: Pipeline) -> Pipeline:
    """A table with rows 0 to 9, and no pipeline yet."""
    pipeline.execute(create_sql(Table("public", "outbox"), OutboxMapping()))
    pipeline.insert(0, 9)
    return pipeline


@sizes(5_000, 200_000)
def test_rows_from_before_and_after_the_slot_are_published_once_whoever_writes_meanwhile(filled: Pipeline, size: int) -> None:
    filled.insert(10, size - 1)
    stop = threading.Event()
    written = [size]

    def write() -> None:
        with Pipeline(filled.folder, filled.name, filled.dsn, filled.bootstrap) as other:
            while not stop.is_set():
                other.insert(written[0])
                written[0] += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        filled.init("--existing", "publish")
        filled.started()
    finally:
        stop.set()
        writer.join()
    total = written[0]
    filled.wait_numbers(range(total))
    assert verified(filled) == {"rows": total, "events": total}
    positions = [json.loads(event.value or b"") for event in filled.events(filled.position_topic)]
    assert positions[0]["pending"]
    assert positions[1]["existing"]["mode"] == "publish"
    sequences = [event.headers["ce_sequence"] for event in filled.events()]
    assert sequences == sorted(sequences)


def test_only_some_of_the_rows(filled: Pipeline) -> None:
    filled.init("--existing", "publish", "--where", "(payload ->> 'n')::int >= 6")
    filled.started()
    filled.insert(10)
    filled.wait_numbers(range(6, 11))
    assert verified(filled) == {"rows": 11, "events": 5, "skipped": 6}
    assert "exists already" in filled.here("init", "--existing", "publish").err


def test_a_condition_that_cannot_be_read_and_a_row_that_stops_leave_no_slot(filled: Pipeline) -> None:
    for where, words in (("n >", "syntax error"), ("nothing = 1", "does not exist")):
        refused = filled.here("init", "--existing", "publish", "--where", where)
        assert refused.code == 2
        assert words in refused.line
    assert filled.here("init", "--existing", "skip", "--where", "true").code == 2
    assert filled.here("init", "--existing", "copy").code == 2
    filled.execute("INSERT INTO outbox (aggregatetype, aggregateid, type, payload) VALUES ('thing', 'k', 'Thing', '{\"n\": \"x\"}')")
    refused = filled.set(outbox__on_invalid="stop").here("init", "--existing", "publish")
    assert refused.code == 7
    assert filled.execute("SELECT 1 FROM pg_replication_slots WHERE slot_name = %s", (filled.slot_name,)) == []
    filled.set(outbox__on_invalid="dead-letter").init("--existing", "publish")
    assert filled.numbers() == list(range(10))
    assert len(filled.events(filled.dead_letter_topic)) == 1
    assert verified(filled) == {"rows": 11, "events": 10, "dead_letters": 1}


def test_an_empty_table(pipeline: Pipeline) -> None:
    pipeline.init("--existing", "publish")
    pipeline.started()
    pipeline.insert(1)
    pipeline.wait_numbers([1])
    assert verified(pipeline) == {"rows": 1, "events": 1}
