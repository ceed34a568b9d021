"""`make bench`: this pipeline beside the limits, in one run on the same servers; figures are ratios, machines are noisy."""

from __future__ import annotations

import argparse
import sys

import orjson
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # not listed in its stub

from benchmarks import backlog, latency
from benchmarks.rig import rig

BACKLOG_ROWS, PER_TRANSACTION, HUGE_ROWS = 300_000, 100, 1_000_000


def main() -> int:
    """Run the benchmarks and print the figures."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round of each")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of the backlog, each beside its limit (default 3)")
    parser.add_argument("--seconds", type=float, default=10, help="length of a latency window (default 10)")
    parser.add_argument("--json", action="store_true", help="end with one line that is one JSON object")
    options = parser.parse_args()
    figures = measure(1 if options.quick else options.rounds, options.seconds)
    for name, value in figures.items():
        print(f"{name:24} {value}")
    if options.json:
        print(orjson.dumps(figures).decode())
    return 0


def measure(rounds: int, seconds: float) -> dict[str, object]:
    """Return every figure, the backlog's as the median over rounds."""
    drains = []
    with rig() as servers:
        admin = AdminClient({"bootstrap.servers": servers.stack.kafka.bootstrap_servers})
        admin.create_topics([NewTopic(latency.FLOOR_TOPIC, 6, 1)])[latency.FLOOR_TOPIC].result()
        for round_ in range(rounds):
            _tell(f"round {round_ + 1}: a backlog of {BACKLOG_ROWS:,} rows")
            servers.insert(BACKLOG_ROWS, PER_TRANSACTION)
            limit_s = backlog.limit(servers)
            drains.append((limit_s, backlog.ours(servers, BACKLOG_ROWS)))
        _tell("latency at 1,000 single-row transactions a second, and its floor")
        floor = latency.floor(servers, seconds)
        ours = latency.ours(servers, seconds)
        _tell(f"one transaction of {HUGE_ROWS:,} rows")
        servers.insert(HUGE_ROWS, HUGE_ROWS)
        huge = backlog.ours(servers, HUGE_ROWS)
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
        "latency_ms": ours,
        "floor_ms": floor,
    }


def _tell(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
