"""Publishes records and positions into Redis: implements Publisher.

Strategy: `produce` packs entries into the words of one command, and `commit` sends it: a script that adds all of them and the
position, or nothing (see scripts.py). Until then everything is in our memory, which is why a batch says that it is `full` early,
and why there is a largest transaction. A link lives for one passage; the position that the next one reads, after its fence, is the
only answer to "did it commit?".

Rules.
- `produce` is the hot path: names of fields are packed once, and no object but bytes is made for a record.
- A commit that Redis has answered is confirmed only when as many replicas and disks have it as the settings ask for; the
  fence waits for the same, because it covers what an older passage has left unconfirmed.
"""

from __future__ import annotations

import logging
import math
import re
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from cdc.errors import CdcError, Fenced, InvalidEvent, Poisoned, Retriable, SinkRefused
from cdc.event import Record, Route, name_of
from cdc.position import Position
from cdc.redis.entry import DATA, KEY, TIMESTAMP, field_of, number_of, stream_of
from cdc.redis.link import Link, Waiting
from cdc.redis.positions import RedisPositions, facts
from cdc.redis.scripts import COMMIT, FENCE, FIELDS_MAX, WORDS_MAX, bulk, packed
from cdc.resilience.call import nobody_waits

LOG = logging.getLogger("cdc.redis")

SPARE_BYTES = 64 * 1024
"""What a single record must be smaller than the largest transaction: it grows a little when it is packed."""

FULL_BYTES = 1024 * 1024
"""A batch of this size is committed: larger ones are no cheaper, and Redis does nothing else while it takes one."""

ROUTE_FRESH_S = 60.0
"""How long an open route is believed."""

REFUSAL_FRESH_S = 5.0
"""How long a topic that cannot take records is believed to be so."""

NAME_MAX_CHARS = 249
TOPIC = re.compile(r"[a-zA-Z0-9._-]+")
"""What a topic may be called, as in Kafka: events can move there, and a colon stands before the number of a stream."""

WAIT_MS = 10_000
"""How long replicas and disks may take for a commit."""

REPLICAS_FIX = "bring the replicas back, or lower redis.wait_replicas"

WAITAOF_SINCE = (7, 2)
"""The first Redis that can be asked to wait for its disk."""

WORDS_SINCE = (7, 0)
"""The first Redis without the limit of WORDS_MAX."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the settings say of Redis (see cdc/settings/redis.py)."""

    url: str
    sentinel: str | None = None
    streams: int = 1
    maxlen: int = 10_000
    retention_ms: int = 0
    trim_unread: bool = False
    wait_replicas: int = 0
    wait_fsync: bool = False
    transaction_max_bytes: int = 64 * 1024 * 1024


