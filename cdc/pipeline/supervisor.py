"""The one recovery path: whatever fails, drop everything, wait, and go through the door again.

The door, in this order: look at the server and the position (and refuse before anybody is fenced) -> take the slot -> fence
older instances and read the position that they committed -> prove continuity -> stream. Reading before fencing publishes
twice: A commits, B reads the old position, B fences A, B publishes A's batch again. Fencing before the slot makes instances
fence each other in turn. Reading before the slot makes a false alarm, because its owner may move on meanwhile.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from cdc.errors import (
    CdcError,
    ContinuityError,
    Fenced,
    IdentityTaken,
    OnHold,
    Poisoned,
    Retriable,
    SinkRefused,
    SlotBusy,
    StoppedByPolicy,
    TransactionTimedOut,
)
from cdc.event import BY_ID
from cdc.outbox.router import commit_lsn
from cdc.pipeline import continuity
from cdc.pipeline.ports import Observer, Publisher, Source, Waiting
from cdc.pipeline.relay import Relay
from cdc.position import Position
from cdc.postgres.server import Server


class State(StrEnum):
    """Where the process stands."""

    STARTING = "starting"
    STANDBY = "standby"
    OPENING = "opening"
    STREAMING = "streaming"
    BACKOFF = "backoff"
    HELD = "held"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"


_LEAVING = {State.STOPPING, State.STOPPED, State.FAILED}

TRANSITIONS: dict[State, frozenset[State]] = {
    State.STARTING: frozenset({State.OPENING} | _LEAVING),
    State.STANDBY: frozenset({State.OPENING} | _LEAVING),
    State.OPENING: frozenset({State.STREAMING, State.STANDBY, State.HELD, State.BACKOFF} | _LEAVING),
    State.STREAMING: frozenset({State.BACKOFF} | _LEAVING),
    State.BACKOFF: frozenset({State.OPENING} | _LEAVING),
    State.HELD: frozenset({State.OPENING} | _LEAVING),
    State.STOPPING: frozenset({State.STOPPED, State.FAILED}),
    State.STOPPED: frozenset(),
    State.FAILED: frozenset(),
}
"""What may follow what; the diagram in docs/architecture.md is drawn from this table."""

STANDBY_POLL_S = 0.5
"""How often a standby looks whether the slot is free: the better part of a takeover's time."""

HELD_POLL_S = 1.0
"""How often an instance looks whether an operator's command has ended."""

WATCH_INTERVAL_S = 10.0
"""How often continuity is looked at while streaming: what the log cannot show (a changed publication, a lost slot)."""

FENCED_WITHIN_S, FENCED_TIMES = 60.0, 3
"""Fenced so often while we hold the slot, somebody uses our transactional.id without it."""

STALLED_S = 3.0
"""A turn of the loop that waits for Kafka for so long is shown: commits take milliseconds, and a reader of the topics waits too."""

FENCED_PAUSE_S = 2.0
"""Before we fence in turn: whoever fenced us may be an operator's command that has yet to write that it holds the pipeline. Without
it the two fence each other until one gives up."""

POISONED_TIMES = 3
"""Kafka transactions that the broker refuses for good, without progress and without a row to blame, before it is an error."""

UNOWNED_TIMES = 3
"""A walsender that ends just after it took the slot looks like a second server; so often in a row, it is one."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What the pipeline is called on both sides, the topics that it needs whatever rows come, and the name of its sink."""

    pipeline: str
    slot: str
    static_topics: tuple[str, ...] = ()
    message_prefix: str | None = None
    sink: str = "Kafka"


class GraceEnded(CdcError):
    """The time to stop cleanly is over: leave as a kill would, which loses nothing."""


