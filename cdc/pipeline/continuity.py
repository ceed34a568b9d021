"""The proof that the log goes on where the position stands; values in, ContinuityError out, no I/O.

Strategy: each check is a function of what the server, the slot and Kafka said at one moment and of the position record, and
says in its words what would be lost or doubled if the pipeline streamed all the same. The order is that of an operator's
questions: is it the right cluster, the right server, the right slot, and does the log still hold what comes next.

`confirmed_flush_lsn <= position` always holds, because only committed positions are confirmed. So a slot that is ahead
proves that somebody moved it or that Kafka lost positions; a slot that is behind is normal, also after a clean restart of
PostgreSQL, which keeps confirmed positions in memory and writes them with a checkpoint.

What no moment shows is judged in the stream (cdc.postgres.witness): whether the log below the position is the same one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from cdc.errors import ContinuityError, PostgresRefused
from cdc.position import Fingerprint, Lsn, Position
from cdc.postgres.server import Server, SlotState


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known at one passage through the door."""

    pipeline: str
    slot: str
    server: Server
    kafka_cluster_id: str
    position: Position | None


RECOVER = "`cdc recover` makes a new slot and publishes the rows that Kafka lacks"


def first_look(evidence: Evidence) -> None:
    """Refuse what is clear before anybody is fenced; raises as `prove` does.

    Without the fence the newest positions may be hidden (behind another writer's open Kafka transaction, or because the
    markers of the last commit are still on their way), so nothing is concluded from a position that is missing or behind.
    Nor from one beyond the end of the log: another instance may have moved on since the server was looked at.
    """
    position, slot = evidence.position, evidence.server.slot
    if slot is None or (position is not None and position.pending is None):
        _checked(evidence)


def prove(evidence: Evidence) -> Position:
    """Return the position from which to stream; raises ContinuityError or PostgresRefused.

    It carries what is proved now: the server's own history, so that a second promotion is compared with the first one's
    timeline, and the end of the log up to which the publication is the same.
    """
    position, slot = _checked(evidence)
    _log_end(evidence.server, position)
    confirmed = slot.confirmed_flush_lsn
    if confirmed is not None and confirmed > position.end_lsn:
        msg = (
            f"slot {slot.name!r} is ahead: it forgot everything up to {confirmed}, there are positions up to "
            f"{position.end_lsn}; what was committed in between ({_gap(position.end_lsn, confirmed)}) would be missing"
        )
        raise ContinuityError(msg, "find out who moved the slot or lost the position topic, then `cdc recover`")
    publication = evidence.server.publication
    assert publication is not None, "a missing publication was refused"
    history, until = evidence.server.timeline_history, position.replay_until
    fork = dict(history).get(position.timeline_history[-1][0])
    if until is not None and fork:  # behind the fork stand other transactions than those that were published
        until = min(until, fork) if fork > position.end_lsn else None
    return replace(position, timeline_history=history, publication_fingerprint=publication, replay_until=until)


def listening(position: Position, message_prefix: str | None) -> Position:
    """Return the position for a process that takes messages of this prefix.

    With another prefix than before, the part of the log that is skipped holds other events than were published from it, so
    there is no witness until the next one.
    """
    if position.message_prefix == message_prefix:
        return position
    return replace(position, message_prefix=message_prefix, witness="unknown")


def _checked(evidence: Evidence) -> tuple[Position, SlotState]:
    server, position = evidence.server, _position(evidence)
    _kafka(evidence.kafka_cluster_id, position)
    _system(server, position)
    _recovery(server)
    _history(server, position)
    slot = _slot(evidence, position)
    _publication(server, position)
    return position, slot


def _position(evidence: Evidence) -> Position:
    position, has_slot = evidence.position, evidence.server.slot is not None
    if position is None:
        if has_slot:
            msg = f"slot {evidence.slot!r} exists but the position topic holds no position of pipeline {evidence.pipeline!r}"
            fix = "point to the right position topic; if it was lost there: `cdc recover --adopt`; else drop the slot and run `cdc init`"
            raise ContinuityError(msg, fix)
        msg = f"pipeline {evidence.pipeline!r} has neither a slot {evidence.slot!r} nor a position"
        raise ContinuityError(msg, "run `cdc init`")
    if position.pipeline != evidence.pipeline:
        msg = f"the position topic belongs to pipeline {position.pipeline!r}, not to {evidence.pipeline!r}"
        raise ContinuityError(msg, "give each pipeline a position topic of its own (topics.position)")
    if position.pending is not None:
        msg = f"`cdc init` began at {position.pending} and did not finish"
        raise ContinuityError(msg, "run `cdc init` again")
    return position


