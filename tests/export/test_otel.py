"""OTLP from a live process to real collectors, through the official exporters: what arrives is what snapshot() has."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

import tailwatch
from tailwatch import snapshots
from tailwatch.export.otel import asked_for
from tailwatch.export.otel import exporter as otel_module
from tailwatch.export.otel.encode import Own, otlp
from tailwatch.export.otel.exporter import OTel
from tailwatch.export.otel.push import Origin, Push
from tailwatch.export.otel.transport import Sender

from ..support.otlp_collector import DEADLINE_SECONDS, REASON, Collector, HTTPCollector, running
from ..support.process import Python
from ..support.waiting import until

pytestmark = pytest.mark.integration

sdk = pytest.importorskip("opentelemetry.sdk.metrics.export", reason=REASON)
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GRPCExporter  # noqa: E402
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HTTPExporter  # noqa: E402
from opentelemetry.sdk.metrics import Histogram, MeterProvider, ObservableCounter  # noqa: E402
from opentelemetry.sdk.resources import Resource  # noqa: E402

EXPORTERS = {"http/protobuf": HTTPExporter, "grpc": GRPCExporter}
DELTA = sdk.AggregationTemporality.DELTA


@pytest.fixture(autouse=True)
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever other tests have imported: the provider is no engine's."""
    for name in otel_module._ENGINES:
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No variable of the machine's; nothing installed afterwards, and no thread of ours left."""
    for name in [name for name in os.environ if name.startswith(("OTEL_", "TAILWATCH_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "60")
    yield
    tailwatch.uninstall()
    until(
        lambda: not [each for each in threading.enumerate() if each.name.startswith("tailwatch-")],
        "a thread of ours goes on",
    )


@pytest.fixture(params=["http/protobuf", "grpc"])
def protocol(request: pytest.FixtureRequest) -> str:
    """Both of them."""
    return str(request.param)


@pytest.fixture
def collector(protocol: str) -> Iterator[Collector]:
    """One for that protocol."""
    yield from running(protocol)


@pytest.fixture
def http() -> Iterator[HTTPCollector]:
    """One over HTTP."""
    yield from running("http/protobuf")


def load(n: int = 3, model: str = "m") -> None:
    """Requests in virtual time: some answered, one failed."""
    for i in range(n):
        at = time.monotonic_ns() - 10**10
        with tailwatch.stream(model=model, route="/v1/chat/completions", arrival=at) as stream:
            for k in range(5):
                stream.token(at=at + (k + 1) * (7 + i) * 1_000_000)
            (stream.fail if i == 1 else stream.close)(at=at + 60_000_000)


def attributes(point: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in point.attributes}


def points(metric: Any) -> Any:
    return getattr(metric, metric.WhichOneof("data")).data_points


def numbers(metric: Any) -> list[Any]:
    """All that a metric's points hold, without the times."""
    taken = []
    for point in points(metric):
        if hasattr(point, "as_int"):
            value: Any = getattr(point, point.WhichOneof("value"))
        elif hasattr(point, "positive"):
            value = (point.count, point.sum, point.scale, point.positive.offset, list(point.positive.bucket_counts))
        else:
            value = (point.count, point.sum, list(point.bucket_counts))
        taken.append((sorted(attributes(point).items()), value))
    return sorted(taken, key=repr)


VOLATILE = {
    *("tailwatch.otel.exports", "tailwatch.otel.longest_hold", "tailwatch.goodput", "tailwatch.throughput"),
    *("tailwatch.build.info", "tailwatch.memory", "tailwatch.requests_good"),  # of what is exported beside the snapshot
}


def of_snapshot(snapshot: snapshots.Snapshot, **options: Any) -> dict[str, Any]:
    """What the encoder makes of it, as in test_otlp.py; here it is compared with what arrived."""
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    facts = {"version": "v", "provider": "self_hosted", "resource": b"", "start_ns": 1}
    message = ExportMetricsServiceRequest.FromString(otlp(snapshot, **facts, **options))
    return {metric.name: metric for metric in message.resource_metrics[0].scope_metrics[0].metrics}


def check_equal(found: dict[str, Any], snapshot: snapshots.Snapshot, **options: Any) -> None:
    """Counts, sums and buckets of every metric; and against the snapshot's own numbers, by hand."""
    expected = of_snapshot(snapshot, **options)
    pauses = ("cpython.gc", "tailwatch.gc.", "tailwatch.policy")  # a collection may come between the two
    stable = {name for name in expected if name not in VOLATILE and not name.startswith(pauses)}
    assert stable <= set(found)
    for name in stable:
        assert numbers(found[name]) == numbers(expected[name]), name
    gaps = points(found["gen_ai.server.inter_token_latency"])
    assert sum(point.count for point in gaps) == snapshot.itl.count
    assert sum(point.sum for point in gaps) == pytest.approx(snapshot.itl.sum)
    outcomes = dict.fromkeys(snapshots.OUTCOMES, 0)
    for point in points(found["tailwatch.requests"]):
        outcomes[attributes(point)["tailwatch.outcome"]] += point.as_int
    assert outcomes == snapshot.outcomes
    answered = sum(point.count for point in points(found["gen_ai.server.time_to_first_token"]))
    assert answered == snapshot.e2e.count < snapshot.ttft.count


def last_round(collector: Collector) -> tuple[Any, dict[str, Any]]:
    """The first round that begins from now on."""
    before = len(collector.scopes())
    return until(lambda: (all_ := collector.scopes())[before + 1 :] and all_[-1], "no round came")  # type: ignore[no-any-return]


def variables(monkeypatch: pytest.MonkeyPatch, collector: Collector, protocol: str, **more: str) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
    for name, value in more.items():
        monkeypatch.setenv(name, value)


def test_the_standard_variables_alone(monkeypatch: pytest.MonkeyPatch, collector: Collector, protocol: str) -> None:
    """Endpoint, headers, compression and resource are the user's; what arrives equals the snapshot."""
    variables(
        monkeypatch,
        collector,
        protocol,
        OTEL_EXPORTER_OTLP_HEADERS="x-team=ours",
        OTEL_EXPORTER_OTLP_COMPRESSION="gzip",
        OTEL_SERVICE_NAME="svc",
        OTEL_RESOURCE_ATTRIBUTES="gen_ai.provider.name=acme,zone=b",
    )
    watch = tailwatch.install(role="worker", gc="observe")
    load()
    resource, found = last_round(collector)
    named = {pair.key: pair.value.string_value for pair in resource.resource.attributes}
    assert named["service.name"] == "svc" and named["zone"] == "b"
    assert attributes(points(found["tailwatch.output_tokens"])[0])["gen_ai.provider.name"] == "acme"
    assert collector.headers[-1]["x-team"] == "ours"
    expected = watch.snapshot()
    assert sum(point.count for point in points(found["gen_ai.server.inter_token_latency"])) == expected.itl.count
    assert watch.otel is not None and all(push.sender is not None and push.sender.fast for push in watch.otel._pushes)


@pytest.mark.parametrize("explicit", [False, True])
def test_what_arrives_is_the_snapshot(
    monkeypatch: pytest.MonkeyPatch, collector: Collector, protocol: str, explicit: bool
) -> None:
    """Both protocols, exponential and explicit: every count, sum and bucket."""
    aggregation = "explicit_bucket_histogram" if explicit else "base2_exponential_bucket_histogram"
    variables(monkeypatch, collector, protocol, OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION=aggregation)
    watch = tailwatch.install(role="worker", gc="observe", otel=True)
    load(5)
    _, found = last_round(collector)
    check_equal(found, watch.snapshot(), exponential=not explicit)


def test_start_times_stay_and_times_go_on(monkeypatch: pytest.MonkeyPatch, http: HTTPCollector) -> None:
    """Cumulative points have one start, whatever the wall clock does, and it is when counting began."""
    variables(monkeypatch, http, "http/protobuf")
    before = time.time_ns()
    tailwatch.install(role="worker", gc="observe")
    after = time.time_ns()
    load()
    until(lambda: len(http.scopes()) >= 3, "three rounds")
    gaps = [points(found["gen_ai.server.inter_token_latency"])[0] for _, found in http.scopes()[1:]]
    starts = {point.start_time_unix_nano for point in gaps}
    assert len(starts) == 1 and before - 5_000_000 <= starts.pop() <= after + 5_000_000
    times = [point.time_unix_nano for point in gaps]
    assert times == sorted(times) and len(set(times)) == len(times)


def test_two_exporters_with_different_temporality(monkeypatch: pytest.MonkeyPatch, http: HTTPCollector) -> None:
    """One gets totals, the other differences that add up to them; over a refusal in between, too."""
    totals = HTTPCollector().start()
    try:
        exporters = (
            HTTPExporter(endpoint=f"{totals.endpoint}/v1/metrics"),
            HTTPExporter(
                endpoint=f"{http.endpoint}/v1/metrics",
                preferred_temporality={Histogram: DELTA, ObservableCounter: DELTA},
            ),
        )
        watch = tailwatch.install(role="worker", gc="observe", otel=exporters)
        for i in range(4):
            http.status = 400 if i == 2 else 200
            refused = http.refused
            load(i + 1)
            until(lambda refused=refused: http.refused > refused or http.status == 200, "a refusal")
            if i != 2:
                last_round(http)
        _, total = last_round(totals)
        snapshot = watch.snapshot()
        taken = [found for _, found in http.scopes()]
        gaps = [point for found in taken for point in points(found.get("gen_ai.server.inter_token_latency", EMPTY))]
        assert sum(point.count for point in gaps) == snapshot.itl.count == 4 * (1 + 2 + 3 + 4)
        assert sum(point.sum for point in gaps) == pytest.approx(snapshot.itl.sum)
        tokens = [point.as_int for found in taken for point in points(found.get("tailwatch.output_tokens", EMPTY_SUM))]
        assert sum(tokens) == snapshot.tokens
        assert sum(point.count for point in points(total["gen_ai.server.inter_token_latency"])) == snapshot.itl.count
        ends = [point.time_unix_nano for point in gaps]
        starts = [point.start_time_unix_nano for point in gaps]
        assert all(end <= start for end, start in zip(ends, starts[1:], strict=False)), "intervals overlap"
        assert watch.snapshot().drops["export"] >= 1
    finally:
        tailwatch.uninstall()
        totals.stop()


class _Empty:
    """A metric without points."""

    data_points: tuple[Any, ...] = ()

    def __init__(self, kind: str) -> None:
        setattr(self, kind, self)
        self._kind = kind

    def WhichOneof(self, _: str) -> str:
        return self._kind


EMPTY, EMPTY_SUM = _Empty("exponential_histogram"), _Empty("sum")


class OwnExporter(sdk.MetricExporter):  # type: ignore[misc, name-defined]
    """An exporter of the user's: it keeps what it is given."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.given: list[Any] = []
        self.result = sdk.MetricExportResult.SUCCESS
        self.hang: threading.Event | None = None

    def export(self, metrics_data: Any, timeout_millis: float = 10_000, **_: Any) -> Any:
        if self.hang is not None:
            self.hang.wait(DEADLINE_SECONDS)
        self.given.append(metrics_data)
        return self.result

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return True

    def shutdown(self, timeout_millis: float = 30_000, **_: Any) -> None:
        raise AssertionError("it is not ours to shut down")


@pytest.mark.parametrize("delta", [False, True])
def test_an_exporter_of_the_users_is_given_objects(delta: bool) -> None:
    """Metric by metric, or at once where they are differences; the official encoder agrees with our bytes."""
    from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics

    preferred = {Histogram: DELTA, ObservableCounter: DELTA} if delta else None
    exporter = OwnExporter(preferred_temporality=preferred)
    watch = tailwatch.install(role="worker", gc="observe", otel=exporter)
    load()
    until(lambda: len(exporter.given) > (3 if delta else 60), "objects came")
    tailwatch.uninstall()
    taken: dict[str, list[Any]] = {}
    for given in exporter.given:
        (resource,) = encode_metrics(given).resource_metrics
        (scope,) = resource.scope_metrics
        assert len(scope.metrics) > 1 if delta else len(scope.metrics) == 1
        for metric in scope.metrics:
            taken.setdefault(metric.name, []).append(metric)
    snapshot = watch.snapshot()
    gaps = [sum(point.count for point in points(metric)) for metric in taken["gen_ai.server.inter_token_latency"]]
    assert (sum(gaps) if delta else gaps[-1]) == snapshot.itl.count == 12
    if not delta:
        expected = of_snapshot(snapshot)
        for name in ("gen_ai.server.inter_token_latency", "gen_ai.server.request.duration", "tailwatch.requests"):
            assert numbers(taken[name][-1]) == numbers(expected[name])
        holds = [points(metric)[0].as_double for metric in taken["tailwatch.otel.longest_hold"]]
        assert holds == sorted(holds) and holds[-1] > 0
    assert any("takes no encoded bytes" in note for note in watch.notes)


def test_the_apps_meter_provider(monkeypatch: pytest.MonkeyPatch, http: HTTPCollector) -> None:
    """Its exporter carries our bytes, with its resource; it is not shut down with us."""
    exporter = HTTPExporter(endpoint=f"{http.endpoint}/v1/metrics")
    reader = sdk.PeriodicExportingMetricReader(exporter, export_interval_millis=1e9)
    provider = MeterProvider([reader], resource=Resource({"service.name": "theirs"}), shutdown_on_exit=False)
    try:
        watch = tailwatch.install(role="worker", gc="observe", otel=provider)
        load()
        resource, found = last_round(http)
        assert {p.key: p.value.string_value for p in resource.resource.attributes}["service.name"] == "theirs"
        check_equal(found, watch.snapshot())
        tailwatch.uninstall()
        assert not exporter._shutdown
    finally:
        provider.shutdown()


@pytest.mark.parametrize(
    ("environment", "option", "expected"),
    [
        ({}, None, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, None, True),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://c:4318"}, None, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318"}, None, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": " "}, None, False),
        ({"OTEL_METRICS_EXPORTER": "otlp"}, None, True),
        ({"OTEL_METRICS_EXPORTER": "console, OTLP"}, None, True),
        ({"OTEL_METRICS_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, None, False),
        ({"OTEL_METRICS_EXPORTER": "prometheus", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, None, False),
        ({"OTEL_METRICS_EXPORTER": "otlp", "OTEL_SDK_DISABLED": "true"}, None, False),
        ({"OTEL_SDK_DISABLED": "TRUE"}, True, False),
        ({"OTEL_METRICS_EXPORTER": "otlp"}, False, False),
        ({}, True, True),
        ({"OTEL_METRICS_EXPORTER": "none"}, True, True),
    ],
)
def test_when_it_is_on(environment: dict[str, str], option: object, expected: bool) -> None:
    """The option decides; without it the variables; OTEL_SDK_DISABLED always."""
    assert asked_for(option, environment) is expected


def test_an_unknown_protocol_is_an_error_only_where_it_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """install(otel=True) refuses it; the OTEL_* variables alone leave a note for the doctor."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")
    with pytest.raises(tailwatch.OptionError, match="http/json"):
        tailwatch.install(role="worker", gc="observe", otel=True)
    watch = tailwatch.install(role="worker", gc="observe")
    assert watch.otel is None and any("http/json" in note for note in watch.notes)


def test_a_bad_option_is_refused() -> None:
    """What is no exporter."""
    with pytest.raises(tailwatch.OptionError, match="MetricExporter"):
        tailwatch.install(role="worker", gc="observe", otel=7)


def test_a_receiver_that_is_down_costs_nothing_but_resolution(http: HTTPCollector) -> None:
    """Rounds of an hour fail: nothing is kept of them but a counter; the first that is taken has all of it."""
    exporter = OwnExporter(preferred_temporality={Histogram: DELTA, ObservableCounter: DELTA})
    exporter.result = sdk.MetricExportResult.FAILURE
    watch = tailwatch.install(role="worker", gc="observe")
    missed: list[int] = []
    push = Push(
        lambda: Sender(exporter, Resource.get_empty),
        watch.snapshot,
        lambda: otel_module.Facts("v", "p", b""),
        missed=lambda: missed.append(1),
    )
    load(1)
    push.round()
    for _ in range(59):
        push.round()
    assert len(missed) == push.failed == 60 and push.exported == 0 and push._before is None
    exporter.given.clear()
    exporter.result = sdk.MetricExportResult.SUCCESS
    load(2)
    push.round()
    push.round()
    by_round = [
        {metric.name: metric for metric in given.resource_metrics[0].scope_metrics[0].metrics}
        for given in exporter.given
    ]
    first = by_round[0]["gen_ai.server.inter_token_latency"].data.data_points
    assert sum(point.count for point in first) == 12
    assert "gen_ai.server.inter_token_latency" not in by_round[1]
    taken = {p.attributes["tailwatch.outcome"]: p.value for p in by_round[0]["tailwatch.otel.exports"].data.data_points}
    assert taken == {"failed": 60}


def test_an_exporter_that_hangs_stops_no_other(http: HTTPCollector, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one goes on, the rounds left out are counted, and uninstall() waits for a bounded time and reports
    it."""
    hanging = OwnExporter()
    hanging.hang = threading.Event()
    try:
        watch = tailwatch.install(
            role="worker", gc="observe", otel=[hanging, HTTPExporter(endpoint=f"{http.endpoint}/v1/metrics")]
        )
        load()
        last_round(http)
        until(lambda: watch.snapshot().drops["export"] > 0, "a round left out is counted")
        monkeypatch.setattr(otel_module, "FLUSH_SECONDS", 0.2)
        report = tailwatch.uninstall()
        assert hanging.given == [], "it has not returned yet"
        assert any("did not return" in sentence for sentence in report)
    finally:
        hanging.hang.set()


def test_uninstall_sends_the_last_numbers(monkeypatch: pytest.MonkeyPatch, http: HTTPCollector) -> None:
    """What came after the last round is sent before the thread ends."""
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "3600000")
    variables(monkeypatch, http, "http/protobuf")
    watch = tailwatch.install(role="worker", gc="observe")
    assert watch.otel is not None
    load()
    until(lambda: watch.otel is not None and watch.otel._pushes, "the thread has begun")
    load()
    assert tailwatch.uninstall() == []
    ((_, found),) = http.scopes()
    assert sum(point.count for point in points(found["gen_ai.server.inter_token_latency"])) == 24


WORKER = """
import json, os, sys, time
import tailwatch
watch = tailwatch.install(role="worker", gc="observe")
at = time.monotonic_ns() - 10**10
with tailwatch.stream(model="m", route="/generate", arrival=at) as stream:
    for k in range(int(sys.argv[1])):
        stream.token(at=at + (k + 1) * 1_000_000)
    stream.close(at=at + 10**9)
if len(sys.argv) > 2:
    if os.fork() == 0:
        with tailwatch.stream(model="forked", route="/generate") as stream:
            stream.token(3)
        sys.stdin.readline()
        os._exit(0)
print(json.dumps([watch.membership.joined, watch.notes]), flush=True)
sys.stdin.readline()
"""


def worker(environment: dict[str, str], *arguments: str) -> Python:
    return Python(WORKER, *arguments, env={**os.environ, **environment})


def gaps_exported(found: dict[str, Any]) -> int:
    return sum(point.count for point in points(found.get("gen_ai.server.inter_token_latency", EMPTY)))


def instance(resource: Any, key: str = "service.instance.id") -> str:
    return next((p.value.string_value for p in resource.resource.attributes if p.key == key), "")


def service(resource: Any) -> str:
    return instance(resource, "service.name")


@pytest.mark.skipif(sys.platform != "linux", reason="groups are files under /dev/shm")
def test_one_process_of_a_group_exports_for_all(http: HTTPCollector) -> None:
    """And the next one when it is killed: under the same instance, with the totals of the dead, from the same start."""
    directory = f"/dev/shm/tailwatch-otel-{os.getpid()}-{time.monotonic_ns()}"
    environment = {
        "TAILWATCH_DIR": directory,
        "OTEL_EXPORTER_OTLP_ENDPOINT": http.endpoint,
        "OTEL_METRIC_EXPORT_INTERVAL": "100",
    }
    workers = [worker({**environment, "OTEL_SERVICE_NAME": name}, tokens) for name, tokens in (("a", "5"), ("b", "9"))]
    try:
        for each in workers:
            joined, notes = each.read()
            assert joined, notes
        until(lambda: http.scopes() and gaps_exported(http.scopes()[-1][1]) == 12, "all gaps are exported by one")
        rounds = http.scopes()
        assert len({instance(resource) for resource, _ in rounds}) == 1 and instance(rounds[0][0])
        leaders = {service(resource) for resource, _ in rounds}
        assert len(leaders) == 1
        (leader,) = leaders
        workers["ab".index(leader)].kill()
        before = len(http.scopes())
        until(lambda: len(http.scopes()) > before + 12, "the other goes on to")
        after = http.scopes()[before + 5 :]
        assert {service(resource) for resource, _ in after} == {"ab".replace(leader, "")}
        assert {gaps_exported(found) for _, found in after} == {12}
        assert {instance(resource) for resource, _ in after} == {instance(rounds[0][0])}
        starts = {
            points(found["gen_ai.server.inter_token_latency"])[0].start_time_unix_nano
            for _, found in [*rounds[-1:], *after]
        }
        assert max(starts) - min(starts) < 50_000_000, "the start of the group's oldest"
        assert points(after[-1][1]["gen_ai.server.time_to_first_token"])[0].count == 2
    finally:
        for each in workers:
            each.kill()
        shutil.rmtree(directory, ignore_errors=True)


def test_a_fork_child_counts_from_zero_with_a_start_of_its_own(http: HTTPCollector) -> None:
    """Without a group: the parent's requests are not exported twice."""
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": http.endpoint, "OTEL_METRIC_EXPORT_INTERVAL": "100"}
    with worker(environment, "5", "fork") as process:
        process.read()

        def models() -> dict[str, set[int]]:
            found: dict[str, set[int]] = {}
            for _, metrics in http.scopes():
                for point in points(metrics.get("tailwatch.output_tokens", EMPTY_SUM)):
                    found.setdefault(attributes(point)["gen_ai.response.model"], set()).add(point.as_int)
            return found

        until(lambda: set(models()) == {"m", "forked"}, "both export their own")
        assert models() == {"m": {5}, "forked": {3}}
        both = [found for _, found in http.scopes() if len(points(found.get("tailwatch.output_tokens", EMPTY_SUM))) > 1]
        assert not both


def test_the_start_is_kept_when_the_wall_clock_is_set() -> None:
    """It moves with the numbers' own origin only."""

    class Fake:
        def __init__(self, began: int, taken: int, unix: int) -> None:
            self.origin, self.taken_ns = (began, taken), unix

    origin = Origin()
    assert origin.of(Fake(10**12, 11 * 10**11, 5 * 10**18)) == 5 * 10**18 - 10**11  # type: ignore[arg-type]
    assert origin.of(Fake(10**12, 12 * 10**11, 6 * 10**18)) == 5 * 10**18 - 10**11  # type: ignore[arg-type]
    assert origin.of(Fake(13 * 10**11, 14 * 10**11, 7 * 10**18)) == 7 * 10**18 - 10**11  # type: ignore[arg-type]


async def _generate(request: Request) -> StreamingResponse:
    async def frames() -> Any:
        for i in range(5):
            await asyncio.sleep(0)
            yield b'data: {"model":"x","choices":[{"index":0,"delta":{"content":"a%d"}}]}\n\n' % i
        yield b"data: [DONE]\n\n"

    return StreamingResponse(frames(), media_type="text/event-stream")


def test_several_apps_of_one_process_are_one_stream_of_metrics(
    http: HTTPCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both apps' requests are sent once, by one exporter."""
    from starlette.testclient import TestClient

    variables(monkeypatch, http, "http/protobuf", OTEL_TRACES_EXPORTER="none")
    apps = [Starlette(routes=[Route(f"/v{i}/chat/completions", _generate, methods=["POST"])]) for i in (1, 2)]
    for app in apps:
        watch = tailwatch.install(app, gc="observe")
    for i, app in enumerate(apps, 1):
        with TestClient(app) as client:
            assert client.post(f"/v{i}/chat/completions").status_code == 200
    _, found = last_round(http)
    assert {attributes(point)["http.route"] for point in points(found["tailwatch.output_tokens"])} == {
        "/v1/chat/completions",
        "/v2/chat/completions",
    }
    check_tokens = sum(point.as_int for point in points(found["tailwatch.output_tokens"]))
    assert check_tokens == watch.snapshot().tokens == 10
    assert watch.otel is not None and len(watch.otel._pushes) == 1


def test_what_is_of_the_class_is_public() -> None:
    """OTel is what Watch holds; nothing of OpenTelemetry is imported where it is off."""
    code = "import sys, tailwatch; tailwatch.install(role='w'); print([m for m in sys.modules if 'opentelemetry' in m])"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]" and OTel.__doc__


def test_uninstall_does_not_wait_for_a_receiver_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exporter would try again for a minute: it is stopped, and the thread ends."""
    gone = HTTPCollector().start()
    variables(monkeypatch, gone, "http/protobuf", OTEL_TRACES_EXPORTER="none", OTEL_EXPORTER_OTLP_TIMEOUT="60")
    watch = tailwatch.install(role="worker", gc="observe")
    last_round(gone)
    gone.stop()
    (push,) = watch.otel._pushes
    until(lambda: push._since, "a round that fails")
    monkeypatch.setattr(otel_module, "FLUSH_SECONDS", 0.2)
    tailwatch.uninstall()
    assert push.join(DEADLINE_SECONDS), "not a minute"


def test_a_short_life_is_exported_as_it_ends(http: HTTPCollector) -> None:
    """A process that ends before its first round, without uninstall(): its numbers are sent."""
    code = (
        "import tailwatch; tailwatch.install(role='w', gc='observe')\n"
        "with tailwatch.stream(model='brief') as stream: stream.token(3)\n"
    )
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": http.endpoint, "OTEL_TRACES_EXPORTER": "none"}
    subprocess.run([sys.executable, "-c", code], env={**os.environ, **environment}, check=True)
    ((_, found),) = http.scopes()
    (tokens,) = points(found["tailwatch.output_tokens"])
    assert (tokens.as_int, attributes(tokens)["gen_ai.response.model"]) == (3, "brief")


def test_a_new_exporter_sends_no_difference_twice() -> None:
    """Another process of the group has exported: the first difference begins with what comes from now on."""
    exporter = OwnExporter(preferred_temporality={Histogram: DELTA, ObservableCounter: DELTA})
    watch = tailwatch.install(role="worker", gc="observe")
    load(2)
    push = Push(
        lambda: Sender(exporter, Resource.get_empty),
        watch.snapshot,
        lambda: otel_module.Facts("v", "p", b""),
        interval=3600.0,
        late=True,
    )
    push.start()
    until(lambda: push._before, "it has looked")
    load(3)
    push.stop()
    assert push.join(DEADLINE_SECONDS)
    (given,) = exporter.given
    taken = {metric.name: metric.data for metric in given.resource_metrics[0].scope_metrics[0].metrics}
    assert sum(point.count for point in taken["gen_ai.server.inter_token_latency"].data_points) == 12
    assert sum(point.value for point in taken["tailwatch.output_tokens"].data_points) == 15


def test_a_new_exporter_counts_its_own_rounds_from_its_own_start() -> None:
    """Sums with the start of the numbers, which another process's rounds have reached already, would go backwards."""
    exporter = OwnExporter()
    watch = tailwatch.install(role="worker", gc="observe")
    load(1)
    began = time.time_ns()
    push = Push(
        lambda: Sender(exporter, Resource.get_empty),
        watch.snapshot,
        lambda: otel_module.Facts("v", "p", b""),
        spans=lambda: Own(spans=3),
        interval=3600.0,
    )
    push.round()
    push.round()
    starts = {
        metric.name: metric.data.data_points[0].start_time_unix_nano
        for given in exporter.given
        for metric in given.resource_metrics[0].scope_metrics[0].metrics
        if metric.name in ("tailwatch.otel.exports", "tailwatch.otel.spans", "tailwatch.requests")
    }
    assert starts["tailwatch.requests"] < began <= starts["tailwatch.otel.exports"] == starts["tailwatch.otel.spans"]


def test_processes_without_a_group_are_distinguished(http: HTTPCollector, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has a service.instance.id; one that the user gives stays."""
    variables(monkeypatch, http, "http/protobuf", OTEL_TRACES_EXPORTER="none")
    tailwatch.install(role="worker", gc="observe")
    load()
    assert instance(last_round(http)[0])
    tailwatch.uninstall()
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.instance.id=mine")
    tailwatch.install(role="worker", gc="observe")
    load()
    assert instance(last_round(http)[0]) == "mine"


def test_hostile_names_arrive(http: HTTPCollector, monkeypatch: pytest.MonkeyPatch) -> None:
    """A megabyte, quotes, no UTF-8, more models than label sets: the receiver reads every round."""
    variables(monkeypatch, http, "http/protobuf", OTEL_TRACES_EXPORTER="none")
    watch = tailwatch.install(role="worker", gc="observe", max_label_sets=8)
    names = ["x" * 1_000_000, 'a"b\n', "\udcff\ud800", "\0", *(f"model-{i}" for i in range(500))]
    for name in names:
        with tailwatch.stream(model=name, route=name) as stream:
            stream.token(2)
    _, found = last_round(http)
    taken = points(found["tailwatch.output_tokens"])
    assert len(taken) == 8 and sum(point.as_int for point in taken) == 2 * len(names) == watch.snapshot().tokens
    assert points(found["tailwatch.label_overflow"])[0].as_int == watch.snapshot().label_overflow > 400


def test_a_receiver_that_comes_back_gets_all(
    monkeypatch: pytest.MonkeyPatch, collector: Collector, protocol: str
) -> None:
    """Down, then up again on the same port: what came meanwhile arrives, with the rounds that failed."""
    from ..support.otlp_collector import PROTOCOLS

    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    variables(monkeypatch, collector, protocol, OTEL_TRACES_EXPORTER="none")
    watch = tailwatch.install(role="worker", gc="observe")
    load(1)
    last_round(collector)
    collector.stop()
    until(lambda: watch.snapshot().drops["export"] > 0, "a round fails")
    load(2)
    again = PROTOCOLS[protocol]().start(collector.port)
    try:
        _, found = last_round(again)
        assert sum(point.count for point in points(found["gen_ai.server.inter_token_latency"])) == 12
        taken = {attributes(p)["tailwatch.outcome"]: p.as_int for p in points(found["tailwatch.otel.exports"])}
        assert taken.get("failed", 0) + taken.get("skipped", 0) >= 1 and taken["exported"] >= 1
        assert points(found["tailwatch.dropped_events"])[0].as_int == watch.snapshot().drops["export"]
    finally:
        tailwatch.uninstall()
        again.stop()
        collector.start()  # for the fixture to stop


def test_the_apps_global_meter_provider_is_used(monkeypatch: pytest.MonkeyPatch, http: HTTPCollector) -> None:
    """otel=True beside an SDK that the app has set up: its exporters, its resource, each temporality its own."""
    from opentelemetry.metrics import _internal as internal

    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    exporters = [
        HTTPExporter(endpoint=f"{http.endpoint}/v1/metrics"),
        OwnExporter(preferred_temporality={Histogram: DELTA, ObservableCounter: DELTA}),
    ]
    readers = [sdk.PeriodicExportingMetricReader(each, export_interval_millis=1e9) for each in exporters]
    provider = MeterProvider(readers, resource=Resource({"service.name": "theirs"}), shutdown_on_exit=False)
    monkeypatch.setattr(internal, "_METER_PROVIDER", provider)
    try:
        watch = tailwatch.install(role="worker", gc="observe", otel=True)
        load()
        resource, found = last_round(http)
        assert service(resource) == "theirs"
        check_equal(found, watch.snapshot())
        own = exporters[1]
        until(lambda: own.given, "the other gets it, too")
        assert own.given[0].resource_metrics[0].resource.attributes["service.name"] == "theirs"
        assert watch.otel is not None and len(watch.otel._pushes) == 2
        tailwatch.uninstall()
    finally:
        exporters[1].shutdown = lambda *_, **__: None  # type: ignore[method-assign]
        provider.shutdown()


def test_the_apps_exporter_is_called_by_one_thread_at_a_time() -> None:
    """Its reader and we take turns, by the reader's lock; in a fork child that is free again."""
    inside: list[bool] = []

    class Watched(OwnExporter):
        def export(self, *arguments: Any, **named: Any) -> Any:
            inside.append(reader._export_lock.locked())
            return super().export(*arguments, **named)

        def shutdown(self, timeout_millis: float = 30_000, **_: Any) -> None:
            pass

    exporter = Watched()
    reader = sdk.PeriodicExportingMetricReader(exporter, export_interval_millis=1e9)
    provider = MeterProvider([reader], shutdown_on_exit=False)
    try:
        watch = tailwatch.install(role="worker", gc="observe", otel=provider)
        load()
        until(lambda: inside, "we export")
        assert all(inside)
        assert watch.otel is not None
        sender = watch.otel._pushes[0].sender
        assert sender is not None
        with reader._export_lock:
            assert not sender.send(b"", 0.01)  # not while the reader does
        until(lambda: reader._export_lock.acquire(blocking=False), "it is free between two rounds")
        sender._has_turn = True  # as it is where a thread of ours was about to export when the process forked
        watch.otel._pushes[0].after_fork()
        assert not reader._export_lock.locked()
    finally:
        tailwatch.uninstall()
        provider.shutdown()


def test_rounds_that_are_left_out_are_counted_once_each() -> None:
    """While one runs, each interval that passes is one; the next round begins the count anew."""
    missed: list[int] = []
    push = Push(lambda: None, lambda: None, lambda: None, interval=10.0, missed=lambda: missed.append(1))  # type: ignore[arg-type, return-value]
    push.check(5.0)
    push._since = 100.0
    for now in (101.0, 109.9, 110.0, 115.0, 141.0, 141.0):
        push.check(now)
    assert len(missed) == push.skipped == 4
    push._since = 0.0
    push.check(150.0)
    push._since = 160.0
    push.check(171.0)
    assert len(missed) == push.skipped == 5


def test_an_official_exporter_without_a_seam_is_given_objects(http: HTTPCollector) -> None:
    """One that splits its requests, or of an unknown version: slower, reported, and right."""
    exporter = HTTPExporter(endpoint=f"{http.endpoint}/v1/metrics", max_export_batch_size=1000)
    watch = tailwatch.install(role="worker", gc="observe", otel=exporter)
    load()
    until(lambda: len(http.scopes()) > 60, "metric by metric")
    tailwatch.uninstall()
    expected = of_snapshot(watch.snapshot())
    found = {name: metric for _, metrics in http.scopes() for name, metric in metrics.items()}
    for name in ("gen_ai.server.time_to_first_token", "gen_ai.server.request.duration", "tailwatch.requests"):
        assert numbers(found[name]) == numbers(expected[name])
    assert any("takes no encoded bytes" in note for note in watch.notes)
    exporter.shutdown()
    unknown = HTTPExporter(endpoint=f"{http.endpoint}/v1/metrics")
    del unknown._client
    assert not Sender(unknown, Resource.get_empty).fast
