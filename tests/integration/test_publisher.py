"""The transactional producer on a real broker: limits, faults, and what becomes of a commit."""

from __future__ import annotations

import itertools
import logging
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions  # type: ignore[attr-defined]

from cdc.devstack.kafka import KafkaBroker
from cdc.errors import ConfigurationError, Fenced, InvalidEvent, KafkaRefused, Poisoned, Retriable
from cdc.event import Record, Route, record_size
from cdc.kafka import publisher as publisher_module
from cdc.kafka import topics as topics_module
from cdc.kafka.client import Waiting
from cdc.kafka.limits import fits
from cdc.kafka.publisher import KafkaPublisher
from cdc.kafka.topics import Create
from tests.integration.kafka_help import at, nothing, publisher, record, until, values

pytestmark = pytest.mark.servers

ONE = Create(1, 1, 1)
NOISE = random.Random(4)
ROOT = Path(__file__).parents[2]


@pytest.fixture
def made(kafka: str, unique: str) -> Iterator[KafkaPublisher]:
    publisher_ = publisher(kafka, unique)
    yield publisher_
    publisher_.close()


def topic(made: KafkaPublisher, name: str, **config: str) -> str:
    made.topics.create(name, ONE, {key.replace("_", "."): value for key, value in config.items()}, nothing)
    return name


def test_small_records_are_not_batched_over_the_topics_limit(made: KafkaPublisher, kafka: str, unique: str) -> None:
    name = topic(made, f"{unique}.small", max_message_bytes="20000")
    sent = [record(name, NOISE.randbytes(1000)) for _ in range(60)]
    made.recover(nothing)
    made.produce(sent, nothing)
    with pytest.raises(Retriable, match="MSG_SIZE_TOO_LARGE"):
        made.commit(at(1), nothing)
    made.recover(nothing)
    with pytest.raises(Retriable, match="20000"):
        made.route(name, nothing)
    made.drop()
    made.recover(nothing)
    made.route(name, nothing)
    made.produce(sent, nothing)
    made.commit(at(1), nothing)
    assert values(kafka, [name], 60) == [each.value for each in sent]


