"""The OTLP encoder, read by the official protocol buffers, against what was recorded."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailwatch import _hot, snapshots
from tailwatch.export.otel.encode import Own, operation, otlp

pb = pytest.importorskip(
    "opentelemetry.proto.collector.metrics.v1.metrics_service_pb2", reason="pip install opentelemetry-proto"
)
from opentelemetry.proto.resource.v1.resource_pb2 import Resource  # noqa: E402

SLO = (2_000_000_000, 200_000_000, 0, 0, 990_000)
MS = 1_000_000
BILLION = 10**9
TTFT_BOUNDS = [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0]
TPOT_BOUNDS = [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5]
DURATION_BOUNDS = [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92]
LOWEST = -638  # index of the first bucket at scale 5


def core(served: bool = True) -> _hot.Core:
    return _hot.Core("api", 8, SLO, 0, lambda scope: "/", lambda awaitable, stream: awaitable, served)


def request(
    of: _hot.Core,
    gaps: list[int],
    *,
    ttft: int = 10 * MS,
    tail: int = 0,
    model: str = "m",
    route: str = "/v1/chat/completions",
    end: str = "close",
    status: int = 200,
) -> None:
    """One request in virtual time, an hour ago (or as the machine began): its tokens' gaps in ns, and how it ended."""
    at = max(1, time.monotonic_ns() - 3600 * BILLION)
    stream = of.stream(model, route, at, "", "")
    stream.status(status)
    at += ttft
    stream.token(at=at)
    for gap in gaps:
        at += gap
        stream.token(at=at)
    getattr(stream, end)(at=at + tail)


def encode(snapshot: snapshots.Snapshot, since: snapshots.Snapshot | None = None, **options: Any) -> bytes:
    facts: dict[str, Any] = {"version": "1.2", "provider": "p", "resource": b"", "start_ns": 5, "since_ns": 0}
    return otlp(snapshot, since, **{**facts, **options})


def decoded(request: bytes) -> Any:
    """The one ScopeMetrics; the bytes are those that protobuf itself would write."""
    message = pb.ExportMetricsServiceRequest.FromString(request)
    assert message.SerializeToString(deterministic=True) == request
    (resource,) = message.resource_metrics
    (scope,) = resource.scope_metrics
    return scope


def metrics(request: bytes) -> dict[str, Any]:
    return {metric.name: metric for metric in decoded(request).metrics}


def attributes(point: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in point.attributes}


def points(metric: Any) -> Any:
    return getattr(metric, metric.WhichOneof("data")).data_points


def index_at(value_ns: int, scale: int) -> int:
    """Exact: the i with 2^(i / 2^scale) < value <= 2^((i + 1) / 2^scale) seconds."""
    power = 2 ** max(scale, 0)
    left, right = value_ns**power, BILLION**power
    exponent = left.bit_length() - right.bit_length() - 2
    while left << max(-exponent, 0) > right << max(exponent, 0):
        exponent += 1
    return (exponent - 1) >> max(-scale, 0)


def exponential_of(values: list[int], scale: int) -> Counter[int]:
    """Buckets of what lies in the core's range."""
    return Counter(index_at(value, scale) for value in values if index_at(max(value, 1), 5) >= LOWEST)


def check_exponential(point: Any, values: list[int], most: int = 160) -> None:
    """A point has these values, exactly, in as fine buckets as there may be."""
    assert point.count == len(values)
    assert point.sum == pytest.approx(sum(values) / 1e9, rel=1e-15)
    expected = exponential_of(values, point.scale)
    assert point.zero_count == len(values) - sum(expected.values())
    assert {point.positive.offset + i: n for i, n in enumerate(point.positive.bucket_counts) if n} == expected
    assert len(point.positive.bucket_counts) <= most
    if point.scale < 5 and expected:
        finer = exponential_of(values, point.scale + 1)
        assert max(finer) - min(finer) + 1 > most, "it could have been finer"


