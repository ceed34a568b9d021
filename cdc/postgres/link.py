"""One replication connection over psycopg.pq: commands first, then CopyData frames in both directions.

The connection belongs to one thread. Nothing here blocks but `identify`, `start` and `end`, which wait for the server's
answer with a deadline.
"""

from __future__ import annotations

import contextlib
import select
import time
from typing import Any, Protocol

import psycopg
from psycopg import pq, sql

from cdc.errors import CdcError, ContinuityError, ProtocolError, Retriable, SlotBusy
from cdc.position import Lsn
from cdc.postgres.connection import connect_replication, result_error

READ_BYTES = 400_000
"""Frames taken in one read: some thousand rows, few enough that all that becomes of them stays in the processor's cache, and
that the clock is answered every ten milliseconds. Ten times as many took 15 MB and were no faster."""

BUSY_BYTES, LARGE_READ_BYTES = 8_000, 200_000
"""A read of less has emptied the socket; one of more need not become larger."""

OBJECT_IN_USE = "55006"
"""SQLSTATE of START_REPLICATION on a slot that another connection has."""

UNDEFINED_OBJECT = "42704"
"""SQLSTATE of START_REPLICATION on a slot that does not exist, and of a stream whose publication does not."""


class Link(Protocol):
    """What the stream needs of a replication connection; the simulation has another one."""

    backend_pid: int

    def identify(self) -> tuple[str, tuple[tuple[int, Lsn], ...], Lsn]:
        """Return the system identifier, the timeline history, and the flush LSN of the server."""

    def start(self, slot: str, publication: str, *, messages: bool) -> None:
        """START_REPLICATION at 0/0; raises SlotBusy while another connection has the slot."""

    def read(self, limit: int) -> list[bytes]:
        """Return the frames that are there, no more after `limit` bytes; raises Retriable when the stream has ended."""

    def wait(self, timeout_s: float) -> None:
        """Return as soon as there is something to read."""

    def write(self, frame: bytes) -> None:
        """Send one frame."""

    def end(self, timeout_s: float) -> None:
        """Send CopyDone and read until the server ends as well, so that it has surely taken the last status."""

    def close(self) -> None:
        """Close at once; safe more than once."""


