"""Composition root: the only file that knows everybody. Constructors, no logic."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

from cdc.audit.open_letters import OpenLetters
from cdc.avro.current import CurrentRegistry
from cdc.errors import ConfigurationError
from cdc.kafka.groups import Groups
from cdc.kafka.properties import admin_properties, client_properties
from cdc.kafka.publisher import KafkaPublisher
from cdc.kafka.subscriber import Subscriber
from cdc.kafka.topics import Create
from cdc.observe.history import SAMPLE_S
from cdc.observe.observer import COUNT_S, PipelineObserver
from cdc.observe.periodic import Periodic
from cdc.observe.tracing import traced
from cdc.observe.watchdog import LOOK_S, Watchdog, tell_systemd
from cdc.outbox.emit import Emit
from cdc.outbox.mapping import OutboxMapping, placeholders
from cdc.outbox.publication import check_outbox
from cdc.outbox.replay import router_from
from cdc.outbox.retention import TICK_S, Retention
from cdc.pipeline.parking import Policy
from cdc.pipeline.ports import Observer, Reader, Sink, Waiting
from cdc.pipeline.relay import Relay
from cdc.pipeline.supervisor import Identity, Supervisor
from cdc.position import Position
from cdc.postgres.catalog import LiveCatalog
from cdc.postgres.link import Link, PqLink
from cdc.postgres.pgoutput import Relation
from cdc.postgres.slot import Part, Table
from cdc.postgres.stream import ReplicationStream
from cdc.resilience.backoff import Backoff
from cdc.settings import Settings
from cdc.settings import mapping as settings_mapping
from cdc.sinks import rabbit_letters, rabbit_publisher, rabbit_reader, redis_groups, redis_letters, redis_publisher, redis_reader

if TYPE_CHECKING:
    from cdc.audit.consumer_letters import LettersPublisher
    from cdc.audit.finding import Doctor
    from cdc.audit.offsets import Groups as MovableGroups
    from cdc.audit.payloads import Payloads
    from cdc.audit.redrive import RedrivePublisher
    from cdc.audit.takeover import Takeover
    from cdc.consumer.names import Names
    from cdc.settings.debezium import Connector

TAKEOVER_STATUS_S = 0.5
"""A quiet server tells where its log ends when it is asked."""

SINK_NAMES = {"kafka": "Kafka", "redis": "Redis", "rabbitmq": "RabbitMQ"}

BACKOFF_FIRST_S, BACKOFF_CAP_S = 0.2, 5.0
"""Short enough that a server that is back is noticed at once, long enough not to be load on one that is not."""


def application_name(settings: Settings) -> str:
    """Return the name of our connections in pg_stat_activity and pg_stat_replication."""
    return f"cdc-{settings.name}"


def dsn(settings: Settings) -> str:
    """Return the pipeline's connection string."""
    return settings.postgres.dsn.get_secret_value()


def table(settings: Settings) -> Table:
    """Return the outbox table."""
    outbox, shard = settings.outbox, settings.shard
    part = None if shard is None else Part(mapping(settings).column("aggregateid"), shard.number, shard.count)
    return Table(outbox.table.schema, outbox.table.name, part)


def mapping(settings: Settings) -> OutboxMapping:
    """Return how rows become records."""
    return settings_mapping.mapping(settings)


def emit(settings: Settings) -> Emit | None:
    """Return the function for writers in other languages, unless it is off."""
    name = settings.outbox.emit
    return None if name is None else Emit(name.schema, name.name, settings.name, table(settings), mapping(settings))


def schemas(settings: Settings) -> CurrentRegistry:
    """Return the schema folder, which is taken up again when it changes."""
    return CurrentRegistry(Path(settings.schemas.folder))


def static_topics(settings: Settings) -> list[str]:
    """Return the topics that no row can change: a route without placeholders, and the dead letters'."""
    routes = [] if placeholders(settings.topics.route) else [settings.topics.route]
    return [*routes, *([settings.topics.dead_letter] if settings.outbox.on_invalid == "dead-letter" else [])]


