"""Headers as Debezium's outbox event router writes them: the id, and what is placed."""

from __future__ import annotations

import json

import pytest

from cdc.errors import InvalidEvent
from cdc.event import Record, name_of
from cdc.outbox.dead_letter import dead_letter, original
from cdc.outbox.mapping import OutboxMapping, locate
from cdc.outbox.replay import marked
from cdc.outbox.router import Router
from tests.unit.outbox.samples import BEGIN, ROW, TIMESTAMPTZ, Asked, relation, router, row

BOOL = 16
PLACED = {"eventType": "type", "tenant": "tenant"}


def headers(placed: dict[str, str] | None = None, **changes: bytes | None) -> list[tuple[str, bytes | None]]:
    names = relation(*(ROW | changes), urgent=BOOL, at=TIMESTAMPTZ)
    values = tuple((ROW | changes).values())
    return router(headers="debezium", placed=placed or {}).route((BEGIN, names, 0, values)).headers


def test_the_id_alone_and_then_what_is_placed_in_its_order() -> None:
    assert headers() == [("id", b"e1")]
    assert headers(payload=None) == [("id", b"e1")]
    assert headers(PLACED, tenant=b"a") == [("id", b"e1"), ("eventType", b"OrderPlaced"), ("tenant", b"a")]
    assert headers(PLACED, tenant=None)[-1] == ("tenant", None)


def test_booleans_and_times_are_written_as_debezium_writes_them() -> None:
    placed = {"urgent": "urgent", "at": "at"}
    found = dict(headers(placed, urgent=b"t", at=b"2026-01-31 12:00:00.5+00"))
    assert (found["urgent"], found["at"]) == (b"true", b"2026-01-31T12:00:00.5Z")
    found = dict(headers(placed, urgent=b"f", at=b"infinity"))
    assert (found["urgent"], found["at"]) == (b"false", b"infinity")
    found = dict(headers(placed, urgent=None, at=None))
    assert (found["urgent"], found["at"]) == (None, None)


def test_a_path_into_the_payload_can_be_placed_and_any_name_is_one() -> None:
    assert headers({"what kind-é": "payload.kind"})[-1] == ("what kind-é", b"x")


def test_the_rows_own_headers_and_trace_follow_and_cannot_take_our_names() -> None:
    found = headers(headers=b'{"tenant": "a"}', traceparent=b"00-1")
    assert found == [("id", b"e1"), ("tenant", b"a"), ("traceparent", b"00-1")]
    for name in ("id", "replay"):
        with pytest.raises(InvalidEvent, match="reserved"):
            headers(headers=json.dumps({name: "x"}).encode())


def test_placement_beside_cloudevents() -> None:
    found = router(placed={"kind": "type"}).route(row()).headers
    assert found[0] == ("ce_specversion", b"1.0")
    assert ("kind", b"OrderPlaced") in found


def test_a_placed_column_that_is_missing_is_named() -> None:
    with pytest.raises(InvalidEvent, match=r"no column 'tenant' for topics\.placement \(tenant\)"):
        locate(OutboxMapping(placed={"tenant": "tenant"}), list(ROW))


def test_a_dead_letter_keeps_what_is_placed() -> None:
    mapping = OutboxMapping(headers="debezium", placed=PLACED)
    source = Router(mapping, Asked(), 3)
    parked = row(tenant=b"a", payload=b"{}")
    error = InvalidEvent("schema", "no")
    letter = dead_letter(
        "dead", source.values(parked), error, pipeline="p", sequence="0" * 28, commit_time_us=0, meant_for="t", limit_bytes=10_000
    )
    again = original(mapping, dict(letter.headers), letter.key, ROW["payload"])
    assert Router(mapping, Asked(), 3).route(again).headers == [("id", b"e1"), ("eventType", b"OrderPlaced"), ("tenant", b"a")]


def test_what_tells_an_event() -> None:
    assert name_of(router(headers="debezium").route(row())) == b"id e1"
    assert name_of(router().route(row())) == b"000300000016b374d84800000000"
    assert name_of(Record("t", None, None, [("cdc.id", b"e1")], 0)) is None


def test_the_marker_of_a_replay() -> None:
    mapping = OutboxMapping(headers="debezium")
    assert marked(router(headers="debezium").route(row()), mapping, "rewind:2").headers == [("id", b"e1"), ("replay", b"rewind:2")]