def check_explicit(point: Any, values: list[int], bounds: list[float]) -> None:
    """A point has these values in the buckets of the conventions."""
    assert list(point.explicit_bounds) == bounds
    edges = [round(bound * 1e9) for bound in bounds]
    counts = [sum(edge >= value for value in values) for edge in edges]
    cumulative = [*counts, len(values)]
    assert list(point.bucket_counts) == [a - b for a, b in zip(cumulative, [0, *counts], strict=True)]
    assert point.count == len(values)
    assert point.sum == pytest.approx(sum(values) / 1e9, rel=1e-15)


def test_the_conventions_histograms_are_of_answered_requests_only() -> None:
    """TTFT and TPOT of failed requests are not exported; TPOT is (duration - TTFT) / (tokens - 1)."""
    one = core()
    request(one, [20 * MS, 40 * MS], ttft=30 * MS, tail=6 * MS)
    request(one, [20 * MS], ttft=90 * MS, end="fail")
    request(one, [], ttft=50 * MS)
    found = metrics(encode(snapshots.take([one.address])))
    (ttft,) = points(found["gen_ai.server.time_to_first_token"])
    check_exponential(ttft, [30 * MS, 50 * MS])
    (tpot,) = points(found["gen_ai.server.time_per_output_token"])
    check_exponential(tpot, [33 * MS])
    assert attributes(ttft) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "p",
        "gen_ai.response.model": "m",
        "http.route": "/v1/chat/completions",
    }
    assert (ttft.min, ttft.max) == (0.03, 0.05)


@pytest.mark.parametrize(
    ("end", "status", "error"),
    [
        ("fail", 200, "_OTHER"),
        ("close", 429, "429"),
        ("close", 503, "5xx"),
        ("timeout", 200, "timeout"),
        ("abort", 200, "cancelled"),
        ("close", 404, "4xx"),
    ],
)
def test_durations_of_failed_requests_have_their_error_type(end: str, status: int, error: str) -> None:
    """One point of the answered, one for each error.type, exact in exponential and explicit buckets."""
    one = core()
    lengths = [11 * MS, 20 * MS, 21 * MS, 10_240 * MS, 10_241 * MS, 3, 2_000_000 * MS]
    for length in lengths:
        request(one, [], ttft=1, tail=length - 1, end=end, status=status)
    request(one, [], ttft=5 * MS, tail=2 * MS)
    snapshot = snapshots.take([one.address])
    for exponential in (True, False):
        found = points(metrics(encode(snapshot, exponential=exponential))["gen_ai.server.request.duration"])
        by_error = {attributes(point).get("error.type"): point for point in found}
        assert set(by_error) == {None, error}
        point = by_error[error]
        if exponential:
            inside = [length for length in lengths if length < 2_000_000 * MS]
            assert point.count == len(lengths) and point.scale == 1 and point.zero_count == 1
            rows = {point.positive.offset + i: n for i, n in enumerate(point.positive.bucket_counts) if n}
            above = max(rows)
            assert rows.pop(above) == 1 and above == (319 >> 4)
            assert rows == exponential_of(inside, 1)
        else:
            check_explicit(point, lengths, DURATION_BOUNDS)
        assert (point.min, point.max) == (3e-9, 2000.0)


def test_explicit_buckets_are_those_of_the_conventions() -> None:
    """On request; a value on a bound belongs below it."""
    one = core()
    ttfts = [1 * MS, 1 * MS + 1, 250 * MS, 9 * BILLION, 11 * BILLION]
    for ttft in ttfts:
        request(one, [25 * MS, 3 * MS], ttft=ttft)
    found = metrics(encode(snapshots.take([one.address]), exponential=False))
    check_explicit(points(found["gen_ai.server.time_to_first_token"])[0], ttfts, TTFT_BOUNDS)
    check_explicit(points(found["gen_ai.server.time_per_output_token"])[0], [14 * MS] * 5, TPOT_BOUNDS)
    duration = points(found["gen_ai.server.request.duration"])[0]
    check_explicit(duration, [ttft + 28 * MS for ttft in ttfts], DURATION_BOUNDS)
    gaps = points(found["gen_ai.server.inter_token_latency"])[0]
    check_explicit(gaps, [25 * MS, 3 * MS] * 5, list(gaps.explicit_bounds))
    assert gaps.explicit_bounds[0] == 0.0005