def catalog(settings: Settings) -> LiveCatalog:
    """Return the live catalog."""
    return LiveCatalog(dsn(settings), application_name(settings))


def create(settings: Settings) -> Create | None:
    """Return how missing topics are made, or None when they must exist; other sinks than Kafka make what they need in one way."""
    if settings.sink != "kafka":
        return Create(1, 1, 1)
    return None if settings.topics.create is None else Create(**settings.topics.create.model_dump())


def source(settings: Settings, live: LiveCatalog, read_by: str | None = None) -> ReplicationStream:
    """Return the log from our slot on; with `read_by` as this publication shows it, which is not ours."""
    outbox = table(settings)
    interval_s = settings.postgres.status_interval.total_seconds()

    def wanted(relation: Relation) -> bool:
        return relation.name == outbox.name and relation.namespace == outbox.schema

    def connect(wal_sender_timeout_s: float) -> Link:
        return PqLink(dsn(settings), application_name(settings), wal_sender_timeout_s)

    return ReplicationStream(
        slot=settings.postgres.slot,
        publication=read_by or settings.postgres.publication,
        message_prefix=None if read_by else settings.outbox.message_prefix,
        wanted=wanted,
        status_interval_s=TAKEOVER_STATUS_S if read_by else interval_s,
        catalog=live,
        connect=connect,
        clock=time.monotonic,
        wall=time.time,
    )


def policy(settings: Settings) -> Policy:
    """Return what becomes of invalid rows."""
    return Policy(settings.name, settings.topics.dead_letter if settings.outbox.on_invalid == "dead-letter" else None)


def publisher(settings: Settings) -> Sink:
    """Return who publishes: with `subscriber` and `doctor` the place where the sink is chosen."""
    if settings.redis is not None:
        return redis_publisher(settings, settings.redis)
    if settings.rabbitmq is not None:
        return rabbit_publisher(settings, settings.rabbitmq)
    return kafka_publisher(settings)


def subscriber(settings: Settings) -> Reader:
    """Return a reader of committed records."""
    if settings.redis is not None:
        return redis_reader(settings, settings.redis)
    if settings.rabbitmq is not None:
        return rabbit_reader(settings, settings.rabbitmq)
    return kafka_subscriber(settings)


def doctor(settings: Settings) -> Doctor:
    """Return what `cdc check` asks the sink."""
    if settings.redis is not None:
        from cdc.audit import check_redis  # noqa: PLC0415 - the pipeline needs no doctor

        return check_redis.doctor(redis_publisher(settings, settings.redis))
    if settings.rabbitmq is not None:
        from cdc.audit import check_rabbitmq  # noqa: PLC0415 - the pipeline needs no doctor

        return check_rabbitmq.doctor(rabbit_publisher(settings, settings.rabbitmq))
    from cdc.audit import check_kafka  # noqa: PLC0415 - the pipeline needs no doctor

    return check_kafka.doctor(kafka_publisher(settings))


def _only_kafka(settings: Settings) -> None:
    """Refuse what another sink cannot serve."""
    if settings.sink != "kafka":
        msg = f"this command works with Kafka only, and the pipeline publishes to {settings.sink}"
        raise ConfigurationError(msg, "docs/which-broker.md says which commands each sink has, and what to do without")


def require_events(settings: Settings) -> None:
    """Refuse what has to read the events where nothing keeps them."""
    if not readable(settings):
        msg = "the events cannot be read: to read a queue of RabbitMQ is to take from it"
        raise ConfigurationError(msg, "set rabbitmq.audit, and let `cdc init` make a stream that gets a copy of each event")


