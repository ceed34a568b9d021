"""From frames to the rows of whole transactions: what is skipped, what is ignored, and what is refused."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.errors import ContinuityError, ProtocolError
from cdc.position import Lsn
from cdc.postgres import pgoutput
from cdc.postgres.pgoutput import (
    UNCHANGED,
    Begin,
    Column,
    Commit,
    Delete,
    Insert,
    Message,
    Origin,
    PgoutputMessage,
    Relation,
    Truncate,
    Type,
    Update,
    Value,
)
from cdc.postgres.transaction import MESSAGES, XLOG_DATA_HEADER, Row, TransactionEnd, Transactions, compile_row_decoder
from tests.simulation.pgoutput_bytes import encode, xlog_data

PREFIX = "outbox"
ROWS = st.lists(st.none() | st.binary(max_size=12), max_size=7)


def relation(oid: int = 1, columns: int = 2, name: str = "outbox") -> Relation:
    return Relation(oid, "public", name, "d", tuple(Column(f"c{i}", 25, -1, False) for i in range(columns)))


def transactions(position: int = 0) -> Transactions:
    return Transactions(lambda relation: relation.name == "outbox", Lsn(position))


def feed(made: Transactions, *messages: PgoutputMessage) -> list[Row | TransactionEnd]:
    items: list[Row | TransactionEnd] = []
    for message in messages:
        made.feed([xlog_data(encode(message))], items)
    return items


def whole(start: int, end: int, *inside: PgoutputMessage, xid: int = 7) -> list[PgoutputMessage]:
    return [Begin(Lsn(start), 5, xid), *inside, Commit(Lsn(start), Lsn(end), 5)]


# the compiled decoder


@given(ROWS)
def test_the_compiled_decoder_reads_what_the_plain_one_reads(values: Sequence[bytes | None]) -> None:
    frame = xlog_data(encode(Insert(1, tuple(values))))
    plain = pgoutput.decode(frame[XLOG_DATA_HEADER:])
    assert isinstance(plain, Insert)
    assert compile_row_decoder(len(values))(frame) == plain.values


@given(st.integers(0, 5), st.binary(max_size=60))
def test_the_compiled_decoder_refuses_what_the_plain_one_refuses(columns: int, data: bytes) -> None:
    message = b"I\0\0\0\1N" + columns.to_bytes(2, "big") + data
    try:
        plain: object = pgoutput.decode(message)
    except ProtocolError:
        plain = None
    if isinstance(plain, Insert) and UNCHANGED in plain.values:
        plain = None
    try:
        values = compile_row_decoder(columns)(xlog_data(message))
    except ProtocolError:
        assert plain is None
    else:
        assert isinstance(plain, Insert)
        assert values == plain.values


@given(ROWS, st.data())
def test_a_frame_that_is_cut_or_longer_is_refused(values: Sequence[bytes | None], data: st.DataObject) -> None:
    frame = xlog_data(encode(Insert(1, tuple(values))))
    read = compile_row_decoder(len(values))
    with pytest.raises(ProtocolError, match="malformed insert"):
        read(frame + b"n")
    if values:
        with pytest.raises(ProtocolError, match="malformed insert"):
            read(frame[: data.draw(st.integers(XLOG_DATA_HEADER + 8, len(frame) - 1))])


def test_field_case_35_an_insert_has_no_unchanged_value() -> None:
    with pytest.raises(ProtocolError, match=r"column value of kind 'u'; an insert always carries every value whole"):
        compile_row_decoder(1)(xlog_data(encode(Insert(1, (UNCHANGED,)))))


# whole transactions


def test_rows_come_with_their_transaction_and_their_ordinal() -> None:
    begin = Begin(Lsn(10), 5, 7)
    items = feed(transactions(), begin, relation(), Insert(1, (b"a", None)), Insert(1, (b"", b"b")), Commit(Lsn(10), Lsn(20), 6))
    assert items == [
        (begin, relation(), 0, (b"a", None)),
        (begin, relation(), 1, (b"", b"b")),
        TransactionEnd(Lsn(20), Lsn(10), 6, 7, 2),
    ]


def test_ordinals_begin_anew_in_each_transaction_and_count_the_outbox_alone() -> None:
    made = transactions()
    first = feed(made, *whole(10, 20, relation(), relation(2, 1, "other"), Insert(2, (b"x",)), Insert(1, (b"a", b"a"))))
    second = feed(made, *whole(30, 40, Insert(1, (b"b", b"b")), Insert(2, (b"x",)), Insert(1, (b"c", b"c"))))
    assert [item[2] for item in (*first, *second) if not isinstance(item, TransactionEnd)] == [0, 0, 1]
    assert made.ignored == {"insert": 2}


def test_open_tells_whether_the_stream_stands_inside() -> None:
    made, seen = transactions(), list[bool]()
    for message in whole(10, 20, relation(), Insert(1, (b"a", b"b"))):
        seen.append(made.open)
        feed(made, message)
    assert [*seen, made.open] == [False, True, True, True, False]


def test_an_empty_transaction_is_an_idle_advance() -> None:
    assert feed(transactions(), *whole(10, 20)) == [TransactionEnd(Lsn(20), Lsn(10), 5, 7, 0)]


# what is skipped


def test_what_is_published_is_skipped_and_counted() -> None:
    made = transactions(20)
    items = feed(made, *whole(10, 20, relation(), Insert(1, (b"a", b"a")), Insert(1, (b"b", b"b"))))
    assert items == [TransactionEnd(Lsn(20), Lsn(10), 5, 7, 0)]
    assert made.ignored == {"published before": 2}


def test_field_case_06_a_commit_that_begins_at_the_position_is_not_skipped() -> None:
    """COMMIT of one, BEGIN and INSERT of the next may carry one LSN: strictly less is skipped, equal is not."""
    made = transactions(20)
    feed(made, *whole(10, 20, relation()))
    items = feed(made, *whole(20, 30, Insert(1, (b"a", b"a"))))
    assert [len(item) for item in items if not isinstance(item, TransactionEnd)] == [4]
    assert items[-1] == TransactionEnd(Lsn(30), Lsn(20), 5, 7, 1)


@given(st.integers(1, 50), st.integers(1, 50), st.integers(0, 120))
def test_exactly_what_ends_by_the_position_is_skipped(start: int, size: int, position: int) -> None:
    messages = whole(start, start + size, relation(), Insert(1, (b"a", b"a")))
    if start < position < start + size:
        with pytest.raises(ContinuityError, match="lies across the position"):
            feed(transactions(position), *messages)
    else:
        rows = [item for item in feed(transactions(position), *messages) if not isinstance(item, TransactionEnd)]
        assert bool(rows) is (start + size > position)


def test_field_case_08_a_row_far_below_the_position_is_not_skipped() -> None:
    """The LSN of a row is never looked at: only where its transaction commits."""
    made, items = transactions(1_000), list[Row | TransactionEnd]()
    for lsn, message in (
        (1_000, Begin(Lsn(1_000), 5, 7)),
        (0, relation()),
        (3, Insert(1, (b"late", b"a"))),
        (1_000, Commit(Lsn(1_000), Lsn(1_050), 5)),
    ):
        made.feed([xlog_data(encode(message), lsn)], items)
    assert isinstance(items[0], tuple)
    assert items[0][3] == (b"late", b"a")


# what an outbox has no use for


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        (Truncate((1,), False, False), "truncate"),
        (Update(1, None, False, (b"a", UNCHANGED)), "update"),
        (Delete(1, (b"a", None), True), "delete"),
        (Origin(Lsn(1), "elsewhere"), "origin"),
        (Message(True, Lsn(1), "hb", b"x"), "message"),
        (Message(False, Lsn(1), "hb", b"x"), "message"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else value,
)
def test_field_case_28_30_35_it_is_ignored_and_counted(message: PgoutputMessage, kind: str) -> None:
    made = transactions()
    items = feed(made, *whole(10, 20, relation(), Insert(1, (b"a", b"a")), message, Insert(1, (b"b", b"b"))))
    assert [item[2] for item in items if not isinstance(item, TransactionEnd)] == [0, 1]
    assert made.ignored == {kind: 1}


def test_field_case_30_a_message_outside_opens_nothing() -> None:
    made = transactions()
    assert feed(made, Message(False, Lsn(1), "hb", b"x")) == []
    assert not made.open


# relations that change


def test_a_domain_has_the_type_that_it_stands_on_and_an_enum_its_own() -> None:
    made = transactions()
    columns = tuple(Column(name, oid, -1, False) for name, oid in (("id", 25), ("payload", 20_001), ("mood", 20_002)))
    types = (Type(20_001, "pg_catalog", "bytea"), Type(20_002, "public", "mood"))
    items = feed(made, *whole(10, 20, *types, Relation(1, "public", "outbox", "d", columns), Insert(1, (b"a", b"b", b"c"))))
    [row] = [item for item in items if not isinstance(item, TransactionEnd)]
    assert [column.type_oid for column in row[1].columns] == [25, 17, 20_002]
    assert not made.ignored


def test_a_relation_counts_from_its_message_on() -> None:
    made = transactions()
    wider, values = relation(columns=3), (b"a", b"b", b"c")
    items = feed(made, *whole(10, 20, relation(), Insert(1, (b"a", b"b")), wider, Insert(1, values)))
    rows = [item for item in items if not isinstance(item, TransactionEnd)]
    assert [(row[1], row[3]) for row in rows] == [(relation(), (b"a", b"b")), (wider, values)]


def test_a_table_that_is_renamed_is_no_outbox_any_more_and_may_become_one_again() -> None:
    made = transactions()
    insert = Insert(1, (b"a", b"b"))
    items = feed(made, *whole(10, 20, relation(), insert, relation(name="archive"), insert, relation(), insert))
    assert [item[2] for item in items if not isinstance(item, TransactionEnd)] == [0, 1]
    assert made.ignored == {"insert": 1}


@pytest.mark.parametrize("values", [(b"a",), (b"a", b"b", b"c")], ids=["fewer", "more"])
def test_an_insert_that_its_relation_does_not_describe_is_never_dropped(values: tuple[Value, ...]) -> None:
    with pytest.raises(ProtocolError, match=rf"a row of {len(values)} values came for relation 1"):
        feed(transactions(), *whole(10, 20, relation(), Insert(1, values)))


def test_an_insert_without_a_relation_is_never_dropped() -> None:
    with pytest.raises(ProtocolError, match="came for relation 5, which is not described so"):
        feed(transactions(), *whole(10, 20, relation(), Insert(5, (b"a",))))


# what the protocol does not allow


def test_what_is_out_of_order_is_refused() -> None:
    made = transactions()
    with pytest.raises(ProtocolError, match="does not belong to the transaction that began"):
        feed(made, Commit(Lsn(1), Lsn(2), 5))
    feed(made, relation())
    with pytest.raises(ProtocolError, match="outside of a transaction"):
        feed(made, Insert(1, (b"a", b"b")))
    feed(made, Begin(Lsn(10), 5, 7))
    with pytest.raises(ProtocolError, match="began inside another one"):
        feed(made, Begin(Lsn(20), 5, 8))
    with pytest.raises(ProtocolError, match="does not belong"):
        feed(made, Commit(Lsn(11), Lsn(20), 5))


@given(st.lists(st.binary(max_size=70), max_size=5))
def test_any_frames_are_rows_or_a_protocol_error(frames: list[bytes]) -> None:
    made, items = transactions(), list[Row | TransactionEnd]()
    with contextlib.suppress(ProtocolError):
        made.feed([b"w" + frame for frame in frames], items)


# logical messages


def test_a_transactional_message_of_our_prefix_is_a_row_among_rows() -> None:
    made = Transactions(lambda relation: relation.name == "outbox", Lsn(0), prefix=PREFIX)
    inside: list[PgoutputMessage] = [
        Message(True, Lsn(12), PREFIX, b"first"),
        relation(),
        Insert(1, (b"a", b"b")),
        Message(True, Lsn(14), PREFIX, b"last"),
    ]
    items = feed(made, *whole(10, 20, *inside))
    begin = Begin(Lsn(10), 5, 7)
    assert items[:1] + items[2:] == [
        (begin, MESSAGES, 0, (b"first",)),
        (begin, MESSAGES, 2, (b"last",)),
        TransactionEnd(Lsn(20), Lsn(10), 5, 7, 3),
    ]
    assert not made.ignored


def test_other_messages_are_ignored_and_counted() -> None:
    made = Transactions(lambda relation: relation.name == "outbox", Lsn(0), prefix=PREFIX)
    outside = Message(False, Lsn(12), PREFIX, b"x")
    assert feed(made, outside, *whole(10, 20, outside, Message(True, Lsn(13), "hb", b"x"))) == [TransactionEnd(Lsn(20), Lsn(10), 5, 7, 0)]
    assert made.ignored == {"message": 3}


def test_a_message_that_was_published_before_is_skipped_and_counts_for_the_witness() -> None:
    made = Transactions(lambda relation: relation.name == "outbox", Lsn(20), prefix=PREFIX)
    items = feed(made, *whole(10, 20, Message(True, Lsn(12), PREFIX, b"x")), *whole(20, 30, Message(True, Lsn(22), PREFIX, b"y"), xid=8))
    assert [item[3] for item in items if not isinstance(item, TransactionEnd)] == [(b"y",)]
    assert made.part._last is not None
    assert made.part._last.xid == 7


def test_a_transactional_message_outside_of_a_transaction_is_a_protocol_error() -> None:
    made = Transactions(lambda relation: relation.name == "outbox", Lsn(0), prefix=PREFIX)
    with pytest.raises(ProtocolError, match="outside of a transaction"):
        feed(made, Message(True, Lsn(12), PREFIX, b"x"))