@given(
    gaps=st.lists(st.integers(0, 10**13), min_size=1, max_size=60),
    most=st.integers(2, 1000),
)
def test_downscaling_is_exact(gaps: list[int], most: int) -> None:
    """Whatever the values and the room, the buckets are those of the values at that scale."""
    one = core()
    inside = [gap for gap in gaps if gap < 1000 * BILLION]
    request(one, inside)
    found = metrics(encode(snapshots.take([one.address]), max_buckets=most))
    if inside:
        check_exponential(points(found["gen_ai.server.inter_token_latency"])[0], inside, most)
    else:
        assert "gen_ai.server.inter_token_latency" not in found


@given(
    rounds=st.lists(
        st.lists(st.tuples(st.sampled_from("abc"), st.lists(st.integers(1, 10**10), max_size=8)), max_size=5),
        min_size=1,
        max_size=4,
    )
)
def test_differences_add_up_to_the_totals(rounds: list[list[tuple[str, list[int]]]]) -> None:
    """Delta rounds of any requests sum to what one cumulative round has: counts, sums, buckets, counters."""
    one = core()
    rows: Counter[Any] = Counter()
    before = None
    for requests in rounds:
        for model, gaps in requests:
            request(one, gaps, model=model)
        now = snapshots.take([one.address])
        add_up(
            rows, metrics(encode(now, before, delta_histograms=True, delta_sums=True, exponential=False)), delta=True
        )
        before = now
    total: Counter[Any] = Counter()
    add_up(total, metrics(encode(snapshots.take([one.address]), exponential=False)), delta=False)
    assert set(+rows) == set(+total)
    assert +rows == pytest.approx(dict(+total), rel=1e-12)


def add_up(sums: Counter[Any], found: Mapping[str, Any], *, delta: bool) -> None:
    """Each number of histograms and counters by its name and attributes."""
    for name, metric in found.items():
        kind = metric.WhichOneof("data")
        if kind == "gauge" or (not getattr(metric.sum, "is_monotonic", True) and kind == "sum"):
            continue
        assert getattr(metric, kind).aggregation_temporality == (1 if delta else 2), name
        for point in points(metric):
            key = (name, tuple(sorted(attributes(point).items())))
            if kind == "sum":
                sums[(*key, "value")] += getattr(point, point.WhichOneof("value"))
                continue
            sums[(*key, "count")] += point.count
            sums[(*key, "sum")] += point.sum
            assert point.HasField("min") is not delta
            for i, count in enumerate(point.bucket_counts):
                if count:
                    sums[(*key, i)] += count


@given(model=st.text(max_size=200), route=st.text(max_size=200), provider=st.text(max_size=50))
def test_any_name_is_readable(model: str, route: str, provider: str) -> None:
    """Quotes, newlines, surrogates, other alphabets: protobuf, which refuses what is no UTF-8, reads them."""
    one = core()
    request(one, [MS], model=model, route=route)
    (series,) = [each for each in snapshots.take([one.address]).labels]
    found = metrics(encode(snapshots.take([one.address]), provider=provider))
    rows = attributes(points(found["gen_ai.server.inter_token_latency"])[0])
    assert rows["http.route"] == series[1]
    assert rows.get("gen_ai.response.model", "unknown") == series[0]
    assert rows["gen_ai.provider.name"] == provider.split("\0")[0].encode("utf-8", "replace").decode()


def test_bytes_that_are_no_text_become_question_marks() -> None:
    """A segment that another process has written may hold anything."""
    import ctypes

    one = core()
    request(one, [MS], model="sentinel-model")
    memory = (ctypes.c_char * one.bytes).from_address(one.address)
    at = memory.raw.index(b"sentinel-model")
    memory[at : at + 8] = b"\xff\xc3(\xed\xa0\x80ok"
    found = metrics(encode(snapshots.take([one.address])))
    assert attributes(points(found["tailwatch.output_tokens"])[0])["gen_ai.response.model"] == "??(???ok-model"


