"""Servers that were put back to an earlier state or promoted from one: nothing of theirs is ever skipped unseen.

Exhaustive over where the copy was made, whether a checkpoint had saved the slot there, and how the new log grows: with rows of
the same sizes (so that even places and xids repeat), with other tables' log in front, or past the old end with nothing but that.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

import pytest

from cdc.errors import ContinuityError
from cdc.position import Lsn, Position
from cdc.postgres.stream import ReplicationStream
from tests.simulation.fake_postgres import CHANGE_RECORD_BYTES, COMMIT_RECORD_BYTES
from tests.simulation.workloads import good
from tests.simulation.world import Build, World

ROWS = 3
"""Transactions of the first life, one row each."""

TRANSACTION_BYTES = CHANGE_RECORD_BYTES + COMMIT_RECORD_BYTES


@dataclasses.dataclass(frozen=True)
class Life:
    """A copy made behind so many transactions, with or without the slot's last words, and what the second life writes."""

    copied: int
    checkpoint: bool
    rows: int
    front: int
    behind: int
    promoted: bool = False

    def lived(self, build: Build | None = None) -> tuple[World, set[str]]:
        """Live the first life and write what the second one writes; return the world, and the ids that its server has now."""
        world = World([], build=build)
        disk = world.postgres.copy()
        for number in range(ROWS):
            if number == self.copied:
                disk = world.postgres.copy()
            self._write(world, f"first{number}", number)
            world.run()
            if self.checkpoint:
                world.postgres.checkpoint()
        if self.copied == ROWS:
            disk = world.postgres.copy()
        world.now += 3600
        world.deadline += 7200
        world.postgres.put_back(disk)
        if self.promoted:
            world.postgres.history = ((1, disk.end), (2, Lsn(0)))
        world.postgres.write(self.front)
        for number in range(self.rows):
            self._write(world, f"second{number}", number)
        world.postgres.write(self.behind)
        return world, {f"first{number}" for number in range(self.copied)} | {f"second{number}" for number in range(self.rows)}

    @staticmethod
    def _write(world: World, name: str, number: int) -> None:
        world.now += 1
        world.transaction((name, "k", good(number)))


def lives(*, promoted: bool) -> Iterator[Life]:
    for copied, checkpoint, rows in itertools.product(range(ROWS + 1), (True, False), range(ROWS + 2)):
        for front, behind in ((0, 0), (TRANSACTION_BYTES // 2, 0), (TRANSACTION_BYTES, 0), (0, ROWS * TRANSACTION_BYTES), (0, 10)):
            yield Life(copied, checkpoint, rows, front, behind, promoted)


def lost(world: World, there: set[str]) -> set[str] | None:
    """Start a process; return the ids that nobody will ever see, or None when it refuses to stream."""
    try:
        world.run()
    except ContinuityError:
        return None
    return there - {seen.id.decode() for seen in world.visible()}


@pytest.mark.parametrize("promoted", [False, True], ids=["restored", "promoted"])
def test_a_server_from_another_time_is_refused_or_loses_nothing(promoted: bool) -> None:
    refused = went_on = 0
    for life in lives(promoted=promoted):
        world, there = life.lived()
        found = lost(world, there)
        if found is None:
            refused += 1
            assert life.copied < ROWS, f"a false alarm: {life}"
            assert lost(world, there) is None, f"the first refusal left nothing to see: {life}"
        else:
            went_on += 1
            assert not found, life
    assert refused > 60
    assert went_on > 25


class LooksAtNoWitness(ReplicationStream):
    """Skips whatever lies below the position."""

    def start(self, position: Position) -> None:
        super().start(dataclasses.replace(position, witness="unknown"))


def test_without_the_witness_rows_are_lost() -> None:
    build = Build(stream=LooksAtNoWitness, deep=False)
    assert sum(bool(lost(*life.lived(build))) for life in lives(promoted=False)) > 10


class ConfirmsBeforeItJudges(ReplicationStream):
    """Tells the slot of the position at once: the next start finds nothing to judge."""

    def start(self, position: Position) -> None:
        super().start(position)
        walsender, link = self._opened()
        walsender._confirmed = position.end_lsn
        link.write(walsender.status(self._clock(), self._wall_us()))


def test_a_slot_that_moves_before_the_judgement_hides_it_from_the_next_start() -> None:
    build, late = Build(stream=ConfirmsBeforeItJudges, deep=False), 0
    for life in lives(promoted=False):
        world, there = life.lived(build)
        late += lost(world, there) is None and bool(lost(world, there))
    assert late > 10
