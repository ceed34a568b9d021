"""When a Kafka transaction is committed, and with which position."""

from __future__ import annotations

import dataclasses

import pytest

from cdc.pipeline.batch import COMMITS_SHARE, IDLE_BYTES, IDLE_INTERVAL_S, MAX_AGE_S, MIN_AGE_S, SETTLE_MAX_S, SETTLE_SHARE, Batch
from cdc.position import Lsn, Witness
from cdc.postgres.transaction import TransactionEnd
from tests.unit.pipeline.samples import POSITION, position

NOW = 1_000.0


def end(lsn: int, rows: int = 1) -> TransactionEnd:
    return TransactionEnd(Lsn(lsn), Lsn(lsn - 1), lsn * 0x10, lsn + 7, rows)


def made(*ends: TransactionEnd) -> Batch:
    batch = Batch(POSITION, NOW)
    for each in ends:
        batch.end(each)
    return batch


def test_nothing_is_due_when_nothing_came() -> None:
    assert not made().due(NOW + 100, quiet=True, urgent=True)
    assert made().next() is POSITION


def test_whole_transactions_are_due_as_soon_as_the_log_is_quiet() -> None:
    batch = made(end(0x110))
    batch.open(NOW)
    assert batch.whole
    assert batch.due(NOW, quiet=True)
    assert not batch.due(NOW, quiet=False)


def test_rows_that_made_no_record_are_due_at_once() -> None:
    """Nothing is open in Kafka that could grow."""
    assert made(end(0x110)).due(NOW, quiet=False)


@pytest.mark.parametrize(
    ("commit_s", "age_s"), [(0.0001, MIN_AGE_S), (0.005, 0.005 / COMMITS_SHARE), (60.0, MAX_AGE_S)], ids=["fast", "usual", "slow"]
)
def test_under_load_a_batch_grows_with_what_commits_take(commit_s: float, age_s: float) -> None:
    batch = Batch(POSITION, NOW)
    batch.committed(POSITION, NOW - commit_s, NOW)
    batch.end(end(0x110))
    batch.open(NOW)
    assert not batch.due(NOW + age_s * 0.99, quiet=False)
    assert batch.due(NOW + age_s * 1.01, quiet=False)


def test_an_idle_advance_is_due_once_in_an_interval() -> None:
    batch = made(end(0x110, rows=0))
    assert not batch.whole
    assert not batch.due(NOW + IDLE_INTERVAL_S - 0.01, quiet=True)
    assert batch.due(NOW + IDLE_INTERVAL_S, quiet=False)


def test_an_idle_advance_is_due_at_once_when_the_server_asks_or_a_segment_has_passed() -> None:
    assert made(end(0x110, rows=0)).due(NOW, quiet=True, urgent=True)
    far = POSITION.end_lsn + IDLE_BYTES
    assert not made(end(far - 1, rows=0)).due(NOW, quiet=True)
    assert made(end(far, rows=0)).due(NOW, quiet=True)


@pytest.mark.parametrize("lsn", [0x0FF, 0x100])
def test_what_lies_below_the_position_changes_nothing(lsn: int) -> None:
    """After a reconnect keepalives start below it."""
    batch = made(end(lsn, rows=3))
    assert not batch.due(NOW + 100, quiet=True)
    assert batch.next() is POSITION


def test_an_end_below_the_last_one_changes_nothing() -> None:
    batch = made(end(0x120), end(0x110, rows=0))
    assert batch.next().end_lsn == 0x120


def test_the_position_is_that_of_the_last_end_and_the_witness_that_of_the_last_rows() -> None:
    following = made(end(0x110), end(0x120), end(0x180, rows=0)).next()
    assert following == position(end_lsn=Lsn(0x180), commit_time_us=0x1800, witness=Witness(Lsn(0x120), 0x127, 0x1200))
    assert isinstance(following.end_lsn, Lsn)


def test_an_idle_advance_keeps_the_witness() -> None:
    witness = Witness(Lsn(0x90), 5, 5)
    batch = Batch(position(witness=witness), NOW)
    batch.end(end(0x110, rows=0))
    assert batch.next().witness == witness


def test_what_is_proved_of_the_publication_is_in_the_next_position() -> None:
    batch = Batch(POSITION, 0.0)
    seen = dataclasses.replace(POSITION.publication_fingerprint, proved_lsn=Lsn(0x150))
    batch.proved(seen)
    assert batch.next() is POSITION
    batch.end(end(0x110))
    made = batch.next()
    assert made.publication_fingerprint is seen
    batch.committed(made, 0.0, 0.0)
    batch.end(end(0x120))
    assert batch.next().publication_fingerprint is seen


def test_the_next_batch_starts_after_the_committed_position() -> None:
    batch = made(end(0x110))
    batch.open(NOW)
    batch.open(NOW + 5)
    opened = [batch.opened_at]
    batch.add(3, 1)
    batch.add(1, 0)
    assert (batch.events, batch.dead_letters) == (4, 1)
    assert repr(batch) == "<Batch events=4 dead_letters=1 from=0/100>"
    committed = batch.next()
    batch.committed(committed, NOW, NOW + 1)
    assert [*opened, batch.opened_at] == [NOW, None]
    assert (batch.position, batch.events, batch.dead_letters, batch.whole) == (committed, 0, 0, False)
    assert not batch.due(NOW + 100, quiet=True)


def test_the_first_rows_after_a_commit_wait_until_it_has_settled() -> None:
    batch = made(end(0x110))
    batch.committed(batch.next(), NOW, NOW + 0.010)
    after = NOW + 0.010
    assert batch.settles_in(after) == pytest.approx(SETTLE_SHARE * 0.010)
    assert batch.settles_in(after + 0.010) == 0
    batch.open(after)
    assert batch.settles_in(after) == 0


def test_a_commit_that_met_one_that_was_not_settled_counts_for_nothing() -> None:
    batch = made(end(0x110))
    for number, took in enumerate((0.010, 0.030, 0.030)):
        batch.end(end(0x120 + number))
        batch.committed(batch.next(), NOW, NOW + took)
    assert batch.settles_in(NOW + 0.030) == pytest.approx(SETTLE_SHARE * 0.0121)
    batch.committed(batch.next(), NOW, NOW + 60)
    assert batch.settles_in(NOW + 60) <= SETTLE_MAX_S
