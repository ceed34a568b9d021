"""A simulated Redis and a link to it: deterministic, in one thread, with faults on demand.

Strategy: `FakeRedis` does in Python what the scripts of cdc/redis/scripts.py do, and the few commands that go with them. The
publisher that talks to it is the real one, down to the bytes of a commit; the contract suite holds this Redis to a real one.

What can happen to it:

    hold_next    the client gives the next script up; it stays on its way until `release` lets it arrive, perhaps too late
    lose         it dies and comes back without its last writes, as one whose append-only file was not on the disk
    promote      a replica takes its place that has what a WAIT has brought to it, and nothing else

Both can happen `silently`: connections survive, as behind a proxy, and nobody is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha1
from typing import Any

from cdc.errors import Retriable
from cdc.event import Record
from cdc.position import Position
from cdc.redis.entry import seen
from cdc.redis.link import Waiting
from cdc.redis.scripts import COMMIT, FENCE, told
from cdc.resilience.call import nobody_waits

PATIENCE = 3
"""How many times a client calls `waiting` before it gives up a script that is held."""

INFO = b"redis_version:7.4.0\r\nrole:master\r\nredis_mode:standalone\r\nmaxmemory_policy:noeviction\r\nconnected_slaves:1\r\n"

WRITES = (b"EVALSHA", b"HSET", b"HSETNX")

Gate = Callable[[str, Callable[[], Any]], Any]
"""Makes a request, by its name, or lets something else happen."""


@dataclass
class Data:
    """What is in memory."""

    hashes: dict[bytes, dict[bytes, bytes]] = field(default_factory=dict)
    streams: dict[bytes, list[tuple[bytes, list[bytes]]]] = field(default_factory=dict)

    def copy(self) -> Data:
        """Return the same, to be kept."""
        hashes = {key: dict(found) for key, found in self.hashes.items()}
        return Data(hashes, {key: list(entries) for key, entries in self.streams.items()})


class FakeRedis:
    """The server; `on_commit` and `on_init` hear of each commit and fence, with the epoch of who made it."""

    cluster_id = "fake-redis"

    def __init__(self) -> None:
        self.on_commit: Callable[[int, list[Record]], None] = lambda _epoch, _records: None
        self.on_init: Callable[[int], None] = lambda _epoch: None
        self.on_loss: Callable[[], None] = lambda: None
        self.hold_next = False
        self.life = 0
        self.data = Data()
        self.replica = Data()
        self._written: list[Data] = []
        self._held: list[Sequence[bytes]] = []
        self._epochs: dict[bytes, int] = {}
        self._ids = 0
        self._scripts: dict[bytes, Callable[[Sequence[bytes], Sequence[bytes]], object]] = {}

    def __repr__(self) -> str:
        return f"<FakeRedis in its life {self.life}, {len(self._held)} held>"

    # what it is asked for

    def receive(self, life: int, words: Sequence[bytes], waiting: Waiting) -> object:
        """Take a request of a connection that was made in this life."""
        if life != self.life:
            msg = "Redis: the connection was lost"
            raise Retriable(msg)
        if self.hold_next and words[0] == b"EVALSHA":
            self.hold_next = False
            self._held.append(words)
            for _ in range(PATIENCE):
                waiting()
            msg = "Redis gave no answer: hold"
            raise Retriable(msg)
        return self.execute(words)

    def execute(self, words: Sequence[bytes]) -> object:
        """Do a command and return its answer."""
        name, *rest = words
        command: Callable[..., object] = getattr(self, f"_{name.decode().lower()}")
        if name not in WRITES:
            return command(*rest)
        before = self.data.copy()
        answer = command(*rest)
        if self.data != before:
            self._written.append(before)
        return answer

    def _info(self) -> bytes:
        return INFO

    def _script(self, _load: bytes, text: bytes) -> bytes:
        sha = sha1(text, usedforsecurity=False).hexdigest().encode()
        self._scripts[sha] = {FENCE: self.fence, COMMIT: self.commit}[text.decode()]
        return sha

    def _evalsha(self, sha: bytes, count: bytes, *rest: bytes) -> object:
        if sha not in self._scripts:
            msg = "Redis says NOSCRIPT"
            raise Retriable(msg)
        return self._scripts[sha](rest[: int(count)], rest[int(count) :])

    def _type(self, key: bytes) -> bytes:
        return b"stream" if key in self.data.streams else b"none"

    def _hmget(self, key: bytes, *names: bytes) -> list[bytes | None]:
        found = self.data.hashes.get(key, {})
        return [found.get(name) for name in names]

    def _hset(self, key: bytes, *pairs: bytes) -> int:
        self.data.hashes.setdefault(key, {}).update(told(pairs))
        return len(pairs) // 2

    def _hsetnx(self, key: bytes, name: bytes, value: bytes) -> int:
        return 0 if self._hexists(key, name) else self._hset(key, name, value)

    def _hexists(self, key: bytes, name: bytes) -> int:
        return int(name in self.data.hashes.get(key, {}))

    def _wait(self, _replicas: bytes, _timeout_ms: bytes) -> int:
        self.replica = self.data.copy()
        return 1

    # the scripts

    def fence(self, keys: Sequence[bytes], words: Sequence[bytes]) -> list[bytes | None] | None:
        """Do what FENCE does."""
        [key], [owner] = keys, words
        if not self._hexists(key, b"id"):
            return None
        epoch = int(self.data.hashes[key].get(b"epoch", b"0")) + 1
        self._hset(key, b"epoch", b"%d" % epoch, b"owner", owner)
        self._epochs[owner] = epoch
        self.on_init(epoch)
        return self._hmget(key, b"position", b"commits")

    def refuses(self, key: bytes, owner: bytes, commits: bytes) -> bool:
        """Tell whether a commit is not of the owner, or does not follow the last one that is here."""
        here = self._hmget(key, b"owner", b"commits")
        return here[0] != owner or (here[1] or b"0") != commits

    def commit(self, keys: Sequence[bytes], words: Sequence[bytes]) -> bytes:
        """Do what COMMIT does; nothing is trimmed."""
        owner, commits, position, at = *words[:3], 6
        if self.refuses(keys[0], owner, commits):
            return b"FENCED"
        records: list[Record] = []
        while at < len(words):
            stream, end = keys[int(words[at]) - 1], at + 2 + int(words[at + 1])
            self._ids += 1
            added = (b"%d-0" % self._ids, list(words[at + 2 : end]))
            at = end
            self.data.streams.setdefault(stream, []).append(added)
            records.append(_record(stream, *added)[2])
        self._hset(keys[0], b"position", position, b"commits", b"%d" % (int(commits) + 1))
        self.on_commit(self._epochs[owner], [*records, Record(keys[0].decode(), b"", position, [], 0)])
        return b"OK"

    # what it has

    def begin(self, position: Position, key: str) -> None:
        """Take the first position, as `cdc init` makes it."""
        self._hset(key.encode(), b"id", self.cluster_id.encode(), b"position", position.to_json())
        self.replica = self.data.copy()

    def position(self, key: str) -> Position:
        """Return the last position."""
        return Position.from_json(self.data.hashes[key.encode()][b"position"])

    def committed(self, topic: str) -> Iterator[tuple[int, int, Record]]:
        """Yield (number of the stream, offset, record) of a topic."""
        for stream, entries in sorted(self.data.streams.items()):
            for entry in entries:
                number, offset, record = _record(stream, *entry)
                if record.topic == topic:
                    yield number, offset, record

    # what happens to it

    def release(self) -> int:
        """Let every held script arrive, oldest first; its answer reaches nobody. Return their number."""
        held, self._held = self._held, []
        for words in held:
            try:
                self.execute(words)
            except Retriable:
                continue
        return len(held)

    def lose(self, writes: int, *, silently: bool = False) -> None:
        """Come back without the last writes."""
        for _ in range(min(writes, len(self._written))):
            self.data = self._written.pop()
        self._come_back(silently=silently)

    def promote(self, *, silently: bool = False) -> None:
        """Let the replica be the server."""
        self.data, self._written = self.replica.copy(), []
        self._come_back(silently=silently)

    def _come_back(self, *, silently: bool) -> None:
        if not silently:
            self.life += 1
            self._held, self._scripts = [], {}
        self.on_loss()


class FakeRedisLink:
    """One connection, as cdc.redis.link.Link is one; after an error it is never used again."""

    def __init__(self, server: FakeRedis, gate: Gate = lambda _name, request: request()) -> None:
        self._server, self._life, self._gate = server, server.life, gate
        self.failed = False

    def __repr__(self) -> str:
        return f"<FakeRedisLink {'failed' if self.failed else 'open'}>"

    def call(self, *words: object, waiting: Waiting = nobody_waits, doing: str) -> Any:  # noqa: ANN401 - as the real one
        """Send a command and return its answer."""
        return self._exchange([word if isinstance(word, bytes) else str(word).encode() for word in words], waiting)

    def send(self, pieces: Sequence[bytes], waiting: Waiting, doing: str) -> Any:  # noqa: ANN401 - as the real one
        """Send a command that is packed already, and return its answer."""
        return self._exchange(words_of(b"".join(pieces)), waiting)

    def close(self) -> None:
        """Let the connection go."""
        self.failed = True

    def _exchange(self, words: Sequence[bytes], waiting: Waiting) -> object:
        assert not self.failed, "a link is never used again after an error"
        self.failed = True
        waiting()
        request = partial(self._server.receive, self._life, words, waiting)
        answer = self._gate(f"FakeRedisLink.{words[0].decode()}", request)
        self.failed = False
        return answer


def words_of(packed: bytes) -> list[bytes]:
    """Return the words of a command as RESP has it, with nothing behind them."""
    at, words = packed.index(b"\r\n") + 2, []
    for _ in range(int(packed[1 : at - 2])):
        start = packed.index(b"\r\n", at) + 2
        end = start + int(packed[at + 1 : start - 2])
        assert packed[end : end + 2] == b"\r\n", "a word ends where its length says"
        words.append(packed[start:end])
        at = end + 2
    assert at == len(packed), "nothing follows the last word"
    return words


def _record(stream: bytes, entry_id: bytes, fields: Sequence[bytes]) -> tuple[int, int, Record]:
    """Return the number of the stream, the offset and the record of an entry."""
    topic, _, number = stream.decode().partition(":")
    read = seen(topic, int(number or 0), entry_id, fields)
    return read.partition, read.offset, Record(topic, read.key, read.value, read.headers, read.timestamp_ms)
