"""The host's families hold the same in protobuf as in OpenMetrics, whatever they are."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
    StateSetMetricFamily,
    SummaryMetricFamily,
)
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse
from prometheus_client.samples import Exemplar

from tailwatch.export.prometheus import app_registry

from .. import prometheus_messages as messages

pytestmark = pytest.mark.property

texts = st.text(alphabet=st.characters(codec="utf-8"), max_size=12)
numbers = st.one_of(st.floats(allow_nan=False), st.integers(0, 10**12))
trace_ids = st.text(alphabet="0123456789abcdef", max_size=32)  # the parser stumbles over a quote in an exemplar
counts = st.integers(0, 10**9)
label_sets = st.lists(texts, min_size=1, max_size=4, unique=True)
Families = list[Metric]


def le_of(bound: float) -> str:
    return "+Inf" if bound == float("inf") else str(float(bound))


@st.composite
def families(draw: st.DrawFn) -> Families:
    """One of each kind, each with some label sets."""
    counter = CounterMetricFamily("jobs", draw(texts), labels=["kind"])
    gauge = GaugeMetricFamily("depth", draw(texts), labels=["kind"])
    summary = SummaryMetricFamily("size", draw(texts), labels=["kind"])
    histogram = HistogramMetricFamily("wait", draw(texts), labels=["kind"])
    for value in draw(label_sets):
        created = draw(st.one_of(st.none(), st.integers(1, 2**31)))
        counter.add_metric([value], draw(counts), created=created)
        gauge.add_metric([value], draw(numbers))
        summary.add_metric([value], draw(counts), draw(st.floats(0, 1e12)))
        histogram.add_metric([value], list(draw(buckets())), draw(st.floats(0, 1e12)))
    info = InfoMetricFamily("app", "App", value={"build": draw(texts)})
    states = StateSetMetricFamily("state", "State", value={"up": draw(st.booleans()), "down": draw(st.booleans())})
    return [counter, gauge, summary, histogram, info, states]


@st.composite
def buckets(draw: st.DrawFn) -> Iterator[Any]:
    """Cumulative, some with an exemplar in it."""
    total, below, found = 0, 0.0, []
    for bound in [*sorted(draw(st.sets(st.integers(1, 10**6), max_size=5))), float("inf")]:
        total += draw(counts)
        value = min(float(bound), below + 1.0)
        exemplar = Exemplar({"trace_id": draw(trace_ids)}, value, 1.5) if draw(st.booleans()) else None
        found.append((le_of(bound), total, exemplar))
        below = float(bound)
    return iter(found)


def written(given_families: Families) -> tuple[dict[str, Any], dict[str, Any]]:
    registry = types.SimpleNamespace(collect=lambda: given_families)
    options: dict[str, Any] = {
        "skip_names": (),
        "skip_collector": lambda collector: False,
        "on_clash": lambda name: None,
        "on_error": lambda: pytest.fail("a collector failed"),
    }
    text = b"".join(app_registry.write_registry(registry, openmetrics=True, **options)) + b"# EOF\n"
    proto = b"".join(app_registry.encode_registry(registry, utf8=False, check=lambda: None, **options))
    return {family.name: family for family in parse(text.decode())}, messages.read(proto)


@given(families())
def test_both_formats_hold_the_same(given_families: Families) -> None:
    """Every sample that a parser finds in the text is in the messages, and no message has more."""
    text, proto = written(given_families)
    assert proto.keys() == {"jobs_total", "depth", "size", "wait", "app_info", "state"}
    found = {(name, labels): value for family in proto.values() for name, labels, value in samples(family)}
    expected = {
        (s.name, frozenset(s.labels.items())): s.value
        for family in text.values()
        for s in family.samples
        if not s.name.endswith("_created")
    }
    assert found == expected
    exemplars = {
        (frozenset(s.labels.items()), s.exemplar.labels["trace_id"], s.exemplar.value)
        for s in text["wait"].samples
        if s.exemplar
    }
    assert exemplars == set(exemplars_of(proto["wait"]))


def samples(family: Any) -> Iterator[tuple[str, frozenset[tuple[str, str]], float]]:
    for metric in family.metric:
        labels = messages.labels(metric)
        if family.type == messages.HISTOGRAM:
            histogram = metric.histogram
            for bucket in histogram.bucket:
                le = {"le": le_of(bucket.upper_bound)}
                yield f"{family.name}_bucket", frozenset((labels | le).items()), bucket.cumulative_count
            yield f"{family.name}_count", frozenset(labels.items()), histogram.sample_count
            yield f"{family.name}_sum", frozenset(labels.items()), histogram.sample_sum
        elif family.type == messages.SUMMARY:
            yield f"{family.name}_count", frozenset(labels.items()), metric.summary.sample_count
            yield f"{family.name}_sum", frozenset(labels.items()), metric.summary.sample_sum
        else:
            value = metric.counter.value if family.type == messages.COUNTER else metric.gauge.value
            yield family.name, frozenset(labels.items()), value


def exemplars_of(family: Any) -> Iterator[tuple[frozenset[tuple[str, str]], str, float]]:
    for metric in family.metric:
        for bucket in metric.histogram.bucket:
            if bucket.HasField("exemplar"):
                le = {"le": le_of(bucket.upper_bound)}
                labels = frozenset((messages.labels(metric) | le).items())
                yield labels, messages.labels(bucket.exemplar)["trace_id"], bucket.exemplar.value
