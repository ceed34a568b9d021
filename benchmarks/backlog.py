"""How fast a backlog drains: ours beside the limit that PostgreSQL's walsender sets, in one run."""

from __future__ import annotations

import subprocess
import time

import psycopg

from benchmarks.rig import Rig, pipeline
from cdc.devstack.postgres import client

POLL_S = 0.1
"""Between two looks at the slot: each one takes time from what is measured."""


def limit(rig: Rig, end: str) -> float:
    """Return the seconds in which pg_recvlogical drains a copy of our slot to /dev/null, up to an LSN."""
    with psycopg.connect(rig.dsn, autocommit=True) as connection:
        connection.execute("SELECT pg_copy_logical_replication_slot(%s, 'bench_limit')", (rig.settings.postgres.slot,))
        began = time.perf_counter()
        subprocess.run(
            [
                *(client("pg_recvlogical"), "-d", rig.dsn, "--slot", "bench_limit", "--start", "--endpos", end, "-f", "/dev/null"),
                *("-o", "proto_version=1", "-o", f"publication_names={rig.settings.postgres.publication}"),
            ],
            check=True,
            capture_output=True,
        )
        seconds = time.perf_counter() - began
        connection.execute("SELECT pg_drop_replication_slot('bench_limit')")
    return seconds


def ours(rig: Rig, rows: int, end: str) -> dict[str, float]:
    """Return rate, CPU and RSS of `cdc run` over a backlog of `rows` up to the LSN `end` that is there when it starts.

    `seconds` runs from the start of the process until the slot shows that the last row is published; `start_s` of it is the start.
    """
    with psycopg.connect(rig.dsn, autocommit=True) as connection:
        slot = rig.settings.postgres.slot
        place = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s"
        [before] = connection.execute(place, (slot,)).fetchone() or ("",)
        began = time.perf_counter()
        child = pipeline(rig)
        query = "SELECT confirmed_flush_lsn >= %s::pg_lsn, confirmed_flush_lsn <> %s::pg_lsn FROM pg_replication_slots WHERE slot_name = %s"
        first, done = None, False
        while not done:
            assert child.process.poll() is None, "the pipeline ended"
            [done, moved] = connection.execute(query, (end, before, slot)).fetchone() or (False, False)
            if moved and first is None:
                first = time.perf_counter()
            time.sleep(POLL_S)
        seconds, cpu_s = time.perf_counter() - began, child.cpu_s()
        child.close()
    return {
        "events": rows,
        "seconds": seconds,
        "start_s": (first or began) - began,
        "cpu_s_per_million": cpu_s / rows * 1e6,
        "rss_mb": child.peak_rss_mb,
    }
