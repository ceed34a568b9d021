"""The record that an invalid row becomes: its original bytes, why it was refused, and where it was meant to go; no I/O.

Headers are Kafka Connect's names (KIP-298), so that its tools understand them, beside `cdc.reason`, `cdc.id` and
`cdc.sequence`. The row's own place in the log is in `cdc.sequence`; Connect's partition, offset and stack trace stay empty.
"""

from cdc.errors import InvalidEvent
from cdc.event import Record, record_size
from cdc.outbox.mapping import NAME_LIMIT


def dead_letter(  # noqa: PLR0913 - one field for each header
    topic: str,
    values: dict[str, bytes | None],
    error: InvalidEvent,
    *,
    pipeline: str,
    sequence: str,
    timestamp_ms: int,
    meant_for: str,
    limit_bytes: int,
) -> Record:
    """Return the dead letter of a row with these mapped `values`; its payload is left out when it is over the limit."""
    key, payload = values.get("aggregateid"), values.get("payload")
    headers: list[tuple[str, bytes | None]] = [
        ("cdc.reason", error.reason.encode()),
        ("cdc.id", (values.get("id") or b"")[:NAME_LIMIT]),
        ("cdc.sequence", sequence.encode()),
        ("cdc.type", (values.get("type") or b"")[:NAME_LIMIT]),
        ("__connect.errors.topic", meant_for[:NAME_LIMIT].encode()),
        ("__connect.errors.partition", b""),
        ("__connect.errors.offset", b""),
        ("__connect.errors.connector.name", pipeline.encode()),
        ("__connect.errors.task.id", b"0"),
        ("__connect.errors.stage", STAGES.get(error.reason, "TRANSFORMATION").encode()),
        ("__connect.errors.class.name", b"cdc"),
        ("__connect.errors.exception.class.name", type(error).__name__.encode()),
        ("__connect.errors.exception.message", str(error)[:MESSAGE_LIMIT].encode()),
        ("__connect.errors.exception.stacktrace", b""),
    ]
    record = Record(topic, key, payload, headers, timestamp_ms)
    if record_size(record) > limit_bytes:
        headers.append(("cdc.payload.bytes", str(len(payload or b"")).encode()))
        record = record._replace(value=None, key=key if len(key or b"") <= KEY_LIMIT else None)
    return record


STAGES = {"schema": "VALUE_CONVERTER", "size": "TASK_PUT", "route": "TASK_PUT"}
"""Kafka Connect's stage for each of our reasons; a mapping or tombstone refusal happens in its TRANSFORMATION."""

MESSAGE_LIMIT = 1_000
"""Characters of the reason kept: names in it come from rows, and a header must not fill the record."""

KEY_LIMIT = 10_000
"""Bytes of a key kept in a dead letter whose payload was left out."""
