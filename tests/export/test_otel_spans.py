"""One span a request: what was seen is added to the app's own, or one is made; sampled, bounded, off the token path."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.testclient import TestClient

import tailwatch
from tailwatch.export.otel import exporter, spans
from tailwatch.export.otel.exporter import OTel

from ..support.otlp_collector import REASON, HTTPCollector, running
from ..support.waiting import until

pytestmark = pytest.mark.integration

trace_sdk = pytest.importorskip("opentelemetry.sdk.trace", reason=REASON)
from opentelemetry import trace  # noqa: E402
from opentelemetry.sdk.resources import Resource  # noqa: E402
from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: E402
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter  # noqa: E402
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased, TraceIdRatioBased  # noqa: E402
from opentelemetry.trace import SpanKind, StatusCode  # noqa: E402
from opentelemetry.util._once import Once  # noqa: E402

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
UNSAMPLED = {"traceparent": f"00-{TRACE}-{PARENT}-00"}


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No variable of the machine's, no global provider before or after."""
    for name in [name for name in os.environ if name.startswith(("OTEL_", "TAILWATCH_", "FASTAPI_OTEL"))]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER_SET_ONCE", Once())
    yield
    tailwatch.uninstall()


@pytest.fixture
def http() -> Iterator[HTTPCollector]:
    yield from running("http/protobuf")


@pytest.fixture
def kept() -> InMemorySpanExporter:
    """What the app's own tracer provider exports."""
    return InMemorySpanExporter()


@pytest.fixture
def installed(http: HTTPCollector) -> Any:
    """install() with metrics that go to a collector."""
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

    def install(app: Any, **options: Any) -> tailwatch.Watch:
        exporter = OTLPMetricExporter(endpoint=f"{http.endpoint}/v1/metrics")
        return tailwatch.install(app, gc="observe", otel=exporter, **options)

    return install


def provide(kept: InMemorySpanExporter, **options: Any) -> Any:
    """The app sets a tracer provider."""
    provider = trace_sdk.TracerProvider(resource=Resource.get_empty(), shutdown_on_exit=False, **options)
    provider.add_span_processor(SimpleSpanProcessor(kept))
    trace.set_tracer_provider(provider)
    return provider


SILENT = {"tracing": False, "metrics": False, "logs": False}  # FastAPI's own telemetry, which is on where it can be


def make_app(**options: Any) -> FastAPI:
    app = FastAPI(**{"telemetry": SILENT, **options})

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Any:
        slow = float(request.headers.get("x-slow", "0"))

        async def frames() -> AsyncIterator[bytes]:
            for i in range(4):
                if i == 2:
                    await asyncio.sleep(slow)
                if i == 3 and "x-collect" in request.headers:
                    garbage(int(request.headers["x-collect"]))
                yield b'data: {"model":"m-1","choices":[{"index":0,"delta":{"content":"a%d"}}]}\n\n' % i
            if "x-break" in request.headers:
                raise RuntimeError("broken")
            yield b"data: [DONE]\n\n"

        return StreamingResponse(frames(), media_type="text/event-stream")

    @app.post("/v1/completions")
    async def whole(request: Request) -> Any:
        return JSONResponse({"error": "busy"}, status_code=503)

    return app


def garbage(times: int) -> None:
    """Collections long enough to be kept."""
    gc.freeze()  # what the tests before this one have left would be collected too
    heap = [[i] for i in range(100_000)]
    for _ in range(times):
        gc.collect()
    del heap
    gc.unfreeze()


def ask(app: Any, path: str = "/v1/chat/completions", **headers: str) -> Any:
    with TestClient(app, raise_server_exceptions=False) as client:
        return client.post(path, headers={name.replace("_", "-"): value for name, value in headers.items()})


def one(kept: InMemorySpanExporter, kind: SpanKind = SpanKind.SERVER) -> Any:
    """The one span of a kind."""
    found = until(lambda: [span for span in kept.get_finished_spans() if span.kind is kind], f"a span of kind {kind}")
    (span,) = found
    return span


def names(span: Any) -> list[str]:
    return [event.name for event in span.events]


