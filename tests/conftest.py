"""Servers for tests: one PostgreSQL and one Kafka for the whole run, a database and a name of its own for each test.

TEST_POSTGRES_DSN and TEST_KAFKA_BOOTSTRAP name servers that somebody else started. A server that can't be had skips its tests
at home and fails them in CI. TEST_POSTGRES_VERSION is the version of ours.

`--json` ends the run with one line, a JSON object of what its tests measured.
"""

from __future__ import annotations

import json
import logging
import os
import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import psycopg
import pytest
import structlog
from hypothesis import HealthCheck, settings
from psycopg import sql
from psycopg.conninfo import make_conninfo

from cdc.devstack.kafka import KafkaBroker
from cdc.devstack.postgres import PostgresServer
from cdc.devstack.rabbitmq import RabbitBroker
from cdc.devstack.redis import RedisServer
from cdc.devstack.server import Server
from cdc.errors import CdcError
from tests.pipeline import POSTGRES_VERSION, Pipeline
from tests.rabbit import RabbitPipeline, start_broker
from tests.streams import RedisPipeline, running_redis

Kind = TypeVar("Kind", bound=Server)

SERVERS = {"postgres_dsn", "postgres15", "kafka_bootstrap", "_spare_kafka", "_spare_postgres"}
"""Fixtures that start a server."""

settings.register_profile("tests", deadline=None, derandomize=False, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")
"""Examples are new in each run, also in CI, and none has to be quick: workers share the cores. A failure prints how to repeat it."""

FIGURE = "figure"
"""The property by which a test reports what the run prints at its end: how much it did, and its seed."""


MEASURED = "measured"
"""The property by which a test hands over its `figures`."""

_measured = pytest.StashKey[dict[str, Any]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --json."""
    parser.addoption("--json", action="store_true", help="end with one line: what was measured, as a JSON object")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that need servers."""
    for item in items:
        if SERVERS.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.servers)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the figures; what a worker writes itself is not seen."""
    measured = terminalreporter.config.stash.setdefault(_measured, {})
    for report in [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]:
        for name, told in report.user_properties if report.when == "call" else ():
            if name == FIGURE:
                terminalreporter.write_line(str(told))
            elif isinstance(told, dict):
                measured.update(told)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Print what was measured below all else that pytest has to say."""
    if config.getoption("--json") and _measured in config.stash:
        print(json.dumps(config.stash[_measured]), flush=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show where a pipeline stood when its test failed, while its servers are still there."""
    report = yield
    found = getattr(item, "funcargs", {}).get("pipeline")
    if call.when == "call" and report.failed and isinstance(found, Pipeline):
        try:
            report.sections.append(("pipeline", found.evidence()))
        except Exception as error:  # noqa: BLE001 - what the test was about may have taken any server away
            report.sections.append(("pipeline", f"cannot be looked at: {error!r}"))
    return report


@pytest.fixture
def figures(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What a test measures, by name: `figures["verify_seconds"] = 31.2`. Shown by --json, asserted by nobody."""
    measured = dict[str, Any]()
    request.node.user_properties.append((MEASURED, measured))
    return measured


@contextmanager
def running(server: Kind) -> Iterator[Kind]:
    """Start a server, and end it afterwards."""
    try:
        server.start()
    except CdcError as error:
        server.close()
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))
    with server:
        yield server


@pytest.fixture(autouse=True)
def _logging_is_put_back() -> Iterator[None]:
    """A command in this process routes all logging to its stderr, which is closed when the test is over."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    structlog.reset_defaults()
    logging.captureWarnings(capture=False)
    root.handlers[:], root.level = handlers, level


@pytest.fixture(scope="session")
def postgres_dsn() -> Iterator[str]:
    """A superuser's connection string for the shared PostgreSQL."""
    own = os.environ.get("TEST_POSTGRES_DSN")
    if own:
        yield own
        return
    with running(PostgresServer(version=POSTGRES_VERSION)) as server:
        yield server.dsn()


@pytest.fixture(scope="session")
def kafka_bootstrap() -> Iterator[str]:
    """bootstrap.servers of the shared Kafka."""
    own = os.environ.get("TEST_KAFKA_BOOTSTRAP")
    if own:
        yield own
        return
    with running(KafkaBroker()) as broker:
        yield broker.bootstrap_servers


@pytest.fixture(scope="session")
def kafka(kafka_bootstrap: str) -> str:
    """The same, by the name that most tests use."""
    return kafka_bootstrap


@pytest.fixture
def unique() -> str:
    """A name that no other test has: for pipelines, databases, slots and topic prefixes."""
    return f"t{uuid.uuid4().hex[:12]}"


