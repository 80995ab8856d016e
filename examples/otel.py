"""What arrives at an OpenTelemetry collector: metrics and a span per request, by OTLP.

    pip install '.[otel]'
    python examples/otel.py

A collector of a few lines listens here and prints what it is sent. With a real one, set where it is and leave the rest:

    OTEL_EXPORTER_OTLP_ENDPOINT=http://collector:4318 OTEL_SERVICE_NAME=my-server python my_server.py

OTEL_EXPORTER_OTLP_PROTOCOL=grpc is for port 4317; OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE=delta for backends
that want differences; OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION=explicit_bucket_histogram for those that
cannot read exponential histograms. An exporter or MeterProvider of your own goes in by hand:
tailwatch.install(app, otel=exporter).
"""

from __future__ import annotations

import gc
import os
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

import tailwatch

ARRIVED = threading.Event()


class Collector(BaseHTTPRequestHandler):
    """Takes OTLP over HTTP, and prints it."""

    def do_POST(self) -> None:
        """One export."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path.endswith("/traces"):
            show_spans(ExportTraceServiceRequest.FromString(body))
        else:
            show_metrics(ExportMetricsServiceRequest.FromString(body))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Nothing."""


def attributes(of: Any) -> str:
    """As one line."""
    pairs = ((pair.key, getattr(pair.value, pair.value.WhichOneof("value"))) for pair in of.attributes)
    return " ".join(f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}" for key, value in pairs)


def show_metrics(request: Any) -> None:
    """Each data point."""
    for metric in request.resource_metrics[0].scope_metrics[0].metrics:
        print(f"{metric.name} ({metric.unit})")
        for point in getattr(metric, metric.WhichOneof("data")).data_points:
            if hasattr(point, "count"):
                value = f"{point.count} samples, {point.sum / point.count:.4f} on average, scale {point.scale}"
            else:
                value = f"{getattr(point, point.WhichOneof('value')):g}"
            print(f"    {value}  {attributes(point)}")
    ARRIVED.set()


def show_spans(request: Any) -> None:
    """Each span and its events."""
    for span in request.resource_spans[0].scope_spans[0].spans:
        print(
            f"span {span.name}: {(span.end_time_unix_nano - span.start_time_unix_nano) / 1e6:.1f} ms {attributes(span)}"
        )
        for event in span.events:
            after = (event.time_unix_nano - span.start_time_unix_nano) / 1e6
            print(f"    {event.name} after {after:.1f} ms {attributes(event)}")


def generate(tokens: int = 30) -> None:
    """A model that takes 2 ms a token, and a collection in the way of one of them."""
    with tailwatch.stream(model="toy", route="/v1/chat/completions") as stream:
        for i in range(tokens):
            time.sleep(0.002)
            if i == tokens // 2:
                gc.collect()
            stream.token()


def main() -> None:
    """Starts the collector, streams, and prints what was exported."""
    heap = [{"prompt": str(i), "tokens": [i]} for i in range(300_000)]  # what a server holds
    collector = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    os.environ.setdefault("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.server_port}")
    os.environ.setdefault("OTEL_METRIC_EXPORT_INTERVAL", "60000")  # ms: the default; uninstall() sends the rest
    tailwatch.install(gc="observe", role="engine")
    try:
        for _ in range(3):
            generate()
    finally:
        tailwatch.uninstall()
    ARRIVED.wait(10)
    collector.shutdown()
    collector.server_close()
    print(f"{len(heap)} objects were held")


if __name__ == "__main__":
    main()
