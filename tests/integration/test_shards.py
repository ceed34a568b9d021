"""Two shards of one outbox: processes, slots and positions of their own, and together every row once, in order for each key."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import psycopg
import pytest

from cdc.audit import reshard
from cdc.postgres.slot import Administration, Part, Table, publication_sql
from tests.pipeline import POSTGRES_VERSION, Pipeline, follow, since, sizes
from tests.waiting import wait_for

pytestmark = pytest.mark.servers

KEYS = 7


def children(process: subprocess.Popen[bytes]) -> list[int]:
    """The two processes that a process has started."""

    def both() -> list[int]:
        pids = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        return [int(pid) for pid in pids] if len(pids) == 2 else []

    return wait_for(both, what="both shards run")


def insert(pipeline: Pipeline, first: int, count: int) -> None:
    """Transactions of KEYS rows, one for each key, and so for both shards."""
    for n in range(first, first + count):
        with pipeline.connection.transaction():
            for key in range(KEYS):
                pipeline.insert(n * KEYS + key, key=f"key-{key}")


@since(15)
def test_a_killed_shard_loses_doubles_and_reorders_nothing(pipeline: Pipeline) -> None:
    pipeline.set(http__listen="off", topics__create__partitions=3)
    pipeline.init("--shards", "2")
    pipeline.init("--shards", "2")  # safe to run again
    parent = pipeline.start("--shards", "2")
    insert(pipeline, 0, 20)
    first, _ = children(parent)
    wait_for(lambda: len(pipeline.events()) >= KEYS, 60, "events come")
    os.kill(first, signal.SIGKILL)
    insert(pipeline, 20, 20)
    assert pipeline.wait_exit().code == 128 + signal.SIGKILL

    pipeline.start("--shards", "2")
    insert(pipeline, 40, 10)
    wait_for(lambda: len(pipeline.events()) >= 50 * KEYS, 90, "every event")
    verified = pipeline.command("verify", "--shards", "2", "--json")
    assert verified.code == 0, verified.err
    document = json.loads(verified.out.splitlines()[-1])
    assert document["rows"] == document["events"] == 50 * KEYS
    by_key, by_shard = defaultdict[bytes | None, list[int]](list), defaultdict[bytes, set[bytes | None]](set)
    for event in pipeline.events():
        by_key[event.key].append(event.n)
        by_shard[event.headers["ce_source"]].add(event.key)
    assert all(numbers == sorted(numbers) for numbers in by_key.values())
    assert by_shard.keys() == {f"/{pipeline.name}_{number}of2".encode() for number in (0, 1)}, "the keys of the test meet both shards"
    assert not set.intersection(*by_shard.values()), "a key belongs to one shard"
    assert pipeline.command("check", "--set", "shard=0/2").code == 0
    pipeline.stop()


@since(15)
def test_shards_stop_when_their_parent_is_killed(pipeline: Pipeline) -> None:
    pipeline.set(http__listen="off")
    pipeline.init("--shards", "2")
    parent = pipeline.start("--shards", "2")
    running = children(parent)
    active = "SELECT count(*) FROM pg_replication_slots WHERE active AND slot_name LIKE %s"
    wait_for(lambda: pipeline.execute(active, (f"cdc_{pipeline.name}_%",)) == [(2,)], 60, "both hold their slots")
    pipeline.kill(parent)
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in running), what="both shards are gone")
    assert pipeline.execute(active, (f"cdc_{pipeline.name}_%",)) == [(0,)]


@since(15)
@pytest.mark.parametrize("key", ["uuid", "bigint", "varchar(40)", "text", "bytea"])
def test_every_type_of_key_can_be_divided(pipeline: Pipeline, key: str) -> None:
    pipeline.execute(f'CREATE TABLE outbox (id uuid PRIMARY KEY, "Order No" {key})')
    parts = [Part("Order No", number, 3) for number in range(3)]
    for part in parts:
        pipeline.execute(publication_sql(f"part_{part.number}", Table("public", "outbox", part)))
        [(printed,)] = pipeline.execute("SELECT rowfilter FROM pg_publication_tables WHERE pubname = %s", (f"part_{part.number}",))
        assert part.same(printed)
    pipeline.execute("INSERT INTO outbox (id) VALUES (gen_random_uuid())")  # a key that is NULL belongs to somebody, too
    counted = [pipeline.execute("SELECT count(*) FROM outbox WHERE " + part.condition.as_string()) for part in parts]
    assert sorted(counted) == [[(0,)], [(0,)], [(1,)]]


@since(15)
def test_a_filter_of_somebody_else_is_refused(pipeline: Pipeline) -> None:
    pipeline.set(http__listen="off", shard="0/2")
    pipeline.init()
    pipeline.execute(f"ALTER PUBLICATION cdc_{pipeline.name}_0of2 SET TABLE outbox WHERE (aggregatetype = 'thing')")
    refused = pipeline.here("check")
    assert refused.code == 8
    assert "does not choose the rows of shard 0/2" in refused.out + refused.err


@pytest.mark.skipif(POSTGRES_VERSION >= 15, reason="newer servers can")
def test_an_old_server_is_refused(pipeline: Pipeline) -> None:
    refused = pipeline.set(shard="0/2").here("init", "--create-table")
    assert refused.code == 3
    assert "PostgreSQL 15 or newer" in refused.line


@since(15)
@sizes(((0, 2), (2, 3)), ((0, 2), (2, 3), (3, 2), (2, 1), (1, 4), (4, 2)))
def test_another_number_of_shards_begins_where_the_old_ones_end(pipeline: Pipeline, size: Sequence[tuple[int, int]]) -> None:
    """From one pipeline to shards, and to other numbers of them, with a writer that never stops."""
    pipeline.set(http__listen="off", topics__create__partitions=3)
    pipeline.init()
    pipeline.start()
    written, stop = 0, threading.Event()

    def write() -> None:
        nonlocal written
        with psycopg.connect(pipeline.dsn, autocommit=True) as connection:
            while not stop.is_set():
                with connection.transaction():
                    for key in range(KEYS):
                        pipeline.insert(written + key, key=f"key-{key}", on=connection)
                written += KEYS

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for old, new in size:
            before = len(pipeline.events())
            wait_for(lambda before=before: len(pipeline.events()) > before, 60, "it streams")  # type: ignore[misc]
            changed = pipeline.command("init", "--shards", str(new), "--instead-of", str(old), timeout_s=180)
            assert changed.code == 0, changed.err
            pipeline.terminate()
            pipeline.start("--shards", str(new))
    finally:
        stop.set()
        writer.join()
    follow(pipeline.bootstrap, pipeline.topic, written, 120)
    events = pipeline.events()
    assert len(events) == len({event.n for event in events}) == written
    by_key = defaultdict[bytes | None, list[tuple[int, int]]](list)
    for event in events:
        by_key[event.key].append((event.offset, event.n))
    for of_key in by_key.values():
        assert [n for _, n in sorted(of_key)] == sorted(n for _, n in of_key)
    verified = pipeline.command("verify", "--shards", str(size[-1][1]), "--json")
    assert verified.code == 0, verified.err
    pipeline.stop()


@since(15)
@pytest.mark.parametrize("dies_at", ["before the first positions", pytest.param("before the old slots are gone", marks=pytest.mark.soak)])
def test_a_change_that_died_is_run_again(pipeline: Pipeline, dies_at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the proof of the barrier it begins anew; behind it, it goes on with the new slots and the rows that they hold."""
    pipeline.set(http__listen="off")
    pipeline.init()
    pipeline.start()
    pipeline.insert(1, 5, key="early")
    wait_for(lambda: len(pipeline.events()) == 5, 60, "it streams")

    def dies(*_: object, **__: object) -> None:
        raise Died

    if dies_at == "before the first positions":
        monkeypatch.setattr(reshard, "Existing", dies)
    else:
        monkeypatch.setattr(Administration, "drop_slot", dies)
    with pytest.raises(Died):
        pipeline.here("init", "--shards", "2", "--instead-of", "0")
    monkeypatch.undo()
    pipeline.insert(6, 9, key="between")
    again = pipeline.here("init", "--shards", "2", "--instead-of", "0")
    assert again.code == 0, again.err
    pipeline.insert(10, 12, key="late")
    pipeline.start("--shards", "2")
    pipeline.wait_numbers(range(1, 13))


class Died(BaseException):
    """Nobody catches it."""
