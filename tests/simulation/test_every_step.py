"""A crash, a cut or a lost answer at every step of a run, alone, in pairs, and then many at random."""

from __future__ import annotations

import itertools
import os
import random

import pytest

from cdc.pipeline import relay
from cdc.position import Lsn
from tests.simulation.fake_postgres import OpenTransaction
from tests.simulation.stage import INVALID, VALID, Fault, World

SEED = int(os.environ.get("TEST_SIMULATION_SEED", "0")) or random.SystemRandom().randrange(1, 10**9)

PAIRS, RANDOM_RUNS = 1_200, 600
"""Of an everyday run; the soak takes all pairs and ten times as many random runs."""


@pytest.fixture(autouse=True)
def _small_transactions_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "HELD_ROWS", 4)


def workload(world: World) -> None:
    """Small transactions, one with an invalid row, log of other tables, and later a large one and a late one."""
    world.insert(("a", VALID), ("b", VALID))
    world.insert(("a", VALID))
    world.insert(("b", INVALID), ("a", VALID))
    world.other_tables(500)
    world.pending += [
        lambda: world.insert(*[("a", VALID)] * 6),
        world.postgres.checkpoint,
        lambda: world.other_tables(1_000),
        lambda: world.insert(("c", VALID)),
    ]


def outcome(faults: dict[int, Fault]) -> str:
    """Run with faults; return what the judge found, empty when all is well."""
    world = World(faults)
    workload(world)
    verdict = world.run()
    return "" if verdict.clean else f"{faults}: {verdict.findings} in {world.names}"


def steps() -> int:
    world = World()
    workload(world)
    assert world.run().clean
    return world.steps


def test_without_faults_all_is_published_once() -> None:
    world = World()
    workload(world)
    document = world.run().document()
    assert (document["rows"], document["events"], document["dead_letters"]) == (12, 11, 1)


@pytest.mark.parametrize("fault", list(Fault))
def test_one_fault_at_every_step(fault: Fault) -> None:
    found = [text for step in range(1, steps() + 1) if (text := outcome({step: fault}))]
    assert not found, found[0]


def test_two_faults() -> None:
    kinds = (Fault.CRASH, Fault.LOST, Fault.HOLD, Fault.SERVER_CRASH)
    pairs = list(itertools.combinations(range(1, steps() + 10), 2))
    chosen = random.Random(SEED).sample(pairs, min(PAIRS, len(pairs)))
    draw = random.Random(SEED)
    for first, second in chosen:
        assert not (text := outcome({first: draw.choice(kinds), second: draw.choice(kinds)})), f"seed {SEED}: {text}"


@pytest.mark.soak
@pytest.mark.timeout(3_000)
@pytest.mark.parametrize(("first", "second"), list(itertools.product((Fault.CRASH, Fault.LOST, Fault.HOLD), repeat=2)))
def test_every_pair_of_faults(first: Fault, second: Fault) -> None:
    for one, two in itertools.combinations(range(1, steps() + 10), 2):
        assert not (text := outcome({one: first, two: second})), text


def _random_runs(runs: int) -> None:
    for run in range(runs):
        draw = random.Random(SEED + run)
        faults = {step: draw.choice(list(Fault)) for step in range(1, 400) if draw.random() < draw.choice((0.01, 0.03, 0.1))}
        assert not (text := outcome(faults)), f"seed {SEED + run}: {text}"


def test_random_faults() -> None:
    _random_runs(RANDOM_RUNS)


@pytest.mark.soak
@pytest.mark.timeout(3_000)
def test_many_random_faults() -> None:
    _random_runs(10 * RANDOM_RUNS)


def test_a_held_commit_of_a_fenced_instance_never_arrives() -> None:
    """The zombie: its commit is under way when it is given up; its successor fences, and only then the request arrives."""
    world = World()
    workload(world)
    world.run()
    commits = [step for step, name in enumerate(world.names, 1) if name == "kafka commit"]
    for commit in commits:
        again = World({commit: Fault.HOLD})
        workload(again)
        verdict = again.run()
        assert verdict.clean, verdict.findings
        assert verdict.document()["events"] == 11


def test_the_server_believes_any_flush_so_ours_is_zero_until_continuity_is_proved() -> None:
    """field_case_01 in the small: no status before the proof carries a position, and none is above the committed one."""
    world = World()
    workload(world)
    assert world.run().clean
    first_write = world.names.index("write")
    assert first_write < world.names.index("kafka read"), "a status was sent before the position was read"


def test_field_case_06_a_commit_that_begins_where_the_position_ends_is_not_skipped() -> None:
    def work(world: World) -> None:
        first, second = world.begin(("a", VALID)), world.begin(("a", VALID))
        ended = world.postgres.commit(first)
        world.pending.append(lambda: _commit_at(world, second, ended.end))

    world = World()
    work(world)
    assert world.run().clean
    for step in range(1, world.steps + 1):
        again = World({step: Fault.CRASH})
        work(again)
        verdict = again.run()
        assert verdict.clean, verdict.findings
        assert verdict.document()["events"] == 2


def _commit_at(world: World, transaction: OpenTransaction, lsn: Lsn) -> None:
    """Commit where the position is: its commit record begins exactly there."""
    assert world.confirmed == lsn
    assert world.postgres.commit(transaction).start == lsn
