"""Which librdkafka property goes to which client, and which ones the guarantee rests on.

Strategy: the `kafka` table of the settings passes through as it is, except what LOCKED_PROPERTIES names, which is refused
with its reason. Each kind of client gets the part that suits it (librdkafka warns about a producer's property on a
consumer and the other way round), over our defaults and under what is ours alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cdc.errors import ConfigurationError

Properties = dict[str, Any]
"""As the client takes them: text, numbers, booleans, callables."""

_BY_NAME = "it follows from the pipeline's name, and two ids would not fence each other"
_ORDER = "order and exactly-once need the idempotent producer's own value"
_OVERTAKEN = "it is 1: a batch that overtakes one that was sent away can be committed without it"
_DOOR = "a delivery is repeated until its Kafka transaction ends; a failure goes through the door"
_READ = "cdc reads whole topics by offsets of its own and never joins a group"
_OURS = "cdc sets it for its own clients"

LOCKED_PROPERTIES: Mapping[str, str] = {
    "transactional.id": _BY_NAME,
    "enable.idempotence": _ORDER,
    "acks": "an event counts as published when every in-sync replica has it",
    "request.required.acks": "an event counts as published when every in-sync replica has it",
    "max.in.flight": _OVERTAKEN,
    "max.in.flight.requests.per.connection": _OVERTAKEN,
    "enable.gapless.guarantee": _ORDER,
    "queuing.strategy": _ORDER,
    "partitioner": "a key must meet the partition that every Java client gives it (murmur2_random)",
    "retries": _DOOR,
    "message.send.max.retries": _DOOR,
    "message.timeout.ms": "it is transaction.timeout.ms, which may be set",
    "delivery.timeout.ms": "it is transaction.timeout.ms, which may be set",
    "delivery.report.only.error": "the commit answers for every delivery; a report for each event costs a third of the speed",
    "allow.auto.create.topics": "a topic that is missing must be seen, and not appear with the broker's defaults",
    "statistics.interval.ms": "nobody would read the statistics; see /metrics",
    "plugin.library.paths": "foreign code inside the producer could change what is sent",
    "topic.blacklist": "a hidden topic looks like a missing one",
    "default.topic.config": "write its properties into the kafka table directly",
    "log.queue": _OURS,
    "isolation.level": "uncommitted records do not exist for cdc",
    "enable.partition.eof": _READ,
    "group.id": _READ,
    "group.instance.id": _READ,
    "group.protocol": _READ,
    "enable.auto.commit": _READ,
    "auto.commit.enable": _READ,
    "enable.auto.offset.store": _READ,
    "auto.offset.reset": _READ,
}
"""Properties that are refused in the settings, with the reason that the refusal gives."""

PRODUCER_ONLY = frozenset(
    {
        "transaction.timeout.ms", "queue.buffering.max.messages", "queue.buffering.max.kbytes", "queue.buffering.max.ms",
        "linger.ms", "queue.buffering.backpressure.threshold", "compression.codec", "compression.type",
        "compression.level", "batch.num.messages", "batch.size", "sticky.partitioning.linger.ms", "request.timeout.ms",
        "produce.offset.report", "msg_order_cmp",
    }
)  # fmt: skip

CONSUMER_ONLY = frozenset(
    {
        "partition.assignment.strategy", "session.timeout.ms", "heartbeat.interval.ms", "group.protocol.type",
        "group.remote.assignor", "coordinator.query.interval.ms", "max.poll.interval.ms", "auto.commit.interval.ms",
        "queued.min.messages", "queued.max.messages.kbytes", "fetch.wait.max.ms", "fetch.queue.backoff.ms",
        "fetch.message.max.bytes", "max.partition.fetch.bytes", "fetch.max.bytes", "fetch.min.bytes",
        "fetch.error.backoff.ms", "offset.store.method", "offset.store.path", "offset.store.sync.interval.ms",
        "check.crcs", "consume.callback.max.messages",
    }
)  # fmt: skip

SECRETS = frozenset(
    {
        "sasl.password", "ssl.key.password", "ssl.key.pem", "ssl.keystore.password", "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.config", "sasl.oauthbearer.client.credentials.client.secret",
        "sasl.oauthbearer.assertion.private.key.passphrase", "sasl.oauthbearer.assertion.private.key.pem",
    }
)  # fmt: skip
"""Properties whose value is never shown."""

TRANSACTION_TIMEOUT_MS = 60_000
"""How long one Kafka transaction may stay open, Kafka's own default: about three million rows."""

