"""`cdc init --from-debezium`: a stopped connector's slot becomes the pipeline's, and the first position is proved, not believed.

Strategy: take the slot, so that the connector cannot come back; note the end of the log; read Connect's offsets to their end,
and the ids of the events that Kafka has. Then read the log with the connector's own publication from where the slot stands to
that end. What lies below the connector's `lsn_commit` was published, and Kafka has to have it; of what lies above, Kafka has
some (the connector stops in the middle of a transaction when its batch was full), and the rest is published now, in one
Kafka transaction with the first position. The pipeline begins where that ends, with a publication of its own.

Rules.
- `lsn_commit` is the end of the last commit that the connector had passed when it made the event of its last offset
  (PostgresOffsetContext; the walsender's frame of a Commit carries the end of its record). The slot never passes it; if it has,
  events were acknowledged whose offsets were not written, and what lies between cannot be proved.
- Ids decide, because rows of one COPY share an LSN. If Kafka lacks an event that the offsets call published, the route or
  the header `id` is not what the settings say, and nothing may be concluded from what Kafka lacks.
- Nothing is written to either end before all of it is proved; a failure leaves the slot as it was, for either of both.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from cdc.audit.init import ABORT_S
from cdc.audit.known import BATCH, Known
from cdc.audit.outbox_rows import end_of_log
from cdc.audit.outgoing import Outgoing
from cdc.audit.verify import event_id
from cdc.errors import ContinuityError, KafkaRefused, TransactionTimedOut
from cdc.kafka.subscriber import Subscriber
from cdc.outbox.mapping import OutboxMapping, topics_of
from cdc.outbox.publication import check_publication
from cdc.outbox.replay import Encoders
from cdc.outbox.router import Router
from cdc.pipeline.parking import Policy
from cdc.pipeline.ports import Sink
from cdc.position import Existing, Lsn, Position, Witness
from cdc.postgres import partitions
from cdc.postgres.catalog import LiveCatalog
from cdc.postgres.slot import Table
from cdc.postgres.stream import ReplicationStream
from cdc.postgres.transaction import Row, TransactionEnd
from cdc.resilience.call import nobody_waits

CLOCK_MARGIN_MS = 3_600_000
"""Events are looked for from so long before the first row's commit on: their time is that of the connector's clock."""

WAIT_S = 0.2
"""Longest wait for the log; it tells where it ends twice a second when it is quiet."""

LSN_MAX = 1 << 64

UNSTOPPED = "let the connector publish one more event, stop it with PUT /connectors/NAME/stop so that it writes its offsets, try again"


@dataclass(frozen=True, slots=True)
class Offset:
    """Where a connector stands: `commit_lsn` is None before it has passed a commit; the last event's transaction, 0 if untold."""

    commit_lsn: Lsn | None
    xid: int


def offset_of(document: object) -> Offset:
    """Read a connector's offset; raises ContinuityError for one that proves nothing."""
    if not isinstance(document, dict):
        raise ContinuityError("the connector has no offset: it was reset, or never published", "drop the slot and begin with `cdc init`")
    snapshot = str(document.get("snapshot", "")).lower()
    if snapshot not in ("", "false") and not (document.get("last_snapshot_record") or document.get("snapshot_completed")):
        raise ContinuityError("the connector is in the middle of its snapshot", "let it end")
    place = document.get("lsn_commit", document.get("lsn_proc"))
    if place is not None and not (isinstance(place, int) and 0 < place < LSN_MAX):
        raise ContinuityError("the connector's offset names no LSN", "it is of another kind of connector, or of another version")
    xid = document.get("txId")
    return Offset(None if place is None else Lsn(place), xid % (1 << 32) if isinstance(xid, int) else 0)


@dataclass(slots=True)
class _Told:
    """What the log held beyond where the slot stood."""

    published: int = 0
    missing: str | None = None
    named: int = 0
    witness: Witness | None = None
    end: TransactionEnd | None = None


