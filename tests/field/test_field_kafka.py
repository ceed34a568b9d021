"""Field cases 19, 70, 77, 78, 79, 81, 87: what Kafka does to the whole process, and how it comes back."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from psycopg.conninfo import make_conninfo

from cdc.devstack.kafka import KafkaBroker
from cdc.devstack.process import LOOPBACK
from tests.conftest import Pipelines, running
from tests.pipeline import Pipeline
from tests.proxy import Proxy, proxied_kafka
from tests.waiting import wait_for

pytestmark = pytest.mark.servers

QUICK = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
    "transactional.id.expiration.ms": "3000",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "200",
    "broker.session.timeout.ms": "30000",
}
"""What a broker does after a minute and after a week, after seconds; but one that was frozen for a while still leads its partitions,
because without a leader Kafka loses the ends of transactions (see docs/operating.md)."""


@pytest.fixture(scope="module")
def _impatient() -> Iterator[tuple[KafkaBroker, Proxy]]:
    with proxied_kafka(QUICK) as made:
        yield made


@pytest.fixture
def impatient(_impatient: tuple[KafkaBroker, Proxy]) -> Iterator[tuple[KafkaBroker, Proxy]]:
    """A broker that times out soon, and the way to it."""
    broker, proxy = _impatient
    yield broker, proxy
    broker.thaw()
    proxy.flow()


@pytest.fixture
def hurried(pipelines: Pipelines, database: str, impatient: tuple[KafkaBroker, Proxy]) -> Pipeline:
    """A pipeline that reaches that broker by the way that can fail."""
    broker, proxy = impatient
    pipeline = pipelines(database, broker.bootstrap_servers)
    pipeline.settings["kafka.bootstrap.servers"] = f"{LOOPBACK}:{proxy.port}"
    pipeline.init()
    return pipeline


def ends(pipeline: Pipeline, isolation: str) -> int:
    """Where the events' topic ends for a consumer."""
    consumer = Consumer({"bootstrap.servers": pipeline.bootstrap, "group.id": "tests", "isolation.level": isolation, "log_level": 0})
    try:
        return int(consumer.get_watermark_offsets(TopicPartition(pipeline.topic, 0), timeout=10, cached=False)[1])
    except KafkaException:
        return -1
    finally:
        consumer.close()


# 19


@pytest.mark.parametrize("signals", [[signal.SIGTERM], [signal.SIGINT, signal.SIGINT]], ids=["SIGTERM", "SIGINT twice"])
def test_field_case_19_a_stop_before_a_full_queue_and_a_frozen_broker(
    hurried: Pipeline, impatient: tuple[KafkaBroker, Proxy], signals: list[signal.Signals]
) -> None:
    hurried.kafka(queue_buffering_max_messages=100).set(shutdown_grace="2s")
    process = hurried.started()
    hurried.insert(0)
    hurried.wait_numbers([0])
    confirmed = hurried.wait_confirmed()
    impatient[0].freeze()
    hurried.insert(1, 10_000)
    end = hurried.lsn()
    wait_for(lambda: "Kafka has not answered" in hurried.get("/health/ready")[1], 30, "it is at it")
    for each in signals:
        process.send_signal(each)
    assert process.wait(15) == 0, hurried.log[-3000:]
    assert confirmed <= hurried.slot().confirmed < end
    impatient[0].thaw()
    hurried.started()
    hurried.wait_numbers(range(10_001))


# 70


BAD_ROUTES = ("Typo/é", "with a space", "x" * 300, "late")
"""Three that no topic can be called, and one that nobody has made yet."""


def insert_for(pipeline: Pipeline, route: str, number: int) -> None:
    pipeline.execute(
        "INSERT INTO outbox (aggregatetype, aggregateid, type, payload) VALUES (%s, 'k', 'Thing', jsonb_build_object('n', %s::int))",
        (route, number),
    )


@pytest.fixture
def strict(pipeline: Pipeline) -> Pipeline:
    """A pipeline whose topics are made by hand."""
    pipeline.settings |= {"topics.create.partitions": None, "topics.create.replication_factor": None}
    pipeline.make_topic(pipeline.position_topic, cleanup_policy="compact")
    for name in (pipeline.dead_letter_topic, pipeline.topic):
        pipeline.make_topic(name)
    pipeline.init()
    return pipeline


