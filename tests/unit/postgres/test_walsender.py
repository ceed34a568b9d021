"""What is confirmed, when it is told, and when a server that shuts down is left."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.errors import ProtocolError
from cdc.position import POSTGRES_EPOCH_US, Lsn
from cdc.postgres.pgoutput import Begin, Commit, Message, Relation
from cdc.postgres.transaction import TransactionEnd, Transactions
from cdc.postgres.walsender import CONFIRM_INTERVAL_S, REPLY_PATIENCE_S, SHUTDOWN_PATIENCE_S, TIMEOUTS_PER_INTERVAL, Walsender
from tests.simulation.pgoutput_bytes import encode, keepalive, status_of, xlog_data

INTERVAL = 10.0
TIMEOUT = INTERVAL * TIMEOUTS_PER_INTERVAL


def wants(_: Relation) -> bool:
    return True


def started(position: int = 100, now: float = 0.0) -> Walsender:
    """Return a conversation whose continuity is proved and whose first status has gone."""
    made = Walsender(INTERVAL, now)
    made.start(Lsn(position), Transactions(wants, Lsn(position)))
    made.status(now, 0)
    return made


def flushed(frame: bytes | None) -> int | None:
    return None if frame is None else status_of(frame)[1]


def ask(made: Walsender, now: float, wal_end: int = 100) -> None:
    made.notice(keepalive(wal_end, reply=True), now)


# what is confirmed


def test_until_continuity_is_proved_every_status_says_zero() -> None:
    made = Walsender(INTERVAL, 0.0)
    made.notice(keepalive(500, reply=True), 0.0)
    assert flushed(made.data_to_send(0.0, 0)) == 0
    assert flushed(made.data_to_send(INTERVAL, 0)) == 0
    assert made.confirmed == 0


def test_write_flush_and_apply_are_one_and_the_time_is_ours() -> None:
    frame = started(7).status(1.0, POSTGRES_EPOCH_US + 5)
    write, flush, apply, _ = status_of(frame)
    assert write == flush == apply == 7
    assert int.from_bytes(frame[25:33], "big") == 5


@given(
    st.integers(1, 1000),
    st.lists(st.tuples(st.sampled_from(["keepalive", "confirm", "status", "asked"]), st.integers(1, 2000)), max_size=20),
)
def test_no_status_is_ever_above_what_was_confirmed_nor_goes_back(position: int, events: list[tuple[str, int]]) -> None:
    made, confirmed, last, now = started(position), position, 0, 0.0
    for kind, lsn in events:
        now += 0.3
        if kind == "keepalive":
            made.notice(keepalive(lsn), now)
            made.receive([keepalive(lsn)])
        elif kind == "asked":
            ask(made, now, lsn)
        elif kind == "confirm":
            confirmed = max(confirmed, lsn)
            made.confirm(Lsn(confirmed))
        else:
            told = flushed(made.status(now, 0))
            assert told is not None
            assert last <= told <= confirmed == made.confirmed
            last = told


def test_a_position_never_goes_back() -> None:
    made = started(100)
    made.confirm(Lsn(100))
    with pytest.raises(ProtocolError, match="the position went back from 0/64 to 0/63"):
        made.confirm(Lsn(99))


# what a keepalive means


def test_a_keepalive_moves_on_only_if_it_is_greater() -> None:
    made = started(100)
    items = made.receive([keepalive(99, 9), keepalive(100, 9), keepalive(101, 9)])
    assert items == [TransactionEnd(Lsn(101), Lsn(101), 9, 0, 0)]


def test_a_keepalive_inside_a_transaction_is_no_position() -> None:
    made = started(100)
    begin, commit = Begin(Lsn(200), 5, 7), Commit(Lsn(200), Lsn(210), 5)
    assert made.receive([xlog_data(encode(begin)), keepalive(500)]) == []
    items = made.receive([xlog_data(encode(commit)), keepalive(500, 5)])
    assert items == [TransactionEnd(Lsn(210), Lsn(200), 5, 7, 0), TransactionEnd(Lsn(500), Lsn(500), 5, 0, 0)]


def test_the_lsns_of_xlog_data_are_no_positions() -> None:
    assert started(100).receive([xlog_data(encode(Message(False, Lsn(900), "hb", b"")), 900)]) == []


def test_the_largest_wal_end_is_remembered() -> None:
    made = started()
    for end in (10, 500, 200):
        made.notice(keepalive(end), 0.0)
    assert made.wal_end == 500


# when a status goes


def test_a_status_goes_at_once_and_then_at_every_interval() -> None:
    made = Walsender(INTERVAL, 5.0)
    assert made.data_to_send(5.0, 0) is not None
    assert made.data_to_send(5.0 + INTERVAL - 0.01, 0) is None
    assert made.next_due() == 5.0 + INTERVAL
    assert made.data_to_send(5.0 + INTERVAL, 0) is not None


def test_a_confirmed_position_is_told_soon_and_not_at_once() -> None:
    made = started()
    made.confirm(Lsn(200))
    assert made.data_to_send(CONFIRM_INTERVAL_S / 2, 0) is None
    assert made.next_due() == CONFIRM_INTERVAL_S
    assert flushed(made.data_to_send(CONFIRM_INTERVAL_S, 0)) == 200
    assert made.next_due() == CONFIRM_INTERVAL_S + INTERVAL


def test_an_answer_waits_for_the_position_and_not_for_longer_than_it_may() -> None:
    made = started()
    ask(made, 1.0, 500)
    assert made.asked
    assert made.data_to_send(1.0, 0) is None
    assert made.next_due() == 1.0 + REPLY_PATIENCE_S
    assert flushed(made.data_to_send(1.0 + REPLY_PATIENCE_S, 0)) == 100
    assert not made.asked


def test_an_answer_that_waits_goes_with_the_position() -> None:
    made = started()
    ask(made, 1.0, 500)
    made.confirm(Lsn(500))
    assert flushed(made.data_to_send(1.0, 0)) == 500


def test_an_answer_that_has_nothing_to_wait_for_goes_at_once() -> None:
    made = started(500)
    ask(made, 1.0, 500)
    assert flushed(made.data_to_send(1.0, 0)) == 500


def test_a_second_question_does_not_put_the_answer_off() -> None:
    made = started()
    ask(made, 1.0, 500)
    ask(made, 1.5, 600)
    assert made.next_due() == 1.0 + REPLY_PATIENCE_S


def test_a_silent_server_is_asked_for_a_sign() -> None:
    made = started()
    made.notice(xlog_data(b""), 1.0)
    assert status_of(made.status(1.0 + INTERVAL - 0.1, 0))[3] is False
    assert status_of(made.status(1.0 + INTERVAL, 0))[3] is True


def test_a_server_that_says_nothing_for_its_whole_timeout_is_lost() -> None:
    made = started()
    made.notice(xlog_data(b""), 1.0)
    assert not made.lost(1.0 + TIMEOUT - 0.1)
    assert made.lost(1.0 + TIMEOUT)
    made.notice(keepalive(1), 1.0 + TIMEOUT)
    assert not made.lost(1.0 + TIMEOUT)


# a server that shuts down


def answered(made: Walsender, now: float, wal_end: int = 500) -> None:
    """The server asks, and gets its answer without a new position."""
    ask(made, now, wal_end)
    made.status(now, 0)


def test_a_server_that_asks_again_after_each_answer_is_left() -> None:
    made, now = started(), 1.0
    while now < 1.0 + SHUTDOWN_PATIENCE_S:
        assert not made.must_leave(now)
        answered(made, now)
        now += 0.5
    assert made.must_leave(1.0 + SHUTDOWN_PATIENCE_S)


def test_one_early_question_is_an_old_one() -> None:
    """It lay in the socket while we were stopped."""
    made = started()
    answered(made, 1.0)
    assert not made.must_leave(1.0 + 2 * SHUTDOWN_PATIENCE_S)


def test_questions_in_time_are_ordinary() -> None:
    made, now = started(), 0.0
    for _ in range(5):
        now += TIMEOUT / 2
        answered(made, now)
        assert not made.must_leave(now + SHUTDOWN_PATIENCE_S)


def test_a_status_that_nobody_asked_for_ends_the_suspicion() -> None:
    made = started()
    answered(made, 1.0)
    answered(made, 1.1)
    made.status(1.1 + INTERVAL, 0)
    assert not made.must_leave(1.0 + SHUTDOWN_PATIENCE_S + INTERVAL)


# what the protocol does not allow


def test_frames_are_not_read_before_the_proof() -> None:
    with pytest.raises(ProtocolError, match="before continuity was proved"):
        Walsender(INTERVAL, 0.0).receive([keepalive(1)])


@pytest.mark.parametrize("frame", [b"x", b"k", keepalive(1) + b"\0", keepalive(1)[:-1]])
def test_an_unknown_frame_is_refused(frame: bytes) -> None:
    with pytest.raises(ProtocolError, match=rf"unknown replication frame of type {frame[:1]!r} and {len(frame)} bytes"):
        started().receive([frame])