@pytest.fixture
def topic_prefix(unique: str) -> str:
    """A prefix for the topics of one test."""
    return unique


@pytest.fixture
def database(postgres_dsn: str, unique: str) -> Iterator[str]:
    """The connection string of a fresh database, dropped afterwards with its slots."""
    with psycopg.connect(postgres_dsn, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(unique)))
        yield make_conninfo(postgres_dsn, dbname=unique)
        drop_database(admin, unique)


def drop_database(admin: psycopg.Connection[tuple[object, ...]], name: str) -> None:
    """Drop a database and the slots that hang on it; whoever is still connected is told to go."""
    admin.execute("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE database = %s AND active", (name,))
    for (slot,) in admin.execute("SELECT slot_name FROM pg_replication_slots WHERE database = %s", (name,)).fetchall():
        admin.execute(
            "DO $$ BEGIN FOR i IN 1..200 LOOP BEGIN PERFORM pg_drop_replication_slot("
            + sql.quote(slot)
            + "); RETURN; EXCEPTION WHEN object_in_use THEN PERFORM pg_sleep(0.05); END; END LOOP; END $$"
        )
    admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture
def pipeline(tmp_path: Path, unique: str, database: str, kafka: str) -> Iterator[Pipeline]:
    """A pipeline on the shared servers: nothing is made and nothing runs yet."""
    with Pipeline(tmp_path, unique, database, kafka) as made:
        yield made


@pytest.fixture(scope="session")
def rabbit_broker() -> Iterator[RabbitBroker]:
    """A RabbitMQ that tests share, and may restart."""
    yield from start_broker()


@pytest.fixture
def rabbit(tmp_path: Path, unique: str, database: str, rabbit_broker: RabbitBroker) -> Iterator[RabbitPipeline]:
    """A pipeline that publishes to RabbitMQ: nothing is made and nothing runs yet."""
    with RabbitPipeline(tmp_path, unique, database, rabbit_broker) as made:
        yield made
    if rabbit_broker.pid is None:
        rabbit_broker.start()


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """A Redis that tests share."""
    yield from running_redis()


@pytest.fixture
def streams(tmp_path: Path, unique: str, database: str, redis_server: RedisServer) -> Iterator[RedisPipeline]:
    """A pipeline that publishes to Redis: nothing is made and nothing runs yet."""
    with RedisPipeline(tmp_path, unique, database, redis_server.url) as made:
        yield made


Pipelines = Callable[[str, str], Pipeline]


@pytest.fixture
def pipelines(tmp_path: Path, unique: str) -> Iterator[Pipelines]:
    """Make a pipeline on other servers, named by a dsn and bootstrap.servers."""
    with ExitStack() as stack:

        def make(dsn: str, bootstrap: str) -> Pipeline:
            return stack.enter_context(Pipeline(tmp_path, unique, dsn, bootstrap))

        yield make


@pytest.fixture(scope="session")
def postgres15() -> Iterator[PostgresServer]:
    """PostgreSQL 15, the oldest version that many still have."""
    with running(PostgresServer(version=15)) as server:
        yield server


@pytest.fixture(scope="session")
def _spare_kafka() -> Iterator[KafkaBroker]:
    # One that was frozen for longer than its session has no leader for a moment, and Kafka loses the ends of transactions then.
    with running(KafkaBroker(properties={"broker.session.timeout.ms": "30000"})) as broker:
        yield broker


@pytest.fixture
def spare_kafka(_spare_kafka: KafkaBroker) -> Iterator[KafkaBroker]:
    """A broker that a test may freeze and restart: it runs again afterwards. One that is killed is let in after 30 s only."""
    yield _spare_kafka
    _spare_kafka.thaw()
    if _spare_kafka.pid is None:
        _spare_kafka.start()


@pytest.fixture(scope="session")
def _spare_postgres() -> Iterator[PostgresServer]:
    with running(PostgresServer(version=POSTGRES_VERSION)) as server:
        yield server


@pytest.fixture
def spare_postgres(_spare_postgres: PostgresServer) -> Iterator[PostgresServer]:
    """A PostgreSQL that a test may stop and restart: it runs again afterwards."""
    yield _spare_postgres
    if _spare_postgres.pid is None:
        _spare_postgres.start()


@pytest.fixture
def spare_database(spare_postgres: PostgresServer, unique: str) -> Iterator[str]:
    """The connection string of a fresh database on that server."""
    with psycopg.connect(spare_postgres.dsn(), autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(unique)))
    yield spare_postgres.dsn(unique)
    if spare_postgres.pid is None:
        spare_postgres.start()
    with psycopg.connect(spare_postgres.dsn(), autocommit=True) as admin:
        drop_database(admin, unique)
