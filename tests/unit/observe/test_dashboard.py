"""Grafana's dashboard shows each metric of the list once, and is fresh."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cdc.observe.consumers import CONSUMER_METRICS
from cdc.observe.dashboard import ACROSS, SECTIONS, STATS, THRESHOLDS, WORST, dashboard, text, unit
from cdc.observe.metrics import METRICS

FILE = Path(__file__).parents[3] / "docker" / "grafana" / "dashboard.json"


def panels() -> list[dict[str, Any]]:
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def test_the_file_is_fresh() -> None:
    assert FILE.read_text() == text(), "python -m cdc.observe.dashboard > docker/grafana/dashboard.json"
    assert json.loads(text())["uid"] == "cdc"


def test_each_metric_is_shown_once() -> None:
    shown = [name for names in SECTIONS.values() for name in names]
    assert sorted(shown) == sorted(definition.name for definition in (*METRICS, *CONSUMER_METRICS))
    assert set(shown) >= STATS | set(THRESHOLDS) | set(WORST)
    assert len(panels()) == len(METRICS) + len(CONSUMER_METRICS)


def test_panels_do_not_overlap_and_have_numbers_of_their_own() -> None:
    taken = set[tuple[int, int]]()
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= ACROSS
        taken |= cells
    numbers = [panel["id"] for panel in dashboard()["panels"]]
    assert len(numbers) == len(set(numbers))


@pytest.mark.parametrize(
    ("name", "of"),
    [
        ("cdc_events_total", "ops"),
        ("cdc_topic_bytes_total", "Bps"),
        ("cdc_lag_bytes", "bytes"),
        ("cdc_lag_seconds", "s"),
        ("cdc_last_commit_timestamp_seconds", "dateTimeFromNow"),
        ("cdc_pending_rows", "short"),
    ],
)
def test_units_follow_from_names(name: str, of: str) -> None:
    assert unit(name) == of