def check_enriched(span: Any) -> None:
    """What every span of a request with tokens has."""
    assert span.attributes["gen_ai.response.model"] == "m-1"
    assert span.attributes["gen_ai.operation.name"] == "chat"
    assert span.attributes["gen_ai.usage.output_tokens"] == 4
    assert span.attributes["tailwatch.reason"] in ("good", "late")
    assert span.attributes["gen_ai.latency.time_to_first_token"] <= span.attributes["gen_ai.latency.e2e"]
    first = next(event for event in span.events if event.name == "tailwatch.first_token")
    assert span.start_time - 5_000_000 <= first.timestamp <= span.end_time


def test_a_span_is_made_where_the_app_makes_none(kept: InMemorySpanExporter, installed: Any) -> None:
    """One SERVER span, of the caller's trace, with when it began and ended."""
    provide(kept)
    app = make_app()
    installed(app)
    before = time.time_ns()
    assert ask(app, **SAMPLED).status_code == 200
    span = one(kept)
    assert span.name == "chat m-1" and span.attributes["http.route"] == "/v1/chat/completions"
    assert f"{span.context.trace_id:032x}" == TRACE and f"{span.parent.span_id:016x}" == PARENT
    assert before - 50_000_000 <= span.start_time <= span.end_time <= time.time_ns()
    assert span.attributes["http.response.status_code"] == 200 and span.status.status_code is StatusCode.UNSET
    assert (span.attributes["server.address"], span.attributes["server.port"]) == ("testserver", 80)
    check_enriched(span)


def test_the_instrumentations_server_span_is_enriched(kept: InMemorySpanExporter, installed: Any) -> None:
    """opentelemetry-instrumentation-fastapi: no second span, and not its children for each send."""
    instrumentation = pytest.importorskip("opentelemetry.instrumentation.fastapi")
    provider = provide(kept)
    app = make_app()
    installed(app)
    instrumentation.FastAPIInstrumentor.instrument_app(app, tracer_provider=provider)
    try:
        assert ask(app, **SAMPLED).status_code == 200
        span = one(kept)
        assert span.name.startswith("POST") and f"{span.context.trace_id:032x}" == TRACE
        check_enriched(span)
        others = [each for each in kept.get_finished_spans() if each is not span]
        assert not any(key.startswith("tailwatch.") for each in others for key in each.attributes)
    finally:
        instrumentation.FastAPIInstrumentor.uninstrument_app(app)


def test_fastapis_own_telemetry_is_enriched(kept: InMemorySpanExporter, installed: Any) -> None:
    """Its SERVER span ends with the last chunk: it is enriched before."""
    pytest.importorskip("fastapi.telemetry", reason="pip install 'fastapi>=0.142'")
    provider = provide(kept)
    app = make_app(telemetry={"tracer_provider": provider, "metrics": False, "logs": False})
    installed(app)
    assert ask(app, **SAMPLED).status_code == 200
    check_enriched(one(kept))


@pytest.mark.parametrize("sampler", [ALWAYS_OFF, ParentBased(TraceIdRatioBased(1.0))])
def test_samplers_and_parents_are_respected(kept: InMemorySpanExporter, installed: Any, sampler: Any) -> None:
    """A sampler that declines, or a caller that was sampled out: no span."""
    provide(kept, sampler=sampler)
    app = make_app()
    watch = installed(app)
    ask(app, **UNSAMPLED)
    assert watch.otel is not None
    until(lambda: not watch.otel.spans._queue, "the queue is empty")
    if sampler is ALWAYS_OFF:
        ask(app)
        tailwatch.uninstall()
        assert kept.get_finished_spans() == ()
    else:
        ask(app)
        assert one(kept).parent is None


def test_an_app_that_sampled_out_gets_no_span_of_ours(kept: InMemorySpanExporter, installed: Any) -> None:
    """Its instrumentation has decided."""
    instrumentation = pytest.importorskip("opentelemetry.instrumentation.fastapi")
    provider = provide(kept, sampler=ALWAYS_OFF)
    app = make_app()
    watch = installed(app)
    instrumentation.FastAPIInstrumentor.instrument_app(app, tracer_provider=provider)
    try:
        ask(app)
        assert watch.snapshot().e2e.count == 1
        tailwatch.uninstall()
        assert kept.get_finished_spans() == () and watch.otel.spans.made == 0
    finally:
        instrumentation.FastAPIInstrumentor.uninstrument_app(app)


