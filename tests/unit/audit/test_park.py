"""When a run that parks chosen rows is over, and what it then says."""

from __future__ import annotations

from dataclasses import replace

from cdc.audit.park import ParkedRow, Parking
from cdc.pipeline.supervisor import State
from cdc.position import Lsn
from tests.unit.pipeline.samples import position, server

PLACE = f"0001{0x50:016x}00000000"
OTHER = f"0001{0x60:016x}00000002"


class Run:
    """A Parking with a clock of ours, and whether it has asked to end."""

    def __init__(self, *names: str, timeout_s: float = 30.0) -> None:
        self.now = 0.0
        self.ended = False
        self.watch = Parking(frozenset(names), self._end, timeout_s, lambda: self.now)

    def _end(self) -> None:
        self.ended = True

    def committed(self, lsn: int, rows: int = 1) -> None:
        self.watch.committed(replace(position(), end_lsn=Lsn(lsn)), rows, 0, 0.1)

    def at(self, lsn: int, flush_lsn: int = 0x100) -> None:
        self.watch.server(replace(server(), flush_lsn=Lsn(flush_lsn)), replace(position(), end_lsn=Lsn(lsn)))


def test_it_ends_when_the_position_has_passed_every_row() -> None:
    run = Run("e-1", OTHER)
    run.at(0x40)
    run.watch.dead_letter("schema", "e-1", PLACE, "$.n: ..", "")
    assert (run.watch.parked, run.watch.missing, run.ended) == ([], [OTHER, "e-1"], False)
    run.committed(0x58)
    assert (run.watch.parked, run.watch.missing, run.ended) == ([ParkedRow("e-1", PLACE, "schema", "$.n: ..")], [OTHER], False)
    run.watch.dead_letter("mapping", "", OTHER, "no id", "")
    run.committed(0x68)
    assert (len(run.watch.parked), run.watch.missing, run.ended) == (2, [], True)
    assert run.watch.fault is None


def test_a_commit_whose_answer_was_lost_counts_when_the_next_passage_begins_behind_it() -> None:
    run = Run("e-1")
    run.at(0x40)
    run.watch.dead_letter("schema", "e-1", PLACE, "..", "")
    run.watch.failed(RuntimeError("no answer"))
    run.at(0x40)
    assert not run.ended
    run.at(0x58)
    assert (run.watch.missing, run.ended) == ([], True)


def test_it_ends_where_the_log_ended_when_it_began() -> None:
    run = Run("e-1")
    run.at(0x40, flush_lsn=0x80)
    run.at(0x48, flush_lsn=0x200)
    run.committed(0x78)
    assert not run.ended
    run.committed(0x80)
    assert (run.ended, run.watch.missing, run.watch.fault) == (True, ["e-1"], None)


def test_it_gives_up_when_nothing_moves_and_says_what_was_in_the_way() -> None:
    run = Run("e-1", timeout_s=10)
    run.watch.state(State.STANDBY, "replication slot 's' is active for backend pid 7")
    run.now = 9.0
    run.watch.heartbeat()
    assert not run.ended
    run.watch.state(State.STREAMING, "")
    run.now = 18.0
    run.committed(0x10)
    run.now = 27.0
    run.watch.heartbeat()
    assert not run.ended
    run.watch.failed(RuntimeError("the broker is away"))
    run.committed(0x20, rows=0)
    run.now = 28.0
    run.watch.heartbeat()
    run.watch.heartbeat()
    assert (run.ended, run.watch.fault) == (True, "the broker is away")
    silent = Run("e-1", timeout_s=0)
    silent.watch.state(State.OPENING, "")
    assert silent.watch.fault == "the log brought nothing"


def test_its_repr_says_how_far_it_is() -> None:
    assert repr(Run("a", "b").watch) == "<Parking 0 of 2>"
