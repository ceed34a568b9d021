"""`cdc recover`: when the log cannot give what comes next, a new slot and the rows of the table that Kafka lacks.

Strategy: first a plan, which looks at everything and changes nothing. Then, under a hold: drop what is left of the slot, make
it anew with an exported snapshot, read the table in that snapshot, and publish what Kafka does not have, with the position at
which the new slot begins. The slot streams exactly what its snapshot does not see, so every row is either compared or streamed.

Rules.
- Nothing is remembered: a run that was killed is made again from the beginning, and finds in Kafka what it had published. So the
  topics are read after the fence, and after every Kafka transaction that was open on them has ended.
- What is published goes out in one Kafka transaction with the position, or, where that does not fit, in parts under the hold.
- A row without a record is missing only where its topic still had to have it. Where a topic was cut by retention or is
  compacted, an old row is left alone if it is proved that it was published, and otherwise the plan refuses: to publish it
  again on a guess is as wrong as to leave it out.
- Places: all that is published stands just below the place where the slot begins (`before`), where no commit can stand.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Literal

from cdc.audit.check import look
from cdc.audit.diagnosis import Diagnosis, Remedy, diagnose
from cdc.audit.finding import Case
from cdc.audit.hold import Hold
from cdc.audit.known import UNKNOWN_US, Known, known
from cdc.audit.outbox_rows import SeenBy
from cdc.audit.outgoing import Outgoing, before, nobody_looks
from cdc.audit.table_rows import TableRow, TableRows, looking, table_rows
from cdc.avro.registry import Registry
from cdc.errors import ContinuityError, InvalidEvent, PostgresRefused, StoppedByPolicy
from cdc.outbox.mapping import topics_of
from cdc.outbox.publication import check_outbox
from cdc.outbox.router import Router
from cdc.pipeline.continuity import Evidence
from cdc.pipeline.parking import Policy
from cdc.pipeline.ports import Reader, Sink
from cdc.position import Existing, Fingerprint, Gap, Lsn, Position, Witness, time_text
from cdc.postgres.catalog import LiveCatalog
from cdc.postgres.slot import Administration
from cdc.postgres.transaction import Row
from cdc.resilience.call import nobody_waits

Fate = Literal["known", "missing", "skipped", "left_out", "expired", "doubtful"]

NEWER_US = 60_000_000
"""A row that is so much newer than the first record its topic still keeps would be there, had it been published."""

ABORT_S = 5.0
"""How long leaving may take, so that readers need not wait for the timeout of an open Kafka transaction."""

Progress = Callable[[float], object]


@dataclass(frozen=True, slots=True)
class Ends:
    """Both ends of a pipeline, and what recover is asked for."""

    case: Case
    admin_dsn: str
    route: str
    dead_letter: str
    source: str
    policy: Policy
    registry: Registry
    publisher: Sink
    subscriber: Reader
    catalog: LiveCatalog
    say: Callable[[str], None]
    adopt: bool = False
    rebuild: bool = False
    since_us: int | None = None


@dataclass(slots=True)
class Plan:
    """What would be done, and the counts by which it was decided."""

    diagnosis: Diagnosis
    position: Position
    counts: dict[Fate, int] = field(default_factory=dict)
    events: int = 0
    dead_letters: int = 0
    gap: Gap | None = None

    def document(self) -> dict[str, object]:
        """Return what `--json` prints."""
        count = self.counts.get
        return {
            "remedy": str(self.diagnosis.remedy),
            "reason": self.diagnosis.reason,
            "generation": self.position.generation,
            "end_lsn": str(self.position.end_lsn),
            "gap": {"begin": str(self.diagnosis.begin), "end": str(self.position.end_lsn if self.gap is None else self.gap.end)},
            "rows": sum(self.counts.values()),
            "published": self.events,
            "dead_letters": self.dead_letters,
            "known": count("known", 0),
            "skipped": count("skipped", 0),
            "left_out": count("left_out", 0) + count("expired", 0),
        }


def planned(ends: Ends, hold: Hold, progress: Progress) -> Plan | None:
    """Look at both ends and return what is to be done, or None when nothing is wrong; changes nothing.

    Raises what the rows would be refused for: ContinuityError for rows of which nobody can tell whether they were published,
    StoppedByPolicy for one that cannot become an event where the policy is to stop.
    """
    peeked, cluster = _peek(ends)
    position = hold.allows(peeked)
    diagnosis = _diagnosed(ends, position, cluster)
    if diagnosis is None:
        return None
    plan = Plan(diagnosis, position)
    if diagnosis.remedy is Remedy.REBUILD:
        check_outbox(ends.catalog, ends.case.publication, ends.case.table, ends.case.mapping)
        rows = table_rows(ends.catalog, ends.case.table, ends.case.mapping)
        if ends.since_us is not None:
            rows.need_time("--since")
        with _known(ends, rows, progress) as kafka, looking(ends.case.dsn, ends.case.application_name) as view:
            fates = _Fates(ends, kafka, plan, Router(ends.case.mapping, ends.registry.encoder, 0))
            for row in fates.missing(rows.read(view, Lsn(0)), progress):
                fates.expect(row)
            fates.refuse_doubt()
    return plan


def carried_out(ends: Ends, hold: Hold, progress: Progress) -> Plan:
    """Do it; may be called again after a Retriable error, and begins anew then."""
    case, publisher = ends.case, ends.publisher
    administration = Administration(ends.admin_dsn, case.dsn, case.application_name)
    try:
        if not publisher.positions.exists(nobody_waits) and ends.adopt and case.create is not None:
            publisher.positions.create(case.create.replication_factor, case.create.min_insync_replicas, nobody_waits)
            ends.say(f"created topic {publisher.positions.topic}")
        publisher.require(case.static_topics, nobody_waits)
        held = hold.take(publisher, ends.catalog, case.slot)
        diagnosis = _diagnosed(ends, held, publisher.cluster_id(nobody_waits))
        assert diagnosis is not None, "a position on hold is never all right"
        plan = Plan(diagnosis, held)
        if diagnosis.remedy is Remedy.REBUILD:
            _rebuild(ends, hold, administration, plan, progress)
        else:
            position = dataclasses.replace(held, generation=held.generation + 1)
            if diagnosis.remedy is Remedy.FORK:
                history = look(case, ends.catalog).timeline_history
                plan.gap = Gap(diagnosis.begin, held.end_lsn, 0, time.time_ns() // 1000)
                position = dataclasses.replace(
                    position, end_lsn=diagnosis.begin, timeline_history=history, witness="unknown", replay_until=None, gap=plan.gap
                )
            plan.position = hold.end(publisher, position)
    except BaseException:
        publisher.abort(ABORT_S)
        raise
    finally:
        administration.close()
    return plan


def lost(ends: Ends, now_us: int) -> Position:
    """Return what stands in for a position that Kafka has lost: it claims nothing, so every row of the table is compared."""
    case = ends.case
    server = look(case, ends.catalog)
    if server.slot is None:
        msg = f"pipeline {case.pipeline!r} has neither a slot {case.slot!r} nor a position"
        raise ContinuityError(msg, "run `cdc init`")
    return Position(
        pipeline=case.pipeline,
        generation=0,
        system_id=server.system_id,
        timeline_history=server.timeline_history,
        slot=case.slot,
        publication_fingerprint=server.publication or Fingerprint(0, 0, (), Lsn(0)),
        kafka_cluster_id=ends.publisher.cluster_id(nobody_waits),
        end_lsn=Lsn(0),
        commit_time_us=now_us,
        witness="unknown",
        message_prefix=case.mapping.message_prefix,
        existing=Existing("none", ""),
    )


def _peek(ends: Ends) -> tuple[Position | None, str]:
    """Return the position and the cluster's id; a position topic that may be made anew holds none."""
    publisher = ends.publisher
    if ends.adopt and ends.case.create is not None and not publisher.positions.exists(nobody_waits):
        return None, publisher.cluster_id(nobody_waits)
    return publisher.peek()


