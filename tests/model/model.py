"""A formal model of start, commit, confirm and takeover: every interleaving of two instances, one slot and one broker.

Strategy: a state is a tuple of small values, `steps` gives every state that can follow, and `explore` visits all that can be
reached, breadth first, so that what it finds is the shortest way to it. PostgreSQL is a number of committed transactions,
what the slot has confirmed, and who has the slot. Kafka is an epoch and what was committed: the events, and the position
beside them. A commit is a request that is on its way until it arrives, is lost, or arrives late, after its sender has given up,
died or been replaced. An instance can die at any moment, lose the slot without noticing, and give up waiting.

What must hold in every state:

    exactly once    the committed events are 1..position, each once, in order
    nothing ahead   the slot has confirmed no more than the position, and the position is no more than the log
    no dead end     from every state the end can be reached at which all is published and confirmed

Each rule of the design is a flag here, and a model without it must fail (test_model.py), else the model proves nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from enum import Enum, auto
from typing import NamedTuple

TRANSACTIONS = 2
"""PostgreSQL transactions in the log at most: one to be published twice or lost, one to come after it."""

FAULTS = 2
"""Deaths, lost links, lost answers and timeouts in one history."""


EPOCHS = 3 * FAULTS + 2
"""Fences in one history at most: a rule that is missing may let instances fence each other for ever."""


class At(Enum):
    """Where an instance stands in the door and behind it."""

    OUTSIDE = auto()
    OWNS = auto()
    FENCED = auto()
    STREAMS = auto()
    WAITS = auto()


class Rule(Enum):
    """What the design rests on."""

    FENCE = "a new instance fences the older one"
    FENCE_BEFORE_READING = "the position is read after the fence"
    POSITION_WITH_EVENTS = "the position is committed with the events"
    START_AT_THE_POSITION = "what is not newer than the position is skipped"
    CONFIRM_AFTER_COMMIT = "a position is confirmed after Kafka has committed it"
    A_TIMEOUT_IS_NO_ANSWER = "a commit without answer is settled by the door"


class Request(NamedTuple):
    """A commit on its way to the broker; `events` are transactions, `position` is None when it is not in it."""

    sender: int
    epoch: int
    events: tuple[int, ...]
    position: int | None


class Instance(NamedTuple):
    """One process: its place, its epoch, the position that it read, and up to where it has read the log and committed."""

    at: At = At.OUTSIDE
    epoch: int = 0
    read: int | None = None
    seen: int = 0
    done: int = 0
    answer: bool | None = None


class State(NamedTuple):
    """The whole world."""

    log: int = 0
    owner: int | None = None
    confirmed: int = 0
    epoch: int = 0
    events: tuple[int, ...] = ()
    position: int = 0
    requests: frozenset[Request] = frozenset()
    instances: tuple[Instance, Instance] = (Instance(), Instance())
    faults: int = 0

    @property
    def ended(self) -> bool:
        """Whether all is published and confirmed."""
        return self.log == self.position == self.confirmed == TRANSACTIONS

    @property
    def wrong(self) -> str:
        """Which promise is broken, or nothing."""
        if len(set(self.events)) < len(self.events):
            return "duplicated"
        if self.events != tuple(range(1, len(self.events) + 1)):
            return "lost or reordered"
        if self.confirmed > len(self.events):
            return "forgotten"
        return ""


def steps(state: State, rules: frozenset[Rule]) -> Iterator[tuple[str, State]]:
    """Yield everything that can happen next, with its name."""
    if state.log < TRANSACTIONS:
        yield "commit a row", state._replace(log=state.log + 1)
    for number, instance in enumerate(state.instances):
        for name, after in _moves(state, number, instance, rules):
            yield f"{'AB'[number]} {name}", after
    for request in state.requests:
        rest = state.requests - {request}
        yield from _arrives(state._replace(requests=rest), request, rules)
        if state.faults < FAULTS:
            yield "a commit is lost", state._replace(requests=rest, faults=state.faults + 1)


def _moves(state: State, number: int, instance: Instance, rules: frozenset[Rule]) -> Iterator[tuple[str, State]]:
    """What an instance does, and what befalls it."""
    match instance.at:
        case At.OUTSIDE:
            if state.owner is None:
                read = None if Rule.FENCE_BEFORE_READING in rules else state.position
                yield "takes the slot", _now(state, number, Instance(At.OWNS, read=read), owner=number)
            return
        case At.OWNS if state.epoch < EPOCHS or Rule.FENCE not in rules:
            epoch = state.epoch + 1 if Rule.FENCE in rules else 1
            yield "fences", _now(state, number, instance._replace(at=At.FENCED, epoch=epoch), epoch=epoch)
        case At.FENCED:
            read = state.position if instance.read is None else instance.read
            start = read if Rule.START_AT_THE_POSITION in rules else state.confirmed
            streams = Instance(At.STREAMS, instance.epoch, read, start, start)
            yield "reads the position", _now(state, number, streams, confirmed=_confirmed(state, number, read))
        case At.STREAMS:
            if state.owner == number and instance.seen < state.log:
                yield "reads the log", _now(state, number, instance._replace(seen=instance.seen + 1))
            if instance.seen > instance.done:
                yield "commits", _commit(state, number, instance, rules)
        case At.WAITS:
            yield from _waits(state, number, instance, rules)
    yield from _befalls(state, number, instance)


def _waits(state: State, number: int, instance: Instance, rules: frozenset[Rule]) -> Iterator[tuple[str, State]]:
    """What an instance does that waits for the answer to its commit."""
    if instance.answer is True:
        goes_on = instance._replace(at=At.STREAMS, done=instance.seen, answer=None)
        yield "confirms", _now(state, number, goes_on, confirmed=_confirmed(state, number, instance.seen))
    elif instance.answer is False:
        yield "is fenced", _leaves(state, number)
    else:
        underway = any(request.sender == number and request.epoch == instance.epoch for request in state.requests)
        faults = state.faults + underway
        if faults <= FAULTS:
            after = state._replace(faults=faults)
            settled = Rule.A_TIMEOUT_IS_NO_ANSWER in rules
            yield "gives up waiting", _leaves(after, number) if settled else _now(after, number, instance._replace(answer=True))


def _befalls(state: State, number: int, instance: Instance) -> Iterator[tuple[str, State]]:
    """What can happen to an instance at any moment."""
    if state.owner != number:
        yield "notices that its slot is gone", _leaves(state, number)
    if state.faults < FAULTS:
        after = state._replace(faults=state.faults + 1)
        yield "dies", _leaves(after, number)
        if state.owner == number:
            yield "loses the slot", _now(after, number, instance, owner=None)


def _now(state: State, number: int, instance: Instance, **world: object) -> State:
    pair = (instance, state.instances[1]) if number == 0 else (state.instances[0], instance)
    return state._replace(instances=pair, **world)  # type: ignore[arg-type]  # fields of State


def _leaves(state: State, number: int) -> State:
    return _now(state, number, Instance(), owner=None if state.owner == number else state.owner)


def _confirmed(state: State, number: int, position: int) -> int:
    """What the slot has confirmed after a status with this position: only its owner's statuses reach it."""
    return max(state.confirmed, position) if state.owner == number else state.confirmed


