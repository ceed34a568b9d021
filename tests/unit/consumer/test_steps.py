"""The order inside of the transaction: marker, handler, and nothing between marker and commit that is not the handler's."""

from __future__ import annotations

from typing import Any

import pytest

from cdc.consumer.event import Event
from cdc.consumer.handler import Handler, Unit
from cdc.consumer.steps import MARK, MARK_ONE, UNMARK, Ask, Blocked, Call, Inbox, Policy, Rows, Steps, TransactionEnded, transaction


def unit(
    event_id: str = "e",
    *,
    key: bytes | None = None,
    sequence: str = "01",
    replay: str = "",
    moved: bool = False,
    handler: str = "h",
    many: bool = False,
    offset: int = 0,
) -> Unit:
    taker = Handler(handler, f"c.{handler}", "T", lambda *_: None, is_async=False, many=many)
    headers = {"cdc.origin": "t/0/0"} if moved else {}
    event: Event = Event(event_id, "/s", "T", "k", {}, "", sequence, 1, headers, "t", 0, offset, 0, replay=replay)
    return Unit(event, taker, key)


def play(steps: Steps, answers: dict[str, Rows]) -> tuple[list[Any], list[bool]]:
    """Answer every question by its first words; return what was asked and called, in order."""
    done: list[Any] = []
    try:
        step = next(steps)
        while True:
            done.append(step)
            answer = next((rows for words, rows in answers.items() if isinstance(step, Ask) and step.query.startswith(words)), [])
            step = steps.send(answer)
    except StopIteration as end:
        return done, end.value


def test_the_marker_comes_first_and_a_missing_row_skips() -> None:
    done, fresh = play(transaction([unit()], Inbox.EVENTS, "c"), {MARK_ONE: [("e",)]})
    assert [type(step) for step in done] == [Ask, Call]
    assert fresh == [True]
    done, fresh = play(transaction([unit()], Inbox.EVENTS, "c"), {})
    assert [type(step) for step in done] == [Ask]
    assert fresh == [False]


def test_many_markers_are_inserted_in_one_order_and_one_of_two_equals_is_new() -> None:
    units = [unit("b"), unit("a"), unit("b")]
    done, fresh = play(transaction(units, Inbox.EVENTS, "c"), {MARK: [("c.h", "/s", "a"), ("c.h", "/s", "b")]})
    assert done[0].parameters[2] == ["a", "b"]
    assert [step.unit.event.id for step in done[1:]] == ["b", "a"]
    assert fresh == [True, True, False]


def test_without_an_inbox_there_are_only_calls() -> None:
    done, fresh = play(transaction([unit("a"), unit("a")], Inbox.OFF, "c"), {})
    assert [type(step) for step in done] == [Call, Call]
    assert fresh == [True, True]


def test_high_water_skips_what_is_not_above_it_and_is_raised_at_the_end() -> None:
    units = [unit("a", sequence="03"), unit("b", sequence="05"), unit("c", sequence="04"), unit("d", sequence="", replay="")]
    done, fresh = play(transaction(units, Inbox.HIGH_WATER, "c"), {"INSERT INTO consumer_high_water": [("03",)], MARK_ONE: [("d",)]})
    assert fresh == [False, True, False, True]
    assert done[-1].query.startswith("UPDATE consumer_high_water")
    assert done[-1].parameters[0] == "05"


@pytest.mark.parametrize("replay", ["replay:x", "rewind:2"])
def test_high_water_takes_replays_for_seen(replay: str) -> None:
    _, fresh = play(transaction([unit(sequence="ff", replay=replay)], Inbox.HIGH_WATER, "c"), {})
    assert fresh == [False]


def test_high_water_tells_a_later_attempt_by_its_marker() -> None:
    """In a retry topic it stands behind later ones: the mark of any partition would skip it."""
    done, fresh = play(transaction([unit(sequence="01", moved=True)], Inbox.HIGH_WATER, "c"), {MARK_ONE: [("e",)]})
    assert fresh == [True]
    assert not [step for step in done if isinstance(step, Ask) and "consumer_high_water" in step.query]


def test_a_key_with_an_open_letter_is_blocked_or_told() -> None:
    with pytest.raises(Blocked):
        play(transaction([unit(key=b"k")], Inbox.OFF, "c", Policy.BLOCK), {"SELECT 1 FROM consumer_parked": [(1,)]})
    back = unit(key=b"k", replay="redrive:e", moved=True)
    done, _ = play(transaction([back], Inbox.OFF, "c", releases=True), {"SELECT newer_sequence": [(True,)]})
    [call] = [step for step in done if isinstance(step, Call)]
    assert call.unit.event.newer_applied
    assert done[-1].query.startswith("DELETE FROM consumer_parked")


def test_a_handler_that_ends_the_transaction_does_not_take_later_events_along() -> None:
    steps = transaction([unit("a"), unit("b"), unit("c")], Inbox.EVENTS, "c")
    next(steps)
    steps.send([("c.h", "/s", "a"), ("c.h", "/s", "b")])
    step = steps.throw(TransactionEnded("x"))
    assert isinstance(step, Ask)
    assert (step.query, step.parameters) == (UNMARK, (["c.h"], ["/s"], ["b"]))
    with pytest.raises(TransactionEnded):
        steps.send([])


def test_a_list_ends_where_an_event_of_another_kind_comes_between() -> None:
    """Two listeners of the first three events, one of which takes lists, then an event for somebody else, and one more."""
    units = [unit(str(n), offset=n, handler=name, many=name == "all") for n in range(3) for name in ("each", "all")]
    units += [unit("3", offset=3, handler="undo"), *[unit("4", offset=4, handler=name, many=name == "all") for name in ("each", "all")]]
    done, _ = play(transaction(units, Inbox.OFF, "c"), {})
    called = [(step.unit.handler.name, [each.event.id for each in step.units]) for step in done]
    assert called == [
        ("each", ["0"]), ("all", ["0", "1", "2"]), ("each", ["1"]), ("each", ["2"]), ("undo", ["3"]), ("each", ["4"]), ("all", ["4"])
    ]  # fmt: skip


def test_a_list_has_what_is_new_and_one_that_ends_the_transaction_takes_no_later_events_along() -> None:
    units = [*[unit(str(n), offset=n, many=True) for n in range(3)], unit("3", offset=3, handler="undo")]
    steps = transaction(units, Inbox.EVENTS, "c")
    next(steps)
    call = steps.send([("c.h", "/s", "0"), ("c.h", "/s", "2"), ("c.undo", "/s", "3")])
    assert isinstance(call, Call)
    assert [each.event.id for each in call.units] == ["0", "2"]
    step = steps.throw(TransactionEnded("x"))
    assert isinstance(step, Ask)
    assert (step.query, step.parameters) == (UNMARK, (["c.undo"], ["/s"], ["3"]))
