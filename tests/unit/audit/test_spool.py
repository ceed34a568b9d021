"""What is spooled comes back, all of it and sorted, whatever its size; keys are compared whole though they are not kept whole."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.audit import spool as spooled
from cdc.audit.judge import Row, Verdict, Visible, by_key, digest
from cdc.audit.spool import SHORT, Sorter, Spool, short


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few tuples fill a run, a block and a merge, so that all of them happen."""
    monkeypatch.setattr(spooled, "RUN", 7)
    monkeypatch.setattr(spooled, "BLOCK", 3)
    monkeypatch.setattr(spooled, "FAN", 4)


@pytest.fixture
def spool() -> Iterator[Spool]:
    made = Spool()
    yield made
    made.close()


@pytest.mark.parametrize("count", [0, 1, 6, 7, 8, 27, 28, 29, 112, 1_000])
@pytest.mark.parametrize("different", [1, 5, 10**6])
def test_everything_comes_back_sorted_as_often_as_it_is_asked(count: int, different: int) -> None:
    chance = random.Random(count)
    items = [(chance.randrange(different), i, None if i % 2 else b"x") for i in range(count)]
    with Sorter() as sorter:
        for item in items:
            sorter.add(item)
        assert sorted(sorter.unsorted()) == sorted(items)
        for _ in range(2):
            found = list(sorter)
            assert [first for first, _, _ in found] == sorted(first for first, _, _ in items)
            assert sorted(found) == sorted(items)


@given(st.lists(st.tuples(st.binary(max_size=2), st.binary(max_size=2))))
def test_by_all_elements_is_the_order_of_sorted(items: list[tuple[bytes, bytes]]) -> None:
    with Sorter(by_all=True) as sorter:
        for item in items:
            sorter.add(item)
        assert list(sorter) == sorted(items)


def test_what_is_added_after_reading_is_there_too() -> None:
    with Sorter() as sorter:
        sorter.add((2,))
        assert list(sorter) == [(2,)]
        sorter.add((1,))
        assert list(sorter) == [(1,), (2,)]


def test_long_keys_are_told_apart() -> None:
    long = bytes(SHORT)
    assert short(None) is None
    assert short(long) == long
    assert len({short(long), short(long + b"a"), short(long + b"b"), short(long + digest(long + b"a"))}) == 4


def test_rows_and_records_are_what_they_were(spool: Spool) -> None:
    rows = [Row(b"%02d" % i, b"k", b"T", i, (b"p", b"q"), b"o", "missing", ("t", -1, None, None)) for i in range(20)]
    records = [Visible(b"%02d" % i, b"%028x" % i, b"k" * 100 * (i % 2), "t", 0, i, b"T", b"p", replay=i == 3) for i in range(20)]
    for row, record in zip(reversed(rows), records, strict=True):
        spool.add_row(row)
        spool.add_record(record)
    assert list(spool.rows()) == rows
    assert list(spool.by_id()) == [record._replace(key=short(record.key)) for record in records]
    assert list(spool.by_place()) == [(record.place, record.id) for record in records if not record.replay]
    assert spool.transactions_of({b"07", b"elsewhere"}) == {b"07": 7}


def test_only_partitions_whose_places_do_not_only_grow_are_judged_by_key(spool: Spool) -> None:
    def record(place: int, partition: int, offset: int, key: bytes | None) -> Visible:
        return Visible(b"%d-%d" % (partition, offset), b"%028x" % place, key, "t", partition, offset)

    for offset in range(10):
        spool.add_record(record(offset, 0, offset, b"k"))
    assert list(spool.by_key()) == []
    for offset, (place, key) in enumerate([(2, b"a"), (1, b"b"), (4, b"a"), (3, b"a"), (3, None), (2, b"")]):
        spool.add_record(record(place, 1, offset, key))
    verdict = Verdict()
    by_key(verdict, spool.by_key())
    assert verdict.counts == {"reordered": 1}
    assert verdict.findings[0].what.startswith("1-3")
