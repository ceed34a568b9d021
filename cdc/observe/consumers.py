"""A consumer's Observer: log lines, and metrics that whoever scrapes reads as they are.

    watch = ConsumerMetrics()
    Consumer("inventory", observer=watch, ..)
    watch.listen("127.0.0.1", 9101)     # /metrics, /health/live, /health/ready; or serve `watch.text()` yourself

Strategy: as the pipeline's. What has to be counted is counted in plain numbers by the polling thread, once for each job; gauges are
what the last turn told. Prometheus' library is loaded by the first scrape. Labels are names of consumers, topics and classes of
errors, never an id or a key.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from cdc.consumer.lane import Failure, Handle, Handled, Lane, Move, Place, Standing
from cdc.consumer.ports import Log
from cdc.observe.http import HttpServer
from cdc.observe.metrics import LATENCY_BUCKETS_S, Definition

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric
    from starlette.types import ASGIApp

    from cdc.kafka.subscriber import Seen

LIVE_WITHIN_S: Final = 30.0
"""A consumer that has not turned for so long hangs; it turns every second, whatever its handlers do."""

CONSUMER_METRICS: Final = (
    Definition("cdc_consumer_events_total", "counter", ("consumer", "outcome"), "Events for handlers: applied, or skipped as done before."),
    Definition("cdc_consumer_records_total", "counter", ("consumer", "topic"), "Settled records, those that nobody handles included."),
    Definition("cdc_consumer_failures_total", "counter", ("consumer", "error"), "Failed attempts, by class of the error."),
    Definition("cdc_consumer_retried_total", "counter", ("consumer",), "Records that were put off to a retry topic."),
    Definition("cdc_consumer_parked_total", "counter", ("consumer", "error"), "Dead letters, by class of the error."),
    Definition("cdc_consumer_left_out_total", "counter", ("consumer",), 'Left out, because it could not be parked (unparkable="skip").'),
    Definition("cdc_consumer_late_results_total", "counter", ("consumer",), "Results for partitions that had been taken away."),
    Definition("cdc_consumer_lost_partitions_total", "counter", ("consumer",), "Partitions taken away without asking: evictions."),
    Definition("cdc_consumer_job_duration_seconds", "histogram", ("consumer",), "Duration of a job: one database transaction as a rule."),
    Definition("cdc_consumer_lag", "gauge", ("consumer", "topic", "partition"), "Offsets of an assigned partition that are not settled."),
    Definition("cdc_consumer_partitions", "gauge", ("consumer", "standing"), "Partitions by standing; `stopped` needs a person."),
    Definition("cdc_consumer_pending", "gauge", ("consumer",), "Records in memory."),
    Definition("cdc_consumer_workers_busy", "gauge", ("consumer",), "Workers that are at work."),
    Definition("cdc_consumer_breaker_open", "gauge", ("consumer", "breaker"), "1 while a breaker is open, 0.5 while it probes."),
    Definition("cdc_consumer_busy_seconds_total", "counter", ("consumer", "priority"), "Time of workers, by priority."),
)  # fmt: skip

_OPEN: Final = {"closed": 0.0, "half open": 0.5, "open": 1.0}

Labels = tuple[str, ...]


class ConsumerMetrics(Log):
    """Counts what happens to any number of consumers of this process, and logs it as `Log` does."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._counts: dict[str, dict[Labels, float]] = {each.name: {} for each in CONSUMER_METRICS if each.kind == "counter"}
        self._durations: dict[str, list[int]] = {}
        self._seconds: dict[str, float] = {}
        self._states: dict[str, tuple[float, Mapping[str, Any]]] = {}
        self._server: HttpServer | None = None

    def __repr__(self) -> str:
        return f"<ConsumerMetrics of {', '.join(self._states) or 'nobody yet'}>"

    def handled(self, consumer: str, job: Handle, result: Handled, seconds: float) -> None:
        """Count a job."""
        self._add("events", result.applied, consumer, "applied")
        self._add("events", result.skipped, consumer, "skipped")
        self._add("records", result.settled, consumer, job.lane.topic)
        counts = self._durations.setdefault(consumer, [0] * (len(LATENCY_BUCKETS_S) + 1))
        counts[bisect_left(LATENCY_BUCKETS_S, seconds)] += 1
        self._seconds[consumer] = self._seconds.get(consumer, 0.0) + seconds

    def failed(self, consumer: str, record: Seen, failure: Failure, attempts: int, lane: Lane) -> None:
        """Count an attempt."""
        super().failed(consumer, record, failure, attempts, lane)
        self._add("failures", 1, consumer, failure.error_class)

    def moved(self, consumer: str, move: Move, error: str) -> None:
        """Count a move."""
        super().moved(consumer, move, error)
        if error:
            return
        if move.delay_s is None:
            self._add("parked", 1, consumer, move.failure.error_class)
        else:
            self._add("retried", 1, consumer)

    def skipped(self, consumer: str, record: Seen) -> None:
        """Count what was left out."""
        super().skipped(consumer, record)
        self._add("left_out", 1, consumer)

    def late(self, consumer: str, lane: Lane) -> None:
        """Count a result that nobody waited for."""
        super().late(consumer, lane)
        self._add("late_results", 1, consumer)

    def revoked(self, consumer: str, places: Any, *, lost: bool) -> None:  # noqa: ANN401 - a sequence of places
        """Count evictions."""
        super().revoked(consumer, places, lost=lost)
        if lost:
            self._add("lost_partitions", len(places), consumer)

    def turned(self, consumer: str, state: Mapping[str, object]) -> None:
        """Keep what the gauges show."""
        self._states[consumer] = (self._clock(), state)

    # For those who look

    @property
    def live(self) -> bool:
        """Whether every consumer polls."""
        return all(self._clock() - at < LIVE_WITHIN_S for at, _ in self._states.values())

    @property
    def ready(self) -> bool:
        """Whether every consumer polls and no partition is stopped."""
        stopped = any(Standing.STOPPED in state["standing"].values() for _, state in self._states.values())
        return bool(self._states) and self.live and not stopped

    def listen(self, host: str, port: int) -> HttpServer:
        """Serve `/metrics`, `/health/live` and `/health/ready` until the server that is returned is stopped."""
        server = HttpServer(host, port, self._application)
        server.start()
        return server

    def text(self) -> bytes:
        """Return everything in Prometheus' text format."""
        from prometheus_client import CollectorRegistry, generate_latest  # noqa: PLC0415 - it brings a web server along

        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry)

    def describe(self) -> tuple[()]:
        """Nothing: the values are not known before a scrape."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield everything (prometheus_client's Collector)."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily  # noqa: PLC0415 - see `text`

        gauges = self._gauges()
        for each in CONSUMER_METRICS:
            if each.kind == "histogram":
                histogram = HistogramMetricFamily(each.name, each.help, labels=each.labels)
                bounds = (*map(str, LATENCY_BUCKETS_S), "+Inf")
                for consumer, counts in list(self._durations.items()):
                    buckets = list(zip(bounds, accumulate(list(counts)), strict=True))
                    histogram.add_metric((consumer,), buckets, self._seconds.get(consumer, 0.0))
                yield histogram
                continue
            kind, found = (CounterMetricFamily, self._counts) if each.kind == "counter" else (GaugeMetricFamily, gauges)
            family = kind(each.name, each.help, labels=each.labels)
            for labels, value in list(found.get(each.name, {}).items()):  # a copy, made at once: counting goes on
                family.add_metric(labels, value)
            yield family

    def _gauges(self) -> dict[str, dict[Labels, float]]:
        found: dict[str, dict[Labels, float]] = {each.name: {} for each in CONSUMER_METRICS if each.kind == "gauge"}
        for consumer, (_, state) in list(self._states.items()):
            lag: Mapping[Place, int] = state["lag"]
            standing: Mapping[Place, str] = state["standing"]
            found["cdc_consumer_lag"] |= {(consumer, topic, str(number)): behind for (topic, number), behind in lag.items()}
            for kind in Standing:
                found["cdc_consumer_partitions"][consumer, kind] = sum(each == kind for each in standing.values())
            found["cdc_consumer_pending"][consumer,] = state["pending"]
            found["cdc_consumer_workers_busy"][consumer,] = state["running"]
            found["cdc_consumer_breaker_open"] |= {(consumer, name): _OPEN[text] for name, text in state["breakers"].items()}
            self._counts["cdc_consumer_busy_seconds_total"] |= {(consumer, name): seconds for name, seconds in state["busy_s"].items()}
        return found

    def _add(self, name: str, number: float, *labels: str) -> None:
        counts = self._counts[f"cdc_consumer_{name}_total"]
        counts[labels] = counts.get(labels, 0) + number

    def _application(self) -> ASGIApp:
        from starlette.applications import Starlette  # noqa: PLC0415 - loaded by the endpoint's own thread
        from starlette.requests import Request  # noqa: PLC0415 - see above
        from starlette.responses import Response  # noqa: PLC0415 - see above
        from starlette.routing import Route  # noqa: PLC0415 - see above

        def verdict(path: str, good: Callable[[], bool]) -> Route:
            def answer(_: Request) -> Response:
                return Response("ok\n" if good() else "not ok\n", 200 if good() else 503, media_type="text/plain")

            return Route(path, answer)

        metrics = Route("/metrics", lambda _: Response(self.text(), media_type="text/plain; version=0.0.4; charset=utf-8"))
        return Starlette(routes=[metrics, verdict("/health/live", lambda: self.live), verdict("/health/ready", lambda: self.ready)])
