"""A trace that began in the application goes on: a collector on this machine gets our spans, and the record has the row's header."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.pipeline import Pipeline

pytestmark = pytest.mark.servers

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.fixture
def collector() -> Iterator[tuple[str, list[ExportTraceServiceRequest]]]:
    """Takes OTLP over HTTP as OpenTelemetry's collector does; gives its address, and what it got."""
    got = list[ExportTraceServiceRequest]()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            got.append(ExportTraceServiceRequest.FromString(gzip.decompress(body) if self.headers["content-encoding"] == "gzip" else body))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", got
        server.shutdown()
        thread.join()


def test_spans_of_a_row_whose_trace_is_recorded(pipeline: Pipeline, collector: tuple[str, list[ExportTraceServiceRequest]]) -> None:
    address, got = collector
    pipeline.init()
    pipeline.start(environment_={"OTEL_EXPORTER_OTLP_ENDPOINT": address, "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test"})
    pipeline.wait_ready()
    for n, flags in ((1, "01"), (2, "00")):
        pipeline.execute(
            "INSERT INTO outbox (aggregatetype, aggregateid, type, payload, headers)"
            " VALUES ('thing', 'k', 'Thing', jsonb_build_object('n', %s::int), jsonb_build_object('traceparent', %s::text))",
            (n, f"00-{TRACE}-{PARENT}-{flags}"),
        )
    pipeline.wait_numbers([1, 2])
    assert [event.headers["traceparent"].decode()[-2:] for event in pipeline.events()] == ["01", "00"], "the row's own, as it was"
    assert pipeline.terminate() == 0, "what is left is sent at the end"
    [resource] = [each for request in got for each in request.resource_spans]
    facts = {each.key: each.value.string_value for each in resource.resource.attributes}
    assert facts["service.name"] == f"cdc-{pipeline.name}"
    assert facts["deployment.environment.name"] == "test"
    spans = [span for scope in resource.scope_spans for span in scope.spans]
    assert [span.name for span in spans] == ["receive outbox", f"send {pipeline.topic}"]
    assert {(span.trace_id.hex(), span.parent_span_id.hex()) for span in spans} == {(TRACE, PARENT)}
    received, sent = spans
    assert received.start_time_unix_nano <= received.end_time_unix_nano == sent.start_time_unix_nano <= sent.end_time_unix_nano
