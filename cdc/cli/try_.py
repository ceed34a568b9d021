"""`cdc try`: the record that a payload would become, or why it cannot.

Strategy: the row is made up, everything after it is the pipeline's own: the router, the encoder, the settings. So what is shown
is what would be published, and a refusal has the words that the dead letter would have.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import orjson
import typer

from cdc.avro import folder
from cdc.avro.decoder import Decoder
from cdc.avro.schema import Json as Value
from cdc.cli.options import Config, Json, Sets, schemas_from, settings_from
from cdc.cli.output import console, print_json, table
from cdc.errors import AuditFailed, ConfigurationError, InvalidEvent
from cdc.event import Record
from cdc.outbox.mapping import OutboxMapping, found
from cdc.outbox.router import Router
from cdc.position import Lsn
from cdc.postgres.pgoutput import Begin, Column, Relation

TEXT_OID = 25


def try_(
    *,
    file: Annotated[str, typer.Argument(metavar="FILE", help="The payload as JSON; - reads it from stdin.")],
    event_type: Annotated[str | None, typer.Option("--type", metavar="TYPE", help="The row's type, and by default its subject.")] = None,
    version: Annotated[int | None, typer.Option("--version", metavar="N", help="The row's schema_version.")] = None,
    key: Annotated[
        str | None, typer.Option("--key", metavar="TEXT", help="The row's aggregateid; 1 if the settings do not find it in the payload.")
    ] = None,
    columns: Annotated[
        list[str] | None, typer.Option("--column", metavar="NAME=TEXT", help="Another column of the row; may be given again.")
    ] = None,
    folder_: Annotated[
        Path | None, typer.Option("--folder", metavar="PATH", help="The schema folder, if not that of the settings.")
    ] = None,
    config: Config = None,
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """Show the record that a payload would become, or why it cannot."""
    payload = _read(file)
    mapping, path = _settings(config, sets, folder_)
    registry = folder.load(path)
    options = {"aggregateid": key, "type": event_type, "schema_version": None if version is None else str(version)}
    given = {mapping.column(option): text.encode() for option, text in options.items() if text is not None}
    for column in columns or []:
        name, equals, text = column.partition("=")
        if not equals:
            raise ConfigurationError(f"--column {name} has no value", "write it as --column aggregatetype=Order")
        given[name] = text.encode()
    values = _filled(mapping, given, payload)
    try:
        record = Router(mapping, registry.encoder, 1).route(_row(values))
    except InvalidEvent as refusal:
        raise AuditFailed(f"{file}: no record: {refusal.reason}: {refusal.what}", refusal.fix) from None
    document = _document(record)
    if record.value is not None and mapping.value != "avro":
        document["decoded"] = orjson.loads(record.value)
    elif record.value is not None:
        decoded, writer = Decoder(registry).decode_with_version(record.value)
        document["schema"] = {"subject": writer.subject, "version": writer.number, "id": writer.id}
        document["decoded"] = decoded
    if as_json:
        print_json(document)
    else:
        _show(document)


def _settings(config: Path | None, sets: list[str] | None, folder_: Path | None) -> tuple[OutboxMapping, Path]:
    """Return how rows are mapped and where the schemas are; without a configuration file, the defaults."""
    if config is None and not os.environ.get("CDC_CONFIG") and not Path("cdc.toml").exists():
        schemas = schemas_from(config, sets)
        return OutboxMapping(subject=schemas.subject), folder_ or Path(schemas.folder)
    from cdc import app  # noqa: PLC0415 - loads the clients

    settings = settings_from(config, sets)
    return app.mapping(settings), folder_ or Path(settings.schemas.folder)


def _filled(mapping: OutboxMapping, given: Mapping[str, bytes], payload: bytes) -> dict[str, bytes | None]:
    """Return the columns of a row: what is given, an example of what every row must say, and NULL for what it need not.

    What the settings find in the payload is no column. Raises ConfigurationError if nobody says the type.
    """
    inside = found(mapping, [mapping.column("payload")]).paths
    examples = {mapping.column(key): text for key, text in _EXAMPLES.items()}
    names = (mapping.column(key) for key in mapping.required() if key not in inside)
    values: dict[str, bytes | None] = {name: examples.get(name) for name in names}
    values |= {**given, mapping.column("payload"): payload}
    if "type" not in inside and values[mapping.column("type")] is None:
        raise ConfigurationError("nothing says the type of the event", "give it: --type OrderPlaced")
    return values


_EXAMPLES = {"id": b"00000000-0000-0000-0000-000000000001", "aggregateid": b"1", "aggregatetype": b"Example"}
"""What a made-up row says."""


def _read(file: str) -> bytes:
    if file == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be read: {error.strerror}", "name a file with the payload, or -") from None


def _row(values: Mapping[str, bytes | None]) -> tuple[Begin, Relation, int, tuple[bytes | None, ...]]:
    """Make up a row that holds these columns."""
    relation = Relation(1, "public", "outbox", "d", tuple(Column(name, TEXT_OID, -1, key=False) for name in values))
    now = int(datetime.now(UTC).timestamp() * 1_000_000)
    return Begin(Lsn(0), now, 1), relation, 0, tuple(values.values())


def _document(record: Record) -> dict[str, Value]:
    return {
        "topic": record.topic,
        "key": None if record.key is None else record.key.decode(),
        "headers": {name: value.decode(errors="replace") for name, value in record.headers if value is not None},
        "value_hex": None if record.value is None else record.value.hex(),
        "value_bytes": 0 if record.value is None else len(record.value),
    }


def _show(document: dict[str, Value]) -> None:
    schema = document.get("schema")
    rows = [("topic", document["topic"]), ("key", document["key"])]
    rows += [(f"header {name}", value) for name, value in document["headers"].items()]
    if schema is not None:
        rows.append(("schema", f"{schema['subject']}/{schema['version']} (id {schema['id']})"))
    rows += [("value", f"{document['value_bytes']} bytes"), ("decoded", str(document.get("decoded")))]
    console().print(table(("", ""), rows))
