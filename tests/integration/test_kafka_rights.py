"""Who we are and what we may do on a broker with SASL and ACLs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from cdc.consumer import Event, Unprocessable, loop
from cdc.consumer.lane import Lane
from cdc.consumer.ports import Log
from cdc.devstack.kafka import KafkaBroker
from cdc.devstack.process import held_ports, port_of
from cdc.errors import InvalidEvent, KafkaRefused, Retriable
from cdc.kafka.publisher import KafkaPublisher
from cdc.kafka.subscriber import Subscriber
from cdc.kafka.topics import Create
from tests.consumers import consuming, event, line
from tests.integration.kafka_help import at, nothing, publisher, record, values
from tests.pipeline import consume
from tests.waiting import wait_for

pytestmark = pytest.mark.servers

PASSWORD = "canary-password"
OPERATIONS = AclOperation


@dataclass
class Guarded:
    """A broker where everybody on the plain port may do all, and the user `cdc` on the other one what he is granted."""

    broker: KafkaBroker
    port: int

    def grant(self, kind: ResourceType, name: str, *operations: AclOperation) -> None:
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap_servers})
        rule = (ResourcePatternType.LITERAL, "User:cdc", "*")
        acls = [AclBinding(kind, name, *rule, operation, AclPermissionType.ALLOW) for operation in operations]
        for future in admin.create_acls(acls).values():
            future.result(10)

    def properties(self, password: str = PASSWORD) -> dict[str, object]:
        return {
            "bootstrap.servers": f"127.0.0.1:{self.port}",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "cdc",
            "sasl.password": password,
            "topic.metadata.propagation.max.ms": 500,
        }

    def publisher(self, name: str, password: str = PASSWORD) -> KafkaPublisher:
        return KafkaPublisher(name=name, kafka=self.properties(password), position_topic=f"{name}.position")


@pytest.fixture(scope="module")
def guarded() -> Iterator[Guarded]:
    held = held_ports(3)
    plain, controller, sasl = map(port_of, held)
    properties = {
        "listeners": f"PLAINTEXT://127.0.0.1:{plain},CONTROLLER://127.0.0.1:{controller},SASL://127.0.0.1:{sasl}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{plain},SASL://127.0.0.1:{sasl}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl.plain.sasl.jaas.config": (
            f'org.apache.kafka.common.security.plain.PlainLoginModule required user_cdc="{PASSWORD}";'
        ),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with KafkaBroker(properties=properties, ports=(plain, controller)) as broker:
        yield Guarded(broker, sasl)
    for each in held:
        each.close()


@pytest.fixture
def ready(guarded: Guarded, unique: str) -> Iterator[KafkaPublisher]:
    """A publisher with what the documentation grants: its positions, its transactional id, and one topic to write."""
    owner = publisher(guarded.broker.bootstrap_servers, unique)
    owner.topics.create(f"{unique}.events", Create(1, 1, 1), {}, nothing)
    owner.topics.create(f"{unique}.forbidden", Create(1, 1, 1), {}, nothing)
    owner.topics.create(f"{unique}.hidden", Create(1, 1, 1), {}, nothing)
    owner.close()
    position = (OPERATIONS.READ, OPERATIONS.WRITE, OPERATIONS.DESCRIBE_CONFIGS)
    guarded.grant(ResourceType.TOPIC, f"{unique}.position", *position)
    guarded.grant(ResourceType.TOPIC, f"{unique}.events", OPERATIONS.WRITE, OPERATIONS.DESCRIBE_CONFIGS)
    guarded.grant(ResourceType.TOPIC, f"{unique}.forbidden", OPERATIONS.DESCRIBE, OPERATIONS.DESCRIBE_CONFIGS)
    made = guarded.publisher(unique)
    yield made
    made.close()


def with_identity(guarded: Guarded, unique: str) -> None:
    guarded.grant(ResourceType.TRANSACTIONAL_ID, f"cdc-{unique}", OPERATIONS.WRITE, OPERATIONS.DESCRIBE)


def test_the_least_privileges_are_enough(guarded: Guarded, ready: KafkaPublisher, unique: str) -> None:
    with_identity(guarded, unique)
    assert ready.peek()[0] is None
    assert ready.recover(nothing, patient=True) is None
    assert ready.transaction_timeout_s == 900.0
    ready.require([f"{unique}.events"], nothing)
    ready.produce([record(f"{unique}.events")], nothing)
    ready.commit(at(1), nothing)
    assert ready.recover(nothing) == at(1)
    assert values(guarded.broker.bootstrap_servers, [f"{unique}.events"], 1) == [b"v"]


def test_a_forbidden_topic_is_a_rows_fault_until_it_is_required(guarded: Guarded, ready: KafkaPublisher, unique: str) -> None:
    with_identity(guarded, unique)
    for name, word in (("forbidden", "may not write"), ("hidden", "may not use")):
        with pytest.raises(InvalidEvent, match=word) as invalid:
            ready.route(f"{unique}.{name}", nothing)
        assert invalid.value.reason == "route"
        with pytest.raises(KafkaRefused, match=word) as refused:
            ready.require([f"{unique}.{name}"], nothing)
        assert "grant" in refused.value.fix


def test_a_record_for_a_forbidden_topic_fails_the_whole_transaction(guarded: Guarded, ready: KafkaPublisher, unique: str) -> None:
    with_identity(guarded, unique)
    ready.recover(nothing)
    good = record(f"{unique}.events", b"good")
    ready.produce([good, record(f"{unique}.forbidden", b"bad"), good], nothing)
    with pytest.raises(Retriable, match="TOPIC_AUTHORIZATION_FAILED"):
        ready.commit(at(1), nothing)
    assert ready.recover(nothing) is None
    ready.produce([good, good], nothing)
    ready.commit(at(2), nothing)
    assert values(guarded.broker.bootstrap_servers, [f"{unique}.events"], 2) == [b"good", b"good"]


def test_an_identity_that_we_may_not_use_is_refused(ready: KafkaPublisher) -> None:
    with pytest.raises(KafkaRefused, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED") as caught:
        ready.recover(nothing)
    assert "transactional id" in caught.value.fix


def test_a_wrong_password_is_refused_at_once_and_not_told(guarded: Guarded, unique: str) -> None:
    made = guarded.publisher(unique, "canary-wrong")
    began = time.monotonic()
    with pytest.raises(KafkaRefused, match="AUTHENTICATION") as caught:
        made.peek()
    assert time.monotonic() - began < 5
    assert "sasl.password" in caught.value.fix
    assert "canary" not in str(caught.value) + repr(made)
    made.close()


def test_field_case_124_a_dead_letter_that_may_not_be_written(
    guarded: Guarded, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "FIRST_S", 0.02)
    shop = line(unique, guarded.broker.bootstrap_servers, "", tmp_path)
    letters = f"cdc.{unique}.dead-letter"
    for topic in (shop.topic, letters):
        shop.make_topic(name=topic)
    guarded.grant(ResourceType.GROUP, unique, OPERATIONS.READ)
    guarded.grant(ResourceType.TOPIC, shop.topic, OPERATIONS.READ)
    guarded.grant(ResourceType.TOPIC, letters, OPERATIONS.DESCRIBE, OPERATIONS.DESCRIBE_CONFIGS)
    guarded.grant(ResourceType.TRANSACTIONAL_ID, f"cdc-{unique}-moves-a", OPERATIONS.WRITE, OPERATIONS.DESCRIBE)
    applied, stops = list[int](), list[str]()

    def choke(event: Event) -> None:
        if event.value["n"] == 5:
            raise Unprocessable
        applied.append(event.value["n"])

    class Watching(Log):
        def stopped(self, consumer: str, lane: Lane) -> None:
            super().stopped(consumer, lane)
            stops.append(lane.why)

    consumer = shop.consumer(postgres=None, create=None, instance="a", kafka=guarded.properties(), observer=Watching())
    consumer.on("Thing")(choke)
    shop.publish(*[event(n) for n in range(8)])
    with consuming(consumer):
        wait_for(lambda: stops, 60, "the partition stops")
    assert shop.committed() == 5
    assert "may not write" in stops[0]
    guarded.grant(ResourceType.TOPIC, letters, OPERATIONS.WRITE)
    with consuming(consumer):
        wait_for(lambda: shop.committed() == 8, 60, "all are through")
    assert applied == [0, 1, 2, 3, 4, 6, 7]
    [letter] = consume(shop.bootstrap, [letters])
    assert letter.headers["cdc.origin"] == f"{shop.topic}/0/5".encode()


def test_a_reader_needs_no_group(guarded: Guarded, unique: str) -> None:
    owner = publisher(guarded.broker.bootstrap_servers, unique)
    owner.recover(nothing)
    owner.commit(at(1), nothing)
    owner.close()
    guarded.grant(ResourceType.TOPIC, f"{unique}.position", OPERATIONS.READ)
    reader = Subscriber(name=unique, kafka=guarded.properties())
    assert len(values(guarded.broker.bootstrap_servers, [f"{unique}.position"], 1)) == 1
    assert [seen.key for seen in reader.read([f"{unique}.position"])] == [unique.encode()]
    reader.close()
    forbidden = Subscriber(name=unique, kafka=guarded.properties())
    with pytest.raises(KafkaRefused, match="cannot be read"):
        list(forbidden.read(["elsewhere"]))
    forbidden.close()
