"""Field cases of consumers: what users of other libraries lost or did twice on the other side of the topic."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import fastavro
import psycopg
import pytest
from confluent_kafka import Producer

from cdc.audit.consumer_letters import ConsumerRedrive
from cdc.audit.dead_letters import Choice, DeadLetters
from cdc.consumer import Consumer, Event, Retry, Unprocessable, driver, loop
from cdc.consumer.ports import Log
from cdc.devstack.postgres import PostgresServer
from cdc.devstack.process import held_ports, port_of
from cdc.kafka.publisher import KafkaPublisher
from cdc.kafka.subscriber import Subscriber
from cdc.testing.windows import running
from tests.consumers import CREATE, Line, consuming, event, letters, line, write_effect
from tests.pipeline import SCHEMA, consume, sizes, write_schemas
from tests.waiting import wait_for

QUICK = Retry.fixed(0.02, attempts=2)


@pytest.fixture
def shop(unique: str, kafka: str, database: str, tmp_path: Path) -> Line:
    return line(unique, kafka, database, tmp_path)


def parked(shop: Line, number: int) -> list[dict[str, str]]:
    """Wait for dead letters, and return their headers."""
    topic = f"cdc.{shop.name}.dead-letter"
    wait_for(lambda: len(consume(shop.bootstrap, [topic])) >= number, 60, f"{number} dead letters")
    return letters(consume(shop.bootstrap, [topic]))


def test_field_case_45_a_nul_in_text_and_id_is_neither_lost_nor_looped(shop: Line) -> None:
    shop.make_topic()
    consumer = shop.consumer(retry=QUICK)
    texts: list[str] = []
    shop.execute("CREATE TABLE notes (n text)")

    @consumer.on("Thing")
    def keep(event: Event, connection: psycopg.Connection[Any]) -> None:
        texts.append(event.value["text"])
        if event.value["n"] == 1:
            connection.execute("INSERT INTO notes VALUES (%s)", (event.value["text"],))
        write_effect(Event(**{**fields(event), "id": "kept"}), connection)

    good, bad = event(0, event_id="a\0b", ce_source="/s\0"), event(1, event_id="c\0d")
    for each, n in ((good, 0), (bad, 1)):
        body = io.BytesIO()
        fastavro.schemaless_writer(body, fastavro.parse_schema(dict(SCHEMA)), {"n": n, "text": "a\0b"})
        each["value"] = b"\0\0\0\0\1" + body.getvalue()
    shop.publish(good, good, bad, event(2))
    with consuming(consumer):
        [letter] = parked(shop, 1)
        shop.wait_effects([0, 2])
    assert texts[0] == "a\0b"
    assert letter["cdc.id"] == "c\0d"
    assert shop.execute("SELECT event_id, source FROM processed_events WHERE event_id LIKE 'a%%'") == [("a\\0b", "/s\\0")]


def fields(event: Event) -> dict[str, Any]:
    return {name: getattr(event, name) for name in event.__slots__}


@pytest.mark.parametrize("inbox", ["events", "high-water"])
def test_field_case_66_ids_are_no_order(shop: Line, inbox: str) -> None:
    shop.make_topic()
    consumer = shop.consumer(inbox=inbox)
    consumer.on("Thing")(write_effect)
    # Commit order is 2, 1, 51: the sequence tells it, the ids do not, and gaps are waited for by nobody.
    shop.publish(*[event(n, event_id=str(n), ce_sequence=f"{1:04x}{place:016x}{0:08x}") for place, n in enumerate((2, 1, 51))])
    with consuming(consumer):
        shop.wait_effects([2, 1, 51])


def test_field_case_101_the_writers_schema_is_found_by_the_id(shop: Line, tmp_path: Path) -> None:
    newer = {**SCHEMA, "fields": [*SCHEMA["fields"], {"name": "note", "type": ["null", "string"], "default": None}]}
    folder = tmp_path / "two"
    write_schemas(folder, locked=False)
    (folder / "Thing" / "2.avsc").write_text(json.dumps(newer))
    lock(folder)
    shop.schemas = folder
    shop.make_topic()
    consumer = shop.consumer(retry=QUICK)
    got: list[tuple[str, dict[str, Any], int]] = []
    consumer.on("Thing", name="newest")(lambda event: got.append(("newest", event.value, event.schema_version)))
    consumer.on("Thing", name="old", version=1)(lambda event: got.append(("old", event.value, event.schema_version)))
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(dict(newer)), {"n": 2, "text": "", "note": "x"})
    second = {**event(2), "value": b"\0\0\0\0\2" + body.getvalue()}
    unknown, left = {**event(3), "value": b"\0\0\0\x03\xe7\2\0"}, {**event(4), "value": event(4)["value"] + b"more"}
    shop.publish(event(1), second, unknown, left, event(5))
    with consuming(consumer):
        wait_for(lambda: shop.committed() == 5, 60, "all are through")
    assert got[:4] == [
        ("newest", {"n": 1, "text": "", "note": None}, 1),
        ("old", {"n": 1, "text": ""}, 1),
        ("newest", {"n": 2, "text": "", "note": "x"}, 2),
        ("old", {"n": 2, "text": ""}, 2),
    ]
    assert [value["n"] for _, value, _ in got[4:]] == [5, 5]
    first, second_letter = parked(shop, 2)
    assert (first["__connect.errors.exception.class.name"], first["cdc.attempts"]) == ("UnknownSchemaError", "2")
    assert (second_letter["__connect.errors.exception.class.name"], second_letter["cdc.attempts"]) == ("MalformedError", "1")
    assert "left over" in second_letter["__connect.errors.exception.message"]
    assert {first["cdc.reason"], second_letter["cdc.reason"]} == {"schema"}


def lock(folder: Path) -> None:
    from cdc.avro import folder as schema_folder  # noqa: PLC0415 - used here alone

    contents = schema_folder.scan(folder)
    schema_folder.write_lock(folder, contents.lock.added((each.subject, each.number, each.fingerprint) for each in contents.unlocked))


def test_field_case_114_tombstones_pass_and_empty_values_do_not(shop: Line) -> None:
    shop.make_topic()
    consumer = shop.consumer(batch=10)
    got: list[tuple[str | None, object]] = []
    consumer.on("Thing", name="all")(lambda event: got.append((event.key, event.value and event.value["n"])))
    tombstone, empty = {**event(1), "value": None}, {**event(3), "value": b""}
    shop.publish(tombstone, event(2, key=None), empty, event(4))
    with consuming(consumer):
        [letter] = parked(shop, 1)
        wait_for(lambda: shop.committed() == 4, what="all are through")
    assert got == [("k", None), (None, 2), ("k", 4)]
    assert letter["__connect.errors.offset"] == "2"


@sizes((3, 2_000), (20, 20_000))
def test_field_case_116_aborted_records_are_no_standstill(shop: Line, size: tuple[int, int]) -> None:
    shop.make_topic()
    consumer = shop.consumer()
    consumer.on("Thing")(write_effect)
    producer = Producer({"bootstrap.servers": shop.bootstrap, "transactional.id": shop.name, "linger.ms": 5})
    producer.init_transactions(30)
    for _ in range(size[0]):
        producer.begin_transaction()
        for n in range(size[1]):
            producer.produce(shop.topic, **event(n))
            producer.poll(0)
        producer.flush(60)
        producer.abort_transaction(60)
    producer.begin_transaction()
    producer.produce(shop.topic, **event(7))
    producer.commit_transaction(60)
    end = size[0] * (size[1] + 1) + 2  # each Kafka transaction ends with a marker
    watching = Watching()
    consumer._observer = watching
    with consuming(consumer):
        shop.wait_effects([7], 120)
        wait_for(lambda: shop.committed() == end, what="the group stands behind the last marker")
        wait_for(lambda: watching.lag.get((shop.topic, 0)) == 0, what="no lag is left")


class Watching(Log):
    """Keeps what the others only say."""

    def __init__(self) -> None:
        self.lag: dict[Any, int] = {}
        self.losses: list[bool] = []
        self.places: set[Any] = set()
        self.late_results = 0
        self.stops: list[str] = []

    def turned(self, consumer: str, state: Any) -> None:  # noqa: ANN401 - a mapping of many things
        self.lag = state["lag"]

    def assigned(self, consumer: str, places: Any) -> None:  # noqa: ANN401 - see above
        self.places |= set(places)

    def revoked(self, consumer: str, places: Any, *, lost: bool) -> None:  # noqa: ANN401 - see above
        self.losses.append(lost)
        self.places -= set(places)

    def late(self, consumer: str, lane: Any) -> None:  # noqa: ANN401 - see above
        self.late_results += 1

    def stopped(self, consumer: str, lane: Any) -> None:  # noqa: ANN401 - see above
        self.stops.append(lane.why)


@pytest.mark.parametrize("strategy", ["cooperative-sticky", pytest.param("range", marks=pytest.mark.soak)])
def test_field_case_118_a_result_of_a_partition_that_was_taken_away(shop: Line, monkeypatch: pytest.MonkeyPatch, strategy: str) -> None:
    monkeypatch.setattr(driver, "HANDOVER_S", 0.05)
    shop.make_topic(partitions=4)
    shop.publish(*[event(n, partition=n % 4) for n in range(20)])
    held, entered = threading.Event(), threading.Semaphore(0)
    watching = Watching()

    def member() -> Consumer:
        made = shop.consumer(workers=4, observer=watching, kafka={"partition.assignment.strategy": strategy, "heartbeat.interval.ms": 200})

        @made.on("Thing")
        def slowly(event: Event, connection: psycopg.Connection[Any]) -> None:
            write_effect(event, connection)
            entered.release()
            assert held.wait(60)

        return made

    with consuming(member()):
        for _ in range(4):
            assert entered.acquire(timeout=60)
        with consuming(member()):  # some partitions go over while their first events are being handled
            wait_for(lambda: watching.losses, 60, "the first member gives partitions back")
            held.set()
            wait_for(lambda: [shop.committed(number) for number in range(4)] == [5] * 4, 60, "all partitions are through")
    assert sorted(shop.effects()) == list(range(20))
    assert watching.late_results >= 1
    for number in range(4):
        assert [n for n in shop.effects() if n % 4 == number] == list(range(number, 20, 4)), "in order within a partition"


def sleeping(name: str, bootstrap: str, dsn: str, schemas: Path, seconds: float) -> Consumer:
    """A member that works long, polls or not."""
    kafka = {"bootstrap.servers": bootstrap, "max.poll.interval.ms": 6000, "session.timeout.ms": 6000}
    made = Consumer(name, topics=[f"{name}.thing"], kafka=kafka, postgres=dsn, schemas=schemas, create=CREATE)

    @made.on("Thing")
    def work(event: Event, connection: psycopg.Connection[Any]) -> None:
        connection.execute("SELECT pg_sleep(%s)", (seconds,))
        write_effect(event, connection)

    return made


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("freezes", [False, True])
def test_field_case_118_processing_longer_than_max_poll_interval(shop: Line, freezes: bool) -> None:
    shop.make_topic(partitions=2)
    shop.consumer()
    arguments = (shop.name, shop.bootstrap, shop.dsn, shop.schemas, 10.0)
    shop.publish(*[event(n, partition=n % 2) for n in range(20)])
    members = [running(sleeping, *arguments), running(sleeping, *arguments)]
    wait_for(lambda: len(shop.effects()) >= 2, 120, "both work")
    if freezes:  # not even a heartbeat: evicted, and back with a result that is late
        pid = members[0].process.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        wait_for(lambda: len(shop.effects()) >= 8, 300, "the other one goes on alone")
        os.kill(pid, signal.SIGCONT)
    wait_for(lambda: shop.committed(0) == 10 and shop.committed(1) == 10, 600, "all is through")
    assert sorted(shop.effects()) == list(range(20))
    for member in members:
        assert member.terminate() == 0


@sizes(2, 20)
def test_field_case_121_the_offset_is_the_next_record(shop: Line, size: int) -> None:
    shop.make_topic(partitions=4)
    calls: list[int] = []
    for round_ in range(size):
        consumer = shop.consumer(postgres=None, instance="a")
        consumer.on("Thing", name="count")(lambda event: calls.append(event.value["n"]))
        shop.publish(*[event(n, partition=n % 4) for n in range(round_ * 100, round_ * 100 + 100)])
        with consuming(consumer):
            wait_for(lambda round_=round_: len(calls) >= round_ * 100 + 100, 60, "all are called")  # type: ignore[misc]
        assert [shop.committed(number) for number in range(4)] == [25 * (round_ + 1)] * 4
    assert sorted(calls) == list(range(100 * size))


def test_field_case_123_the_failed_record_is_the_first_one_after_a_restart(
    shop: Line, spare_postgres: PostgresServer, spare_database: str
) -> None:
    shop.dsn = spare_database
    shop.make_topic()
    seen: list[int] = []

    def again() -> Consumer:
        consumer = Consumer(
            shop.name, topics=[shop.topic], kafka={"bootstrap.servers": shop.bootstrap}, postgres=shop.dsn, schemas=shop.schemas,
            instance="a", create=CREATE,
        )  # fmt: skip

        @consumer.on("Thing")
        def write(event: Event, connection: psycopg.Connection[Any]) -> None:
            seen.append(event.value["n"])
            if event.value["n"] == 1 and len(seen) == 2:
                spare_postgres.stop("immediate")
            write_effect(event, connection)

        return consumer

    shop.consumer()  # makes the tables
    shop.publish(*[event(n) for n in range(3)])
    watching = Watching()
    first = again()
    first._observer = watching
    with consuming(first):  # ends in the middle of the waiting
        wait_for(lambda: spare_postgres.pid is None and len(seen) >= 2, 60, "the database is gone")
    assert shop.committed() == 1
    spare_postgres.start()
    with consuming(again()):
        wait_for(lambda: shop.committed() == 3, 60, "all are through")
    assert seen[2] == 1
    assert shop.effects() == [0, 1, 2]


@pytest.mark.parametrize("fault", ["missing", "oversize"])
def test_field_case_124_a_dead_letter_that_cannot_be_written(shop: Line, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    monkeypatch.setattr(loop, "FIRST_S", 0.02)
    shop.make_topic()
    if fault == "oversize":
        # Even a letter without value and headers is too large for this one.
        shop.make_topic(name=f"cdc.{shop.name}.dead-letter", max_message_bytes="300")
    watching = Watching()
    consumer = shop.consumer(create=None, observer=watching)

    @consumer.on("Thing")
    def choke(event: Event, connection: psycopg.Connection[Any]) -> None:
        if event.value["n"] == 5:
            raise Unprocessable
        write_effect(event, connection)

    shop.publish(*[event(n) for n in range(8)])
    with consuming(consumer):
        wait_for(lambda: watching.stops, 60, "the partition stops")
        shop.wait_effects(range(5))
    assert shop.committed() == 5
    assert ("does not exist" if fault == "missing" else "bytes") in watching.stops[0]
    skipping = shop.consumer(create=None, unparkable="skip")
    skipping.on("Thing", name="choke")(choke)
    with consuming(skipping):
        shop.wait_effects([*range(5), 6, 7])


@pytest.mark.parametrize("policy", ["flag", "block"])
def test_field_case_127_a_dead_letter_comes_back_behind_newer_events(shop: Line, policy: str) -> None:
    shop.make_topic()
    broken = True
    got: list[tuple[int, bool]] = []

    def again() -> Consumer:
        consumer = shop.consumer(after_parked=policy, instance="a", kafka={"topic.metadata.refresh.interval.ms": 500})

        @consumer.on("Thing")
        def handle(event: Event, connection: psycopg.Connection[Any]) -> None:
            if broken and event.value["n"] == 2:
                raise Unprocessable
            got.append((event.value["n"], event.newer_applied))
            write_effect(event, connection)

        return consumer

    shop.publish(event(1, key="K"), event(2, key="K"), event(3, key="K"), event(4, key="other"))
    with consuming(again()):
        parked(shop, 1 if policy == "flag" else 2)
        wait_for(lambda: shop.committed() == 4, what="all are through")
        broken = False
        done = redriven(shop)
        assert [each.late for each in done] == ([True] if policy == "flag" else [True, False])
        expected = [1, 3, 4, 2] if policy == "flag" else [1, 4, 2, 3]
        shop.wait_effects(expected, 60)
        assert got == [(n, policy == "flag" and n == 2) for n in expected]
        wait_for(lambda: shop.execute("SELECT count(*) FROM consumer_parked") == [(0,)], what="the key is free")
        shop.publish(event(5, key="K"))
        shop.wait_effects([*expected, 5])
    assert redriven(shop) == [], "closed"


def redriven(shop: Line) -> list[Any]:
    """Drive all open letters of the consumer again."""
    kafka = {"bootstrap.servers": shop.bootstrap}
    subscriber = Subscriber(name=shop.name, kafka=kafka)
    names = shop.consumer().names
    publisher = KafkaPublisher(name=f"{shop.name}-redrive", kafka=kafka, position_topic=names.dead_letter)
    try:
        return ConsumerRedrive(DeadLetters(subscriber, names.dead_letter, shop.name), publisher, names, Choice(), lambda _: None).run()
    finally:
        publisher.close()
        subscriber.close()


@sizes(20, 200)
def test_field_case_128_two_copies_at_the_same_instant(shop: Line, size: int) -> None:
    shop.make_topic(partitions=3)  # with the consumer's own one each of two members has two
    members = [Watching(), Watching()]
    met: list[int] = []

    def member(watching: Watching) -> Consumer:
        made = shop.consumer(retry=QUICK, observer=watching, kafka={"heartbeat.interval.ms": 200})

        @made.on("Thing")
        def slowly(event: Event, connection: psycopg.Connection[Any]) -> None:
            connection.execute("SELECT pg_sleep(%s)", (0.005 if size < 200 else 0.05,))
            write_effect(event, connection)
            [(waiting,)] = connection.execute(WAITS_FOR_US).fetchall()
            if waiting:
                met.append(event.value["n"])
            if event.value["n"] % 3 == 0 and event.attempt == 1:
                raise RuntimeError  # after its writes: they and the marker go, and the copy that waited goes on

        return made

    with consuming(*map(member, members)):
        wait_for(lambda: all(len(each.places) == 2 for each in members), 60, "each has two of four")
        copies = [next(number for topic, number in each.places if topic == shop.topic) for each in members]
        shop.publish(*[event(n, partition=number) for n in range(size) for number in copies])
        wait_for(lambda: all(shop.committed(number) == size for number in copies), 120, "both copies are through")
    assert sorted(shop.effects()) == list(range(size))
    assert len(set(met)) > size / 2, "the other copy waited for this one's marker"


WAITS_FOR_US = "SELECT count(*) FROM pg_stat_activity WHERE pg_backend_pid() = ANY (pg_blocking_pids(pid))"


@sizes(60, 2_000)
def test_field_case_130_a_dependency_that_is_away_for_thousands_of_attempts(shop: Line, size: int) -> None:
    shop.make_topic()
    consumer = shop.consumer(retry=Retry.exponential(0.1, cap_s=0.005, attempts=5_000))
    [held] = held_ports(1)  # nobody listens there
    attempts = list[int]()

    @consumer.on("Thing")
    def ask(event: Event, connection: psycopg.Connection[Any]) -> None:
        attempts.append(event.attempt)
        socket.create_connection(("127.0.0.1", port_of(held)), timeout=5).close()
        write_effect(event, connection)

    shop.publish(event(0), event(1))
    with held, consuming(consumer):
        wait_for(lambda: len(attempts) >= size, 600, "it is away for so many attempts")
        held.listen()
        shop.wait_effects([0, 1])
        wait_for(lambda: shop.committed() == 2, what="the offset follows")
    assert attempts[:size] == list(range(1, size + 1))
    assert consume(shop.bootstrap, [consumer.names.dead_letter]) == []


def test_field_case_131_a_breaker_that_is_asked_to_stop_while_it_probes(shop: Line) -> None:
    shop.make_topic(partitions=2)
    down = True
    calls: list[float] = []
    watching = Watching()
    consumer = shop.consumer(retry=Retry.fixed(0.02, attempts=10), workers=2, observer=watching)
    consumer.breaker("mail", errors=(ConnectionError,), failures=2, open_s=0.3)

    @consumer.on("Thing", breaker="mail")
    def send(event: Event, connection: psycopg.Connection[Any]) -> None:
        calls.append(time.monotonic())
        if down:
            raise SystemExit if len(calls) == 3 else ConnectionError  # the probe ends with what is no Exception
        write_effect(event, connection)

    shop.publish(*[event(n, partition=n % 2) for n in range(6)])
    with consuming(consumer):
        wait_for(lambda: len(calls) >= 4, 60, "it probes again")
        down = False
        wait_for(lambda: shop.committed(0) == 3 and shop.committed(1) == 3, 60, "all are through")
        assert watching.losses == [], "an open breaker keeps the membership"
    assert sorted(shop.effects()) == list(range(6))