def _slot(evidence: Evidence, position: Position) -> SlotState:
    slot, server = evidence.server.slot, evidence.server
    if slot is None:
        gap = f"the log after {position.end_lsn} may be gone ({_gap(position.end_lsn, server.flush_lsn)} up to now)"
        timeline = server.timeline_history[-1][0]
        if timeline != position.timeline_history[-1][0]:
            fork = dict(server.timeline_history)[position.timeline_history[-1][0]]
            msg = (
                f"slot {evidence.slot!r} did not come along when this server was promoted to timeline {timeline}, which forked at {fork}: "
                f"nothing that was published is gone, but {gap}"
            )
            raise ContinuityError(msg, f"{RECOVER}; for the next time a failover slot (PostgreSQL 17) and sync_replication_slots")
        raise ContinuityError(f"slot {evidence.slot!r} is missing: {gap}", RECOVER)
    if slot.name != position.slot:
        msg = f"the position was made with slot {position.slot!r}, the settings name {slot.name!r}"
        raise ContinuityError(msg, "correct postgres.slot")
    if slot.plugin != "pgoutput":
        msg = f"slot {slot.name!r} has output plugin {slot.plugin!r}, not pgoutput"
        raise ContinuityError(msg, "it belongs to somebody else: choose another postgres.slot")
    if slot.wal_status == "lost" or slot.invalidation_reason is not None:
        why = slot.invalidation_reason or "the log it needs was removed (max_slot_wal_keep_size)"
        msg = f"slot {slot.name!r} is lost: {why}; events after {position.end_lsn} cannot be read from the log any more"
        raise ContinuityError(msg, RECOVER)
    return slot


def _kafka(kafka_cluster_id: str, position: Position) -> None:
    if position.kafka_cluster_id != kafka_cluster_id:
        msg = f"this is cluster {kafka_cluster_id!r}, the position was made on {position.kafka_cluster_id!r}"
        raise ContinuityError(msg, 'correct kafka."bootstrap.servers"; after a move `cdc recover --adopt`')


def _system(server: Server, position: Position) -> None:
    if position.system_id != server.system_id:
        msg = f"this is PostgreSQL system {server.system_id}, the position was made on {position.system_id}"
        raise ContinuityError(msg, "correct postgres.dsn; after pg_upgrade `cdc recover --adopt`")


def _recovery(server: Server) -> None:
    if server.in_recovery:
        msg = "the server is in recovery (a standby); its log may still be replaced"
        raise ContinuityError(msg, "connect to the primary: target_session_attrs=read-write in postgres.dsn")


def _history(server: Server, position: Position) -> None:
    """Refuse a log that forked below the position: its transactions there are others than those that were published."""
    timeline, _end = position.timeline_history[-1]
    for (ours, our_end), (theirs, their_end) in zip(position.timeline_history[:-1], server.timeline_history, strict=False):
        if (ours, our_end) != (theirs, their_end):
            msg = f"timeline {ours} ended at {our_end} for the position, and {theirs} at {their_end} for this server"
            raise ContinuityError(msg, "this server has another history: connect to the one that was published from")
    forks = dict(server.timeline_history)
    if timeline not in forks:
        msg = f"the position was made on timeline {timeline}, which is not in this server's history"
        raise ContinuityError(msg, "this is a sibling or an older copy: connect to the server that was published from")
    fork = forks[timeline]
    if timeline != server.timeline_history[-1][0] and position.end_lsn > fork:
        msg = (
            f"the log forked at {fork}, below the position {position.end_lsn}: "
            f"events of {_gap(fork, position.end_lsn)} were published that this server no longer has"
        )
        if server.slot is None:
            msg += f"; there is no slot either, so rows that were committed after the fork ({_gap(fork, server.flush_lsn)}) may be missing"
        raise ContinuityError(msg, "`cdc recover` goes back to the fork with a raised generation")


def _log_end(server: Server, position: Position) -> None:
    if position.end_lsn > server.flush_lsn:
        msg = f"the position {position.end_lsn} lies beyond the end of this server's log, {server.flush_lsn}"
        raise ContinuityError(msg, "the server was restored to an earlier time: `cdc recover`")


def _publication(server: Server, position: Position) -> None:
    proved, now = position.publication_fingerprint, server.publication
    gap = f"rows that were written meanwhile may be missing from the log ({_gap(proved.proved_lsn, server.flush_lsn)})"
    if now is None:
        msg = f"the publication is missing: {gap}"
        raise ContinuityError(msg, "`cdc recover` makes it again and publishes the rows that Kafka lacks")
    if not now.same(proved):
        msg = f"the publication is not the one that was proved up to {proved.proved_lsn}, {_change(proved, now)}: {gap}"
        raise ContinuityError(msg, "see that it publishes inserts into the outbox, then `cdc recover`")


def _change(before: Fingerprint, now: Fingerprint) -> str:
    if before.oid != now.oid:
        return "it was dropped and made again"
    if before.xmin != now.xmin:
        return "its options, name or owner were changed"
    if before.schemas != now.schemas:
        return "its schemas were changed"
    return "its tables, their row filters or column lists were changed"


def owned(server: Server, slot: str) -> None:
    """Check that both connections reach one server and that the slot is held by ours; raises PostgresRefused."""
    if not server.ours:
        msg = f"slot {slot!r} is not held by our replication connection: two connections reached two servers"
        raise PostgresRefused(msg, "name one server in postgres.dsn, or add target_session_attrs=read-write")


def _gap(begin: Lsn, end: Lsn) -> str:
    return f"{begin} to {end}, {max(0, end - begin):,} bytes"
