"""An OTLP request as the SDK's objects, for exporters that take nothing else.

They are read off the encoded bytes, so both ways export the same. The SDK's objects have no zero threshold: what lies
at or below 1 us is in the zero count, without a mark; exemplars, which have no span id, are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def batches(request: bytes, resource: Any, *, together: bool) -> Iterator[Any]:
    """MetricsData objects: one for each metric, or one of all. Each is made as it is asked for."""
    from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2

    decoded = metrics_service_pb2.ExportMetricsServiceRequest.FromString(request)
    scope = decoded.resource_metrics[0].scope_metrics[0]
    metrics = (_metric(metric) for metric in scope.metrics)
    if together:
        yield _data(resource, scope.scope, list(metrics))
        return
    for metric in metrics:
        yield _data(resource, scope.scope, [metric])


def _data(resource: Any, scope: Any, metrics: list[Any]) -> Any:
    from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    ours = InstrumentationScope(scope.name, scope.version)
    return MetricsData([ResourceMetrics(resource, [ScopeMetrics(ours, metrics, "")], resource.schema_url)])


def _metric(metric: Any) -> Any:
    from opentelemetry.sdk.metrics import export as sdk

    kind = metric.WhichOneof("data")
    data = getattr(metric, kind)
    made: Any
    if kind == "gauge":
        made = sdk.Gauge([_number(point) for point in data.data_points])
    elif kind == "sum":
        points = [_number(point) for point in data.data_points]
        made = sdk.Sum(points, sdk.AggregationTemporality(data.aggregation_temporality), data.is_monotonic)
    else:
        of, point = (sdk.Histogram, _explicit) if kind == "histogram" else (sdk.ExponentialHistogram, _exponential)
        temporality = sdk.AggregationTemporality(data.aggregation_temporality)
        made = of([point(each) for each in data.data_points], temporality)
    return sdk.Metric(metric.name, metric.description, metric.unit, made)


def _attributes(point: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in point.attributes}


def _common(point: Any) -> dict[str, Any]:
    return {
        "attributes": _attributes(point),
        "start_time_unix_nano": point.start_time_unix_nano,
        "time_unix_nano": point.time_unix_nano,
    }


def _number(point: Any) -> Any:
    from opentelemetry.sdk.metrics.export import NumberDataPoint

    return NumberDataPoint(**_common(point), value=getattr(point, point.WhichOneof("value")))


def _extremes(point: Any) -> dict[str, Any]:
    return {name: getattr(point, name) if point.HasField(name) else None for name in ("min", "max")}


def _explicit(point: Any) -> Any:
    from opentelemetry.sdk.metrics.export import HistogramDataPoint

    return HistogramDataPoint(
        **_common(point),
        **_extremes(point),
        count=point.count,
        sum=point.sum,
        bucket_counts=list(point.bucket_counts),
        explicit_bounds=list(point.explicit_bounds),
    )


def _exponential(point: Any) -> Any:
    from opentelemetry.sdk.metrics.export import Buckets, ExponentialHistogramDataPoint

    return ExponentialHistogramDataPoint(
        **_common(point),
        **_extremes(point),
        count=point.count,
        sum=point.sum,
        scale=point.scale,
        zero_count=point.zero_count,
        flags=0,
        positive=Buckets(point.positive.offset, list(point.positive.bucket_counts)),
        negative=Buckets(0, []),
    )
