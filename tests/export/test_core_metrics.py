"""One table of metrics: Prometheus and OTLP have the same of each metric."""

from __future__ import annotations

import time
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tailwatch import _hot, snapshots
from tailwatch.export.core_metrics import LoadGauges, Metric, metrics
from tailwatch.export.otel.encode import otlp
from tailwatch.export.prometheus.render import render

from ..integrations.test_scheduler_steps import Scheduler, Stats, decoding, follow, scheduler_output

pb = pytest.importorskip(
    "opentelemetry.proto.collector.metrics.v1.metrics_service_pb2", reason="pip install opentelemetry-proto"
)

MS = 1_000_000
UNITS = {"s": "seconds", "By": "bytes"}

ANSWERED = "the GenAI conventions count answered requests alone"
ERRORS = "the GenAI conventions count every request, by error.type"
EXPORTER = "about the OTLP exporter itself"
PROMETHEUS_ONLY = {
    "tailwatch_time_to_first_token_seconds": ANSWERED,
    "tailwatch_time_per_output_token_seconds": ANSWERED,
    "tailwatch_e2e_request_latency_seconds": ERRORS,
}
OTLP_ONLY = {
    "gen_ai.server.time_to_first_token": ANSWERED,
    "gen_ai.server.time_per_output_token": ANSWERED,
    "gen_ai.server.request.duration": ERRORS,
    "cpython.gc.collections": "python_gc_duration_seconds_count in Prometheus",
    "tailwatch.otel.exports": EXPORTER,
    "tailwatch.otel.spans": EXPORTER,
    "tailwatch.otel.longest_hold": EXPORTER,
}
BOTH = [metric for metric in metrics() if metric.prometheus and metric.otlp]


def planted() -> snapshots.Snapshot:
    """Something of everything that one process can be made to count here."""
    core = _hot.Core("api", 8, (2_000_000_000, 0, 0, 0, 990_000), 0, lambda scope: "", lambda waiting, stream: waiting)
    planted.core = core  # type: ignore[attr-defined]  # its memory is what the snapshot is taken of
    for number, end in enumerate(("close", "close", "fail", "abort")):
        at = time.monotonic_ns() - 10**9
        stream = core.stream(f"m{number % 2}", "/v1", at, "", "")
        for gap in (30, 40, 7, 90):
            at += gap * MS
            stream.token(at=at)
        getattr(stream, end)(at=at)
    core.stream("open", "/v1", None, "", "")
    with core.step("decode"):
        time.sleep(0.001)
    with core.step("decode"):
        pass
    scheduler = Scheduler()
    scheduler.graph = Stats(runtime_mode="FULL")
    prompt = scheduler_output("0.33", {"a": 1, "b": 300}, ("b",), preempted={"c"})
    follow(core, scheduler)
    scheduler.plans = [plan for n in range(9) for plan in (decoding("0.33", 1 + n % 3), prompt)]
    scheduler.plans.append(scheduler_output("0.33", {"a": 4}, spec={"a": [1, 2, 3]}))
    scheduler.sampled = [[1, 2]]
    for _ in range(19):
        scheduler.step()
    core.watch_gc(0, [], lambda *_: None)
    for generation in (0, 2, 2):
        core.gc_first("start", {"generation": generation, "collected": 0, "uncollectable": 0})
        core.gc_last("stop", {"generation": generation, "collected": 3, "uncollectable": 1})
    core.policy_begin()
    core.policy_end()
    core.policy_is(snapshots.POLICIES.index("idle"), snapshots.POLICY_MODES.index("slices"), 0)
    core.count_full_collection(snapshots.SLICE_REASONS.index("memory_limit"), 2_500_000_000, 70)
    core.count_interference(snapshots.INTERFERENCES.index("set_threshold"))
    core.count_memory_limit(snapshots.MEMORY_LIMITS.index("rss"))
    core.count_drop(2)
    core.count_error(1)
    return snapshots.take([core.address])


LOAD = LoadGauges(
    running=3, waiting=1, healthy=16.5, confidence=0.9, ratio=0.25, utilization=0.25, headroom=12.5, predicted_s=0.05,
    within_slo=True, verdict="found", points=[snapshots.Point(1, 0.05, 9), snapshots.Point(17, 0.0625, 9)],
)  # fmt: skip
INFO: dict[str, Any] = {
    "version": "1.0", "python": "3.11", "slo": "ttft<=2s", "extra_bytes": 7, "registry_seconds": 0.5, "load": LOAD,
}  # fmt: skip
Values = Counter[tuple[tuple[str, str], ...]]


def in_prometheus(snapshot: snapshots.Snapshot) -> dict[str, Any]:
    """The families by name."""
    text = bytes(render(snapshot, kind="openmetrics", **INFO)).decode()
    return {family.name: family for family in text_string_to_metric_families(text + "# EOF\n")}