class _Batch:
    """The entries of a commit, packed, and the streams that they go to; entries name a stream by its place in KEYS."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.words = self.bytes = self.rows = 0
        self.streams: dict[str, bytes] = {}


class RedisPublisher:
    """Publishes records and positions of one pipeline; used by one thread, for the whole life of the process."""

    def __init__(  # noqa: PLR0913 - the composition root's wiring, by keyword
        self,
        *,
        name: str,
        options: Options,
        position_key: str,
        on_partition_change: Literal["warn", "stop"] = "warn",
        clock: Callable[[], float] = time.monotonic,
        connect: Callable[[], Link] | None = None,
    ) -> None:
        self._name = name
        self.options = options
        self._connect = connect or (lambda: Link(options.url, name, options.sentinel, clock))
        self._on_partition_change = on_partition_change
        self._clock = clock
        self._link: Link | None = None
        self._owner = ""
        self._commits = b"0"
        self._words_max: float = WORDS_MAX
        self._scripts: dict[str, str] = {}
        self._batch = _Batch()
        self._opened_at: float | None = None
        self._routes: dict[str, tuple[float, Route | None, str]] = {}
        self._fields: dict[str, bytes] = {}
        self.positions = RedisPositions(position_key, name, self.linked)

    def __repr__(self) -> str:
        state = "without a link" if self._link is None else "fenced" if not self._owner else "owner"
        return f"<RedisPublisher {self._name} {state}, {self._batch.rows} records waiting>"

    @property
    def transaction_timeout_s(self) -> float:
        """Return no limit: nothing is open in Redis before a commit."""
        return math.inf

    @property
    def blocked(self) -> str:
        """See Sink; Redis says so by refusing, which is an error."""
        return ""

    @property
    def opened_at(self) -> float | None:
        """When the first record of the present commit came, by the clock of the constructor."""
        return self._opened_at

    @property
    def full(self) -> bool:
        """Whether enough waits in our memory to be worth a commit."""
        return self._batch.bytes >= FULL_BYTES

    def peek(self) -> tuple[Position | None, str]:
        """Return the last position, and what tells this Redis from others; it fences nobody."""
        self.positions.verify(nobody_waits)
        return self.positions.peek(nobody_waits)

    def cluster_id(self, waiting: Waiting) -> str:
        """Return what tells this Redis from others; empty before init has made a position."""
        return self.positions.peek(waiting)[1]

    def last(self) -> Position | None:
        """See Publisher; nothing hides a position in Redis."""
        return self.positions.peek(nobody_waits)[0]

    def recover(self, waiting: Waiting, *, patient: bool = False, blaming: bool = False) -> Position | None:  # noqa: ARG002 - of Kafka
        """Fence older instances and read the position that they committed, in one script."""
        self._forget()
        link = self.linked()
        version = facts(link, waiting).version
        if self.options.wait_fsync and version < WAITAOF_SINCE:
            msg = f"redis.wait_fsync needs Redis 7.2, and this is {'.'.join(map(str, version))}"
            raise SinkRefused(msg, "leave it out and set appendfsync always in Redis, or use a newer one")
        self._words_max = math.inf if version >= WORDS_SINCE else WORDS_MAX
        doing = "fencing older instances"
        self._scripts = {text: link.call("SCRIPT", "LOAD", text, waiting=waiting, doing=doing).decode() for text in (FENCE, COMMIT)}
        owner = secrets.token_hex(8)
        found = link.call("EVALSHA", self._scripts[FENCE], 1, self.positions.topic, owner, waiting=waiting, doing=doing)
        if found is None:
            msg = f"the position {self.positions.topic!r} does not exist in Redis"
            raise SinkRefused(msg, "run `cdc init`; if it existed before, Redis has lost it: see docs/redis.md")
        self._wait(link, waiting)
        self._owner, self._commits = owner, found[1] or b"0"
        return None if found[0] is None else Position.from_json(found[0])

    def require(self, topics: Sequence[str], waiting: Waiting) -> None:
        """Open the topics that no row can change; raises SinkRefused for one that cannot take records."""
        for topic in topics:
            try:
                self.route(topic, waiting)
            except InvalidEvent as error:
                raise SinkRefused(error.what, error.fix) from None

    def route(self, topic: str, waiting: Waiting) -> Route:
        """Open a route before its first record; raises InvalidEvent("route", ..) for a name that cannot be a stream."""
        known = self._routes.get(topic)
        if known is None or self._clock() >= known[0]:
            wrong = self.unfit(topic, waiting)
            if not wrong:
                self._note(topic, waiting)
            route = (
                None if wrong else Route(topic, self.options.streams, self.options.transaction_max_bytes - SPARE_BYTES, False, None, None)
            )
            known = self._routes[topic] = (self._clock() + (REFUSAL_FRESH_S if wrong else ROUTE_FRESH_S), route, wrong)
        if known[1] is None:
            raise InvalidEvent("route", known[2], "see topics.route and the topic column")
        return known[1]

    def produce(self, records: Sequence[Record], waiting: Waiting) -> None:
        """Pack records in order; raises SinkRefused when a transaction is larger than the settings and the server allow."""
        batch, streams, fields = self._batch, self.options.streams, self._fields
        if self._opened_at is None:
            self._opened_at = self._clock()
        hold = batch.pieces.append
        size, words = batch.bytes, batch.words
        for record in records:
            topic, key, value, headers, timestamp_ms, partition = record
            number = partition if partition >= 0 else number_of(key, streams)
            entry = [b"" if key is None else KEY_FIELD + bulk(key), TIME_FIELD + bulk(b"%d" % timestamp_ms)]
            for name, content in headers:
                if content is not None:
                    entry.append((fields.get(name) or self._field(name)) + b"$%d\r\n%b\r\n" % (len(content), content))
            count = len(entry) - (key is None)
            if value is not None:
                entry.append(DATA_FIELD + b"$%d\r\n%b\r\n" % (len(value), value))
                count += 1
            if count > FIELDS_MAX:
                self._refuse(record, count)
            place = batch.streams.get(name := stream_of(topic, number, streams)) or self._stream(name)
            packed_entry = place + bulk(b"%d" % (2 * count)) + b"".join(entry)
            size += len(packed_entry)
            words += 2 + 2 * count
            hold(packed_entry)
        batch.bytes, batch.words = size, words
        batch.rows += len(records)
        if size > self.options.transaction_max_bytes or words > self._words_max:
            raise self._too_large()
        waiting()

    def commit(self, position: Position, waiting: Waiting) -> None:
        """Let one script add what was produced and put the position there, or raise; the outcome is then unknown."""
        batch, link, options = self._batch, self.linked(), self.options
        assert self._owner, "recover comes first"
        words = (
            *(self._owner.encode(), self._commits, position.to_json(), b"%d" % options.maxlen, b"%d" % options.retention_ms),
            b"1" if options.trim_unread else b"0",
        )
        pieces = packed(self._scripts[COMMIT], (self.positions.topic, *batch.streams), words, batch.words)
        answer = link.send(pieces + batch.pieces, waiting, "committing")
        if answer != b"OK":
            self._drop_link()
            msg = f"another instance owns the position {self.positions.topic!r} in Redis, or Redis lost the end of what it had"
            raise Fenced(msg)
        self._commits = b"%d" % (int(self._commits) + 1)
        self._batch, self._opened_at = _Batch(), None
        self._wait(link, waiting)

    def abort(self, timeout_s: float) -> None:  # noqa: ARG002 - nothing is open in Redis
        """Forget what was produced: Redis has none of it."""
        self._batch, self._opened_at = _Batch(), None

    def drop(self) -> None:
        """Forget the link as it is; never blocks, safe at any time and more than once."""
        self._forget()

    def close(self) -> None:
        """Let the link go, at the end of the process."""
        self._forget()

    def linked(self) -> Link:
        """Return the link of the moment, a new one after an error."""
        if self._link is not None and self._link.failed:
            self._drop_link()
        if self._link is None:
            self._link = self._connect()
        return self._link

    def _drop_link(self) -> None:
        if self._link is not None:
            self._link.close()
        self._link, self._owner = None, ""

    def _forget(self) -> None:
        self._drop_link()
        self._batch, self._opened_at, self._routes = _Batch(), None, {}

    def _wait(self, link: Link, waiting: Waiting) -> None:
        """Wait until the link's last write is where the settings want it; raises Retriable when it does not come there."""
        replicas, fsync = self.options.wait_replicas, self.options.wait_fsync
        doing = "waiting for replicas and disks"
        if fsync:
            here, there = link.call("WAITAOF", 1, replicas, WAIT_MS, waiting=waiting, doing=doing)
            if here < 1 or there < replicas:
                msg = f"{here} of 1 disk here and {there} of {replicas} on replicas have the last commit after {WAIT_MS / 1000:.0f} s"
                raise Retriable(msg, REPLICAS_FIX if here else "set appendonly yes and appendfsync everysec (or always) in Redis")
        elif replicas and (there := link.call("WAIT", replicas, WAIT_MS, waiting=waiting, doing=doing)) < replicas:
            msg = f"{there} of {replicas} replicas have the last commit after {WAIT_MS / 1000:.0f} s"
            raise Retriable(msg, REPLICAS_FIX)

    def unfit(self, topic: str, waiting: Waiting) -> str:
        """Return what keeps a topic from taking records, or nothing."""
        if len(topic) > NAME_MAX_CHARS or not TOPIC.fullmatch(topic) or topic == self.positions.topic:
            return f"topic {topic!r} cannot be the name of a stream of ours"
        streams = self.options.streams
        for stream in (stream_of(topic, number, streams) for number in range(streams)):
            kind: bytes = self.linked().call("TYPE", stream, waiting=waiting, doing="looking at a topic")
            if kind not in (b"none", b"stream"):
                return f"the key {stream!r} holds a {kind.decode()} and no stream"
        return ""

    def _note(self, topic: str, waiting: Waiting) -> None:
        """Remember a topic and the number of its streams beside the position: readers ask there."""
        link, streams, field = self.linked(), self.options.streams, f"topic:{topic}"
        known, before = link.call("HMGET", self.positions.topic, "id", field, waiting=waiting, doing="opening a route")
        if before is not None and int(before) != streams:
            self._streams_changed(topic, int(before), streams)
        if known is not None and before != b"%d" % streams:
            link.call("HSET", self.positions.topic, field, streams, waiting=waiting, doing="opening a route")

    def _streams_changed(self, topic: str, before: int, after: int) -> None:
        what = f"topic {topic!r} had {before} streams and has {after}: keys move, and order across the change is lost"
        if self._on_partition_change == "stop":
            raise SinkRefused(what, 'set redis.streams back, or topics.on_partition_change = "warn" to go on')
        LOG.warning("%s", what)

    def _field(self, header: str) -> bytes:
        self._fields[header] = found = bulk(field_of(header))
        return found

    def _stream(self, name: str) -> bytes:
        """Give a stream its place in KEYS, behind the position's."""
        found = self._batch.streams[name] = bulk(b"%d" % (len(self._batch.streams) + 2))
        return found

    def _refuse(self, record: Record, fields: int) -> None:
        msg = f"a record has {fields} fields, and an entry of a stream takes {FIELDS_MAX}"
        raise Poisoned(msg, "give the row fewer headers", place=name_of(record), why=msg)

    def _too_large(self) -> CdcError:
        batch, most = self._batch, self.options.transaction_max_bytes
        msg = f"{batch.rows} rows of one PostgreSQL transaction are {batch.bytes:,} bytes and {batch.words:,} words so far"
        limit = f"{most:,} bytes" if self._words_max == math.inf else f"{most:,} bytes, and Redis before 7.0 {WORDS_MAX:,} words"
        return SinkRefused(f"{msg}; a commit takes {limit}", "raise redis.transaction_max_bytes, or write fewer rows in one transaction")


KEY_FIELD, TIME_FIELD, DATA_FIELD = bulk(KEY), bulk(TIMESTAMP), bulk(DATA)
