"""The settings as frozen models: every key with its type, its default and what it is for.

Strategy: the models are the one list of keys. The loader asks them what is known, the manual's page
`docs/configuration.md` is written from their descriptions, and nothing else repeats a default. Defaults that follow from
the pipeline's name stand in DERIVED.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import BaseModel, BeforeValidator, Field, PlainSerializer, PlainValidator, PrivateAttr, model_validator

from cdc.outbox.mapping import KEYS
from cdc.settings.base import Frozen
from cdc.settings.rabbitmq import RabbitSettings
from cdc.settings.redis import RedisSettings
from cdc.settings.shards import LISTEN, ShardSetting, sharded
from cdc.settings.topics import TopicSettings
from cdc.settings.values import (
    Column,
    ConnectionString,
    Duration,
    HttpToken,
    Identifier,
    KafkaProperties,
    Listen,
    PipelineName,
    SlotName,
    SourceUri,
    SubjectTemplate,
    Table,
    TableName,
    Wrong,
    is_loopback,
    parse_listen,
)

Path = tuple[str, ...]
"""The place of a value: ("postgres", "dsn"), or ("kafka", "bootstrap.servers")."""

DERIVED: Mapping[Path, str] = {
    ("postgres", "slot"): "cdc_{name}",
    ("postgres", "publication"): "cdc_{name}",
    ("outbox", "source"): "/{name}",
    ("topics", "position"): "_cdc.{name}.position",
    ("topics", "dead_letter"): "cdc.{name}.dead-letter",
}
"""Defaults that follow from the pipeline's name."""

SINKS = ("kafka", "redis", "rabbitmq")
"""Tables of which a pipeline has one: where it publishes. Without any it is Kafka, on this machine."""

SINKS_ELSE = {
    "redis": ("Redis", "redis.streams says how many streams a topic has"),
    "rabbitmq": ("RabbitMQ", "`cdc init` makes the exchange, and consumers their queues"),
}
"""What other sinks are called, and what they have in place of topics.create."""

KAFKA_DEFAULTS: Mapping[str, str] = {"bootstrap.servers": "127.0.0.1:9092"}

STATUS_INTERVAL_MIN = timedelta(milliseconds=100)
"""Below this the status updates themselves become load."""

STATUS_INTERVAL_MAX = timedelta(minutes=10)
"""PostgreSQL drops us after 6 of them without a word: above this a dead pipeline holds its slot for more than an hour."""

SHUTDOWN_GRACE_MAX = timedelta(minutes=15)
"""A Kafka transaction cannot be open longer than the broker's default `transaction.max.timeout.ms`."""

SECTION_NOTES: Mapping[str, str] = {
    "postgres": "Where the log is read.",
    "outbox": "What a row of the outbox table means, and what becomes of one that cannot be published.",
    "outbox.columns": "Where each part of an event stands in the row: the name of a column, or else a path into the JSON "
    "payload such as `payload.eventType`. Name only what differs. A column that is named here has to exist.",
    "schemas": "Which schema a payload is checked against.",
    "kafka": "Every librdkafka property passes through under its own name (in double quotes, or as a dotted key), except "
    "those that the guarantee rests on, which are refused.",
    "redis": "Redis Streams in place of Kafka: name this table instead of `[kafka]`, and install the extra `redis`. "
    "See [Redis Streams](redis.md).",
    "rabbitmq": "RabbitMQ in place of Kafka: name this table instead of `[kafka]`, and install the extra `rabbitmq`. "
    "See [RabbitMQ](rabbitmq.md).",
    "topics": "Where records go.",
    "topics.create": "How topics that do not exist are created. Without this table they must exist.",
    "http": "What can be seen from outside.",
}


def _function_name(value: object) -> TableName | None:
    """Read `schema.function`, or "off"."""
    if value is None or value == "off":
        return None
    try:
        return TableName.parse(value)
    except Wrong:
        raise Wrong("is not the name of a function", 'write schema.function, or "off"') from None


FunctionName = Annotated[TableName | None, BeforeValidator(_function_name), PlainSerializer(lambda name: str(name or "off"))]


class PostgresSettings(Frozen):
    """Table `[postgres]`."""

    dsn: ConnectionString = Field(
        description="Connection of the pipeline's role: a libpq URI or connection string.",
        examples=["postgresql://cdc@127.0.0.1:5432/shop"],
    )
    admin_dsn: ConnectionString | None = Field(
        default=None,
        description="Connection for `cdc init`, which creates publication, slot and role; without it `dsn` is used.",
    )
    slot: SlotName = Field(description="Replication slot; one pipeline owns it.")
    publication: Identifier = Field(description="Publication; a literal name, quoted by us.")
    status_interval: Duration = Field(
        default=timedelta(seconds=10),
        ge=STATUS_INTERVAL_MIN,
        le=STATUS_INTERVAL_MAX,
        description="How often PostgreSQL hears from us at least; our connection's `wal_sender_timeout` is 6 times this.",
    )


