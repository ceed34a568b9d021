"""The servers of `cdc demo`, `cdc dev` and these tests: they come up, come back, and never outlive whom they belong to."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from cdc.devstack.kafka import KafkaBroker
from cdc.devstack.postgres import PostgresServer, client
from cdc.devstack.process import accepts, children_of, start_time, state_of, wait_gone
from cdc.devstack.stack import Stack
from cdc.errors import CdcError
from tests.conftest import running

pytestmark = pytest.mark.servers

OWNER = """
import time
from cdc.devstack.stack import Stack
stack = Stack()
stack.start()
print(stack.postgres.pid, stack.kafka.pid, stack.postgres.folder, stack.kafka.folder, flush=True)
time.sleep(600)
"""


def one(dsn: str, query: str) -> object:
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute(query).fetchone()
    return row[0] if row else None


def test_postgres_comes_back_with_what_it_had(spare_postgres: PostgresServer) -> None:
    dsn, pid, port = spare_postgres.dsn(), spare_postgres.pid, spare_postgres.port
    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE TABLE kept (n int)")
    spare_postgres.restart()
    assert (spare_postgres.port, spare_postgres.pid) != (port, pid)
    assert one(dsn, "SELECT count(*) FROM kept") == 0
    assert one(dsn, "SHOW wal_level") == "logical"
    spare_postgres.stop("immediate")
    assert spare_postgres.pid is None
    assert not accepts(port)
    spare_postgres.start()
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("DROP TABLE kept")


def test_a_killed_postgres_leaves_no_backend_and_starts_again_at_once(spare_postgres: PostgresServer) -> None:
    with psycopg.connect(spare_postgres.dsn(), autocommit=True) as connection:
        backend = connection.info.backend_pid
        assert spare_postgres.pid is not None
        children = children_of(spare_postgres.pid)
        assert backend in children
        spare_postgres.kill()
        assert [start_time(pid) for pid in children] == [None] * len(children)
    spare_postgres.start()
    assert one(spare_postgres.dsn(), "SELECT 1") == 1


def test_a_frozen_postgres_stands_still(spare_postgres: PostgresServer) -> None:
    spare_postgres.freeze()
    assert state_of(spare_postgres.pid or 0) == "T"
    spare_postgres.stop()
    assert spare_postgres.pid is None


def test_postgres_15_has_logical_decoding_and_takes_the_clients_of_18(postgres15: PostgresServer) -> None:
    assert str(one(postgres15.dsn(), "SHOW server_version")).startswith("15.")
    psql = [str(client("psql")), "-XAtq", postgres15.dsn(), "-c", "SHOW wal_level"]
    assert subprocess.run(psql, check=True, capture_output=True, text=True).stdout == "logical\n"


def test_a_setting_is_passed_and_a_wrong_one_is_told(tmp_path: Path) -> None:
    with PostgresServer(settings={"max_replication_slots": "3"}) as server:
        assert one(server.dsn(), "SHOW max_replication_slots") == "3"
    server = PostgresServer(tmp_path, settings={"max_replication_slots": "many"})
    with pytest.raises(CdcError, match=r'PostgreSQL ended with exit code 1 .*invalid value for parameter "max_replication_slots"'):
        server.start()
    server.close()


def test_kafka_comes_back_with_what_it_had(unique: str) -> None:
    with running(KafkaBroker()) as broker:
        comes_back(broker, unique)


def comes_back(broker: KafkaBroker, unique: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
    admin.create_topics([NewTopic(unique, 1)])[unique].result(10)
    pid, port = broker.pid, broker.port
    broker.restart()
    assert broker.port == port
    assert broker.pid != pid
    broker.kill()
    broker.start()
    again = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
    assert unique in again.list_topics(timeout=10).topics
    again.delete_topics([unique])[unique].result(10)


def test_a_frozen_kafka_stands_still_and_can_be_stopped(spare_kafka: KafkaBroker) -> None:
    spare_kafka.freeze()
    assert state_of(spare_kafka.pid or 0) == "T"
    spare_kafka.stop()
    assert spare_kafka.pid is None


def test_a_property_that_kafka_refuses_is_told() -> None:
    broker = KafkaBroker(properties={"num.partitions": "many"})
    with pytest.raises(CdcError, match=r"Invalid value many for configuration num\.partitions"):
        broker.start()
    broker.close()
    assert not broker.folder.exists()


def test_temporary_servers_leave_nothing() -> None:
    with Stack() as stack:
        folders = (stack.postgres.folder, stack.kafka.folder)
        family = [pid for server in (stack.postgres, stack.kafka) for pid in (server.pid or 0, *children_of(server.pid or 0))]
        assert one(stack.postgres.dsn(), "SELECT 1") == 1
    assert not any(folder.exists() for folder in folders)
    assert [start_time(pid) for pid in family] == [None] * len(family)


def test_servers_of_a_killed_process_die_with_it() -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        *pids, postgres_folder, kafka_folder = owner.stdout.readline().split()
        family = [pid for server in map(int, pids) for pid in (server, *children_of(server))]
        processes = [(pid, start_time(pid)) for pid in family]
        owner.kill()
    assert wait_gone(processes, 15) == []
    KafkaBroker().close()  # the next one clears up
    assert not Path(kafka_folder).exists()
    PostgresServer().close()
    assert not Path(postgres_folder).exists()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "dev"
    dev("down", tmp_path / "dev")


def dev(command: str, folder: Path) -> tuple[int, dict[str, object]]:
    done = subprocess.run(
        [sys.executable, "-m", "cdc", "dev", command, "--dir", str(folder), "--json"], check=False, capture_output=True, text=True
    )
    assert not done.stderr
    document: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return done.returncode, document


def test_cdc_dev_up_status_and_down(folder: Path) -> None:
    assert dev("status", folder) == (8, {"running": False})
    code, up = dev("up", folder)
    assert code == 0
    assert one(str(up["postgres_dsn"]), "SELECT 1") == 1
    assert AdminClient({"bootstrap.servers": str(up["bootstrap_servers"])}).list_topics(timeout=10).brokers
    assert dev("up", folder) == (0, up)
    assert dev("status", folder) == (0, up)
    pids = [int(str(up[key])) for key in ("postgres_pid", "kafka_pid")]
    assert dev("down", folder) == (0, {"stopped": pids})
    assert [start_time(pid) for pid in pids] == [None, None]
    assert dev("status", folder) == (8, {"running": False})
    assert dev("down", folder) == (0, {"stopped": []})


def test_cdc_dev_up_after_one_server_died_brings_both_back_where_they_were(folder: Path) -> None:
    _, before = dev("up", folder)
    kafka = int(str(before["kafka_pid"]))
    started = start_time(kafka)
    subprocess.run(["kill", f"-{signal.SIGKILL.value}", str(kafka)], check=True)
    assert wait_gone([(kafka, started)], 10) == []
    assert dev("status", folder) == (8, {"running": False})
    code, after = dev("up", folder)
    assert code == 0
    assert (after["postgres_dsn"], after["bootstrap_servers"]) == (before["postgres_dsn"], before["bootstrap_servers"])
    assert after["postgres_pid"] != before["postgres_pid"]
