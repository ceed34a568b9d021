"""Every message of protocol 1 is read as it was written, and no bytes raise anything but ProtocolError."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cdc.errors import ProtocolError
from cdc.position import POSTGRES_EPOCH_US, Lsn
from cdc.postgres.pgoutput import (
    DECODERS,
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
    decode,
)
from tests.simulation.pgoutput_bytes import encode

LSNS = st.integers(0, 2**64 - 1).map(Lsn)
OIDS = st.integers(0, 2**32 - 1)
TIMES = st.integers(-(2**63), 2**63 - 1).map(lambda us: us + POSTGRES_EPOCH_US)
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12)
VALUES = st.lists(st.none() | st.just(UNCHANGED) | st.binary(max_size=20), max_size=6).map(tuple)
COLUMNS = st.builds(Column, NAMES, OIDS, st.integers(-(2**31), 2**31 - 1), st.booleans())

MESSAGES: dict[bytes, st.SearchStrategy[PgoutputMessage]] = {
    b"B": st.builds(Begin, LSNS, TIMES, OIDS),
    b"C": st.builds(Commit, LSNS, LSNS, TIMES),
    b"R": st.builds(Relation, OIDS, NAMES, NAMES, st.sampled_from("dnfi"), st.lists(COLUMNS, max_size=5).map(tuple)),
    b"Y": st.builds(Type, OIDS, NAMES, NAMES),
    b"O": st.builds(Origin, LSNS, NAMES),
    b"I": st.builds(Insert, OIDS, VALUES),
    b"U": st.builds(Update, OIDS, st.none(), st.just(False), VALUES) | st.builds(Update, OIDS, VALUES, st.booleans(), VALUES),
    b"D": st.builds(Delete, OIDS, VALUES, st.booleans()),
    b"T": st.builds(Truncate, st.lists(OIDS, max_size=4).map(tuple), st.booleans(), st.booleans()),
    b"M": st.builds(Message, st.booleans(), LSNS, NAMES, st.binary(max_size=30)),
}
ANY_MESSAGE = st.one_of(*MESSAGES.values())


def test_each_type_of_message_is_tried() -> None:
    assert MESSAGES.keys() == DECODERS.keys()


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.decode())
def test_a_message_is_read_as_it_was_written(kind: bytes) -> None:
    @given(MESSAGES[kind])
    def check(message: PgoutputMessage) -> None:
        data = encode(message)
        assert data[:1] == kind
        assert decode(data) == message

    check()


def test_the_zero_of_times_is_the_year_2000() -> None:
    """Bytes as the manual lays them out, by hand."""
    assert decode(b"B" + (0x16B374D848).to_bytes(8, "big") + bytes(8) + (731).to_bytes(4, "big")) == Begin(
        Lsn.parse("16/B374D848"), 946_684_800_000_000, 731
    )
    assert decode(b"C\0" + (1).to_bytes(8, "big") + (2).to_bytes(8, "big") + (1).to_bytes(8, "big")) == Commit(
        Lsn(1), Lsn(2), 946_684_800_000_001
    )


def test_a_relation_without_a_namespace_is_in_pg_catalog() -> None:
    relation = Relation(1, "pg_catalog", "Größe", "d", (Column("Ünï", 25, -1, True),))
    assert b"pg_catalog" not in encode(relation)
    assert decode(encode(relation)) == relation
    assert decode(encode(Type(1, "pg_catalog", "mood"))) == Type(1, "pg_catalog", "mood")


def test_null_empty_and_unchanged_are_three_things() -> None:
    message = decode(encode(Update(1, None, False, (None, b"", UNCHANGED))))
    assert isinstance(message, Update)
    assert message.new == (None, b"", UNCHANGED)


@given(st.binary(max_size=60))
@example(b"")
@example(b"I")
@example(b"I\0\0\0\1N\0\1t\xff\xff\xff\xff")
@example(b"T\xff\xff\xff\xff\0")
@example(b"T\x7f\xff\xff\xff\0")
@example(b"R\0\0\0\1a\0b\0d\xff\xff")
def test_any_bytes_are_a_message_or_a_protocol_error(data: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        decode(data)


@given(st.sampled_from(sorted(DECODERS)), st.binary(max_size=60))
def test_any_bytes_of_a_known_type_too(kind: bytes, data: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        assert encode(decode(kind + data))[:1] == kind


@given(ANY_MESSAGE, st.data())
def test_a_message_that_is_cut_short_is_refused(message: PgoutputMessage, data: st.DataObject) -> None:
    whole = encode(message)
    with pytest.raises(ProtocolError):
        decode(whole[: data.draw(st.integers(0, len(whole) - 1))])


@given(ANY_MESSAGE, st.binary(min_size=1, max_size=4))
def test_a_message_with_something_behind_it_is_refused(message: PgoutputMessage, more: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(encode(message) + more)


@given(ANY_MESSAGE, st.data())
def test_a_changed_byte_is_another_message_or_a_protocol_error(message: PgoutputMessage, data: st.DataObject) -> None:
    whole = bytearray(encode(message))
    whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ProtocolError):
        decode(bytes(whole))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"X", "unknown pgoutput message type b'X'"),
        (b"", "unknown pgoutput message type b''"),
        (b"I\0\0\0\1O\0\0", "malformed pgoutput message of type b'I': ValueError"),
        (b"I\0\0\0\1N\0\1b", "malformed pgoutput message of type b'I': ValueError"),
        (b"O" + bytes(8) + b"\xff\0", "malformed pgoutput message of type b'O': UnicodeDecodeError"),
        (b"O" + bytes(8) + b"a\0b", "has 12 bytes, 11 expected"),
        (b"B", "malformed pgoutput message of type b'B': error"),
        (b"R\0\0\0\1a\0b\0", "malformed pgoutput message of type b'R': IndexError"),
    ],
)
def test_an_error_says_which_message(data: bytes, said: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        decode(data)
    assert said in caught.value.what


def test_field_case_28_truncate_is_read() -> None:
    assert decode(encode(Truncate((1, 2), True, False))) == Truncate((1, 2), True, False)


def test_field_case_30_messages_are_read_inside_and_outside_of_transactions() -> None:
    for transactional in (True, False):
        assert decode(encode(Message(transactional, Lsn(7), "hb", b"x\0y"))) == Message(transactional, Lsn(7), "hb", b"x\0y")


def test_field_case_35_an_unchanged_value_is_not_null() -> None:
    message = decode(encode(Update(1, (b"id", None), True, (b"id", UNCHANGED))))
    assert isinstance(message, Update)
    assert message.new[1] is UNCHANGED
    assert message.old == (b"id", None)
