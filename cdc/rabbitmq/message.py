"""The AMQP message that a record becomes, and the record that a message was; values in, values out.

What AMQP has a property for is that property: content-type, message-id, type, timestamp (whole seconds), correlation-id. The
CloudEvents headers stay beside them under their own names, so that a consumer finds the same ones as on Kafka, and the
record's key is the header `ce_partitionkey` (CloudEvents, "Partitioning" extension), which a consistent-hash exchange can take.
Milliseconds are in the header `timestamp_in_ms`, where RabbitMQ's own message-timestamp plugin has them.

On the way back an empty body is no value: AMQP has none that is absent.
"""

from __future__ import annotations

import re
from typing import Any

from pika import BasicProperties, DeliveryMode

from cdc.errors import InvalidEvent
from cdc.event import Record, Route, Seen

SHORT_BYTES = 255
"""Longest routing key and property: AMQP's short string."""

HEADERS_BYTES = 100_000
"""Properties have to fit into one frame, of 128 kB by default; a dead letter goes without the row's other columns when they do not."""

KEY, TIMESTAMP = "ce_partitionkey", "timestamp_in_ms"
"""The headers that hold the record's key and time."""

BROKERS_OWN = re.compile(r"x-(?:stream-offset|death|first-death-.*|last-death-.*|delivery-count|acquired-count)")
"""Headers that RabbitMQ puts there."""


def properties_of(record: Record) -> BasicProperties:
    """Return the properties of a record's message; a name over SHORT_BYTES stays in its header alone."""
    headers: dict[str, Any] = {name: _text(value) for name, value in record.headers}
    content_type = headers.pop("content-type", None)
    if record.key is not None:
        headers[KEY] = _text(record.key)
    if record.timestamp_ms:
        headers[TIMESTAMP] = record.timestamp_ms
    if "cdc.row" in headers and sum(len(value or b"") for _, value in record.headers) > HEADERS_BYTES:
        del headers["cdc.row"]
    return BasicProperties(
        content_type=_short(content_type),
        headers=headers,
        delivery_mode=DeliveryMode.Persistent.value,
        correlation_id=_short(headers.get("correlationid")),
        message_id=_short(headers.get("ce_id") or headers.get("id") or headers.get("cdc.id")),
        timestamp=record.timestamp_ms // 1000 if record.timestamp_ms else None,
        type=_short(headers.get("ce_type") or headers.get("cdc.type")),
    )


def route_of(topic: str, max_message_bytes: int) -> Route:
    """Return what a routing key takes; raises InvalidEvent("route", ..) for one that is no short string."""
    if not 0 < len(topic.encode()) <= SHORT_BYTES:
        what = f"the routing key has {len(topic.encode())} bytes, AMQP takes 1 to {SHORT_BYTES}"
        raise InvalidEvent("route", what, "see topics.route and the topic column")
    return Route(topic, 2**31, max_message_bytes, compacted=False, timestamp_before_ms=None, timestamp_after_ms=None)


def header_size(properties: BasicProperties) -> int:
    """Return the bytes that properties take of a frame, with what stands before them (AMQP 0-9-1, section 4.2.6.1)."""
    return 12 + sum(map(len, properties.encode()))


def seen_of(topic: str, offset: int, properties: BasicProperties, body: bytes) -> Seen:
    """Return the record that a message was."""
    headers = dict(properties.headers or {})
    key, timestamp_ms = headers.pop(KEY, None), headers.pop(TIMESTAMP, None)
    listed = [(name, _bytes(value)) for name, value in headers.items() if BROKERS_OWN.fullmatch(name) is None]
    if properties.content_type is not None:
        listed.append(("content-type", properties.content_type.encode()))
    if not isinstance(timestamp_ms, int):
        timestamp_ms = (properties.timestamp or 0) * 1000
    return Seen(topic, 0, offset, _bytes(key), body or None, listed, int(timestamp_ms))


def _bytes(value: object) -> bytes | None:
    return value if value is None or isinstance(value, bytes) else str(value).encode()


def _text(value: bytes | None) -> str | bytes | None:
    """Return a header's value as a long string; bytes that are no text stay bytes."""
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _short(value: object) -> str | None:
    return value if isinstance(value, str) and value and len(value.encode()) <= SHORT_BYTES else None
