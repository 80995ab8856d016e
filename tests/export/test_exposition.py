"""The metrics text that C renders, read back by prometheus_client's own parsers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from tailwatch import _hot, snapshots
from tailwatch.export.core_metrics import LoadGauges
from tailwatch.export.prometheus.exposition import OWN_FAMILIES
from tailwatch.export.prometheus.exposition import _families as read_families
from tailwatch.export.prometheus.render import render as render_families

from ..integrations.test_scheduler_steps import Scheduler, decoding, follow

SLO = (2_000_000_000, 200_000_000, 0, 0, 990_000)
MS = 1_000_000


def make_core(label_sets: int = 8) -> _hot.Core:
    return _hot.Core("api", label_sets, SLO, 0, lambda scope: "", lambda waiting, stream: waiting)


@pytest.fixture(scope="module")
def core() -> _hot.Core:
    """One writer for the whole file: a segment is never unmapped."""
    return make_core()


@pytest.fixture(autouse=True)
def forget(core: _hot.Core) -> None:
    core.reset()
    core.policy_is(0, 0, 0)


def run_stream(core: _hot.Core, model: str, route: str, gaps_ms: list[int]) -> None:
    start = _hot.now() - (sum(gaps_ms) + 1) * MS
    stream = core.stream(model, route, start, "", "")
    for gap in gaps_ms:
        start += gap * MS
        stream.token(at=start)
    stream.close(at=start)


LOAD = LoadGauges(
    running=3, waiting=1, healthy=16.5, confidence=0.9, ratio=0.25, utilization=0.25, headroom=12.5, predicted_s=0.05,
    within_slo=True, verdict="found", points=[snapshots.Point(1, 0.05, 9), snapshots.Point(17, 0.0625, 9)],
)  # fmt: skip


def render(
    core: _hot.Core,
    *,
    openmetrics: bool,
    slo: str = "ttft<=2s",
    registry_seconds: float = -1.0,
    load: LoadGauges | None = None,
) -> str:
    rendered = render_families(
        snapshots.take([core.address]),
        version="1.0",
        python="3.11",
        slo=slo,
        extra_bytes=0,
        registry_seconds=registry_seconds,
        goodput_window=60,
        kind="openmetrics" if openmetrics else "text",
        load=load,
    )
    return bytes(rendered).decode()


def parse(text: str, openmetrics: bool) -> dict[str, Any]:
    families = parse_openmetrics(text + "# EOF\n") if openmetrics else parse_text(text)
    return {family.name: family for family in families}


def samples(families: dict[str, Any], name: str) -> Iterator[Any]:
    return (sample for family in families.values() for sample in family.samples if sample.name == name)


@pytest.mark.parametrize("openmetrics", [False, True])
def test_every_family_is_known_to_the_python_side(core: _hot.Core, openmetrics: bool) -> None:
    """OWN_FAMILIES lists exactly the families that C writes, so that no host family is dropped or doubled."""
    run_stream(core, "m", "/v1", [10, 5])
    with core.step("decode"):
        pass
    scheduler = Scheduler()
    follow(core, scheduler)
    scheduler.plans = [decoding("0.33")]
    scheduler.step()
    core.policy_is(snapshots.POLICIES.index("idle"), 0, 0)
    families = parse(render(core, openmetrics=openmetrics, registry_seconds=0.5, load=LOAD), openmetrics)
    names = {name.removesuffix("_info") for name in families}
    assert names == OWN_FAMILIES


@pytest.mark.parametrize("openmetrics", [False, True])
def test_the_load_is_written_as_it_was_given(core: _hot.Core, openmetrics: bool) -> None:
    """Each number once, unlabelled but for the curve and the verdict."""
    families = parse(render(core, openmetrics=openmetrics, load=LOAD), openmetrics)
    given = {
        "tailwatch_streams_running": 3, "tailwatch_streams_waiting": 1, "tailwatch_healthy_concurrency": 16.5,
        "tailwatch_healthy_concurrency_confidence_ratio": 0.9, "tailwatch_load_ratio": 0.25,
        "tailwatch_load_utilization_ratio": 0.25, "tailwatch_load_headroom_streams": 12.5,
        "tailwatch_predicted_ttft_seconds": 0.05, "tailwatch_admission_within_slo": 1,
    }  # fmt: skip
    for name, value in given.items():
        (sample,) = families[name].samples
        assert (sample.labels, sample.value) == ({}, value)
        assert families[name].type == "gauge"
    curve = families["tailwatch_ttft_by_concurrency_seconds"].samples
    assert [(sample.labels, sample.value) for sample in curve] == [
        ({"streams": "1"}, 0.05),
        ({"streams": "17"}, 0.0625),
    ]
    assert not any(name.startswith("tailwatch_healthy") for name in parse(render(core, openmetrics=True), True))


@pytest.mark.parametrize("openmetrics", [False, True])
def test_types_are_what_the_parsers_expect(core: _hot.Core, openmetrics: bool) -> None:
    """Counters, gauges and histograms arrive as such in both formats, and the build as info in OpenMetrics."""
    families = parse(render(core, openmetrics=openmetrics), openmetrics)
    assert families["tailwatch_requests"].type == "counter"
    assert families["tailwatch_requests_in_flight"].type == "gauge"
    assert families["python_gc_duration_seconds"].type == "histogram"
    if openmetrics:
        assert families["tailwatch_build"].type == "info"
        assert families["tailwatch_memory_bytes"].unit == "bytes"


@pytest.mark.parametrize("openmetrics", [False, True])
def test_a_histogram_is_cumulative_and_ends_at_its_count(core: _hot.Core, openmetrics: bool) -> None:
    """Buckets never fall, +Inf equals _count, and _sum is the true sum to the last bit."""
    gaps = [40, 3, 7, 20, 1500, 90]
    run_stream(core, "m", "/v1", gaps)
    families = parse(render(core, openmetrics=openmetrics), openmetrics)
    name = "tailwatch_inter_token_latency_seconds"
    buckets = [(float(s.labels["le"]), s.value) for s in samples(families, name + "_bucket")]
    expected = [(le, sum(gap / 1e3 <= le for gap in gaps[1:])) for le, _ in buckets]
    assert buckets == expected
    assert buckets[-1] == (math.inf, next(samples(families, name + "_count")).value)
    assert next(samples(families, name + "_sum")).value == sum(gaps[1:]) * MS / 1e9


def test_values_agree_with_the_snapshot(core: _hot.Core) -> None:
    """What is exported is what tailwatch.snapshot() has."""
    for number in range(5):
        run_stream(core, f"m{number % 2}", "/v1", [10 + number, 5])
    snapshot = snapshots.take([core.address])
    families = parse(render(core, openmetrics=True), True)
    assert sum(s.value for s in samples(families, "tailwatch_requests_total")) == sum(snapshot.requests.values()) == 5
    assert next(samples(families, "tailwatch_requests_good_total")).value == snapshot.outcomes["good"] == 5
    assert sum(s.value for s in samples(families, "tailwatch_output_tokens_total")) == snapshot.tokens == 10
    ttft_sums = [s.value for s in samples(families, "tailwatch_time_to_first_token_seconds_sum")]
    assert sum(ttft_sums) == pytest.approx(snapshot.ttft.sum, rel=1e-12)
    assert next(samples(families, "tailwatch_requests_in_flight")).value == snapshot.in_flight == 0


def test_openmetrics_leaves_room_for_the_host(core: _hot.Core) -> None:
    """The closing # EOF is the caller's, so that the host's families can follow ours."""
    assert "# EOF" not in render(core, openmetrics=True)


