"""A fault at every port call, at every frame of the link, in pairs, and then many at random: the judge finds nothing, on any sink."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping

import pytest

from tests.simulation.workloads import SMALL, TINY, random_script
from tests.simulation.world import Build, Fault, RabbitBuild, RedisBuild, Script, World

SHALLOW = Build(deep=False)
"""Faults at the pipeline's own ports alone: enough for a process that dies."""

SINKS = pytest.mark.parametrize("sink", [Build, RedisBuild, RabbitBuild], ids=["kafka", "redis", "rabbitmq"])

POSTGRES = ("FakeLink.", "FakeCatalog.")
"""Calls below the Source's port: once for all sinks."""

REQUESTS = (
    "RedisPublisher.recover",
    "RedisPublisher.commit",
    "RabbitPublisher.recover",
    "RabbitPublisher.produce",
    "RabbitPublisher.commit",
)
"""Calls that end in a script, or in what is published."""

PAIRS, RABBIT_PAIRS, RANDOM_RUNS = 250, 30, 250
"""Of an everyday run, the pairs for each sink, fewer on RabbitMQ, where worlds have more steps; a soak takes all, with more random runs."""

HELD = 30
"""Requests to RabbitMQ that are held back, evenly spread over all that could be."""

LATER = 60
"""How many calls after a fault the next one may come: the whole passage that follows."""


def found(script: Script, plan: Mapping[int, Fault], build: Build = SHALLOW) -> tuple[World, str]:
    """Run with faults; return what the judge found, empty when all is well."""
    world = World(script, plan, build)
    try:
        verdict = world.run().verdict()
    except Exception as error:
        error.add_note(f"{plan} at {[world.gate.names[call] for call in plan if call < world.gate.calls]}")
        raise
    failures = [process.observer.failures for process in world.processes]
    return world, "" if verdict.clean else f"{plan}: {verdict.findings} after {failures}"


def calls(script: Script, build: Build) -> int:
    """Return how many calls a run without faults makes."""
    world, text = found(script, {}, build)
    assert not text
    return world.gate.calls


@SINKS
def test_without_faults_all_is_published_once(sink: type[Build]) -> None:
    world, text = found(SMALL, {}, sink(deep=False))
    assert not text
    assert world.verdict().document() | {"rows": 14, "events": 11, "dead_letters": 3} == world.verdict().document()
    assert world.processes[0].observer.failures == []


def test_the_log_has_the_traps_that_it_is_meant_to_have() -> None:
    world, _ = found(SMALL, {})
    log = [stretch for stretch in world.postgres.log if stretch.begin]
    assert any(before.end == after.start for before, after in itertools.pairwise(log)), "a commit begins where another ends"
    firsts = [stretch.messages[0][0] for stretch in log]
    assert firsts != sorted(firsts), "a transaction that began early commits late"


@SINKS
@pytest.mark.parametrize("fault", [Fault.KILL, Fault.FAIL, Fault.FAIL_AFTER, Fault.RESTART], ids=lambda fault: fault.name)
def test_one_fault_at_every_call(fault: Fault, sink: type[Build]) -> None:
    build, script = sink(deep=True), TINY if sink is RabbitBuild else SMALL
    names = found(script, {}, build)[0].gate.names
    for call in (call for call, name in enumerate(names) if sink is Build or not name.startswith(POSTGRES)):
        assert not (text := found(script, {call: fault}, build)[1]), text


def test_the_link_is_cut_in_every_frame_and_after_it() -> None:
    ends = found(SMALL, {})[0].postgres.frame_ends
    for cut in itertools.chain.from_iterable((end - 1, end) for end in ends):
        world = World(SMALL, {}, SHALLOW)
        world.postgres.cut_at = cut
        assert world.run().verdict().clean, cut


def held(script: Script, build: Build) -> Iterator[dict[int, Fault]]:
    """Every request to the sink held back, and let arrive at every later call, or at the very end."""
    names = found(script, {}, build)[0].gate.names
    for call in (i for i, name in enumerate(names) if name.startswith("FakePublisher") or name in REQUESTS):
        yield {call: Fault.HOLD}
        for later in range(call + 1, call + LATER):
            yield {call: Fault.HOLD, later: Fault.RELEASE}


@SINKS
def test_a_request_that_was_given_up_arrives_late(sink: type[Build]) -> None:
    """The zombie's half: a commit under way wins or is fenced, and the door settles which."""
    build = sink(deep=False)
    plans = list(held(TINY, build))
    for plan in plans[:: 1 + len(plans) // HELD] if sink is RabbitBuild else plans:
        assert not (text := found(TINY, plan, build)[1]), text


def pairs(first: Fault, second: Fault, build: Build = SHALLOW) -> Iterator[dict[int, Fault]]:
    for one in range(calls(TINY, build)):
        for two in range(one + 1, one + LATER):
            yield {one: first, two: second}


@SINKS
def test_pairs_of_faults(seed: int, sink: type[Build]) -> None:
    build, kinds = sink(deep=False), (Fault.KILL, Fault.FAIL_AFTER, Fault.HOLD, Fault.RESTART)
    everything = [plan for first, second in itertools.product(kinds, kinds) for plan in pairs(first, second, build)]
    for plan in random.Random(seed).sample(everything, RABBIT_PAIRS if sink is RabbitBuild else PAIRS):
        assert not (text := found(TINY, plan, build)[1]), f"seed {seed}: {text}"


@pytest.mark.soak
@pytest.mark.timeout(3_000)
@pytest.mark.parametrize("second", [Fault.KILL, Fault.FAIL, Fault.FAIL_AFTER, Fault.HOLD, Fault.RESTART], ids=lambda fault: fault.name)
@pytest.mark.parametrize("first", [Fault.KILL, Fault.FAIL, Fault.FAIL_AFTER, Fault.HOLD, Fault.RESTART], ids=lambda fault: fault.name)
@SINKS
def test_every_pair_of_faults(first: Fault, second: Fault, sink: type[Build]) -> None:
    build = sink(deep=False)
    for plan in pairs(first, second, build):
        assert not (text := found(TINY, plan, build)[1]), text


def run_at_random(seed: int) -> None:
    rng = random.Random(seed)
    script, often = random_script(rng), rng.choice((0.0, 0.01, 0.03, 0.1))
    plan = {call: rng.choice(list(Fault)) for call in range(400) if rng.random() < often}
    world = World(script, plan, rng.choice((Build, RedisBuild, RabbitBuild))(deep=rng.random() < 0.5))
    world.postgres.socket_bytes = rng.choice((100, 600, 100_000))
    if rng.random() < 0.3:
        world.postgres.cut_at = rng.randrange(5_000)
    verdict = world.run().verdict()
    assert verdict.clean, f"{verdict.findings} after {plan}"


def random_runs(seed: int, runs: int) -> None:
    for number in range(seed, seed + runs):
        try:
            run_at_random(number)
        except Exception as error:
            error.add_note(f"TEST_SIMULATION_SEED={number}")
            raise


def test_random_faults(seed: int) -> None:
    random_runs(seed, RANDOM_RUNS)


@pytest.mark.soak
@pytest.mark.timeout(3_000)
def test_many_random_faults(seed: int) -> None:
    random_runs(seed, 40 * RANDOM_RUNS)
