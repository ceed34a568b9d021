"""Latency beside Debezium's, within one run."""

from __future__ import annotations

from benchmarks.latency import Latency, ratios


def test_our_latency_is_a_multiple_of_theirs() -> None:
    found: dict[str, dict[str, Latency]] = {
        "ours": {"at1000in1": {"p50": 5.0, "p99": 20.0}},
        "debezium-latency": {"at1000in1": {"p50": 20.0, "p99": 200.0}},
    }
    assert ratios(found) == {"p50_to_debezium": 0.25, "p99_to_debezium": 0.1}


def test_who_did_not_take_part_gives_no_ratio() -> None:
    assert ratios({"ours": {"at1000in1": {"p50": 5.0, "p99": 20.0}}}) == {}
