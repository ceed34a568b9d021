"""Each invariant has a history that breaks it, made by hand, and one beside it that does not."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.audit.judge import DEFECTS, EXAMPLES, Order, Row, Verdict, Visible, Watch, by_id, by_key, digest, judge, limit_of, place_of

LIMIT = limit_of(0, 1_000)


def place(commit_lsn: int, ordinal: int = 0, generation: int = 0) -> bytes:
    return b"%04x%016x%08x" % (generation, commit_lsn, ordinal)


def history() -> tuple[list[Row], list[Visible]]:
    """Two transactions of two rows each, over two keys, and one dead letter: as it should be."""
    rows = [
        Row(b"a", b"k1", b"T", 1, frozenset({digest(b"A")}), digest(b"a")),
        Row(b"b", b"k2", b"T", 1, frozenset({digest(b"B")}), digest(b"b")),
        Row(b"c", b"k1", b"T", 2, frozenset({digest(b"C")}), digest(b"c")),
        Row(b"d", b"k1", b"T", 2, frozenset(), digest(b"d")),
    ]
    visible = [
        Visible(b"a", place(10, 0), b"k1", "t", 0, 0, b"T", digest(b"A")),
        Visible(b"b", place(10, 1), b"k2", "t", 1, 0, b"T", digest(b"B")),
        Visible(b"c", place(20, 0), b"k1", "t", 0, 2, b"T", digest(b"C")),
        Visible(b"d", place(20, 1), b"k1", "dead", 0, 0, b"T", digest(b"d"), dead=True),
    ]
    return rows, visible


def wrong(verdict: Verdict) -> dict[str, int]:
    return {kind: count for kind, count in verdict.counts.items() if count}


def test_a_history_as_it_should_be_is_clean() -> None:
    verdict = judge(*history(), limit=LIMIT)
    assert verdict.clean
    assert verdict.document() == {
        "rows": 4,
        "events": 3,
        "dead_letters": 1,
        "missing": 0,
        "duplicated": 0,
        "unexpected": 0,
        "reordered": 0,
        "torn": 0,
        "deleted": 0,
        "expired": 0,
        "pending": 0,
        "skipped": 0,
        "replayed": 0,
    }


@pytest.mark.parametrize("lost", range(4))
def test_i1_a_lost_row_is_missing_and_tears_its_transaction(lost: int) -> None:
    rows, visible = history()
    del visible[lost]
    verdict = judge(rows, visible)
    assert verdict.counts["missing"] == 1
    assert verdict.counts["torn"] >= 1
    assert verdict.findings[0].what == "abcd"[lost]


@pytest.mark.parametrize("fate", ["pending", "skipped", "expired"])
def test_a_row_that_need_not_be_there_is_counted_as_what_it_is(fate: str) -> None:
    rows, visible = history()
    rows = [row._replace(absent=fate) for row in rows]  # type: ignore[arg-type]  # one of the literals
    verdict = judge(rows, visible[2:])
    assert verdict.clean
    assert wrong(verdict) == {fate: 2}


def test_an_early_row_is_left_out_unless_a_record_of_it_is_visible() -> None:
    rows, visible = history()
    rows = [row._replace(absent="early") for row in rows]
    assert (judge(rows, visible[2:]).document()["rows"], wrong(judge(rows, visible[2:]))) == (2, {})


def test_a_whole_transaction_that_is_lost_is_missing_and_not_torn() -> None:
    rows, visible = history()
    assert wrong(judge(rows, visible[:2])) == {"missing": 2}


def test_i2_a_record_twice_is_duplicated_also_as_a_dead_letter() -> None:
    rows, visible = history()
    again = visible[0]._replace(offset=9, place=place(10, 0))
    assert judge(rows, [*visible, again]).counts["duplicated"] == 1
    parked = visible[0]._replace(topic="dead", offset=9, dead=True, payload=digest(b"a"))
    assert judge(rows, [*visible, parked]).counts["duplicated"] == 1


def test_a_replay_is_no_duplicate_and_makes_its_row_visible() -> None:
    rows, visible = history()
    again = visible[0]._replace(offset=9, replay=True)
    verdict = judge(rows, [*visible, again])
    assert (verdict.clean, verdict.replayed, verdict.events) == (True, 1, 3)
    assert wrong(judge(rows[:1], [again])) == {}


def test_two_rows_with_one_id_need_two_records() -> None:
    rows = [Row(b"a", transaction=1), Row(b"a", transaction=2)]
    first, second = Visible(b"a", place(10)), Visible(b"a", place(20), offset=1)
    assert judge(rows, [first, second]).clean
    assert wrong(judge(rows, [first])) == {"missing": 1}


@pytest.mark.parametrize(
    "change",
    [
        {"place": None},
        {"place": place(1_000)},
        {"place": place(10, generation=1)},
        {"key": b"k9"},
        {"key": None},
        {"type": b"Other"},
        {"payload": digest(b"other")},
    ],
)
def test_i3_a_record_that_is_not_its_row_is_unexpected(change: dict[str, bytes]) -> None:
    rows, visible = history()
    visible[0] = visible[0]._replace(**change)  # type: ignore[arg-type]  # fields of Visible
    verdict = judge(rows, visible, limit=LIMIT, whole=False)
    assert verdict.counts["unexpected"] == 1


def test_i3_a_record_without_a_row_is_unexpected_or_its_row_was_deleted() -> None:
    rows, visible = history()
    assert wrong(judge(rows[:-1], visible)) == {"unexpected": 1}
    assert wrong(judge(rows[:-1], visible, complete=False)) == {"deleted": 1}


def test_i3_a_place_that_two_ids_hold_is_unexpected() -> None:
    rows, visible = history()
    visible[1] = visible[1]._replace(place=place(10, 0))
    assert judge(rows, visible).counts["unexpected"] == 1


def test_an_event_of_a_row_that_no_schema_takes_is_unexpected() -> None:
    rows, visible = history()
    visible[3] = visible[3]._replace(dead=False)
    assert judge(rows, visible).counts["unexpected"] == 1


def test_a_dead_letter_keeps_the_original_or_leaves_it_out() -> None:
    rows, visible = history()
    assert judge(rows, [*visible[:3], visible[3]._replace(payload=None, key=None)]).clean
    assert judge(rows, [*visible[:3], visible[3]._replace(payload=digest(b"other"))]).counts["unexpected"] == 1


def test_i4_order_is_judged_for_each_key_of_each_partition() -> None:
    rows, visible = history()
    visible[0], visible[2] = visible[0]._replace(offset=2), visible[2]._replace(offset=0)
    assert wrong(judge(rows, visible)) == {"reordered": 1}
    visible[0] = visible[0]._replace(partition=5)
    assert judge(rows, visible).clean


@given(st.lists(st.tuples(st.integers(0, 1), st.sampled_from([b"a", b"b"]), st.integers(0, 9)), max_size=12))
def test_i4_a_partition_that_is_no_suspect_has_no_key_out_of_order(records: list[tuple[int, bytes, int]]) -> None:
    order = Order()
    for partition, _, commit_lsn in records:
        order.see(("t", partition), place(commit_lsn))
    for partition in (0, 1):
        verdict = Verdict()
        theirs = sorted((key, offset, place(lsn)) for offset, (at, key, lsn) in enumerate(records) if at == partition)
        by_key(verdict, ((key, each, b"id") for key, _, each in theirs))
        assert verdict.clean or ("t", partition) in order.suspects


@given(
    st.sampled_from([None, place(10), place(1_000)]),
    st.sampled_from([b"k1", None]),
    st.sampled_from([b"T", None]),
    st.sampled_from([None, digest(b"A"), digest(b"a")]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([None, LIMIT]),
)
def test_what_is_told_at_a_glance_is_what_a_closer_look_tells(
    where: bytes | None, key: bytes | None, kind: bytes | None, payload: bytes | None, replay: bool, dead: bool, limit: bytes | None
) -> None:
    row = Row(b"a", b"k1", b"T", 1, (digest(b"A"),), digest(b"a"))
    record = Visible(b"a", where, key, "t", 0, 0, kind, payload, replay, dead)
    together, apart = Verdict(), Verdict()
    by_id(together, [row], [record], limit=limit)
    # A second row of that id that is left out keeps the pair from being plain.
    by_id(apart, [row, row._replace(absent="early")], [record], limit=limit)
    apart.rows -= 1
    assert together == apart


def test_i5_a_gap_of_ordinals_is_a_torn_transaction_unless_records_were_deleted() -> None:
    _rows, visible = history()
    assert judge([], visible[1:], complete=False).counts["torn"] == 1
    assert judge([], visible[1:], complete=False, whole=False).clean


def test_i5_rows_that_became_visible_at_different_moments_are_torn() -> None:
    watch = Watch()
    watch.look([place(10, 0)], limit_of(0, 11), 5)
    watch.look([place(10, 1)], limit_of(0, 11), 5)
    assert watch.verdict.counts == {"torn": 1}


def test_i6_what_is_confirmed_must_be_committed() -> None:
    watch = Watch()
    watch.look([], limit_of(0, 11), 11)
    assert watch.verdict.clean
    watch.look([], limit_of(0, 11), 12)
    assert watch.verdict.counts == {"forgotten": 1}


def test_i7_the_position_grows_and_is_not_behind_what_is_visible() -> None:
    watch = Watch()
    watch.look([place(10)], limit_of(0, 10), None)
    assert watch.verdict.counts == {"position": 1}
    watch = Watch()
    watch.look([], limit_of(0, 20), None)
    watch.look([], limit_of(0, 19), None)
    assert watch.verdict.counts == {"position": 1}
    watch = Watch()
    watch.look([place(10)], limit_of(0, 20), None)
    watch.look([place(5, generation=1)], limit_of(1, 6), 5)
    assert watch.verdict.clean


def test_i8_an_older_epoch_commits_nothing_after_a_newer_one_recovered() -> None:
    watch = Watch()
    watch.recovered(1)
    watch.committed(1)
    watch.recovered(2)
    watch.committed(2)
    assert watch.verdict.clean
    watch.committed(1)
    assert watch.verdict.counts == {"fenced": 1}


def test_i9_lag_ends() -> None:
    watch = Watch()
    watch.ended(0)
    assert watch.verdict.clean
    watch.ended(1)
    assert watch.verdict.counts == {"lag": 1}


def test_a_place_is_28_lower_case_hex_digits() -> None:
    assert place_of(place(10)) == place(10)
    for text in (None, b"", place(10)[1:], place(10) + b"0", place(10).replace(b"a", b"A"), b"g" * 28):
        assert place_of(text) is None


def test_findings_are_few_and_counts_are_all() -> None:
    verdict = judge([Row(b"%d" % i) for i in range(100)], [])
    assert (verdict.counts["missing"], len(verdict.findings)) == (100, EXAMPLES)


@given(st.integers(0, 2**32), st.integers(1, 40))
def test_any_true_history_is_clean_and_losing_or_doubling_any_record_shows(seed: int, transactions: int) -> None:
    chance = random.Random(seed)
    rows, visible, offsets = list[Row](), list[Visible](), [0, 0, 0]
    for number in range(transactions):
        for ordinal in range(chance.randint(1, 4)):
            key = b"k%d" % chance.randint(0, 4)
            partition = key[-1] % 3
            event = b"%d-%d" % (number, ordinal)
            rows.append(Row(event, key, transaction=number + 1))
            visible.append(Visible(event, place(10 * number, ordinal), key, "t", partition, offsets[partition]))
            offsets[partition] += 1
    chance.shuffle(rows)
    shuffled = chance.sample(visible, len(visible))
    assert judge(rows, shuffled, limit=limit_of(0, 10 * transactions)).clean
    victim = chance.randrange(len(visible))
    lost = judge(rows, visible[:victim] + visible[victim + 1 :])
    assert lost.counts["missing"] == 1
    doubled = judge(rows, [*visible, visible[victim]._replace(offset=10_000)])
    assert doubled.counts["duplicated"] == 1
    assert set(lost.counts) | set(doubled.counts) <= set(DEFECTS)
