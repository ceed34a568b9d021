"""The thread of a consumer's member: holds leases on streams, reads them, acknowledges, and comes back after a fault.

Strategy: one connection and one thread, so that a member lives, and keeps its streams, however long handlers take. What it hears goes
into `events`, what it is to do comes by `commands`; nothing else is shared but two counters. While there are entries it reads
one script after the other, up to `prefetch` records that nobody has taken; else it waits by a plain XREAD, which takes nothing, so
what is read is always read under the lease.

Rules.
- After any error of the connection all streams are lost, and the membership begins anew with another token: what Redis has of us then,
  after a restart or a failover, is looked at and not remembered.
- An event names the *epoch* of its membership, and what is to be done about a place names it, too; an older one's is passed over.
"""

from __future__ import annotations

import queue
import random
import secrets
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from redis import exceptions

from cdc.errors import CdcError, Retriable, SinkRefused
from cdc.event import Place, Seen
from cdc.redis.entry import id_of, seen, stream_of
from cdc.redis.groups import make_groups, refuse_parts, told_of
from cdc.redis.hearing import Assigned, Command, Committed, Event, Group, Hitch, Leave, Lost, Records, Release, Revoked
from cdc.redis.link import Wire, fault
from cdc.redis.membership import ACK, ACK_MAX, FETCH, RELEASE, TURN, leases, members, unpacked
from cdc.resilience.backoff import Backoff

FETCH_MAX: Final = 500
"""Entries of one stream in one script."""

FETCH_BYTES: Final = 4 * 1024 * 1024
"""What one script brings at most, about."""

HELD_BYTES: Final = 32 * 1024 * 1024
"""When entries of so much are not acknowledged, only streams are read that have none among them: one that waits holds up no other."""

TURN_S: Final = 1.0
"""How often we say that we live, and look for streams that are free or too many."""

LOOK_S: Final = 2.0
"""How often Redis is asked how far behind we are."""

SHAPE_S: Final = 30.0
"""How often the number of a topic's streams is looked at."""

WAIT_MS: Final = 100
"""Longest wait for an entry, and so for a command."""

FULL_S: Final = 0.01
"""How long we wait when all that we have to read is full."""

ANSWER_S: Final = 10.0
"""How long Redis may take for an answer."""

GONE: Final = "Redis has lost the group of a stream, which is made anew"

FIRST_S, CAP_S = 0.1, 2.0
"""Delays before a membership begins anew."""


@dataclass(slots=True)
class _Stream:
    """A stream that is ours: where claiming goes on, or `>`; the last entry; how many the group has not read, if Redis can tell.

    `brought` is what each script has brought and is not acknowledged, its last offset and its bytes; `held_bytes` is their sum.
    """

    key: str
    at: str = "0-0"
    last: str = "0-0"
    closing: bool = False
    unread: int | None = None
    brought: deque[tuple[int, int]] = field(default_factory=deque)
    held_bytes: int = 0

    def bring(self, offset: int, size: int) -> None:
        self.brought.append((offset, size))
        self.held_bytes += size

    def done(self, offset: int) -> None:
        while self.brought and self.brought[0][0] <= offset:
            self.held_bytes -= self.brought.popleft()[1]


class _Silent(Retriable):
    """Our session or a group is no more."""


