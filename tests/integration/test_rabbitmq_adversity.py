"""What other clients of RabbitMQ do to its consumers."""

from __future__ import annotations

from pathlib import Path

import pika
import pytest

from cdc.consumer import Event, Retry
from cdc.devstack.rabbitmq import RabbitBroker
from tests.consumers import consuming, event, letters, rabbit_line, write_effect
from tests.waiting import wait_for

pytestmark = [pytest.mark.servers, pytest.mark.packages]


def test_what_somebody_else_publishes_is_parked(unique: str, rabbit_broker: RabbitBroker, database: str, tmp_path: Path) -> None:
    shop = rabbit_line(unique, rabbit_broker.url, database, tmp_path)
    shop.make_topic()
    broken = b"\0\0\0\0\1\xff"
    with shop.channel() as channel:
        for strange in (
            pika.BasicProperties(),
            pika.BasicProperties(headers={"ce_type": "Thing", "long": "x" * 130_500}),  # one frame takes it, and nothing more
            pika.BasicProperties(headers={"ce_type": "Thing", "ce_id": "x" * 60_000, "ce_sequence": "y" * 40_000}),
            pika.BasicProperties(headers={"ce_type": ["Thing"], "cdc.origin": "a/\u00b2/1", "ce_partitionkey": "k" * 100_000}),
        ):
            channel.basic_publish(shop.exchange, shop.topic, broken, strange)
    shop.publish(event(1))
    consumer = shop.consumer(retry=Retry.fixed(0.02, attempts=2))
    consumer.on("*", name="write")(write_effect)
    with consuming(consumer):
        shop.wait_effects([1])
        wait_for(lambda: len(shop.dead_letters()) == 4, what="all are parked")
    parked = shop.dead_letters()
    assert [each.value for each in parked] == [broken] * 4
    assert {each["cdc.reason"] for each in letters(parked)} == {"schema"}
    assert shop.left() == 0


def test_headers_that_leave_no_room_for_those_of_a_retry_are_parked_at_once(
    unique: str, rabbit_broker: RabbitBroker, database: str, tmp_path: Path
) -> None:
    shop = rabbit_line(unique, rabbit_broker.url, database, tmp_path)
    shop.make_topic()
    consumer = shop.consumer(retry=Retry.fixed(0.02, attempts=2), retry_topics=True)
    calls: list[tuple[int, int]] = []

    @consumer.on("Thing")
    def failing(each: Event) -> None:
        calls.append((each.value["n"], each.attempt))
        raise OSError

    shop.publish(event(1, long="x" * 130_700), event(2))  # one frame takes it, and none of a retry's headers
    with consuming(consumer):
        wait_for(lambda: len(shop.dead_letters()) == 2, what="both are parked")
    assert calls == [(1, 1), (2, 1), (2, 2)], "what cannot be put off has had its attempts"
    first, second = letters(shop.dead_letters())
    assert [first["cdc.attempts"], second["cdc.attempts"]] == ["1", "2"]
    assert "long" not in first, "which would not fit beside the reason"
    assert shop.left() == 0
