"""The marker of a replay: on what was published before, and on nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from cdc.errors import InvalidEvent
from cdc.event import Route
from cdc.outbox.mapping import OutboxMapping
from cdc.outbox.replay import ReplayRouter, marked, router_from
from cdc.outbox.router import Router
from cdc.pipeline.parking import Policy, park
from cdc.position import Lsn
from cdc.postgres.pgoutput import Begin, Column, Relation
from cdc.postgres.transaction import Row
from tests.unit.pipeline.samples import position

NAMES = ("id", "aggregatetype", "aggregateid", "type", "payload")
RELATION = Relation(1, "public", "outbox", "d", tuple(Column(name, 25, -1, key=False) for name in NAMES))


class Encoder:
    dataschema = "Thing/1"

    def encode(self, payload: bytes) -> bytes:
        return payload


def encoder(_subject: str, _version: int | None) -> Any:  # noqa: ANN401 - stands for a compiled one
    return Encoder()


def row(lsn: int) -> Row:
    return Begin(Lsn(lsn), 1_800_000_000_000_000, 7), RELATION, 0, (b"1", b"thing", b"k", b"Thing", b"{}")


def test_a_passage_without_a_replay_has_the_plain_router() -> None:
    assert type(router_from(OutboxMapping(), encoder, position())) is Router


def test_what_would_have_been_skipped_is_marked_and_what_follows_is_live() -> None:
    router = router_from(OutboxMapping(), encoder, position(generation=3, replay_until=Lsn(0x200)))
    assert isinstance(router, ReplayRouter)
    marks = [dict(router.route(row(lsn)).headers).get("ce_replay") for lsn in (0x100, 0x1FF, 0x200, 0x300)]
    assert marks == [b"rewind:3", b"rewind:3", None, None]
    plain = Router(OutboxMapping(), encoder, 3).route(row(0x100))
    assert router.route(row(0x100)) == marked(plain, OutboxMapping(), "rewind:3")
    assert dict(plain.headers).get("ce_replay") is None, "the headers of one record are not another one's"


@pytest.mark.parametrize(("lsn", "mark"), [(0x100, b"rewind:3"), (0x200, None)])
def test_a_dead_letter_is_marked_as_well(lsn: int, mark: bytes | None) -> None:
    router = router_from(OutboxMapping(), encoder, position(generation=3, replay_until=Lsn(0x200)))
    route = Route("dead", 1, 1_000_000, compacted=False, timestamp_before_ms=None, timestamp_after_ms=None)
    parked = park(
        row(lsn),
        InvalidEvent("schema", "wrong"),
        router=router,
        policy=Policy("shop", "dead"),
        generation=3,
        route=lambda _: route,
        now_ms=1_800_000_000_000,
    )
    assert dict(parked.record.headers).get("ce_replay") == mark
