"""Properties pass through, except those that the guarantee rests on; each client gets what suits it."""

import logging
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from cdc.errors import ConfigurationError
from cdc.kafka.client import Notes, make
from cdc.kafka.properties import (
    CONSUMER_ONLY,
    LOCKED_PROPERTIES,
    PRODUCER_ONLY,
    SECRETS,
    Properties,
    admin_properties,
    client_properties,
    consumer_properties,
    masked,
    producer_properties,
)

NOWHERE = {"bootstrap.servers": "127.0.0.1:1"}
MIXED = NOWHERE | {"linger.ms": 20, "fetch.min.bytes": 7, "compression.type": "zstd", "sasl.username": "u"}


@pytest.mark.parametrize("key", LOCKED_PROPERTIES)
def test_a_locked_property_is_refused_with_its_reason(key: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        client_properties(NOWHERE | {key: "1"})
    assert key in caught.value.what
    assert LOCKED_PROPERTIES[key] in caught.value.what


@pytest.mark.parametrize(
    "kafka", [{}, {"bootstrap.servers": ""}, NOWHERE | {"error_cb": "x"}, NOWHERE | {"logger": "x"}, NOWHERE | {"acks ": ["1"]}]
)
def test_what_is_no_property_is_refused(kafka: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError):
        client_properties(kafka)


def test_the_producer_keeps_what_the_guarantee_rests_on() -> None:
    properties = producer_properties(client_properties(MIXED), "shop")
    assert properties["transactional.id"] == "cdc-shop"
    assert properties["transaction.timeout.ms"] == 60_000
    assert properties["socket.timeout.ms"] == 10_000
    assert properties["queue.buffering.max.kbytes"] == 4_096
    assert properties["partitioner"] == "murmur2_random"
    assert properties["delivery.report.only.error"] is True
    assert properties["allow.auto.create.topics"] is False
    assert properties["linger.ms"] == 20
    assert properties["compression.type"] == "zstd"
    assert "fetch.min.bytes" not in properties


def test_producer_defaults_give_way() -> None:
    plain = producer_properties(NOWHERE, "shop")
    assert (plain["linger.ms"], plain["compression.type"]) == (20, "lz4")
    named = producer_properties(NOWHERE | {"queue.buffering.max.ms": 3, "compression.codec": "gzip"}, "shop")
    assert not named.keys() & {"linger.ms", "compression.type"}
    short = producer_properties(NOWHERE | {"transaction.timeout.ms": "5000"}, "shop")
    assert (short["transaction.timeout.ms"], short["socket.timeout.ms"]) == (5000, 5000)
    patient = producer_properties(NOWHERE, "shop", transaction_timeout_ms=900_000, batch_bytes=20_000)
    assert (patient["transaction.timeout.ms"], patient["socket.timeout.ms"], patient["batch.size"]) == (900_000, 10_000, 20_000)
    assert producer_properties(NOWHERE | {"batch.size": 500}, "shop", batch_bytes=20_000)["batch.size"] == 500


def test_a_number_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"transaction\.timeout\.ms"):
        producer_properties(NOWHERE | {"transaction.timeout.ms": "a minute"}, "shop")


def test_every_client_gets_only_what_suits_it() -> None:
    kafka = client_properties(MIXED)
    assert not admin_properties(kafka, "shop").keys() & (PRODUCER_ONLY | CONSUMER_ONLY)
    consumer = consumer_properties(kafka, "shop")
    assert not consumer.keys() & PRODUCER_ONLY
    assert consumer["isolation.level"] == "read_committed"
    assert consumer["fetch.min.bytes"] == 7
    for properties in (admin_properties(kafka, "shop"), consumer, producer_properties(kafka, "shop")):
        assert properties["sasl.username"] == "u"
        assert properties["client.id"] == "cdc-shop"


def test_librdkafka_takes_them_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    kafka = client_properties(NOWHERE | {"linger.ms": 20, "fetch.min.bytes": 7})
    with caplog.at_level(logging.DEBUG, "cdc.kafka"):
        kinds: list[tuple[Any, Properties]] = [
            (Producer, producer_properties(kafka, "shop")),
            (AdminClient, admin_properties(kafka, "shop")),
            (Consumer, consumer_properties(kafka, "shop")),
        ]
        for kind, properties in kinds:
            client = make(kind, properties, Notes())
            client.poll(0.01)
    assert [line for line in caplog.messages if "CONFWARN" in line] == []


def test_a_property_that_librdkafka_does_not_know_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"no\.such\.thing"):
        make(Producer, producer_properties(NOWHERE | {"no.such.thing": "1"}, "shop"), Notes())


def test_secrets_are_masked() -> None:
    kafka = dict.fromkeys(SECRETS, "hunter2") | NOWHERE
    assert "hunter2" not in str(masked(kafka))
    assert masked(kafka)["bootstrap.servers"] == "127.0.0.1:1"
