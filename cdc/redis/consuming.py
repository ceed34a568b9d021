"""A consumer's Broker, Member and Mover over Redis Streams; see cdc.consumer.ports, from where this room imports nothing.

A stream is a place, an entry's id its offset. `Holder` is the thread that talks to Redis; the member keeps for each stream what was
delivered and is not acknowledged, because Redis acknowledges entries one by one.
"""

from __future__ import annotations

import queue
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from redis import exceptions

from cdc.errors import ConfigurationError, Retriable, SinkRefused
from cdc.event import Place, Record, Seen
from cdc.redis.entry import entry_of, id_of, stream_of
from cdc.redis.groups import STREAMS_MAX, make_groups, refuse_parts
from cdc.redis.hearing import Ack, Assigned, Committed, Event, Group, Hitch, Lost, Records, Release, Revoked
from cdc.redis.holder import ANSWER_S, Holder
from cdc.redis.link import Wire, fault
from cdc.redis.membership import MOVE, leases, members
from cdc.redis.publisher import TOPIC

LEAVE_S: Final = 5.0
"""How long leaving may take. A member that does not leave is missed after its session."""

HAND_OVER_S: Final = 2.0
"""How long Redis may take to acknowledge what is given back."""

LIMIT_BYTES: Final = 256 * 1024 * 1024
"""Half of what Redis takes in one word (proto-max-bulk-len)."""

SESSION_MIN_S, SESSION_MAX_S = 1.0, 86_400.0

SENTINEL: Final = re.compile(r"[^@]+@[^,@\s]+:\d{1,5}(,[^,@\s]+:\d{1,5})*")
"""As in the pipeline's settings."""

FIELDS_MAX: Final = 3_500
"""Fields of a record that is moved: Lua hands over some 8,000 words at most (LUAI_MAXCSTACK). A pipeline writes 1,000."""


class Listener(Protocol):
    """Who polls."""

    def assigned(self, places: Sequence[Place]) -> None: ...  # noqa: D102 - see cdc.consumer.ports
    def revoked(self, places: Sequence[Place]) -> None: ...  # noqa: D102 - see cdc.consumer.ports
    def lost(self, places: Sequence[Place]) -> None: ...  # noqa: D102 - see cdc.consumer.ports
    def committed(self, offsets: Mapping[Place, int], error: str = "") -> None: ...  # noqa: D102 - see cdc.consumer.ports
    def hitch(self, what: str) -> None: ...  # noqa: D102 - see cdc.consumer.ports


@dataclass(frozen=True, slots=True)
class Options:
    """What a consumer says of Redis, by the names of the pipeline's settings where they are the same.

    `session_s`: a member that Redis has not heard of for so long loses its streams; handlers may take longer. `start`: where a new
    group begins, `begin` or `end`.
    """

    url: str = field(repr=False)
    sentinel: str | None = None
    streams: int = 1
    session_s: float = 15.0
    start: str = "begin"

    @classmethod
    def of(cls, table: Mapping[str, object]) -> Options:
        """Check a table of options that are known, with a url: see cdc.consumer.brokers."""
        given: Any = dict(table)
        made = cls(**given)
        if type(made.streams) is not int or not 1 <= made.streams <= STREAMS_MAX:
            raise ConfigurationError(f"a consumer's redis cannot have {made.streams!r} streams", "use the pipeline's redis.streams")
        if type(made.session_s) not in {int, float} or not SESSION_MIN_S <= made.session_s <= SESSION_MAX_S:
            what = f"a consumer's redis cannot have a session_s of {made.session_s!r}"
            raise ConfigurationError(what, f"use {SESSION_MIN_S:g} to {SESSION_MAX_S:g} seconds")
        if made.sentinel is not None and not (isinstance(made.sentinel, str) and SENTINEL.fullmatch(made.sentinel)):
            raise ConfigurationError("a consumer's redis has a sentinel that cannot be read", "write it as name@host:26379,host:26379")
        if made.start not in ("begin", "end"):  # it may be anything, such as a list
            raise ConfigurationError(f"a consumer's redis cannot start at {made.start!r}", 'use "begin" or "end"')
        return made


