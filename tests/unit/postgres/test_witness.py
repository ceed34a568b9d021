"""What is skipped must be what was published: judged before anything is confirmed or handed out."""

from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.errors import ContinuityError
from cdc.position import Lsn, Witness
from cdc.postgres.pgoutput import Begin, Column, Commit, Insert, PgoutputMessage, Relation
from cdc.postgres.transaction import TransactionEnd, Transactions
from cdc.postgres.walsender import Walsender
from cdc.postgres.witness import SkippedPart
from tests.simulation.pgoutput_bytes import encode, keepalive, status_of, xlog_data

POSITION = Lsn(100)
WITNESS = Witness(Lsn(80), 7, 1_000_000)
OUTBOX = Relation(1, "public", "outbox", "d", (Column("id", 25, -1, True),))


def part(witness: Witness | Literal["none", "unknown"] = WITNESS, slot: int = 50) -> SkippedPart:
    return SkippedPart(witness, Lsn(slot), POSITION)


AGREES: dict[str, tuple[SkippedPart, list[Witness]]] = {
    "it reappears": (part(), [WITNESS]),
    "it reappears after others": (part(), [Witness(Lsn(60), 5, 1), Witness(Lsn(70), 6, 2), WITNESS]),
    "the slot is at it": (part(slot=80), []),
    "the slot is behind it": (part(slot=90), []),
    "the slot is at the position": (part(slot=100), []),
    "there was none": (part("none"), []),
    "it is not known": (part("unknown"), [Witness(Lsn(90), 9, 9)]),
}

AT_ONCE = ("the slot is at the position", "it is not known")
"""Nothing is skipped, or nothing is compared: there is no need to wait."""

DIFFERS: dict[str, tuple[SkippedPart, list[Witness], str]] = {
    "it is gone": (
        part(),
        [],
        "the last transaction that was published (xid 7, end 0/50, committed 1970-01-01T00:00:01.000000Z) is not in this server's log",
    ),
    "others are there, and it is gone": (part(), [Witness(Lsn(60), 5, 1)], "was another one (xid 7, end 0/50,"),
    "another xid": (part(), [Witness(Lsn(80), 8, 1_000_000)], "than here (xid 8, end 0/50,"),
    "another time": (part(), [Witness(Lsn(80), 7, 1_000_001)], "committed 1970-01-01T00:00:01.000001Z)"),
    "one behind it": (
        part(),
        [WITNESS, Witness(Lsn(90), 9, 2_000_000)],
        "a transaction with events (xid 9, end 0/5A, committed 1970-01-01T00:00:02.000000Z) lies below the position 0/64 and was never",
    ),
    "one behind the slot that is behind it": (part(slot=85), [Witness(Lsn(90), 9, 1)], "was never published"),
    "one though there was none": (part("none"), [Witness(Lsn(60), 5, 1)], "was never published"),
}


@pytest.mark.parametrize("case", AGREES)
def test_what_agrees_is_judged_once_the_whole_part_was_seen(case: str) -> None:
    made, skipped = AGREES[case]
    for transaction in skipped:
        made.skipped(transaction)
    made.reached(Lsn(99))
    assert made.judged == (case in AT_ONCE)
    made.reached(POSITION)
    assert made.judged
    made.reached(Lsn(500))


@pytest.mark.parametrize("case", DIFFERS)
def test_what_differs_is_refused(case: str) -> None:
    made, skipped, what = DIFFERS[case]
    for transaction in skipped:
        made.skipped(transaction)
    made.reached(Lsn(99))
    with pytest.raises(ContinuityError) as caught:
        made.reached(Lsn(101))
    assert what in caught.value.what
    assert "`cdc recover --rebuild`" in caught.value.fix
    assert not made.judged


