"""Every reason not to stream, in words that name the places in the log and the way out."""

from __future__ import annotations

import dataclasses

import pytest

from cdc.errors import CdcError, ContinuityError, PostgresRefused
from cdc.pipeline.continuity import Evidence, first_look, listening, owned, prove
from cdc.position import Fingerprint, Lsn, Member, Position
from cdc.postgres.server import Server
from tests.unit.pipeline.samples import FINGERPRINT, POSITION, SERVER, position, server, slot


def evidence(
    seen: Server = SERVER, kept: Position | None = POSITION, cluster: str = "cluster", pipeline: str = "shop", name: str = "cdc_shop"
) -> Evidence:
    return Evidence(pipeline, name, seen, cluster, kept)


OTHER_FINGERPRINT = dataclasses.replace(FINGERPRINT, xmin=999)
FORKED = ((1, Lsn(0x180)), (2, Lsn(0)))

REFUSALS: dict[str, tuple[Evidence, str, str]] = {
    "neither": (
        evidence(server(slot=None), None),
        "pipeline 'shop' has neither a slot 'cdc_shop' nor a position",
        "run `cdc init`",
    ),
    "another pipeline's topic": (
        evidence(kept=position(pipeline="till")),
        "the position topic belongs to pipeline 'till', not to 'shop'",
        "topics.position",
    ),
    "no slot": (
        evidence(server(slot=None)),
        "slot 'cdc_shop' is missing: the log after 0/100 may be gone (0/100 to 0/200, 256 bytes up to now)",
        "`cdc recover`",
    ),
    "another slot": (
        evidence(kept=position(slot="cdc_till")),
        "the position was made with slot 'cdc_till', the settings name 'cdc_shop'",
        "postgres.slot",
    ),
    "another plugin": (
        evidence(server(slot=slot(plugin="wal2json"))),
        "slot 'cdc_shop' has output plugin 'wal2json', not pgoutput",
        "choose another postgres.slot",
    ),
    "lost": (
        evidence(server(slot=slot(wal_status="lost"))),
        "slot 'cdc_shop' is lost: the log it needs was removed (max_slot_wal_keep_size); events after 0/100",
        "`cdc recover`",
    ),
    "invalidated": (
        evidence(server(slot=slot(invalidation_reason="idle_timeout"))),
        "slot 'cdc_shop' is lost: idle_timeout; events after 0/100 cannot be read from the log any more",
        "`cdc recover`",
    ),
    "another Kafka": (
        evidence(cluster="mirror"),
        "this is cluster 'mirror', the position was made on 'cluster'",
        'kafka."bootstrap.servers"',
    ),
    "another PostgreSQL": (
        evidence(server(system_id="1")),
        "this is PostgreSQL system 1, the position was made on 7300000000000000001",
        "postgres.dsn",
    ),
    "a standby": (
        evidence(server(in_recovery=True)),
        "the server is in recovery (a standby)",
        "target_session_attrs=read-write",
    ),
    "a sibling": (
        evidence(server(timeline_history=((1, Lsn(0x80)), (2, Lsn(0)))), position(timeline_history=((1, Lsn(0x80)), (3, Lsn(0))))),
        "the position was made on timeline 3, which is not in this server's history",
        "connect to the server that was published from",
    ),
    "an older server": (
        evidence(kept=position(timeline_history=FORKED)),
        "timeline 1 ended at 0/180 for the position, and 1 at 0/0 for this server",
        "connect to the one that was published from",
    ),
    "another branch": (
        evidence(kept=position(timeline_history=FORKED), seen=server(timeline_history=((1, Lsn(0x170)), (2, Lsn(0))))),
        "timeline 1 ended at 0/180 for the position, and 1 at 0/170 for this server",
        "another history",
    ),
    "a fork below the position": (
        evidence(seen=server(timeline_history=((1, Lsn(0xF0)), (2, Lsn(0))))),
        "the log forked at 0/F0, below the position 0/100: events of 0/F0 to 0/100, 16 bytes were published",
        "`cdc recover` goes back to the fork",
    ),
    "no publication": (
        evidence(server(publication=None)),
        "the publication is missing: rows that were written meanwhile may be missing from the log (0/50 to 0/200, 432 bytes)",
        "`cdc recover` makes it again",
    ),
    "another publication": (
        evidence(server(publication=dataclasses.replace(FINGERPRINT, oid=999))),
        "the publication is not the one that was proved up to 0/50, it was dropped and made again: rows that were written meanwhile",
        "`cdc recover`",
    ),
    "a changed publication": (
        evidence(server(publication=OTHER_FINGERPRINT)),
        "its options, name or owner were changed: rows that were written meanwhile may be missing from the log (0/50 to 0/200, 432 bytes)",
        "`cdc recover`",
    ),
    "a publication of other tables": (
        evidence(server(publication=dataclasses.replace(FINGERPRINT, members=()))),
        "its tables, their row filters or column lists were changed",
        "`cdc recover`",
    ),
    "a publication of other schemas": (
        evidence(server(publication=dataclasses.replace(FINGERPRINT, schemas=(Member(16_500, 800, 2_200),)))),
        "its schemas were changed",
        "`cdc recover`",
    ),
    "promoted without the slot": (
        evidence(server(slot=None, timeline_history=FORKED)),
        (
            "slot 'cdc_shop' did not come along when this server was promoted to timeline 2, which forked at 0/180: nothing that was"
            " published is gone, but the log after 0/100 may be gone (0/100 to 0/200, 256 bytes up to now)"
        ),
        "failover slot",
    ),
    "promoted below the position without the slot": (
        evidence(server(slot=None, timeline_history=((1, Lsn(0xF0)), (2, Lsn(0))))),
        "no longer has; there is no slot either, so rows that were committed after the fork (0/F0 to 0/200, 272 bytes) may be missing",
        "`cdc recover` goes back to the fork",
    ),
}  # fmt: skip

