"""`make bench`: this pipeline beside the limits, in one run on the same servers; figures are ratios, machines are noisy."""

from __future__ import annotations

import argparse
import sys

import orjson

from benchmarks import backlog, latency
from benchmarks.rig import rig

BACKLOG_ROWS, PER_TRANSACTION, HUGE_ROWS = 300_000, 100, 1_000_000

PARTITIONS = 6
"""Each partition that a Kafka transaction touches costs the broker a request of its own (KIP-890's verification and
librdkafka's one produce request for each), so latency is shown for one partition and for several."""


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
        latency.make_topics(servers, (1, PARTITIONS))
        for round_ in range(rounds):
            _tell(f"round {round_ + 1}: a backlog of {BACKLOG_ROWS:,} rows")
            servers.insert(BACKLOG_ROWS, PER_TRANSACTION)
            limit_s = backlog.limit(servers)
            drains.append((limit_s, backlog.ours(servers, BACKLOG_ROWS)))
        times = {}
        for partitions, suffix in ((1, ""), (PARTITIONS, f"_{PARTITIONS}_partitions")):
            _tell(f"latency at 1,000 single-row transactions a second into {partitions} partitions, and its floor")
            times[f"latency_ms{suffix}"] = latency.ours(servers, seconds, partitions)
            times[f"floor_ms{suffix}"] = latency.floor(servers, seconds, partitions)
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
        **times,
    }


def _tell(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
