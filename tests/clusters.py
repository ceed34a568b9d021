"""PostgreSQL servers that have relatives: copies that are put back, standbys that are promoted, and what pg_upgrade makes.

A base backup is taken with the newest version's pg_basebackup, which serves older servers too.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import psycopg
import pytest

from cdc.devstack.postgres import NEWEST, PostgresServer
from tests.waiting import wait_for


def versions(*short: int) -> pytest.MarkDecorator:
    """Run a test on these versions, and on all others in the soak."""
    others = [pytest.param(each, id=str(each), marks=pytest.mark.soak) for each in range(14, NEWEST + 1) if each not in short]
    return pytest.mark.parametrize("version", [*(pytest.param(each, id=str(each)) for each in short), *others])


def copied(source: Path, target: Path) -> None:
    """Copy a data directory of a server that is down, with its owners and modes; what was there before goes."""
    if target.exists():
        shutil.rmtree(target)
    subprocess.run(["cp", "-a", str(source), str(target)], check=True)


def run_as(server: PostgresServer, *command: str | Path) -> None:
    """Run one of PostgreSQL's own programs as the user that the server runs as; fails with what it said."""
    user = server._user
    groups: list[int] | None = [] if user else None
    line = list(map(str, command))
    done = subprocess.run(line, check=False, capture_output=True, text=True, cwd=server.folder, user=user, group=user, extra_groups=groups)
    assert done.returncode == 0, done.stdout + done.stderr


class Cluster:
    """A primary and what was made of it; everything ends with the test."""

    def __init__(self, version: int, folder: Path, stack: ExitStack, **settings: str) -> None:
        self.version = version
        self.stack = stack
        self.folder = folder
        self.primary = stack.enter_context(PostgresServer(version=version, settings=settings))
        self.query(self.primary, "CREATE DATABASE shop")

    @staticmethod
    def query(server: PostgresServer, statement: str, database: str = "postgres") -> list[tuple[object, ...]]:
        """Run one statement on a server."""
        with psycopg.connect(server.dsn(database), autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def standby(self, name: str, **settings: str) -> PostgresServer:
        """Make a streaming standby with a physical slot of that name, and start it."""
        server = self.backup(f"{name}-c", primary_slot_name=name, hot_standby_feedback="on", **settings)
        self.query(self.primary, f"SELECT pg_create_physical_replication_slot('{name}', true)")
        (server.data / "standby.signal").touch()
        server.settings["primary_conninfo"] = f"{self.primary.dsn('shop')}?application_name={name}"
        return self.stack.enter_context(server)

    def backup(self, name: str, **settings: str) -> PostgresServer:
        """Take a base backup; return a server over it that was not started."""
        server = PostgresServer(version=self.version, settings=settings)
        self.stack.callback(server.close)
        if server._user is not None:
            shutil.chown(server.folder, server._user, server._user)
        newest = self.stack.enter_context(closing(PostgresServer()))
        command: list[str | Path] = [
            newest.program("pg_basebackup"),
            "-d",
            self.primary.dsn(),
            "-D",
            server.data,
            "-c",
            "fast",
            "-X",
            "stream",
            "--no-sync",
        ]
        run_as(server, *command)
        return server

    def caught_up(self, standby: PostgresServer) -> None:
        """Wait until a standby has replayed all that the primary has."""
        [(end,)] = self.query(self.primary, "SELECT pg_current_wal_lsn()::text")
        wait_for(lambda: self.query(standby, f"SELECT pg_last_wal_replay_lsn() >= '{end}'") == [(True,)], 30, f"the standby is at {end}")

    def promote(self, standby: PostgresServer) -> None:
        """Promote a standby, and wait until it is a primary."""
        assert self.query(standby, "SELECT pg_promote(true, 60)") == [(True,)]


@contextmanager
def cluster(version: int, folder: Path, **settings: str) -> Iterator[Cluster]:
    """Give a primary that may have relatives, with an empty database `shop`."""
    with ExitStack() as stack:
        yield Cluster(version, folder, stack, **settings)
