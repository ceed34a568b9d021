"""`make bench ARGS=--quick`: this pipeline beside the limits, in one run on the same servers, in four minutes."""

from __future__ import annotations

from typing import Any

from benchmarks import backlog, latency
from benchmarks.rig import PARTITIONS, rig
from benchmarks.versus import tell

BACKLOG_ROWS, PER_TRANSACTION, HUGE_ROWS = 300_000, 100, 1_000_000


def measure(rounds: int, seconds: float) -> dict[str, Any]:
    """Return every figure, the backlog's as the median over rounds."""
    drains = []
    with rig() as servers:
        for partitions in (1, PARTITIONS):
            servers.make_topics(*(form.format(partitions) for form in (latency.TOPIC, latency.FLOOR_TOPIC)), partitions=partitions)
        servers.make_topics("outbox.event.order")
        tell("the broker warms up")
        latency.warm_up(servers)
        for round_ in range(rounds):
            tell(f"round {round_ + 1}: a backlog of {BACKLOG_ROWS:,} rows")
            end = servers.insert(BACKLOG_ROWS, PER_TRANSACTION)
            limit_s = backlog.limit(servers, end)
            drains.append((limit_s, backlog.ours(servers, BACKLOG_ROWS, end)))
        times = {}
        for partitions, suffix in ((1, ""), (PARTITIONS, f"_{PARTITIONS}_partitions")):
            tell(f"latency at 1,000 single-row transactions a second into {partitions} partitions, and its floor")
            times[f"latency_ms{suffix}"] = latency.ours(servers, seconds, partitions)
            times[f"floor_ms{suffix}"] = latency.floor(servers, seconds, partitions)
        tell(f"one transaction of {HUGE_ROWS:,} rows")
        end = servers.insert(HUGE_ROWS, HUGE_ROWS)
        huge = backlog.ours(servers, HUGE_ROWS, end)
    drains.sort(key=lambda drain: drain[0] / drain[1]["seconds"])
    limit_s, drain = drains[len(drains) // 2]
    return {
        "backlog_ratio": round(limit_s / drain["seconds"], 3),
        "backlog_ratio_streaming": round(limit_s / (drain["seconds"] - drain["start_s"]), 3),
        "limit_per_s": round(BACKLOG_ROWS / limit_s),
        "events_per_s": round(BACKLOG_ROWS / drain["seconds"]),
        "start_s": round(drain["start_s"], 2),
        "cpu_s_per_million": round(drain["cpu_s_per_million"], 1),
        "rss_mb": round(drain["rss_mb"]),
        "huge_rss_mb": round(huge["rss_mb"]),
        "huge_events_per_s": round(HUGE_ROWS / huge["seconds"]),
        **times,
    }
