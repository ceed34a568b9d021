"""Rates and costs of a drain, from samples."""

from __future__ import annotations

from benchmarks.drain import FIRST, Figures, Sample, figures, median
from benchmarks.versus import ratios


def sample(at: float, events: int, cpu_s: float) -> Sample:
    return Sample(at, events, cpu_s, 2 * cpu_s, 0.0)


def test_the_start_is_told_apart_and_the_tail_is_not_counted() -> None:
    samples = [sample(100, 0, 0), sample(102, 1_000, 5), sample(103, 501_000, 15), sample(105, 1_001_000, 25), sample(108, 1_001_000, 26)]
    found = figures(samples, 1_001_000, 100)
    assert found["start_s"] == 2
    assert found["seconds"] == 5
    assert found["events_per_s"] == 333_333
    assert found["first_events_per_s"] == FIRST
    assert found["steady_events_per_s"] == 250_000
    assert found["cpu_s_per_million"] == 20
    assert found["kafka_cpu_s_per_million"] == 40


def test_markers_of_kafka_transactions_are_no_events() -> None:
    samples = [sample(0, 0, 0), sample(1, 10, 0), sample(2, 1_010, 1)]
    assert figures(samples, 505, 0)["events_per_s"] == 500


def test_who_is_seen_in_no_topic_is_seen_from_its_start() -> None:
    found = figures([sample(0, 0, 0), sample(1, 0, 1), sample(4, 0, 2)], 1_000_000, 0)
    assert found["events_per_s"] == 250_000
    assert found["cpu_s_per_million"] == 2
    assert "start_s" not in found


def test_all_at_once_has_a_start_and_no_rate() -> None:
    found = figures([sample(0, 0, 0), sample(1, 1_000, 1)], 1_000, 0)
    assert found == {"events": 1_000, "seconds": 1, "start_s": 1}


def test_a_turn_that_failed_is_left_out_and_the_others_stay_in_their_rounds() -> None:
    found: dict[str, list[Figures]] = {
        "ours": [{"events_per_s": 10.0}, {}, {"events_per_s": 30.0}],
        "recvlogical": [{"events_per_s": 20.0}, {"events_per_s": 1.0}, {}],
    }
    assert ratios(found) == {"rate_to_recvlogical": 0.5}
    assert median(found["ours"]) == {"events_per_s": 20.0}
    assert median([{}]) == {}