def test_slow_gaps_and_pauses_are_events(kept: InMemorySpanExporter, installed: Any) -> None:
    """Each with when, how long, and what it is put down to."""
    provide(kept)
    app = make_app()
    installed(app, slow_gap_ms=20)
    ask(app, x_slow="0.1", x_collect="1")
    span = one(kept)
    slow = [event for event in span.events if event.name == "tailwatch.slow_gap"]
    assert any(event.attributes["tailwatch.seconds"] >= 0.1 for event in slow)
    assert all(event.attributes["tailwatch.phase"] in ("ttft", "itl") for event in slow)
    for event in slow:
        causes = {name.rpartition(".")[2]: s for name, s in event.attributes.items() if ".delay." in name}
        excess = event.attributes["tailwatch.seconds"] - event.attributes["tailwatch.typical"]
        assert sum(causes.values()) == pytest.approx(excess, abs=1e-6)
        named = re.findall(r"(?:^|, )[\d.]+ (?:s|ms|us) (\w+)", event.attributes["tailwatch.causes"])
        assert max(causes, key=causes.__getitem__) in named
    paused = [event for event in span.events if event.name == "tailwatch.pause"]
    assert any(event.attributes["tailwatch.cause"] in ("gc2", "gc_full") for event in paused)
    assert [event.timestamp for event in span.events] == sorted(event.timestamp for event in span.events)
    assert span.attributes["tailwatch.slow_gaps"] == len(slow)
    assert span.attributes["tailwatch.worst_gap"] >= 0.1


def test_events_are_bounded_and_those_left_out_counted(kept: InMemorySpanExporter, installed: Any) -> None:
    """Many pauses hit one request: a span has room for so many events."""
    provide(kept)
    app = make_app()
    watch = installed(app, slow_gap_ms=1)
    ask(app, x_collect="30", x_slow="0.01")
    span = one(kept)
    assert len(span.events) == spans.EVENTS and "tailwatch.first_token" in names(span)
    assert watch.otel.spans.events_dropped >= 1


def test_failures_have_a_type_and_a_status(kept: InMemorySpanExporter, installed: Any) -> None:
    """A refusal, and an app that raises after it began to answer."""
    provide(kept)
    app = make_app()
    installed(app)
    assert ask(app, "/v1/completions").status_code == 503
    span = one(kept)
    assert span.attributes["error.type"] == "5xx" and span.status.status_code is StatusCode.ERROR
    kept.clear()
    with pytest.raises(RuntimeError):
        TestClient(app).post("/v1/chat/completions", headers={"x-break": "1"})
    span = one(kept)
    assert span.attributes["error.type"] == "_OTHER" and "tailwatch.first_token" in names(span)


def test_where_the_apps_span_ended_first_a_child_has_the_rest(kept: InMemorySpanExporter, installed: Any) -> None:
    """The app raises, its instrumentation ends its span, and then comes our end."""
    pytest.importorskip("fastapi.telemetry", reason="pip install 'fastapi>=0.142'")
    provider = provide(kept)
    app = make_app(telemetry={"tracer_provider": provider, "metrics": False, "logs": False, "operation_spans": False})
    installed(app)
    with pytest.raises(RuntimeError):
        TestClient(app).post("/v1/chat/completions", headers={"x-break": "1", **SAMPLED})
    theirs, child = one(kept), one(kept, SpanKind.INTERNAL)
    assert child.parent.span_id == theirs.context.span_id
    assert child.attributes["tailwatch.reason"] == "error" and "tailwatch.reason" not in theirs.attributes


def test_streams_by_hand_have_spans(kept: InMemorySpanExporter, installed: Any) -> None:
    """The current span is enriched, or one is made."""
    provide(kept)
    installed(None)
    with trace.get_tracer("app").start_as_current_span("mine"):
        with tailwatch.stream(model="m-1", route="/v1/chat/completions") as stream:
            stream.token(4)
    with tailwatch.stream(model="m-1", route="/v1/chat/completions") as stream:
        stream.token(4)
    with tailwatch.stream() as stream:
        stream.token()
    mine = one(kept, SpanKind.INTERNAL)
    assert mine.attributes["tailwatch.reason"] == "good"
    found = until(lambda: [span for span in kept.get_finished_spans() if span.kind is SpanKind.SERVER][1:], "two spans")
    named = kept.get_finished_spans()[1]
    check_enriched(named)
    assert mine.attributes["gen_ai.request.model"] == named.attributes["gen_ai.request.model"] == "m-1"
    assert "gen_ai.request.model" not in found[0].attributes


