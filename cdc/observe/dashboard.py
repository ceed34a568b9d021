"""Grafana's dashboard, written from the lists of metrics: `python -m cdc.observe.dashboard > docker/grafana/dashboard.json`.

Strategy: SECTIONS says where on the page a metric stands; what its panel shows follows from its kind and its unit, which its
name ends with. A metric that no section names, or a name that does not exist, fails the test that keeps the file fresh.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from cdc.observe.consumers import CONSUMER_METRICS
from cdc.observe.metrics import METRICS, Definition

SECTIONS: dict[str, tuple[str, ...]] = {
    "Is all well": (
        "cdc_state",
        "cdc_ready",
        "cdc_live",
        "cdc_lag_seconds",
        "cdc_dead_letters_open",
        "cdc_slot_lost_in_seconds",
    ),
    "Throughput": (
        "cdc_events_total",
        "cdc_topic_records_total",
        "cdc_topic_bytes_total",
        "cdc_publish_latency_seconds",
        "cdc_kafka_transaction_duration_seconds",
        "cdc_ignored_messages_total",
    ),
    "Lag": (
        "cdc_lag_bytes",
        "cdc_pending_rows",
        "cdc_oldest_pending_seconds",
        "cdc_position_lsn_bytes",
        "cdc_position_commit_timestamp_seconds",
        "cdc_last_commit_timestamp_seconds",
    ),
    "Replication slot": (
        "cdc_slot_retained_bytes",
        "cdc_slot_confirmed_lag_bytes",
        "cdc_slot_held_back_bytes",
        "cdc_slot_safe_wal_bytes",
        "cdc_slot_wal_status",
    ),
    "Faults": (
        "cdc_passages_failed_total",
        "cdc_failures_in_a_row",
        "cdc_kafka_transactions_aborted_total",
        "cdc_dead_letters_total",
        "cdc_heartbeat_age_seconds",
    ),
    "Retention": ("cdc_retention_rows_total", "cdc_retention_partitions_total", "cdc_retention_failures_total"),
    "Which one": ("cdc_build_info", "cdc_generation"),
    "Consumers": (
        "cdc_consumer_lag",
        "cdc_consumer_events_total",
        "cdc_consumer_failures_total",
        "cdc_consumer_records_total",
        "cdc_consumer_job_duration_seconds",
        "cdc_consumer_partitions",
        "cdc_consumer_retried_total",
        "cdc_consumer_parked_total",
        "cdc_consumer_left_out_total",
        "cdc_consumer_pending",
        "cdc_consumer_workers_busy",
        "cdc_consumer_busy_seconds_total",
        "cdc_consumer_breaker_open",
        "cdc_consumer_late_results_total",
        "cdc_consumer_lost_partitions_total",
    ),
}

STATS = frozenset(SECTIONS["Is all well"]) - {"cdc_state"}
"""Shown as one large number, with the thresholds of the alerts."""

THRESHOLDS: dict[str, tuple[tuple[str, float | None], ...]] = {
    "cdc_ready": (("red", None), ("green", 1)),
    "cdc_live": (("red", None), ("green", 1)),
    "cdc_lag_seconds": (("green", None), ("orange", 10), ("red", 60)),
    "cdc_dead_letters_open": (("green", None), ("orange", 1)),
    "cdc_slot_lost_in_seconds": (("red", None), ("orange", 3600), ("green", 86_400)),
}

WORST = {"cdc_slot_lost_in_seconds": "min"}
"""How instances are put together in one number, where it is not the largest that counts."""

WIDTH, HEIGHT, ACROSS = 8, 7, 24
"""A panel's size, and the page's width, in Grafana's units."""

STATES = frozenset({"cdc_state", "cdc_slot_wal_status", "cdc_build_info"})
"""1 for the state that holds: shown as the state."""

CHOSEN = '{pipeline=~"$pipeline"}'
"""What is scraped from a pipeline has its name; consumers have their own."""

_CONSUMERS = frozenset(definition.name for definition in CONSUMER_METRICS)

_BY_NAME = {definition.name: definition for definition in (*METRICS, *CONSUMER_METRICS)}


