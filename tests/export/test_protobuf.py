"""Protobuf: what we write as protobuf's own runtime reads it, and when the host's registry makes it text."""

from __future__ import annotations

import gzip
import math
import random
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import prometheus_client
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Enum, Gauge, Histogram, Info, Summary
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeHistogramMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    UnknownMetricFamily,
)
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_client.samples import BucketSpan, Exemplar, NativeHistogram, Sample

from tailwatch import _hot, snapshots
from tailwatch.export.prometheus import app_registry_cache
from tailwatch.export.prometheus.app_registry_cache import FAMILY, FIT_SECONDS, SLOW, Gate
from tailwatch.export.prometheus.exposition import OWN_FAMILIES, Exposition
from tailwatch.export.prometheus.negotiation import Format, choose
from tailwatch.export.prometheus.render import render as render_families

from .. import prometheus_messages as messages

PROTOBUF = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"
PROMETHEUS_2_NATIVE = (
    f"{PROTOBUF},application/openmetrics-text;version=1.0.0;q=0.8,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3_NATIVE = (
    f"{PROTOBUF};escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,"
    "application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,"
    "text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
)
MS = 1_000_000
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


# ---- negotiation ----


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (PROMETHEUS_2_NATIVE, Format("protobuf")),
        (PROMETHEUS_3_NATIVE, Format("protobuf", utf8=True)),
        (PROTOBUF, Format("protobuf")),
        (PROTOBUF + ";q=0.4,text/plain;q=0.5", Format("text")),
        (PROTOBUF + ";q=0.5,text/plain;q=0.5", Format("protobuf")),
        (PROTOBUF + ";q=0", Format("text")),
        (PROTOBUF + ";q=2", Format("text")),
        (PROTOBUF + ";q=nan", Format("text")),
        (PROTOBUF.replace("delimited", "text"), Format("text")),
        (PROTOBUF.replace(".MetricFamily", ".Other"), Format("text")),
        ("application/vnd.google.protobuf", Format("text")),
        (PROTOBUF + ";escaping=dots", Format("protobuf")),
        ("text/plain;version=1.0.0;escaping=allow-utf-8", Format("text", utf8=True)),
        ("text/plain;version=0.0.4;escaping=allow-utf-8", Format("text")),
    ],
)
def test_the_best_of_what_is_asked_for_is_chosen(accept: str, expected: Format) -> None:
    """By q-value, then the richest; only the one protobuf that there is; UTF-8 names only for those that take them."""
    assert choose(accept) == expected


def test_without_protobuf_the_next_best_is_chosen() -> None:
    """The scraper's own order decides what it gets instead."""
    assert choose(PROMETHEUS_2_NATIVE, protobuf=False) == Format("openmetrics")
    assert choose(PROMETHEUS_3_NATIVE, protobuf=False) == Format("openmetrics", utf8=True)
    assert choose(PROTOBUF, protobuf=False) == Format("text")


@given(st.text(max_size=200))
def test_any_header_has_an_answer(accept: str) -> None:
    """Whatever is sent: one of three formats, and no exception."""
    assert choose(accept).name in ("text", "openmetrics", "protobuf")


# ---- our own families ----


@pytest.fixture(scope="module")
def core() -> _hot.Core:
    """One writer for the whole file: a segment is never unmapped."""
    return _hot.Core("api", 8, (2_000_000_000, 0, 0, 0, 990_000), 0, lambda scope: "", lambda waiting, stream: waiting)


@pytest.fixture(autouse=True)
def forget(core: _hot.Core) -> None:
    core.reset()
    core.exemplify(False, None)


def run_stream(core: _hot.Core, model: str, gaps_ns: list[int], trace_id: str = "") -> None:
    start = _hot.now() - sum(gaps_ns) - MS
    stream = core.stream(model, "/v1", start, "", trace_id)
    for gap in gaps_ns:
        start += gap
        stream.token(at=start)
    stream.close(at=start)


def render(core: _hot.Core, kind: str = "protobuf", snapshot: Any = None) -> bytes:
    snapshot = snapshot or snapshots.take([core.address])
    rendered = render_families(snapshot, version="1.0", python="3.11", slo="ttft<=2s", registry_seconds=0.5, kind=kind)
    return bytes(rendered)