SOCKET_TIMEOUT_MS = 10_000
"""When a silent link counts as lost. librdkafka's own choice for a transactional producer is the whole transaction timeout."""

QUEUE_KBYTES = 4_096
"""Keys and values that may wait inside the producer; librdkafka's own default is 1 GB."""

QUEUE_MESSAGES = 6_000
"""Records that may wait inside the producer: 50 ms of work. More were no faster, and ten thousand more take 13 MB."""

IN_FLIGHT = 1
"""Produce requests that may be on their way to a broker. With more, a commit could succeed without a record: the first batch of a
partition is sent away (NOT_LEADER_OR_FOLLOWER, the broker has just heard of the topic), the second one is taken, because a broker
that knows nothing of a producer takes any sequence number (ProducerAppendInfo.checkSequence), and librdkafka 2.16.0 then counts
the first one as delivered (rd_kafka_dr_implicit_ack)."""

LINGER_MS = 20
"""How long a batch waits for company. A commit flushes at once (rd_kafka_flush), so it only shapes batches inside a large Kafka
transaction: fewer requests, each of which costs the broker and us as much as some hundred records. Longer, and records of 10 kB
would fill the producer's queue before their time is up."""

QUEUED_KBYTES = 16_384
"""What may wait inside a consumer; librdkafka's own default is 64 MB."""

QUEUED_MESSAGES = 10_000
"""Records that a consumer keeps ready for each partition."""

RECONNECT_MS = 20
"""First pause before a lost broker is tried again, doubled each time. librdkafka also lets half of it pass between the bootstrap
server and the first broker that it connects to, so each client is ready 40 ms sooner than with its own default of 100."""

QUEUE_BACKOFF_MS = 10
"""How long a consumer rests whose queue is full. librdkafka's own choice of a second lets a reader of one partition wait most of
the time: 70,000 records took 15 s, and take 1."""

RECONNECT_MAX_MS = 1_000
"""Longest pause before a lost broker is tried again, so that a restarted one is found within a second."""

MESSAGE_MAX_BYTES = 1_000_000
"""librdkafka's default for the largest record; setting message.max.bytes raises or lowers it."""

BATCH_BYTES = 1_000_000
"""librdkafka's default for batch.size."""


def client_properties(kafka: Mapping[str, object]) -> Properties:
    """Check the settings' `kafka` table and return what every client shares; raises ConfigurationError."""
    for key, value in kafka.items():
        if (reason := LOCKED_PROPERTIES.get(key)) is not None:
            msg = f"kafka.{key!r} cannot be set: {reason}"
            raise ConfigurationError(msg, "remove the line")
        if key.endswith("_cb") or key in {"logger", "opaque"}:
            msg = f"kafka.{key!r} cannot be set: it names code and not a value"
            raise ConfigurationError(msg, "remove the line")
        if not isinstance(value, str | int | float):
            msg = f"kafka.{key!r} is a {type(value).__name__}; librdkafka takes text, a number or true/false"
            raise ConfigurationError(msg, "see librdkafka's CONFIGURATION.md")
    if not kafka.get("bootstrap.servers"):
        msg = "kafka.'bootstrap.servers' is missing"
        raise ConfigurationError(msg, 'name at least one broker, such as "127.0.0.1:9092"')
    return dict(kafka)


def number(properties: Mapping[str, object], key: str, default: int) -> int:
    """Read a property that is a whole number; raises ConfigurationError for anything else."""
    value = properties.get(key, default)
    try:
        return int(str(value))
    except ValueError:
        msg = f"kafka.{key!r} is not a whole number"
        raise ConfigurationError(msg, "see librdkafka's CONFIGURATION.md") from None