@pytest.mark.parametrize(
    ("route", "expected"),
    [
        ("/v1/chat/completions", "chat"),
        ("/v1/messages", "chat"),
        ("/v1/responses", "chat"),
        ("/api/chat", "chat"),
        ("/v1/completions", "text_completion"),
        ("/generate", "text_completion"),
        ("/v1/embeddings", "embeddings"),
        ("/v1beta/models/{model}:generateContent", "generate_content"),
        ("stream", "generate_content"),
        ("", "generate_content"),
    ],
)
def test_operations_of_routes(route: str, expected: str) -> None:
    """gen_ai.operation.name is read off the route."""
    assert operation(route) == expected


def test_without_what_otlp_needs_nothing_is_made_up() -> None:
    """A process that does not keep the answered requests apart exports no TTFT, and no failed durations."""
    one = core(served=False)
    request(one, [MS])
    request(one, [MS], end="fail")
    found = metrics(encode(snapshots.take([one.address])))
    assert not {"gen_ai.server.time_to_first_token", "gen_ai.server.time_per_output_token"} & set(found)
    assert len(points(found["gen_ai.server.request.duration"])) == 1
    assert points(found["gen_ai.server.inter_token_latency"])[0].count == 2


def test_scope_resource_and_times() -> None:
    """They are those that were given; a difference begins where the last one ended."""
    resource = Resource()
    resource.attributes.add(key="service.name").value.string_value = "s"
    one = core()
    request(one, [MS])
    now = snapshots.take([one.address])
    request_bytes = encode(
        now, resource=resource.SerializeToString(), schema_url="u", since_ns=77, delta_histograms=True
    )
    (found,) = pb.ExportMetricsServiceRequest.FromString(request_bytes).resource_metrics
    assert found.resource == resource and found.schema_url == "u"
    assert (found.scope_metrics[0].scope.name, found.scope_metrics[0].scope.version) == ("tailwatch", "1.2")
    named = metrics(request_bytes)
    gaps = named["gen_ai.server.inter_token_latency"]
    tokens = named["tailwatch.output_tokens"]
    assert gaps.exponential_histogram.aggregation_temporality == 1 and tokens.sum.aggregation_temporality == 2
    assert points(gaps)[0].start_time_unix_nano == 77 and points(tokens)[0].start_time_unix_nano == 5
    assert points(gaps)[0].time_unix_nano == now.taken_ns


def test_what_the_exporter_did_is_exported() -> None:
    """Rounds, spans and the longest hold; counters as differences where asked."""
    one = core()
    now = snapshots.take([one.address])
    own = Own(exported=7, failed=3, skipped=0, spans=5, spans_dropped=2, span_events_dropped=1, hold_ns=4 * MS)
    found = metrics(encode(now, own=own))
    rows = {attributes(point)["tailwatch.outcome"]: point.as_int for point in points(found["tailwatch.otel.exports"])}
    assert rows == {"exported": 7, "failed": 3}
    assert points(found["tailwatch.otel.longest_hold"])[0].as_double == 0.004
    spans = {attributes(point)["tailwatch.outcome"]: point.as_int for point in points(found["tailwatch.otel.spans"])}
    assert spans == {"made": 5, "dropped": 2, "event_dropped": 1}
    later = metrics(encode(now, own=own, own_since=Own(exported=5, failed=3), delta_sums=True))
    (rounds,) = points(later["tailwatch.otel.exports"])
    assert rounds.as_int == 2


def pauses() -> Iterator[tuple[str, int]]:
    yield from (("gc0", 0), ("gc1", 1), ("gc2", 2))