def test_every_family_with_metrics_is_there(core: _hot.Core) -> None:
    """The families of the text format, by the names their samples have; those without samples are left out."""
    run_stream(core, "m", [10 * MS, 5 * MS])
    with core.step("decode"):
        pass
    core.policy_is(snapshots.POLICIES.index("idle"), 0, 0)
    families = messages.read(render(core))
    text = {family.name: family for family in parse_text(render(core, "text").decode())}
    ends = {messages.COUNTER: "_total", messages.GAUGE: "", messages.HISTOGRAM: ""}
    assert families.keys() == {
        name if family.type != "counter" else f"{name}_total" for name, family in text.items() if family.samples
    }
    for name, family in families.items():
        assert name.removesuffix(ends[family.type]).removesuffix("_info") in OWN_FAMILIES
        assert family.help and len(family.metric)


def test_the_numbers_are_those_of_the_text(core: _hot.Core) -> None:
    """Values, labels, counts, sums and cumulative buckets agree with the other format, bit for bit."""
    chance = random.Random(4)
    for model in ("m", 'n"\\'):
        run_stream(core, model, [int(chance.lognormvariate(16, 2)) for _ in range(200)])
    snapshot = snapshots.take([core.address])
    families = messages.read(render(core, snapshot=snapshot))
    for family in parse_openmetrics(render(core, "openmetrics", snapshot).decode() + "# EOF\n"):
        for sample in family.samples:
            if family.type == "histogram":
                check_histogram_sample(families[family.name], family.name, sample)
            else:
                check_plain_sample(families[sample.name], sample)


def check_plain_sample(family: Any, sample: Sample) -> None:
    (metric,) = [metric for metric in family.metric if messages.labels(metric) == sample.labels]
    value = metric.counter.value if family.type == messages.COUNTER else metric.gauge.value
    assert math.isclose(value, sample.value, rel_tol=3e-16), sample


def check_histogram_sample(family: Any, name: str, sample: Sample) -> None:
    own = {key: value for key, value in sample.labels.items() if key != "le"}
    (metric,) = [metric for metric in family.metric if messages.labels(metric) == own]
    if sample.name == f"{name}_bucket":
        bound = float(sample.labels["le"])
        assert [b.cumulative_count for b in metric.histogram.bucket if b.upper_bound == bound] == [sample.value]
    else:
        found = metric.histogram.sample_count if sample.name == f"{name}_count" else metric.histogram.sample_sum
        assert found == sample.value


@given(st.lists(st.one_of(st.integers(0, 10**13), st.integers(0, 10**9), st.integers(0, 10**4)), max_size=60))
def test_native_buckets_are_what_was_recorded(core: _hot.Core, gaps: list[int]) -> None:
    """Each gap is in the one bucket of schema 5 whose edges it lies between, whatever the gaps; nothing else is."""
    assume(sum(gaps) + 2 * MS < _hot.now())  # since the machine began
    core.reset()
    run_stream(core, "m", [MS, *gaps])
    (metric,) = messages.read(render(core))["tailwatch_inter_token_latency_seconds"].metric
    histogram = metric.histogram
    expected: dict[int, int] = {}
    zero = 0
    for gap in gaps:
        index = math.ceil(32 * math.log2(gap / 1e9)) if gap else -(10**6)
        while gap and gap / 1e9 <= 2 ** ((index - 1) / 32):  # what log2 rounds at an edge
            index -= 1
        zero += index <= -638
        if index > -638:
            index = 32769 if index > 319 else index
            expected[index] = expected.get(index, 0) + 1
    assert (histogram.schema, histogram.sample_count, histogram.zero_count) == (5, len(gaps), zero)
    assert histogram.zero_threshold == 2 ** (-638 / 32)
    assert messages.buckets(histogram) == expected
    assert sum(expected.values()) + zero == histogram.sample_count


