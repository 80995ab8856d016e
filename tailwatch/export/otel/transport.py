"""How an encoded OTLP request leaves the process.

The official OTLP exporters take objects, which cost milliseconds under the GIL to make and to encode. Our request is
bytes already: it goes through an exporter's transport, so that endpoint, headers, TLS, timeout and compression are what
the OTEL_EXPORTER_OTLP_* variables, or the exporter's own arguments, set. Where an exporter has no such seam (one of
the user's own, another version's) it is given the objects: the slow way, which is measured.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from tailwatch.errors import OptionError, how_to_install

AGGREGATION = "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION"
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_METHOD = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"
_OTLP = "opentelemetry.exporter.otlp.proto"


class Sender:
    """One exporter: what it prefers, and a way to hand it a request.

    Args:
        exporter: a MetricExporter.
        mine: whether it was made here, and is to be shut down here.
        resource: gives the SDK Resource that objects are made with.
        turn: the lock under which its reader exports, as no exporter is to be called by two threads at once; None:
            nothing else calls it.
    """

    def __init__(self, exporter: Any, resource: Callable[[], Any], *, mine: bool = False, turn: Any = None) -> None:
        from opentelemetry.sdk.metrics import Histogram, ObservableCounter
        from opentelemetry.sdk.metrics.export import AggregationTemporality as Temporality

        self.exporter = exporter
        self.mine = mine
        self.hold_ns = 0
        self._resource = resource
        self._turn = turn
        self._has_turn = False
        preferred = getattr(exporter, "_preferred_temporality", None) or {}
        self.delta_histograms = preferred.get(Histogram) is Temporality.DELTA
        self.delta_sums = preferred.get(ObservableCounter) is Temporality.DELTA
        self.exponential = _exponential(exporter)
        self._fast = _http(exporter) or _grpc(exporter, mine)

    @property
    def name(self) -> str:
        """Of the exporter's class."""
        return f"{type(self.exporter).__module__}.{type(self.exporter).__qualname__}"

    @property
    def fast(self) -> bool:
        """Whether bytes can be handed to it."""
        return self._fast is not None

    @property
    def delta(self) -> bool:
        """Whether anything is sent as a difference."""
        return self.delta_histograms or self.delta_sums

    def send(self, request: bytes, timeout: float) -> bool:
        """Whether it was taken. Blocks, for about ``timeout`` seconds where the exporter heeds it."""
        if self._turn is None:
            return self._hand_over(request, timeout)
        if not self._turn.acquire(timeout=timeout):
            return False
        self._has_turn = True
        try:
            return self._hand_over(request, timeout)
        finally:
            self._give_turn()

    def after_fork(self) -> None:
        """In a child the reader's lock must not stay taken by a thread that is the parent's."""
        if self._has_turn:
            self._give_turn()

    def _give_turn(self) -> None:
        self._has_turn = False
        self._turn.release()

    def _hand_over(self, request: bytes, timeout: float) -> bool:
        if self._fast is not None:
            return self._fast(request)
        return self._send_objects(request, timeout)

    def close(self) -> None:
        """Shut down an exporter that was made here."""
        if self.mine:
            self.exporter.shutdown()

    def _send_objects(self, request: bytes, timeout: float) -> bool:
        """What is cumulative goes metric by metric, with a pause between; a difference goes at once, because half of it
        could not be sent again."""
        from opentelemetry.sdk.metrics.export import MetricExportResult

        batches = self._batches(request)
        good = True
        while (batch := self._held(next, batches, None)) is not None:
            sent = self._held(partial(self.exporter.export, batch, timeout_millis=timeout * 1e3))
            good = good and sent is MetricExportResult.SUCCESS
            time.sleep(1e-6)
        return good

    def _batches(self, request: bytes) -> Iterator[Any]:
        from tailwatch.export.otel.sdk_objects import batches

        return batches(request, self._resource(), together=self.delta)

    def _held(self, act: Callable[..., Any], *arguments: Any) -> Any:
        """CPU time of this thread is more than it held the GIL, never less."""
        began = time.thread_time_ns()
        try:
            return act(*arguments)
        finally:
            self.hold_ns = max(self.hold_ns, time.thread_time_ns() - began)


