"""A Debezium connector's configuration as the settings of a pipeline that takes its place; text in, text out, no I/O.

Strategy: every property of the connector is looked at once. Those that say what a record looks like, or where it is read from, become
settings; those that this pipeline does by itself are dropped with a word; whatever would make a record look different, and
whatever is not known, is listed, because only a person can tell whether a consumer minds.

Sources: Debezium 3.6, "Outbox Event Router" and "Debezium connector for PostgreSQL"; EventRouterConfigDefinition.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from cdc.errors import ConfigurationError
from cdc.settings.values import PIPELINE_NAME_MAX_CHARS, TableName, Wrong, is_secret, parse_placement

POSTGRES: Final = "io.debezium.connector.postgresql.PostgresConnector"
ROUTER: Final = "io.debezium.transforms.outbox.EventRouter"
STRING: Final = "org.apache.kafka.connect.storage.StringConverter"
PLAIN_HEADERS: Final = frozenset({STRING, "org.apache.kafka.connect.storage.SimpleHeaderConverter"})
"""Converters that write a text as itself."""

BYTES: Final = ("ByteArrayConverter", "BinaryDataConverter", "ByteBufferConverter")

DEFAULT_REGEX, DEFAULT_ROUTE = "(?<routedByValue>.*)", "outbox.event.${routedByValue}"

COLUMNS: Final = {
    "table.field.event.id": "id",
    "table.field.event.key": "aggregateid",
    "table.field.event.type": "type",
    "table.field.event.payload": "payload",
    "table.field.event.timestamp": "occurred_at",
    "table.field.event.schema.version": "schema_version",
}
"""The router's option -> our key of `outbox.columns`."""

BY_ITSELF: Final = (
    (r"heartbeat\..*", "heartbeats: the position moves by itself while the outbox is quiet"),
    (r"exactly\.once\.support|transaction\.boundary.*", "exactly once is how this pipeline always works"),
    (r"tombstones\.on\.delete|skipped\.operations", "deletes: they are not read"),
    (r"(poll\.interval\.ms|max\.(batch|queue).*|tasks\.max)", "sizes and pauses: batching follows load"),
    (r"snapshot\..*", "snapshots: a slot that is taken over needs none; else `cdc init --existing publish`"),
    (r"slot\.(stream\.params|max\.retries|retry\.delay\.ms|failover)|publication\.autocreate\.mode|status\.update\.interval\.ms", ""),
    (r"database\.server.*|topic\.prefix|plugin\.name|connector\.class|transforms|name|lsn\.flush\.mode|offsets\.storage\.topic", ""),
    (r"(schema|table|column)\.(include|exclude)\.list|decimal\.handling\.mode|time\.precision\.mode", ""),
    (r"unavailable\.value\.placeholder|include\.unknown\.datatypes|(database\.)?tcpKeepAlive", ""),
    (r"extended\.headers\.enabled", "the headers __debezium.context.*: there is no task to tell of"),
    (r"retriable\..*|errors\.(retry|log).*", ""),
)
"""Properties that need no setting here: a pattern, and what there is to say."""


@dataclass(slots=True)
class Connector:
    """What takes part in a takeover: the connector's name, its slot and publication, and the `server` of its offsets."""

    name: str
    config: Mapping[str, str]

    @property
    def slot(self) -> str:
        """Its replication slot."""
        return self.config.get("slot.name", "debezium")

    @property
    def publication(self) -> str:
        """Its publication."""
        return self.config.get("publication.name", "dbz_publication")

    @property
    def prefix(self) -> str:
        """What its offsets call the server."""
        return self.config.get("topic.prefix") or self.config.get("database.server.name", "")