def test_native_alone_has_no_classic_buckets(core: _hot.Core) -> None:
    """And everything else."""
    run_stream(core, "m", [MS, 7 * MS, 7 * MS])
    both, native = messages.read(render(core)), messages.read(render(core, "protobuf_native"))
    assert both.keys() == native.keys()
    for name, family in native.items():
        for metric, same in zip(family.metric, both[name].metric, strict=True):
            assert not metric.histogram.bucket and messages.labels(metric) == messages.labels(same)
            assert metric.histogram.positive_delta == same.histogram.positive_delta
    assert both["tailwatch_inter_token_latency_seconds"].metric[0].histogram.bucket


def test_created_is_when_the_process_began_to_count(core: _hot.Core) -> None:
    """The same at each scrape, of counters and histograms; gauges have none."""
    run_stream(core, "m", [MS, 7 * MS])
    first, later = messages.read(render(core)), messages.read(render(core))
    created = {
        metric.counter.created_timestamp.ToNanoseconds()
        for families in (first, later)
        for family in families.values()
        if family.type == messages.COUNTER
        for metric in family.metric
    }
    created |= {
        metric.histogram.created_timestamp.ToNanoseconds()
        for families in (first, later)
        for family in families.values()
        if family.type == messages.HISTOGRAM
        for metric in family.metric
    }
    (stamp,) = created
    assert 0 < snapshots.take([core.address]).taken - stamp / 1e9 < 600


# ---- exemplars ----


def test_exemplars_stand_in_their_buckets(core: _hot.Core) -> None:
    """Of TTFT, TPOT and E2E, and of a gap that was slow; in OpenMetrics and twice in protobuf, the same ones."""
    core.exemplify(True, None)
    run_stream(core, "m", [30 * MS, 4 * MS, 4 * MS, 1800 * MS], TRACE)
    proto = messages.read(render(core))
    for family in parse_openmetrics(render(core, "openmetrics").decode() + "# EOF\n"):
        theirs = {(s.exemplar.labels["trace_id"], s.exemplar.value) for s in family.samples if s.exemplar}
        for sample in family.samples:
            if sample.exemplar:
                assert sample.exemplar.value <= float(sample.labels["le"])
        if family.type != "histogram" or not family.samples:
            continue
        (histogram,) = [metric.histogram for metric in proto[family.name].metric][:1]
        classic = {(e.label[0].value, e.value) for e in (b.exemplar for b in histogram.bucket) if e.label}
        native = {(e.label[0].value, e.value) for e in histogram.exemplars}
        assert theirs == classic == native
        slow = {
            "tailwatch_time_to_first_token_seconds": 0.03,
            "tailwatch_inter_token_latency_seconds": 1.8,
            "tailwatch_time_per_output_token_seconds": 0.602666666,
            "tailwatch_e2e_request_latency_seconds": 1.838,
        }
        assert theirs == ({(TRACE, slow[family.name])} if family.name in slow else set())


def test_the_newest_of_a_bucket_stays(core: _hot.Core) -> None:
    """One per bucket, and of a label set its own."""
    core.exemplify(True, None)
    for number in range(5):
        run_stream(core, "m", [30 * MS], f"{number + 1:032x}")
    run_stream(core, "n", [30 * MS], TRACE)
    family = messages.read(render(core))["tailwatch_time_to_first_token_seconds"]
    found = {messages.labels(m)["model_name"]: [e.label[0].value for e in m.histogram.exemplars] for m in family.metric}
    assert found == {"m": [f"{5:032x}"], "n": [TRACE]}


@pytest.mark.parametrize("trace_id", ["", "0" * 32, 'a"b', "é" * 4, "a b", "a\nb"])
def test_what_is_no_trace_id_is_no_exemplar(core: _hot.Core, trace_id: str) -> None:
    """Nothing is shown that would have to be escaped, or that names no trace."""
    core.exemplify(True, None)
    run_stream(core, "m", [30 * MS, 1800 * MS], trace_id)
    assert " # " not in render(core, "openmetrics").decode()


def test_without_the_option_there_are_none(core: _hot.Core) -> None:
    """Also where a trace id is known."""
    run_stream(core, "m", [30 * MS, 1800 * MS], TRACE)
    assert " # " not in render(core, "openmetrics").decode()