def test_the_models_name_that_a_gateway_read_is_the_requests(kept: InMemorySpanExporter, installed: Any) -> None:
    """From its header, cut to 200 characters, not over what the app's own span has. Bodies are not read: without it the
    attribute is absent."""
    provide(kept)
    app = make_app()
    installed(app)
    ask(app, x_gateway_model_name="base-model")
    assert one(kept).attributes["gen_ai.request.model"] == "base-model"
    kept.clear()
    ask(app)
    assert "gen_ai.request.model" not in one(kept).attributes
    kept.clear()
    ask(app, x_gateway_model_name="x" * 999)
    assert one(kept).attributes["gen_ai.request.model"] == "x" * 200


def test_the_queue_is_bounded(installed: Any, monkeypatch: pytest.MonkeyPatch, kept: InMemorySpanExporter) -> None:
    """A burst that is not taken: what has no room is dropped, and counted."""
    provide(kept)
    monkeypatch.setattr(spans, "QUEUE", 5)
    watch = installed(None)
    monkeypatch.setattr(watch.otel.spans, "start", lambda: None)
    for _ in range(12):
        with tailwatch.stream(model="m") as stream:
            stream.token()
    assert len(watch.otel.spans._queue) == 5 and watch.otel.spans.dropped == 7
    assert watch.snapshot().drops["span"] == 7


def test_without_a_provider_spans_go_where_the_variables_point(
    http: HTTPCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A provider of ours, which no other code sees, with the real exporter."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", http.endpoint)
    monkeypatch.setenv("OTEL_SERVICE_NAME", "svc")
    app = make_app()
    watch = tailwatch.install(app, gc="observe")
    ask(app, **SAMPLED)
    until(lambda: watch.otel is not None and watch.otel.spans.made, "it is made")
    assert isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
    tailwatch.uninstall()
    (span,) = http.spans
    assert span.trace_id.hex() == TRACE and span.parent_span_id.hex() == PARENT
    (resource,) = http.traces[0].resource_spans
    assert {p.key: p.value.string_value for p in resource.resource.attributes}["service.name"] == "svc"


def test_none_without_a_place_to_send_them(installed: Any) -> None:
    """Metrics through an exporter of the user's, no tracer provider: requests have no spans."""
    watch = installed(None)
    with tailwatch.stream(model="m") as stream:
        stream.token()
    until(lambda: not watch.otel.spans._queue, "it is looked at")
    assert watch.otel.spans._own_provider is None and watch.otel.spans.made == 0


def test_uninstall_leaves_the_apps_provider_as_it_was(kept: InMemorySpanExporter, installed: Any) -> None:
    """Our processor is taken out again."""
    provider = provide(kept)
    before = provider._active_span_processor._span_processors
    app = make_app()
    installed(app)
    assert len(provider._active_span_processor._span_processors) == len(before) + 1
    assert tailwatch.uninstall() == []
    assert provider._active_span_processor._span_processors == before


def test_a_processor_that_raises_does_no_harm(kept: InMemorySpanExporter, installed: Any) -> None:
    """What the app's tracing does wrong is counted, and the answer is whole."""

    class Broken(trace_sdk.SpanProcessor):  # type: ignore[misc, name-defined]
        def on_start(self, span: Any, parent_context: Any = None) -> None:
            raise RuntimeError("broken")

    provide(kept).add_span_processor(Broken())
    app = make_app()
    watch = installed(app)
    assert ask(app).text.endswith("[DONE]\n\n")
    until(lambda: watch.otel.spans.dropped == 1, "it is counted")