def test_field_case_70_routes_that_do_not_exist_are_parked(strict: Pipeline) -> None:
    strict.started()
    for number, route in enumerate(BAD_ROUTES):
        insert_for(strict, route, number)
        strict.insert(10 + number)
    strict.wait_confirmed()
    assert strict.numbers() == [10, 11, 12, 13]
    dead = strict.events(strict.dead_letter_topic)
    assert [event.headers["cdc.reason"] for event in dead] == [b"route"] * len(BAD_ROUTES)
    assert strict.status()["totals"]["failures"] == 0
    strict.make_topic(f"{strict.name}.late")

    def goes_out() -> bool:
        insert_for(strict, "late", 99)
        return bool(strict.events(f"{strict.name}.late"))

    wait_for(goes_out, 30, "the topic is found")


def test_field_case_70_a_route_that_does_not_exist_stops_it_by_policy(strict: Pipeline) -> None:
    strict.set(outbox__on_invalid="stop")
    strict.started()
    insert_for(strict, "late", 1)
    stopped = strict.wait_exit()
    assert stopped.code == 7
    assert f"{strict.name}.late" in stopped.line
    assert "does not exist" in stopped.line
    strict.make_topic(f"{strict.name}.late")
    strict.started()
    strict.wait_confirmed()
    assert [event.n for event in strict.events(f"{strict.name}.late")] == [1]


# 77


def test_field_case_77_a_wrong_port_at_start(pipeline: Pipeline) -> None:
    """It may only be down: waited for, in red, with the address; the slot is as it was."""
    pipeline.init()
    before = pipeline.slot()
    nobody = f"{LOOPBACK}:{pipeline.another_port()}"
    pipeline.settings["kafka.bootstrap.servers"] = nobody
    process = pipeline.start()
    wait_for(lambda: pipeline.log.count("passage failed") > 0, 60, "it is told")
    code, reason = pipeline.get("/health/ready")
    assert code == 503
    assert nobody in reason + pipeline.log
    assert pipeline.slot() == before
    assert process.poll() is None
    assert pipeline.terminate() == 0


# 78


def test_field_case_78_somebody_else_with_our_transactional_id(pipeline: Pipeline) -> None:
    """Once may be a mistake, and is got over; three times within a minute somebody has to be told."""
    pipeline.init()
    process = pipeline.started()
    pipeline.insert(0)
    pipeline.wait_numbers([0])
    for number in (1, 2):
        steal(pipeline)
        pipeline.insert(number)
        pipeline.wait_numbers(range(number + 1))
        assert process.poll() is None
        assert pipeline.status()["totals"]["failures"] == number
    steal(pipeline)
    pipeline.insert(3)
    ended = pipeline.wait_exit()
    assert ended.code == 6
    assert "transactional.id" in ended.line
    pipeline.started()
    pipeline.wait_numbers(range(4))


def steal(pipeline: Pipeline) -> None:
    """Do what a second copy with the same name would: fence."""
    Producer({"bootstrap.servers": pipeline.bootstrap, "transactional.id": f"cdc-{pipeline.name}", "log_level": 0}).init_transactions(30)


# 79


@pytest.mark.parametrize(
    "how", ["process frozen", "broker frozen", *(pytest.param(each, marks=pytest.mark.soak) for each in ("link stalled", "link cut"))]
)
def test_field_case_79_a_transaction_that_the_broker_has_timed_out(
    hurried: Pipeline, impatient: tuple[KafkaBroker, Proxy], how: str
) -> None:
    """Rows come slowly, so that a Kafka transaction is open when all stands still for longer than it may."""
    broker, to_kafka = impatient
    hurried.kafka(transaction_timeout_ms=4_000).set(postgres__status_interval="10s")
    with Proxy(hurried.connection.info.port) as to_postgres:
        hurried.set(postgres__dsn=make_conninfo(hurried.dsn, host=LOOPBACK, port=str(to_postgres.port)))
        process = hurried.started()
        hurried.insert(0)
        hurried.wait_numbers([0])
        to_postgres.slow(400_000)
        hurried.insert(1, 8_000, text="x" * 300)
        wait_for(lambda: ends(hurried, "read_uncommitted") > ends(hurried, "read_committed") >= 0, 30, "it is open")
        begin = {
            "process frozen": lambda: process.send_signal(signal.SIGSTOP),
            "broker frozen": broker.freeze,
            "link stalled": to_kafka.stall,
            "link cut": to_kafka.cut,
        }
        begin[how]()
        to_postgres.flow()
        if how == "broker frozen":
            wait_for(lambda: "passage failed" in hurried.log, 30, "it is noticed")
        else:
            wait_for(lambda: ends(hurried, "read_uncommitted") == ends(hurried, "read_committed") > 0, 30, "the broker has ended it")
        process.send_signal(signal.SIGCONT)
        broker.thaw()
        to_kafka.flow()
        hurried.wait_numbers(range(8_001), deadline_s=90)
        assert process.poll() is None
        assert hurried.status()["totals"]["failures"] > 0
        hurried.wait_confirmed()


