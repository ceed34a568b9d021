"""Moving from a running Debezium: its configuration, its slot and its consumers are taken over, and nothing is lost or doubled."""

from __future__ import annotations

import json
import shlex
import threading
import tomllib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import psycopg
import pytest

from cdc.cli import main
from cdc.devstack.connect import ConnectWorker, debezium
from cdc.outbox.mapping import OutboxMapping
from cdc.outbox.table import create_sql
from cdc.postgres.slot import Table
from tests.docs.pages import ROOT, blocks
from tests.pipeline import Pipeline
from tests.waiting import wait_for

pytestmark = pytest.mark.servers

KEYS = 20

GUIDE = [
    shlex.split(line)
    for block in blocks(ROOT / "docs" / "from-debezium.md")
    for line in block.text.splitlines()
    if line.startswith(("cdc import-debezium", "cdc init"))
]
"""What the guide tells people to type, done here."""


@contextmanager
def writing(pipeline: Pipeline, first: int) -> Iterator[list[int]]:
    """Write transactions of one to eight rows, one after the other, and tell how far they are."""
    stop, reached = threading.Event(), [first]

    def write() -> None:
        with psycopg.connect(pipeline.dsn, autocommit=True) as connection:
            for size in count():
                if stop.is_set():
                    return
                last = reached[0] + size % 8
                pipeline.insert(reached[0], last, key=f"k{size % KEYS}", on=connection)
                reached[0] = last + 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield reached
    finally:
        stop.set()
        writer.join()


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("total", [2_000, 50_000])
def test_a_running_debezium_under_load_is_replaced_without_gap_or_duplicate(pipeline: Pipeline, total: int) -> None:
    topic, name = pipeline.topic, pipeline.name
    pipeline.execute(create_sql(Table("public", "outbox"), OutboxMapping()))
    pipeline.execute("CREATE PUBLICATION dbz FOR TABLE outbox")
    pipeline.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (f"{name}_dbz",))
    pipeline.make_topic(topic)
    config = debezium(pipeline.dsn, slot=f"{name}_dbz", publication="dbz", route=f"{name}.${{routedByValue}}")
    config["value.converter"] = config["key.converter"] = "org.apache.kafka.connect.storage.StringConverter"
    connector = str(pipeline.folder / "connector.json")
    Path(connector).write_text(json.dumps({"name": "outbox", "config": config}))

    names = {"connector.json": connector, "connect-offsets": f"{name}-offsets"}
    said = {words[1]: [names.get(word, word) for word in words[1:]] for words in GUIDE}

    with ConnectWorker(pipeline.bootstrap, name, folder=pipeline.folder / "connect") as worker:
        worker.start()
        worker.put("outbox", config)
        worker.wait_running("outbox")
        with writing(pipeline, 1) as reached:
            wait_for(lambda: reached[0] > total // 2, 600)
            wait_for(lambda: len(pipeline.events()) > total // 4, 600, "the connector is well under way")
            worker.stop_connector("outbox")
            before = len(pipeline.events())
            assert main([*said["import-debezium"], "--output", str(pipeline.folder / "new.toml")]) == 0
            taken = tomllib.loads((pipeline.folder / "new.toml").read_text())
            for table in ("postgres", "outbox", "topics"):
                pipeline.settings |= {f"{table}.{key}": value for key, value in taken[table].items() if key != "dsn"}
            taken_over = pipeline.here(*said["init"])
            assert taken_over.code == 0, taken_over.err
            pipeline.started()
            wait_for(lambda: reached[0] > total, 600)
        numbers = range(1, reached[0])
        wait_for(lambda: len(pipeline.events()) >= len(numbers), 120)

    events = pipeline.events()
    told = [json.loads(event.value or b"")["n"] for event in events]
    assert [n for n, times in Counter(told).items() if times != 1] == []
    assert sorted(told) == list(numbers)
    assert told == sorted(told), "one writer, one partition: the order of the log"
    assert 0 < before < len(events)
    # What Debezium adds for lineage (extended.headers.enabled) says which task made a record, and no more.
    headers = [{name: value for name, value in event.headers.items() if not name.startswith("__debezium.")} for event in events]
    assert {tuple((name, len(value)) for name, value in each.items()) for each in headers} == {(("id", 36), ("eventType", 5))}
    assert {event.key for event in events} == {f"k{number}".encode() for number in range(KEYS)}
    verified = json.loads(pipeline.here("verify", "--json").out.splitlines()[-1])
    assert verified["rows"] == verified["events"] == len(numbers)
    assert verified["missing"] == verified["duplicated"] == verified["skipped"] == 0