def test_batches_of_any_sizes_stay_within_the_topics_limit(made: KafkaPublisher, kafka: str, unique: str) -> None:
    name = topic(made, f"{unique}.edge", max_message_bytes="5000")
    route = made.route(name, nothing)
    made.recover(nothing)
    sent = []
    for size in [*range(1, 400, 7), *range(400, 4800, 31), 4800]:
        sent += [record(name, NOISE.randbytes(size)) for _ in range(max(2, 6000 // size // 4))]
    for each in sent:
        fits(each, route, each.timestamp_ms)
    made.produce(sent, nothing)
    made.commit(at(1), nothing)
    assert values(kafka, [name], len(sent)) == [each.value for each in sent]


def test_the_largest_record_that_fits_is_taken(kafka: str, unique: str) -> None:
    made = publisher(kafka, unique, {"message.max.bytes": 6000})
    name = topic(made, f"{unique}.topic", max_message_bytes="5000")
    wide = topic(made, f"{unique}.client")
    made.route(name, nothing)
    assert made.route(wide, nothing).max_message_bytes == 6000
    made.recover(nothing)
    for topic_name, limit in ((name, 5000), (wide, 6000)):
        base = record(topic_name, b"")._replace(headers=[(f"h{n}", b"v") for n in range(6)])
        largest = base._replace(value=NOISE.randbytes(limit - record_size(base)))
        fits(largest, made.route(topic_name, nothing), largest.timestamp_ms)
        with pytest.raises(InvalidEvent, match=str(limit)):
            fits(largest._replace(key=b"kk"), made.route(topic_name, nothing), largest.timestamp_ms)
        made.produce([largest], nothing)
    made.commit(at(1), nothing)
    assert len(values(kafka, [name, wide], 2)) == 2
    made.close()


def test_field_case_91_a_full_local_queue_keeps_order_and_memory(kafka: str, unique: str) -> None:
    made = publisher(kafka, unique, {"queue.buffering.max.messages": 1000})
    name = topic(made, f"{unique}.many")
    made.recover(nothing)
    waits: list[int] = []
    sent = [record(name, b"%d" % number) for number in range(50_000)]
    made.produce(sent, lambda: waits.append(1))
    made.commit(at(1), nothing)
    assert waits
    assert values(kafka, [name], len(sent)) == [each.value for each in sent]
    made.close()


def test_field_case_84_begin_produce_abort_never_gets_stuck(made: KafkaPublisher, kafka: str, unique: str) -> None:
    name = topic(made, f"{unique}.loop")
    kept = []
    for number in range(20):
        began = time.monotonic()
        made.recover(nothing)
        made.produce([record(name, b"%d" % number)], nothing)
        if number % 5 == 0:
            made.commit(at(number), nothing)
            kept.append(b"%d" % number)
        else:
            made.abort(10)
        made.drop()
        assert time.monotonic() - began < 10
    assert values(kafka, [name], len(kept)) == kept


def test_a_change_of_partitions_is_noticed(kafka: str, unique: str) -> None:
    clock = [0.0]
    warns = publisher(kafka, unique, clock=lambda: clock[0] + time.monotonic())
    stops = publisher(kafka, f"{unique}b", on_partition_change="stop", clock=lambda: clock[0] + time.monotonic())
    name = topic(warns, f"{unique}.grow")
    for made in (warns, stops):
        made.recover(nothing)
        assert made.route(name, nothing).partitions == 1
    grow(kafka, name, 3)
    assert warns.route(name, nothing).partitions == 1
    clock[0] += 61
    with pytest.raises(Retriable, match="from 1 to 3"):
        warns.route(name, nothing)
    with pytest.raises(KafkaRefused, match="had 1 partitions and has 3"):
        stops.route(name, nothing)
    assert warns.partition_changes == {name: (1, 3)}
    warns.drop()
    warns.recover(nothing)
    assert warns.route(name, nothing).partitions == 3
    warns.produce([record(name)._replace(partition=2)], nothing)
    warns.commit(at(1), nothing)
    warns.close()
    stops.close()


def grow(bootstrap: str, name: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_partitions([NewPartitions(name, partitions)])[name].result(10)


def test_a_missing_topic_is_made_where_the_settings_say_so(kafka: str, unique: str) -> None:
    made = publisher(kafka, unique, create=Create(3, 1, 1))
    made.recover(nothing)
    assert made.route(f"{unique}.new", nothing).partitions == 3
    made.produce([record(f"{unique}.new")], nothing)
    made.commit(at(1), nothing)
    assert values(kafka, [f"{unique}.new"], 1) == [b"v"]
    made.close()


def test_a_made_topic_is_found_soon(kafka: str, unique: str) -> None:
    clock = [0.0]
    made = publisher(kafka, unique, clock=lambda: clock[0] + time.monotonic())
    for _ in range(2):
        with pytest.raises(InvalidEvent, match="does not exist"):
            made.route(f"{unique}.late", nothing)
    topic(made, f"{unique}.late")
    clock[0] += publisher_module.REFUSAL_FRESH_S
    assert made.route(f"{unique}.late", nothing).partitions == 1
    made.close()


def test_a_payload_is_never_told(made: KafkaPublisher, unique: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    canary = "canary-4711"
    name = topic(made, f"{unique}.canary", max_message_bytes="20000")
    bad = Record(name, canary.encode(), canary.encode() + NOISE.randbytes(30_000), [("h", canary.encode())], 0)
    told = []
    with pytest.raises(InvalidEvent) as refused:
        fits(bad, made.route(name, nothing), 0)
    told.append(repr(refused.value))
    made.recover(nothing)
    made.produce([bad], nothing)
    told.append(repr(made))
    with pytest.raises(Retriable) as failed:
        made.commit(at(1), nothing)
    told += [repr(failed.value), str(failed.value), repr(failed.value.__context__), repr(made), caplog.text]
    assert canary not in "".join(told)


def test_properties_that_librdkafka_refuses(kafka: str, unique: str) -> None:
    made = publisher(kafka, unique)
    made._kafka["retry.backoff.ms"] = "soon"
    with pytest.raises(ConfigurationError, match=r"retry\.backoff\.ms"):
        made.recover(nothing)


def test_a_transaction_timeout_over_the_brokers_limit_is_refused(kafka: str, unique: str) -> None:
    made = publisher(kafka, unique, {"transaction.timeout.ms": 3_600_000})
    with pytest.raises(KafkaRefused, match="INVALID_TRANSACTION_TIMEOUT") as caught:
        made.recover(nothing)
    assert "transaction.max.timeout.ms" in caught.value.fix
    made.close()


def test_field_case_78_a_foreign_producer_with_our_id_is_noticed_at_once(made: KafkaPublisher, kafka: str, unique: str) -> None:
    name = topic(made, f"{unique}.stolen")
    made.recover(nothing)
    made.commit(at(1), nothing)
    thief = Producer({"bootstrap.servers": kafka, "transactional.id": f"cdc-{unique}"})
    thief.init_transactions(30)
    began = time.monotonic()

    def publish() -> None:
        made.produce([record(name)], nothing)
        made.commit(at(2), nothing)

    with pytest.raises(Fenced):
        publish()
    assert time.monotonic() - began < 5
    assert made.recover(nothing) == at(1)


LET_GO = """
import sys
from tests.integration.kafka_help import at, nothing, publisher, record

made = publisher(sys.argv[1], sys.argv[2])
for number in range(1, 1001):
    made.recover(nothing)
    made.produce([record(sys.argv[3], b"dropped")], nothing)
    made.drop()
    if number % 2:
        made.recover(nothing)
        made.produce([record(sys.argv[3], b"kept")], nothing)
        made.commit(at(number), nothing)
print("alive")
"""


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_producers_that_are_let_go_within_a_transaction_do_not_abort_the_process(made: KafkaPublisher, kafka: str, unique: str) -> None:
    name = topic(made, f"{unique}.let-go")
    command = [sys.executable, "-c", LET_GO, kafka, unique, name]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=1200)
    assert (done.returncode, done.stdout.split()) == (0, ["alive"]), done.stderr[-500:]


# From here on with a broker that may be frozen, killed and misconfigured.


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaBroker]:
    quick = {
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
        "auto.create.topics.enable": "true",
    }
    with KafkaBroker(properties=quick) as started:
        yield started


@pytest.fixture
def own(broker: KafkaBroker, unique: str) -> Iterator[KafkaPublisher]:
    made = publisher(broker.bootstrap_servers, unique, {"transaction.timeout.ms": 30_000})
    yield made
    broker.thaw()
    made.close()


def test_no_topic_is_made_by_accident(own: KafkaPublisher, unique: str) -> None:
    own.recover(nothing)
    own.produce([record(f"{unique}.accident")], nothing)
    with pytest.raises(Retriable):
        own.commit(at(1), nothing)
    with pytest.raises(InvalidEvent, match="does not exist"):
        own.route(f"{unique}.accident", nothing)


def test_field_case_79_a_transaction_that_the_broker_timed_out_is_fenced(broker: KafkaBroker, unique: str) -> None:
    made = publisher(broker.bootstrap_servers, unique, {"transaction.timeout.ms": 1000})
    name = topic(made, f"{unique}.slow")
    made.recover(nothing)
    made.produce([record(name, b"timed out")], nothing)
    other = publisher(broker.bootstrap_servers, f"{unique}b")
    other.recover(nothing)
    other.produce([record(name, b"witness")], nothing)
    other.commit(at(1), nothing)
    # The witness becomes visible when the broker has ended the transaction in front of it.
    until(lambda: values(broker.bootstrap_servers, [name]) == [b"witness"], 20)
    with pytest.raises(Fenced):
        made.commit(at(1), nothing)
    assert made.recover(nothing) is None
    made.produce([record(name, b"again")], nothing)
    made.commit(at(2), nothing)
    assert values(broker.bootstrap_servers, [name], 2) == [b"witness", b"again"]
    made.close()
    other.close()


EXPIRED_S = 2
"""After so long without a Kafka transaction the broker of one test forgets a transactional.id."""


def test_field_case_87_an_expired_transactional_id_goes_through_the_door(unique: str) -> None:
    forgetful = {
        "transactional.id.expiration.ms": str(EXPIRED_S * 1000),
        "transaction.remove.expired.transaction.cleanup.interval.ms": "200",
    }
    with KafkaBroker(properties=forgetful) as broker:
        bootstrap = broker.bootstrap_servers
        alone, followed, probe = (publisher(bootstrap, f"{unique}{each}") for each in ("alone", "followed", "probe"))
        name = topic(alone, f"{unique}.expired")
        for each in (alone, followed, probe):
            each.recover(nothing)
            each.commit(at(1), nothing)
        began = time.monotonic()
        until(lambda: time.monotonic() - began > 2 * EXPIRED_S, 10)
        with pytest.raises(Retriable):
            probe.commit(at(2), nothing)  # the fact, seen by asking with a producer of the same age
        heir = publisher(bootstrap, f"{unique}followed")
        assert heir.recover(nothing) == at(1)
        heir.commit(at(2), nothing)
        for zombie, last in ((alone, at(1)), (followed, at(2))):
            with pytest.raises(Retriable):
                late(zombie, name)
            zombie.drop()
            assert zombie.recover(nothing) == last
            zombie.produce([record(name, b"alive")], nothing)
            zombie.commit(at(3), nothing)
        assert values(bootstrap, [name], 2) == [b"alive", b"alive"]
        for each in (alone, followed, probe, heir):
            each.close()


def late(zombie: KafkaPublisher, name: str) -> None:
    zombie.produce([record(name, b"zombie")], nothing)
    zombie.commit(at(99), nothing)


def test_a_frozen_broker_is_given_up_and_the_outcome_is_read(
    own: KafkaPublisher, broker: KafkaBroker, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KafkaPublisher, "transaction_timeout_s", property(lambda _: 0.0))
    monkeypatch.setattr(publisher_module, "COMMIT_PATIENCE_S", 2.0)
    name = topic(own, f"{unique}.frozen")
    own.recover(nothing)
    own.commit(at(1), nothing)
    waits: list[float] = []
    own.produce([record(name, b"%d" % number) for number in range(20_000)], nothing)
    broker.freeze()
    with pytest.raises(Retriable, match="no answer within 2 s"):
        own.commit(at(2), lambda: waits.append(time.monotonic()))
    assert max(later - earlier for earlier, later in itertools.pairwise(waits)) < 1
    began = time.monotonic()
    own.drop()
    dropped_s = time.monotonic() - began
    broker.thaw()
    read = own.recover(nothing)
    assert read in {at(1), at(2)}
    assert len(values(broker.bootstrap_servers, [name])) == (0 if read == at(1) else 20_000)
    print(f"drop with a commit in flight and a frozen broker: {dropped_s * 1000:.1f} ms")
    assert dropped_s < 0.1


def test_a_full_queue_before_a_frozen_broker_is_given_up(
    own: KafkaPublisher, broker: KafkaBroker, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher_module, "STALL_S", 1.0)
    name = topic(own, f"{unique}.stall")
    own.recover(nothing)
    own.route(name, nothing)
    broker.freeze()
    with pytest.raises(Retriable, match="took no record"):
        own.produce([record(name, b"v" * 100)] * 50_000, nothing)
    own.drop()
    broker.thaw()
    assert own.recover(nothing) is None
    assert values(broker.bootstrap_servers, [name]) == []


def test_a_broker_that_is_away_is_waited_for_and_found_again(
    own: KafkaPublisher, broker: KafkaBroker, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics_module, "REQUEST_TIMEOUT_S", 1.0)
    name = topic(own, f"{unique}.away")
    own.recover(nothing)
    own.produce([record(name, b"lost with the producer")], nothing)
    broker.stop()
    with pytest.raises(Retriable):
        own.peek()
    with pytest.raises(Retriable):  # and not InvalidEvent: nobody can say that the topic is missing
        own.route(f"{unique}.other", nothing)
    own.drop()
    broker.start()
    assert own.recover(nothing) is None
    own.produce([record(name, b"kept")], nothing)
    own.commit(at(1), nothing)
    assert values(broker.bootstrap_servers, [name], 1) == [b"kept"]


def test_field_case_77_a_fence_that_never_succeeds_names_its_likely_cause(unique: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher_module, "INIT_PATIENCE_S", 3.0)
    with KafkaBroker(properties={"transaction.state.log.replication.factor": "3"}) as lonely:
        made = publisher(lonely.bootstrap_servers, unique)
        with pytest.raises(Retriable, match=r"transaction\.state\.log\.replication\.factor"):
            made.recover(nothing)
        made.close()


class Trusting(KafkaPublisher):
    """Believes that every topic takes everything, so that the broker is the first to refuse."""

    def route(self, topic: str, waiting: Waiting) -> Route:
        return replace(super().route(topic, waiting), max_message_bytes=10_000_000, timestamp_after_ms=None)


def test_the_record_that_the_broker_refuses_is_named_by_a_passage_that_looks_for_it(kafka: str, unique: str) -> None:
    made = Trusting(name=unique, kafka={"bootstrap.servers": kafka}, position_topic=f"_{unique}")
    made.topics.create(f"_{unique}", ONE, {"cleanup.policy": "compact"}, nothing)
    name = topic(made, f"{unique}.blame", max_message_bytes="20000")
    headers: list[tuple[str, bytes | None]] = [("ce_sequence", b"0000" + b"%016x" % 7 + b"00000002")]
    good = [record(name, NOISE.randbytes(100)) for _ in range(5)]
    bad = record(name, NOISE.randbytes(30_000))._replace(headers=headers)
    for blaming, place in ((False, None), (True, headers[0][1])):
        made.recover(nothing, blaming=blaming)
        made.produce([*good, bad, *good], nothing)
        with pytest.raises(Poisoned, match="MSG_SIZE_TOO_LARGE") as caught:
            made.commit(at(1), nothing)
        assert caught.value.place == place
    assert made.recover(nothing) is None
    made.produce(good, nothing)
    made.commit(at(1), nothing)
    made.close()
    assert values(kafka, [name], 5) == [each.value for each in good]
