"""What all events of a piece of work share without being handed on: trace, correlation id, headers.

Kept in a contextvar, so threads and asyncio tasks have their own. OpenTelemetry is asked if the application has loaded it;
a process that never did has no span either.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Context:
    """What is known of the piece of work."""

    correlation_id: str | None = None
    traceparent: str | None = None
    headers: Mapping[str, object] = field(default_factory=dict, repr=False)


_CURRENT: ContextVar[Context] = ContextVar("cdc_event_context", default=Context())  # noqa: B039 - frozen


@contextmanager
def event_context(
    *, correlation_id: str | None = None, traceparent: str | None = None, headers: Mapping[str, object] | None = None
) -> Iterator[None]:
    """Give every event that is appended inside the block this correlation id, W3C `traceparent` and these headers.

    Blocks may stand in each other: the inner one adds to the outer one. An event's own values go before both. In a web
    application this is one line of a middleware:

        with event_context(correlation_id=request.headers.get("X-Correlation-ID")):
            return handle(request)
    """
    outer = _CURRENT.get()
    inner = Context(
        correlation_id or outer.correlation_id, traceparent or outer.traceparent, {**outer.headers, **headers} if headers else outer.headers
    )
    token = _CURRENT.set(inner)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def current() -> Context:
    """Return what holds here; a trace that nobody named is that of OpenTelemetry's current span."""
    here = _CURRENT.get()
    return here if here.traceparent else replace(here, traceparent=_span())


def _span() -> str | None:
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    span = trace.get_current_span().get_span_context()
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}" if span.is_valid else None