class ColumnSettings(Frozen):
    """Table `columns` in `[outbox]`."""

    id: Column | None = Field(default=None, description="Event id (uuid, text or integer): `ce_id`.")
    aggregatetype: Column | None = Field(default=None, description="Kind of thing that the event is about: usually its topic.")
    aggregateid: Column | None = Field(default=None, description="Which thing: the record's key.")
    type: Column | None = Field(default=None, description="Event type: `ce_type`, and usually the schema's subject.")
    payload: Column | None = Field(default=None, description="The event itself; SQL NULL is a tombstone.")
    schema_version: Column | None = Field(default=None, description="Version of the schema; without it the pinned or the latest one.")
    headers: Column | None = Field(default=None, description="More headers, as a JSON object of texts.")
    occurred_at: Column | None = Field(default=None, description="When it happened: `ce_time`.")
    topic: Column | None = Field(default=None, description="Topic of this row; NULL leaves it to `topics.route`.")
    partition: Column | None = Field(default=None, description="Partition of this row; NULL leaves it to the key.")
    traceparent: Column | None = Field(default=None, description="W3C trace context, passed on as the header `traceparent`.")

    def named(self) -> dict[str, str]:
        """Return only what the settings name; the rest has Debezium's column names."""
        return {key: value for key in KEYS if (value := getattr(self, key)) is not None}


class OutboxSettings(Frozen):
    """Table `[outbox]`."""

    table: Table = Field(
        default=TableName("public", "outbox"),
        description='The outbox table. Names are literal and quoted by us; a dot inside a name needs double quotes: `App."Out.box"`.',
    )
    columns: ColumnSettings = ColumnSettings()
    emit: FunctionName = Field(
        default=TableName("cdc", "emit"),
        description='The SQL function that `cdc init` makes for writers in other languages; "off" for none. Pipelines of one '
        "database need different names.",
    )
    message_prefix: str | None = Field(
        default=None,
        min_length=1,
        description="Also take messages of `pg_logical_emit_message(true, prefix, ..)`: an outbox without a table.",
        examples=["outbox"],
    )
    payload: Literal["json", "avro"] = Field(
        default="json",
        description='What the payload column holds: "json", or "avro" for bytes that are already encoded.',
    )
    source: SourceUri = Field(description="`ce_source` of every event, part of a consumer's inbox key.")
    tombstones: bool = Field(default=True, description="A payload that is SQL NULL becomes a record without value; false makes it invalid.")
    on_invalid: Literal["dead-letter", "stop"] = Field(
        default="dead-letter",
        description="A row that cannot become a record (schema, mapping, route, size, tombstone) becomes a dead letter, or "
        "stops the pipeline with exit code 7.",
    )
    retention: Duration | None = Field(
        default=None,
        gt=timedelta(0),
        description="Delete published rows from the table when they are older, and drop partitions whose range is older.",
        examples=["7d"],
    )


class SchemaSettings(Frozen):
    """Table `[schemas]`."""

    folder: str = Field(
        default="schemas",
        min_length=1,
        description="The schema folder; a relative path starts at the folder of the configuration file.",
    )
    subject: SubjectTemplate = Field(
        default="{type}",
        description="Subject of a row; placeholders are the keys of `outbox.columns` without payload and headers.",
    )