@dataclass(slots=True)
class Takeover:
    """A connector whose place is taken. `stream` reads the log from its slot on, by its publication, `read_by`.

    `whole_topics`: the time of its records is not that of their commits, so all of a topic has to be read.
    """

    connector: str
    server: str
    offsets_topic: str
    stream: ReplicationStream
    catalog: LiveCatalog
    subscriber: Subscriber
    mapping: OutboxMapping
    encoder: Encoders
    policy: Policy
    table: Table
    publication: str
    read_by: str
    whole_topics: bool
    told: _Told = field(default_factory=_Told)

    def begin(self, publisher: Sink, draft: Position, make_publication: Callable[[], object], say: Callable[[str], None]) -> Position:
        """Prove the place, publish what is left below it, and commit it; `draft` has what a first position needs beside."""
        self.told = _Told()
        try:
            self._readable()
            server = self.stream.look()
            slot = server.slot
            if server.in_recovery:
                raise ContinuityError("the server is in recovery (a standby)", "connect to the primary: target_session_attrs=read-write")
            if slot is None or slot.plugin != "pgoutput" or slot.confirmed_flush_lsn is None:
                what = "does not exist: it may have been dropped with the connector" if slot is None else "is not one of pgoutput"
                raise ContinuityError(f"slot {draft.slot!r} {what}", "begin with a new slot: `cdc init --existing publish` or `skip`")
            self.stream.open()
            make_publication()
            [(snapshot, insert_lsn)] = self.catalog.query("SELECT pg_current_snapshot()::text, pg_current_wal_insert_lsn()::text")
            end = end_of_log(Lsn.parse(insert_lsn))
            offset = self._offset(slot.confirmed_flush_lsn, end)
            fingerprint = self.catalog.publication(self.publication, end)
            assert fingerprint is not None, "it was made, or was there"
            publisher.recover(self.stream.keep_alive, patient=True)
            self.stream.start(replace(draft, end_lsn=slot.confirmed_flush_lsn, witness="unknown"))
            try:
                outgoing = Outgoing(publisher, Router(self.mapping, self.encoder, 0), 0, self.policy, placed=True)
                self._publish(outgoing, offset, end)
                told = self.told
                assert told.end is not None, "reading ends with an end"
                position = replace(
                    draft,
                    publication_fingerprint=fingerprint,
                    end_lsn=told.end.end_lsn,
                    commit_time_us=told.end.commit_time_us or draft.commit_time_us,
                    witness=told.witness or "none",
                    message_prefix=None,
                    existing=Existing("skip", snapshot),
                    pending=None,
                )
                publisher.commit(position, self.stream.keep_alive)
            except BaseException:
                publisher.abort(ABORT_S)
                raise
            self.stream.confirm(position.end_lsn)
            self.stream.finish()
        finally:
            self.stream.drop()
            self.catalog.close()
        say(f"took slot {draft.slot!r} over from connector {self.connector!r}: it had published {told.published} of the events since")
        say(f"{slot.confirmed_flush_lsn}; {outgoing.events + outgoing.dead_letters} were left, and are published")
        return position

    def _readable(self) -> None:
        """Refuse a publication that hides from us what it showed the connector, or the other way round."""
        seen = self.catalog.published(self.read_by, self.table.schema, self.table.name)
        if seen is None:
            raise ContinuityError(f"the connector's publication {self.read_by!r} does not exist", "correct publication.name in its file")
        if not seen.row["puballtables"]:
            check_publication(self.read_by, seen, self.table, self.catalog.columns(self.table.schema, self.table.name) or (), self.mapping)
            return
        [(partitioned, _)] = self.catalog.query(partitions.STATE, (partitions.NAME, self.table.schema, self.table.name)) or [(False, False)]
        if partitioned and not seen.row["pubviaroot"]:
            msg = f"publication {self.read_by!r} names the partitions of {self.table} instead of it (publish_via_partition_root is off)"
            raise ContinuityError(msg, "begin with a new slot: `cdc init --existing publish` or `skip`")

    def _offset(self, confirmed: Lsn, end: Lsn) -> Offset:
        """Return the connector's offset, if it fits this server and this slot."""
        found = offset_of(self._last_offset())
        commit = found.commit_lsn
        if commit is not None and commit > end:
            msg = f"the connector stood at {commit}, beyond the end of this server's log {end}"
            raise ContinuityError(msg, "connect to the server that it read from")
        if commit is not None and commit < confirmed:
            raise ContinuityError(f"the slot stands at {confirmed}, the connector's offsets only prove {commit}", UNSTOPPED)
        return found

    def _last_offset(self) -> object:
        """Read Connect's offsets: compacted records, keyed by the connector and what it reads."""
        if self.offsets_topic not in self.subscriber.topics.names(nobody_waits):
            msg = f"Kafka has no topic {self.offsets_topic!r} with the connector's offsets"
            raise ContinuityError(msg, "name the worker's offset.storage.topic: --offsets-topic; a standalone worker has none")
        self.subscriber.settle([self.offsets_topic], self.stream.keep_alive)
        wanted, last, seen = [self.connector, {"server": self.server}], None, False
        for record in self.subscriber.read([self.offsets_topic], waiting=self.stream.keep_alive):
            if _json(record.key) == wanted:
                last, seen = _json(record.value), True
        if not seen:
            msg = f"topic {self.offsets_topic!r} has no offset of connector {self.connector!r} with topic.prefix {self.server!r}"
            raise ContinuityError(msg, "name the right topic with --offsets-topic, or correct the connector's file")
        return last

    def _publish(self, outgoing: Outgoing, offset: Offset, end: Lsn) -> None:
        """Produce what Kafka lacks up to the end of the log; raises ContinuityError where that proves nothing."""
        try:
            outgoing.publish(self._left(outgoing.router, offset, end), lambda _: None)
        except TransactionTimedOut as error:
            msg = f"{error.rows} rows have been written since the connector stopped, too many for one Kafka transaction"
            raise KafkaRefused(msg, "start the connector again, let it catch up, and run this as soon as it has stopped") from error
        if self.told.missing is not None or (self.told.named and not self.told.published):
            lacks = self.told.missing or "any event of the transaction that its offset names"
            msg = f"Kafka lacks what the connector has published: {lacks}"
            fix = "correct topics.route or outbox.columns.id; if the connector left the event out (a filter), let it go on and " + UNSTOPPED
            raise ContinuityError(msg, fix)

    def _left(self, router: Router, offset: Offset, end: Lsn) -> Iterator[Row]:
        """Yield the rows that Kafka lacks, in the order of the log."""
        known: Known | None = None
        try:
            for item in self._log(end):
                if isinstance(item, TransactionEnd):
                    if item.rows:
                        self.told.witness = Witness(item.end_lsn, item.xid, item.commit_time_us)
                    continue
                begin = item[0]
                known = known or self._known(begin.commit_time_us)
                event = router.values(item).get("id") or b""
                passed = offset.commit_lsn is not None and begin.final_lsn < offset.commit_lsn
                self.told.named += begin.xid == offset.xid
                if event in known:
                    self.told.published += 1
                elif passed:
                    self.told.missing = f"event {event.decode(errors='backslashreplace')[:80]}"
                    return
                else:
                    yield item
        finally:
            if known is not None:
                known.close()

    def _log(self, end: Lsn) -> Iterator[Row | TransactionEnd]:
        while True:
            for item in self.stream.receive(WAIT_S):
                yield item
                if isinstance(item, TransactionEnd) and item.end_lsn >= end:
                    self.told.end = item
                    return

    def _known(self, since_us: int) -> Known:
        """Return the ids of the events that Kafka has of this time and later."""
        found, ids = Known(), list[bytes]()
        topics = topics_of(self.mapping.route, self.subscriber.topics.names(nobody_waits))
        since_ms = None if self.whole_topics else since_us // 1000 - CLOCK_MARGIN_MS
        self.subscriber.settle(topics, self.stream.keep_alive)
        for record in self.subscriber.read(topics, since_ms=since_ms, waiting=self.stream.keep_alive) if topics else ():
            ids.append(event_id(dict(record.headers)))
            if len(ids) >= BATCH:
                found.add(ids)
                ids.clear()
        found.add(ids)
        return found


def _json(text: bytes | None) -> object:
    try:
        return None if text is None else json.loads(text)
    except ValueError:
        return None
