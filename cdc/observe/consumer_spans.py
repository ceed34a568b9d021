"""Spans of handlers, which continue the trace of whoever wrote the event: `Consumer(.., around=spans())`.

Strategy: one span of kind consumer for each call of a handler, current while it runs, so that what the handler calls is traced below it.
Its parent is the event's `traceparent`, the creation context of OpenTelemetry's conventions for messaging. It holds ids and places, and
of a failure the class alone: the words of an exception may quote data.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cdc.consumer.event import Event
from cdc.consumer.names import Around

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer


def spans(tracer: Tracer | None = None) -> Around:
    """Return what surrounds handlers with spans of a tracer, by default the process's own."""
    from opentelemetry import trace  # noqa: PLC0415 - an extra
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415 - an extra

    chosen = tracer or trace.get_tracer("cdc.consumer")
    propagator = TraceContextTextMapPropagator()

    @contextmanager
    def around(event: Event, handler: str) -> Iterator[object]:
        attributes: dict[str, str | int] = {
            "messaging.system": "kafka",
            "messaging.operation.type": "process",
            "messaging.destination.name": event.topic,
            "messaging.destination.partition.id": str(event.partition),
            "messaging.kafka.offset": event.offset,
            "messaging.message.id": event.id,
            "messaging.message.conversation_id": event.correlation_id,
            "cdc.handler": handler,
            "cdc.attempt": event.attempt,
        }
        with chosen.start_as_current_span(
            f"process {event.topic}",
            context=propagator.extract({"traceparent": event.traceparent}) if event.traceparent else None,
            kind=trace.SpanKind.CONSUMER,
            attributes=attributes,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield span
            except BaseException as error:
                span.set_attribute("error.type", type(error).__name__)
                span.set_status(trace.StatusCode.ERROR)
                raise

    return around