class RedisBroker:
    """Redis as a consumer's Broker; `is_own` tells the topics to which records come by a move only."""

    def __init__(
        self, *, group: str, options: Mapping[str, object], instance: str | None, prefetch: int, is_own: Callable[[str], bool]
    ) -> None:
        self._group = group
        self._options = Options.of(options)
        self._instance = instance
        self._prefetch = prefetch
        self._is_own = is_own

    def __repr__(self) -> str:
        return f"<RedisBroker for {self._group}>"

    def prepare(self, topics: Sequence[str], own: Sequence[str]) -> Mapping[str, int]:  # noqa: ARG002 - made by who reads or writes them
        """Make the group, so that what is published from now on waits for it; nobody knows how long a stream keeps it."""
        for topic in topics:
            if not TOPIC.fullmatch(topic):
                raise ConfigurationError(f"topic {topic!r} cannot be the name of a stream", "see topics.route of the pipeline")
        wire = Wire(self._options.url, self._group, self._options.sentinel, ANSWER_S)
        group = self._reading(topics, ())
        try:
            refuse_parts(wire.ask, group)
            make_groups(wire.ask, group)
        except (exceptions.RedisError, OSError) as error:
            raise fault(error, "making a group") from None
        finally:
            wire.close()
        return {}

    def member(self, topics: Sequence[str], own: Sequence[str]) -> RedisMember:
        """See cdc.consumer.ports.Broker."""
        return RedisMember(Holder(self._options.url, self._options.sentinel, self._reading(topics, own)))

    def _reading(self, topics: Sequence[str], own: Sequence[str]) -> Group:
        options = self._options
        return Group(
            self._group,
            self._instance,
            {**dict.fromkeys(topics, options.streams), **dict.fromkeys(own, 1)},
            frozenset(own),
            self._prefetch,
            options.session_s,
            options.start == "end",
        )

    def mover(self) -> RedisMover:
        """See cdc.consumer.ports.Broker."""
        return RedisMover(self._options, self._group, self._is_own)


class Ticket(NamedTuple):
    """What proves that a stream is ours, and what was delivered of it and is not acknowledged."""

    token: str
    delivered: Sequence[int]


class RedisMember:
    """See cdc.consumer.ports.Member."""

    def __init__(self, holder: Holder) -> None:
        self._holder = holder
        self._events = holder.events
        self._next: Event | None = None
        self._delivered: dict[Place, deque[int]] = {}
        self._token = ""
        self._listener: Listener

    def __repr__(self) -> str:
        return f"<RedisMember {self._holder!r}>"

    def join(self, listener: Listener) -> None:
        """See cdc.consumer.ports.Member."""
        self._listener = listener
        self._holder.start()

    def fetch(self, wait_s: float) -> Sequence[Seen]:
        """Return what was read; what changes our streams is told when the records before it have been returned."""
        records: list[Seen] = []
        try:
            event, self._next = self._next, None
            if event is None:
                event = self._events.get(timeout=wait_s) if wait_s else self._events.get_nowait()
            while True:
                if isinstance(event, Records):
                    records += event.records
                elif records:
                    self._next = event
                    break
                else:
                    self._tell(event)
                event = self._events.get_nowait()
        except queue.Empty:
            pass
        self._holder.taken += len(records)
        for record in records:
            self._delivered[record.topic, record.partition].append(record.offset)
        return records

    def _tell(self, event: Event) -> None:
        if isinstance(event, BaseException):
            raise event
        if isinstance(event, Assigned):
            self._token = event.token
            self._delivered |= {place: deque() for place in event.places}
            self._holder.paused -= set(event.places)
            self._listener.assigned(event.places)
        elif isinstance(event, Revoked):
            self._listener.revoked(event.places)
            self._holder.commands.put(Release(event.places, event.epoch))
        elif isinstance(event, Lost):
            self._listener.lost(event.places)
        elif isinstance(event, Committed):
            self._listener.committed(event.offsets, event.error)
        elif isinstance(event, Hitch):
            self._listener.hitch(event.what)

    def pause(self, places: Sequence[Place]) -> None:
        """See cdc.consumer.ports.Member."""
        self._holder.paused |= set(places)

    def resume(self, places: Sequence[Place]) -> None:
        """See cdc.consumer.ports.Member."""
        self._holder.paused -= set(places)

    def commit(self, offsets: Mapping[Place, int]) -> None:
        """See cdc.consumer.ports.Member."""
        self._holder.commands.put(Ack(self._below(offsets), offsets))

    def hand_over(self, offsets: Mapping[Place, int]) -> Mapping[Place, int]:
        """See cdc.consumer.ports.Member."""
        reply: queue.SimpleQueue[Mapping[Place, int]] = queue.SimpleQueue()
        self._holder.commands.put(Ack(self._below(offsets), offsets, reply))
        try:
            return reply.get(timeout=HAND_OVER_S)
        except queue.Empty:
            self._listener.hitch("Redis did not acknowledge in time what is given back")
            return {}

    def _below(self, offsets: Mapping[Place, int]) -> dict[Place, list[int]]:
        """Take what was delivered below these offsets."""
        found: dict[Place, list[int]] = {}
        for place, offset in offsets.items():
            delivered, taken = self._delivered[place], []
            while delivered and delivered[0] < offset:
                taken.append(delivered.popleft())
            if taken:
                found[place] = taken
        return found

    def ticket(self, place: Place) -> object:
        """See cdc.consumer.ports.Member."""
        return Ticket(self._token, tuple(self._delivered[place]))

    def lag(self, place: Place, here: int | None) -> int | None:
        """Return what the group has not read, as of the last look, and what was delivered; None where Redis cannot tell (before 7.0)."""
        unread = self._holder.unread(place)
        return None if unread is None else unread + sum(offset >= (here or 0) for offset in self._delivered[place])

    def leave(self) -> None:
        """See cdc.consumer.ports.Member."""
        self._holder.end(LEAVE_S)