ONLY_BEHIND_THE_FENCE: dict[str, tuple[Evidence, str, str]] = {
    "no position": (
        evidence(kept=None),
        "slot 'cdc_shop' exists but the position topic holds no position of pipeline 'shop'",
        "drop the slot and run `cdc init`",
    ),
    "init began": (
        evidence(kept=position(pending="2026-01-31T12:00:00Z")),
        "`cdc init` began at 2026-01-31T12:00:00Z and did not finish",
        "run `cdc init` again",
    ),
    "beyond the log": (
        evidence(server(flush_lsn=Lsn(0xFF))),
        "the position 0/100 lies beyond the end of this server's log, 0/FF",
        "the server was restored to an earlier time: `cdc recover`",
    ),
    "the slot is ahead": (
        evidence(server(slot=slot(confirmed_flush_lsn=Lsn(0x180)))),
        "it forgot everything up to 0/180, there are positions up to 0/100; what was committed in between (0/100 to 0/180, 128 bytes)",
        "find out who moved the slot or lost the position topic, then `cdc recover`",
    ),
}  # fmt: skip
"""What the first look cannot know: the newest position may be hidden, and another instance may have moved on meanwhile."""


@pytest.mark.parametrize("case", REFUSALS | ONLY_BEHIND_THE_FENCE)
def test_it_is_refused_in_words_that_help(case: str) -> None:
    given, what, fix = (REFUSALS | ONLY_BEHIND_THE_FENCE)[case]
    with pytest.raises(ContinuityError) as caught:
        prove(given)
    assert what in caught.value.what
    assert fix in caught.value.fix
    assert caught.value.exit_code == 4


@pytest.mark.parametrize("case", REFUSALS)
def test_the_first_look_refuses_before_anybody_is_fenced(case: str) -> None:
    given, what, _ = REFUSALS[case]
    with pytest.raises(ContinuityError) as caught:
        first_look(given)
    assert what in caught.value.what


@pytest.mark.parametrize("case", ONLY_BEHIND_THE_FENCE)
def test_the_first_look_concludes_nothing_from_what_may_be_hidden(case: str) -> None:
    first_look(ONLY_BEHIND_THE_FENCE[case][0])