class HttpSettings(Frozen):
    """Table `[http]`."""

    listen: Listen = Field(
        default=LISTEN,
        description='Address of the status page, /metrics, /health/live, /health/ready, /status and /registry; "off" for none.',
    )

    token: HttpToken | None = Field(
        default=None,
        description="What /, /status and /registry ask for (bearer, or basic with any user); needed when `listen` is no loopback "
        "address. /health and /metrics need none.",
    )

    @model_validator(mode="after")
    def _guarded(self) -> Self:
        if self.address is not None and self.token is None and not is_loopback(self.address[0]):
            what = f"listens on {self.listen}, which others reach, without a token"
            raise Wrong(what, "set http.token (or http.token_file), or listen on 127.0.0.1")
        return self

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port, or None when it is off."""
        return parse_listen(self.listen)


class Origin(NamedTuple):
    """Where a value came from: `source`, and the place in it (a file and line, a variable, a flag)."""

    source: Literal["default", "file", "env", "flag"]
    place: str


DEFAULT = Origin("default", "default")


class Settings(Frozen):
    """All settings of one pipeline."""

    name: PipelineName = Field(
        description="Name of the pipeline; slot, publication, topics and transactional.id follow from it.",
        examples=["shop"],
    )
    shard: ShardSetting = Field(
        default=None,
        description="The part of the keys that this process publishes: `0/2` is the first of two. What is named after the pipeline is "
        "then named after the shard (`shop_0of2`); see [sizing](sizing.md#shards). `--shards` of a command means all of them.",
        examples=["0/2"],
    )
    shutdown_grace: Duration = Field(
        default=timedelta(seconds=10),
        ge=timedelta(0),
        le=SHUTDOWN_GRACE_MAX,
        description="How long a SIGTERM leaves for the Kafka transaction under way.",
    )
    postgres: PostgresSettings
    outbox: OutboxSettings
    schemas: SchemaSettings = SchemaSettings()
    kafka: Annotated[KafkaProperties, PlainValidator(KafkaProperties.parse)] = KafkaProperties(KAFKA_DEFAULTS)
    redis: RedisSettings | None = None
    rabbitmq: RabbitSettings | None = None
    topics: TopicSettings
    http: HttpSettings = HttpSettings()

    _origins: dict[Path, Origin] = PrivateAttr(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _derive(cls, data: Any) -> Any:  # noqa: ANN401 - whatever the sources held
        if not isinstance(data, dict):
            return data
        if len(named := [sink for sink in SINKS if sink in data]) > 1:
            raise Wrong(f"cannot publish to two sinks: {' and '.join(named)}", "leave all but one of these tables out")
        data = sharded(data, DERIVED)
        tree = {**data, "kafka": {**KAFKA_DEFAULTS, **data.get("kafka", {})}}
        for (section, key), template in DERIVED.items():
            table = tree.get(section, {})
            if isinstance(table, dict):
                tree[section] = {key: template.format(name=data.get("name", "")), **table}
        return tree

    @model_validator(mode="after")
    def _value_can_be_made(self) -> Self:
        if self.outbox.payload == "avro" and self.topics.value != "avro":
            what = "cannot make JSON of payloads that are already encoded"
            raise Wrong(what, 'set topics.value = "avro", or outbox.payload = "json"')
        return self

    @model_validator(mode="after")
    def _sink_has_it(self) -> Self:
        """Refuse what only Kafka has: topics that are made in a number of partitions, and a row that chooses its own."""
        if self.sink == "kafka":
            return self
        name, instead = SINKS_ELSE[self.sink]
        if self.topics.create is not None:
            raise Wrong(f"topics.create has no meaning with {name}", f"leave it out; {instead}")
        if self.outbox.columns.partition is not None:
            what = f"outbox.columns.partition has no meaning with {name}, which has no partitions that a row could choose"
            raise Wrong(what, "leave it out; a row's key and topic say where it goes")
        return self

    @model_validator(mode="after")
    def _shard_can_be_told(self) -> Self:
        if self.shard is not None and self.outbox.message_prefix is not None:
            raise Wrong("cannot publish messages: every shard would", "leave outbox.message_prefix out, or run one pipeline without shards")
        return self

    @property
    def sink(self) -> str:
        """The one of SINKS that this pipeline publishes to."""
        return next((sink for sink in SINKS if sink != "kafka" and getattr(self, sink) is not None), "kafka")

    @property
    def transactional_id(self) -> str:
        """The producer's identity: whoever takes it fences the one before."""
        return f"cdc-{self.name}"

    def origin(self, path: Path) -> Origin:
        """Return where the value at `path` came from."""
        return self._origins.get(path, DEFAULT)

    def effective(self) -> dict[str, Any]:
        """Return every value as it may be printed, secrets masked, each with its origin and place; nested as in the file."""
        return _shown(self, (), self.origin)


def _shown(model: BaseModel, path: Path, origin: Any) -> dict[str, Any]:  # noqa: ANN401 - a bound method
    tree: dict[str, Any] = {}
    plain = model.model_dump(mode="json", exclude={"kafka"})
    for key in type(model).model_fields:
        value, at = getattr(model, key), (*path, key)
        if isinstance(value, BaseModel):
            tree[key] = _shown(value, at, origin)
        elif isinstance(value, KafkaProperties):
            tree[key] = {name: _leaf(shown, origin((*at, name))) for name, shown in value.shown().items()}
        else:
            tree[key] = _leaf(plain[key], origin(at))
    return tree


def _leaf(value: object, origin: Origin) -> dict[str, object]:
    return {"value": value, "origin": origin.source, "place": origin.place}
