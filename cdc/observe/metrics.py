"""Every metric: its name and what it means; and those that are counted while the pipeline works.

Strategy: METRICS is the one list of names; the manual's page `docs/metrics.md` is written from it. Only what has to be
counted is counted, once for each Kafka transaction or rarer; every gauge is read from the health snapshot when somebody
scrapes (see `exposition`), so an idle endpoint costs nothing.

A label's values come from a small set. Topics may come from a template, so they are cut off at TOPICS_MAX.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Literal

TOPICS_MAX = 500
"""Topics that have metrics of their own; a route such as `events.{aggregateid}` would fill the memory of every scraper."""

OTHER = "(other)"

LATENCY_BUCKETS_S = (0.002, 0.005, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""From the 3 ms that one Kafka transaction takes at best, through 15 ms and 100 ms (what is promised), to an outage."""

DEAD_LETTER_REASONS = ("schema", "mapping", "route", "size", "tombstone", "refused")
"""See errors.InvalidEvent."""

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
        "cdc_kafka_transactions_aborted_total",
        "counter",
        ("reason",),
        "Kafka transactions with rows in them that were given up; the next passage publishes those that had not been committed after all.",
    ),
    Definition(
        "cdc_passages_failed_total",
        "counter",
        ("side", "cause"),
        "Passages that ended with an error of `postgres`, `kafka` or the `pipeline`: both connections were opened anew.",
    ),
    Definition(
        "cdc_failures_in_a_row", "gauge", (), "Passages that failed since anything was published last: the wait before the next one grows."
    ),
    Definition("cdc_pending_rows", "gauge", (), "Rows that were read from the log and are not committed to Kafka yet."),
    Definition("cdc_oldest_pending_seconds", "gauge", (), "Time since PostgreSQL's commit of the oldest of them; 0 when there are none."),
    Definition(
        "cdc_dead_letters_open",
        "gauge",
        (),
        "Dead letters that were not published again yet; left out while it streams not, or when the topic holds over 100,000 records.",
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
    Definition("cdc_retention_rows_total", "counter", (), "Old rows that `outbox.retention` deleted from the table."),
    Definition("cdc_retention_partitions_total", "counter", (), "Old partitions that it dropped."),
    Definition("cdc_retention_failures_total", "counter", (), "Times that it failed; it tries again, and publishing goes on."),
    Definition("cdc_slot_lost_in_seconds", "gauge", (), "When the slot will be lost if its room goes on shrinking as it does."),
)


class Count:
    """A counter, by the values of its labels; one without a label starts at 0."""

    def __init__(self, name: str, *values: tuple[str, ...]) -> None:
        self.name = name
        self.counts = dict.fromkeys(values, 0)

    def add(self, number: int = 1, *labels: str) -> None:
        """Count `number` more."""
        self.counts[labels] = self.counts.get(labels, 0) + number


class Durations:
    """A histogram over LATENCY_BUCKETS_S: how many seconds were up to each bound, and in the end beyond the last one."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.counts = [0] * (len(LATENCY_BUCKETS_S) + 1)
        self.sum_s = 0.0

    def add(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(LATENCY_BUCKETS_S, seconds)] += 1
        self.sum_s += seconds


class Metrics:
    """What is counted; written by the pipeline's thread, read by the endpoint's."""

    def __init__(self) -> None:
        self.events = Count("cdc_events_total", ())
        self.topic_records = Count("cdc_topic_records_total")
        self.topic_bytes = Count("cdc_topic_bytes_total")
        # All from 0 on: a rate does not see the first appearance of a label.
        self.dead_letters = Count("cdc_dead_letters_total", *((reason,) for reason in DEAD_LETTER_REASONS))
        self.ignored = Count("cdc_ignored_messages_total")
        self.aborted = Count("cdc_kafka_transactions_aborted_total", ("retriable",), ("fenced",))
        self.failures = Count("cdc_passages_failed_total", ("postgres", "retriable"), ("kafka", "retriable"), ("kafka", "fenced"))
        self.retention_rows = Count("cdc_retention_rows_total", ())
        self.retention_partitions = Count("cdc_retention_partitions_total", ())
        self.retention_failures = Count("cdc_retention_failures_total", ())
        self.kafka_transaction_s = Durations("cdc_kafka_transaction_duration_seconds")
        self.latency_s = Durations("cdc_publish_latency_seconds")

    @property
    def counts(self) -> tuple[Count, ...]:
        """The counters."""
        return (
            *(self.events, self.topic_records, self.topic_bytes, self.dead_letters, self.ignored, self.aborted, self.failures),
            *(self.retention_rows, self.retention_partitions, self.retention_failures),
        )

    @property
    def durations(self) -> tuple[Durations, ...]:
        """The histograms."""
        return self.kafka_transaction_s, self.latency_s

    def topic(self, topic: str, records: int, size: int) -> None:
        """Count records and bytes of one topic."""
        known = self.topic_records.counts
        if (topic,) not in known and len(known.keys() - {(OTHER,)}) >= TOPICS_MAX:
            topic = OTHER
        self.topic_records.add(records, topic)
        self.topic_bytes.add(size, topic)
