"""A process that sleeps while another one takes over: whatever it had in hand is committed before, or never."""

from __future__ import annotations

import random

import pytest

from cdc.errors import IdentityTaken
from tests.simulation.workloads import TINY, random_script
from tests.simulation.world import Actor, Build, Fault, RabbitBuild, RedisBuild, World

MILESTONES = ("ReplicationStream.open", "Publisher.recover", "Publisher.produce", "Publisher.commit", "")
"""How far the successor comes before the sleeper wakes: to the return from this call, or to its end."""

SHALLOW = Build(deep=False)

RANDOM_RUNS = 80


def alternate(*actors: Actor) -> None:
    """Let all go on in turn until all have ended."""
    going = list(actors)
    while going:
        going = [actor for actor in going if actor.step()]


def lives(build: Build) -> int:
    """Return how many calls a process makes without faults."""
    return World(TINY, build=build).run().gate.calls


def slept(call: int, milestone: str, build: Build, *, silently: bool) -> World:
    """Run two processes: one sleeps at a call and loses its slot, the other goes on to a milestone, then both.

    `silently`: the sleeper's network tells it nothing when it wakes, so it goes on with what it has in hand.
    """
    world = World(TINY, build=build)
    sleeper = Actor(world)
    sleeper.step(call)
    sleeper.lose_slot(silently=silently)
    successor = Actor(world)
    if milestone:
        successor.until(milestone)
    else:
        while successor.step():
            pass
    alternate(sleeper, successor)
    return world


@pytest.mark.parametrize(
    ("sink", "silently"),
    [(Build, False), (Build, True), (RedisBuild, True), (RabbitBuild, True)],
    ids=["cut", "silent", "silent on redis", "silent on rabbitmq"],
)
@pytest.mark.parametrize("milestone", MILESTONES, ids=lambda name: name.rpartition(".")[2] or "end")
def test_a_sleeper_wakes_beside_its_successor(milestone: str, sink: type[Build], *, silently: bool) -> None:
    build = sink(deep=False)
    first, step = (MILESTONES.index(milestone) % 2, 2) if sink is RabbitBuild else (0, 1)
    for call in range(first, lives(build), step):
        world = slept(call, milestone, build, silently=silently)
        verdict = world.verdict()
        assert verdict.clean, f"asleep at call {call}: {verdict.findings}"


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (SHALLOW, {"Kafka, produce: PRODUCER_FENCED", "Kafka, commit: PRODUCER_FENCED"}),
        (
            RedisBuild(deep=False),
            {"another instance owns the position '_cdc.shop.position' in Redis, or Redis lost the end of what it had"},
        ),
    ],
    ids=["kafka", "redis"],
)
def test_a_sleeper_that_had_something_in_hand_is_fenced(build: Build, said: set[str]) -> None:
    worlds = [slept(call, "Publisher.recover", build, silently=True) for call in range(lives(build))]
    assert said <= {failure for world in worlds for failure in world.processes[0].observer.failures}


def test_a_standby_waits_for_the_slot_and_takes_over() -> None:
    world = World(TINY, build=SHALLOW)
    first = Actor(world)
    assert first.until("Publisher.recover")
    second = Actor(world)
    for _ in range(20):
        first.step()
        second.step()
    assert any("is active for backend pid 1001" in state for state in second.process.observer.states)
    assert second.process.observer.failures == []
    first.kill()
    alternate(second)
    assert world.verdict().clean


@pytest.mark.soak
@pytest.mark.timeout(3_000)
@pytest.mark.parametrize("milestone", MILESTONES, ids=lambda name: name.rpartition(".")[2] or "end")
def test_a_sleeper_at_every_call_of_link_and_catalog(milestone: str) -> None:
    build = Build(deep=True)
    for call in range(lives(build)):
        verdict = slept(call, milestone, build, silently=call % 2 == 0).verdict()
        assert verdict.clean, f"asleep at call {call}: {verdict.findings}"


def run_at_random(seed: int) -> None:
    """Two to three processes in any order, with naps, lost slots, kills and faults."""
    rng = random.Random(seed)
    plan = {call: rng.choice([Fault.FAIL_AFTER, Fault.HOLD, Fault.RELEASE]) for call in range(300) if rng.random() < 0.02}
    world = World(random_script(rng), plan, rng.choice((Build, RedisBuild, RabbitBuild))(deep=rng.random() < 0.5))
    actors = [Actor(world) for _ in range(rng.choice((2, 2, 3)))]
    for _ in range(rng.randrange(10, 60)):
        actor = rng.choice(actors)
        actor.step(rng.choice((1, 1, 2, 5, 20)))
        if rng.random() < 0.1:
            actor.lose_slot(silently=rng.random() < 0.5)
        if rng.random() < 0.05 and len(actors) > 1:
            actor.kill()
            actors.remove(actor)
    alternate(*actors)
    while not world.settled():
        alternate(Actor(world))
    verdict = world.verdict()
    assert verdict.clean, verdict.findings


def random_runs(seed: int, runs: int) -> None:
    for number in range(seed, seed + runs):
        try:
            run_at_random(number)
        except IdentityTaken:
            continue  # three naps within a minute look like a thief; restarting is what the operator would do
        except Exception as error:
            error.add_note(f"TEST_SIMULATION_SEED={number}")
            raise


def test_random_order(seed: int) -> None:
    random_runs(seed, RANDOM_RUNS)


@pytest.mark.soak
@pytest.mark.timeout(3_000)
def test_many_random_orders(seed: int) -> None:
    random_runs(seed, 50 * RANDOM_RUNS)
