"""Another number of shards while writers write: a barrier in the log, which the old shards reach and the new ones begin at.

Strategy: the new publications and slots are made first, under *pending* positions. Then writers are locked out of the outbox for
a moment: when the lock is there, every row before it is committed, and a message marks the place in the log. When every old shard
has published up to there it is held, and the new ones get that place as their first position. The lock goes; whatever is
committed from here on comes to the new slots behind their position, and to the old ones never again.

Rules.
- A position of an old shard is at or behind the barrier, and no row of the outbox is committed between the two, so all of them are
  the same place for the rows: the smallest is where the new shards begin.
- That holds only if the lock lasted until the last old shard was held. So the lock's transaction is asked once more before the first
  position of a new shard is committed, and that position is the proof.
- A command that was killed is run again. If a new shard has its first position, it goes on from there and keeps the new slots. If
  not, the lock went with it and old shards may have gone on: what it held is let go, and it begins anew.
- What is over stays held, so that an instance that somebody starts by the old number waits, and publishes nothing twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from psycopg import errors, sql

from cdc.audit.hold import Hold
from cdc.audit.init import Plan, Say, init
from cdc.errors import ContinuityError, Retriable
from cdc.pipeline.ports import Sink
from cdc.position import Existing, Lsn, Position, time_text
from cdc.postgres.catalog import LiveCatalog
from cdc.postgres.connection import connect, remedies
from cdc.postgres.slot import Administration
from cdc.resilience.call import nobody_waits

COMMAND = "cdc init --instead-of"

LOCK_WITHIN = "3s"
"""How long writers may be kept waiting behind our wait for those that are in the middle of a transaction."""

FOLLOW_S = 20.0
"""How long the old shards may take to reach the barrier while writers wait; without a lag it is a second."""

POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Shard:
    """A pipeline that ends, or one that begins."""

    plan: Plan
    publisher: Sink


def reshard(old: Sequence[Shard], new: Sequence[Shard], *, host: str, now_us: int, say: Say) -> Lsn:
    """Let the new shards begin where the old ones end; return that place. Raises Retriable when writers or shards were too slow."""
    plan = new[0].plan
    catalog, administration = LiveCatalog(plan.dsn, plan.application_name), Administration(plan.admin_dsn, plan.dsn, plan.application_name)
    try:
        hold = Hold(COMMAND, host=host, now_us=now_us)
        places = [hold.allows(shard.publisher.peek()[0]) for shard in old]
        passed = all(place.hold for place in places) and any(map(_begun, new))
        if not passed:
            for shard, place in zip(old, places, strict=True):
                if place.hold:
                    hold.end(shard.publisher, hold.take(shard.publisher, catalog, shard.plan.slot))
        drafts = [_prepared(shard, administration, catalog, now_us, say, keep_slot=passed) for shard in new]
        with _quiet(plan, administration, say) as (barrier, snapshot, still_quiet):
            if not passed:
                _follow(old, barrier)
            ended = [Hold(COMMAND, host=host, now_us=now_us).take(shard.publisher, catalog, shard.plan.slot) for shard in old]
            still_quiet()
            start, generation = min(place.end_lsn for place in ended), max(place.generation for place in ended)
            for shard, draft in zip(new, drafts, strict=True):
                if draft.pending is not None:
                    existing = Existing("skip", snapshot)
                    first = replace(draft, pending=None, end_lsn=start, generation=generation, witness="unknown", existing=existing)
                    shard.publisher.commit(first, nobody_waits)
        for shard in old:
            if catalog.slot(shard.plan.slot) is not None:
                administration.drop_slot(shard.plan.slot)
            administration.execute(sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(shard.plan.publication)).as_string())
            say(f"pipeline {shard.plan.pipeline!r} has ended at {start}; its slot and publication are gone")
        return start
    finally:
        catalog.close()
        administration.close()


def _prepared(  # noqa: PLR0913 - both ends
    shard: Shard, administration: Administration, catalog: LiveCatalog, now_us: int, say: Say, *, keep_slot: bool
) -> Position:
    """Make what a new shard needs; return the draft of its first position, or the first position of one that has begun."""
    plan, publisher = shard.plan, shard.publisher

    def begin(publisher: Sink, pending: Position, ensure_publication: object, say: Say) -> Position:
        assert callable(ensure_publication)
        publisher.recover(nobody_waits)
        publisher.commit(pending, nobody_waits)
        there = catalog.slot(plan.slot) is not None
        if there and not keep_slot:
            administration.drop_slot(plan.slot)
        ensure_publication()
        if not there or not keep_slot:
            with administration.new_slot(plan.slot) as (consistent_point, _):
                say(f"created slot {plan.slot!r} at {consistent_point}")
        fingerprint = catalog.publication(plan.publication, Lsn(0))
        assert fingerprint is not None, "made a moment ago"
        return replace(pending, publication_fingerprint=fingerprint)

    if publisher.positions.exists(nobody_waits):
        before, _ = publisher.peek()
        if before is not None and before.hold is not None and before.hold.startswith(COMMAND):  # it was ended by this command once
            publisher.recover(nobody_waits)
            publisher.commit(replace(before, hold=None, pending=time_text(now_us)), nobody_waits)
    return init(replace(plan, existing="skip", take_over=begin), publisher, now_us, say)


@contextmanager
def _quiet(plan: Plan, administration: Administration, say: Say) -> Iterator[tuple[Lsn, str, Callable[[], object]]]:
    """Keep writers out of the outbox; give a place in the log behind all that they committed, and what a snapshot then shows.

    The third raises when writers may have come in since, because the connection was lost.
    """
    with connect(plan.admin_dsn, plan.application_name) as connection, remedies("locking the outbox"), connection.transaction():
        connection.execute(f"SET LOCAL lock_timeout = '{LOCK_WITHIN}'".encode())
        try:
            connection.execute(sql.SQL("LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE").format(plan.table.identifier))
        except errors.LockNotAvailable:
            msg = f"a transaction that writes to {plan.table} did not end within {LOCK_WITHIN}, and PostgreSQL's lock was given up"
            raise Retriable(msg, "run the command again when no long transaction is open") from None
        [(snapshot,)] = connection.execute("SELECT pg_current_snapshot()::text").fetchall()
        # By a commit of its own, which writes the log down to there: without one the message may lie in memory for as long as
        # nothing else is committed, and writers wait for shards that wait for the message.
        [(barrier,)] = administration.execute("SELECT pg_logical_emit_message(true, 'cdc.shards', %s)::text", (plan.pipeline,))
        began = time.monotonic()
        yield Lsn.parse(barrier), snapshot, lambda: connection.execute("SELECT")
        say(f"writers waited for {time.monotonic() - began:.1f} s")


def _begun(shard: Shard) -> bool:
    """Whether a new shard has its first position."""
    if not shard.publisher.positions.exists(nobody_waits):
        return False
    place, _ = shard.publisher.peek()
    return place is not None and place.pending is None and place.hold is None


def _follow(old: Sequence[Shard], barrier: Lsn) -> None:
    deadline = time.monotonic() + FOLLOW_S
    left = list(old)
    while left := [shard for shard in left if (place := shard.publisher.peek()[0]) is None or place.end_lsn < barrier]:
        if time.monotonic() >= deadline:
            names = ", ".join(shard.plan.pipeline for shard in left)
            msg = f"{names} did not come to {barrier} within {FOLLOW_S:.0f} s, and nothing was changed"
            raise ContinuityError(msg, "see that they run and have no lag (`cdc status`), then run this again")
        time.sleep(POLL_S)