def _diagnosed(ends: Ends, position: Position, cluster: str) -> Diagnosis | None:
    case = ends.case
    evidence = Evidence(case.pipeline, case.slot, look(case, ends.catalog), cluster, position)
    return diagnose(evidence, adopt=ends.adopt, rebuild=ends.rebuild)


def _rebuild(ends: Ends, hold: Hold, administration: Administration, plan: Plan, progress: Progress) -> None:
    case, held, say = ends.case, plan.position, ends.say
    if ends.catalog.slot(case.slot) is not None:
        administration.drop_slot(case.slot)
    if administration.ensure_publication(case.publication, case.table):
        say(f"created publication {case.publication!r} for inserts into {case.table}")
    say(f"creating slot {case.slot!r}; it waits for transactions that are open now")
    rows = table_rows(ends.catalog, case.table, case.mapping)
    with administration.new_slot(case.slot) as (consistent_point, exported):
        server = look(case, ends.catalog)
        if server.publication is None:
            raise PostgresRefused(f"publication {case.publication!r} was dropped meanwhile", "run `cdc recover` again")
        with _known(ends, rows, progress) as kafka, looking(case.dsn, case.application_name, exported) as view:
            # A position that was lost has taken its generation with it; the records tell it.
            generation = max(held.generation, kafka.generation) + 1
            router = Router(case.mapping, ends.registry.encoder, generation)
            outgoing = Outgoing(ends.publisher, router, generation, ends.policy, lambda: ends.publisher.commit(held, nobody_waits))
            fates = _Fates(ends, kafka, plan, router)
            outgoing.publish(fates.missing(rows.read(view, before(consistent_point)), progress), nobody_looks)
            fates.refuse_doubt()
            plan.events, plan.dead_letters = outgoing.events, outgoing.dead_letters
            plan.gap = Gap(plan.diagnosis.begin, consistent_point, plan.events + plan.dead_letters, view.now_us)
            position = dataclasses.replace(
                held,
                generation=generation,
                system_id=server.system_id,
                timeline_history=server.timeline_history,
                publication_fingerprint=dataclasses.replace(server.publication, proved_lsn=consistent_point),
                kafka_cluster_id=ends.publisher.cluster_id(nobody_waits),
                end_lsn=consistent_point,
                commit_time_us=view.now_us,
                witness="none",
                existing=Existing("skip", view.snapshot) if plan.counts.get("left_out") else held.existing,
                replay_until=None,
                gap=plan.gap,
            )
            plan.position = hold.end(ends.publisher, position)


