"""The testing kit as a user has it: a project of its own with real servers by fixtures, and a consumer that is killed where it hurts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pipeline import environment

CONFTEST = 'pytest_plugins = ["cdc.testing.fixtures"]\n'

CONSUMER = """
from cdc.consumer import Consumer, Create

def made(name, kafka, database):
    shop = Consumer(
        name, topics=[name], kafka={"bootstrap.servers": kafka}, postgres=database, instance="1",
        create=Create(partitions=1, replication_factor=1, min_insync_replicas=1),
    )

    @shop.on("Placed")
    def note(event, connection):
        connection.execute("INSERT INTO notes VALUES (%s)", (event.value["n"],))

    return shop
"""

TEST = """
import threading, time, uuid

import psycopg
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from cdc.testing.windows import Window, killed_at
from shop import made

def test_a_note_is_taken_once(cdc_kafka, cdc_database):
    name = f"kit-{uuid.uuid4().hex[:8]}"
    shop = made(name, cdc_kafka, cdc_database)
    shop.create_tables()
    with psycopg.connect(cdc_database, autocommit=True) as connection:
        connection.execute("CREATE TABLE notes (n int)")
        admin = AdminClient({"bootstrap.servers": cdc_kafka})
        admin.create_topics([NewTopic(name, 1, 1)])[name].result()
        producer = Producer({"bootstrap.servers": cdc_kafka})
        for n in range(2):
            headers = {"ce_type": "Placed", "ce_id": str(n), "content-type": "application/json"}
            producer.produce(name, b'{"n": %d}' % n, "k", headers=headers)
        assert producer.flush(30) == 0
        killed_at(Window.COMMITTED, made, name, cdc_kafka, cdc_database).wait_killed()
        assert connection.execute("SELECT n FROM notes").fetchall() == [(0,)]
        worker = threading.Thread(target=shop.run)
        worker.start()
        end = time.monotonic() + 60
        while time.monotonic() < end and connection.execute("SELECT count(*) FROM notes").fetchone() != (2,):
            time.sleep(0.05)
        shop.stop()
        worker.join()
        assert connection.execute("SELECT n FROM notes ORDER BY n").fetchall() == [(0,), (1,)]
"""


@pytest.mark.soak
@pytest.mark.servers
@pytest.mark.timeout(600)
def test_a_users_test_has_real_servers_and_kills_a_consumer(tmp_path: Path) -> None:
    for name, text in (("conftest.py", CONFTEST), ("shop.py", CONSUMER), ("test_shop.py", TEST)):
        (tmp_path / name).write_text(text)
    given = environment()
    path = os.pathsep.join(filter(None, [str(tmp_path), given.get("PYTHONPATH", "")]))  # the child that is killed imports shop.py, too
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=tmp_path, env={**given, "PYTHONPATH": path}, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
