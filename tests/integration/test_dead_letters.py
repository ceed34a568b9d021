"""`cdc dead-letters` on real servers: what is shown, what is published after all, and how to get past one row."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from typing import Any

import pytest

from cdc import app as cdc_app
from cdc.audit.dead_letters import Choice, DeadLetters
from cdc.audit.redrive import Redrive
from cdc.avro import folder
from cdc.cli.patience import within
from cdc.errors import KafkaRefused, Retriable
from cdc.event import Record
from cdc.kafka.client import Waiting
from cdc.kafka.publisher import KafkaPublisher
from cdc.position import Position
from cdc.resilience.call import nobody_waits
from cdc.settings import load
from tests.conftest import Pipelines
from tests.pipeline import SCHEMA, Answer, Event, Pipeline, decode, sizes, write_schemas
from tests.waiting import wait_for

pytestmark = pytest.mark.servers

CANARY = "canary-5f1d"
LATER = {**SCHEMA, "name": "Later"}


@pytest.fixture
def pipeline(pipelines: Pipelines, database: str, kafka: str) -> Iterator[Pipeline]:
    with pipelines(database, kafka) as made:
        yield made


def insert(pipeline: Pipeline, kind: str, payload: str | None, key: str = "k") -> str:
    [(event_id,)] = pipeline.execute(
        "INSERT INTO outbox (aggregatetype, aggregateid, type, payload, headers) VALUES ('thing', %s, %s, %s, '{\"tenant\": \"a\"}')"
        " RETURNING id::text",
        (key, kind, payload),
    )
    return str(event_id)


def dead(pipeline: Pipeline, *arguments: str, code: int = 0) -> dict[str, Any]:
    answer = pipeline.here("dead-letters", *arguments, "--json")
    assert answer.code == code, answer
    assert CANARY not in answer.err
    document: dict[str, Any] = json.loads(answer.out.splitlines()[-1]) if answer.out else {}
    return document


def refused(pipeline: Pipeline, *arguments: str, code: int) -> Answer:
    answer = pipeline.here("dead-letters", *arguments)
    assert answer.code == code, answer
    assert CANARY not in answer.out + answer.err
    assert "Fix: " in answer.line
    return answer


def open_ids(pipeline: Pipeline, *arguments: str) -> list[str]:
    return [letter["id"] for letter in dead(pipeline, "list", *arguments)["dead_letters"]]


def add_schema(pipeline: Pipeline, schema: dict[str, Any]) -> None:
    (pipeline.folder / "schemas" / schema["name"]).mkdir()
    (pipeline.folder / "schemas" / schema["name"] / "1.avsc").write_text(json.dumps(schema))
    assert pipeline.here("schemas", "add", "--all").code == 0


def by_id(events: list[Event]) -> dict[str, Event]:
    return {event.headers["ce_id"].decode(): event for event in events}


def verified(pipeline: Pipeline) -> dict[str, int]:
    answer = pipeline.here("verify", "--json")
    assert answer.code == 0, answer
    return {name: count for name, count in json.loads(answer.out.splitlines()[-1]).items() if count}


def test_what_was_parked_is_listed_and_shown_without_its_payload(pipeline: Pipeline) -> None:
    write_schemas(pipeline.folder / "schemas")
    (pipeline.folder / "schemas" / "registry.toml").write_text('[subjects.Thing]\npersonal = ["text"]\n')
    pipeline.init()
    pipeline.started()
    wrong = insert(pipeline, "Thing", f'{{"n": "seven", "text": "{CANARY}", "txet": "{CANARY}"}}', key=f"key {CANARY}")
    unknown = insert(pipeline, "Unknown", f'{{"n": 1, "text": "{CANARY}"}}')
    pipeline.wait_confirmed()
    listed = dead(pipeline, "list")
    assert (listed["open"], [letter["id"] for letter in listed["dead_letters"]]) == (2, [wrong, unknown])
    first = listed["dead_letters"][0]
    assert {name: first[name] for name in ("reason", "type", "topic", "path", "open")} == {
        "reason": "schema", "type": "Thing", "topic": pipeline.topic, "path": "$.n", "open": True,
    }  # fmt: skip
    assert open_ids(pipeline, "--reason", "route") == []
    assert open_ids(pipeline, "--topic", pipeline.topic, wrong) == [wrong]
    assert open_ids(pipeline, "--until", first["committed"]) == []
    assert open_ids(pipeline, "--since", first["committed"]) == [wrong, unknown]
    people = pipeline.here("dead-letters", "list")
    assert (people.code, CANARY in people.out) == (0, False)
    assert wrong in people.out

    [shown] = dead(pipeline, "show", wrong)["dead_letters"]
    assert not {"payload", "row", "key"} & set(shown)
    assert CANARY not in json.dumps(shown)
    assert shown["headers"]["cdc.reason"] == "schema"
    [shown] = dead(pipeline, "show", wrong, "--payload")["dead_letters"]
    assert json.loads(shown["payload"]) == {"n": "seven", "text": "***", "txet": "***"}
    assert json.loads(shown["row"])["headers"] == '{"tenant": "a"}'
    [shown] = dead(pipeline, "show", unknown, "--payload")["dead_letters"]
    assert shown["payload"] == "***", "nobody can say what is personal in it"
    [shown] = dead(pipeline, "show", wrong, "--payload", "--unmasked")["dead_letters"]
    assert json.loads(shown["payload"])["text"] == CANARY
    assert CANARY not in pipeline.here("dead-letters", "show", unknown).out
    refused(pipeline, "show", "no-such-id", code=8)
    refused(pipeline, "show", wrong, "--unmasked", code=2)
    refused(pipeline, "list", "--until", "yesterday", code=2)


def test_a_mended_schema_lets_the_row_be_published_as_it_was(pipeline: Pipeline) -> None:
    pipeline.init()
    pipeline.started()
    late = insert(pipeline, "Later", f'{{"n": 1, "text": "{CANARY}"}}', key="a")
    alone = insert(pipeline, "Later", '{"n": 2}', key="b")
    wrong = insert(pipeline, "Thing", f'{{"n": "{CANARY}"}}')
    newer = insert(pipeline, "Thing", '{"n": 3}', key="a")
    pipeline.wait_confirmed()
    before = pipeline.events(pipeline.dead_letter_topic)

    add_schema(pipeline, LATER)
    answer = refused(pipeline, "redrive", "--reason", "schema", code=8)
    assert f"1 of 3 still cannot become an event, nothing was published: {wrong} (schema)" in answer.line
    refused(pipeline, "redrive", code=2)
    refused(pipeline, "redrive", "no-such-id", code=8)
    assert pipeline.events(pipeline.dead_letter_topic) == before
    assert list(by_id(pipeline.events())) == [newer]

    done = dead(pipeline, "redrive", late, alone)
    assert (done["redriven"], done["ids"], done["late"], done["topics"]) == (2, [late, alone], [late], {pipeline.topic: 2})
    events = by_id(pipeline.events())
    letters = {event.headers["cdc.id"].decode(): event for event in before}
    for event_id, key in ((late, b"a"), (alone, b"b")):
        event = events[event_id]
        assert event.key == key
        assert event.headers["ce_replay"] == b"redrive:" + event_id.encode()
        assert event.headers["ce_sequence"] == letters[event_id].headers["cdc.sequence"]
        assert event.headers["ce_dataschema"] == b"Later/1"
        assert event.headers["tenant"] == b"a"
        [(occurred,)] = pipeline.execute("SELECT to_char(occurred_at AT TIME ZONE 'UTC', 'US') FROM outbox WHERE id = %s", (event_id,))
        assert event.headers["ce_time"].decode().removesuffix("Z").partition(".")[2].ljust(6, "0") == occurred
        assert event.timestamp_ms > letters[event_id].timestamp_ms
    assert decode(events[late].value, LATER) == {"n": 1, "text": CANARY}
    assert open_ids(pipeline) == [wrong]
    assert open_ids(pipeline, "--all") == [late, alone, wrong]
    assert f"redriven before: {late}; nothing was published" in refused(pipeline, "redrive", late, wrong, code=8).line
    assert dead(pipeline, "redrive", "--topic", "no.such")["redriven"] == 0
    assert verified(pipeline) == {"rows": 4, "events": 1, "dead_letters": 3, "replayed": 2}

    pipeline.insert(9)
    wait_for(lambda: pipeline.status()["totals"]["events"] == 2)
    assert pipeline.status()["totals"]["failures"] == 0, "the pipeline was not fenced"


class Unlucky(KafkaPublisher):
    """A real producer whose first commit is answered by nobody, or meets a second redrive on its way."""

    meanwhile: Callable[[], object] | None = None
    lost = True

    def produce(self, records: Sequence[Record], waiting: Waiting) -> None:
        super().produce(records, waiting)
        if self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()

    def commit(self, position: Position | None, waiting: Waiting) -> None:
        super().commit(position, waiting)
        if self.lost:
            self.lost = False
            raise Retriable("the answer was lost")


def redrive_of(pipeline: Pipeline, made_by: ExitStack, choice: Choice) -> tuple[Redrive, Unlucky]:
    settings = load(pipeline.write(), (), {})
    reader = cdc_app.subscriber(settings)
    publisher = Unlucky(
        name=f"{pipeline.name}-redrive", kafka=settings.kafka, position_topic=pipeline.position_topic, create=cdc_app.create(settings)
    )
    made_by.callback(reader.close)
    made_by.callback(publisher.close)
    dead_letters = DeadLetters(reader, pipeline.dead_letter_topic, pipeline.name)
    encoder = folder.load(pipeline.folder / "schemas").encoder
    return Redrive(dead_letters, publisher, cdc_app.mapping(settings), encoder, choice, lambda _: None), publisher


@pytest.mark.parametrize("by_name", [True, False])
def test_neither_a_lost_answer_nor_a_second_redrive_publishes_twice(pipeline: Pipeline, *, by_name: bool) -> None:
    pipeline.init()
    pipeline.started()
    lost = insert(pipeline, "Later", '{"n": 1}')
    raced = insert(pipeline, "Later", '{"n": 2}')
    pipeline.wait_confirmed()
    add_schema(pipeline, LATER)
    with ExitStack() as stack:
        job, _ = redrive_of(pipeline, stack, Choice(frozenset({lost})) if by_name else Choice(until_ms=2**52))
        assert [each.letter.id for each in within(30, job.run)] == ([lost] if by_name else [lost, raced])
        if not by_name:
            assert len(pipeline.events()) == 2
            return
        first, publisher = redrive_of(pipeline, stack, Choice(frozenset({raced})))
        second, other = redrive_of(pipeline, stack, Choice(frozenset({raced})))
        publisher.lost = other.lost = False
        publisher.meanwhile = second.run
        assert [each.letter.id for each in within(30, first.run)] == [raced]
    assert sorted(by_id(pipeline.events())) == sorted([lost, raced])
    assert len(pipeline.events()) == 2
    assert open_ids(pipeline) == []
    assert verified(pipeline) == {"rows": 2, "dead_letters": 2, "replayed": 2}


def test_a_redrive_that_the_broker_timed_out_says_so(pipeline: Pipeline) -> None:
    pipeline.kafka(transaction_timeout_ms=1000).init()
    pipeline.started()
    insert(pipeline, "Later", '{"n": 1}')
    pipeline.wait_confirmed()
    add_schema(pipeline, LATER)
    with ExitStack() as stack:
        job, publisher = redrive_of(pipeline, stack, Choice(reason="schema"))
        publisher.lost = False
        publisher.meanwhile = lambda: wait_for(lambda: ended(pipeline), 40)
        with pytest.raises(KafkaRefused, match=r"1 dead letters took longer than transaction.timeout.ms"):
            within(30, job.run)
    assert pipeline.events() == []
    assert len(open_ids(pipeline)) == 1


def ended(pipeline: Pipeline) -> bool:
    """Whether what was written to the dead-letter topic is there and decided: more than the dead letter, and nothing open."""
    everything = pipeline.events(pipeline.dead_letter_topic, isolation="read_uncommitted")
    with closing(cdc_app.subscriber(load(pipeline.write(), (), {}))) as reader, suppress(Retriable):
        reader.settle([pipeline.dead_letter_topic], nobody_waits)
        return len(everything) > 1
    return False


def test_a_row_that_was_mended_in_the_table_is_taken_from_there(pipeline: Pipeline) -> None:
    pipeline.init()
    pipeline.started()
    wrong = insert(pipeline, "Thing", '{"n": "seven"}')
    gone = insert(pipeline, "Thing", '{"n": "eight"}')
    pipeline.wait_confirmed()
    pipeline.execute("UPDATE outbox SET payload = '{\"n\": 7}' WHERE id = %s", (wrong,))
    pipeline.execute("DELETE FROM outbox WHERE id = %s", (gone,))
    assert "still cannot" in refused(pipeline, "redrive", wrong, code=8).line
    assert "has no row with this id" in refused(pipeline, "redrive", wrong, gone, "--from-table", code=8).line
    assert dead(pipeline, "redrive", wrong, "--from-table")["redriven"] == 1
    [event] = pipeline.events()
    assert (event.n, event.headers["ce_replay"]) == (7, b"redrive:" + wrong.encode())
    assert open_ids(pipeline) == [gone]


def test_one_row_that_stops_the_pipeline_is_got_past(pipeline: Pipeline) -> None:
    pipeline.set(outbox__on_invalid="stop").init()
    pipeline.started()
    pipeline.insert(1)
    with pipeline.connection.transaction():
        pipeline.insert(2)
        one = insert(pipeline, "Unknown", f'{{"text": "{CANARY}"}}')
        two = insert(pipeline, "Thing", f'{{"n": "{CANARY}"}}')
    pipeline.insert(3)
    three = insert(pipeline, "Thing", '{"n": null}')
    pipeline.insert(4)
    stopped = pipeline.wait_exit()
    assert (stopped.code, f"cdc dead-letters park {one}" in stopped.line) == (7, True)
    assert pipeline.numbers() == [1]

    assert f"invalid event {one}" in refused(pipeline, "park", three, code=7).line
    assert f"invalid event {two}" in refused(pipeline, "park", one, code=7).line
    assert pipeline.numbers() == [1]
    assert pipeline.events(pipeline.dead_letter_topic) == []
    parked = dead(pipeline, "park", one, two)
    assert ([row["id"] for row in parked["parked"]], parked["missing"]) == ([one, two], [])
    assert parked["next"] is None or f"invalid event {three}" in parked["next"]
    assert pipeline.numbers()[:2] == [1, 2]
    assert open_ids(pipeline) == [one, two]

    pipeline.start()
    stopped = pipeline.wait_exit()
    assert (stopped.code, f"invalid event {three}" in stopped.line) == (7, True)
    place = stopped.line.split(" at ")[1].split()[0]
    assert [row["id"] for row in dead(pipeline, "park", place)["parked"]] == [three]
    pipeline.started()
    pipeline.wait_numbers([1, 2, 3, 4])
    assert open_ids(pipeline) == [one, two, three]
    assert verified(pipeline) == {"rows": 7, "events": 4, "dead_letters": 3}


@sizes(3_000, 100_000)
def test_many_are_redriven_in_one_kafka_transaction(pipeline: Pipeline, size: int) -> None:
    pipeline.set(topics__create__partitions=3).init()
    pipeline.started()
    pipeline.execute(
        "INSERT INTO outbox (aggregatetype, aggregateid, type, payload)"
        " SELECT 'thing', 'k' || n %% 100, 'Later', jsonb_build_object('n', n) FROM generate_series(1, %s) n",
        (size,),
    )
    pipeline.wait_confirmed(deadline_s=300)
    assert dead(pipeline, "list", "--reason", "schema")["open"] == size
    add_schema(pipeline, LATER)
    answer = pipeline.command("dead-letters", "redrive", "--reason", "schema", "--json", "--timeout", "120", timeout_s=600)
    assert answer.code == 0, answer.err
    document = json.loads(answer.out.splitlines()[-1])
    assert (document["redriven"], document["late"], len(set(document["ids"]))) == (size, [], size)
    events = pipeline.events()
    assert len(by_id(events)) == len(events) == size
    last: dict[bytes | None, bytes] = {}
    for event in events:
        assert last.get(event.key, b"") < event.headers["ce_sequence"], "each key in the order of the log"
        last[event.key] = event.headers["ce_sequence"]
    assert dead(pipeline, "list")["open"] == 0
    assert verified(pipeline) == {"rows": size, "dead_letters": size, "replayed": size}


def test_a_message_is_redriven_as_a_row_is(pipeline: Pipeline) -> None:
    pipeline.set(outbox__message_prefix="things").init()
    pipeline.started()
    message = {"id": "m-1", "aggregatetype": "thing", "aggregateid": "k", "type": "Later", "payload": {"n": 1}, "headers": {"tenant": "a"}}
    pipeline.execute("SELECT pg_logical_emit_message(true, 'things', %s)", (json.dumps(message),))
    pipeline.execute("SELECT pg_logical_emit_message(true, 'things', 'no JSON')")
    pipeline.wait_confirmed()
    assert open_ids(pipeline) == ["m-1", ""]
    add_schema(pipeline, LATER)
    assert dead(pipeline, "redrive", "m-1")["redriven"] == 1
    [event] = pipeline.events()
    assert (event.key, event.headers["ce_id"], event.headers["tenant"]) == (b"k", b"m-1", b"a")
    [letter] = dead(pipeline, "list")["dead_letters"]
    assert letter["reason"] == "mapping"
    refused(pipeline, "redrive", letter["sequence"], code=8)


@pytest.mark.parametrize("moment", ["slot", "fence", "letter"])
def test_a_parking_run_that_is_killed_is_run_again(pipeline: Pipeline, moment: str) -> None:
    pipeline.set(outbox__on_invalid="stop").init()
    pipeline.started()
    with pipeline.connection.transaction():
        pipeline.insert(1)
        bad = insert(pipeline, "Thing", f'{{"n": "{CANARY}"}}')
        pipeline.insert(2)
    assert pipeline.wait_exit().code == 7
    positions = len(pipeline.events(pipeline.position_topic, isolation="read_uncommitted"))
    facts: dict[str, Callable[[], object]] = {
        "slot": lambda: pipeline.slot().active_pid,
        "fence": lambda: len(pipeline.events(pipeline.position_topic, isolation="read_uncommitted")) > positions,
        "letter": lambda: pipeline.events(pipeline.dead_letter_topic, isolation="read_uncommitted"),
    }
    child = subprocess.Popen(
        [sys.executable, "-m", "cdc", "dead-letters", "park", bad, "--config", pipeline.config],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_for(facts[moment], 60)
    finally:
        child.kill()
        child.wait()
    again = dead(pipeline, "park", bad)
    assert [row["id"] for row in again["parked"]] + again["before"] == [bad]
    pipeline.started()
    pipeline.insert(3)
    pipeline.wait_numbers([1, 2, 3])
    assert open_ids(pipeline) == [bad]
    assert verified(pipeline) == {"rows": 4, "events": 3, "dead_letters": 1}
    assert dead(pipeline, "park", bad, "--timeout", "1", code=3) == {}


def test_nothing_is_parked_that_does_not_stop_the_pipeline(pipeline: Pipeline) -> None:
    pipeline.init()
    assert "outbox.on_invalid" in refused(pipeline, "park", "any", code=2).line
    pipeline.set(outbox__on_invalid="stop").insert(1)
    answer = refused(pipeline, "park", "any", code=8)
    assert "no invalid row any came" in answer.line
    pipeline.wait_numbers([1])
    pipeline.started()
    answer = refused(pipeline, "park", "any", "--timeout", "2", code=3)
    assert "is active for backend pid" in answer.line
    assert pipeline.status()["totals"]["failures"] == 0


def test_without_a_topic_of_dead_letters_it_says_so(pipeline: Pipeline) -> None:
    pipeline.set(topics__dead_letter="no.such.topic")
    assert "no.such.topic" in refused(pipeline, "list", code=5).line