class _Fates:
    """Decides what each row of the table is, and counts."""

    def __init__(self, ends: Ends, kafka: Known, plan: Plan, router: Router) -> None:
        self._ends = ends
        self._kafka = kafka
        self._plan = plan
        self._router = router
        skips = plan.position.existing.mode == "skip"
        self._skipped = SeenBy(plan.position.existing.snapshot) if skips else ()

    def missing(self, rows: Iterable[TableRow], progress: Progress) -> Iterator[Row]:
        """Yield the rows that have to be published; counts the others."""
        counts = self._plan.counts
        for row in rows:
            fate = self._fate(row)
            counts[fate] = counts.get(fate, 0) + 1
            if fate == "missing":
                yield row.row
            progress(1)

    def expect(self, row: Row) -> None:
        """Count what a missing row would become; raises StoppedByPolicy."""
        try:
            self._router.route(row)
            self._plan.events += 1
        except InvalidEvent as error:
            if self._ends.policy.dead_letter_topic is None:
                event = (self._router.values(row).get("id") or b"").decode(errors="backslashreplace")
                msg = f"row {event or 'without id'} cannot become an event ({error.reason}): {error.what}; nothing was changed"
                raise StoppedByPolicy(msg, error.fix or 'mend the schema or the row, or set outbox.on_invalid = "dead-letter"') from error
            self._plan.dead_letters += 1

    def refuse_doubt(self) -> None:
        """Raise ContinuityError when there are rows of which nobody can tell whether they were published."""
        doubtful, position = self._plan.counts.get("doubtful", 0), self._plan.position
        if not doubtful:
            return
        reach = ", ".join(
            f"{topic} {'not at all' if since == UNKNOWN_US else 'back to ' + time_text(since)}"
            for topic, since in sorted(self._kafka.told_since_us.items())
        )
        if not reach:
            reach = "init skipped rows, and this server's transactions have other numbers"
        msg = f"{doubtful} rows have no record, and nobody can tell whether they had one; topics tell: {reach}"
        witness, fix = position.witness, "say from when on rows without a record are to be published: --since TIME"
        if isinstance(witness, Witness):
            fix += f"; everything before {time_text(witness.commit_time_us)} was published, an hour less is safe"
        raise ContinuityError(msg, fix)

    def _fate(self, row: TableRow) -> Fate:
        if (self._router.values(row.row).get("id") or b"") in self._kafka:
            return "known"
        skipped, since_us = row.xid in self._skipped, self._ends.since_us
        if skipped and self._plan.diagnosis.same_rows:
            return "skipped"
        if since_us is not None:
            return "left_out" if row.time_us is not None and row.time_us < since_us else "missing"
        return "doubtful" if skipped else self._by_topic(row)

    def _by_topic(self, row: TableRow) -> Fate:
        """Tell what a row without a record is by what its topic still has."""
        told_since_us = self._kafka.told_since_us.get(self._topic(row.row))
        diagnosis, committed_us = self._plan.diagnosis, row.committed_us
        if told_since_us is None:
            return "missing"
        if committed_us is not None and diagnosis.published_us is not None and committed_us <= diagnosis.published_us:
            return "expired"
        if committed_us is not None and diagnosis.unpublished_us is not None and committed_us > diagnosis.unpublished_us:
            return "missing"
        newer = told_since_us != UNKNOWN_US and row.time_us is not None and row.time_us > told_since_us + NEWER_US
        return "missing" if newer else "doubtful"

    def _topic(self, row: Row) -> str:
        try:
            return self._router.route(row).topic
        except InvalidEvent:
            return self._ends.dead_letter


def _known(ends: Ends, rows: TableRows, progress: Progress) -> closing[Known]:
    """Read the ids of everything that Kafka has of this pipeline."""
    case = ends.case
    topics = {*topics_of(ends.route, ends.subscriber.names(nobody_waits)), ends.dead_letter, *_own_topics(ends, rows)}
    found = known(
        ends.subscriber,
        topics - {ends.publisher.positions.topic},
        pipeline=case.pipeline,
        source=ends.source,
        dead_letter=ends.dead_letter,
        progress=progress,
    )
    return closing(found)


def _own_topics(ends: Ends, rows: TableRows) -> set[str]:
    """Return the topics that rows name themselves, where they may."""
    if "topic" not in ends.case.mapping.columns and "topic" not in rows.by_name:
        return set()
    router, topics = Router(ends.case.mapping, ends.registry.encoder, 0), set[str]()
    with looking(ends.case.dsn, ends.case.application_name) as view:
        for row in rows.read(view, Lsn(0)):
            try:
                topics.add(router.route(row.row).topic)
            except InvalidEvent:
                continue
    return topics