@given(
    st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=12),
    st.data(),
)
def test_two_logs_that_fork_are_told_apart_whenever_something_would_be_lost(steps: list[tuple[int, bool]], data: st.DataObject) -> None:
    """One log was published up to a position; another one goes its own way from some place on. Nothing of it is skipped unseen."""

    def log_of(parts: list[tuple[int, bool]], start: int, branch: int) -> list[tuple[Witness, bool]]:
        made, end = [], start
        for size, events in parts:
            end += size
            made.append((Witness(Lsn(end), 700 + end, branch), events))
        return made

    ours = log_of(steps, 0, 1)
    fork = data.draw(st.integers(0, len(ours)), "common transactions")
    common = ours[:fork]
    begin = common[-1][0].end_lsn if common else 0
    theirs = common + log_of(data.draw(st.lists(st.tuples(st.integers(1, 9), st.booleans()), max_size=12), "their steps"), begin, 2)
    position = ours[-1][0].end_lsn
    witness: Witness | Literal["none"] = next((each for each, events in reversed(ours) if events), "none")
    slot = data.draw(st.sampled_from([Lsn(0), *[each.end_lsn for each, _ in common]]), "slot")  # part of the copy
    made = SkippedPart(witness, slot, position)
    skipped = [each for each, events in theirs if events and slot < each.end_lsn <= position]
    for each in skipped:
        made.skipped(each)
    published = [each for each, events in ours if events]
    lost = [each for each in skipped if each not in published]
    try:
        made.reached(position)
    except ContinuityError:
        assert theirs[: len(ours)] != ours, "a false alarm"
    else:
        assert not lost


# in the stream


def frames(*messages: PgoutputMessage) -> list[bytes]:
    return [xlog_data(encode(message)) for message in messages]


def transaction(start: int, end: int, xid: int = 7, time_us: int = 1_000_000, rows: int = 1) -> list[bytes]:
    inserts = [Insert(1, (b"a",))] * rows
    return frames(Begin(Lsn(start), time_us, xid), *([OUTBOX] if rows else []), *inserts, Commit(Lsn(start), Lsn(end), time_us))


def conversation(witness: Witness | Literal["none", "unknown"] = WITNESS, slot: int = 50) -> Walsender:
    made = Walsender(10.0, 0.0)
    made.start(POSITION, Transactions(lambda relation: relation.name == "outbox", POSITION, part(witness, slot)))
    return made


def flushed(made: Walsender) -> int:
    return int(status_of(made.status(1.0, 0))[1])


def test_nothing_is_confirmed_before_the_part_was_judged() -> None:
    """Confirmed, the slot would be moved past what proves that this is another log, and the next start would see nothing of it."""
    made = conversation()
    assert flushed(made) == 0
    assert made.receive(transaction(70, 80)) != []
    assert flushed(made) == 0
    made.receive([keepalive(99)])
    assert flushed(made) == 0
    made.receive([keepalive(100)])
    assert flushed(made) == 100


def test_a_transaction_behind_the_position_judges_as_well() -> None:
    made = conversation()
    items = made.receive([*transaction(70, 80), *transaction(100, 120, 9)])
    assert [len(item) for item in items if not isinstance(item, TransactionEnd)] == [4]
    assert flushed(made) == 100
    made.confirm(Lsn(120))
    assert flushed(made) == 120


def test_no_row_is_handed_out_of_a_log_that_is_another_one() -> None:
    made = conversation()
    with pytest.raises(ContinuityError, match="was another one"):
        made.receive([*transaction(70, 80, time_us=5), *transaction(100, 120)])
    assert flushed(made) == 0


def test_a_keepalive_inside_of_a_transaction_judges_nothing() -> None:
    made = conversation()
    begin, *rest = transaction(70, 80)
    made.receive([begin, keepalive(100)])
    assert flushed(made) == 0
    made.receive([*rest, keepalive(100)])
    assert flushed(made) == 100


def test_transactions_without_events_are_none() -> None:
    made = conversation()
    made.receive([*transaction(70, 80), *transaction(85, 90, 8, rows=0), keepalive(100)])
    assert flushed(made) == 100