def test_nothing_is_made_per_token(kept: InMemorySpanExporter, installed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the number of tokens, the SDK is called as often."""
    provide(kept)
    app = make_app()
    watch = installed(app)
    calls: list[str] = []
    original = spans.Spans.ended

    def ended(self: Any, stream: Any, scope: Any) -> None:
        calls.append(stream.summary()[8])
        original(self, stream, scope)

    watch.core.on_request_end(lambda stream, scope: ended(watch.otel.spans, stream, scope))
    ask(app)
    assert calls == ["m-1"]


def test_what_the_batch_processor_has_no_room_for_is_counted(
    http: HTTPCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A receiver that does not answer: spans past the SDK's own bound are dropped before it, and counted."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", http.endpoint)
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "otlp")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "4")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "2")
    http.hang.set()
    watch = tailwatch.install(role="worker", gc="observe")
    for _ in range(40):
        with tailwatch.stream(model="m") as stream:
            stream.token()
    assert watch.otel is not None
    spans = watch.otel.spans
    until(lambda: spans.made + spans.dropped == 40, "all are looked at")
    assert spans.made <= 8 and watch.snapshot().drops["span"] == spans.dropped >= 32
    http.hang.clear()
    http.go_on.set()


def test_spans_that_are_not_taken_hold_up_no_uninstall(monkeypatch: pytest.MonkeyPatch, installed: Any) -> None:
    """What still runs when the wait is over is reported; what has only to wake up has ended."""
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

    free = threading.Event()

    class Hangs(SpanExporter):
        def export(self, spans: Any) -> Any:
            free.wait(30)
            return SpanExportResult.SUCCESS

    provider = trace_sdk.TracerProvider(resource=Resource.get_empty(), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(Hangs(), schedule_delay_millis=1))
    monkeypatch.setattr(OTel, "_tracer_provider", lambda self: provider)
    monkeypatch.setattr(exporter, "FLUSH_SECONDS", 0.2)

    def threads() -> set[str]:
        return {thread.name for thread in threading.enumerate()} & {"tailwatch-spans"}

    def undone(spans: int) -> list[str]:
        watch = installed(None, role="worker")
        for _ in range(spans):
            with tailwatch.stream(model="m") as stream:
                stream.token()
        watch.otel.spans.start()
        until(lambda: watch.otel.spans.made == spans, "it is made")
        return tailwatch.uninstall()

    (left,) = undone(1)
    assert "spans' exporter" in left and "in time" in left
    assert threads()
    free.set()
    until(lambda: not threads(), "it ends")
    assert undone(0) == []
    assert not threads()


FORKED = """
import json, os, sys, threading
from opentelemetry import trace
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult
from opentelemetry.sdk.trace import TracerProvider

class Nowhere(MetricExporter):
    def export(self, *arguments, **named):
        return MetricExportResult.SUCCESS
    def force_flush(self, timeout_millis=0):
        return True
    def shutdown(self, timeout_millis=0, **named):
        pass

import tailwatch
from tailwatch.export.otel import spans
provider = TracerProvider(shutdown_on_exit=False)
if sys.argv[1] == "app":
    trace.set_tracer_provider(provider)
watch = tailwatch.install(role="engine", gc="observe", otel=Nowhere())
if sys.argv[1] == "ours":  # as if the variables had named where spans go
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    provider.add_span_processor(BatchSpanProcessor(InMemorySpanExporter()))
    watch.otel.spans._own_provider, watch.otel.spans._asked_fallback = provider, True
receiver, sender = os.pipe()
child = os.fork()
if child == 0:
    watch.otel.turn()
    with tailwatch.stream() as stream:
        stream.token()
    report = tailwatch.uninstall()
    left = len(provider._active_span_processor._span_processors) if sys.argv[1] == "app" else 0
    threads = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    os.write(sender, json.dumps([report, left, threads]).encode())
    os._exit(0)
os.waitpid(child, 0)
print(os.read(receiver, 65536).decode())
tailwatch.uninstall()
"""


@pytest.mark.parametrize("whose", ["app", "ours"])
def test_uninstall_in_a_fork_child_leaves_nothing_of_its_parents(whose: str) -> None:
    """Neither the processor that notices the app's spans nor the thread of a provider of ours stays in the child."""
    done = subprocess.run([sys.executable, "-c", FORKED, whose], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout) == [[], 0, []]
