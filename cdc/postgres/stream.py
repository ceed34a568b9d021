"""The write-ahead log from our slot on: one link, one walsender, and the clock; implements the pipeline's Source.

Frames wait in a short queue between the socket and the decoder. `keep_alive` reads into it while Kafka is being waited
for, so that keepalives are seen in time and the next rows are already here when the commit returns; beyond BUFFER_BYTES it
stops reading and the backlog stays where it is safe, in the server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cdc.errors import Retriable, SlotBusy
from cdc.position import Lsn, Position
from cdc.postgres.catalog import Catalog
from cdc.postgres.link import READ_BYTES, Link
from cdc.postgres.pgoutput import Relation
from cdc.postgres.server import Server
from cdc.postgres.transaction import Row, TransactionEnd, Transactions
from cdc.postgres.walsender import TIMEOUTS_PER_INTERVAL, XLOG_DATA, Walsender
from cdc.postgres.witness import SkippedPart

BUFFER_BYTES = 800_000
"""Frames read ahead while Kafka commits: some two thousand rows, 20 ms of work. More waits in the socket's own buffers."""

FINISH_TIMEOUT_S = 2.0
"""How long a clean stop waits for the server to take the last status; without it the slot is merely behind."""


class ReplicationStream:
    """Source over a Link; `connect` opens one, `clock` gives monotonic seconds, `wall` Unix seconds."""

    def __init__(  # noqa: PLR0913 - the composition root's wiring, by keyword
        self,
        *,
        slot: str,
        publication: str,
        message_prefix: str | None = None,
        wanted: Callable[[Relation], bool],
        status_interval_s: float,
        catalog: Catalog,
        connect: Callable[[float], Link],
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._slot = slot
        self._publication = publication
        self._message_prefix = message_prefix
        self._wanted = wanted
        self._status_interval_s = status_interval_s
        self._catalog = catalog
        self._connect = connect
        self._clock = clock
        self._wall = wall
        self._link: Link | None = None
        self._identity: tuple[str, tuple[tuple[int, Lsn], ...], Lsn] | None = None
        self._slot_lsn = Lsn(0)
        self._walsender: Walsender | None = None
        self._transactions: Transactions | None = None
        self._frames: list[bytes] = []
        self._buffered_bytes = 0

    def __repr__(self) -> str:
        confirmed = self._walsender.confirmed if self._walsender else Lsn(0)
        return f"<ReplicationStream {self._slot} confirmed={confirmed} buffered={self._buffered_bytes} B>"

    def look(self) -> Server:
        """See Source."""
        slot = self._catalog.slot(self._slot)
        if slot is not None and slot.active_pid is not None:
            raise SlotBusy(self._slot, slot.active_pid)
        if self._link is None:
            self._link = self._connect(self._status_interval_s * TIMEOUTS_PER_INTERVAL)
        return self._see(self._link)

    def open(self) -> Server:
        """See Source."""
        link = self._link
        if link is None:
            msg = "open() without look()"
            raise Retriable(msg)
        identity = link.identify()
        try:
            link.start(self._slot, self._publication, messages=self._message_prefix is not None)
        except SlotBusy:
            slot = self._catalog.slot(self._slot)
            raise SlotBusy(self._slot, slot.active_pid if slot else None) from None
        self._walsender = Walsender(self._status_interval_s, self._clock())
        self._identity = identity
        server = self._see(link, identity)
        self._slot_lsn = (server.slot and server.slot.confirmed_flush_lsn) or Lsn(0)
        return server

    def start(self, position: Position) -> None:
        """See Source."""
        walsender, _ = self._opened()
        part = SkippedPart(position.witness, self._slot_lsn, position.end_lsn)
        self._transactions = Transactions(self._wanted, position.end_lsn, part, self._message_prefix)
        walsender.start(position.end_lsn, self._transactions)

    def receive(self, timeout_s: float) -> Sequence[Row | TransactionEnd]:
        """See Source."""
        walsender, link = self._opened()
        self._pump(walsender, link)
        if not self._frames:
            link.wait(min(timeout_s, max(0.0, walsender.next_due() - self._clock())))
            self._pump(walsender, link)
        frames, self._frames, self._buffered_bytes = self._frames, [], 0
        return walsender.receive(frames)

    @property
    def urgent(self) -> bool:
        """See Source."""
        return self._walsender is not None and self._walsender.asked

    def watch(self) -> Server:
        """See Source."""
        _, link = self._opened()
        return self._see(link, self._identity)

    def confirm(self, lsn: Lsn) -> None:
        """See Source. The slot hears of it with the next status; one is sent here if an answer waits for it."""
        walsender, link = self._opened()
        walsender.confirm(lsn)
        self._send(walsender, link)

    def keep_alive(self) -> None:
        """See Source."""
        walsender, link = self._opened()
        self._pump(walsender, link)

    def finish(self) -> None:
        """See Source."""
        if self._walsender is not None and self._link is not None:
            self._link.write(self._walsender.status(self._clock(), self._wall_us()))
            self._link.end(FINISH_TIMEOUT_S)
        self.drop()

    def drop(self) -> None:
        """See Source."""
        if self._link is not None:
            self._link.close()
        self._link = self._walsender = self._transactions = self._identity = None
        self._frames, self._buffered_bytes = [], 0
        self._catalog.close()

    def take_ignored(self) -> dict[str, int]:
        """Return how many messages of each kind were decoded and not used since the last call."""
        if self._transactions is None or not self._transactions.ignored:
            return {}
        ignored = dict(self._transactions.ignored)
        self._transactions.ignored.clear()
        return ignored

    def _pump(self, walsender: Walsender, link: Link) -> None:
        """Read what is there, if there is room for it, and send what is due."""
        if self._buffered_bytes < BUFFER_BYTES:
            frames = link.read(READ_BYTES)
            if frames:
                now = self._clock()
                for frame in frames:
                    if frame[0] != XLOG_DATA:
                        walsender.notice(frame, now)
                walsender.notice(frames[-1], now)
                self._buffered_bytes += sum(map(len, frames))
                self._frames += frames
        self._send(walsender, link)

    def _send(self, walsender: Walsender, link: Link) -> None:
        now = self._clock()
        if walsender.must_leave(now):
            msg = "PostgreSQL is shutting down and the position cannot follow; leaving so that it can stop"
            raise Retriable(msg)
        if self._buffered_bytes < BUFFER_BYTES and walsender.lost(now):
            msg = "PostgreSQL has not answered for wal_sender_timeout"
            raise Retriable(msg)
        status = walsender.data_to_send(now, self._wall_us())
        if status is not None:
            link.write(status)

    def _see(self, link: Link, identity: tuple[str, tuple[tuple[int, Lsn], ...], Lsn] | None = None) -> Server:
        system_id, history, _ = identity or link.identify()
        return self._catalog.server(self._slot, self._publication, system_id, history, link.backend_pid)

    def _opened(self) -> tuple[Walsender, Link]:
        if self._walsender is None or self._link is None:
            msg = "the replication connection is closed"
            raise Retriable(msg)
        return self._walsender, self._link

    def _wall_us(self) -> int:
        return round(self._wall() * 1_000_000)
