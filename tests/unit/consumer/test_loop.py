"""What a consumer decides: nothing is skipped, nothing is settled before its time, whatever comes in between."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.consumer.lane import Failure, Handle, Handled, Job, Kind, Load, Loaded, Move, Moved, Note, Noted, Standing
from cdc.consumer.loop import MOVES_MAX, Limits, Loop, Rules
from cdc.consumer.retry import NEVER, Retry
from cdc.consumer.shares import Shares
from cdc.resilience.breaker import Breaker, State
from tests.unit.consumer.records import half, loop, seen

OURS = ("t", 0)


def ready(made: Loop, records: int = 3, *places: tuple[str, int]) -> Loop:
    """Assign partitions, load them, and receive records."""
    made.assigned(places or [OURS])
    for job in made.jobs(0, 0):
        made.finished(job, Loaded(), 0)
    for topic, partition in places or [OURS]:
        made.received(seen(offset, topic=topic, partition=partition) for offset in range(records))
    return made


def handle(made: Loop, now: float = 0) -> Handle:
    """Start the one job that is due."""
    [job] = [job for job in made.jobs(now, round(now * 1000)) if not isinstance(job, Note)]
    assert isinstance(job, Handle)
    return job


def offsets(job: Job) -> list[int]:
    assert isinstance(job, Handle)
    return [record.offset for record in job.records]


def failure(rule: Retry = NEVER, kind: Kind = Kind.HANDLER, breaker: str | None = None) -> Failure:
    return Failure(kind, "ValueError", handler="h", rule=rule, breaker=breaker)


def test_nothing_is_handled_before_the_partition_is_known() -> None:
    made = loop()
    made.assigned([OURS])
    made.received([seen(0)])
    [job] = made.jobs(0, 0)
    assert isinstance(job, Load)
    made.finished(job, Loaded(error="OperationalError"), 0)
    assert made.jobs(0, 0) == []
    assert isinstance(made.jobs(100, 0)[0], Load)


def test_one_job_at_a_time_and_offsets_behind_it() -> None:
    made = ready(loop(batch=2))
    job = handle(made)
    assert offsets(job) == [0, 1]
    assert made.jobs(0, 0) == []
    assert made.offsets() == {}
    made.finished(job, Handled(2), 1)
    assert made.offsets() == {OURS: 2}
    made.committed({OURS: 2})
    assert made.offsets() == {}
    assert offsets(handle(made)) == [2]


def test_the_end_behind_markers_is_settled_when_all_before_it_is() -> None:
    made = ready(loop(), 1)
    made.at_end(OURS, 5)
    job = handle(made)
    assert made.offsets() == {}
    made.finished(job, Handled(1), 0)
    assert made.offsets() == {OURS: 5}


def test_a_failure_holds_its_partition_only() -> None:
    made = ready(loop(workers=2), 2, ("t", 0), ("t", 1))
    first, second = made.jobs(0, 0)
    made.finished(first, Handled(0, failure(Retry.fixed(10, 3))), 0)
    made.finished(second, Handled(1), 0)
    again = [job for job in made.jobs(1, 0) if isinstance(job, Handle)]
    assert [job.lane.partition for job in again] == [1]
    assert made.offsets() == {("t", 1): 1}
    made.finished(again[0], Handled(1), 2)
    retried = handle(made, 10)
    assert (offsets(retried), retried.attempt) == ([0], 2)


def test_what_failed_is_tried_alone_and_its_attempts_are_noted() -> None:
    made = ready(loop(batch=3))
    made.finished(handle(made), Handled(1, failure(Retry.fixed(0, 3))), 0)
    note, again = made.jobs(0, 0)
    assert isinstance(note, Note)
    assert (note.number, note.attempts) == (1, 1)
    made.finished(note, Noted(), 0)
    assert offsets(again) == [1]
    made.finished(again, Handled(1), 0)
    forget, rest = made.jobs(0, 0)
    assert isinstance(forget, Note)
    assert (forget.number, forget.attempts) == (1, 0)
    assert offsets(rest) == [2]


def test_where_offsets_do_not_last_attempts_are_kept_by_the_events_id() -> None:
    known: dict[int, int] = {}
    for offset in (7, 100):  # the same event over another connection
        made = loop(Rules(half, lasting=False))
        made.assigned([OURS])
        [load] = made.jobs(0, 0)
        made.finished(load, Loaded(dict(known)), 0)
        made.received([seen(offset, ce_id="e", ce_source="/shop")])
        job = handle(made)
        assert job.attempt == 1 + len(known)
        made.finished(job, Handled(0, failure(Retry.fixed(9, 3))), 0)
        [note] = made.jobs(0, 0)
        assert isinstance(note, Note)
        assert note.number < 0
        known[note.number] = note.attempts
    assert list(known.values()) == [2]


def test_attempts_go_on_after_a_restart() -> None:
    made = loop()
    made.assigned([OURS])
    [job] = made.jobs(0, 0)
    made.finished(job, Loaded({0: 4}), 0)
    made.received([seen(0)])
    job = handle(made)
    assert job.attempt == 5
    made.finished(job, Handled(0, failure(Retry())), 0)
    assert isinstance(made.jobs(0, 0)[0], Move)


def test_the_database_being_away_is_not_counted() -> None:
    made = ready(loop())
    for round_ in range(50):
        now = round_ * 100.0
        job = handle(made, now)
        assert job.attempt == 1
        made.finished(job, Handled(0, failure(kind=Kind.DATABASE)), now)
        assert made.jobs(now, 0) == []


@pytest.mark.parametrize("together", [True, False])
def test_parking_takes_the_offset_along_and_no_commit_runs_beside_it(together: bool) -> None:
    made = ready(loop())
    made.finished(handle(made), Handled(1), 0)
    made.committing = True
    made.finished(handle(made), Handled(0, failure()), 0)
    assert made.jobs(0, 0) == [], "a commit is under way"
    made.committing = False
    [move] = made.jobs(0, 0)
    assert isinstance(move, Move)
    assert (move.record.offset, move.delay_s) == (1, None)
    assert made.offsets() == {}, "an older offset behind the move would bring the record back"
    made.finished(move, Moved(acknowledged=together), 0)
    assert made.offsets() == ({} if together else {OURS: 2}), "the move has committed it, or the next commit does"
    assert made.lanes[OURS].settled == 2
    assert offsets(handle(made)) == [2]


@pytest.mark.parametrize("skips", [False, True])
def test_field_case_124_what_cannot_be_parked_stops_its_partition(skips: bool) -> None:
    made = ready(loop(Rules(half, skip_unparkable=skips)))
    made.finished(handle(made), Handled(0, failure()), 0)
    for tried in range(MOVES_MAX):
        now = tried * 100.0
        [move] = made.jobs(now, 0)
        assert isinstance(move, Move)
        made.finished(move, Moved("KafkaRefused: no topic"), now)
    lane = made.lanes[OURS]
    if skips:
        assert made.offsets() == {OURS: 1}
        return
    assert lane.standing is Standing.STOPPED
    assert "no topic" in lane.why
    assert made.offsets() == {}
    assert made.jobs(10_000, 0) == []
    assert made.pauses() == ([OURS], [])


def test_a_late_result_changes_nothing() -> None:
    made = ready(loop(workers=1))
    job = handle(made)
    made.revoked([OURS])
    ready(made)
    assert made.jobs(0, 0) == [], "its worker is still busy"
    made.finished(job, Handled(1), 0)
    assert made.offsets() == {}
    assert offsets(handle(made)) == [0]


def test_partitions_that_are_given_back_start_nothing_more() -> None:
    made = ready(loop(workers=2), 2, ("t", 0), ("t", 1))
    first, _ = made.jobs(0, 0)
    assert isinstance(first, Handle)
    assert made.releasing([("t", 0)]) == [first.lane]
    made.finished(first, Handled(1), 0)
    assert made.jobs(0, 0) == []
    assert made.offsets() == {("t", 0): 1}
    assert not made.busy([("t", 0)])


def test_a_full_partition_is_paused_and_resumed() -> None:
    made = ready(loop(batch=10, in_flight=100), 100)
    assert made.pauses() == ([OURS], [])
    assert made.pauses() == ([], [])
    for _ in range(5):
        made.finished(handle(made), Handled(10), 0)
    assert made.pauses() == ([], [OURS])


def test_retry_topics_keep_the_partition_going() -> None:
    made = ready(loop(Rules(half, later=True)))
    made.finished(handle(made), Handled(0, failure(Retry.listed(7, 8))), 0)
    [move] = made.jobs(0, 0)
    assert isinstance(move, Move)
    assert (move.delay_s, move.attempts) == (7, 1)
    made.finished(move, Moved(), 0)
    assert offsets(handle(made)) == [1]


def test_a_delayed_record_waits_until_it_is_due() -> None:
    rules = Rules(half, due_ms=lambda record: record.offset * 1000 + 5000, attempts=lambda _: 2)
    made = ready(loop(rules))
    assert made.jobs(0, 0) == []
    assert made.next_at() == 5
    assert handle(made, 5).attempt == 3


def test_an_open_breaker_holds_its_records_and_lets_a_probe_through() -> None:
    rules = Rules(half, depends=lambda record: "mail" if record.partition < 2 else None)
    made = Loop(Limits(workers=4), rules, {"mail": Breaker(2, 100)})
    ready(made, 3, ("t", 0), ("t", 1), ("t", 2))
    jobs = [job for job in made.jobs(0, 0) if isinstance(job, Handle)]
    for job in jobs:
        down = failure(Retry.fixed(1, 5), breaker="mail") if job.lane.partition < 2 else None
        made.finished(job, Handled(0 if down else 1, down), 0)
    assert [job.lane.partition for job in made.jobs(50, 0) if isinstance(job, Handle)] == [2]
    probe = [job for job in made.jobs(100, 0) if isinstance(job, Handle)]
    assert [len(job.records) for job in probe] == [1]
    made.finished(probe[0], Handled(1), 100)
    assert len([job for job in made.jobs(100, 0) if isinstance(job, Handle)]) == 2, "both go on at once"


def test_a_closed_breaker_lets_batches_through_and_counts_what_failed_in_a_row() -> None:
    rules = Rules(half, depends=lambda record: {0: None, 3: "sms"}.get(record.offset, "mail"), alone=lambda record: record.offset == 5)
    mail = Breaker(2, 10)
    made = ready(Loop(Limits(batch=9), rules, {"mail": mail, "sms": Breaker(1, 10)}), 6)
    down = failure(Retry.fixed(0, 9), breaker="mail")
    job = handle(made)
    assert offsets(job) == [0, 1, 2]  # the next one depends on something else
    made.finished(job, Handled(1, down), 0)
    job = handle(made)
    assert offsets(job) == [1]
    made.finished(job, Handled(1), 0)
    job = handle(made)
    assert offsets(job) == [2]
    made.finished(job, Handled(0, down), 0)  # not the second one in a row
    made.finished(handle(made), Handled(0, down), 0)
    assert made.breakers["mail"].state(0) is State.OPEN
    job = handle(made, 10)
    assert offsets(job) == [2]  # a probe is one record
    made.finished(job, Handled(1), 10)
    job = handle(made, 10)
    assert offsets(job) == [3]
    made.finished(job, Handled(1), 10)
    job = handle(made, 10)
    assert offsets(job) == [4]  # the last one goes alone


def test_what_an_outage_fails_is_not_counted_while_the_breaker_is_open() -> None:
    made = Loop(Limits(), Rules(half, depends=lambda _: "mail"), {"mail": Breaker(1, 10)})
    ready(made, 1)
    for round_ in range(20):
        now = round_ * 10.0
        job = handle(made, now)
        assert job.attempt == 1
        made.finished(job, Handled(0, failure(Retry.fixed(1, 2), breaker="mail")), now)


def test_a_rate_limits_records() -> None:
    made = ready(Loop(Limits(batch=100, rate=10.0), Rules(half)), 100)
    done, now = 0, 0.0
    while now < 5:
        for job in made.jobs(now, 0):
            assert isinstance(job, Handle)
            made.finished(job, Handled(len(job.records)), now)
            done += len(job.records)
        now += 0.05
    assert 45 <= done <= 52


def test_low_gets_its_share_under_full_load_of_the_others() -> None:
    names = ("critical", "high", "default", "low")
    made = Loop(Limits(workers=2, batch=1), Rules(half, priority=lambda topic: topic), shares=Shares())
    ready(made, 0, *((name, number) for name in names for number in range(3)))
    counts, fed = dict.fromkeys(names, 0), itertools.count()
    chance, now, under_way = random.Random(1), 0.0, list[tuple[float, Handle]]()
    while now < 12:
        for lane in [lane for lane in made.lanes.values() if not lane.pending]:
            made.received([seen(next(fed), topic=lane.topic, partition=lane.partition)])
        under_way += [(now + chance.uniform(0.005, 0.015), job) for job in made.jobs(now, 0) if isinstance(job, Handle)]
        now, job = under_way.pop(under_way.index(min(under_way, key=lambda each: each[0])))
        made.finished(job, Handled(1), now)
        counts[job.lane.topic] += 1
    total = sum(counts.values())
    for name, weight in (("critical", 8), ("high", 4), ("default", 2), ("low", 1)):
        assert counts[name] / total == pytest.approx(weight / 15, rel=0.15), counts


Place = tuple[str, int]


class Chaos:
    """A loop between a broker that gives records again from the committed offset on, and workers that fail now and then."""

    END = 12

    def __init__(self, chance: random.Random, workers: int, batch: int) -> None:
        self.chance = chance
        self.places = [("t", number) for number in range(3)]
        self.committed = dict.fromkeys(self.places, 0)
        self.applied: dict[Place, list[int]] = {place: [] for place in self.places}
        self.parked: dict[Place, set[int]] = {place: set() for place in self.places}
        self.made = Loop(Limits(workers, batch), Rules(chance.random))
        self.under_way: list[Job] = []
        self.now = 0.0
        self.assign(self.places)

    def assign(self, places: list[Place]) -> None:
        self.made.assigned(places)
        for topic, number in places:
            first = self.committed[topic, number]
            self.made.received(seen(offset, topic=topic, partition=number) for offset in range(first, self.END))

    def turn(self) -> None:
        self.now += self.chance.choice([0.0, 1.0, 40.0])
        self.under_way += self.made.jobs(self.now, round(self.now * 1000))
        if self.under_way:
            self.end(self.under_way.pop(self.chance.randrange(len(self.under_way))))
        if self.chance.random() < 0.3:
            self.commit()
        stopped = [place for place, lane in self.made.lanes.items() if lane.standing is Standing.STOPPED]
        if stopped or self.chance.random() < 0.05:
            gone = stopped or self.chance.sample(self.places, self.chance.randint(1, 3))
            self.made.revoked(gone)
            self.assign(gone)

    def commit(self) -> None:
        offsets = self.made.offsets()
        for place, offset in offsets.items():
            assert offset >= self.committed[place], "an offset went back"
            done = set(self.applied[place]) | self.parked[place]
            assert set(range(self.committed[place], offset)) <= done, "skipped"
            self.committed[place] = offset
        self.made.committed(offsets)

    def end(self, job: Job) -> None:
        if isinstance(job, Handle):
            self.made.finished(job, self.handled(job), self.now)
        elif isinstance(job, Move):
            self.made.finished(job, self.moved(job), self.now)
        else:
            self.made.finished(job, Loaded() if isinstance(job, Load) else Noted(), self.now)

    def handled(self, job: Handle) -> Handled:
        good = self.chance.randint(0, len(job.records))
        applied = self.applied[job.lane.place]
        applied += [record.offset for record in job.records[:good] if record.offset not in applied]  # the inbox
        kind = self.chance.choice(list(Kind))
        return Handled(good, None if good == len(job.records) else failure(Retry.fixed(1, 2), kind))

    def moved(self, job: Move) -> Moved:
        """Move, unless the group's generation forbids it: who has lost the partition cannot."""
        place = job.lane.place
        if job.lane.lost or self.chance.random() < 0.3:
            return Moved("down")
        assert job.record.offset not in self.parked[place], "parked twice"
        assert self.committed[place] <= job.record.offset
        self.parked[place].add(job.record.offset)
        self.committed[place] = job.record.offset + 1
        return Moved()


@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 4))
def test_whatever_comes_all_is_settled_once_and_in_order(seed: int, workers: int, batch: int) -> None:
    chaos = Chaos(random.Random(seed), workers, batch)
    for _ in range(4000):
        chaos.turn()
        if all(committed == chaos.END for committed in chaos.committed.values()):
            break
    for place in chaos.places:
        assert set(chaos.applied[place]) | chaos.parked[place] == set(range(chaos.END))
        # A member that froze before its transaction may still apply a record that the next owner has parked: that one has no order.
        kept = [offset for offset in chaos.applied[place] if offset not in chaos.parked[place]]
        assert kept == sorted(kept)
