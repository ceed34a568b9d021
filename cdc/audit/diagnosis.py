"""What `cdc recover` has to mend, from what both ends say at one moment; values in, diagnosis out, no I/O.

Strategy: the pipeline's own proof says what is wrong, in its words. What mends it follows from facts, and there are three
remedies:

    RELEASE   slot and position fit: a command was interrupted, and only its hold has to end
    FORK      the log forked below the position and the slot is at or below the fork: go back to it, and the log gives the rest
    REBUILD   the log cannot give what is missing: a new slot, and the rows of its snapshot that Kafka lacks

REBUILD is right whatever happened, because it compares what is there on both ends; the others are cheaper.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from cdc.errors import ContinuityError
from cdc.pipeline import continuity
from cdc.pipeline.continuity import Evidence
from cdc.position import Lsn, Position, Witness
from cdc.postgres.server import Server

COMMIT_SKEW_US = 60_000_000
"""Commit times do not have the order of the log to the microsecond, and clocks are set: what was committed so long before a
transaction lies before it in the log."""

History = tuple[tuple[int, Lsn], ...]


class Remedy(StrEnum):
    """How it is mended."""

    RELEASE = "release"
    FORK = "fork"
    REBUILD = "rebuild"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What is wrong, how it is mended, and what may still be relied on.

    The log from `begin` on is what the pipeline could not read, or (FORK) will read anew. Whatever was committed before
    `published_us` was published, and whatever was committed after `unpublished_us` was not; None when nothing proves it.
    `same_rows`: transactions still have the numbers that they had, so the snapshot of init still tells its rows.

    The position's own time proves nothing of what lies before it: an idle advance has the time of a keepalive, which the
    decoding of a long stretch of log may have kept back far below. The witness is a transaction, and has its own.
    """

    remedy: Remedy
    reason: str
    begin: Lsn
    published_us: int | None = None
    unpublished_us: int | None = None
    same_rows: bool = True


def diagnose(evidence: Evidence, *, adopt: bool, rebuild: bool) -> Diagnosis | None:
    """Return what to mend, or None when all is well; raises ContinuityError for what must not be mended, or not like this."""
    position, server = evidence.position, evidence.server
    assert position is not None, "Hold.allows has refused a missing position"
    if server.in_recovery:
        msg = "the server is in recovery (a standby); its log may still be replaced"
        raise ContinuityError(msg, "connect to the primary: target_session_attrs=read-write in postgres.dsn")
    foreign = strange(evidence, position)
    if foreign is not None and not adopt:
        msg = f"{foreign}; nothing was changed"
        raise ContinuityError(msg, "correct the settings; if this one replaces it (pg_upgrade, a move, a failover): `cdc recover --adopt`")
    _ours(evidence, position)
    reason = foreign or _wrong(evidence)
    if reason is None and not rebuild:
        held = Diagnosis(Remedy.RELEASE, f"held: {position.hold}", position.end_lsn)
        return None if position.hold is None else held
    common = common_end(position.timeline_history, server.timeline_history)
    forked = common is not None and position.end_lsn > common
    same_system = position.system_id == server.system_id
    same_ends = same_system and position.kafka_cluster_id == evidence.kafka_cluster_id
    if common is not None and forked and same_ends and not rebuild and _streams_from(server, position, common):
        return Diagnosis(Remedy.FORK, reason or "", common)
    continuous = foreign is None and not forked and not rebuild and position.end_lsn <= server.flush_lsn
    witness = position.witness
    return Diagnosis(
        Remedy.REBUILD,
        reason or "the slot and the position fit; a rebuild was asked for",
        common if forked and common is not None else position.end_lsn,
        witness.commit_time_us - COMMIT_SKEW_US if continuous and isinstance(witness, Witness) else None,
        position.commit_time_us + COMMIT_SKEW_US if continuous else None,
        same_rows=same_system,
    )


def strange(evidence: Evidence, position: Position) -> str | None:
    """Say in what these are not the server and the cluster that were published between, if so."""
    server = evidence.server
    if position.system_id != server.system_id:
        return f"this is PostgreSQL system {server.system_id}, the position was made on {position.system_id}"
    if position.kafka_cluster_id != evidence.kafka_cluster_id:
        return f"this is cluster {evidence.kafka_cluster_id!r}, the position was made on {position.kafka_cluster_id!r}"
    timeline = position.timeline_history[-1][0]
    ancestors = position.timeline_history[:-1]
    if server.timeline_history[: len(ancestors)] != ancestors or timeline not in dict(server.timeline_history):
        return f"the position was made on timeline {timeline}, which is not in this server's history (a sibling or an older copy)"
    return None


def common_end(ours: History, theirs: History) -> Lsn | None:
    """Return where two histories part, or None when one timeline goes on in both."""
    before = Lsn(0)
    for (timeline, end), (other, other_end) in zip(ours, theirs, strict=False):
        if timeline != other:
            return before
        if end != other_end:
            return min(each for each in (end, other_end) if each)
        if not end:
            return None
        before = end
    return before


def _wrong(evidence: Evidence) -> str | None:
    try:
        continuity.prove(evidence)
    except ContinuityError as error:
        return error.what
    return None


def _ours(evidence: Evidence, position: Position) -> None:
    """Refuse what a new slot would not mend: another pipeline's settings."""
    slot = evidence.server.slot
    if position.slot != evidence.slot:
        msg = f"the position was made with slot {position.slot!r}, the settings name {evidence.slot!r}"
        raise ContinuityError(msg, "correct postgres.slot")
    if slot is not None and slot.plugin != "pgoutput":
        msg = f"slot {slot.name!r} has output plugin {slot.plugin!r}, not pgoutput"
        raise ContinuityError(msg, "it belongs to somebody else: choose another postgres.slot")


def _streams_from(server: Server, position: Position, place: Lsn) -> bool:
    """Tell whether the slot can give everything after a place, with the publication as it was."""
    slot = server.slot
    return usable(server, position) and slot is not None and slot.confirmed_flush_lsn is not None and slot.confirmed_flush_lsn <= place


def usable(server: Server, position: Position) -> bool:
    """Tell whether slot and publication are those of the position, and not lost."""
    slot, publication = server.slot, server.publication
    return (
        slot is not None
        and slot.name == position.slot
        and slot.plugin == "pgoutput"
        and slot.wal_status != "lost"
        and slot.invalidation_reason is None
        and publication is not None
        and publication.same(position.publication_fingerprint)
    )
