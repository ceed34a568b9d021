"""Spans: for whom, when, with what in them; and nothing at all when nobody asked."""

from __future__ import annotations

import sys

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import SpanKind

from cdc.event import Record
from cdc.observe import tracing
from cdc.observe.tracing import TracedPublisher, sampled, traced, wanted
from tests.unit.pipeline.ports import Kafka, World
from tests.unit.pipeline.samples import POSITION

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED = f"00-{TRACE}-{PARENT}-01".encode()
COLLECTOR = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}


def record(traceparent: bytes | None = SAMPLED) -> Record:
    headers = [("ce_id", b"e-1"), ("ce_sequence", b"000100000016b374d84000000000"), ("traceparent", traceparent)]
    return Record("orders", b"secret key", b"secret", headers, 90_000)


class Stage:
    """A publisher with spans, on a Kafka that a test writes for."""

    def __init__(self, sampler: ParentBased | None = None) -> None:
        self.kept = InMemorySpanExporter()
        provider = TracerProvider(sampler=sampler or ParentBased(TraceIdRatioBased(1)), shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.kept))
        self.kafka = Kafka(World())
        self.now = 95_000_000_000
        self.publisher = TracedPublisher(self.kafka, provider.get_tracer("cdc"), "shop", lambda: self.now)

    def publish(self, *records: Record) -> None:
        self.publisher.produce(records, lambda: None)
        self.now += 1_000_000_000
        self.publisher.commit(POSITION, lambda: None)


def test_two_spans_below_the_one_that_wrote_the_row() -> None:
    stage = Stage()
    stage.publish(record(), record(None))
    received, sent = stage.kept.get_finished_spans()
    for span in (received, sent):
        assert span.context is not None
        assert span.parent is not None
        assert f"{span.context.trace_id:032x}" == TRACE
        assert f"{span.parent.span_id:016x}" == PARENT
        assert span.attributes is not None
        assert span.attributes["messaging.message.id"] == "e-1"
        assert span.attributes["cdc.lsn"] == "16/B374D840"
        assert "secret" not in span.to_json()
    assert (received.name, received.kind, received.start_time, received.end_time) == (
        *("receive outbox", SpanKind.CONSUMER),
        *(90_000_000_000, 95_000_000_000),
    )
    assert (sent.name, sent.kind, sent.start_time, sent.end_time) == ("send orders", SpanKind.PRODUCER, 95_000_000_000, 96_000_000_000)
    assert dict(sent.attributes or {}).items() >= {
        ("messaging.system", "kafka"),
        ("messaging.operation.type", "send"),
        ("messaging.destination.name", "orders"),
        ("messaging.message.body.size", 6),
    }


@pytest.mark.parametrize(
    "traceparent",
    [
        *(None, b"", b"nonsense", SAMPLED[:-1], SAMPLED + b"x", b"ff" + SAMPLED[2:], SAMPLED.upper()),
        *(SAMPLED[:-2] + b"00", SAMPLED.replace(TRACE.encode(), b"0" * 32), SAMPLED.replace(PARENT.encode(), b"0" * 16)),
    ],
)
def test_no_span_without_a_trace_that_somebody_records(traceparent: bytes | None) -> None:
    assert sampled(record(traceparent), 0) is None


def test_a_later_version_of_the_header_is_read() -> None:
    assert sampled(record(b"01" + SAMPLED[2:] + b"-more"), 0) is not None


def test_a_sampler_of_ours_decides_as_well() -> None:
    stage = Stage(ParentBased(TraceIdRatioBased(1), remote_parent_sampled=TraceIdRatioBased(0)))
    stage.publish(record())
    assert not stage.kept.get_finished_spans()


def test_what_was_given_up_has_no_spans() -> None:
    stage = Stage()
    stage.publisher.produce([record()], lambda: None)
    stage.publisher.drop()
    stage.publish(record(None))
    assert not stage.kept.get_finished_spans()
    stage.publisher.produce([record()], lambda: None)
    stage.publisher.abort(1.0)
    stage.publish(record(None))
    assert not stage.kept.get_finished_spans()


def test_a_large_transaction_has_so_many_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "SPANS_MAX", 3)
    stage = Stage()
    stage.publish(*[record()] * 5)
    assert len(stage.kept.get_finished_spans()) == 2 * 3
    stage.publish(record())
    assert len(stage.kept.get_finished_spans()) == 2 * 4


def test_off_is_the_publisher_itself() -> None:
    kafka = Kafka(World())
    assert traced(kafka, "shop", {}) is kafka


@pytest.mark.parametrize(
    ("environ", "on"),
    [
        ({}, False),
        (COLLECTOR, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://x"}, True),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://x"}, False),
        (COLLECTOR | {"OTEL_SDK_DISABLED": "true"}, False),
        (COLLECTOR | {"OTEL_TRACES_EXPORTER": "none"}, False),
    ],
)
def test_the_environment_decides(environ: dict[str, str], on: bool) -> None:
    assert wanted(environ) is on


def test_without_the_extra_it_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    kafka = Kafka(World())
    assert traced(kafka, "shop", COLLECTOR) is kafka
    assert "install cdc[otel]" in capsys.readouterr().out
