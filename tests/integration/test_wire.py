"""What is really said on the replication connection, read from the wire."""

from __future__ import annotations

import json
import re
import socket
import struct
from collections.abc import Iterator

import pytest
from psycopg.conninfo import make_conninfo

from cdc.devstack.postgres import PostgresServer
from cdc.devstack.process import LOOPBACK
from cdc.position import Lsn
from tests.conftest import Pipelines
from tests.proxy import Proxy, _Way

pytestmark = pytest.mark.servers

STATUS = re.compile(rb"d\x00\x00\x00\x26r(.{32})[\x00\x01]", re.DOTALL)
"""CopyData with a standby status update: write, flush, apply, time, reply (PostgreSQL manual, "Streaming Replication Protocol")."""

KEEPALIVE = re.compile(rb"d\x00\x00\x00\x16k(.{16})[\x00\x01]", re.DOTALL)
"""CopyData with a primary keepalive: end of the log, time, reply."""


class Recorder(Proxy):
    """Keeps what was said, by connection."""

    def __init__(self, target: int) -> None:
        super().__init__(target)
        self.said: dict[socket.socket, bytearray] = {}

    def _write(self, way: _Way) -> None:
        before = way.pending
        super()._write(way)
        self.said.setdefault(way.source, bytearray()).extend(before[: len(before) - len(way.pending)])

    def statuses(self) -> Iterator[tuple[Lsn, Lsn, Lsn]]:
        """Write, flush and apply of every status."""
        for said in list(self.said.values()):
            for found in STATUS.finditer(bytes(said)):
                write, flush, apply, _ = struct.unpack(">QQQq", found[1])
                yield Lsn(write), Lsn(flush), Lsn(apply)

    def keepalives(self) -> list[Lsn]:
        """Where the log ended, by every keepalive."""
        return [Lsn(int.from_bytes(found[1][:8], "big")) for said in list(self.said.values()) for found in KEEPALIVE.finditer(bytes(said))]


def test_nothing_is_confirmed_before_the_proof_and_a_keepalive_below_the_position_moves_nothing(
    pipelines: Pipelines, spare_postgres: PostgresServer, spare_database: str, kafka: str
) -> None:
    """A crash puts the slot back; the server then counts from there on, far below what is published."""
    pipeline = pipelines(spare_database, kafka)
    pipeline.init()
    pipeline.started()
    for number in range(1, 4):
        pipeline.insert(number)
        pipeline.noise()
    pipeline.wait_confirmed()
    pipeline.stop()
    at_stop = pipeline.position()
    pipeline.hang_up()
    spare_postgres.restart("immediate")
    assert pipeline.slot().confirmed < at_stop, "the crash has put it back"
    with Recorder(spare_postgres.port) as wire:
        pipeline.set(postgres__dsn=make_conninfo(spare_database, host=LOOPBACK, port=str(wire.port)))
        pipeline.started()
        pipeline.insert(4)
        pipeline.wait_numbers(range(1, 5))
        pipeline.wait_confirmed()
        pipeline.stop()
        told, heard = list(wire.statuses()), wire.keepalives()
    assert all(write == flush == apply for write, flush, apply in told)
    flushed = [flush for _, flush, _ in told]
    assert flushed[0] == 0, "before the proof"
    first = next(flush for flush in flushed if flush)
    assert first >= at_stop
    assert flushed == sorted(flushed)
    assert flushed[-1] <= pipeline.position()
    assert min(heard) < at_stop, "the server did count from below"
    ends = [Lsn.parse(json.loads(record.value or b"")["end_lsn"]) for record in pipeline.events(pipeline.position_topic)]
    assert ends == sorted(ends)