def test_a_span_around_the_caller_gives_the_trace(core: _hot.Core) -> None:
    """Where no trace id was given; what asking raises is dropped."""
    core.exemplify(True, lambda: TRACE)
    run_stream(core, "m", [30 * MS])
    assert f'trace_id="{TRACE}"' in render(core, "openmetrics").decode()
    core.reset()

    def broken() -> str:
        raise ValueError("no span")

    core.exemplify(True, broken)
    run_stream(core, "m", [30 * MS])
    assert " # " not in render(core, "openmetrics").decode()


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2 * 10**10)), max_size=300))
def test_many_exemplars_stay_right(core: _hot.Core, requests: list[tuple[int, int]]) -> None:
    """However many buckets share the table: what is shown lies in its bucket, was measured, and is the newest there."""
    core.reset()
    core.exemplify(True, None)
    newest: dict[tuple[str, float], str] = {}
    bounds = [0.0, *BOUNDS_TTFT, math.inf]
    for number, (model, gap) in enumerate(requests, 1):
        start = _hot.now() - gap
        stream = core.stream(f"m{model}", "/v1", start, "", f"{number:032x}")
        stream.token(at=start + gap)
        bound = next(b for b in bounds[1:] if gap / 1e9 <= b)
        newest[f"m{model}", bound] = f"{number:032x}"
    families = parse_openmetrics(render(core, "openmetrics").decode() + "# EOF\n")
    for sample in (s for family in families for s in family.samples if s.exemplar):
        key = sample.labels["model_name"], float(sample.labels["le"])
        assert sample.name == "tailwatch_time_to_first_token_seconds_bucket"
        assert sample.exemplar is not None and sample.exemplar.labels["trace_id"] == newest[key]


BOUNDS_TTFT = [
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20, 40, 80, 160),
]


# ---- the host's registry ----


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> CollectorRegistry:
    """The host's registry, empty; it is asked with each scrape."""
    registry = CollectorRegistry()
    monkeypatch.setattr(prometheus_client, "REGISTRY", registry)
    monkeypatch.setattr(app_registry_cache, "CACHE_SECONDS", 0.0)
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)
    return registry


class Clock(types.SimpleNamespace):
    """Time that passes only where a test advances it: of day, and of the thread's CPU."""

    now = 1000.0
    cpu = 0.0
    step = 0.0

    def monotonic(self) -> float:
        return self.now

    def perf_counter(self) -> float:
        return self.now

    def thread_time(self) -> float:
        self.cpu += self.step
        return self.cpu


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(app_registry_cache, "time", clock)
    return clock


class Counted:
    """An exposition, what of the host's failed, and why scrapes were declined."""

    def __init__(self, core: _hot.Core, **options: Any) -> None:
        self.errors = 0
        self.declined: list[str] = []
        self.exposition = Exposition(
            lambda: snapshots.take([core.address]),
            version="1.0",
            python="3.11",
            slo=lambda: "ttft<=2s",
            on_registry_error=self._failed,
            on_declined=self.declined.append,
            **options,
        )

    def _failed(self) -> None:
        self.errors += 1

    def scrape(self, accept: str = PROMETHEUS_2_NATIVE) -> str:
        """The name of the format it came in."""
        kind, self.body = self.exposition.render(accept)
        if "protobuf" not in kind:
            return "openmetrics" if "openmetrics" in kind else "text"
        self.families = messages.read(self.body)
        return "protobuf"


@pytest.fixture
def counted(core: _hot.Core, clock: Clock) -> Counted:
    return Counted(core)


