"""The stream between a link and the pipeline: what it reads ahead, what it answers, and when it leaves."""

from __future__ import annotations

import pytest

from cdc.errors import ProtocolError, Retriable, SlotBusy
from cdc.position import Lsn
from cdc.postgres import stream as module
from cdc.postgres.link import parse_history
from cdc.postgres.pgoutput import Truncate
from cdc.postgres.stream import ReplicationStream
from cdc.postgres.transaction import TransactionEnd
from tests.simulation.fake_postgres import FakeCatalog, FakeLink, FakePostgres
from tests.unit.pipeline.samples import position


class Stage:
    """A stream on a simulated server; `now` moves when somebody waits."""

    def __init__(self) -> None:
        self.now = 0.0
        self.server = FakePostgres("cdc_shop", lambda: 1_800_000_000.0 + self.now)
        self.links: list[FakeLink] = []
        self.stream = self.made()

    def made(self) -> ReplicationStream:
        def connect(_: float) -> FakeLink:
            self.links.append(FakeLink(self.server, self._wait))
            return self.links[-1]

        return ReplicationStream(
            slot="cdc_shop",
            publication="cdc_shop",
            wanted=lambda relation: relation.name == "outbox",
            status_interval_s=10.0,
            catalog=FakeCatalog(self.server),
            connect=connect,
            clock=lambda: self.now,
            wall=lambda: 1_800_000_000.0 + self.now,
        )

    @property
    def confirmed(self) -> Lsn:
        assert self.server.slot is not None
        return self.server.slot.confirmed

    def opened(self) -> ReplicationStream:
        self.stream.look()
        self.stream.open()
        self.stream.start(position(end_lsn=self.confirmed))
        return self.stream

    def insert(self, name: bytes = b"a") -> Lsn:
        transaction = self.server.begin()
        self.server.insert(transaction, name, b"order", b"k", b"T", b"{}")
        return self.server.commit(transaction).end

    def rows(self) -> list[bytes | None]:
        found: list[bytes | None] = []
        for _ in range(20):
            found += [item[3][0] for item in self.stream.receive(0.1) if not isinstance(item, TransactionEnd)]
        return found

    def _wait(self, seconds: float, _: object) -> None:
        self.now += seconds


def test_rows_come_and_what_is_confirmed_is_told() -> None:
    stage = Stage()
    stage.opened()
    end = stage.insert()
    assert stage.rows() == [b"a"]
    stage.stream.confirm(end)
    stage.now += 1
    stage.stream.keep_alive()
    assert stage.confirmed == end


def test_a_look_takes_nothing_and_sees_who_has_the_slot() -> None:
    stage = Stage()
    seen = stage.stream.look()
    assert (seen.ours, seen.slot and seen.slot.active_pid) == (False, None)
    other = stage.made()
    other.look()
    assert other.open().ours
    with pytest.raises(SlotBusy, match="active for backend pid 1002"):
        stage.stream.look()
    with pytest.raises(SlotBusy, match="active for backend pid 1002"):
        stage.stream.open()
    other.drop()
    assert stage.stream.open().ours
    assert stage.stream.watch().ours


def test_a_door_is_opened_after_a_look() -> None:
    with pytest.raises(Retriable, match="without look"):
        Stage().stream.open()


def test_what_is_closed_is_told_as_a_fault_that_heals() -> None:
    stage = Stage()
    for call in (lambda: stage.stream.receive(0.0), stage.stream.keep_alive, stage.stream.watch, lambda: stage.stream.confirm(Lsn(1))):
        with pytest.raises(Retriable, match="the replication connection is closed"):
            call()
    assert not stage.stream.urgent
    assert stage.stream.take_ignored() == {}


def test_reading_ahead_ends_where_the_buffer_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """The backlog stays where it is safe, in the server."""
    stage = Stage()
    stage.opened()
    for _ in range(50):
        stage.insert()
    monkeypatch.setattr(module, "BUFFER_BYTES", 2_000)
    for _ in range(50):
        stage.stream.keep_alive()
    assert 2_000 <= stage.stream._buffered_bytes < 4_000
    monkeypatch.undo()
    assert len(stage.rows()) == 50


def test_a_server_that_asks_makes_it_urgent_until_it_is_answered() -> None:
    stage = Stage()
    stage.opened()
    stage.stream.keep_alive()
    stage.server.stopping = True
    stage.server.write(100)
    stage.stream.keep_alive()
    assert stage.stream.urgent
    stage.stream.confirm(stage.server.end)
    assert not stage.stream.urgent


def test_a_server_that_is_silent_for_its_timeout_is_lost() -> None:
    stage = Stage()
    stage.opened()
    stage.stream.keep_alive()
    stage.links[0].forsake()
    stage.now += 61.0
    with pytest.raises(Retriable, match="PostgreSQL has not answered for wal_sender_timeout"):
        stage.stream.keep_alive()


def test_a_server_is_not_lost_while_its_words_wait_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage()
    stage.opened()
    stage.insert()
    stage.stream.keep_alive()
    monkeypatch.setattr(module, "BUFFER_BYTES", 1)
    stage.now += 61.0
    stage.stream.keep_alive()


def test_a_clean_end_tells_the_last_position() -> None:
    stage = Stage()
    stage.opened()
    end = stage.insert()
    stage.rows()
    stage.stream.confirm(end)
    stage.stream.finish()
    assert stage.confirmed == end
    assert stage.server.links == []
    stage.stream.finish()
    stage.stream.drop()


def test_a_dropped_stream_begins_anew() -> None:
    stage = Stage()
    stage.opened()
    stage.insert()
    assert stage.rows() == [b"a"]
    stage.stream.drop()
    stage.opened()
    assert stage.rows() == [b"a"]


def test_what_is_ignored_is_counted_once() -> None:
    stage = Stage()
    stage.opened()
    transaction = stage.server.begin()
    stage.server.change(transaction, Truncate((1,), False, False))
    stage.server.commit(transaction)
    stage.rows()
    assert stage.stream.take_ignored() == {"truncate": 1}
    assert stage.stream.take_ignored() == {}


def test_the_repr_is_its_state() -> None:
    stage = Stage()
    assert repr(stage.stream) == "<ReplicationStream cdc_shop confirmed=0/0 buffered=0 B>"
    stage.opened()
    stage.rows()
    assert repr(stage.stream) == "<ReplicationStream cdc_shop confirmed=0/1000028 buffered=0 B>"


def test_a_timeline_history_is_read() -> None:
    content = b"1\t0/17000390\tno recovery target specified\n\n# a comment\t1\n2\t0/18000000 \tbefore 2026\n"
    assert parse_history(content) == [(1, Lsn.parse("0/17000390")), (2, Lsn.parse("0/18000000"))]
    assert parse_history(b"") == []


@pytest.mark.parametrize("content", [b"x\t0/1\ty", b"1\tnowhere\ty", b"1\t\xff\ty"])
def test_a_timeline_history_that_is_none_is_refused(content: bytes) -> None:
    with pytest.raises(ProtocolError, match="timeline history cannot be read"):
        parse_history(content)
