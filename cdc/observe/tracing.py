"""Spans of events whose rows bring a trace along: from PostgreSQL's commit to the read, from the read to Kafka's commit.

Strategy: a publisher that looks at what passes through the real one. It is put in between only when OpenTelemetry's own variables
name a collector (`OTEL_EXPORTER_OTLP_ENDPOINT`), so that without them nothing is loaded and no record is looked at. Spans are
made when Kafka has committed, never for what was given up; both begin and end at times that are known by then.

The record's `traceparent` stays the row's: what is published does not depend on who looks. Our spans and the consumer's are
siblings below the span that wrote the row, which is what the messaging conventions call the creation context.
Sources: W3C Trace Context, level 1; OpenTelemetry's semantic conventions for messaging spans, and for Kafka.
"""

from __future__ import annotations

import atexit
import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from cdc.event import Record, Route
from cdc.observe.logs import logger
from cdc.outbox.router import commit_lsn
from cdc.pipeline.ports import Publisher, Waiting
from cdc.position import Position

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Tracer

SPANS_MAX = 500
"""Traced events of one Kafka transaction that get spans: a large one must not fill memory, and its spans say the same."""

FLUSH_S = 2.0
"""How long the end of the process waits for a collector."""

_TRACEPARENT = re.compile(rb"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")


class Traced(NamedTuple):
    """An event whose trace is sampled: its record's facts, the parent, and when it was committed and read (Unix ns)."""

    topic: str
    event_id: str
    sequence: str
    size: int
    trace_id: int
    span_id: int
    flags: int
    committed_ns: int
    read_ns: int


def sampled(record: Record, read_ns: int) -> Traced | None:
    """Return a record's trace if it has one and whoever began it wants it recorded; a malformed one is none."""
    found = None
    for name, value in record.headers:
        if name == "traceparent":
            found = _TRACEPARENT.fullmatch(value or b"")
    if found is None:
        return None
    trace_id, span_id, flags = (int(part, 16) for part in found.groups())
    if not (trace_id and span_id and flags & 1):
        return None
    facts = {name: (value or b"").decode(errors="replace") for name, value in record.headers if name in ("ce_id", "id", "ce_sequence")}
    event_id = facts.get("ce_id") or facts.get("id", "")
    committed_ns = record.timestamp_ms * 1_000_000
    times = committed_ns, max(committed_ns, read_ns)  # the clock of another machine may be ahead
    return Traced(record.topic, event_id, facts.get("ce_sequence", ""), len(record.value or b""), trace_id, span_id, flags, *times)


