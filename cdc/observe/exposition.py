"""What a scrape is given: the metrics in Prometheus' text format.

Loaded by the endpoint's thread alone, because its library brings a web server of its own along: the pipeline counts in plain
numbers, and whoever scrapes reads them here beside one health snapshot.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import metadata
from itertools import accumulate

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from cdc.observe.health import Health, SlotHealth
from cdc.observe.metrics import LATENCY_BUCKETS_S, METRICS, Count, Durations, Metrics
from cdc.pipeline.supervisor import State

WAL_STATUSES = ("reserved", "extended", "unreserved", "lost")
"""pg_replication_slots.wal_status."""

_BY_NAME = {definition.name: definition for definition in METRICS}


class Exposition:
    """All that `/metrics` shows of one pipeline and its process."""

    def __init__(self, health: Health, metrics: Metrics) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Pipeline(health, metrics))
        ProcessCollector(registry=self._registry)

    def text(self) -> bytes:
        """Return everything in Prometheus' text format."""
        return generate_latest(self._registry)


class _Pipeline(Collector):
    """Reads one snapshot for each scrape; a gauge whose value is not known is left out."""

    def __init__(self, health: Health, metrics: Metrics) -> None:
        self._health = health
        self._metrics = metrics
        self._build = (_version(), platform.python_version())

    def describe(self) -> Iterable[Metric]:
        """Nothing: the values are not known before a scrape."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield everything."""
        yield from map(_counter, self._metrics.counts)
        yield from map(_histogram, self._metrics.durations)
        yield from self._gauges()

    def _gauges(self) -> Iterator[Metric]:
        health, snapshot = self._health, self._health.snapshot
        position, state = snapshot.position, snapshot.turn.state
        info = _gauge("cdc_build_info")
        info.add_metric(self._build, 1)
        yield info
        yield _enum("cdc_state", dict.fromkeys((*State, state)), state)
        committed_us = snapshot.committed_at_us
        values: dict[str, float | None] = {
            "cdc_live": health.live,
            "cdc_ready": snapshot.ready,
            "cdc_heartbeat_age_seconds": health.beat_age_s(),
            "cdc_position_lsn_bytes": None if position is None else position.end_lsn,
            "cdc_position_commit_timestamp_seconds": None if position is None else position.commit_time_us / 1e6,
            "cdc_generation": None if position is None else position.generation,
            "cdc_last_commit_timestamp_seconds": None if committed_us is None else committed_us / 1e6,
            "cdc_lag_bytes": snapshot.lag_bytes,
            "cdc_lag_seconds": snapshot.lag_s(health.now_us()),
            "cdc_failures_in_a_row": snapshot.failures_in_a_row,
            "cdc_pending_rows": health.pending.rows,
            "cdc_oldest_pending_seconds": health.oldest_pending_s(),
            "cdc_dead_letters_open": health.dead_letters_open,
        }
        slot = snapshot.slot
        if slot is not None:
            values |= {name: read(slot) for name, read in _SLOT.items()}
            if slot.wal_status is not None:
                yield _enum("cdc_slot_wal_status", dict.fromkeys((*WAL_STATUSES, slot.wal_status)), slot.wal_status)
        for name, value in values.items():
            if value is not None:
                gauge = _gauge(name)
                gauge.add_metric((), float(value))
                yield gauge


_SLOT: Mapping[str, Callable[[SlotHealth], float | None]] = {
    "cdc_slot_retained_bytes": lambda slot: slot.retained_bytes,
    "cdc_slot_confirmed_lag_bytes": lambda slot: slot.confirmed_lag_bytes,
    "cdc_slot_held_back_bytes": lambda slot: slot.held_back_bytes,
    "cdc_slot_safe_wal_bytes": lambda slot: slot.safe_wal_bytes,
    "cdc_slot_lost_in_seconds": lambda slot: slot.seconds_until_lost,
}


def _counter(count: Count) -> CounterMetricFamily:
    definition = _BY_NAME[count.name]
    family = CounterMetricFamily(count.name, definition.help, labels=definition.labels)
    for labels, number in list(count.counts.items()):  # a copy, made at once: the pipeline goes on counting
        family.add_metric(labels, number)
    return family


def _histogram(durations: Durations) -> HistogramMetricFamily:
    family = HistogramMetricFamily(durations.name, _BY_NAME[durations.name].help)
    bounds = (*map(str, LATENCY_BUCKETS_S), "+Inf")
    family.add_metric((), list(zip(bounds, accumulate(durations.counts), strict=True)), durations.sum_s)
    return family


def _gauge(name: str) -> GaugeMetricFamily:
    definition = _BY_NAME[name]
    return GaugeMetricFamily(name, definition.help, labels=definition.labels)


def _enum(name: str, values: Iterable[str], current: str) -> GaugeMetricFamily:
    gauge = _gauge(name)
    for value in values:
        gauge.add_metric((value,), float(value == current))
    return gauge


def _version() -> str:
    try:
        return metadata.version("cdc")
    except metadata.PackageNotFoundError:
        return "unknown"
