"""Records for the tests of what decides."""

from __future__ import annotations

from collections.abc import Mapping

from cdc.consumer.loop import Limits, Loop, Rules
from cdc.kafka.subscriber import Seen


def seen(
    offset: int,
    *,
    partition: int = 0,
    topic: str = "t",
    key: bytes | None = b"k",
    value: bytes | None = b"v",
    more: Mapping[str, str] | None = None,
    **headers: str,
) -> Seen:
    """A record; headers whose names are none in Python come by `more`."""
    told = {**headers, **(more or {})}
    return Seen(topic, partition, offset, key, value, [(name, text.encode()) for name, text in told.items()], 0)


def half() -> float:
    return 0.5


def loop(rules: Rules | None = None, **limits: int) -> Loop:
    return Loop(Limits(**limits), rules or Rules(half))