@dataclass(slots=True)
class Imported:
    """The settings by table and key, what needs no setting here, and what could not be carried over."""

    tables: dict[str, dict[str, Any]] = field(default_factory=dict)
    by_itself: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    todo: list[str] = field(default_factory=list)

    def put(self, table: str, key: str, value: object) -> None:
        """Set one setting."""
        self.tables.setdefault(table, {})[key] = value

    def toml(self) -> str:
        """Return the whole file."""
        lines = ["# From a Debezium connector, by `cdc import-debezium`."]
        for name, table in self.tables.items():
            lines += ["", f"[{name}]"] if name else []
            lines += [f"{key if re.fullmatch(r'[a-z_]+', key) else json.dumps(key)} = {_toml(value)}" for key, value in table.items()]
        for title, notes in (("Could not be carried over", self.lost), ("To do", self.todo)):
            lines += ["", f"# {title}:", *(f"# - {note}" for note in notes)] if notes else []
        return "\n".join(lines) + "\n"


def read(text: str, source: str) -> Connector:
    """Read a connector as it is posted (`name` and `config`) or as Connect shows its configuration; raises ConfigurationError."""
    try:
        document = json.loads(text)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise ConfigurationError(f"{source} is no JSON object", "write what GET /connectors/NAME returns into it")
    inner = document.get("config", document)
    config = {str(key): _text(value) for key, value in inner.items()} if isinstance(inner, dict) else {}
    if config.get("connector.class", "") not in (POSTGRES, "PostgresConnector"):
        raise ConfigurationError(f"{source} holds no Debezium connector for PostgreSQL", f"connector.class has to be {POSTGRES}")
    return Connector(str(document.get("name") or config.get("name") or ""), config)


def translate(connector: Connector) -> Imported:
    """Return the settings that make the records which the connector made; raises ConfigurationError without an outbox router."""
    config, found = connector.config, Imported()
    routers = [name for name in _list(config.get("transforms", "")) if config.get(f"transforms.{name}.type") == ROUTER]
    if len(routers) != 1:
        msg = f"the connector has {len(routers) or 'no'} outbox event router{'s' if len(routers) > 1 else ''} among its transforms"
        raise ConfigurationError(msg, f"a pipeline publishes one outbox: exactly one transform of type {ROUTER}")
    prefix = f"transforms.{routers[0]}."
    router = {key.removeprefix(prefix): value for key, value in config.items() if key.startswith(prefix)}
    others = {key: value for key, value in config.items() if not key.startswith(prefix)}
    found.put("", "name", pipeline_name(connector.name or connector.slot))
    for translated in (_postgres(connector, found), _outbox(config, router, found), _topics(config, router, found)):
        router = {key: value for key, value in router.items() if key not in translated}
        others = {key: value for key, value in others.items() if key not in translated}
    _rest(router, others, found)
    subject = "the schemas: one in schemas/<type>/1.avsc for each type (SELECT DISTINCT {} FROM {}), then `cdc schemas add --all`"
    columns = found.tables["outbox"].get("columns", {})
    found.todo.append(subject.format(columns.get("type", "type"), found.tables["outbox"]["table"]))
    return found


def pipeline_name(text: str) -> str:
    """Return the name of a pipeline that is like a connector's."""
    return re.sub(r"[^a-z0-9_]+", "_", text.lower()).strip("_")[:PIPELINE_NAME_MAX_CHARS] or "debezium"


def _postgres(connector: Connector, found: Imported) -> set[str]:
    config = connector.config
    parts = {"host": "database.hostname", "port": "database.port", "dbname": "database.dbname", "user": "database.user"}
    parts |= {"sslmode": "database.sslmode", "sslrootcert": "database.sslrootcert", "sslcert": "database.sslcert"}
    given = {ours: config[theirs] for ours, theirs in parts.items() if config.get(theirs)}
    external = sorted(theirs for ours, theirs in parts.items() if "${" in given.get(ours, ""))
    words = [f"{key}={_quoted(value)}" for key, value in given.items() if "${" not in value]
    found.put("postgres", "dsn", " ".join(words) or "dbname=postgres")
    if external:
        found.lost.append(f"{', '.join(external)}: the worker looks these up elsewhere; write them into postgres.dsn")
    if "database.password" in config:
        found.todo.append("the password: in postgres.dsn_file, CDC_POSTGRES__DSN or ~/.pgpass; it is not copied into a file")
    if config.get("plugin.name", "decoderbufs") != "pgoutput":
        found.lost.append(f"plugin.name = {config.get('plugin.name', 'decoderbufs')}: only a slot of pgoutput can be taken over")
    else:
        found.put("postgres", "slot", connector.slot)
    if config.get("publication.autocreate.mode", "all_tables") == "all_tables":
        what = f"publication {connector.publication}: if Debezium made it, it is FOR ALL TABLES; `cdc init` makes one of the outbox alone"
        found.by_itself.append(what)
    else:
        found.put("postgres", "publication", connector.publication)
    if config.get("slot.drop.on.stop", "false") == "true":
        found.todo.append("slot.drop.on.stop: set it to false before the connector is stopped, or the slot is gone")
    return {*parts.values(), "database.password", "slot.name", "publication.name", "slot.drop.on.stop"}


