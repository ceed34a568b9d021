"""A handler's span continues the event's trace, and tells of a failure its class alone."""

from __future__ import annotations

import pytest

pytest.importorskip("opentelemetry.sdk")

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from cdc.consumer import Consumer, Event, Retry
from cdc.observe.consumer_spans import spans
from cdc.testing.bus import Bus

CANARY = "canary-77ab"

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_spans_of_handlers() -> None:
    kept = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    around = spans(provider.get_tracer("test"))
    shop = Consumer("shop", topics=["t"], kafka={"bootstrap.servers": "127.0.0.1:9"}, around=around, retry=Retry.listed(1))
    inside: list[int] = []

    @shop.on("T")
    def plain(event: Event) -> None:
        inside.append(trace.get_current_span().get_span_context().trace_id)
        if event.attempt == 1:
            raise ValueError(CANARY)

    @shop.on("T")
    async def other(_: Event) -> None:
        inside.append(trace.get_current_span().get_span_context().trace_id)

    bus = Bus(shop)
    bus.publish("T", {"text": CANARY}, event_id="e", key=CANARY, headers={"traceparent": PARENT})
    bus.run()
    done = kept.get_finished_spans()
    assert len(done) == 3
    assert {span.context.trace_id for span in done if span.context} == {0x0AF7651916CD43DD8448EB211C80319C} == set(inside)
    assert {span.parent.span_id for span in done if span.parent} == {0xB7AD6B7169203331}
    failed = [dict(span.attributes or {}) for span in done if not span.status.is_unset]
    assert [(each["error.type"], each["messaging.message.id"], each["cdc.handler"]) for each in failed] == [("ValueError", "e", "plain")]
    assert CANARY not in "".join(span.to_json() for span in done)