def _exponential(exporter: Any) -> bool:
    """OTLP exporters fill in explicit buckets where none were asked for: there only the variable counts. Elsewhere the
    exporter's own wish does."""
    from opentelemetry.sdk.metrics import Histogram
    from opentelemetry.sdk.metrics.view import ExplicitBucketHistogramAggregation as Explicit

    wish = (getattr(exporter, "_preferred_aggregation", None) or {}).get(Histogram)
    if type(exporter).__module__.startswith(_OTLP):
        asked = os.environ.get(AGGREGATION, "").strip().lower() == "explicit_bucket_histogram"
        return not (asked and isinstance(wish, Explicit))
    return not isinstance(wish, Explicit)


def _untouched(exporter: Any, module: str) -> bool:
    """Whether it is, or exports as, the official one, in one request."""
    official = next((base for base in type(exporter).__mro__ if base.__module__ == module), None)
    if official is None or getattr(exporter, "_max_export_batch_size", None) is not None:
        return False
    return getattr(type(exporter), "export", None) is getattr(official, "export", official)


def _http(exporter: Any) -> Callable[[bytes], bool] | None:
    if not _untouched(exporter, f"{_OTLP}.http.metric_exporter"):
        return None
    client: Any = getattr(exporter, "_client", None)
    if callable(getattr(client, "export", None)):
        return lambda request: bool(client.export(request).success)
    export = getattr(exporter, "_export", None)  # releases before the common client
    return (lambda request: bool(export(request).ok)) if callable(export) and hasattr(exporter, "_session") else None


def _grpc(exporter: Any, mine: bool) -> Callable[[bytes], bool] | None:
    needed = ("_channel", "_headers", "_timeout")
    if not _untouched(exporter, f"{_OTLP}.grpc.metric_exporter") or not all(hasattr(exporter, name) for name in needed):
        return None
    return lambda request: _call(exporter, request, mine)


def _call(exporter: Any, request: bytes, mine: bool) -> bool:
    """One attempt: what was not taken is sent again with the next round."""
    import grpc  # type: ignore[import-untyped, unused-ignore]

    try:
        answer = exporter._channel.unary_unary(_METHOD)(
            request, metadata=exporter._headers or (), timeout=exporter._timeout
        )
    except grpc.RpcError as error:
        again = getattr(exporter, "_initialize_channel_and_stub", None)
        if mine and error.code() is grpc.StatusCode.UNAVAILABLE and again is not None:
            exporter._channel.close()
            again()  # a channel that lost its receiver waits for minutes
        return False
    return not _rejected(answer)


def _rejected(answer: bytes) -> int:
    from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2

    return int(metrics_service_pb2.ExportMetricsServiceResponse.FromString(answer).partial_success.rejected_data_points)


def protocol(environment: Mapping[str, str]) -> str:
    """ "grpc" or "http/protobuf", as the variables set it; http/protobuf where they do not and it is installed."""
    for name in _PROTOCOLS:
        if asked := environment.get(name, "").strip().lower():
            return asked
    return "http/protobuf" if _installed(f"{_OTLP}.http") or not _installed(f"{_OTLP}.grpc") else "grpc"


def _installed(module: str) -> bool:
    from importlib.util import find_spec

    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def exporter_class(environment: Mapping[str, str], signal: str) -> Any:
    """The official exporter's class for "metric" or "trace", imported.

    Raises:
        OptionError: it is not installed, or the protocol is none that it supports.
    """
    asked = protocol(environment)
    names = {"grpc": f"{_OTLP}.grpc.{signal}_exporter", "http/protobuf": f"{_OTLP}.http.{signal}_exporter"}
    if asked not in names:
        raise OptionError.of("otel", asked, "expected the OTLP protocol grpc or http/protobuf")
    try:
        from importlib import import_module

        module = import_module(names[asked])
        import_module("opentelemetry.sdk.metrics.export")
    except ImportError as error:
        expected = f"expected the OTLP exporter for {asked} to be installed ({error}): {how_to_install('otel')}"
        raise OptionError.of("otel", True, expected) from error
    return module.OTLPMetricExporter if signal == "metric" else module.OTLPSpanExporter