def _outbox(config: Mapping[str, str], router: Mapping[str, str], found: Imported) -> set[str]:
    found.put("outbox", "table", _table(config.get("table.include.list", ""), found))
    columns = {ours: router[theirs] for theirs, ours in COLUMNS.items() if router.get(theirs, ours) != ours}
    by = router.get("route.by.field", "aggregatetype")
    if by not in ("aggregatetype", columns.get("type", "type")):
        columns["aggregatetype"] = by
    placed = [part.split(":") for part in _list(router.get("table.fields.additional.placement", ""))]
    for part in placed:
        if part[1:2] == ["partition"]:
            columns["partition"] = part[0]
        elif part[1:2] == ["envelope"]:
            found.lost.append(f"{':'.join(part)}: values are the payload alone, without an envelope around it")
    if "table.field.event.timestamp" in router:
        found.lost.append("table.field.event.timestamp: a record's timestamp is its commit time, because brokers refuse and delete by it")
    if columns:
        found.put("outbox", "columns", columns)
    if router.get("route.tombstone.on.empty.payload") == "true":
        found.lost.append("route.tombstone.on.empty.payload: SQL NULL becomes a record without value; an empty text is no JSON")
    return {*COLUMNS, "route.by.field", "route.tombstone.on.empty.payload", "table.include.list"}


def _table(listed: str, found: Imported) -> str:
    """Return the outbox among the tables that are read: patterns with escaped dots, as a rule."""
    names = [name.replace("\\.", ".") for name in _list(listed)]
    plain = [name for name in names if re.fullmatch(r"[\w$]+\.[\w$]+", name)]
    outbox = next((name for name in plain if "outbox" in name), plain[0] if plain else "public.outbox")
    if len(names) != 1 or not plain:
        found.lost.append(f"table.include.list = {listed or 'all'}: one pipeline reads one outbox table, here {outbox}")
    try:
        return str(TableName.parse(outbox))
    except Wrong:
        return "public.outbox"


def _topics(config: Mapping[str, str], router: Mapping[str, str], found: Imported) -> set[str]:
    found.put("topics", "route", _route(router, found))
    found.put("topics", "headers", "debezium")
    headers = [part for part in _list(router.get("table.fields.additional.placement", "")) if part.split(":")[1:2] == ["header"]]
    if headers:
        text = ",".join(headers)
        try:
            parse_placement(text)
            found.put("topics", "placement", text)
        except Wrong as error:
            found.lost.append(f"table.fields.additional.placement {error.what}")
    found.put("topics", "value", "json")
    _values(config, router, found)
    for what, converter in (("keys", config.get("key.converter", STRING)), ("headers", config.get("header.converter", STRING))):
        if converter not in PLAIN_HEADERS:
            found.lost.append(f"{what} written by {converter}: here they are plain text")
    partitions, copies = (config.get(f"topic.creation.default.{name}", "") for name in ("partitions", "replication.factor"))
    if partitions.isdigit() and copies.isdigit() and int(partitions):
        found.put("topics", "create", {"partitions": int(partitions), "replication_factor": int(copies)})
    return {
        *("route.topic.regex", "route.topic.replacement", "table.fields.additional.placement", "table.expand.json.payload"),
        *(f"topic.creation.default.{name}" for name in ("partitions", "replication.factor")),
        *("key.converter", "value.converter", "header.converter", "value.converter.schemas.enable", "key.converter.schemas.enable"),
    }


