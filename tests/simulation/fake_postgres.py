"""A simulated PostgreSQL: a write-ahead log, one slot, and walsenders that emit real bytes; deterministic, in one thread.

Strategy: a transaction is encoded when it commits, because Begin names its commit record. A walsender sends what the slot has
not confirmed into a socket of limited size, whole frames, as the client makes room; what lies in a socket can still be
read after the server has ended the link, and a frame that a cut link tore is never seen (as with libpq).

As the real one (walsender.c, logical.c, slot.c of PostgreSQL 15 to 18):
- any flush LSN is believed, even one beyond the log, and never goes back while the server runs;
- confirmed_flush lives in memory, `checkpoint` saves it, and a restart goes back to what was saved;
- START_REPLICATION at 0/0 begins at confirmed_flush: commits that begin before it are not sent;
- keepalives count from restart_lsn again after a reconnect, below positions that were known before;
- a server that shuts down ends when everything that it has sent is flushed, and asks again after each answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from cdc.errors import Retriable, SlotBusy
from cdc.position import Fingerprint, Lsn, Member
from cdc.postgres.pgoutput import Begin, Column, Commit, Insert, Message, PgoutputMessage, Relation, Value
from cdc.postgres.server import Server, SlotState
from tests.simulation.pgoutput_bytes import encode, keepalive, status_of, xlog_data

COMMIT_RECORD_BYTES = 48
CHANGE_RECORD_BYTES = 120

OUTBOX = Relation(
    16_400,
    "public",
    "outbox",
    "d",
    tuple(Column(name, 25, -1, name == "id") for name in ("id", "aggregatetype", "aggregateid", "type", "payload")),
)
OTHER = Relation(16_500, "public", "other", "d", (Column("id", 23, -1, True),))


@dataclass
class OpenTransaction:
    """A transaction that writes; nothing of it is sent before it commits."""

    xid: int
    changes: list[tuple[Lsn, PgoutputMessage]] = field(default_factory=list)


@dataclass(frozen=True)
class Stretch:
    """What the log holds for a walsender at one place: a whole transaction, or a message outside of all of them."""

    start: Lsn
    end: Lsn
    begin: Begin | None
    messages: tuple[tuple[Lsn, PgoutputMessage], ...]


@dataclass
class Slot:
    """`confirmed` is in memory, `saved` on disk; `active` is the link that holds it."""

    name: str
    confirmed: Lsn
    saved: Lsn
    active: FakeLink | None = None


@dataclass(frozen=True)
class Disk:
    """A copy of the data directory."""

    end: Lsn
    xid: int
    log: tuple[Stretch, ...]
    slot_lsn: Lsn


class FakePostgres:
    """The server; `clock` is its clock in seconds since 1970, `confirming` hears of each confirmed_flush_lsn."""

    system_id = "7300000000000000001"
    history: tuple[tuple[int, Lsn], ...] = ((1, Lsn(0)),)

    def __init__(self, slot: str, clock: Callable[[], float], *, timeout_s: float = 60.0, socket_bytes: int = 600) -> None:
        self.clock = clock
        self.timeout_s = timeout_s
        self.socket_bytes = socket_bytes
        self.publication: Fingerprint | None = Fingerprint(16_390, 740, (Member(16_391, 740, OUTBOX.oid),), Lsn(0))
        self.end = Lsn(0x0100_0028)
        self.slot: Slot | None = Slot(slot, self.end, self.end)
        self.log: list[Stretch] = []
        self.links: list[FakeLink] = []
        self.confirming: Callable[[Lsn], None] = lambda _lsn: None
        self.stopping = False
        self.cut_at: int | None = None
        self.sent_bytes = 0
        self.frame_ends: list[int] = []
        self.asked = 0
        self._xid = 740
        self._pid = 1_000

    def __repr__(self) -> str:
        return f"<FakePostgres end={self.end} confirmed={self.slot and self.slot.confirmed} stretches={len(self.log)}>"

    # what applications do

    def begin(self) -> OpenTransaction:
        self._xid += 1
        return OpenTransaction(self._xid)

    def change(self, transaction: OpenTransaction, message: PgoutputMessage) -> None:
        transaction.changes.append((self.end, message))
        self.end = Lsn(self.end + CHANGE_RECORD_BYTES)

    def insert(self, transaction: OpenTransaction, *values: Value) -> None:
        self.change(transaction, Insert(OUTBOX.oid, values))

    def commit(self, transaction: OpenTransaction) -> Stretch:
        """Write the commit record; a transaction of more than its rows' relations is sent as it was written."""
        start = self.end
        self.end = Lsn(start + COMMIT_RECORD_BYTES)
        begin = Begin(start, round(self.clock() * 1_000_000), transaction.xid)
        stretch = Stretch(start, self.end, begin, tuple(transaction.changes))
        self.log.append(stretch)
        return stretch

    def emit(self, prefix: str, content: bytes) -> None:
        """pg_logical_emit_message(false, ..): it stands at its place in the log, whatever becomes of the transaction."""
        start = self.end
        self.end = Lsn(start + CHANGE_RECORD_BYTES)
        self.log.append(Stretch(start, self.end, None, ((start, Message(False, start, prefix, content)),)))

    def write(self, size: int) -> None:
        """Other tables' log."""
        self.end = Lsn(self.end + size)

    # what happens to a server

    def checkpoint(self) -> None:
        if self.slot is not None:
            self.slot.saved = self.slot.confirmed

    def restart(self) -> None:
        """Stop at once, and start again with what is on disk."""
        for link in list(self.links):
            link.break_()
        if self.slot is not None:
            self.slot.confirmed = self.slot.saved
        self.stopping = False

    def copy(self) -> Disk:
        """Return what is on disk at this moment."""
        assert self.slot is not None, "nothing is copied of a server without its slot"
        return Disk(self.end, self._xid, tuple(self.log), self.slot.saved)

    def put_back(self, disk: Disk) -> None:
        """Go on from a copy of the disk: as a restored snapshot, or as a standby that had come so far and was promoted."""
        assert self.slot is not None, "as above"
        self.end, self._xid, self.log = disk.end, disk.xid, list(disk.log)
        self.slot.saved = disk.slot_lsn
        self.restart()

    def pump(self) -> None:
        """Let the walsenders work."""
        for link in list(self.links):
            link.serve()

    # what a walsender does for a link

    def take(self, link: FakeLink, slot: str) -> Lsn:
        if self.slot is None or self.slot.name != slot:
            msg = f'replication slot "{slot}" does not exist'
            raise Retriable(msg)
        if self.slot.active is not None:
            raise SlotBusy(slot, self.slot.active.backend_pid)
        self.slot.active = link
        return self.slot.confirmed

    def confirmed(self, lsn: Lsn) -> None:
        """LogicalConfirmReceivedLocation: no upper check; 0/0 is ignored."""
        assert self.slot is not None, "a slot in use cannot be dropped"
        if lsn > self.slot.confirmed:
            self.slot.confirmed = lsn
            self.confirming(lsn)

    def next_pid(self) -> int:
        self._pid += 1
        return self._pid