def test_every_kind_of_the_hosts_is_encoded(counted: Counted, registry: CollectorRegistry) -> None:
    """As Prometheus would take it from text: info and enum as gauges, created times in their field."""
    Counter("jobs", "Jobs \\ done", ["kind"], registry=registry).labels('a"b\\c\nd').inc(3)
    Gauge("depth", "Depth", unit="meters", registry=registry).set(1.5e9)
    Histogram("wait", "Wait", ["pool"], registry=registry, buckets=[0.1, 1]).labels("x").observe(0.3)
    Summary("size", "Size", registry=registry).observe(12)
    Info("app", "App", registry=registry).info({"build": "é"})
    Enum("state", "State", states=["up", "down"], registry=registry).state("down")
    assert counted.scrape() == "protobuf"
    found = counted.families
    (job,) = found["jobs_total"].metric
    assert (job.counter.value, messages.labels(job)) == (3, {"kind": 'a"b\\c\nd'})
    assert found["jobs_total"].type == messages.COUNTER and job.counter.created_timestamp.seconds > 0
    assert (found["depth_meters"].metric[0].gauge.value, found["depth_meters"].unit) == (1.5e9, "meters")
    (wait,) = found["wait"].metric
    assert [(b.upper_bound, b.cumulative_count) for b in wait.histogram.bucket] == [(0.1, 0), (1, 1), (math.inf, 1)]
    assert (wait.histogram.sample_count, wait.histogram.sample_sum) == (1, 0.3)
    assert wait.histogram.HasField("created_timestamp") and not wait.histogram.HasField("schema")
    (size,) = found["size"].metric
    assert (size.summary.sample_count, size.summary.sample_sum) == (1, 12)
    assert messages.labels(found["app_info"].metric[0]) == {"build": "é"}
    assert [m.gauge.value for m in found["state"].metric] == [0, 1]
    assert found["state"].type == found["app_info"].type == messages.GAUGE
    assert counted.errors == 0 and counted.declined == []


class Given:
    """A collector of families made by hand."""

    def __init__(self, *families: Metric) -> None:
        self.families = families

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        yield from self.families


def test_what_only_openmetrics_has_is_encoded(counted: Counted, registry: CollectorRegistry) -> None:
    """Exemplars, timestamps, gauge histograms, unknown types and native histograms of the host's."""
    counter = CounterMetricFamily("c", "C", labels=["a"])
    counter.add_metric(["1"], 1, created=5.5, timestamp=7.25, exemplar=Exemplar({"t": 'x"'}, 0.5, 3.25))
    histogram = HistogramMetricFamily("h", "H")
    histogram.add_metric([], [("1.0", 1, Exemplar({"t": "y"}, 0.5)), ("+Inf", 2)], 3, timestamp=12.5)
    gauge = GaugeHistogramMetricFamily("g", "G", unit="")
    gauge.add_metric([], [("1.0", 1.5), ("+Inf", 2)], 3)
    unknown = UnknownMetricFamily("u", "U", value=-0.0)
    native = Metric("n", "N", "histogram")
    spans, deltas = (BucketSpan(-2, 2), BucketSpan(1, 1)), (1, 2, -1)
    value = NativeHistogram(7, 1.25, 3, 0.001, 1, spans, None, deltas, None)
    native.add_sample("n", {"a": "b"}, 0, native_histogram=value)
    registry.register(Given(counter, histogram, gauge, unknown, native))  # type: ignore[arg-type]
    assert counted.scrape() == "protobuf"
    found = counted.families
    (metric,) = found["c_total"].metric
    assert (metric.timestamp_ms, metric.counter.exemplar.value, metric.counter.created_timestamp.nanos) == (
        7250,
        0.5,
        5 * 10**8,
    )
    assert messages.labels(metric.counter.exemplar) == {"t": 'x"'}
    assert found["h"].metric[0].histogram.bucket[0].exemplar.value == 0.5
    assert found["h"].metric[0].timestamp_ms == 12500
    assert found["g"].type == messages.GAUGE_HISTOGRAM
    assert found["g"].metric[0].histogram.bucket[0].cumulative_count_float == 1.5
    assert found["g"].metric[0].histogram.sample_count == 2 and found["g"].metric[0].histogram.sample_sum == 3
    assert math.copysign(1, found["u"].metric[0].untyped.value) == -1
    (of,) = [metric.histogram for metric in found["n"].metric]
    assert (of.sample_count, of.sample_sum, of.schema, of.zero_threshold, of.zero_count) == (7, 1.25, 3, 0.001, 1)
    assert messages.buckets(of) == {-2: 1, -1: 3, 1: 2}


