"""How fast a backlog drains: ours beside the limit that PostgreSQL's walsender sets, in one run."""

from __future__ import annotations

import subprocess
import time

import psycopg

from benchmarks.rig import NAME, Rig, pipeline
from cdc.devstack.postgres import client

POLL_S = 0.01


def limit(rig: Rig) -> float:
    """Return the seconds in which pg_recvlogical drains a copy of our slot to /dev/null."""
    with psycopg.connect(rig.dsn, autocommit=True) as connection:
        connection.execute("SELECT pg_copy_logical_replication_slot(%s, 'bench_limit')", (rig.settings.postgres.slot,))
        row = connection.execute("SELECT pg_current_wal_lsn()::text").fetchone()
        assert row is not None
        began = time.perf_counter()
        subprocess.run(
            [
                *(client("pg_recvlogical"), "-d", rig.dsn, "--slot", "bench_limit", "--start", "--endpos", row[0], "-f", "/dev/null"),
                *("-o", "proto_version=1", "-o", f"publication_names={rig.settings.postgres.publication}"),
            ],
            check=True,
            capture_output=True,
        )
        seconds = time.perf_counter() - began
        connection.execute("SELECT pg_drop_replication_slot('bench_limit')")
    return seconds


def ours(rig: Rig, rows: int) -> dict[str, float]:
    """Return rate, CPU and RSS of `cdc run` over a backlog of `rows` that is there when it starts.

    The rate is from the first confirmed position to the last, as seen in the slot; the start is told apart.
    """
    with psycopg.connect(rig.dsn, autocommit=True) as connection:
        [target] = connection.execute("SELECT pg_current_wal_lsn()::text").fetchone() or ("",)
        began = time.perf_counter()
        child = pipeline(rig)
        query = (
            "SELECT confirmed_flush_lsn >= %s::pg_lsn, active AND confirmed_flush_lsn > restart_lsn"
            " FROM pg_replication_slots WHERE slot_name = %s"
        )
        first = None
        before = connection.execute(
            "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = %s", (rig.settings.postgres.slot,)
        ).fetchone()
        moved = "SELECT confirmed_flush_lsn <> %s::pg_lsn FROM pg_replication_slots WHERE slot_name = %s"
        while True:
            if first is None:
                [changed] = connection.execute(moved, (*(before or ()), rig.settings.postgres.slot)).fetchone() or (False,)
                first = time.perf_counter() if changed else None
            [done, _] = connection.execute(query, (target, rig.settings.postgres.slot)).fetchone() or (False, False)
            if done:
                break
            assert child.process.poll() is None, "the pipeline ended"
            time.sleep(POLL_S)
        seconds, cpu_s = time.perf_counter() - began, child.cpu_s()
        child.stop()
    return {
        "events": rows,
        "seconds": seconds,
        "start_s": (first or began) - began,
        "cpu_s_per_million": cpu_s / rows * 1e6,
        "rss_mb": child.peak_rss_mb,
    }


__all__ = ["NAME", "limit", "ours"]