hostile = st.text(
    alphabet=st.one_of(st.sampled_from('"\\\n{}=, #é\u2028\r'), st.characters(codec="utf-8")), max_size=60
)


@settings(max_examples=60, deadline=None)
@given(labels=st.lists(st.tuples(hostile, hostile), min_size=1, max_size=6), slo=hostile, openmetrics=st.booleans())
def test_no_label_value_breaks_the_text(
    core: _hot.Core, labels: list[tuple[str, str]], slo: str, openmetrics: bool
) -> None:
    """Any model, route and SLO text comes back from the parsers as the snapshot has it."""
    core.reset()
    for model, route in labels:
        run_stream(core, model, route, [4, 2])
    slo = slo.replace("\0", "")
    text = render(core, openmetrics=openmetrics, slo=slo)
    families = parse(text, openmetrics)
    seen = {(s.labels["model_name"], s.labels["route"]) for s in samples(families, "tailwatch_output_tokens_total")}
    assert seen == set(snapshots.take([core.address]).labels)
    assert next(samples(families, "tailwatch_requests_good_total")).labels["slo"] == slo
    assert sum(s.value for s in samples(families, "tailwatch_output_tokens_total")) == 2 * len(labels)


@settings(max_examples=30, deadline=None)
@given(model=hostile, slo=hostile)
def test_the_collectors_reader_agrees_with_the_parser(core: _hot.Core, model: str, slo: str) -> None:
    """The short reader behind Collector sees in our text what prometheus_client's own parser sees."""
    core.reset()
    run_stream(core, model, "/v1", [4, 2])
    text = render(core, openmetrics=True, slo=slo.replace("\0", ""))
    ours = {family.name: family for family in read_families(text)}
    theirs = parse(text, openmetrics=True)
    assert {name: family.samples for name, family in ours.items()} == {
        name: family.samples for name, family in theirs.items()
    }
    assert all(
        (ours[n].type, ours[n].unit, ours[n].documentation) == (f.type, f.unit, f.documentation)
        for n, f in theirs.items()
    )