# 81


@pytest.fixture
def pair() -> Iterator[tuple[KafkaBroker, KafkaBroker]]:
    """Two brokers of one cluster; the second one may be lost.

    With a single one there is nothing to miss: Kafka asks for no more replicas than a topic has (Partition.effectiveMinIsr).
    """
    with ExitStack() as stack:
        first = stack.enter_context(running(KafkaBroker(properties={"transaction.state.log.replication.factor": "2"})))
        second = KafkaBroker(properties={**first.properties, "process.roles": "broker", "node.id": "2"})
        stack.callback(second.close)
        second.properties |= {
            "listeners": f"PLAINTEXT://{second.bootstrap_servers}",
            "controller.quorum.voters": f"1@{LOOPBACK}:{first.controller_port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        }
        second.prepare()
        [ours, theirs] = (broker.folder / "data" / "meta.properties" for broker in (second, first))
        [cluster] = [line for line in theirs.read_text().splitlines() if line.startswith("cluster.id=")]
        ours.write_text(re.sub("(?m)^cluster.id=.*$", cluster, ours.read_text()))
        second.start()
        yield first, second


def test_field_case_81_too_few_replicas_are_waited_for(pipelines: Pipelines, database: str, pair: tuple[KafkaBroker, KafkaBroker]) -> None:
    """Neither produce nor abort can succeed; nothing is confirmed, the reason is told, and it comes back by itself."""
    first, second = pair
    pipeline = pipelines(database, first.bootstrap_servers).kafka(transaction_timeout_ms=3_000)
    pipeline.set(topics__create__replication_factor=2, topics__create__min_insync_replicas=2)
    wait_for(lambda: len(brokers(pipeline)) == 2, 30, "both are there")
    pipeline.init()
    process = pipeline.started()
    pipeline.insert(0)
    pipeline.wait_numbers([0])
    second.kill()
    wait_for(lambda: len(brokers(pipeline)) == 1, 30, "the cluster knows")
    pipeline.insert(1, 10)
    end = pipeline.lsn()
    wait_for(lambda: pipeline.log.count("NOT_ENOUGH_REPLICAS") >= 2, 90, "it is told, and tried again")
    assert process.poll() is None, pipeline.log[-3000:]
    assert pipeline.slot().confirmed < end
    second.start()
    pipeline.wait_numbers(range(11), deadline_s=90)
    assert process.poll() is None


def brokers(pipeline: Pipeline) -> dict[int, object]:
    """The brokers that the cluster counts as alive."""
    return dict(AdminClient({"bootstrap.servers": pipeline.bootstrap, "log_level": 0}).list_topics(timeout=10).brokers)


# 87


def test_field_case_87_a_quiet_week(pipelines: Pipelines, spare_database: str, impatient: tuple[KafkaBroker, Proxy]) -> None:
    """The broker forgets our id; the next rows go out all the same, with one warning and no restart. On a server where nobody writes."""
    hurried = pipelines(spare_database, impatient[0].bootstrap_servers)
    hurried.init()
    process = hurried.started()
    hurried.insert(0)
    hurried.wait_numbers([0])
    hurried.wait_confirmed()
    hurried.hang_up()
    warned = hurried.log.count("passage failed")
    since = time.monotonic()
    probe = Producer({"bootstrap.servers": hurried.bootstrap, "transactional.id": hurried.name, "log_level": 0})
    probe.init_transactions(30)
    publish(probe, hurried)
    wait_for(lambda: time.monotonic() - since > 2 * int(QUICK["transactional.id.expiration.ms"]) / 1000, 30)
    with pytest.raises(KafkaException):  # as old as ours, and forgotten
        publish(probe, hurried)
    hurried.insert(1, 3)
    hurried.wait_numbers(range(4))
    assert process.poll() is None
    assert hurried.log.count("passage failed") == warned + 1


def publish(probe: Producer, pipeline: Pipeline) -> None:
    """Make one Kafka transaction that nobody reads."""
    probe.begin_transaction()
    probe.produce(pipeline.dead_letter_topic, b"a probe")
    probe.commit_transaction(30)
