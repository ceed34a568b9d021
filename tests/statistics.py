"""PostgreSQL's statistics, without the wait for them."""

from __future__ import annotations

from typing import Any

import psycopg


def told_at_once(connection: psycopg.Connection[Any]) -> None:
    """Let a connection report what it did; before PostgreSQL 15 it does so with a later statement, so call it again."""
    connection.execute("SELECT pg_stat_force_next_flush()" if connection.info.server_version >= 150_000 else "SELECT 1")
    if not connection.autocommit:
        connection.commit()