@pytest.mark.parametrize(
    ("accept", "name", "label"),
    [(PROMETHEUS_2_NATIVE, "http_time", "of_day"), (PROMETHEUS_3_NATIVE, "http.time", "of.day")],
)
def test_utf8_names_are_given_on_request(
    counted: Counted, registry: CollectorRegistry, accept: str, name: str, label: str
) -> None:
    """Others get underscores, as prometheus_client gives them."""
    family = GaugeMetricFamily("http.time", "T", labels=["of.day"])
    family.add_metric(["x"], 1)
    registry.register(Given(family))  # type: ignore[arg-type]
    assert counted.scrape(accept) == "protobuf"
    assert messages.labels(counted.families[name].metric[0]) == {label: "x"}


@pytest.mark.parametrize("accept", [a.split(",", 1)[1] for a in (PROMETHEUS_2_NATIVE, PROMETHEUS_3_NATIVE)])
def test_utf8_names_in_text_are_quoted_on_request(counted: Counted, registry: CollectorRegistry, accept: str) -> None:
    """In OpenMetrics as in protobuf; prometheus_client's own parser reads both."""
    family = GaugeMetricFamily("http.time", "T", labels=["of.day"])
    family.add_metric(["x"], 1)
    registry.register(Given(family))  # type: ignore[arg-type]
    assert counted.scrape(accept) == "openmetrics"
    found = {family.name: family for family in parse_openmetrics(counted.body.decode())}
    name, label = ("http.time", "of.day") if "allow-utf-8" in accept else ("http_time", "of_day")
    assert found[name].samples[0].labels == {label: "x"}


@pytest.mark.parametrize(
    "family",
    [
        Metric("odd", "Odd", "counter"),
        Metric("odd", "Odd", "histogram"),
        Metric("odd", "Odd", "gauge"),
        Metric("odd", "Odd", "summary"),
    ],
    ids=lambda family: family.type,
)
def test_a_family_without_a_form_makes_it_text(counted: Counted, registry: CollectorRegistry, family: Metric) -> None:
    """All of the answer, in the format that the scraper ranks next; it is counted with each scrape."""
    family.samples = [Sample("odd_one", {"a": "b"}, 1)]
    registry.register(Given(family))  # type: ignore[arg-type]
    assert counted.scrape() == "openmetrics"
    assert b"odd_one" in counted.body and b"tailwatch_build_info" in counted.body
    assert counted.scrape() == "openmetrics"
    assert counted.declined == [FAMILY, FAMILY] and counted.errors == 0


def test_a_value_that_is_none_makes_it_text(counted: Counted, registry: CollectorRegistry) -> None:
    """A family that cannot be written at all is then left out there, and counted, as ever."""
    family = GaugeMetricFamily("odd", "Odd", labels=["a"])
    family.add_metric(["broken"], "seven")  # type: ignore[arg-type]
    registry.register(Given(family, GaugeMetricFamily("even", "Even", value=2)))  # type: ignore[arg-type]
    assert counted.scrape() == "openmetrics"
    assert b"even 2.0" in counted.body and b"odd" not in counted.body
    assert counted.declined == [FAMILY] and counted.errors == 1


def test_a_collector_that_raises_costs_only_itself(counted: Counted, registry: CollectorRegistry) -> None:
    """It is counted, and the answer stays protobuf."""

    class Broken(Given):
        def collect(self) -> Iterator[Metric]:
            yield GaugeMetricFamily("before", "Before", value=1)
            raise RuntimeError("no")

    registry.register(Broken())  # type: ignore[arg-type]
    registry.register(Given(GaugeMetricFamily("after", "After", value=2)))  # type: ignore[arg-type]
    assert counted.scrape() == "protobuf"
    assert {"before", "after", "tailwatch_build_info"} <= counted.families.keys()
    assert counted.errors == 1 and counted.declined == []


def test_a_family_without_metrics_is_left_out(counted: Counted, registry: CollectorRegistry) -> None:
    """Some readers take one for an error."""
    Gauge("nothing", "Nothing", ["a"], registry=registry)
    assert counted.scrape() == "protobuf"
    assert "nothing" not in counted.families


def test_a_family_of_our_name_is_skipped(counted: Counted, registry: CollectorRegistry) -> None:
    """Ours stays, and it is counted once."""
    Histogram("python_gc_duration_seconds", "Theirs", registry=registry)
    for _ in range(3):
        assert counted.scrape() == "protobuf"
        assert counted.families["python_gc_duration_seconds"].help != "Theirs"
    assert counted.errors == 1