def _commit(state: State, number: int, instance: Instance, rules: frozenset[Rule]) -> State:
    events = tuple(range(instance.done + 1, instance.seen + 1))
    position = instance.seen if Rule.POSITION_WITH_EVENTS in rules else None
    early = state.confirmed if Rule.CONFIRM_AFTER_COMMIT in rules else _confirmed(state, number, instance.seen)
    requests = state.requests | {Request(number, instance.epoch, events, position)}
    return _now(state, number, instance._replace(at=At.WAITS, answer=None), requests=requests, confirmed=early)


def _arrives(state: State, request: Request, rules: frozenset[Rule]) -> Iterator[tuple[str, State]]:
    """The broker takes a commit of the present epoch and refuses an older one; its answer may be lost with its sender."""
    taken = request.epoch == state.epoch
    if taken:
        position = max(state.position, request.position or 0)
        state = state._replace(events=state.events + request.events, position=position)
        if request.position is None:
            follow_up = Request(request.sender, request.epoch, (), max(request.events, default=0))
            state = state._replace(requests=state.requests | {follow_up})
    sender = state.instances[request.sender]
    waits = sender.at is At.WAITS and sender.epoch == request.epoch and sender.answer is None and request.position is not None
    if waits:
        yield "a commit is answered", _now(state, request.sender, sender._replace(answer=taken))
    else:
        yield "a commit arrives late", state
    if waits and state.faults < FAULTS:
        yield "an answer is lost", state._replace(faults=state.faults + 1)


class Found(NamedTuple):
    """What `explore` found: how many states there are, and the first wrong one with the way to it."""

    states: int
    wrong: str
    way: list[str]


def explore(rules: frozenset[Rule]) -> Found:
    """Visit every state that can be reached under these rules, until one is wrong."""
    start = State()
    came: dict[State, tuple[State, str] | None] = {start: None}
    before: dict[State, list[State]] = {}
    ends: list[State] = []
    waiting = deque([start])
    while waiting:
        state = waiting.popleft()
        if state.wrong:
            return Found(len(came), state.wrong, _way(came, state))
        if state.ended:
            ends.append(state)
        for name, after in steps(state, rules):
            before.setdefault(after, []).append(state)
            if after not in came:
                came[after] = (state, name)
                waiting.append(after)
    alive = set(ends)
    waiting = deque(ends)
    while waiting:
        for state in before.get(waiting.popleft(), ()):
            if state not in alive:
                alive.add(state)
                waiting.append(state)
    stuck = next((state for state in came if state not in alive), None)
    return Found(len(came), "", []) if stuck is None else Found(len(came), "a dead end", _way(came, stuck))


def _way(came: dict[State, tuple[State, str] | None], state: State) -> list[str]:
    way: list[str] = []
    while (step := came[state]) is not None:
        state, name = step
        way.append(name)
    return way[::-1]
