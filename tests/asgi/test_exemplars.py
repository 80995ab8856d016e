"""Whose trace stands beside a slow request: that of its traceparent, or of the OpenTelemetry span around it."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse
from starlette.responses import StreamingResponse

import tailwatch

pytestmark = pytest.mark.integration

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


@pytest.fixture(autouse=True)
def uninstalled() -> Iterator[None]:
    gc.disable()
    yield
    tailwatch.uninstall()
    gc.enable()


async def body() -> AsyncIterator[str]:
    for word in ("a", "b"):
        yield f'data: {{"model":"m","choices":[{{"index":0,"delta":{{"content":"{word}"}}}}]}}\n\n'
    yield "data: [DONE]\n\n"


class Traced:
    """A middleware that opens a span around each request, and notes its trace id."""

    def __init__(self, app: Any, sampler: Sampler, noted: list[str]) -> None:
        self.app = app
        self.tracer = TracerProvider(sampler=sampler).get_tracer("test")
        self.noted = noted

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        with self.tracer.start_as_current_span("request") as span:
            self.noted.append(f"{span.get_span_context().trace_id:032x}")
            await self.app(scope, receive, send)


def make_app(sampler: Sampler | None = None, noted: list[str] | None = None) -> FastAPI:
    """A streaming app; with a sampler the request is answered inside a span of its own."""
    app = FastAPI()

    @app.post("/v1/chat/completions")
    async def answer() -> StreamingResponse:
        return StreamingResponse(body(), media_type="text/event-stream")

    if sampler is not None:
        app.add_middleware(Traced, sampler=sampler, noted=[] if noted is None else noted)
    return app


def post(app: Any, **headers: str) -> None:
    async def ask() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            response = await client.post("/v1/chat/completions", headers=headers, json={})
            assert response.status_code == 200 and response.text.endswith("[DONE]\n\n")

    asyncio.run(ask())


def exemplars() -> set[str]:
    """The trace ids that OpenMetrics shows; a request that has one has it for each of its measures."""
    body = tailwatch.current().exposition.render("application/openmetrics-text")[1].decode()
    found = [(family.name, s.exemplar) for family in parse(body) for s in family.samples if s.exemplar]
    if found:
        assert {name for name, _ in found} >= {
            "tailwatch_time_to_first_token_seconds",
            "tailwatch_time_per_output_token_seconds",
            "tailwatch_e2e_request_latency_seconds",
        }
    return {exemplar.labels["trace_id"] for _, exemplar in found}


def test_a_sampled_traceparent_is_shown() -> None:
    """Its trace id, by default."""
    app = make_app()
    tailwatch.install(app)
    post(app, traceparent=PARENT)
    assert exemplars() == {TRACE}


@pytest.mark.parametrize(
    "parent",
    [
        PARENT[:-1] + "0",  # not sampled: no backend has that trace
        PARENT[:-2],
        f"00-{'0' * 32}-00f067aa0ba902b7-01",
        f"00-{'x y' * 10}zz-00f067aa0ba902b7-01",
        "nonsense",
        "",
    ],
)
def test_what_leads_to_no_trace_is_not_shown(parent: str) -> None:
    """Not sampled, cut, all zeros, or not of the form."""
    app = make_app()
    tailwatch.install(app)
    post(app, traceparent=parent)
    assert exemplars() == set()


def test_switched_off() -> None:
    """exemplars=False: none, and requests are measured as ever."""
    app = make_app(ALWAYS_ON)
    tailwatch.install(app, exemplars=False)
    post(app, traceparent=PARENT)
    assert exemplars() == set()
    assert tailwatch.snapshot().ttft.count == 1


def test_install_after_a_door_decides() -> None:
    """What is set in code is in force for the next request and the next scrape."""
    app = tailwatch.Middleware(make_app())
    post(app, traceparent=PARENT)
    assert exemplars() == {TRACE}
    watch = tailwatch.install(app, exemplars=False, histograms="classic")
    post(app, traceparent=PARENT.replace("4bf9", "5bf9"))
    assert exemplars() == {TRACE}
    accept = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"
    assert watch.exposition.render(accept)[0].startswith("text/plain")


def test_the_span_around_the_answer() -> None:
    """Without a traceparent, or with one that is not sampled: the app's own span, if that is sampled."""
    noted: list[str] = []
    app = make_app(ALWAYS_ON, noted)
    tailwatch.install(app)
    post(app)
    post(app, traceparent=PARENT[:-1] + "0")
    assert exemplars() <= set(noted) and len(set(noted)) == 2 and exemplars()


def test_a_span_that_is_not_sampled() -> None:
    """It has an id, and no backend will ever have it."""
    app = make_app(ALWAYS_OFF)
    tailwatch.install(app)
    post(app)
    assert exemplars() == set()


def test_a_turn_of_a_websocket() -> None:
    """The span around the handler, at the first token of each turn."""
    noted: list[str] = []

    async def talk(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        await receive()
        for word in ("a", "b"):
            await send({"type": "websocket.send", "text": f'{{"token":"{word}"}}'})
        await send({"type": "websocket.close"})

    app = tailwatch.install(Traced(talk, ALWAYS_ON, noted), routes=["/chat"]).app
    messages = [{"type": "websocket.connect"}, {"type": "websocket.receive", "text": "hello"}]

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        pass

    asyncio.run(app({"type": "websocket", "path": "/chat", "headers": []}, receive, send))
    assert tailwatch.snapshot().ttft.count == 1
    assert exemplars() == set(noted)


def test_what_asking_raises_is_nobodys_concern() -> None:
    """A broken tracer costs its exemplars; an interrupt that comes meanwhile is the app's to see."""
    app = make_app()
    watch = tailwatch.install(app)

    def asking(error: type[BaseException]) -> None:
        def broken() -> str:
            raise error

        watch.core.exemplify(True, broken)
        post(app)

    asking(RuntimeError)
    assert tailwatch.snapshot().ttft.count == 1 and exemplars() == set()
    with pytest.raises(KeyboardInterrupt):
        asking(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        watch.stream()


def test_by_hand() -> None:
    """trace_id= stands above the span around the caller."""
    tailwatch.install(role="worker")
    tracer = TracerProvider(sampler=ALWAYS_ON).get_tracer("test")

    def stream(**options: Any) -> None:
        with tailwatch.stream(model="m", **options) as s:
            s.token()
            s.token()

    with tracer.start_as_current_span("request"):
        own = f"{trace.get_current_span().get_span_context().trace_id:032x}"
        stream()
        assert exemplars() == {own}
        for _ in range(3):
            stream(trace_id=TRACE)
    assert TRACE in exemplars()


NOT_IMPORTED = """
import sys
import tailwatch
tailwatch.install(role="worker", gc="observe")
with tailwatch.stream(model="m") as s:
    s.token()
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
"""


def test_nothing_is_imported_to_find_out() -> None:
    """An app without OpenTelemetry stays without."""
    subprocess.run([sys.executable, "-c", NOT_IMPORTED], check=True, timeout=60)
