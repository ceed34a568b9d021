"""What each of RabbitMQ's errors asks for."""

from __future__ import annotations

import pytest
from pika import exceptions

from cdc.errors import Poisoned, Retriable, SinkRefused
from cdc.rabbitmq.faults import raised


@pytest.mark.parametrize(
    ("error", "remedy", "words"),
    [
        (exceptions.ProbableAuthenticationError("x"), SinkRefused, "user or password"),
        (exceptions.ProbableAccessDeniedError("x"), SinkRefused, "virtual host"),
        (exceptions.ChannelClosedByBroker(403, "ACCESS_REFUSED - access to exchange"), SinkRefused, "403"),
        (exceptions.ChannelClosedByBroker(404, "NOT_FOUND - no queue 'q'"), SinkRefused, "no queue 'q'"),
        (exceptions.ChannelClosedByBroker(404, "NOT_FOUND - home node is down or inaccessible"), Retriable, "inaccessible"),
        (exceptions.ChannelClosedByBroker(405, "RESOURCE_LOCKED"), Retriable, "405"),
        (exceptions.ChannelClosedByBroker(406, "PRECONDITION_FAILED - inequivalent arg"), SinkRefused, "other arguments"),
        (exceptions.ConnectionClosedByBroker(320, "CONNECTION_FORCED - broker forced"), Retriable, "320"),
        (exceptions.StreamLostError("Stream connection lost: reset"), Retriable, "reset"),
        (exceptions.AMQPConnectionError(ConnectionRefusedError(111, "refused")), Retriable, "ConnectionRefusedError"),
    ],
)
def test_by_its_remedy(error: BaseException, remedy: type[Exception], words: str) -> None:
    found = raised(error, "trying")
    assert type(found) is remedy
    assert words in str(found)


@pytest.mark.parametrize("code", [406, 501, 502])
def test_what_is_said_of_a_message_is_looked_for(code: int) -> None:
    found = raised(exceptions.ChannelClosedByBroker(code, "too large"), "publishing", publishing=True)
    assert isinstance(found, Poisoned)
    assert found.why == f"{code} too large"
