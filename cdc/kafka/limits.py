"""What a topic takes, decided before anything is sent: values in, values out.

What the broker refuses poisons the whole Kafka transaction, the good records of the same batch included. So a topic's name
is checked before the broker is asked for it, and every record is checked against its route before `produce`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from cdc.errors import InvalidEvent
from cdc.event import Record, Route, record_size

TOPIC_NAME_LENGTH = 249
"""Longest topic name: the broker makes a folder of it and of the partition's number."""

CLOCK_MARGIN_MS = 60_000
"""How far the broker's clock may be from ours before a record's time is misjudged."""

UNLIMITED_MS = 2**63 - 1

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def name_fault(topic: str) -> str | None:
    """Return what is wrong with a topic's name, or None."""
    if not topic:
        return "it is empty"
    if topic in {".", ".."}:
        return f"{topic!r} is not allowed"
    if len(topic) > TOPIC_NAME_LENGTH:
        return f"it has {len(topic)} characters, Kafka takes {TOPIC_NAME_LENGTH}"
    if _LEGAL.fullmatch(topic) is None:
        return "Kafka takes letters and digits of ASCII, '.', '_' and '-'"
    return None


def route_from(topic: str, partitions: int, config: Mapping[str, str], message_max_bytes: int) -> Route:
    """Return the route that a topic's configuration describes; `message_max_bytes` is the producer's own limit."""
    own_time = config.get("message.timestamp.type") != "LogAppendTime"
    distance = config.get("message.timestamp.difference.max.ms")
    before = config.get("message.timestamp.before.max.ms", distance) if own_time else None
    after = config.get("message.timestamp.after.max.ms", distance) if own_time else None
    return Route(
        topic=topic,
        partitions=partitions,
        max_message_bytes=min(topic_limit(config), message_max_bytes),
        compacted="compact" in config.get("cleanup.policy", "delete"),
        timestamp_before_ms=_distance(before),
        timestamp_after_ms=_distance(after),
    )


def topic_limit(config: Mapping[str, str]) -> int:
    """Return the largest batch that a topic takes."""
    return int(config.get("max.message.bytes", UNLIMITED_MS))


def fits(record: Record, route: Route, now_ms: int) -> None:
    """Raise InvalidEvent unless the route takes the record."""
    if (size := record_size(record)) > route.max_message_bytes:
        what = f"the record has {size} bytes, topic {route.topic!r} takes {route.max_message_bytes}"
        fix = 'raise the topic\'s max.message.bytes and kafka."message.max.bytes" (with Redis redis.transaction_max_bytes), or send less'
        raise InvalidEvent("size", what, fix)
    if not -1 <= record.partition < route.partitions:
        what = f"partition {record.partition} of topic {route.topic!r} does not exist, it has {route.partitions}"
        raise InvalidEvent("route", what, "correct the partition column or add partitions")
    if record.key is None and route.compacted:
        what = f"the key is NULL, and topic {route.topic!r} is compacted by key"
        raise InvalidEvent("route", what, "give the row a key, or set the topic's cleanup.policy to delete")
    if record.timestamp_ms:
        _check_time(record.timestamp_ms - now_ms, route)


def _check_time(ahead_ms: int, route: Route) -> None:
    after_ms, before_ms = route.timestamp_after_ms, route.timestamp_before_ms
    if after_ms is not None and ahead_ms > _with_margin(after_ms):
        what = f"the record is {ahead_ms / 1000:.0f} s from the future, topic {route.topic!r} takes {after_ms / 1000:.0f} s"
        raise InvalidEvent("route", what, "set the clocks, or raise the topic's message.timestamp.after.max.ms")
    if before_ms is not None and -ahead_ms > _with_margin(before_ms):
        what = f"the record is {-ahead_ms / 1000:.0f} s old, topic {route.topic!r} takes {before_ms / 1000:.0f} s"
        raise InvalidEvent("route", what, "raise the topic's message.timestamp.before.max.ms")


def _with_margin(limit_ms: int) -> int:
    return limit_ms - min(CLOCK_MARGIN_MS, limit_ms // 2)


def _distance(value: str | None) -> int | None:
    if value is None or int(value) >= UNLIMITED_MS:
        return None
    return int(value)