def test_five_hundred_label_sets_of_the_host(core: _hot.Core, registry: CollectorRegistry) -> None:
    """What takes too long is given up on the way, answered in text, and counted; nothing of it is lost."""
    histogram = Histogram("slow", "Slow", ["i"], registry=registry, buckets=[i / 100 for i in range(100)])
    for number in range(500):
        histogram.labels(str(number)).observe(number / 500)
    counted = Counted(core)
    assert counted.scrape() == "openmetrics"
    assert counted.declined == [SLOW]
    assert counted.body.count(b"\nslow_count{") == 500 and b"tailwatch_build_info" in counted.body


MULTIPROCESS = """
from prometheus_client import Counter, Gauge, Histogram, Summary
Counter("worked", "Worked", ["kind"]).labels("a").inc(4)
Gauge("depth", "Depth", multiprocess_mode="sum").set(3)
Histogram("wait", "Wait", buckets=[0.1, 1]).observe(0.3)
Summary("size", "Size").observe(12)
"""


def test_multiprocess_mode_is_encoded(
    counted: Counted, registry: CollectorRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files of all the host's processes, as its own collector adds them up."""
    for _ in range(2):
        environment = {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
        subprocess.run([sys.executable, "-c", MULTIPROCESS], check=True, env=environment, timeout=60)
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    assert counted.scrape() == "protobuf"
    found = counted.families
    assert found["worked_total"].metric[0].counter.value == 8
    assert found["depth"].metric[0].gauge.value == 6
    (wait,) = found["wait"].metric
    assert [b.cumulative_count for b in wait.histogram.bucket] == [0, 2, 2] and wait.histogram.sample_count == 2
    assert (found["size"].metric[0].summary.sample_count, found["size"].metric[0].summary.sample_sum) == (2, 24)


def test_classic_declines_protobuf(core: _hot.Core, registry: CollectorRegistry) -> None:
    """histograms="classic": no native histograms anywhere, and nothing is counted for it."""
    counted = Counted(core, histograms=lambda: "classic")
    assert counted.scrape() == "openmetrics"
    assert counted.declined == []


def test_native_is_protobuf_alone(core: _hot.Core, registry: CollectorRegistry) -> None:
    """histograms="native": no classic buckets of ours where native ones are; text has them in any case."""
    run_stream(core, "m", [MS, 7 * MS])
    counted = Counted(core, histograms=lambda: "native")
    assert counted.scrape() == "protobuf"
    assert not counted.families["tailwatch_inter_token_latency_seconds"].metric[0].histogram.bucket
    assert counted.scrape("") == "text"
    assert b"tailwatch_inter_token_latency_seconds_bucket{" in counted.body


def test_protobuf_is_compressed_too(core: _hot.Core, registry: CollectorRegistry) -> None:
    """The same families, marked as such."""
    counted = Counted(core)
    response = counted.exposition.respond(PROMETHEUS_2_NATIVE, "gzip")
    assert response.encoding == "gzip" and response.content_type.endswith("encoding=delimited")
    assert counted.scrape() == "protobuf"
    assert messages.read(gzip.decompress(b"".join(response.parts))).keys() == counted.families.keys()


@pytest.mark.parametrize(
    ("costs", "expected"),
    [
        ([0.9] * 9, "p" * 9),
        ([1.1, 1.1, 0.9] * 3, "p" * 9),  # three in a row are needed
        ([1.1] * 3 + [0.1], "ppot"),
        ([4.1, 0.1], "ot"),
    ],
)
def test_the_gate_has_hysteresis(costs: list[float], expected: str) -> None:
    """In units of what fits: far too much closes it at once, a little too much after three scrapes in a row."""
    gate, seen = Gate(), ""
    for now, cost in enumerate(costs):
        if not gate.due(float(now)):
            seen += "t"
            continue
        if cost * FIT_SECONDS > gate.limit:
            gate.gave_up(SLOW, float(now))
        else:
            gate.wrote(cost * FIT_SECONDS, float(now))
        seen += "p" if gate.reason is None else "o"
    assert seen == expected


def test_a_closed_gate_opens_after_three_easy_tries() -> None:
    """A try a minute, and none that barely fits."""
    gate = Gate()
    gate.gave_up(SLOW, 0.0)
    assert not gate.due(59.0) and gate.due(60.0)
    now = 0.0
    for cost in (0.5, 0.5, 0.9, 0.5, 0.5):
        now += Gate.RETRY_SECONDS
        assert gate.due(now)
        gate.wrote(cost * FIT_SECONDS, now)
        assert gate.reason == SLOW and not gate.due(now + 1)
    gate.wrote(0.5 * FIT_SECONDS, now + 60)
    assert gate.reason is None


def test_a_host_that_became_fast_gets_protobuf_again(
    counted: Counted, registry: CollectorRegistry, clock: Clock
) -> None:
    """Scrapes are text meanwhile, also those in which it was tried."""
    Gauge("depth", "Depth", registry=registry).set(1)
    clock.step = 1.0
    assert counted.scrape() == "openmetrics"
    clock.step = 0.0
    seen = []
    for _ in range(4):
        clock.now += 61
        seen.append(counted.scrape())
    assert seen == ["openmetrics", "openmetrics", "protobuf", "protobuf"]
    assert counted.declined == [SLOW] * 3


def test_a_fork_child_has_its_own_lock(core: _hot.Core, registry: CollectorRegistry) -> None:
    """One that a thread of the parent's held is never let go of in the child."""
    counted = Counted(core)
    host = counted.exposition._host
    assert host is not None
    host._lock.acquire()
    counted.exposition.after_fork()
    assert counted.scrape() == "protobuf"


@given(
    value=st.one_of(st.floats(), st.integers(-(10**18), 10**18)),
    label=st.text(max_size=20),
    name=st.text(alphabet="aZ9_.é -", min_size=1, max_size=8),
)
def test_any_gauge_comes_back(core: _hot.Core, value: float, label: str, name: str) -> None:
    """Value to the bit, label and UTF-8 name unharmed."""
    from tailwatch.export.prometheus import app_registry_protobuf

    family = GaugeMetricFamily(name, label, labels=[name])
    family.add_metric([label], value)
    body = app_registry_protobuf.delimited(app_registry_protobuf.encode(family, str, str))
    (read,) = messages.read(body).values()
    (metric,) = read.metric
    assert (read.name, read.help, messages.labels(metric)) == (name, label, {name: label})
    assert metric.gauge.value == float(value) or (math.isnan(value) and math.isnan(metric.gauge.value))


hostile = st.text(alphabet=st.one_of(st.sampled_from('"\\\n\0{}=, #é\u2028\r\ud800'), st.characters()), max_size=60)


@given(labels=st.lists(st.tuples(hostile, hostile), min_size=1, max_size=6), trace_id=hostile)
def test_no_label_value_breaks_protobuf(core: _hot.Core, labels: list[tuple[str, str]], trace_id: str) -> None:
    """Any model, route and trace id, lone surrogates too, comes back from protobuf's runtime as the snapshot has it."""
    core.reset()
    core.exemplify(True, None)
    for model, route in labels:
        stream = core.stream(model, route, None, "", trace_id)
        stream.token()
        stream.token()
        stream.close()
    families = messages.read(render(core))
    metrics = families["tailwatch_output_tokens_total"].metric
    seen = {(messages.labels(m)["model_name"], messages.labels(m)["route"]) for m in metrics}
    assert seen == set(snapshots.take([core.address]).labels)
    assert sum(metric.counter.value for metric in metrics) == 2 * len(labels)


@pytest.mark.parametrize("name", ["m" * 2**20, "é" * 2**19, '"\\\n' * 2**18, "\ud800" * 2**18])
def test_a_name_of_a_megabyte_is_cut(core: _hot.Core, name: str) -> None:
    """In every format, at a character; the scrape stays small."""
    stream = core.stream(name, name, None, name, name)
    stream.token()
    stream.close()
    for kind in ("text", "openmetrics", "protobuf", "protobuf_native"):
        assert len(render(core, kind)) < 256 * 1024
    (metric,) = messages.read(render(core))["tailwatch_output_tokens_total"].metric
    assert all(0 < len(value.encode()) < 128 for value in messages.labels(metric).values())