class PqLink:
    """A Link to a real server."""

    def __init__(self, dsn: str, application_name: str, wal_sender_timeout_s: float) -> None:
        self._connection: psycopg.Connection[tuple[Any, ...]] = connect_replication(dsn, application_name, wal_sender_timeout_s)
        self._pgconn = self._connection.pgconn
        self.backend_pid = self._pgconn.backend_pid
        self._poll = select.poll()
        self._poll.register(self._pgconn.socket, select.POLLIN)

    def identify(self) -> tuple[str, tuple[tuple[int, Lsn], ...], Lsn]:
        """See Link. Timeline 1 has no history file (protocol, TIMELINE_HISTORY)."""
        [(system_id, timeline, flush_lsn, _)] = self._query("IDENTIFY_SYSTEM")
        ancestors: list[tuple[int, Lsn]] = []
        if int(timeline) > 1:
            [(_, content)] = self._query(f"TIMELINE_HISTORY {int(timeline)}")
            ancestors = parse_history(content)
        return system_id.decode(), (*ancestors, (int(timeline), Lsn(0))), Lsn.parse(flush_lsn.decode())

    def start(self, slot: str, publication: str, *, messages: bool) -> None:
        """See Link. publication_names is a list of SQL identifiers inside of a literal, so it is quoted twice."""
        options = f"proto_version '1', publication_names {_literal(_identifier(publication))}"
        if messages:
            options += ", messages 'true'"
        command = f"START_REPLICATION SLOT {_identifier(slot)} LOGICAL 0/0 ({options})"
        result = self._pgconn.exec_(command.encode())
        if result.status == pq.ExecStatus.COPY_BOTH:
            self._pgconn.nonblocking = 1
            return
        sqlstate = result.error_field(pq.DiagnosticField.SQLSTATE)
        if sqlstate == OBJECT_IN_USE.encode():
            raise SlotBusy(slot, None)
        if sqlstate == UNDEFINED_OBJECT.encode():
            msg = f"slot {slot!r} was dropped a moment ago"
            raise Retriable(msg)  # the next look says what that means
        raise result_error(result, "starting replication")

    def read(self, limit: int) -> list[bytes]:
        """See Link. While a backlog is there libpq's buffer is let grow, so that fewer and larger reads empty the socket."""
        frames: list[bytes] = []
        left, going_on = limit, True
        try:
            while going_on and left > 0:
                self._pgconn.consume_input()
                if frames:
                    self._pgconn.consume_input()  # libpq doubles a buffer that is full when it is asked again
                before = left
                left, going_on = self._drain(frames, left)
                if going_on and not BUSY_BYTES <= before - left < LARGE_READ_BYTES:
                    return frames
        except psycopg.Error as error:
            if not frames:
                raise self._lost(error) from error
            return frames
        return frames if going_on else self._ended(frames)

    def _drain(self, frames: list[bytes], limit: int) -> tuple[int, bool]:
        """Take the frames that libpq holds; returns what is left of the limit, and whether the stream goes on."""
        get, keep = self._pgconn.get_copy_data, frames.append
        while limit > 0:
            length, data = get(1)
            if length <= 0:
                return limit, length == 0
            limit -= length
            keep(bytes(data))
        return limit, True

    def wait(self, timeout_s: float) -> None:
        """See Link."""
        self._poll.poll(max(0, round(timeout_s * 1000)))

    def write(self, frame: bytes) -> None:
        """See Link. A status that does not fit into the socket's buffer now leaves with the next one."""
        try:
            self._pgconn.put_copy_data(frame)
            self._pgconn.flush()
        except psycopg.Error as error:
            raise self._lost(error) from error

    def end(self, timeout_s: float) -> None:
        """See Link. Closing with unread data would reset the connection, and the last status could be lost with it."""
        deadline = time.monotonic() + timeout_s
        with contextlib.suppress(psycopg.Error, CdcError):
            self._pgconn.put_copy_end()
            self._pgconn.flush()
            while (left := deadline - time.monotonic()) > 0:
                self.wait(left)
                self._pgconn.consume_input()
                length = 1
                while length > 0:
                    length, _ = self._pgconn.get_copy_data(1)
                if length < 0:
                    return

    def close(self) -> None:
        """See Link."""
        self._connection.close()

    def _ended(self, frames: list[bytes]) -> list[bytes]:
        """Hand out what came before the end; the next read finds the end again and reports it."""
        if frames:
            return frames
        raise self._last_words() or Retriable("PostgreSQL ended the replication stream")

    def _lost(self, error: psycopg.Error) -> CdcError:
        lines = str(error).strip().splitlines()
        msg = f"the replication connection was lost: {lines[0] if lines else type(error).__name__}"
        return self._last_words() or Retriable(msg)

    def _last_words(self) -> CdcError | None:
        """Return what the server said when it ended the stream, which may have come with the frames that were read before."""
        with contextlib.suppress(psycopg.Error):
            result = self._pgconn.get_result()
            if result is not None and result.status == pq.ExecStatus.FATAL_ERROR:
                sqlstate = result.error_field(pq.DiagnosticField.SQLSTATE)
                if sqlstate == UNDEFINED_OBJECT.encode():
                    return self._without_publication(result)
                return result_error(result, "streaming") if sqlstate else None
        return None

    @staticmethod
    def _without_publication(result: pq.abc.PGresult) -> ContinuityError:
        """Up to PostgreSQL 17 the walsender ends where rows were written without it; from 18 on it skips them with a warning."""
        reason = (result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"").decode(errors="replace")
        msg = f"the log cannot be read any further: {reason} at the place of rows that come next, and the log cannot give them"
        fix = "`cdc recover` makes a new slot and publishes the rows that Kafka lacks; without a position, drop the slot and run `cdc init`"
        return ContinuityError(msg, fix)

    def _query(self, command: str) -> list[tuple[bytes, ...]]:
        result = self._pgconn.exec_(command.encode())
        if result.status != pq.ExecStatus.TUPLES_OK:
            raise result_error(result, command)
        return [tuple(result.get_value(row, column) or b"" for column in range(result.nfields)) for row in range(result.ntuples)]


def parse_history(content: bytes) -> list[tuple[int, Lsn]]:
    """Read a timeline history file: a line for each ancestor, `timeline <tab> LSN at which it ended <tab> reason`."""
    ancestors = []
    for line in content.decode(errors="replace").splitlines():
        fields = line.split("\t")
        if len(fields) < 2 or line.lstrip().startswith("#"):  # noqa: PLR2004 - timeline and LSN
            continue
        try:
            ancestors.append((int(fields[0]), Lsn.parse(fields[1].strip())))
        except ValueError as error:
            msg = "the server's timeline history cannot be read"
            raise ProtocolError(msg) from error
    return ancestors


def _identifier(name: str) -> str:
    return sql.Identifier(name).as_string()


def _literal(text: str) -> str:
    """Quote a text for a replication command: a backslash is itself there, and E'..' is not known (repl_scanner.l)."""
    return "'" + text.replace("'", "''") + "'"