class TracedPublisher:
    """Implements Publisher: the given one, and spans of what it committed."""

    def __init__(self, publisher: Publisher, tracer: Tracer, pipeline: str, wall_ns: Callable[[], int] = time.time_ns) -> None:
        self._publisher = publisher
        self._tracer = tracer
        self._pipeline = pipeline
        self._wall_ns = wall_ns
        self._seen: list[Traced] = []

    def __repr__(self) -> str:
        return f"<TracedPublisher {self._publisher!r}>"

    def produce(self, records: Sequence[Record], waiting: Waiting) -> None:
        """See Publisher."""
        now = self._wall_ns()
        for record in records:
            if len(self._seen) == SPANS_MAX:
                break
            traced = sampled(record, now)
            if traced is not None:
                self._seen.append(traced)
        self._publisher.produce(records, waiting)

    def commit(self, position: Position, waiting: Waiting) -> None:
        """See Publisher."""
        self._publisher.commit(position, waiting)
        if self._seen:
            now = self._wall_ns()
            for traced in self._seen:
                self._tell(traced, now)
            self._seen = []

    def abort(self, timeout_s: float) -> None:
        """See Publisher."""
        self._seen = []
        self._publisher.abort(timeout_s)

    def drop(self) -> None:
        """See Publisher."""
        self._seen = []
        self._publisher.drop()

    def peek(self) -> tuple[Position | None, str]:
        """See Publisher."""
        return self._publisher.peek()

    def last(self) -> Position | None:
        """See Publisher."""
        return self._publisher.last()

    @property
    def transaction_timeout_s(self) -> float:
        """See Publisher."""
        return self._publisher.transaction_timeout_s

    @property
    def full(self) -> bool:
        """See Publisher."""
        return self._publisher.full

    def require(self, topics: Sequence[str], waiting: Waiting) -> None:
        """See Publisher."""
        self._publisher.require(topics, waiting)

    def recover(self, waiting: Waiting, *, patient: bool, blaming: bool = False) -> Position | None:
        """See Publisher."""
        return self._publisher.recover(waiting, patient=patient, blaming=blaming)

    def route(self, topic: str, waiting: Waiting) -> Route:
        """See Publisher."""
        return self._publisher.route(topic, waiting)

    def _tell(self, traced: Traced, now: int) -> None:
        from opentelemetry.trace import SpanKind  # noqa: PLC0415 - an extra

        parent, own = _parent(traced), {"cdc.pipeline": self._pipeline, "messaging.message.id": traced.event_id}
        if traced.sequence:
            own |= {"cdc.sequence": traced.sequence, "cdc.lsn": str(commit_lsn(traced.sequence))}
        received = {"messaging.system": "postgresql", "messaging.operation.name": "receive", "messaging.operation.type": "receive"}
        span = self._tracer.start_span(
            "receive outbox", parent, SpanKind.CONSUMER, attributes=own | received, start_time=traced.committed_ns
        )
        span.end(traced.read_ns)
        sent = {
            "messaging.system": "kafka",
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
            "messaging.destination.name": traced.topic,
            "messaging.client.id": f"cdc-{self._pipeline}",
        }
        span = self._tracer.start_span(f"send {traced.topic}", parent, SpanKind.PRODUCER, attributes=own | sent, start_time=traced.read_ns)
        span.set_attribute("messaging.message.body.size", traced.size)
        span.end(max(now, traced.read_ns))


def _parent(traced: Traced) -> Context:
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context  # noqa: PLC0415 - an extra

    context = SpanContext(traced.trace_id, traced.span_id, is_remote=True, trace_flags=TraceFlags(traced.flags))
    return set_span_in_context(NonRecordingSpan(context))


def wanted(environ: Mapping[str, str]) -> bool:
    """Whether OpenTelemetry's variables name a collector of spans."""
    off = environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or environ.get("OTEL_TRACES_EXPORTER", "otlp") != "otlp"
    return not off and any(environ.get(f"OTEL_EXPORTER_OTLP_{name}") for name in ("ENDPOINT", "TRACES_ENDPOINT"))


def traced(publisher: Publisher, pipeline: str, environ: Mapping[str, str] = os.environ) -> Publisher:
    """Return the publisher as it is, or with spans where the environment names a collector and the extra is installed."""
    if not wanted(environ):
        return publisher
    try:
        provider = _provider(pipeline, environ)
    except ImportError:
        logger("tracing").warning("no spans", reason="OTEL_EXPORTER_OTLP_ENDPOINT is set, and OpenTelemetry is missing: install cdc[otel]")
        return publisher
    atexit.register(_close, provider)
    return TracedPublisher(publisher, provider.get_tracer("cdc"), pipeline)


def _provider(pipeline: str, environ: Mapping[str, str]) -> TracerProvider:
    """Set up OpenTelemetry: sampler, endpoint, headers and resource are what its variables say."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 - an extra, and slow to load
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    named = "OTEL_SERVICE_NAME" in environ or "service.name=" in environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    provider = TracerProvider(resource=Resource.create({} if named else {"service.name": f"cdc-{pipeline}"}), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


def _close(provider: TracerProvider) -> None:
    """Send what is left; a collector that is away does not keep the process."""
    closing = threading.Thread(target=provider.shutdown, name="tracing", daemon=True)
    closing.start()
    closing.join(FLUSH_S)
