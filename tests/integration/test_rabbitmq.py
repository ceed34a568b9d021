"""The pipeline publishes to a real RabbitMQ: what arrives, what becomes of faults, who has the lease."""

from __future__ import annotations

import pytest

from tests.pipeline import SCHEMA, decode
from tests.rabbit import RabbitPipeline

pytestmark = [pytest.mark.servers, pytest.mark.packages]


def test_rows_arrive_in_order_with_the_properties_of_amqp(rabbit: RabbitPipeline) -> None:
    rabbit.init()
    rabbit.started()
    rabbit.insert(1, 300)
    rabbit.wait_numbers(range(1, 301))
    rabbit.wait_confirmed()
    [event, *_] = rabbit.events()
    headers = event.headers
    assert event.topic == rabbit.topic
    assert event.key == b"k"
    assert headers["amqp.message_id"] == headers["ce_id"]
    assert headers["amqp.type"] == headers["ce_type"] == b"Thing"
    assert headers["amqp.delivery_mode"] == b"2"
    assert headers["content-type"] == b"application/avro"
    assert decode(event.value, SCHEMA)["n"] == 1
    assert len(rabbit.deliveries(rabbit.queue)) == 300, "nothing failed, so nothing came twice"
    rabbit.stop()
    stored = rabbit.stored()
    assert stored is not None
    assert rabbit.slot().confirmed <= stored.end_lsn
