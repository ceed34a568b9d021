"""docs/from-polling.md, done: its table, its settings and its command, beside writers who do not stop."""

from __future__ import annotations

import json
import shlex
import threading
import tomllib

import psycopg
import pytest

from tests.docs.pages import ROOT, blocks
from tests.integration.test_recover import verified
from tests.pipeline import Pipeline, write_schemas
from tests.waiting import wait_for

pytestmark = pytest.mark.servers

GUIDE = {block.mark: block.text for block in blocks(ROOT / "docs" / "from-polling.md") if block.mark}
FIELDS = [{"name": "n", "type": "long"}, {"name": "eventType", "type": "string"}, {"name": "version", "type": "int"}]
INSERT = (
    "INSERT INTO events (event_id, stream, entity, body) SELECT 'event-' || n, 'thing', 'k',"
    """ jsonb_build_object('n', n, 'eventType', 'Thing', 'version', 1) FROM generate_series(%s::int, %s::int) n"""
)


def test_what_the_relay_had_not_sent_is_published_and_then_what_is_written(pipeline: Pipeline) -> None:
    write_schemas(pipeline.folder / "schemas", {"Thing": {"type": "record", "name": "Thing", "fields": FIELDS}})
    pipeline.execute(GUIDE["polling: table"])
    outbox = tomllib.loads(GUIDE["polling: settings"])["outbox"]
    pipeline.set(outbox__table=outbox["table"], outbox__columns=outbox["columns"], topics__value="json")
    pipeline.execute(INSERT, (1, 200))
    pipeline.execute("UPDATE events SET published_at = now(), attempts = 1 WHERE (body ->> 'n')::int <= 120")
    stop, last = threading.Event(), [200]

    def write() -> None:
        with psycopg.connect(pipeline.dsn, autocommit=True) as connection:
            while not stop.is_set():
                connection.execute(INSERT, (last[0] + 1, last[0] + 1))
                last[0] += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        program, *arguments = shlex.split(GUIDE["polling: init"])
        assert program == "cdc"
        made = pipeline.here(*arguments)
        assert made.code == 0, made.err
        pipeline.started()
    finally:
        stop.set()
        writer.join()
    expected = list(range(121, last[0] + 1))
    wait_for(lambda: len(pipeline.events()) >= len(expected), 60)
    events = pipeline.events()
    assert [json.loads(event.value or b"")["n"] for event in events] == expected
    assert [event.headers["ce_id"].decode() for event in events] == [f"event-{n}" for n in expected]
    assert {event.headers["ce_type"] for event in events} == {b"Thing"}
    assert {event.headers["ce_dataschema"] for event in events} == {b"Thing/1"}
    assert verified(pipeline) == {"rows": last[0], "events": len(expected), "skipped": 120}
