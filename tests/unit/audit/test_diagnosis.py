"""What `cdc recover` mends and how, by what both ends say."""

from __future__ import annotations

import pytest

from cdc.audit.diagnosis import COMMIT_SKEW_US, Remedy, common_end, diagnose
from cdc.errors import ContinuityError
from cdc.pipeline.continuity import Evidence
from cdc.position import Fingerprint, Lsn, Position, Witness
from cdc.postgres.server import Server
from tests.unit.pipeline.samples import SERVER, position, server, slot

NOW = Lsn(0)
PROMOTED = ((1, Lsn(0x90)), (2, NOW))


def evidence(seen: Server, at: Position | None = None, cluster: str = "cluster") -> Evidence:
    return Evidence("shop", "cdc_shop", seen, cluster, at or position())


@pytest.mark.parametrize(
    ("ours", "theirs", "end"),
    [
        (((1, NOW),), ((1, NOW),), None),
        (((1, NOW),), ((1, Lsn(9)), (2, NOW)), 9),
        (((1, Lsn(9)), (2, NOW)), ((1, Lsn(9)), (2, NOW)), None),
        (((1, Lsn(9)), (2, NOW)), ((1, Lsn(9)), (2, Lsn(20)), (3, NOW)), 20),
        (((1, Lsn(9)), (2, NOW)), ((1, Lsn(7)), (2, NOW)), 7),
        (((1, Lsn(9)), (2, NOW)), ((1, Lsn(11)), (3, NOW)), 9),
        (((1, Lsn(9)), (2, NOW)), ((1, Lsn(9)), (3, NOW)), 9),
        (((1, Lsn(9)), (2, NOW)), ((1, NOW),), 9),
        (((4, NOW),), ((1, NOW),), 0),
    ],
)
def test_where_two_histories_part(ours: tuple[tuple[int, Lsn], ...], theirs: tuple[tuple[int, Lsn], ...], end: int | None) -> None:
    assert common_end(ours, theirs) == end
    assert common_end(theirs, ours) == end


def test_nothing_is_wrong() -> None:
    assert diagnose(evidence(SERVER), adopt=False, rebuild=False) is None
    assert diagnose(evidence(SERVER), adopt=True, rebuild=False) is None


def test_only_a_hold_has_to_end() -> None:
    found = diagnose(evidence(SERVER, position(hold="cdc slot rewind, today, here")), adopt=False, rebuild=False)
    assert found is not None
    assert (found.remedy, found.reason) == (Remedy.RELEASE, "held: cdc slot rewind, today, here")


@pytest.mark.parametrize(
    "seen",
    [
        server(slot=None),
        server(slot=slot(wal_status="lost")),
        server(slot=slot(confirmed_flush_lsn=Lsn(0x180))),
        server(publication=None),
        server(publication=Fingerprint(1, 2, (), NOW)),
    ],
)
def test_what_the_log_cannot_give_is_looked_for_in_the_table(seen: Server) -> None:
    at = position(commit_time_us=1_800_000_000_000_000, witness=Witness(Lsn(0x90), 7, 1_700_000_000_000_000))
    found = diagnose(evidence(seen, at), adopt=False, rebuild=False)
    assert found is not None
    assert (found.remedy, found.begin, found.same_rows) == (Remedy.REBUILD, 0x100, True)
    assert found.published_us == 1_700_000_000_000_000 - COMMIT_SKEW_US
    assert found.unpublished_us == 1_800_000_000_000_000 + COMMIT_SKEW_US
    idle = diagnose(evidence(seen, position(commit_time_us=1_800_000_000_000_000)), adopt=False, rebuild=False)
    assert idle is not None
    assert idle.published_us is None, "a keepalive's time proves nothing of what lies before it"


def test_a_rebuild_that_is_asked_for_relies_on_nothing() -> None:
    found = diagnose(evidence(SERVER), adopt=False, rebuild=True)
    assert found is not None
    assert (found.remedy, found.published_us) == (Remedy.REBUILD, None)


def test_back_to_the_fork_when_the_slot_can_give_the_rest() -> None:
    came_along = server(timeline_history=PROMOTED, slot=slot(confirmed_flush_lsn=Lsn(0x90)))
    found = diagnose(evidence(came_along), adopt=False, rebuild=False)
    assert found is not None
    assert (found.remedy, found.begin) == (Remedy.FORK, 0x90)
    assert "forked at 0/90" in found.reason


@pytest.mark.parametrize("left", [None, slot(confirmed_flush_lsn=Lsn(0x91)), slot(wal_status="lost")])
def test_beyond_a_fork_without_such_a_slot_the_table_is_asked_and_no_time_is_trusted(left: object) -> None:
    found = diagnose(evidence(server(timeline_history=PROMOTED, slot=left)), adopt=False, rebuild=False)
    assert found is not None
    assert (found.remedy, found.begin, found.published_us) == (Remedy.REBUILD, 0x90, None)


def test_a_server_that_was_put_back_is_asked_for_its_table_and_no_time_is_trusted() -> None:
    found = diagnose(evidence(server(flush_lsn=Lsn(0x99))), adopt=False, rebuild=False)
    assert found is not None
    assert (found.remedy, found.published_us) == (Remedy.REBUILD, None)


@pytest.mark.parametrize(
    ("seen", "cluster", "words"),
    [
        (server(system_id="1"), "cluster", "this is PostgreSQL system 1"),
        (SERVER, "another", "this is cluster 'another'"),
        (server(timeline_history=((1, Lsn(0x90)), (3, NOW))), "cluster", "position was made on timeline 2"),
    ],
)
def test_strangers_are_adopted_only_when_somebody_says_so(seen: Server, cluster: str, words: str) -> None:
    at = position(timeline_history=((1, Lsn(0x90)), (2, NOW))) if "timeline" in words else position()
    with pytest.raises(ContinuityError, match=words) as refused:
        diagnose(evidence(seen, at, cluster), adopt=False, rebuild=False)
    assert "`cdc recover --adopt`" in refused.value.fix
    found = diagnose(evidence(seen, at, cluster), adopt=True, rebuild=False)
    assert found is not None
    assert found.published_us is None
    assert found.same_rows == (seen.system_id == at.system_id)


@pytest.mark.parametrize(
    ("seen", "at", "words"),
    [
        (server(in_recovery=True), position(), "in recovery"),
        (SERVER, position(slot="cdc_other"), "the settings name 'cdc_shop'"),
        (server(slot=slot(plugin="test_decoding")), position(), "output plugin 'test_decoding'"),
    ],
)
def test_what_no_new_slot_mends(seen: Server, at: Position, words: str) -> None:
    with pytest.raises(ContinuityError, match=words):
        diagnose(evidence(seen, at), adopt=True, rebuild=True)
