"""Consumer groups of Redis: where they are, and moved to another place while nobody reads in their name.

A group is at the first entry that it has not acknowledged. To move it, what it holds is acknowledged, and XGROUP SETID says where it
goes on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from cdc.errors import SinkRefused
from cdc.event import Place
from cdc.redis.entry import SEQUENCE_BITS, id_of, offset_of, stream_of
from cdc.redis.link import Link, Waiting
from cdc.redis.membership import ALIVE, members
from cdc.redis.reader import RedisReader
from cdc.redis.scripts import told

MOVE: Final = (
    ALIVE
    + """
for _, each in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  if alive(each) then return 'IN USE' end
end
for i = 2, #KEYS do
  local held = redis.call('XPENDING', KEYS[i], ARGV[1], '-', '+', 1000)
  while #held > 0 do
    for _, each in ipairs(held) do redis.call('XACK', KEYS[i], ARGV[1], each[1]) end
    held = redis.call('XPENDING', KEYS[i], ARGV[1], '-', '+', 1000)
  end
  redis.call('XGROUP', 'SETID', KEYS[i], ARGV[1], ARGV[i])
end
return 'OK'
"""
)
"""KEYS: members, streams. ARGV: group, and for each stream the last entry that is passed over."""


class RedisGroups:
    """Groups in the streams of one pipeline."""

    def __init__(self, reader: RedisReader, *, url: str, name: str, sentinel: str | None) -> None:
        self._reader = reader
        self._address = (url, f"{name}-groups", sentinel)
        self._link: Link | None = None

    def __repr__(self) -> str:
        return f"<RedisGroups {self._reader!r}>"

    def offsets_of(self, group: str, waiting: Waiting) -> dict[Place, int]:
        """Return the first offset that a group has not acknowledged, by stream."""
        found = {}
        for topic, shape in self._reader.shapes(self._reader.names(waiting), waiting).items():
            for number in range(shape.partitions):
                stream = stream_of(topic, number, shape.partitions)
                if self._ask(waiting, "TYPE", stream) != b"stream":
                    continue
                for each in map(told, self._ask(waiting, "XINFO", "GROUPS", stream)):
                    if each[b"name"] == group.encode():
                        held = self._ask(waiting, "XPENDING", stream, group)[1]
                        found[topic, number] = offset_of(held) if held else offset_of(each[b"last-delivered-id"]) + 1
        return found

    def members(self, group: str, waiting: Waiting) -> int:
        """Return how many consumers of the library read in the group's name now; Redis does not know who else does."""
        seconds, micros = self._ask(waiting, "TIME")
        return int(self._ask(waiting, "ZCOUNT", members(group), int(seconds) * 1000 + int(micros) // 1000, "+inf"))

    def since(self, places: Sequence[Place], time_ms: int, waiting: Waiting) -> list[int]:
        """Return the first offset that could be published at this time or later."""
        waiting()
        return [time_ms << SEQUENCE_BITS for _ in places]

    def move(self, group: str, offsets: Mapping[Place, int], waiting: Waiting) -> None:
        """Set where a group goes on; raises SinkRefused while it is in use."""
        shapes = self._reader.shapes([topic for topic, _ in offsets], waiting)
        streams = {stream_of(topic, number, shapes[topic].partitions): offset for (topic, number), offset in offsets.items()}
        passed = [id_of(offset - 1) if offset else "0" for offset in streams.values()]
        said = self._ask(waiting, "EVAL", MOVE, 1 + len(streams), members(group), *streams, group, *passed)
        if said != b"OK":
            raise SinkRefused(f"group {group!r} is in use; nothing was moved", "stop its consumers")

    def close(self) -> None:
        """Let the link go."""
        if self._link is not None:
            self._link.close()
            self._link = None
        self._reader.close()

    def _ask(self, waiting: Waiting, *words: object) -> Any:  # noqa: ANN401 - the command's own type
        if self._link is None or self._link.failed:
            self._link = Link(*self._address)
        return self._link.call(*words, waiting=waiting, doing="looking at groups")
