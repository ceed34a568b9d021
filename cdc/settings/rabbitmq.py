"""Table `[rabbitmq]`: RabbitMQ in place of Kafka."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal, Self

from pydantic import Field, model_validator

from cdc.settings.base import Frozen
from cdc.settings.values import ConnectionString, Dsn, Duration, TopicName, Wrong


class RabbitSettings(Frozen):
    """Table `[rabbitmq]`."""

    url: ConnectionString = Field(
        default=Dsn("amqp://guest:guest@127.0.0.1:5672/%2F"),
        description="Server, user, password and virtual host, as pika reads them: `amqp://` or `amqps://` (TLS). Without `heartbeat` "
        "in it a broker that hears nothing from us for 20 s gives our lease away.",
    )
    exchange: str = Field(
        default="outbox",
        max_length=255,
        description='The exchange of the events; a row\'s topic (`topics.route`) is its routing key. "" is the default exchange, where '
        "a routing key is the name of a queue.",
    )
    exchange_type: Literal["topic", "direct", "fanout"] = Field(default="topic", description="What `cdc init` makes the exchange.")
    audit: TopicName | None = Field(
        default=None,
        description="A stream that gets a copy of each event, so that `cdc verify` and `cdc tail` can read what was published; `cdc init` "
        "makes it and binds it to the exchange. With it every row finds a queue.",
        examples=["shop.audit"],
    )
    confirm_timeout: Duration = Field(
        default=timedelta(seconds=5),
        gt=timedelta(0),
        description="How long the broker may confirm nothing while messages wait for it; not counted while it says that it is blocked.",
    )

    @model_validator(mode="after")
    def _audit_can_be_bound(self) -> Self:
        if self.audit is not None and (self.exchange_type == "direct" or not self.exchange):
            raise Wrong("rabbitmq.audit needs an exchange that can give it every event", 'set exchange_type = "topic" or "fanout"')
        return self
