"""What a consumer says of RabbitMQ: values alone."""

from __future__ import annotations

import pytest

from cdc.consumer import Consumer
from cdc.errors import ConfigurationError
from cdc.rabbitmq.group import Group, Options, Queues

URL = "amqp://somebody:secret@127.0.0.1/"


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({}, "no url"),
        ({"url": 7}, "no url"),
        ({"url": "amqp://somebody:secret@host:port/"}, "cannot be read"),
        ({"url": URL, "Exchange": "shop"}, "no option 'Exchange'"),
        ({"url": URL, "exchange": None}, "exchange"),
        ({"url": URL, "exchange": "x" * 256}, "exchange"),
        ({"url": URL, "single_active": "no"}, "single_active of 'no'"),
    ],
)
def test_a_wrong_option_is_told_where_the_consumer_is_declared(table: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as caught:
        Consumer("c", topics=["t"], rabbitmq=table)
    assert "secret" not in str(caught.value)


def test_a_queue_whose_name_is_too_long_is_named() -> None:
    queues = Queues(Group("c", "cdc.c.dead-letter", 1, "due"), Options(URL), "3.10.0")
    with pytest.raises(ConfigurationError, match="255 bytes"):
        queues.questions(["x" * 254], [])
