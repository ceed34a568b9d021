"""The table of sinks has a line for each, with a dash for what Kafka has elsewhere."""

from __future__ import annotations

from typing import Any

from benchmarks.sinks import table

FIGURES: dict[str, Any] = {
    "events_per_s": 20_000.0,
    "cpu_s_per_million": 15.0,
    "broker_cpu_s_per_million": 11.0,
    "rss_mb": 70,
    "latency_ms": {"p50": 2.0, "p99": 9.0},
}


def test_a_line_for_each_sink() -> None:
    beside = {"ratio": 0.9, "bare_cpu_s_per_million": 20.0}
    sinks = {"kafka": FIGURES, "redis": FIGURES | beside}
    lines = table({"rows": 1_000, "rounds": 3, "per_transaction": 100, "trickle_per_s": 100, "sinks": sinks}).splitlines()
    assert lines[0] == "1,000 rows in transactions of 100, 3 rounds, medians; latency at 100 a second"
    assert lines[-2:] == [
        "| Kafka | 20,000.0 | - | 15.0 | - | 11.0 | 70 | 2.0 | 9.0 |",
        "| Redis | 20,000.0 | 0.9 | 15.0 | 20.0 | 11.0 | 70 | 2.0 | 9.0 |",
    ]