class FakeLink:
    """Link to a FakePostgres; `wait` is how time passes while nothing is there to read."""

    def __init__(self, server: FakePostgres, passing: Callable[[float, Callable[[], bool]], None]) -> None:
        self.server = server
        self.backend_pid = server.next_pid()
        self._passing = passing
        self._socket: deque[bytes] = deque()
        self._socket_bytes = 0
        self._ended = False
        self._deaf = False
        self._closed = False
        self._streaming = False
        self._next = 0
        self._relations: set[int] = set()
        self._pending: deque[bytes] = deque()
        self._pending_end = Lsn(0)
        self._sent_lsn = Lsn(0)
        self._told_lsn: Lsn | None = None
        self._flushed = Lsn(0)
        self._heard_at = server.clock()
        self._asking = False
        server.links.append(self)

    def __repr__(self) -> str:
        return f"<FakeLink pid={self.backend_pid} sent={self._sent_lsn} ended={self._ended}>"

    # the client's side: Link

    def identify(self) -> tuple[str, tuple[tuple[int, Lsn], ...], Lsn]:
        self._alive()
        return self.server.system_id, self.server.history, self.server.end

    def start(self, slot: str, publication: str, *, messages: bool) -> None:
        del publication, messages
        self._alive()
        begin = self.server.take(self, slot)
        self._streaming = True
        self._heard_at = self.server.clock()
        log = self.server.log
        self._next = next((i for i, stretch in enumerate(log) if stretch.start >= begin), len(log))
        # Decoding starts at restart_lsn, below what is confirmed, and the first keepalive says so.
        self._put(keepalive(max(0, begin - 4096), self._time_us()))
        self.serve()

    def read(self, limit: int) -> list[bytes]:
        assert not self._closed
        self.serve()
        frames: list[bytes] = []
        while self._socket and limit > 0:
            frames.append(self._socket.popleft())
            self._socket_bytes -= len(frames[-1])
            limit -= len(frames[-1])
        if not frames and self._ended:
            msg = "the replication connection was lost: server closed the connection unexpectedly"
            raise Retriable(msg)
        self.serve()
        return frames

    def wait(self, timeout_s: float) -> None:
        assert not self._closed

        def ready() -> bool:
            self.serve()
            return bool(self._socket) or self._ended

        if not ready():
            self._passing(timeout_s, ready)

    def write(self, frame: bytes) -> None:
        assert not self._closed
        if self._ended:
            msg = "the replication connection was lost: could not send data to server"
            raise Retriable(msg)
        if not self._deaf:
            self._status(frame)

    def end(self, timeout_s: float) -> None:
        del timeout_s
        self.break_()

    def close(self) -> None:
        self._closed = True
        self.break_()

    # the server's side

    def serve(self) -> None:
        """Send what fits into the socket; ask, or give up, when the client is silent."""
        if self._ended or self._deaf or not self._streaming:
            return
        now, server = self.server.clock(), self.server
        if now - self._heard_at >= server.timeout_s:
            self.break_()
            return
        while not self._ended and self._socket_bytes < server.socket_bytes and self._more():
            self._put(self._pending.popleft())
            if not self._pending:
                self._sent_lsn = self._pending_end
        if self._ended or self._more():
            return
        self._sent_lsn = server.end
        if server.stopping:
            self._shut_down()
        elif now - self._heard_at >= server.timeout_s / 2 and not self._asking:
            self._ask()
        elif self._flushed < self._sent_lsn and self._told_lsn != self._sent_lsn:
            self._told_lsn = self._sent_lsn
            self._put(keepalive(self._sent_lsn, self._time_us()))

    def forsake(self) -> None:
        """End the link without a word: a network that swallows everything, and a server that has given up."""
        self.break_()
        self._ended, self._deaf = False, True

    def break_(self) -> None:
        """End the link; what lies in the socket can still be read."""
        self._ended = True
        if self in self.server.links:
            self.server.links.remove(self)
        slot = self.server.slot
        if slot is not None and slot.active is self:
            slot.active = None

    def _more(self) -> bool:
        """Whether something is to be sent; takes the next stretch of the log when the last one has gone."""
        if not self._pending and self._next < len(self.server.log):
            stretch = self.server.log[self._next]
            self._next += 1
            self._pending_end = stretch.end
            self._pending.extend(self._frames(stretch))
        return bool(self._pending)

    def _frames(self, stretch: Stretch) -> list[bytes]:
        time_us = self._time_us()
        frames = []
        if stretch.begin is not None:
            frames.append(xlog_data(encode(stretch.begin), stretch.start, time_us))
        for lsn, message in stretch.messages:
            relation = {OUTBOX.oid: OUTBOX, OTHER.oid: OTHER}.get(message.relation_oid) if isinstance(message, Insert) else None
            if relation is not None and relation.oid not in self._relations:
                self._relations.add(relation.oid)
                frames.append(xlog_data(encode(relation), 0, time_us))
            frames.append(xlog_data(encode(message), lsn, time_us))
        if stretch.begin is not None:
            commit = Commit(stretch.start, stretch.end, stretch.begin.commit_time_us)
            frames.append(xlog_data(encode(commit), stretch.end, time_us))
        return frames

    def _status(self, frame: bytes) -> None:
        write, flush, apply, reply = status_of(frame)
        assert write == flush == apply, "write, flush and apply are one LSN"
        self._heard_at, self._asking = self.server.clock(), False
        if flush:
            self._flushed = flush
            self.server.confirmed(flush)
        if reply and not self._ended:
            self._put(keepalive(self._sent_lsn, self._time_us()))
        self.serve()

    def _shut_down(self) -> None:
        if self._flushed >= self._sent_lsn:
            self.break_()
        elif not self._asking:
            self._ask()

    def _ask(self) -> None:
        self._asking = True
        self.server.asked += 1
        self._put(keepalive(self._sent_lsn, self._time_us(), reply=True))

    def _put(self, frame: bytes) -> None:
        server = self.server
        server.sent_bytes += len(frame)
        server.frame_ends.append(server.sent_bytes)
        if server.cut_at is not None and server.sent_bytes > server.cut_at:
            server.cut_at = None
            self.break_()
            return
        self._socket.append(frame)
        self._socket_bytes += len(frame)

    def _alive(self) -> None:
        assert not self._closed
        if self._ended:
            msg = "the replication connection was lost: server closed the connection unexpectedly"
            raise Retriable(msg)

    def _time_us(self) -> int:
        return round(self.server.clock() * 1_000_000)


class FakeCatalog:
    """Catalog of a FakePostgres."""

    def __init__(self, server: FakePostgres) -> None:
        self._server = server

    def slot(self, name: str) -> SlotState | None:
        slot = self._server.slot
        if slot is None or slot.name != name:
            return None
        return SlotState(
            name=name,
            plugin="pgoutput",
            database="shop",
            active_pid=slot.active.backend_pid if slot.active else None,
            wal_status="reserved",
            invalidation_reason=None,
            restart_lsn=slot.saved,
            confirmed_flush_lsn=slot.confirmed,
            safe_wal_size=None,
        )

    def server(self, slot: str, publication: str, system_id: str, history: tuple[tuple[int, Lsn], ...], our_pid: int) -> Server:
        del publication
        state = self.slot(slot)
        return Server(
            system_id=system_id,
            version=180_000,
            in_recovery=False,
            timeline_history=history,
            flush_lsn=self._server.end,
            slot=state,
            publication=self._server.publication,
            ours=state is not None and state.active_pid == our_pid,
        )

    def close(self) -> None:
        pass