def producer_properties(
    kafka: Mapping[str, object], name: str, *, transaction_timeout_ms: int | None = None, batch_bytes: int = BATCH_BYTES
) -> Properties:
    """Return what a transactional producer takes; `transaction_timeout_ms` stands above the settings when it is given."""
    shared = {key: value for key, value in kafka.items() if key not in CONSUMER_ONLY}
    timeout_ms = transaction_timeout_ms or number(kafka, "transaction.timeout.ms", TRANSACTION_TIMEOUT_MS)
    defaults: Properties = {
        "client.id": client_id(name),
        "socket.timeout.ms": SOCKET_TIMEOUT_MS,
        "reconnect.backoff.ms": RECONNECT_MS,
        "reconnect.backoff.max.ms": RECONNECT_MAX_MS,
        "queue.buffering.max.kbytes": QUEUE_KBYTES,
        "queue.buffering.max.messages": QUEUE_MESSAGES,
    }
    if not shared.keys() & {"linger.ms", "queue.buffering.max.ms"}:
        defaults["linger.ms"] = LINGER_MS
    if not shared.keys() & {"compression.type", "compression.codec"}:
        defaults["compression.type"] = "lz4"
    merged = defaults | shared
    return merged | {
        "transactional.id": transactional_id(name),
        "transaction.timeout.ms": timeout_ms,
        # librdkafka refuses a socket timeout that is longer than the transaction's.
        "socket.timeout.ms": min(number(merged, "socket.timeout.ms", SOCKET_TIMEOUT_MS), timeout_ms),
        "message.max.bytes": number(kafka, "message.max.bytes", MESSAGE_MAX_BYTES),
        "batch.size": min(number(kafka, "batch.size", BATCH_BYTES), batch_bytes),
        "partitioner": "murmur2_random",
        "max.in.flight": IN_FLIGHT,
        "delivery.report.only.error": True,
        "statistics.interval.ms": 0,
        "allow.auto.create.topics": False,
    }


def admin_properties(kafka: Mapping[str, object], name: str) -> Properties:
    """Return what an admin client takes: no transaction, and nothing of a consumer's."""
    unsuited = CONSUMER_ONLY | PRODUCER_ONLY
    shared = {key: value for key, value in kafka.items() if key not in unsuited}
    defaults: Properties = {
        "client.id": client_id(name),
        "socket.timeout.ms": SOCKET_TIMEOUT_MS,
        "reconnect.backoff.ms": RECONNECT_MS,
        "reconnect.backoff.max.ms": RECONNECT_MAX_MS,
    }
    return defaults | shared


def consumer_properties(kafka: Mapping[str, object], name: str) -> Properties:
    """Return what a consumer takes that reads committed records by offsets of its own and joins no group."""
    shared = {key: value for key, value in kafka.items() if key not in PRODUCER_ONLY}
    defaults: Properties = {
        "client.id": client_id(name),
        "socket.timeout.ms": SOCKET_TIMEOUT_MS,
        "reconnect.backoff.ms": RECONNECT_MS,
        "reconnect.backoff.max.ms": RECONNECT_MAX_MS,
        "fetch.wait.max.ms": 10,
        "fetch.error.backoff.ms": 50,
        "fetch.queue.backoff.ms": QUEUE_BACKOFF_MS,
        "queued.max.messages.kbytes": QUEUED_KBYTES,
        "queued.min.messages": QUEUED_MESSAGES,
    }
    return (
        defaults
        | shared
        | {
            "group.id": client_id(name),
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "allow.auto.create.topics": False,
            "auto.offset.reset": "error",
        }
    )


def client_id(name: str) -> str:
    """Return the client.id of every client of a pipeline."""
    return f"cdc-{name}"


def transactional_id(name: str) -> str:
    """Return the id by which a new instance of a pipeline fences the older one."""
    return f"cdc-{name}"


def masked(kafka: Mapping[str, object]) -> dict[str, object]:
    """Return the properties with every secret replaced, for `cdc check` and for logs."""
    return {key: "********" if key in SECRETS else value for key, value in kafka.items()}
