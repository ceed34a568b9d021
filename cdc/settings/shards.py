"""Shards: several pipelines that share one outbox by the hash of the key, each with names, slot and position of its own.

A shard is an ordinary pipeline in everything; only its rows are fewer. So whatever belongs to one pipeline alone must differ
between shards, whether its name was derived or written down: that is what SUFFIXED lists. What shards share stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer

from cdc.settings.values import Wrong

SHARDS_MAX = 64
"""Each shard decodes the whole log: long before this the server has no core left for anything else."""

SUFFIXED = (("postgres", "slot"), ("postgres", "publication"), ("topics", "position"), ("outbox", "source"))
"""Settings beside the name that no two shards may share. The source is part of what tells a record's place."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Number `number` of `count`, counted from 0."""

    number: int
    count: int

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    @property
    def suffix(self) -> str:
        """What follows the pipeline's name in the names of a shard."""
        return f"{self.number}of{self.count}"


def parse(value: object) -> Shard:
    """Read `number/count`."""
    if isinstance(value, Shard):
        return value
    found = re.fullmatch(r"(\d{1,2})/(\d{1,2})", value) if isinstance(value, str) else None
    if found is None or not 0 <= int(found[1]) < int(found[2]) <= SHARDS_MAX:
        raise Wrong("is not a shard", f'write number/count, such as "0/2" and "1/2"; at most {SHARDS_MAX} of them')
    return Shard(int(found[1]), int(found[2]))


def _optional(value: object) -> Shard | None:
    return None if value is None else parse(value)


ShardSetting = Annotated[Shard | None, BeforeValidator(_optional), PlainSerializer(lambda shard: None if shard is None else str(shard))]


def sharded(data: Mapping[str, Any], derived: Mapping[tuple[str, ...], str]) -> dict[str, Any]:
    """Return the settings' tree with the names of the shard that it asks for; unchanged without one."""
    tree, name = dict(data), data.get("name")
    if not tree.get("shard") or not isinstance(name, str):
        return tree
    shard = parse(tree["shard"])
    tree["name"] = f"{name}_{shard.suffix}"
    for section, key in SUFFIXED:
        table = tree.get(section, {})
        if isinstance(table, dict) and isinstance(table.get(key), str):
            joint = "/" if key == "source" else "." if section == "topics" else "_"
            tree[section] = {**table, key: f"{table[key]}{joint}{shard.suffix}"}
    topics = tree.get("topics", {})
    if isinstance(topics, dict):
        tree["topics"] = {"dead_letter": derived["topics", "dead_letter"].format(name=name), **topics}
    http = tree.get("http", {})
    if isinstance(http, dict) and isinstance(listen := http.get("listen", LISTEN), str):
        host, _, port = listen.rpartition(":")
        if port.isdigit() and int(port):
            tree["http"] = {**http, "listen": f"{host}:{int(port) + shard.number}"}
    return tree


LISTEN = "127.0.0.1:8642"
"""Where the first shard listens unless http.listen says otherwise; each further one takes the next port."""
