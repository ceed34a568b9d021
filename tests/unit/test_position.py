"""Places in the log and the record of a position: what is written is read, and what is not ours is refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.errors import ContinuityError
from cdc.position import Existing, Fingerprint, Gap, Lsn, Member, Position, Witness, time_from_text, time_text

LSNS = st.integers(0, 2**64 - 1).map(Lsn)
TIMES = st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999)
NUMBERS = st.integers(0, 2**32 - 1)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
WITNESSES = st.builds(Witness, LSNS, NUMBERS, TIMES) | st.sampled_from(["none", "unknown"])
POSITIONS = st.builds(
    Position,
    pipeline=TEXTS,
    generation=st.integers(0, 0xFFFF),
    system_id=TEXTS,
    timeline_history=st.lists(st.tuples(NUMBERS, LSNS), min_size=1, max_size=4).map(tuple),
    slot=TEXTS,
    publication_fingerprint=st.builds(
        Fingerprint, NUMBERS, NUMBERS, st.lists(st.builds(Member, NUMBERS, NUMBERS, NUMBERS), max_size=3).map(tuple), LSNS
    ),
    kafka_cluster_id=TEXTS,
    end_lsn=LSNS,
    commit_time_us=TIMES,
    witness=WITNESSES,
    message_prefix=st.none() | TEXTS,
    existing=st.builds(Existing, st.sampled_from(["none", "skip", "publish"]), TEXTS),
    hold=st.none() | TEXTS,
    pending=st.none() | TEXTS,
    replay_until=st.none() | LSNS,
    gap=st.none() | st.builds(Gap, LSNS, LSNS, NUMBERS, TIMES),
)

POSITION = Position(
    pipeline="shop",
    generation=3,
    system_id="7300000000000000001",
    timeline_history=((1, Lsn.parse("0/17000390")), (2, Lsn(0))),
    slot="cdc_shop",
    publication_fingerprint=Fingerprint(16_390, 740, (Member(16_391, 741, 16_400),), Lsn(0x100)),
    kafka_cluster_id="cluster",
    end_lsn=Lsn.parse("16/B374D848"),
    commit_time_us=1_800_000_000_123_456,
    witness=Witness(Lsn(0x99), 844, 1_800_000_000_000_001),
    message_prefix=None,
    existing=Existing("skip", "740:745:742"),
)


def test_an_lsn_prints_as_postgresql_prints_it() -> None:
    assert str(Lsn.parse("16/B374D848")) == "16/B374D848"
    assert repr(Lsn(0)) == "Lsn(0/0)"
    assert Lsn.parse("ffffffff/ffffffff") == 2**64 - 1


@given(LSNS)
def test_an_lsn_is_read_as_it_was_printed(lsn: Lsn) -> None:
    assert Lsn.parse(str(lsn)) == lsn


@given(LSNS, LSNS)
def test_an_lsn_compares_as_a_number(one: Lsn, two: Lsn) -> None:
    assert (one < two) is (int(one) < int(two))


@pytest.mark.parametrize("text", ["", "0", "0/", "/0", "G/0", "0/100000000", " 0/0", "0/0 ", "0/0\n", "-1/0", "0/+1"])
def test_what_is_no_lsn_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not an LSN such as"):
        Lsn.parse(text)


def test_a_time_keeps_its_six_digits() -> None:
    assert time_text(1_800_000_000_000_001) == "2027-01-15T08:00:00.000001Z"
    assert time_text(0) == "1970-01-01T00:00:00.000000Z"


@given(TIMES)
def test_a_time_is_read_as_it_was_written(unix_us: int) -> None:
    assert time_from_text(time_text(unix_us)) == unix_us


@given(POSITIONS)
def test_a_position_is_read_as_it_was_written(position: Position) -> None:
    assert Position.from_json(position.to_json()) == position


def test_the_record_has_the_fields_that_are_promised() -> None:
    document = orjson.loads(POSITION.to_json())
    assert document == {
        "format": 1,
        "pipeline": "shop",
        "generation": 3,
        "system_id": "7300000000000000001",
        "timeline_history": [[1, "0/17000390"], [2, "0/0"]],
        "slot": "cdc_shop",
        "publication_fingerprint": {"oid": 16_390, "xmin": 740, "members": [[16_391, 741, 16_400]], "proved_lsn": "0/100"},
        "kafka_cluster_id": "cluster",
        "end_lsn": "16/B374D848",
        "commit_time": "2027-01-15T08:00:00.123456Z",
        "witness": {"end_lsn": "0/99", "xid": 844, "commit_time": "2027-01-15T08:00:00.000001Z"},
        "message_prefix": None,
        "existing": {"mode": "skip", "snapshot": "740:745:742"},
    }


def test_schemas_of_the_publication_are_there_where_it_has_some() -> None:
    fingerprint = dataclasses.replace(POSITION.publication_fingerprint, schemas=(Member(16_500, 800, 2_200),))
    position = dataclasses.replace(POSITION, publication_fingerprint=fingerprint)
    assert orjson.loads(position.to_json())["publication_fingerprint"]["schemas"] == [[16_500, 800, 2_200]]
    assert Position.from_json(position.to_json()) == position
    assert not fingerprint.same(POSITION.publication_fingerprint)


def test_hold_pending_and_replay_are_there_where_they_apply() -> None:
    position = dataclasses.replace(POSITION, hold="recover", pending="now", replay_until=Lsn(0x10))
    document = orjson.loads(position.to_json())
    assert (document["hold"], document["pending"], document["replay_until"]) == ("recover", "now", "0/10")


def broken(**changes: Any) -> bytes:  # noqa: ANN401 - what JSON may hold
    return orjson.dumps(orjson.loads(POSITION.to_json()) | changes)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"\xff",
        broken(end_lsn="nowhere"),
        broken(end_lsn=5),
        broken(commit_time="yesterday"),
        broken(witness={"end_lsn": "0/0"}),
        broken(timeline_history=[[1]]),
        broken(timeline_history=None),
        broken(publication_fingerprint={"oid": 1}),
        broken(publication_fingerprint=None),
        broken(existing="skip"),
        broken(replay_until="x"),
    ],
)
def test_what_to_json_does_not_write_is_refused(data: bytes) -> None:
    with pytest.raises(ContinuityError, match=r"the position record cannot be read: \w+\. Fix: somebody else wrote"):
        Position.from_json(data)


def test_another_format_names_both() -> None:
    with pytest.raises(ContinuityError, match=r"has format 2, this version reads 1\. Fix: run the version of cdc that wrote it"):
        Position.from_json(broken(format=2))


def test_advancing_keeps_the_witness_while_no_events_come() -> None:
    end, witness = Lsn(POSITION.end_lsn + 10), Witness(Lsn(POSITION.end_lsn + 10), 9, 9)
    idle = POSITION.advanced(end, 7, None)
    assert (idle.end_lsn, idle.commit_time_us, idle.witness) == (end, 7, POSITION.witness)
    assert POSITION.advanced(end, 7, witness).witness == witness


@pytest.mark.parametrize(("end", "left"), [(0x1F, Lsn(0x20)), (0x20, None), (0x21, None)])
def test_a_replay_ends_where_it_said(end: int, left: Lsn | None) -> None:
    position = dataclasses.replace(POSITION, end_lsn=Lsn(0x10), replay_until=Lsn(0x20))
    assert position.advanced(Lsn(end), 0, None).replay_until == left


def test_a_fingerprint_is_the_same_whatever_it_is_proved_up_to() -> None:
    one = POSITION.publication_fingerprint
    assert one.same(dataclasses.replace(one, proved_lsn=Lsn(0)))
    for change in ({"oid": 1}, {"xmin": 1}, {"members": ()}):
        assert not one.same(dataclasses.replace(one, **change))