def in_otlp(snapshot: snapshots.Snapshot) -> dict[str, Any]:
    """The metrics by name."""
    request = otlp(snapshot, provider="p", resource=b"", start_ns=1, **INFO)
    (resource,) = pb.ExportMetricsServiceRequest.FromString(request).resource_metrics
    return {metric.name: metric for metric in resource.scope_metrics[0].metrics}


def prometheus_values(family: Any) -> Values:
    """The value of each set of labels but the model, route and generation; of a histogram its sum, and count."""
    values: Values = Counter()
    for sample in family.samples:
        if sample.name.endswith("_bucket"):
            continue
        labels = {f"tailwatch.{name}": value for name, value in sample.labels.items()}
        for name in ("model_name", "route", "generation"):
            labels.pop(f"tailwatch.{name}", None)
        if family.type == "histogram":
            labels["part"] = "sum" if sample.name.endswith("_sum") else "count"
        values[tuple(sorted(labels.items()))] += sample.value
    return +values


def otlp_values(metric: Any, generations: bool) -> Values:
    """The same of OTLP. generations: whether Prometheus has the label, which is two attributes here."""
    values: Values = Counter()
    for point in getattr(metric, metric.WhichOneof("data")).data_points:
        labels = {pair.key: pair.value.string_value for pair in point.attributes if pair.key.startswith("tailwatch.")}
        if generations:
            del labels["tailwatch.cause"]
        if metric.WhichOneof("data") == "exponential_histogram":
            parts = {"sum": point.sum, "count": point.count}
        else:
            parts = {"": getattr(point, point.WhichOneof("value"))}
        for part, value in parts.items():
            values[tuple(sorted({**labels, "part": part}.items() if part else labels.items()))] += value
    return +values


def test_every_metric_is_in_both_but_for_these() -> None:
    """The exceptions and their reasons are the lists above; no name stands for two metrics."""
    found = metrics()
    assert {metric.prometheus for metric in found if metric.otlp is None} == set(PROMETHEUS_ONLY)
    assert {metric.otlp for metric in found if metric.prometheus is None} == set(OTLP_ONLY)
    for names in ([metric.prometheus for metric in found], [metric.otlp for metric in found]):
        assert all(count == 1 for name, count in Counter(names).items() if name)


def test_the_guide_s_labels_are_those_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every metric that has a sample here."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "docs"))
    listed = {
        name: labels for each in import_module("reference_data").METRICS.values() for name, (labels, _) in each.items()
    }
    families = in_prometheus(planted())
    exported = {
        name: {label for sample in family.samples for label in sample.labels} - {"le"}
        for name, family in families.items()
        if family.samples
    }

    assert len(exported) > 50
    assert {name: set(listed[name].split()) for name in exported} == exported


@pytest.mark.parametrize("metric", metrics(), ids=lambda metric: metric.prometheus or metric.otlp)
def test_a_name_ends_with_its_unit(metric: Metric) -> None:
    """In Prometheus; OTLP has it apart."""
    assert metric.help and metric.unit
    name = metric.prometheus or ""
    if name:
        assert name.endswith("_seconds") is (metric.unit == "s")
        assert name.endswith("_bytes") is (metric.unit == "By")
    for ending, unit in (("_ratio", "1"), ("_objects", "{object}"), ("_visits", "{visit}")):
        assert not name.endswith(ending) or metric.unit == unit


@pytest.fixture(scope="module")
def rendered() -> tuple[dict[str, Any], dict[str, Any]]:
    """One snapshot in both formats."""
    snapshot = planted()
    return in_prometheus(snapshot), in_otlp(snapshot)


@pytest.mark.parametrize("metric", BOTH, ids=lambda metric: metric.prometheus)
def test_prometheus_and_otlp_agree(metric: Metric, rendered: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """Description, unit, kind, and the value of each set of labels; what is 0 is not in OTLP."""
    family, otlp_metric = rendered[0][metric.prometheus], rendered[1].get(metric.otlp)
    assert (family.documentation, family.unit) == (metric.help, UNITS.get(metric.unit, ""))
    values = prometheus_values(family)
    if otlp_metric is None:
        assert not values
        return
    assert (otlp_metric.description, otlp_metric.unit) == (metric.help, metric.unit)
    monotonic = otlp_metric.WhichOneof("data") == "sum" and otlp_metric.sum.is_monotonic
    assert (family.type == "counter") is monotonic
    assert (family.type == "histogram") is (otlp_metric.WhichOneof("data") == "exponential_histogram")
    generations = any("generation" in sample.labels for sample in family.samples)
    assert otlp_values(otlp_metric, generations) == pytest.approx(dict(values), rel=1e-12)


def test_the_comparison_sees_most_of_them(rendered: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """Only what cannot be planted here has no value to compare."""
    unseen = {metric.otlp for metric in BOTH} - set(rendered[1])
    assert len(unseen) <= 20, sorted(str(name) for name in unseen)
