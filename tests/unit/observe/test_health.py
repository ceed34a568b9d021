"""Health: one snapshot, and what can be read from it."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.observe.health import HEARTBEAT_MAX_AGE_S, TURNS_KEPT, Health, slot_health
from cdc.pipeline.supervisor import State
from cdc.position import Lsn
from tests.unit.observe.observe_samples import POSITION, SERVER, SLOT, Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def health(clock: Clock) -> Health:
    return Health("shop", monotonic=clock, wall_us=clock.us)


def test_live_while_the_loop_turns(health: Health, clock: Clock) -> None:
    def live() -> bool:
        return health.live

    assert live()
    clock.now += HEARTBEAT_MAX_AGE_S
    assert not live()
    health.beat()
    assert live()
    assert health.beat_age_s() == 0


def test_ready_is_streaming_alone(health: Health) -> None:
    for state in State:
        health.turned(state, "")
        assert health.snapshot.ready == (state is State.STREAMING)


def test_a_standby_says_so(health: Health) -> None:
    health.turned(State.STANDBY, "slot is active for pid 7")
    assert health.snapshot.standby
    assert not health.snapshot.ready
    assert repr(health) == "<Health shop: standby, slot is active for pid 7>"


def test_an_attempt_is_no_news(health: Health) -> None:
    health.turned(State.OPENING, "")
    health.turned(State.BACKOFF, "no broker")
    turns = len(health.snapshot.turns)
    assert not health.turned(State.OPENING, "")
    assert not health.turned(State.BACKOFF, "no broker")
    assert health.snapshot.turn.state == "backoff"
    assert health.turned(State.BACKOFF, "no server")
    assert health.turned(State.STREAMING, "")
    assert len(health.snapshot.turns) == turns + 2


def test_turns_are_bounded(health: Health) -> None:
    for i in range(TURNS_KEPT * 2):
        health.turned(State.BACKOFF, f"reason {i}")
    assert len(health.snapshot.turns) == TURNS_KEPT
    assert health.document()["last_errors"][0]["reason"] == f"reason {TURNS_KEPT * 2 - 1}"


def test_lag(health: Health, clock: Clock) -> None:
    def lag() -> tuple[int | None, float | None]:
        return health.snapshot.lag_bytes, health.snapshot.lag_s(clock.us())

    assert lag() == (None, None)
    health.looked(SERVER, None)
    assert lag() == (None, None)
    health.committed(POSITION, 5, 1)
    assert lag() == (100, 50.0)
    health.committed(dataclasses.replace(POSITION, end_lsn=Lsn(1001)), 5, 1)
    assert lag() == (0, 0.0)
    assert health.snapshot.events == 10
    assert health.snapshot.dead_letters == 2


def test_pipeline_lag_is_told_apart_from_an_old_transaction() -> None:
    slot = slot_health(SERVER)
    assert slot is not None
    assert slot.retained_bytes == 900
    assert slot.confirmed_lag_bytes == 800
    assert slot.held_back_bytes == 100
    caught_up = dataclasses.replace(SLOT, confirmed_flush_lsn=Lsn(1000))
    held = slot_health(dataclasses.replace(SERVER, slot=caught_up))
    assert held is not None
    assert (held.confirmed_lag_bytes, held.held_back_bytes) == (0, 900)


@given(st.none() | st.integers(0, 2000).map(Lsn), st.none() | st.integers(0, 2000).map(Lsn))
def test_what_is_retained_is_lag_and_what_is_held_back(restart: Lsn | None, confirmed: Lsn | None) -> None:
    slot = slot_health(
        dataclasses.replace(
            SERVER,
            flush_lsn=Lsn(2000),
            slot=dataclasses.replace(SLOT, restart_lsn=restart, confirmed_flush_lsn=confirmed),
        )
    )
    assert slot is not None
    if restart is not None and confirmed is not None and restart <= confirmed:
        assert slot.retained_bytes == (slot.confirmed_lag_bytes or 0) + (slot.held_back_bytes or 0)
    assert (slot.retained_bytes is None) == (restart is None)


def test_seconds_until_the_slot_is_lost(health: Health, clock: Clock) -> None:
    def look(safe: int | None) -> float | None:
        health.looked(dataclasses.replace(SERVER, slot=dataclasses.replace(SLOT, safe_wal_size=safe)), None)
        clock.now += 10
        assert health.snapshot.slot is not None
        return health.snapshot.slot.seconds_until_lost

    assert look(5000) is None
    assert look(4000) == 40.0
    assert look(4000) == 80.0
    assert look(6000) is None
    assert look(0) == 0.0
    assert look(None) is None


def test_no_slot(health: Health) -> None:
    health.looked(dataclasses.replace(SERVER, slot=None), POSITION)
    document = health.document()
    assert document["slot"] is None
    assert document["position"]["end_lsn"] == "0/384"


def test_the_document_before_anything_is_known(health: Health) -> None:
    document = health.document()
    assert document["state"] == "starting"
    assert document["position"] is None
    assert document["server"] is None
    assert document["lag"] == {"bytes": None, "seconds": None}