def _route(router: Mapping[str, str], found: Imported) -> str:
    regex, replacement = router.get("route.topic.regex", DEFAULT_REGEX), router.get("route.topic.replacement", DEFAULT_ROUTE)
    whole = re.fullmatch(r"\((?:\?<(\w+)>)?\.[*+]\)", regex)
    routed = "{type}" if router.get("route.by.field") == router.get("table.field.event.type", "type") else "{aggregatetype}"
    if whole is not None:
        names = {"$1", "$0", f"${{{whole[1]}}}"}
        route = re.sub(r"\$\{\w+\}|\$\d", lambda match: routed if match[0] in names else match[0], replacement)
        if "$" not in route:
            return route
    found.lost.append(f"route.topic.regex = {regex} with {replacement}: a route is a template; write it, or a topic column")
    return DEFAULT_ROUTE.replace("${routedByValue}", routed)


def _values(config: Mapping[str, str], router: Mapping[str, str], found: Imported) -> None:
    """Say whether values stay what they were."""
    converter, expanded = config.get("value.converter"), router.get("table.expand.json.payload", "false") == "true"
    if converter is None:
        found.todo.append("value.converter and key.converter are the worker's: it has to be StringConverter if nothing is to change")
    elif converter == STRING and not expanded:
        return
    elif converter.endswith(BYTES):
        found.lost.append(f'values written by {converter}: outbox.payload = "avro" if the column holds Avro; JSON has to be in UTF-8')
    elif converter.endswith(".JsonConverter") and expanded and config.get("value.converter.schemas.enable", "true") == "false":
        found.by_itself.append("table.expand.json.payload: the value is the payload's text as the column has it, not written anew")
    else:
        how = " with table.expand.json.payload" if expanded else ""
        found.lost.append(f"values written by {converter}{how}: here they are the payload's JSON text")


def _rest(router: Mapping[str, str], others: Mapping[str, str], found: Imported) -> None:
    """Account for all that is left."""
    for key, value in sorted(router.items()):
        if key == "table.op.invalid.behavior":
            found.by_itself.append("table.op.invalid.behavior: updates of the outbox are not read")
        elif key != "type":
            found.lost.append(f"{key} = {value} of the outbox router")
    transforms = [name for name in _list(others.get("transforms", "")) if f"transforms.{name}.type" in others]
    found.lost += [f"the transform {name} ({others[f'transforms.{name}.type']})" for name in transforms]
    if compression := others.get("producer.override.compression.type"):
        found.put("kafka", "compression.type", compression)
    found.todo.append('kafka."bootstrap.servers", with TLS and SASL as the worker has them')
    producer = [key for key in sorted(others) if key.startswith("producer.override.") and key != "producer.override.compression.type"]
    if producer:
        found.by_itself.append(f"{', '.join(producer)}: librdkafka's own properties go into [kafka]")
    words = {key: next((word for pattern, word in BY_ITSELF if re.fullmatch(pattern, key)), None) for key in sorted(others)}
    found.by_itself += sorted({word for word in words.values() if word})
    unknown = [key for key, word in words.items() if word is None and not key.startswith(("transforms.", "producer.override."))]
    found.lost += [key if is_secret(key) else f"{key} = {others[key]}" for key in unknown]


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _text(value: object) -> str:
    return json.dumps(value) if isinstance(value, bool) else str(value)


def _quoted(value: str) -> str:
    """Quote a value of a connection string where libpq asks for it."""
    if re.fullmatch(r"[^\s'\\]+", value):
        return value
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _toml(value: object) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + " }"
    return json.dumps(value, ensure_ascii=False)


def summary(found: Imported) -> Iterator[tuple[str, str]]:
    """Yield (kind, note) of all there is to say, what is lost first."""
    for kind, notes in (("not carried over", found.lost), ("to do", found.todo), ("needs no setting", found.by_itself)):
        yield from ((kind, note) for note in notes)
