"""The pipeline publishes to a real Redis: what arrives, what becomes of faults, what the commands say."""

from __future__ import annotations

import json

import pytest

from tests.pipeline import SCHEMA, decode
from tests.streams import RedisPipeline
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
    streams.stop()
    assert json.loads(streams.here("status", "--json").out.splitlines()[-1])["running"] is False
    assert streams.slot().confirmed <= streams.position()
    checked = streams.here("check", "--json")
    assert checked.code == 0, checked.out
    refused = streams.here("offsets", "reset", "--group", "g", "--to-earliest")
    assert refused.code == 2
    assert "publishes to redis" in refused.line
