"""A RabbitMQ that is restarted, or confirms late, at every call: nothing is lost, and what is delivered first is in order."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from tests.simulation.workloads import TINY
from tests.simulation.world import CONFIRM_S, DEAD, EVENTS, POSITIONS, Action, Build, RabbitBuild, World

SHALLOW = RabbitBuild(deep=False)


def restart(*keep: str) -> Action:
    return lambda world: world.rabbit.restart(keep)


def late(seconds: float) -> Action:
    def act(world: World) -> None:
        world.rabbit.late_next_s = seconds

    return act


def everywhere(action: Action, build: Build, calls: Collection[str] = ()) -> list[World]:
    """Let it happen before each call, or those of these names."""
    names = World(TINY, build=build).run().gate.names
    return [World(TINY, {call: action}, build).run() for call, name in enumerate(names) if not calls or name.rpartition(".")[2] in calls]


@pytest.mark.parametrize(
    "action",
    [restart(), restart(POSITIONS), restart(EVENTS, DEAD), late(CONFIRM_S / 2), late(CONFIRM_S + 2)],
    ids=["restarted", "restarted with the position", "restarted with the events", "a late confirm", "a confirm after the time-out"],
)
def test_a_broker_that_restarts_or_confirms_late_loses_nothing(action: Action) -> None:
    worlds = everywhere(action, SHALLOW)
    assert [world.verdict().findings for world in worlds if not world.verdict().clean] == []


def test_a_confirm_after_the_time_out_brings_events_again() -> None:
    """Duplicates are what is allowed; the simulation has some."""
    worlds = everywhere(late(CONFIRM_S + 2), SHALLOW, ("produce", "commit"))
    assert any(len(world.rabbit.queues[EVENTS]) > len({seen.id for seen in world.visible() if not seen.dead}) for world in worlds)
    failures = [failure for world in worlds for process in world.processes for failure in process.observer.failures]
    assert any("no answer within 5 s" in failure for failure in failures)