class Holder:
    """See above; `paused` and `taken` are written by the member alone."""

    def __init__(self, url: str, sentinel: str | None, group: Group) -> None:
        self._url, self._sentinel, self._group = url, sentinel, group
        self.identity = group.instance or secrets.token_hex(6)
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self.paused: frozenset[Place] = frozenset()
        self.taken = self._put = 0
        self._places = {stream_of(topic, n, count): (topic, n) for topic, count in group.topics.items() for n in range(count)}
        self._keys = (members(group.name), leases(group.name))
        self._held: dict[Place, _Stream] = {}
        self._wire: Wire | None = None
        self._token = self._before = ""
        self._epoch = self._attempt = 0
        self._joined = self._left = self._known = False
        self._turn_at = self._look_at = self._shape_at = 0.0
        self._scripts: dict[str, str] = {}
        self._backoff = Backoff(FIRST_S, CAP_S, random.random)
        self._thread = threading.Thread(target=self._work, name=f"{group.name}-redis", daemon=True)

    def __repr__(self) -> str:
        return f"<Holder of {len(self._held)} streams for {self._group.name} as {self.identity}>"

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def end(self, patience_s: float) -> None:
        """Leave the group, if Redis answers in time."""
        self.commands.put(Leave())
        if self._thread.ident is not None:
            self._thread.join(patience_s)

    def unread(self, place: Place) -> int | None:
        """Return how many entries of a stream the group has not read, as far as is known."""
        stream = self._held.get(place)
        return None if stream is None else stream.unread

    # The thread

    def _work(self) -> None:
        try:
            while not self._left:
                try:
                    self._begin()
                    while not self._left:
                        self._step()
                except (exceptions.RedisError, OSError) as error:
                    self._begin_anew(_asked_for(error))
                except Retriable as error:
                    self._begin_anew(error)
        except BaseException as error:  # noqa: BLE001 - raised again by who fetches
            self.events.put(error)
        finally:
            self._hang_up()

    def _begin(self) -> None:
        """Connect and make the groups; what joins is the first turn."""
        self._wire = Wire(self._url, self._group.name, self._sentinel, ANSWER_S)
        self._token, self._joined = f"{self.identity}.{secrets.token_hex(8)}", False
        self._scripts = {text: self._ask("SCRIPT", "LOAD", text).decode() for text in (TURN, FETCH, ACK, RELEASE)}
        self._turn_at = self._look_at = 0.0
        refuse_parts(self._ask, self._group)
        make_groups(self._ask, self._group, again=self._known)
        self._shape_at = time.monotonic() + SHAPE_S
        self._known = True

    def _begin_anew(self, error: Retriable) -> None:
        """Give up this membership, and wait a little before the next one."""
        self._hang_up()
        if self._held:
            self.events.put(Lost(list(self._held)))
            self._held = {}
        self._before = self._token if self._joined else self._before
        self._attempt += 1
        self.events.put(Hitch(error.what))
        deadline = time.monotonic() + self._backoff(self._attempt)
        while (left := deadline - time.monotonic()) > 0 and not self._left:
            self._obey(left, error.what)

    def _hang_up(self) -> None:
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    def _step(self) -> None:
        self._obey(0)
        now = time.monotonic()
        if now >= self._turn_at:
            self._turn()
            self._turn_at = now + min(TURN_S, self._group.session_s / 3)
        if now >= self._look_at:
            self._look_at = now + LOOK_S
            self._look_at_lag()
        if now >= self._shape_at:
            self._shape_at = now + SHAPE_S
            refuse_parts(self._ask, self._group)
        paused = self.paused
        spare = sum(stream.held_bytes for stream in self._held.values()) < HELD_BYTES
        wanted = [
            stream for place, stream in self._held.items() if place not in paused and not stream.closing and (spare or not stream.brought)
        ]
        room = self._group.prefetch - (self._put - self.taken)
        if not wanted or room <= 0:
            self._obey(FULL_S if self._held else WAIT_MS / 1000)
        elif not self._fetch(wanted, max(1, min(FETCH_MAX, room // len(wanted)))):
            self._wait(wanted)

    def _obey(self, wait_s: float, away: str = "") -> None:
        """Do what was asked for; while Redis is `away`, nothing but answer."""
        try:
            command = self.commands.get(timeout=wait_s) if wait_s > 0 else self.commands.get_nowait()
            while True:
                self._do(command, away)
                command = self.commands.get_nowait()
        except queue.Empty:
            pass

    def _do(self, command: Command, away: str) -> None:
        if isinstance(command, Leave):
            self._left = True
            if not away and self._joined:
                self._release(list(self._held), leaving=True)
        elif isinstance(command, Release):
            if not away and command.epoch == self._epoch:
                self._release(command.places)
        else:
            answer: Mapping[Place, int] = {}
            try:
                if not away:
                    self._acknowledge(command.entries)
                    answer = command.offsets
            finally:
                if command.reply is not None:
                    command.reply.put(answer)
                else:
                    self.events.put(Committed(answer, away if not answer else ""))

    # Redis

    def _ask(self, *words: object) -> Any:  # noqa: ANN401 - the command's own type
        assert self._wire is not None, "connected before"
        return self._wire.ask(*words)

    def _run(self, script: str, keys: Iterable[str], *words: object) -> Any:  # noqa: ANN401 - the script's own type
        named = list(keys)
        return self._ask("EVALSHA", self._scripts[script], len(named), *named, *words)

    def _turn(self) -> None:
        """Say that we live; take what is free, and begin to give back what is too much."""
        group = self._group
        by_topic = [
            word for topic, count in group.topics.items() for word in (topic, count, *(stream_of(topic, n, count) for n in range(count)))
        ]
        session_ms, topics = round(group.session_s * 1000), " ".join(group.topics)
        said, *told = self._run(
            TURN, self._keys, self._token, session_ms, int(self._joined), self._before, group.instance or "", topics, *by_topic
        )
        if said == b"TAKEN":
            msg = f"another process consumes as instance {group.instance!r} of {group.name}"
            raise SinkRefused(msg, "give each process of a consumer an instance name of its own")
        if said == b"LOST":
            msg = f"this member was silent for longer than its session of {group.session_s:g} s; it joins again"
            raise _Silent(msg)
        owned, surplus = ([self._places[key.decode()] for key in keys] for keys in told)
        if not self._joined:
            self._joined, self._before = True, self._token
            self._epoch += 1
        new = [place for place in owned if place not in self._held]
        self._held |= {place: _Stream(stream_of(*place, self._group.topics[place[0]])) for place in new}
        if new:
            self.events.put(Assigned(new, self._epoch, self._token))
        back = [place for place in surplus if not self._held[place].closing]
        for place in back:
            self._held[place].closing = True
        if back:
            self.events.put(Revoked(back, self._epoch))
        self._attempt = 0

    def _release(self, places: Sequence[Place], *, leaving: bool = False) -> None:
        keys = [self._held.pop(place).key for place in places if place in self._held]
        self._run(RELEASE, self._keys, self._token, int(leaving), self._group.instance or "", *keys)

    def _fetch(self, streams: Sequence[_Stream], count: int) -> bool:
        """Read, and return whether there was anything, or may be more."""
        words = (self._token, self._group.name, self.identity, count, FETCH_BYTES // len(streams), *(stream.at for stream in streams))
        said, *told = self._run(FETCH, (*self._keys, *(stream.key for stream in streams)), *words)
        if said == b"LOST":
            msg = "this member's session was over while it read; it joins again"
            raise _Silent(msg)
        records: list[Seen] = []
        more = False
        for stream, (at, last, entries) in zip(streams, told, strict=True):
            found = [seen(*self._places[stream.key], *entry) for entry in unpacked(entries)]
            more = more or bool(found) or stream.at != ">"
            if found:
                stream.bring(found[-1].offset, len(entries))
            if stream.at == ">":
                stream.last = id_of(found[-1].offset) if found else stream.last
                stream.unread = None if stream.unread is None else max(0, stream.unread - len(found))
            elif last:
                stream.last = last.decode()
            stream.at = at.decode()
            records += found
        if records:
            self._put += len(records)
            self.events.put(Records(records))
        return more

    def _wait(self, streams: Sequence[_Stream]) -> None:
        """Wait for an entry, and leave it where it is."""
        keys, after = [stream.key for stream in streams], [stream.last for stream in streams]
        self._ask("XREAD", "COUNT", 1, "BLOCK", WAIT_MS, "STREAMS", *keys, *after)

    def _acknowledge(self, entries: Mapping[Place, Sequence[int]]) -> None:
        for (topic, number), offsets in entries.items():
            key = stream_of(topic, number, self._group.topics[topic])
            for start in range(0, len(offsets), ACK_MAX):
                ids = map(id_of, offsets[start : start + ACK_MAX])
                self._run(ACK, (key,), self._group.name, int(topic in self._group.own), *ids)
            if (stream := self._held.get((topic, number))) is not None:
                stream.done(offsets[-1])

    def _look_at_lag(self) -> None:
        for stream in self._held.values():
            told = told_of(self._ask, stream.key, self._group.name)
            if told is None:  # a stream that is full is not read, so nothing else would find out
                raise _Silent(GONE)
            stream.unread = told.get(b"lag")


def _asked_for(error: Exception) -> Retriable:
    """Return a fault that the next membership may heal; raises what a person has to mend."""
    found: CdcError = fault(error, "consuming")
    if "NOGROUP" in str(error):  # somebody has deleted the stream or the group: it is made again
        return Retriable(GONE)
    if isinstance(found, Retriable):
        return found
    raise found from None