def fitting(record: Record) -> Record:
    """Return a record with no more headers than a script can add: the last ones, which say why and from where it was moved."""
    return record if len(record.headers) <= FIELDS_MAX else record._replace(headers=record.headers[-FIELDS_MAX:])


class RedisMover:
    """Moves records of one consumer: one script adds the new entry and acknowledges the old one. For one thread."""

    def __init__(self, options: Options, group: str, is_own: Callable[[str], bool]) -> None:
        self._options = options
        self._group = group
        self._is_own = is_own
        self._wire: Wire | None = None

    def __repr__(self) -> str:
        return f"<RedisMover of {self._group}>"

    def fence(self) -> None:
        """Do nothing: a script leaves nothing open."""

    def limit_bytes(self, topic: str) -> int:
        """Return the largest record; raises SinkRefused for a key that is no stream."""
        kind: bytes = self._ask("TYPE", topic)
        if kind not in (b"none", b"stream"):
            msg = f"the key {topic!r} holds a {kind.decode()} and no stream"
            raise SinkRefused(msg, "rename it, or give the consumer another dead_letter_topic")
        return LIMIT_BYTES

    def move(self, record: Record, settled: Mapping[Place, int], ticket: object) -> bool:
        """See cdc.consumer.ports.Mover; a record is moved once, because the script looks whether it is still to be acknowledged."""
        assert isinstance(ticket, Ticket), "given by our member"
        [((topic, number), offset)] = settled.items()
        stream = stream_of(topic, number, 1 if self._is_own(topic) else self._options.streams)
        ids = [id_of(each) for each in {*(each for each in ticket.delivered if each < offset), offset - 1}]
        keys = (members(self._group), leases(self._group), stream, record.topic)
        words = (ticket.token, self._group, id_of(offset - 1), int(self._is_own(topic)), len(ids), *ids, *entry_of(fitting(record)))
        if self._ask("EVAL", MOVE, len(keys), *keys, *words) == b"LOST":
            msg = f"{stream} was taken by another member"
            raise Retriable(msg)
        return True

    def close(self) -> None:
        """Hang up."""
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    def _ask(self, *words: object) -> Any:  # noqa: ANN401 - the command's own type
        if self._wire is None:
            self._wire = Wire(self._options.url, f"{self._group}-moves", self._options.sentinel, ANSWER_S)
        try:
            return self._wire.ask(*words)
        except (exceptions.RedisError, OSError) as error:
            self.close()
            if "NOGROUP" in str(error):  # deleted, and made anew by who reads
                msg = "Redis has lost the group of the record's stream"
                raise Retriable(msg) from None
            raise fault(error, "moving a record") from None