def test_pauses_by_cause_and_process() -> None:
    """cpython.gc.* are of each process by generation; a pass of our own is no collection."""
    one = core()
    one.policy_begin()
    time.sleep(0.001)
    one.policy_end()
    one.watch_gc(0, [], lambda *_: None)
    for generation in (0, 2, 2):
        one.gc_first("start", {"generation": generation, "collected": 0, "uncollectable": 0})
        one.gc_last("stop", {"generation": generation, "collected": 3, "uncollectable": 0})
    snapshot = snapshots.take([one.address])
    found = metrics(encode(snapshot))
    durations = {attributes(point)["tailwatch.cause"]: point for point in points(found["cpython.gc.duration"])}
    counts = {cause: count for cause, count in snapshot.gc.collections.items() if count and cause != "gc_own"}
    assert {cause: point.count for cause, point in durations.items()} == counts and counts
    for cause, generation in pauses():
        if cause in durations:
            rows = attributes(durations[cause])
            assert rows == {
                "tailwatch.process": "api-0",
                "tailwatch.cause": cause,
                "cpython.gc.generation": generation,
            }
    (policy,) = points(found["tailwatch.gc.own_pause.duration"])
    assert policy.count == 1 and policy.sum >= 0.001
    assert sum(point.as_int for point in points(found["cpython.gc.collections"])) == sum(counts.values())


def test_the_policy_of_each_process_is_exported() -> None:
    """What it is, what it counted, and how large the heap is; what was not counted is not there."""
    one = core()
    kinds, modes = snapshots.POLICIES, snapshots.POLICY_MODES
    one.policy_is(kinds.index("idle"), modes.index("full collections"), snapshots.POLICY_WHYS.index("lists"))
    one.count_full_collection(snapshots.SLICE_REASONS.index("memory_limit"), 2_500_000_000, 70)
    one.count_interference(snapshots.INTERFERENCES.index("set_threshold"))
    one.count_memory_limit(snapshots.MEMORY_LIMITS.index("rss"))
    found = metrics(encode(snapshots.take([one.address])))
    (policy,) = points(found["tailwatch.gc.policy.info"])
    rows = {"tailwatch.process": "api-0", "tailwatch.policy": "idle", "tailwatch.mode": "full collections"}
    assert attributes(policy) == {**rows, "tailwatch.reason": "lists"}
    for name, key, value in (
        ("collections", "reason", "memory_limit"),
        ("interference", "call", "set_threshold"),
        ("memory_limit", "limit", "rss"),
    ):
        (point,) = points(found[f"tailwatch.gc.{name}"])
        assert (point.as_int, attributes(point)) == (1, {"tailwatch.process": "api-0", f"tailwatch.{key}": value})
    assert [point.as_double for point in points(found["tailwatch.gc.idle.full_time"])] == [2.5]
    assert [point.as_int for point in points(found["tailwatch.gc.idle.full_freed_objects"])] == [70]
    assert "tailwatch.gc.idle.slices" not in found and "tailwatch.gc.unfrozen_objects" not in found


def test_exemplars_lead_to_the_trace() -> None:
    """At gaps and durations; of a difference those since; another trace id than W3C's has no bytes."""
    one = core()
    one.exemplify(True, None)
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    for trace_id in (trace, "not-a-trace-id"):
        at = time.monotonic_ns() - 10 * BILLION
        stream = one.stream(trace_id[:5], "/v1/chat/completions", at, "", trace_id)
        stream.token(at=at + 5 * MS)
        stream.token(at=at + 2005 * MS)
        stream.close(at=at + 2010 * MS)
    now = snapshots.take([one.address])
    for exponential in (True, False):
        found = metrics(encode(now, exponential=exponential))
        for name, value in (("inter_token_latency", 2.0), ("request.duration", 2.01)):
            rows = {
                attributes(point)["gen_ai.response.model"]: point for point in points(found[f"gen_ai.server.{name}"])
            }
            (exemplar,) = rows["4bf92"].exemplars
            assert (exemplar.trace_id.hex(), exemplar.as_double, exemplar.span_id) == (trace, value, b"")
            assert abs(exemplar.time_unix_nano - (time.time_ns() - 8 * BILLION)) < BILLION
            assert not rows["not-a"].exemplars
        assert not points(found["gen_ai.server.time_to_first_token"])[0].exemplars
    request(one, [MS], model="4bf92")
    later = metrics(encode(snapshots.take([one.address]), now, since_ns=now.taken_ns, delta_histograms=True))
    assert not points(later["gen_ai.server.inter_token_latency"])[0].exemplars
