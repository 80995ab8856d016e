"""Collectors that the official exporters send to, over HTTP and gRPC: they keep what they were sent, decoded."""

from __future__ import annotations

import gzip
import threading
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

import tailwatch

REASON = "needs the real exporters: pip install '.[otel]'"
grpc = pytest.importorskip("grpc", reason=REASON)
metrics_pb = pytest.importorskip("opentelemetry.proto.collector.metrics.v1.metrics_service_pb2", reason=REASON)
metrics_grpc = pytest.importorskip("opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc", reason=REASON)
trace_pb = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2", reason=REASON)
trace_grpc = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc", reason=REASON)
pytest.importorskip("opentelemetry.exporter.otlp.proto.http.metric_exporter", reason=REASON)
pytest.importorskip("opentelemetry.exporter.otlp.proto.grpc.metric_exporter", reason=REASON)

DEADLINE_SECONDS = 30


class Collector:
    """What came in. ``status`` is what it answers; while ``hang`` is set it does not answer."""

    def __init__(self) -> None:
        self.metrics: list[Any] = []
        self.traces: list[Any] = []
        self.headers: list[dict[str, str]] = []
        self.status = 200
        self.hang = threading.Event()
        self.go_on = threading.Event()
        self.refused = 0
        self.endpoint = ""
        self.port = 0

    def take(self, message: Any, headers: dict[str, str]) -> bool:
        """Whether it is taken."""
        if self.hang.is_set():
            self.go_on.wait(DEADLINE_SECONDS)
        if self.status != 200:
            self.refused += 1
            return False
        self.headers.append(headers)
        (self.traces if isinstance(message, trace_pb.ExportTraceServiceRequest) else self.metrics).append(message)
        return True

    @property
    def spans(self) -> list[Any]:
        """All spans."""
        return [
            span
            for request in list(self.traces)
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def scopes(self) -> list[tuple[Any, Any]]:
        """Each of our rounds: the resource, and the metrics by name."""
        return [
            (resource, {metric.name: metric for metric in scope.metrics})
            for request in list(self.metrics)
            for resource in request.resource_metrics
            for scope in resource.scope_metrics
            if scope.scope.name == "tailwatch"
        ]


class HTTPCollector(Collector):
    """OTLP over HTTP."""

    def start(self, port: int = 0) -> HTTPCollector:
        """Listen."""
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                coding = self.headers.get("Content-Encoding")
                body = (
                    gzip.decompress(body)
                    if coding == "gzip"
                    else zlib.decompress(body)
                    if coding == "deflate"
                    else body
                )
                of = (
                    trace_pb.ExportTraceServiceRequest
                    if self.path.endswith("traces")
                    else metrics_pb.ExportMetricsServiceRequest
                )
                good = collector.take(of.FromString(body), {k.lower(): v for k, v in self.headers.items()})
                self.send_response(200 if good else collector.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            allow_reuse_address = True

            def handle_error(self, *_: Any) -> None:
                """A client that left is no news."""

        self._server = Server(("127.0.0.1", port), Handler)
        self.port = self._server.server_port
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop listening."""
        self.go_on.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(DEADLINE_SECONDS)


class GRPCCollector(Collector):
    """OTLP over gRPC."""

    def start(self, port: int = 0) -> GRPCCollector:
        """Listen."""
        collector = self

        def export(request: Any, context: Any, answer: Any) -> Any:
            headers = {key: value for key, value in context.invocation_metadata()}
            if not collector.take(request, headers):
                context.abort(grpc.StatusCode.UNAVAILABLE, "down")
            return answer

        class Metrics(metrics_grpc.MetricsServiceServicer):  # type: ignore[misc, name-defined]
            def Export(self, request: Any, context: Any) -> Any:
                return export(request, context, metrics_pb.ExportMetricsServiceResponse())

        class Traces(trace_grpc.TraceServiceServicer):  # type: ignore[misc, name-defined]
            def Export(self, request: Any, context: Any) -> Any:
                return export(request, context, trace_pb.ExportTraceServiceResponse())

        self._server = grpc.server(ThreadPoolExecutor(4))
        metrics_grpc.add_MetricsServiceServicer_to_server(Metrics(), self._server)
        trace_grpc.add_TraceServiceServicer_to_server(Traces(), self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{port}")
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self._server.start()
        return self

    def stop(self) -> None:
        """Stop listening."""
        self.go_on.set()
        self._server.stop(None).wait(DEADLINE_SECONDS)


PROTOCOLS = {"http/protobuf": HTTPCollector, "grpc": GRPCCollector}


def running(protocol: str) -> Iterator[Any]:
    """A collector while it is used; tailwatch is uninstalled before it goes."""
    collector = PROTOCOLS[protocol]().start()
    yield collector
    tailwatch.uninstall()
    collector.stop()
