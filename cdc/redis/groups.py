"""The groups of a consumer in the streams of its topics: made where they are missing, and never for a part of a topic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from redis import exceptions

from cdc.errors import ConfigurationError
from cdc.redis.entry import stream_of
from cdc.redis.hearing import Group

STREAMS_MAX: Final = 1024
"""Streams of a topic at most (as in the settings of a pipeline)."""

Ask = Callable[..., Any]
"""Sends one command and returns its answer."""


def told_of(ask: Ask, stream: str, name: str) -> dict[bytes, Any] | None:
    """Return what Redis tells of a group of a stream, None when there is no group or no stream."""
    try:
        groups = ask("XINFO", "GROUPS", stream)
    except exceptions.ResponseError as error:
        if "no such key" not in str(error):
            raise
        return None
    found = [dict(zip(flat[::2], flat[1::2], strict=True)) for flat in groups]
    return next((told for told in found if told[b"name"] == name.encode()), None)


def make_groups(ask: Ask, group: Group, *, again: bool = False) -> None:
    """Make the group in each stream.

    Only the first time it may begin at the end; made `again`, because Redis has lost it, it reads what there is.
    """
    for topic, count in group.topics.items():
        begin = "$" if group.from_end and not again and topic not in group.own else "0"
        for number in range(count):
            stream = stream_of(topic, number, count)
            if told_of(ask, stream, group.name) is not None:  # making it again would ask for memory, which a full Redis does not give
                continue
            try:
                ask("XGROUP", "CREATE", stream, group.name, begin, "MKSTREAM")
            except exceptions.ResponseError as error:
                if "BUSYGROUP" not in str(error):
                    raise


def refuse_parts(ask: Ask, group: Group) -> None:
    """Raise ConfigurationError for a topic that has entries in other streams than those that are read."""
    for topic, count in group.topics.items():
        if topic in group.own:
            continue
        others = [f"{topic}:{number}" for number in range(0 if count == 1 else count, STREAMS_MAX)]
        others += [topic] if count > 1 else []
        if ask("EXISTS", *others) and any(ask("XLEN", other) for other in others):
            msg = f"topic {topic!r} has other streams than the {count} that consumer {group.name} reads"
            raise ConfigurationError(msg, "let redis' streams be the same as the pipeline's redis.streams, see docs/redis.md")