def kafka_publisher(settings: Settings) -> KafkaPublisher:
    """Return the transactional producer."""
    _only_kafka(settings)
    return KafkaPublisher(
        name=settings.name,
        kafka=settings.kafka,
        position_topic=settings.topics.position,
        create=create(settings),
        on_partition_change=settings.topics.on_partition_change,
    )


def key_hash(settings: Settings) -> Callable[[bytes], int] | None:
    """Return how the sink spreads keys over the partitions of a topic, unless it is Kafka's way."""
    return crc32 if settings.redis is not None else None


def command_publisher(settings: Settings, command: str) -> KafkaPublisher:
    """Return the producer of a command that publishes beside the pipeline: its identity is its own, so it never fences it."""
    _only_kafka(settings)
    return KafkaPublisher(
        name=f"{settings.name}-{command}",
        kafka=settings.kafka,
        position_topic=settings.topics.position,
        create=create(settings),
    )


def redrive_publisher(settings: Settings) -> RedrivePublisher:
    """Return who publishes what the pipeline's dead letters become."""
    if settings.redis is not None:
        return redis_letters(settings, settings.redis, "redrive", settings.topics.dead_letter, settings.redis.streams)
    if settings.rabbitmq is not None:
        return rabbit_letters(settings, settings.rabbitmq, "redrive", settings.topics.dead_letter, ())
    return command_publisher(settings, "redrive")


def letters_publisher(settings: Settings, names: Names) -> LettersPublisher:
    """Return who gives a consumer what it has parked."""
    command = f"redrive-{names.consumer}"
    if settings.redis is not None:
        return redis_letters(settings, settings.redis, command, names.dead_letter, 1)
    if settings.rabbitmq is not None:
        return rabbit_letters(settings, settings.rabbitmq, command, names.dead_letter, [names.redriven])
    return command_publisher(settings, command)


def readable(settings: Settings) -> bool:
    """Whether events can be read again."""
    return settings.rabbitmq is None or settings.rabbitmq.audit is not None


def consuming(settings: Settings) -> dict[str, Any]:
    """Return what a consumer is told of the pipeline's sink: `Consumer(name, **consuming(settings), ..)`."""
    if settings.redis is not None:
        redis = settings.redis
        return {"redis": {"url": redis.url.get_secret_value(), "sentinel": redis.sentinel, "streams": redis.streams}}
    if settings.rabbitmq is not None:
        return {"rabbitmq": {"url": settings.rabbitmq.url.get_secret_value(), "exchange": settings.rabbitmq.exchange}}
    _only_kafka(settings)
    return {"kafka": dict(settings.kafka)}


def kafka_subscriber(settings: Settings) -> Subscriber:
    """Return a reader of Kafka's committed records."""
    _only_kafka(settings)
    return Subscriber(name=settings.name, kafka=settings.kafka)


def groups(settings: Settings) -> MovableGroups:
    """Return who moves consumer groups."""
    if settings.redis is not None:
        return redis_groups(settings, settings.redis)
    _only_kafka(settings)
    return Groups(admin_properties(client_properties(settings.kafka), settings.name))


def observer(settings: Settings) -> PipelineObserver:
    """Return what metrics, health and logs hang on."""
    return PipelineObserver(settings.name)


def watchers(settings: Settings, watch: PipelineObserver) -> list[Periodic]:
    """Return what looks at the pipeline from beside it; made in the thread that will run it."""
    watchdog = Watchdog(watch.health, threading.get_ident(), tell_systemd)
    letters = OpenLetters(lambda: subscriber(settings), settings.topics.dead_letter, settings.name)
    beside = [Periodic("watchdog", watchdog.look, LOOK_S)]
    if settings.rabbitmq is None:  # whoever reads a queue takes from it: the broker itself says how many lie there
        beside.append(Periodic("dead-letters", lambda leave: watch.count_dead_letters(letters.count, leave, letters.last), COUNT_S))
    if settings.http.address is not None:
        beside.append(Periodic("history", watch.history.look, SAMPLE_S))
    if settings.outbox.retention is not None:
        beside.append(Periodic("retention", retention(settings, settings.outbox.retention, watch).look, TICK_S))
    return beside


