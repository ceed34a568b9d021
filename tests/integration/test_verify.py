"""`cdc verify` on real servers: what it finds, and what it rightly leaves alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from cdc.audit import verify
from tests.pipeline import Pipeline

pytestmark = pytest.mark.servers

CLEAN = {
    "missing": 0, "duplicated": 0, "unexpected": 0, "reordered": 0, "torn": 0,
    "deleted": 0, "expired": 0, "pending": 0, "skipped": 0, "replayed": 0,
}  # fmt: skip


@pytest.fixture
def pipeline(tmp_path: Path, unique: str, database: str, kafka: str) -> Iterator[Pipeline]:
    with Pipeline(tmp_path, unique, database, kafka) as each:
        yield each


def verified(pipeline: Pipeline, *arguments: str, code: int = 0) -> dict[str, Any]:
    answer = pipeline.command("verify", "--json", *arguments)
    assert answer.code == code, answer
    document: dict[str, Any] = json.loads(answer.out.splitlines()[-1])
    assert set(document) == {"rows", "events", "dead_letters", *CLEAN}
    return document


def test_a_running_pipeline_is_clean_with_dead_letters_and_deleted_rows_in_it(pipeline: Pipeline) -> None:
    pipeline.init()
    pipeline.started()
    pipeline.insert(1, 100)
    pipeline.execute("INSERT INTO outbox (aggregatetype, aggregateid, type, payload) VALUES ('thing', 'k', 'Thing', '{\"n\": \"x\"}')")
    pipeline.execute("INSERT INTO outbox (aggregatetype, aggregateid, type, payload) VALUES ('thing', 'k', 'Thing', NULL)")
    assert verified(pipeline) == {**CLEAN, "rows": 102, "events": 101, "dead_letters": 1}
    pipeline.execute("DELETE FROM outbox WHERE payload ->> 'n' = '7'")
    assert verified(pipeline) == {**CLEAN, "rows": 101, "events": 101, "dead_letters": 1, "deleted": 1}
    assert verified(pipeline, "--since", "2100-01-01T00:00:00Z") == {**CLEAN, "rows": 0, "events": 0, "dead_letters": 0}
    assert verified(pipeline, "--since", "2001-01-01T00:00:00Z")["events"] == 101


def test_a_topic_that_its_first_event_makes_while_the_position_is_waited_for(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline.init()
    pipeline.insert(1)
    published = verify._wait_published

    def meanwhile(*arguments: Any) -> bool:  # noqa: ANN401 - whatever it takes
        pipeline.started()
        return published(*arguments)

    monkeypatch.setattr(verify, "_wait_published", meanwhile)
    answer = pipeline.here("verify", "--json")
    assert answer.code == 0, answer
    assert json.loads(answer.out.splitlines()[-1]) == {**CLEAN, "rows": 1, "events": 1, "dead_letters": 0}


def test_rows_that_init_skipped_and_rows_past_the_position(pipeline: Pipeline) -> None:
    pipeline.init()
    pipeline.execute(f"SELECT pg_drop_replication_slot('{pipeline.slot_name}')")
    pipeline.insert(1, 3)
    other = Pipeline(pipeline.folder, pipeline.name + "b", pipeline.dsn, pipeline.bootstrap)
    with other:
        other.init("--existing", "skip")
        other.insert(4, 8)
        assert verified(other) == {**CLEAN, "rows": 8, "events": 0, "dead_letters": 0, "skipped": 3, "pending": 5}
        other.started()
        assert verified(other) == {**CLEAN, "rows": 8, "events": 5, "dead_letters": 0, "skipped": 3}


def delete_before(pipeline: Pipeline, offset: int) -> None:
    """Let the topic forget what lies before an offset, as retention does."""
    admin = AdminClient({"bootstrap.servers": pipeline.bootstrap, "log_level": 0})
    [deleted] = admin.delete_records([TopicPartition(pipeline.topic, 0, offset)]).values()
    deleted.result(30)


def test_rows_older_than_the_topic_keeps_are_expired(pipeline: Pipeline) -> None:
    pipeline.init()
    pipeline.started()
    pipeline.insert(1, 5)
    pipeline.insert(6, 10)
    pipeline.wait_confirmed()
    delete_before(pipeline, pipeline.events()[2].offset)
    assert verified(pipeline) == {**CLEAN, "rows": 10, "events": 8, "dead_letters": 0, "expired": 2}


def test_what_others_wrote_is_unexpected_and_what_was_changed_too(pipeline: Pipeline) -> None:
    pipeline.init()
    pipeline.started()
    pipeline.insert(1, 3)
    pipeline.wait_confirmed()
    producer = Producer({"bootstrap.servers": pipeline.bootstrap, "log_level": 0})
    event = pipeline.events()[0]
    producer.produce(pipeline.topic, b"not ours")
    producer.produce(pipeline.topic, event.value, event.key, headers=[("ce_source", b"/somebody-else")])
    producer.produce(pipeline.topic, event.value, event.key, headers=list(event.headers.items()))
    assert producer.flush(30) == 0
    pipeline.execute("UPDATE outbox SET payload = '{\"n\": 99}' WHERE payload ->> 'n' = '3'")
    found = verified(pipeline, code=8)
    assert {kind: count for kind, count in found.items() if count} == {
        "rows": 3, "events": 5, "unexpected": 2, "duplicated": 1, "reordered": 1,
    }  # fmt: skip
    answer = pipeline.command("verify")
    assert answer.code == 8
    assert "1 duplicated" in answer.line
    assert event.headers["ce_id"].decode() in answer.out


def test_a_row_that_the_log_never_held_is_missing(pipeline: Pipeline) -> None:
    pipeline.init()
    pipeline.execute("CREATE TABLE elsewhere (LIKE outbox INCLUDING ALL)")
    pipeline.started()
    pipeline.insert(1, 2)
    pipeline.execute("INSERT INTO elsewhere (aggregatetype, aggregateid, type, payload) VALUES ('thing', 'k', 'Thing', '{\"n\": 3}')")
    pipeline.execute("ALTER TABLE elsewhere INHERIT outbox")
    found = verified(pipeline, code=8)
    assert {kind: count for kind, count in found.items() if count} == {"rows": 3, "events": 2, "missing": 1}


def test_an_update_of_what_is_no_event_changes_nothing_but_the_age_of_rows_that_init_skipped(pipeline: Pipeline) -> None:
    pipeline.init()
    pipeline.execute(f"SELECT pg_drop_replication_slot('{pipeline.slot_name}')")
    pipeline.execute("ALTER TABLE outbox ADD COLUMN attempts int")
    pipeline.insert(1)
    with Pipeline(pipeline.folder, pipeline.name + "b", pipeline.dsn, pipeline.bootstrap) as other:
        other.init("--existing", "skip")
        other.started()
        other.insert(2, 3)
        other.insert(4, 5)
        other.wait_confirmed()
        other.execute("UPDATE outbox SET attempts = 1 WHERE payload ->> 'n' <> '1'")
        assert verified(other) == {**CLEAN, "rows": 5, "events": 4, "dead_letters": 0, "skipped": 1}
        delete_before(other, other.events()[2].offset)
        assert verified(other) == {**CLEAN, "rows": 5, "events": 2, "dead_letters": 0, "skipped": 1, "expired": 2}
        other.execute("UPDATE outbox SET attempts = 1 WHERE payload ->> 'n' = '1'")
        found = verified(other)
        assert (found["skipped"], found["expired"]) == (0, 3), "an updated row looks new, and as old as it says"


def test_an_update_of_a_row_that_init_skipped_makes_it_missing(pipeline: Pipeline) -> None:
    pipeline.init()
    pipeline.execute(f"SELECT pg_drop_replication_slot('{pipeline.slot_name}')")
    pipeline.insert(1)
    with Pipeline(pipeline.folder, pipeline.name + "b", pipeline.dsn, pipeline.bootstrap) as other:
        other.init("--existing", "skip")
        other.started()
        other.insert(2)
        other.wait_confirmed()
        other.execute("UPDATE outbox SET headers = NULL WHERE payload ->> 'n' = '1'")
        found = verified(other, code=8)
        assert {kind: count for kind, count in found.items() if count} == {"rows": 2, "events": 1, "missing": 1}


def test_a_row_without_end_of_time_and_keys_of_any_length(pipeline: Pipeline) -> None:
    pipeline.init()
    pipeline.started()
    pipeline.insert(1, 2, key="k" * 500)
    pipeline.insert(3, 4, key="k" * 500 + "x", text='a\\ tab\t, a line\n, a quote" and an é')
    pipeline.execute("INSERT INTO outbox SELECT gen_random_uuid(), 'thing', 'k', 'Thing', '{\"n\": 5}', 1, NULL, 'infinity'")
    pipeline.execute("INSERT INTO outbox SELECT gen_random_uuid(), 'thing', 'k', repeat('T', 2000), '{\"n\": 6}'")
    assert verified(pipeline) == {**CLEAN, "rows": 6, "events": 4, "dead_letters": 2}
    delete_before(pipeline, pipeline.events()[3].offset)
    assert verified(pipeline) == {**CLEAN, "rows": 6, "events": 1, "dead_letters": 2, "expired": 3}


def test_a_time_that_is_none(pipeline: Pipeline) -> None:
    pipeline.init()
    assert pipeline.command("verify", "--since", "yesterday").code == 2
