"""How many dead letters are open, as `/metrics` has it: on a real topic, with a redrive and a topic that forgets."""

from __future__ import annotations

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from cdc import app
from cdc.audit import open_letters
from cdc.audit.open_letters import OpenLetters
from cdc.resilience.call import nobody_waits
from cdc.settings import load
from tests.inside import streaming
from tests.pipeline import Pipeline
from tests.waiting import wait_for

pytestmark = pytest.mark.servers


def test_open_is_what_no_redrive_closed_and_the_topic_still_holds(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline.init()
    settings = load(pipeline.write(), [], {})
    letters = OpenLetters(lambda: app.subscriber(settings), pipeline.dead_letter_topic, pipeline.name)
    assert letters.count(nobody_waits) == 0

    def park(*payloads: str) -> list[str]:
        rows = [
            pipeline.execute(
                "INSERT INTO outbox (aggregatetype, aggregateid, type, payload) VALUES ('thing', 'k', 'Thing', %s) RETURNING id::text", (p,)
            )
            for p in payloads
        ]
        return [name for [(name,)] in rows]

    with streaming(pipeline):
        first, *_ = park('{"n": "x"}', '{"m": 1}', '{"n": 1}')
        wait_for(lambda: letters.count(nobody_waits) == 2, 30, "both are counted")
        pipeline.execute("""UPDATE outbox SET payload = '{"n": 5}' WHERE id = %s""", (first,))
        redriven = pipeline.here("dead-letters", "redrive", first, "--from-table")
        assert redriven.code == 0, redriven.err
        assert letters.count(nobody_waits) == 1
        park('{"n": "y"}')
        wait_for(lambda: letters.count(nobody_waits) == 2, 30, "a new one is counted, and only that is read")
    assert OpenLetters(lambda: app.subscriber(settings), pipeline.dead_letter_topic, pipeline.name).count(nobody_waits) == 2
    _, second_letter, *others = pipeline.events(pipeline.dead_letter_topic)
    assert len(others) == 2

    with monkeypatch.context() as small:
        small.setattr(open_letters, "RECORDS_MAX", 3)
        assert letters.count(nobody_waits) is None, "too many to be read each time the process starts"

    admin = AdminClient({"bootstrap.servers": pipeline.bootstrap, "log_level": 0})
    for gone in admin.delete_records([TopicPartition(pipeline.dead_letter_topic, 0, second_letter.offset + 1)]).values():
        gone.result(30)
    assert letters.count(nobody_waits) == 1, "what retention took is not open any more"
