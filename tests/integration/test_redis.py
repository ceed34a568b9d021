"""The pipeline publishes to a real Redis: what arrives, what becomes of faults, what the commands say."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis

from cdc.devstack.redis import SENTINEL, RedisServer
from tests.consumers import RedisLine, consuming, write_effect
from tests.pipeline import SCHEMA, decode
from tests.streams import RedisPipeline, new_redis
from tests.waiting import wait_for

pytestmark = [pytest.mark.servers, pytest.mark.packages]


def test_rows_arrive_once_and_in_order_and_every_command_sees_them(streams: RedisPipeline) -> None:
    streams.init()
    streams.started()
    streams.insert(1, 300)
    streams.wait_numbers(range(1, 301))
    streams.wait_confirmed()
    [event, *_] = streams.events()
    assert event.key == b"k"
    assert event.headers["ce_type"] == b"Thing"
    assert event.headers["content-type"] == b"application/avro"
    assert decode(event.value, SCHEMA)["n"] == 1
    streams.execute("INSERT INTO outbox (aggregatetype, aggregateid, type, payload) VALUES ('thing', 'k', 'Thing', '{\"n\": \"no\"}')")
    wait_for(lambda: len(streams.events(streams.dead_letter_topic)) == 1, what="a dead letter")
    verdict = json.loads(streams.here("verify", "--json").out.splitlines()[-1])
    assert (verdict["rows"], verdict["events"], verdict["dead_letters"]) == (301, 300, 1)
    assert [verdict[kind] for kind in ("missing", "duplicated", "unexpected", "reordered", "torn", "pending")] == [0] * 6
    [letter] = json.loads(streams.here("dead-letters", "list", "--json").out.splitlines()[-1])["dead_letters"]
    assert letter["reason"] == "schema"
    assert streams.here("dead-letters", "show", letter["id"], "--payload").code == 0
    tail = streams.here("tail", "--from-beginning", "--limit", "2", "--json").out.splitlines()
    assert [json.loads(line)["value"]["n"] for line in tail] == [1, 2]
    assert streams.status()["state"] == "streaming"
    redrive_a_mended_row(streams, letter["id"])
    streams.stop()
    assert json.loads(streams.here("status", "--json").out.splitlines()[-1])["running"] is False
    assert streams.slot().confirmed <= streams.position()
    checked = streams.here("check", "--json")
    assert checked.code == 0, checked.out
    refused = streams.here("replay", "--id", "1", "--yes")
    assert refused.code == 2
    assert "publishes to redis" in refused.line


def redrive_a_mended_row(streams: RedisPipeline, bad: str) -> None:
    """Publish a dead letter after all, once, beside the pipeline that runs."""
    wrong = streams.here("dead-letters", "redrive", bad)
    assert (wrong.code, "nothing was published" in wrong.line) == (8, True), wrong.err
    streams.execute("UPDATE outbox SET payload = '{\"n\": 301}' WHERE id = %s", (bad,))
    done = streams.here("dead-letters", "redrive", bad, "--from-table", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out.splitlines()[-1])["topics"] == {streams.topic: 1}
    assert streams.events()[-1].headers["ce_replay"] == b"redrive:" + bad.encode()
    again = streams.here("dead-letters", "redrive", bad, "--from-table")
    assert (again.code, "redriven before" in again.line) == (8, True)
    streams.insert(302, 302)
    streams.wait_numbers(range(1, 303))


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[RedisServer]:
    """A server that a test may kill and rob."""
    with new_redis(tmp_path / "redis") as server:
        yield server


@pytest.fixture
def own(tmp_path: Path, unique: str, database: str, own_redis: RedisServer) -> Iterator[RedisPipeline]:
    """A pipeline that publishes there, with the table of an outbox."""
    with RedisPipeline(tmp_path, unique, database, own_redis.url) as made:
        made.init()
        yield made


def _copy_log(source: Path, target: Path) -> None:
    """Put the append-only log of a server that is down in place of another one: a folder, or one file before Redis 7."""
    [log] = source.glob("appendonly*")
    if log.is_file():
        target.mkdir(exist_ok=True)
        shutil.copy(log, target / log.name)
        return
    shutil.rmtree(target / log.name, ignore_errors=True)
    shutil.copytree(log, target / log.name)


def test_a_redis_that_is_full_frozen_or_killed_is_waited_for_and_one_that_lost_its_tail_is_found(
    own: RedisPipeline, own_redis: RedisServer
) -> None:
    process = own.started()
    with own.client as client:
        client.config_set("maxmemory", "1")
        own.insert(1, 100)
        wait_for(lambda: "OOM" in own.get("/health/ready")[1], what="health tells")
        assert own.get("/health/live")[0] == 200
        client.config_set("maxmemory", "0")
    own.wait_numbers(range(1, 101))
    own_redis.freeze()
    own.insert(101, 200)
    own_redis.thaw()
    own_redis.kill()
    own_redis.start()
    own.wait_numbers(range(1, 201))
    own.wait_confirmed()
    own_redis.kill()
    kept = own.folder / "kept"
    _copy_log(own_redis.folder, kept)
    own_redis.start()
    own.insert(201, 300)
    own.wait_numbers(range(1, 301))
    own.wait_confirmed()
    own_redis.kill()
    _copy_log(kept, own_redis.folder)
    own_redis.start()
    assert process.wait(30) == 4
    line = own.wait_exit().line
    assert "is ahead: it forgot everything up to" in line
    assert own.numbers() == list(range(1, 201)), "nothing is published over the gap"
    recovered = json.loads(own.here("recover", "--yes", "--json").out.splitlines()[-1])
    assert recovered["published"] == 100, recovered
    own.started()
    own.insert(301, 310)
    own.wait_numbers(range(1, 311))
    own.stop()


@pytest.mark.soak
def test_a_transaction_that_is_too_large_stops_the_pipeline_and_goes_through_with_another_setting(streams: RedisPipeline) -> None:
    streams.set(redis__transaction_max_bytes=16 * 1024 * 1024)
    streams.init()
    streams.start()
    streams.insert(1, 4_000, text="x" * 5_000)
    answer = streams.wait_exit()
    assert answer.code == 5
    assert "redis.transaction_max_bytes" in answer.line
    assert streams.events() == []
    streams.set(redis__transaction_max_bytes=64 * 1024 * 1024)
    streams.started()
    streams.wait_numbers(range(1, 4_001))


@pytest.mark.soak
def test_a_replica_that_sentinel_promotes_has_all_and_the_pipeline_and_its_consumer_follow(
    tmp_path: Path, unique: str, database: str
) -> None:
    with ExitStack() as stack:
        primary = stack.enter_context(new_redis())
        replica = stack.enter_context(new_redis(settings={"replicaof": f"127.0.0.1 {primary.port}"}))
        sentinel = stack.enter_context(new_redis(watches=primary))
        pipeline = stack.enter_context(RedisPipeline(tmp_path, unique, database, replica.url))
        pipeline.set(redis__sentinel=f"{SENTINEL}@127.0.0.1:{sentinel.port}", redis__wait_replicas=1)
        pipeline.set(topics__route=f"{unique}.{{aggregatetype}}")
        asked = stack.enter_context(redis.Redis.from_url(sentinel.url, protocol=2))
        wait_for(lambda: asked.sentinel_master(SENTINEL)["num-slaves"] == 1, what="the Sentinel knows the replica")
        pipeline.init()
        pipeline.started()
        shop = RedisLine(unique, replica.url, database, tmp_path / "schemas")
        consumer = shop.consumer(redis={"sentinel": pipeline.settings["redis.sentinel"]})
        consumer.on("Thing")(write_effect)
        with consuming(consumer):
            pipeline.insert(1, 100)
            shop.wait_effects(range(1, 101))
            pipeline.wait_confirmed()
            pipeline.insert(101, 200)
            primary.kill()
            pipeline.insert(201, 300)
            wait_for(lambda: pipeline.get("/health/ready")[0] != 200, what="the pipeline's health tells")
            wait_for(lambda: asked.sentinel_master(SENTINEL)["port"] == replica.port, 30, "the replica is promoted")
            wait_for(lambda: "replicas have the last commit" in pipeline.get("/health/ready")[1], 30, "and that a replica is missing")
            stack.enter_context(new_redis(settings={"replicaof": f"127.0.0.1 {replica.port}"}))
            pipeline.wait_numbers(range(1, 301))
            pipeline.wait_confirmed()
            shop.wait_effects(range(1, 301))
            wait_for(lambda: pipeline.get("/health/ready")[0] == 200, what="health is good again")
        verdict = json.loads(pipeline.here("verify", "--json").out.splitlines()[-1])
        assert [verdict[kind] for kind in ("missing", "duplicated", "unexpected", "reordered", "torn")] == [0] * 5, verdict
        pipeline.stop()


@pytest.mark.soak
def test_init_publishes_what_is_there_a_bookmark_is_gone_back_to_and_a_bad_row_is_parked(streams: RedisPipeline) -> None:
    streams.set(outbox__on_invalid="stop", redis__streams=2)
    streams.init()
    streams.insert(1, 3_000, key="early")
    streams.execute("SELECT pg_drop_replication_slot(%s)", (streams.slot_name,))
    with streams.client as client:
        client.delete(streams.position_topic)
    streams.init("--existing", "publish", create_table=False)
    assert streams.numbers() == list(range(1, 3_001))
    assert streams.here("slot", "bookmark", "here").code == 0
    process = streams.started()
    streams.insert(3_001, 3_010, key="early")
    streams.wait_numbers(range(1, 3_011))
    streams.execute("INSERT INTO outbox (aggregatetype, aggregateid, type, payload) VALUES ('thing', 'early', 'Thing', '{\"n\": \"no\"}')")
    assert process.wait(30) == 7
    [(bad,)] = streams.execute("SELECT id::text FROM outbox WHERE payload->>'n' = 'no'")
    parked = streams.here("dead-letters", "park", bad)
    assert parked.code == 0, parked.err
    assert len(streams.events(streams.dead_letter_topic)) == 1
    rewound = streams.here("slot", "rewind", "here", "--yes")
    assert rewound.code == 0, rewound.err
    streams.set(outbox__on_invalid="dead-letter")
    streams.started()
    streams.wait_numbers([*range(1, 3_011), *range(3_001, 3_011)])
    assert streams.events()[-1].headers["ce_replay"].startswith(b"rewind:")
    verdict = json.loads(streams.here("verify", "--json").out.splitlines()[-1])
    assert [verdict[kind] for kind in ("missing", "duplicated", "unexpected", "reordered", "torn")] == [0] * 5, verdict
    streams.stop()