def test_the_first_look_takes_a_pipeline_as_it_is() -> None:
    first_look(evidence())


@pytest.mark.parametrize(
    "seen",
    [
        SERVER,
        server(slot=slot(confirmed_flush_lsn=Lsn(0x10))),
        server(slot=slot(confirmed_flush_lsn=None)),
        server(slot=slot(wal_status="extended")),
        server(slot=slot(wal_status=None)),
        server(flush_lsn=Lsn(0x100)),
        server(publication=dataclasses.replace(FINGERPRINT, proved_lsn=Lsn(0x999))),
        server(timeline_history=((1, Lsn(0x100)), (2, Lsn(0)))),
        server(timeline_history=((1, Lsn(0x180)), (2, Lsn(0x190)), (3, Lsn(0)))),
    ],
    ids=[
        "as it was",
        "slot behind",
        "slot new",
        "extended",
        "old server",
        "end of log",
        "proved further",
        "fork at the position",
        "two promotions",
    ],
)
def test_what_is_normal_is_proved(seen: Server) -> None:
    assert seen.publication is not None
    proved = dataclasses.replace(POSITION, timeline_history=seen.timeline_history, publication_fingerprint=seen.publication)
    assert prove(evidence(seen)) == proved


def test_a_position_made_after_a_promotion_goes_on_after_another() -> None:
    kept = position(timeline_history=((1, Lsn(0x80)), (2, Lsn(0))))
    twice = ((1, Lsn(0x80)), (2, Lsn(0x180)), (3, Lsn(0)))
    assert prove(evidence(server(timeline_history=twice), kept)).timeline_history == twice


def test_the_order_of_questions_is_an_operators() -> None:
    """With everything wrong at once, the position is spoken of first."""
    wrong = evidence(server(system_id="1", in_recovery=True, publication=None), position(pipeline="till"), "mirror")
    with pytest.raises(CdcError, match="belongs to pipeline 'till'"):
        prove(wrong)
    with pytest.raises(CdcError, match="cluster 'mirror'"):
        prove(evidence(server(system_id="1", in_recovery=True), cluster="mirror"))


def test_a_gap_that_runs_backwards_is_no_negative_size() -> None:
    with pytest.raises(ContinuityError, match="0 bytes up to now"):
        prove(evidence(server(slot=None, flush_lsn=Lsn(0))))


def test_the_slot_must_be_held_by_our_connection() -> None:
    owned(SERVER, "cdc_shop")
    with pytest.raises(PostgresRefused, match="two connections reached two servers") as caught:
        owned(server(ours=False), "cdc_shop")
    assert "target_session_attrs" in caught.value.fix


def test_a_fingerprint_without_members_is_another_one() -> None:
    with pytest.raises(ContinuityError):
        prove(evidence(server(publication=Fingerprint(FINGERPRINT.oid, FINGERPRINT.xmin, (), Lsn(0)))))


def test_messages_of_another_prefix_leave_no_witness_until_the_next_event() -> None:
    assert listening(POSITION, None) is POSITION
    turned = listening(POSITION, "outbox")
    assert (turned.message_prefix, turned.witness) == ("outbox", "unknown")
    assert listening(turned, "outbox") is turned


@pytest.mark.parametrize(("until", "left"), [(0x1C0, 0x180), (0x170, 0x170), (None, None)])
def test_a_replay_ends_at_the_fork_at_the_latest(until: int | None, left: int | None) -> None:
    """What stands behind the fork was never published, though the server before had got that far once."""
    kept = position(replay_until=None if until is None else Lsn(until))
    assert prove(evidence(server(timeline_history=FORKED), kept)).replay_until == left
    assert prove(evidence(kept=kept)).replay_until == until


def test_a_replay_that_has_reached_the_fork_is_over() -> None:
    kept = position(replay_until=Lsn(0x1C0))
    at_the_fork = server(timeline_history=((1, Lsn(0x100)), (2, Lsn(0))))
    assert prove(evidence(at_the_fork, kept)).replay_until is None
