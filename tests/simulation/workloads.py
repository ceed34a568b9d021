"""What the applications do in a simulation: a few transactions that hold every trap of the log."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

from cdc.position import Lsn
from cdc.postgres.pgoutput import Delete, Insert, Message, Origin, Truncate, Type, Update
from tests.simulation.fake_postgres import OTHER, OUTBOX
from tests.simulation.world import Action, Script, World

LARGE_ROWS = 4
"""HELD_ROWS in simulations: a transaction of more rows is large."""

SEGMENT = 16 * 1024 * 1024


def good(number: int) -> str:
    return f'{{"n":{number}}}'


BAD = '{"n":"secret"}'


def small(world: World) -> None:
    """Two transactions that overlap, so that the second commit begins where the first one ends; the late one began first."""
    late = world.insert(world.postgres.begin(), ("a1", "k1", good(1)))
    early = world.insert(world.postgres.begin(), ("b1", "k1", good(2)), ("b2", "k2", BAD), ("b3", "k1", good(3)))
    world.commit(early)
    world.commit(late)
    world.postgres.checkpoint()


def large(world: World) -> None:
    """One that outgrows what is held back, with an invalid row in it, and one that is committed right behind it."""
    huge = world.insert(world.postgres.begin(), *((f"c{i}", f"k{i % 2}", BAD if i == 3 else good(i)) for i in range(6)))
    after = world.insert(world.postgres.begin(), ("d1", "k1", good(9)))
    world.commit(huge)
    world.commit(after)


def others(world: World) -> None:
    """What an outbox has no use for, around a row and two messages: another table, messages, TRUNCATE, and log of others."""
    postgres = world.postgres
    mixed = postgres.begin()
    for message in (
        Origin(Lsn(5), "elsewhere"),
        Type(17_000, "public", "mood"),
        Insert(OTHER.oid, (b"1",)),
        Update(OUTBOX.oid, None, False, (b"a1", None, None, None, None)),
        Delete(OUTBOX.oid, (b"a1", None, None, None, None), True),
        Truncate((OUTBOX.oid, OTHER.oid), True, False),
        Message(True, postgres.end, "hb", b"x"),
    ):
        postgres.change(mixed, message)
    world.insert(mixed, ("e1", "k2", good(11)))
    world.emit(mixed, ("m1", "k2", good(12)), ("m2", "k1", BAD))
    postgres.emit("hb", b"outside")
    world.commit(mixed)
    world.insert(postgres.begin(), ("never", "k1", good(0)))
    postgres.write(1_000)


def idle(world: World) -> None:
    world.postgres.write(SEGMENT)


SMALL: Script = [(0.0, small), (0.3, large), (0.6, others), (0.9, idle)]
"""Everything in a second: for exhaustive runs."""

TINY: Script = [(0.0, small), (0.2, lambda world: world.transaction(("f1", "k1", good(5)), ("f2", "k2", good(6))))]
"""For pairs of faults."""


def random_script(rng: random.Random) -> Script:
    """Return a script of its own for each seed: writers that overlap, sizes from one row to several times what is held back."""
    at, script, ids = 0.0, list[tuple[float, Action]](), itertools.count()
    for _ in range(rng.randrange(3, 9)):
        kind = rng.random()
        if kind < 0.7:
            script.append((at, burst(rng, ids)))
        elif kind < 0.8:
            script.append((at, truncated(ids)))
        elif kind < 0.9:
            script.append((at, lambda world: world.postgres.checkpoint()))
        else:
            script.append((at, idle))
        at += rng.choice((0.0, 0.05, 0.4, 3.0, 15.0))
    return script


def burst(rng: random.Random, ids: Iterator[int]) -> Action:
    """One to three writers at once, that commit in any order or never."""
    writers = [(rng.choice((1, 1, 2, 3, 4, 5, 13)), rng.randrange(-1, 10)) for _ in range(rng.randrange(1, 4))]
    rows = [
        [(f"r{next(ids)}", f"k{rng.randrange(3)}", BAD if rng.random() < 0.1 else good(i)) for i in range(count)] for count, _ in writers
    ]

    def act(world: World) -> None:
        writing = [world.postgres.begin() for _ in writers]
        for together in itertools.zip_longest(*rows):
            for transaction, row in zip(writing, together, strict=True):
                if row is not None:
                    (world.emit if row[1] == "k0" else world.insert)(transaction, row)
        for (_, turn), transaction in sorted(zip(writers, writing, strict=True), key=lambda each: each[0][1]):
            if turn >= 0:
                world.commit(transaction)

    return act


def truncated(ids: Iterator[int]) -> Action:
    """A message outside, and a transaction with a TRUNCATE before its row."""
    number = next(ids)

    def act(world: World) -> None:
        world.postgres.emit("hb", b"outside")
        mixed = world.postgres.begin()
        world.postgres.change(mixed, Truncate((OUTBOX.oid,), False, False))
        world.insert(mixed, (f"t{number}", "k1", good(number)))
        world.commit(mixed)

    return act