class Supervisor:
    """Keeps the pipeline streaming until it is asked to stop or must not go on.

    `precheck` refuses what is wrong with the outbox table or its publication before the slot is taken; `refresh` takes up new schemas;
    `backoff` gives the seconds before an attempt, counted from 1; `pause` waits for so many seconds, or until `stopping`; `blocked` is
    why the sink takes nothing for now, in its own words, and empty when it does not say.
    """

    def __init__(  # noqa: PLR0913 - the ports and the world, by keyword
        self,
        *,
        identity: Identity,
        source: Source,
        publisher: Publisher,
        precheck: Callable[[], None],
        relay: Callable[[Position, Waiting, Mapping[bytes, str]], Relay],
        refresh: Callable[[], object],
        observer: Observer,
        backoff: Callable[[int], float],
        clock: Callable[[], float],
        stopping: Callable[[], bool],
        pause: Callable[[float], object],
        grace_s: float,
        blocked: Callable[[], str] = str,
    ) -> None:
        self._identity = identity
        self._blocked = blocked
        self._source = source
        self._publisher = publisher
        self._precheck = precheck
        self._relay = relay
        self._refresh = refresh
        self._observer = observer
        self._backoff = backoff
        self._clock = clock
        self._stopping = stopping
        self._pause = pause
        self._grace_s = grace_s
        self._leave_at: float | None = None
        self._state = State.STARTING
        self._attempt = 0
        self._patient = False
        self._turned_at = clock()
        self._stalled = False
        self._poisoned = 0
        self._refused: dict[bytes, str] = {}
        self._fenced: deque[float] = deque(maxlen=FENCED_TIMES)
        self._unowned = 0
        self._generation: int | None = None

    def __repr__(self) -> str:
        return f"<Supervisor {self._identity.pipeline} {self._state} attempt={self._attempt}>"

    def run(self) -> None:
        """Stream until asked to stop; raises the error that an operator has to see."""
        try:
            while not self._stopping():
                self._once()
        except GraceEnded:
            pass
        except BaseException as error:
            self._turn(State.FAILED, str(error) if isinstance(error, CdcError) else type(error).__name__)
            raise
        finally:
            self._drop()
        self._turn(State.STOPPED)

    def _once(self) -> None:
        """One passage, and what its failure calls for."""
        try:
            self._passage()
        except SlotBusy as error:
            self._drop()
            self._attempt = 0
            self._turn(State.STANDBY, str(error))
            self._pause(STANDBY_POLL_S)
        except OnHold as error:
            self._drop()
            self._attempt = 0
            self._fenced.clear()  # it was the command that fenced us
            self._turn(State.HELD, str(error))
            self._pause(HELD_POLL_S)
        except Retriable as error:
            self._observer.failed(error)
            self._drop()
            if self._state is State.STOPPING:
                return  # what was under way is settled by the next start
            self._consider(error)
            self._attempt += 1
            self._turn(State.BACKOFF, str(error))
            pause_s = self._backoff(self._attempt)
            self._pause(max(pause_s, FENCED_PAUSE_S) if isinstance(error, Fenced) else pause_s)

    def _passage(self) -> None:
        source, publisher, name = self._source, self._publisher, self._identity
        self._turn(State.OPENING)
        self._stalled = False
        server = source.look()
        position, cluster = publisher.peek()
        self._observer.server(server, position)
        _heed(position)
        self._first_look(continuity.Evidence(name.pipeline, name.slot, server, cluster, position))
        self._precheck()
        server = source.open()
        self._own(server)
        publisher.require(name.static_topics, self._waiting)
        position = publisher.recover(self._waiting, patient=self._patient, blaming=self._poisoned > 0)
        _heed(position)
        # If we slept since we took the slot, somebody else may have taken it and moved on: what was seen then proves nothing now.
        server = source.watch()
        self._own(server)
        position = continuity.prove(continuity.Evidence(name.pipeline, name.slot, server, cluster, position))
        if position.generation != self._generation:
            self._fenced.clear()  # a command has changed the position, and fenced us for it; its hold may be over already
        self._generation = position.generation
        position = continuity.listening(position, name.message_prefix)
        source.start(position)
        self._refused = {
            place: why for place, why in self._refused.items() if place.startswith(BY_ID) or commit_lsn(place) >= position.end_lsn
        }
        relay = self._relay(position, self._waiting, self._refused)
        self._stalled = False
        self._turn(State.STREAMING)
        self._stream(relay, position, cluster)

    def _first_look(self, evidence: continuity.Evidence) -> None:
        """Refuse what cannot be streamed, when the position was the same before and after the server was looked at.

        A command that changes the position drops the slot and makes it anew. Its hold is hidden until the markers of its Kafka transaction
        are written, which is after its commit has returned; and it may have ended since the server was looked at.
        """
        try:
            continuity.first_look(evidence)
        except ContinuityError as error:
            server = self._source.look()
            if self._publisher.last() != evidence.position:
                msg = f"the position was changed while it was looked at ({error.what})"
                raise Retriable(msg) from None
            continuity.first_look(replace(evidence, server=server))

    def _own(self, server: Server) -> None:
        """See that the slot is held by our connection, as the server sees it; only then what it shows counts.

        A walsender that has ended says why on its connection, behind the frames that it sent before.
        """
        if not server.ours:
            self._source.keep_alive()
            self._source.keep_alive()
        self._unowned = 0 if server.ours else self._unowned + 1
        if 0 < self._unowned < UNOWNED_TIMES:
            msg = f"slot {self._identity.slot!r} is not held by our replication connection any more"
            raise Retriable(msg)
        continuity.owned(server, self._identity.slot)

    def _stream(self, relay: Relay, position: Position, cluster: str) -> None:
        watch_at = self._clock() + WATCH_INTERVAL_S
        try:
            while not self._stopping():
                self._turned_at = self._clock()
                relay.step()
                self._observer.heartbeat()
                if self._stalled:
                    self._stalled = False
                    self._turn(State.STREAMING)
                if relay.position is not position:
                    self._attempt, self._patient, self._poisoned = 0, False, 0
                if self._clock() >= watch_at:
                    self._refresh()
                    self._watch(relay, cluster)
                    watch_at = self._clock() + WATCH_INTERVAL_S
        except StoppedByPolicy:
            self._publisher.abort(self._grace_s)
            self._source.finish()
            raise
        self._turn(State.STOPPING)
        relay.stop(self._grace_s)
        with contextlib.suppress(Retriable):  # a server that is away now is looked at by the next start
            self._watch(relay, cluster)
        self._source.finish()

    def _watch(self, relay: Relay, cluster: str) -> None:
        """Look whether what was proved at the door still holds, and show where the slot stands."""
        server, position = self._source.watch(), relay.position
        for kind, count in self._source.take_ignored().items():
            self._observer.ignored(kind, count)
        self._observer.server(server, position)
        self._own(server)  # else the slot may be where another instance has taken it, and the door says what became of it
        proved = continuity.prove(continuity.Evidence(self._identity.pipeline, self._identity.slot, server, cluster, position))
        relay.proved(proved.publication_fingerprint)

    def _waiting(self) -> None:
        """Answer PostgreSQL while the sink is waited for, and leave when the time to stop is over."""
        self._source.keep_alive()
        self._observer.heartbeat()
        now = self._clock()
        if self._state is State.STREAMING and not self._stalled and now - self._turned_at >= STALLED_S:
            self._stalled = True
            self._turn(State.STREAMING, self._blocked() or f"{self._identity.sink} has not answered for {STALLED_S:.0f} s")
        elif self._state is State.OPENING and not self._stalled and (reason := self._blocked()):
            self._stalled = True
            self._turn(State.OPENING, reason)
        if self._stopping():
            if self._leave_at is None:
                self._leave_at = now + self._grace_s
            if now >= self._leave_at:
                raise GraceEnded("the time to stop cleanly is over")

    def _consider(self, error: Retriable) -> None:
        """Turn what will not heal by itself into the error of its remedy."""
        if isinstance(error, TransactionTimedOut):
            if self._patient:
                raise SinkRefused(error.what, error.fix) from error
            self._patient = True
        elif isinstance(error, Poisoned):
            self._accuse(error)
        elif isinstance(error, Fenced):
            now = self._clock()
            self._fenced.append(now)
            if len(self._fenced) == FENCED_TIMES and now - self._fenced[0] <= FENCED_WITHIN_S:
                msg = f"fenced {FENCED_TIMES} times within a minute while the slot was ours: somebody uses our transactional.id"
                raise IdentityTaken(msg, "find the other producer, or give this pipeline another name") from error

    def _accuse(self, error: Poisoned) -> None:
        """Let the next passage look for the record that the broker refuses, and the one after it treat it as invalid."""
        if error.place is not None and error.place not in self._refused:
            self._refused[error.place] = error.why
            self._poisoned = 0
            return
        self._poisoned += 1
        if self._poisoned == POISONED_TIMES:
            sink = self._identity.sink
            msg = f"{sink} refused {POISONED_TIMES} times in a row what it was sent, and no row of the outbox is to blame: {error.what}"
            raise SinkRefused(msg, "see the broker's log; nothing was published or lost since") from error

    def _turn(self, state: State, reason: str = "") -> None:
        assert state is self._state or state in TRANSITIONS[self._state], f"{self._state} -> {state}"
        self._state = state
        self._observer.state(state, reason)

    def _drop(self) -> None:
        self._publisher.drop()
        self._source.drop()


def _heed(position: Position | None) -> None:
    """Keep out of the way of a command that changes the position: slot and position may be anything until it ends."""
    if position is not None and position.hold is not None:
        raise OnHold(position.hold)
