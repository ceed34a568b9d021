"""What a writer concludes of the slot and of the table's statistics, look by look."""

from __future__ import annotations

from typing import Any

import pytest

from cdc.outbox.pressure import KEPT, Backlog, Look, Pressure, Samples


def test_what_is_confirmed_is_no_backlog() -> None:
    samples = Samples()
    assert samples.add(Look(0.0, 100, 100, 5)) == Backlog(0, 0.0, 0)
    assert samples.add(Look(1.0, 200, 200, 9)) == Backlog(0, 0.0, 0)
    assert samples.add(Look(2.0, 200, 150, 9)).lag_bytes == 50


def test_age_and_rows_count_from_the_newest_look_that_is_confirmed() -> None:
    samples = Samples()
    samples.add(Look(0.0, 100, 100, 10))
    assert samples.add(Look(1.0, 200, 100, 20)) == Backlog(100, 0.0, 10)
    assert samples.add(Look(5.0, 300, 100, 50)) == Backlog(200, 4.0, 40)
    assert samples.add(Look(6.0, 400, 250, 60)) == Backlog(150, 1.0, 25), "half of what came between 200 and 300 is confirmed"
    assert samples.add(Look(7.0, 400, 400, 60)) == Backlog(0, 0.0, 0)


def test_a_process_that_has_just_begun_knows_the_bytes_at_once_and_the_rest_as_time_goes_on() -> None:
    samples = Samples()
    assert samples.add(Look(0.0, 1_000_000, 100, 500)) == Backlog(999_900, 0.0, 0)
    assert samples.add(Look(9.0, 1_000_100, 100, 600)) == Backlog(1_000_000, 9.0, 100)


def test_log_without_events_has_no_age_unless_events_are_messages() -> None:
    rows, messages = Samples(), Samples()
    for second in range(60):
        by_rows = rows.add(Look(float(second), 100 + second, 100, 7))
        by_messages = messages.add(Look(float(second), 100 + second, 100, None))
    assert (by_rows.age_s, by_rows.pending_rows) == (0.0, 0)
    assert (by_messages.age_s, by_messages.pending_rows) == (58.0, 0)


def test_a_slot_that_does_not_exist_does_not_move_and_memory_is_bounded() -> None:
    samples = Samples()
    for second in range(KEPT * 2):
        seen = samples.add(Look(float(second), second, None, second))
    assert seen == Backlog(0, KEPT * 2 - 1.0, KEPT * 2 - 1)
    assert len(samples._waiting) == KEPT


@pytest.mark.parametrize(
    ("backlog", "words"),
    [
        (Backlog(0, 0.0, 10_001), "10,001 events wait to be published, more than 10,000"),
        (Backlog(0, 61.0, 1), "61 seconds"),
        (Backlog(1_000_000_001, 0.0, 0), "1,000,000,001 bytes of log"),
    ],
)
def test_each_limit_makes_it_too_busy(backlog: Backlog, words: str) -> None:
    busy = Pressure("cdc_shop").judge(backlog)
    assert busy is not None
    assert words in busy.reason
    assert busy.retry_after_s == 5
    assert Pressure("cdc_shop").judge(Backlog(1_000_000_000, 60.0, 10_000)) is None


class Cursor:
    """Counts the queries, and answers as a slot that is far behind."""

    description = ()

    def __init__(self) -> None:
        self.asked = 0

    def execute(self, *_: Any) -> Cursor:  # noqa: ANN401 - a driver's interface
        self.asked += 1
        return self

    def fetchone(self) -> tuple[int, int, int]:
        return 2_000_000_000, 0, 0


def test_an_answer_holds_for_a_while() -> None:
    cursor, pressure = Cursor(), Pressure("cdc_shop", every_s=3600)
    assert [pressure.look(cursor) is not None for _ in range(100)] == [True] * 100
    assert cursor.asked == 1
    pressure = Pressure("cdc_shop", every_s=0)
    assert pressure.look(cursor)
    assert pressure.look(cursor)
    assert cursor.asked == 3
    with pressure._asking:
        assert pressure.look(cursor), "while another thread asks, the last answer holds"
    assert cursor.asked == 3
