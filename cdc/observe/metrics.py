"""Every metric: its name, what it means, and where its value comes from.

Strategy: METRICS is the one list of names; the manual's page `docs/metrics.md` is written from it. Only what has to be
counted is counted while the pipeline works, once for each Kafka transaction or rarer; every gauge is read from the health
snapshot when somebody scrapes, so an idle endpoint costs nothing.

A label's values come from a small set. Topics may come from a template, so they are cut off at TOPICS_MAX.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Literal

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from cdc.observe.health import Health, SlotHealth

TOPICS_MAX = 500
"""Topics that have metrics of their own; a route such as `events.{aggregateid}` would fill the memory of every scraper."""

OTHER = "(other)"

WAL_STATUSES = ("reserved", "extended", "unreserved", "lost")
"""pg_replication_slots.wal_status."""

LATENCY_BUCKETS_S = (0.002, 0.005, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""From the 3 ms that one Kafka transaction takes at best, through 15 ms and 100 ms (what is promised), to an outage."""

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Definition:
    """One metric as the manual shows it."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str


METRICS = (
    Definition("cdc_build_info", "gauge", ("version", "python"), "Always 1; the version that runs."),
    Definition("cdc_live", "gauge", (), "1 while the loop turns."),
    Definition("cdc_ready", "gauge", (), "1 while this instance owns the slot and streams; 0 for a standby."),
    Definition("cdc_state", "gauge", ("state",), "1 for the state that the pipeline is in, 0 for the others."),
    Definition("cdc_heartbeat_age_seconds", "gauge", (), "Time since the loop last turned."),
    Definition("cdc_events_total", "counter", (), "Outbox rows that were published and committed as events."),
    Definition("cdc_topic_records_total", "counter", ("topic",), "Committed records by topic, dead letters included."),
    Definition(
        "cdc_topic_bytes_total",
        "counter",
        ("topic",),
        "Committed bytes by topic: keys, values and headers, uncompressed.",
    ),
    Definition("cdc_dead_letters_total", "counter", ("reason",), "Rows that became dead letters."),
    Definition(
        "cdc_ignored_messages_total",
        "counter",
        ("kind",),
        "Messages in the log that an outbox has no use for, such as update, delete and truncate.",
    ),
    Definition(
        "cdc_kafka_transaction_duration_seconds",
        "histogram",
        (),
        "Duration of a committed Kafka transaction, from its first record to the broker's answer.",
    ),
    Definition(
        "cdc_publish_latency_seconds",
        "histogram",
        (),
        "Time from PostgreSQL's commit to Kafka's, of the newest transaction in each Kafka transaction that brought events.",
    ),
    Definition(
        "cdc_passages_failed_total",
        "counter",
        ("cause",),
        "Passages that ended with an error: the Kafka transaction was given up and both connections were opened anew.",
    ),
    Definition("cdc_position_lsn_bytes", "gauge", (), "Place in the write-ahead log up to which everything is published."),
    Definition("cdc_position_commit_timestamp_seconds", "gauge", (), "When PostgreSQL committed what stands at the position."),
    Definition("cdc_generation", "gauge", (), "Generation of the position: raised by every recovery and rewind."),
    Definition("cdc_last_commit_timestamp_seconds", "gauge", (), "When this process last committed to Kafka."),
    Definition("cdc_lag_bytes", "gauge", (), "Log that is not published yet, at the last look at the server."),
    Definition("cdc_lag_seconds", "gauge", (), "Age of the commit up to which everything is published; 0 when nothing waits."),
    Definition("cdc_slot_wal_status", "gauge", ("status",), "1 for the slot's wal_status, 0 for the others."),
    Definition("cdc_slot_retained_bytes", "gauge", (), "Log that the server keeps for the slot, from its restart_lsn on."),
    Definition("cdc_slot_confirmed_lag_bytes", "gauge", (), "Part of it that the pipeline has not confirmed: its own lag."),
    Definition(
        "cdc_slot_held_back_bytes",
        "gauge",
        (),
        "Part of it below the confirmed place, kept because of a transaction that was open there: end that transaction.",
    ),
    Definition(
        "cdc_slot_safe_wal_bytes",
        "gauge",
        (),
        "Log that can still be written before the slot is in danger (max_slot_wal_keep_size).",
    ),
    Definition("cdc_slot_lost_in_seconds", "gauge", (), "When the slot will be lost if its room goes on shrinking as it does."),
)

_BY_NAME = {definition.name: definition for definition in METRICS}


class Metrics:
    """The counters, and a registry that adds the gauges of the health snapshot when it is asked."""

    def __init__(self, health: Health, states: Iterable[str]) -> None:
        # Nobody asks for the time at which a counter was made, and each would show twice.
        disable_created_metrics()  # type: ignore[no-untyped-call]  # the library's own gap
        self.registry = CollectorRegistry()
        self.events = self._counter("cdc_events_total")
        self.topic_records = self._counter("cdc_topic_records_total")
        self.topic_bytes = self._counter("cdc_topic_bytes_total")
        self.dead_letters = self._counter("cdc_dead_letters_total")
        self.ignored = self._counter("cdc_ignored_messages_total")
        self.failures = self._counter("cdc_passages_failed_total")
        self.kafka_transaction_s = self._histogram("cdc_kafka_transaction_duration_seconds")
        self.latency_s = self._histogram("cdc_publish_latency_seconds")
        self._topics: set[str] = set()
        self.registry.register(_Gauges(health, tuple(states)))
        ProcessCollector(registry=self.registry)

    def topic(self, topic: str, records: int, size: int) -> None:
        """Count records and bytes of one topic."""
        if topic not in self._topics:
            if len(self._topics) < TOPICS_MAX:
                self._topics.add(topic)
            else:
                topic = OTHER
        self.topic_records.labels(topic).inc(records)
        self.topic_bytes.labels(topic).inc(size)

    def exposition(self) -> bytes:
        """Return everything in Prometheus' text format."""
        return generate_latest(self.registry)

    def _counter(self, name: str) -> Counter:
        definition = _BY_NAME[name]
        return Counter(name, definition.help, definition.labels, registry=self.registry)

    def _histogram(self, name: str) -> Histogram:
        definition = _BY_NAME[name]
        return Histogram(name, definition.help, definition.labels, registry=self.registry, buckets=LATENCY_BUCKETS_S)


class _Gauges(Collector):
    """Reads one snapshot for each scrape; a gauge whose value is not known is left out."""

    def __init__(self, health: Health, states: tuple[str, ...]) -> None:
        self._health = health
        self._states = states
        self._build = (_version(), platform.python_version())

    def describe(self) -> Iterable[Metric]:
        """Nothing: the values are not known before a scrape."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges."""
        health, snapshot = self._health, self._health.snapshot
        position, state = snapshot.position, snapshot.turn.state
        info = _gauge("cdc_build_info")
        info.add_metric(self._build, 1)
        yield info
        yield _enum("cdc_state", dict.fromkeys((*self._states, state)), state)
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
