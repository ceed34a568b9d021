"""Two shards of one outbox: processes, slots and positions of their own, and together every row once, in order for each key."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

from cdc.postgres.slot import Part, Table, publication_sql
from tests.pipeline import POSTGRES_VERSION, Pipeline, since
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
