"""A Redis that goes back in time, at every call: what it lost comes again, or the pipeline stops and publishes nothing over the gap."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cdc.errors import ContinuityError
from tests.simulation.fake_redis import FakeRedis
from tests.simulation.workloads import good, small
from tests.simulation.world import Build, RedisBuild, Script, World

APART: Script = [(0.0, small), *((at, lambda world, at=at: world.transaction((f"f{at}", "k1", good(5)))) for at in (1.0, 1.1))]
"""Some commits come while the one before is not confirmed yet, and some long after."""

SHALLOW = RedisBuild(deep=False)

Loss = Callable[[World], None]


def places(world: World) -> list[bytes]:
    """The places of all that is visible, in order."""
    return sorted(seen.place or b"" for seen in world.visible())


def live(world: World) -> World:
    """Run to the end, and once more for another row: what happens behind a process's last look is for the next one to see."""
    world.run()
    world.transaction(("z", "k1", good(6)))
    return world.run()


def calls(build: Build) -> list[int]:
    """The calls of Redis and of what is confirmed: to lose something before any other call is to lose it before the next one of these."""
    names = World(APART, build=build).run().gate.names
    return [call for call, name in enumerate(names) if "Redis" in name or name.endswith(".confirm")]


def outcomes(build: Build, loss: Loss) -> tuple[int, int]:
    """Let it happen at each call, and nothing be lost unseen; return how often all came again, and how often the gap was seen."""
    whole, went_on, refused = places(live(World(APART, build=build))), 0, 0
    for call in calls(build):
        world = World(APART, {call: loss}, build)
        try:
            verdict = live(world).verdict()
        except ContinuityError:
            refused += 1
            assert world.confirmed > world.position.end_lsn, f"a false alarm at {call}"
            found = places(world)
            assert found == whole[: len(found)], f"published over the gap at {call}"
            with pytest.raises(ContinuityError):
                world.run()
        else:
            went_on += 1
            assert verdict.clean, f"{verdict.findings} at {call}"
    return went_on, refused


def lose(writes: int, *, silently: bool = False) -> Loss:
    return lambda world: world.redis.lose(writes, silently=silently)


def promote(world: World) -> None:
    world.redis.promote()


@pytest.mark.parametrize(
    ("writes", "silently"), [(1, False), (3, False), (1, True)], ids=["restarted", "restarted without much", "silently"]
)
def test_a_tail_that_is_lost_comes_again_or_is_noticed(writes: int, *, silently: bool) -> None:
    went_on, refused = outcomes(SHALLOW, lose(writes, silently=silently))
    assert went_on
    assert refused


def test_a_promoted_replica_has_all_that_was_confirmed() -> None:
    """With redis.wait_replicas, whatever else the replica lacks."""
    went_on, refused = outcomes(RedisBuild(deep=True, wait_replicas=1), promote)
    assert went_on
    assert not refused


def test_without_waiting_for_replicas_a_promotion_may_lose_what_was_confirmed() -> None:
    assert outcomes(SHALLOW, promote)[1]


class CountsNothing(FakeRedis):
    """Looks at the owner alone."""

    def refuses(self, key: bytes, owner: bytes, commits: bytes) -> bool:
        del commits
        here = self._hmget(key, b"commits")
        return super().refuses(key, owner, here[0] or b"0")


def test_without_the_number_of_commits_a_lost_tail_is_published_over() -> None:
    with pytest.raises(AssertionError, match="missing"):
        outcomes(RedisBuild(server=CountsNothing, deep=False), lose(1, silently=True))
