"""`topics.headers = "debezium"` with JSON values: what a consumer of Debezium's sees, and what our commands still find."""

from __future__ import annotations

import json

import pytest

from tests.integration.test_recover import verified
from tests.pipeline import Pipeline

pytestmark = pytest.mark.servers


def test_records_as_debezium_makes_them_and_every_command_finds_their_ids(pipeline: Pipeline) -> None:
    pipeline.set(topics__headers="debezium", topics__value="json", topics__placement="type:header:eventType")
    pipeline.init()
    pipeline.started()
    pipeline.insert(1, 3, text="ä")
    pipeline.execute("INSERT INTO outbox (aggregatetype, aggregateid, type, payload) VALUES ('thing', 'k', 'Thing', '{\"n\": \"x\"}')")
    pipeline.execute("INSERT INTO outbox (aggregatetype, aggregateid, type) VALUES ('thing', 'k', 'Thing')")
    pipeline.wait_confirmed()
    pipeline.insert(4)  # later by more than a millisecond: without a place in the headers a redrive compares commit times
    pipeline.wait_confirmed()
    rows = pipeline.execute("SELECT id::text, payload::text FROM outbox WHERE payload IS NULL OR jsonb_typeof(payload -> 'n') = 'number'")
    texts: dict[str, str | None] = dict(rows)
    events = pipeline.events()
    assert len(events) == 5
    for event in events:
        identity = event.headers["id"].decode()
        assert event.headers == {"id": identity.encode(), "eventType": b"Thing"}
        assert (None if event.value is None else event.value.decode()) == texts[identity]
        assert event.key == b"k"
    assert verified(pipeline) == {"rows": 6, "events": 5, "dead_letters": 1}

    tailed = pipeline.here("tail", "--from-beginning", "--json", "--limit", "1")
    assert json.loads(tailed.out)["value"] == {"n": 1, "text": "ä"}
    untold = pipeline.here("tail", "--from-beginning", "--json", "--limit", "1", "--set", "topics.placement=")
    assert json.loads(untold.out)["value"] == "***"

    letters = json.loads(pipeline.here("dead-letters", "list", "--json").out.splitlines()[-1])
    [bad] = pipeline.execute("SELECT id::text FROM outbox WHERE jsonb_typeof(payload -> 'n') = 'string'")
    assert bad[0] in json.dumps(letters)
    pipeline.execute("UPDATE outbox SET payload = '{\"n\": 9}' WHERE id = %s", bad)
    redriven = pipeline.here("dead-letters", "redrive", bad[0], "--from-table")
    assert redriven.code == 0, redriven.err
    assert "newer" in redriven.err + redriven.out, "events of its key have passed"
    replayed = pipeline.here("replay", "--id", next(iter(texts)))
    assert replayed.code == 0, replayed.err
    marks = [event.headers["replay"].partition(b":")[0] for event in pipeline.events() if "replay" in event.headers]
    assert marks == [b"redrive", b"replay"]
    # A row that was mended is another one than its dead letter has, and a record without a row is not missed.
    pipeline.execute("DELETE FROM outbox WHERE id = ANY(%s::uuid[])", ([bad[0], next(iter(texts))],))
    assert verified(pipeline) == {"rows": 4, "events": 5, "dead_letters": 1, "replayed": 2, "deleted": 2}