def payloads(settings: Settings, current: CurrentRegistry) -> Payloads:
    """Return who reads a dead letter whole."""
    from cdc.audit.dead_letters import DeadLetters  # noqa: PLC0415 - for who asks
    from cdc.audit.payloads import Payloads  # noqa: PLC0415

    def connect() -> DeadLetters:
        return DeadLetters(subscriber(settings), settings.topics.dead_letter, settings.name)

    return Payloads(connect, mapping(settings), lambda: current.registry)


def takeover(settings: Settings, reader: Subscriber, connector: Connector, offsets_topic: str | None) -> Takeover:
    """Return who takes the place of a Debezium connector."""
    from cdc.audit.takeover import Takeover  # noqa: PLC0415 - once in a pipeline's life
    from cdc.avro import folder  # noqa: PLC0415

    return Takeover(
        connector=connector.name,
        server=connector.prefix,
        offsets_topic=offsets_topic or connector.config.get("offsets.storage.topic", "connect-offsets"),
        stream=source(settings, catalog(settings), connector.publication),
        catalog=catalog(settings),
        subscriber=reader,
        mapping=mapping(settings),
        encoder=folder.load(Path(settings.schemas.folder)).encoder,
        policy=policy(settings),
        table=table(settings),
        publication=settings.postgres.publication,
        read_by=connector.publication,
        whole_topics=any(key.endswith(".table.field.event.timestamp") for key in connector.config),
    )


def retention(settings: Settings, age: timedelta, watch: PipelineObserver) -> Retention:
    """Return who deletes old rows, while this instance streams."""
    return Retention(
        dsn=dsn(settings),
        application_name=application_name(settings),
        pipeline=settings.name,
        slot=settings.postgres.slot,
        table=table(settings),
        mapping=mapping(settings),
        age=age,
        active=lambda: watch.health.snapshot.ready,
        report=watch,
    )


def supervisor(
    settings: Settings, registry: CurrentRegistry, watch: Observer, stop: threading.Event, *, park: frozenset[str] | None = None
) -> Supervisor:
    """Return the pipeline, ready to run until `stop` is set; with `park` these rows alone become dead letters."""
    live = catalog(settings)
    log, how, outbox = source(settings, live), mapping(settings), table(settings)
    sink = publisher(settings)
    kafka = traced(sink, settings.name)
    parks = park is not None or settings.outbox.on_invalid == "dead-letter"
    policy = Policy(settings.name, settings.topics.dead_letter if parks else None, park)
    needed = dict.fromkeys([*static_topics(settings), *([settings.topics.dead_letter] if parks else [])])

    def relay(position: Position, waiting: Waiting, refused: Mapping[bytes, str]) -> Relay:
        router = router_from(how, registry.encoder, position)
        registry.changed = router.forget_schemas
        return Relay(
            source=log,
            publisher=kafka,
            router=router,
            policy=policy,
            observer=watch,
            position=position,
            refused=refused,
            waiting=waiting,
            clock=time.monotonic,
            wall=time.time,
        )

    return Supervisor(
        identity=Identity(settings.name, settings.postgres.slot, tuple(needed), settings.outbox.message_prefix, SINK_NAMES[settings.sink]),
        source=log,
        publisher=kafka,
        precheck=lambda: check_outbox(live, settings.postgres.publication, outbox, how),
        relay=relay,
        refresh=registry.refresh,
        observer=watch,
        backoff=Backoff(BACKOFF_FIRST_S, BACKOFF_CAP_S, random.random),
        clock=time.monotonic,
        stopping=stop.is_set,
        pause=stop.wait,
        grace_s=settings.shutdown_grace.total_seconds(),
        blocked=lambda: sink.blocked,
    )