def unit(name: str) -> str:
    """Return Grafana's name of a metric's unit."""
    stem = name.removesuffix("_total")
    if stem.endswith("_timestamp_seconds"):
        return "dateTimeFromNow"
    if stem.endswith("_seconds"):
        return "s"
    if stem.endswith("_bytes"):
        return "Bps" if name.endswith("_total") else "bytes"
    return "ops" if name.endswith("_total") else "short"


def queries(metric: Definition) -> list[tuple[str, str]]:
    """Return what a metric's panel asks Prometheus, and the legend of each answer."""
    name, by = metric.name, ", ".join(metric.labels)
    legend = " ".join(f"{{{{{label}}}}}" for label in metric.labels)
    selector = "" if name in _CONSUMERS else CHOSEN
    chosen = f"{name}{selector}"
    match metric.kind:
        case "counter":
            rate = f"rate({chosen}[$__rate_interval])"
            return [(f"sum by ({by}) ({rate})" if by else f"sum({rate})", legend or "all instances")]
        case "histogram":
            rate = f"sum by (le) (rate({name}_bucket{selector}[$__rate_interval]))"
            return [(f"histogram_quantile({q}, {rate})", f"p{q * 100:g}") for q in (0.5, 0.99)]
        case "gauge":
            if name in STATS:
                return [(f"{WORST.get(name, 'max')}({chosen})", "")]
            scale = " * 1000" if unit(name) == "dateTimeFromNow" else ""
            if name in STATES:
                return [(f"{chosen} == 1", f"{{{{instance}}}} {legend}")]
            return [(f"sum by ({by}) ({chosen})", legend)] if by else [(chosen + scale, "{{instance}}")]


def panel(metric: Definition, number: int, x: int, y: int) -> dict[str, Any]:
    """Return a metric's panel."""
    name = metric.name
    steps = [{"color": color, "value": value} for color, value in THRESHOLDS.get(name, (("green", None),))]
    kind = "stat" if name in STATS else "state-timeline" if name in STATES else "timeseries"
    return {
        "id": number,
        "type": kind,
        "title": title(name),
        "description": f"{metric.help} ({name})",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "gridPos": {"x": x, "y": y, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": unit(name), "thresholds": {"mode": "absolute", "steps": steps}}, "overrides": []},
        "options": {"reduceOptions": {"calcs": ["lastNotNull"]}} if kind == "stat" else {},
        "targets": [
            {"refId": chr(ord("A") + i), "expr": expression, "legendFormat": legend}
            for i, (expression, legend) in enumerate(queries(metric))
        ],
    }


def title(name: str) -> str:
    """Return a metric's name as words."""
    words = name.removeprefix("cdc_").removesuffix("_total").replace("_timestamp_seconds", "").removesuffix("_seconds")
    return words.replace("_", " ").capitalize()


def dashboard() -> dict[str, Any]:
    """Return the whole dashboard as Grafana's JSON model."""
    panels: list[dict[str, Any]] = []
    y = 0
    for section, names in SECTIONS.items():
        panels.append({"id": len(panels) + 1, "type": "row", "title": section, "gridPos": {"x": 0, "y": y, "w": ACROSS, "h": 1}})
        y += 1
        for i, name in enumerate(names):
            across = ACROSS // WIDTH
            panels.append(panel(_BY_NAME[name], len(panels) + 1, i % across * WIDTH, y + i // across * HEIGHT))
        y += -(-len(names) * WIDTH // ACROSS) * HEIGHT
    return {
        "uid": "cdc",
        "title": "cdc: outbox to Kafka",
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "tags": ["cdc"],
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus"},
                {
                    "name": "pipeline",
                    "type": "query",
                    "datasource": {"type": "prometheus", "uid": "${datasource}"},
                    "query": {"query": "label_values(cdc_build_info, pipeline)", "refId": "pipeline"},
                    "includeAll": True,
                    "allValue": ".*",
                    "multi": True,
                    "refresh": 2,
                    "current": {"text": "All", "value": "$__all"},
                },
            ]
        },
        "panels": panels,
    }


def text() -> str:
    """Return the file."""
    return json.dumps(dashboard(), indent=2) + "\n"


if __name__ == "__main__":
    sys.stdout.write(text())
