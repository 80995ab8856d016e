"""Our metrics behind an app's own, on the routes of real servers."""

from __future__ import annotations

import asyncio
import gzip
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import prometheus_client
import pytest
from fastapi import FastAPI, Request
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, make_asgi_app
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route

import tailwatch
from tailwatch.asgi import metrics_append
from tailwatch.export.prometheus import append as append_module
from tailwatch.export.prometheus.append import LEFT_OUT, append
from tailwatch.export.prometheus.exposition import Collector
from tailwatch.runtime.session import Watch

from ..support.prometheus import NATIVE, Prometheus, Release

pytestmark = pytest.mark.integration

OM = "application/openmetrics-text; version=1.0.0"
TEXT = "text/plain; version=0.0.4"
OFFERS_2 = "application/openmetrics-text;version=1.0.0"
OFFERS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.{},application/openmetrics-text;version=0.0.1;"
    "q=0.{},text/plain;version=1.0.0;escaping=allow-utf-8;q=0.{},text/plain;version=0.0.4;q=0.{},*/*;q=0.{}"
)
PROTOBUF = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"
# As 2.42 and 3.16 send them, each without and with native histograms.
PROMETHEUS_2 = f"{OFFERS_2},application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
NATIVE_2 = f"{PROTOBUF},{PROMETHEUS_2.replace('1.0.0,', '1.0.0;q=0.8,', 1)}"
PROMETHEUS_3 = OFFERS_3.format(7, 6, 5, 4, 3)
NATIVE_3 = f"{PROTOBUF};q=0.7,{OFFERS_3.format(6, 5, 4, 3, 2)}"
FRAME = b'data: {"model":"m","choices":[{"index":0,"delta":{"content":"x"}}]}\n\n'


@pytest.fixture(autouse=True)
def _uninstalled(no_collections: None) -> None:
    """Nothing stays installed."""


@pytest.fixture
def registry() -> CollectorRegistry:
    """A server's own metrics."""
    made = CollectorRegistry()
    Counter("vllm:requests", "Requests", registry=made).inc(3)
    Histogram("vllm:wait_seconds", "Wait", ["model_name"], registry=made).labels("m").observe(0.3)
    return made


def mounted(registry: CollectorRegistry) -> Mount:
    """As vLLM and SGLang mount it, without a redirect."""
    route = Mount("/metrics", make_asgi_app(registry=registry))
    route.path_regex = re.compile("^/metrics(?P<path>.*)$")
    return route


def generating(app: FastAPI) -> FastAPI:
    """With a route that streams."""

    @app.post("/v1/completions")
    async def _answer() -> StreamingResponse:
        return StreamingResponse(iter([FRAME] * 4), media_type="text/event-stream")

    return app


def vllm(registry: CollectorRegistry) -> FastAPI:
    """prometheus-fastapi-instrumentator's route before the mount."""
    app = generating(FastAPI())

    class PrometheusResponse(Response):
        media_type = prometheus_client.CONTENT_TYPE_LATEST

    @app.get("/metrics", include_in_schema=False, response_class=PrometheusResponse)
    def _metrics(request: Request) -> Response:
        body = prometheus_client.generate_latest(registry)
        if "gzip" in request.headers.get("accept-encoding", ""):
            headers = {"content-type": prometheus_client.CONTENT_TYPE_LATEST, "content-encoding": "gzip"}
            return Response(gzip.compress(body), headers=headers)
        return PrometheusResponse(body)

    app.routes.append(mounted(registry))
    return app


def sglang(registry: CollectorRegistry) -> FastAPI:
    """Its mount alone."""
    app = generating(FastAPI())
    app.routes.append(mounted(registry))
    return app


def lmdeploy(registry: CollectorRegistry) -> FastAPI:
    """A plain mount, which redirects to the path with a slash."""
    app = generating(FastAPI())
    app.mount("/metrics", make_asgi_app(registry=registry))
    return app


def bare(registry: CollectorRegistry) -> Callable[..., Any]:
    """A callable that answers in no route that can be seen."""
    metrics, rest = make_asgi_app(registry=registry), generating(FastAPI())

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await (metrics if scope.get("path") == "/metrics" else rest)(scope, receive, send)

    return app


SHAPES = [vllm, sglang, lmdeploy, bare]


@pytest.fixture
def installed(serve: Any) -> Iterator[Callable[..., str]]:
    """installed(app): its URL, once it has streamed."""

    def start(app: Any, **options: Any) -> str:
        watch = tailwatch.install(app, **({"metrics_append": True, "gc": "off"} | options))
        url = f"http://127.0.0.1:{serve(watch.app, lifespan='off').port}"
        httpx.post(f"{url}/v1/completions", json={})
        return url

    return start


def get(url: str, accept: str = "", encoding: str = "identity", method: str = "GET") -> httpx.Response:
    """The answer to a scraper, redirects followed as it does."""
    headers = {"accept": accept, "accept-encoding": encoding}
    return httpx.request(method, url, headers=headers, follow_redirects=True)


def names(answer: httpx.Response) -> list[str]:
    """The families of an answer, by the strict parser of its format."""
    strict = answer.headers["content-type"].startswith("application/openmetrics-text")
    return [family.name for family in (openmetrics if strict else plain)(answer.text)]


def series(text: str) -> int:
    """Samples of ours."""
    return sum(line.startswith(("tailwatch_", "python_gc_duration")) for line in text.splitlines())


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine ours may take longer than a scrape waits for them."""
    monkeypatch.setattr(metrics_append, "LATE_SECONDS", 30.0)


@pytest.mark.parametrize("accept", ["", OM, TEXT, PROMETHEUS_2, NATIVE_2, PROMETHEUS_3, NATIVE_3])
@pytest.mark.parametrize("shape", SHAPES)
def test_ours_follow_the_apps_own(shape: Any, accept: str, installed: Any, registry: CollectorRegistry) -> None:
    """In its format, in its encoding, after its own, from the first scrape on, whatever the scraper accepts."""
    url = installed(shape(registry))
    for encoding in ("identity", "gzip"):
        answer = get(f"{url}/metrics", accept, encoding)
        found = names(answer)
        assert found.index("vllm:requests") < found.index("tailwatch_time_to_first_token_seconds")
        assert len(found) == len(set(found))
        assert answer.text.count("# EOF") == answer.text.endswith("# EOF\n")
        assert answer.headers.get("content-encoding") == ("gzip" if encoding == "gzip" else None)
        assert 50 < series(answer.text) <= 200
        assert b"tailwatch_inter_token_latency_seconds_count{" in answer.content


@pytest.mark.parametrize("shape", SHAPES)
def test_head_states_no_length(shape: Any, installed: Any, registry: CollectorRegistry) -> None:
    """HEAD: status and type of GET; the length of what a GET would get is not known."""
    url = installed(shape(registry))
    assert b"tailwatch_" in get(f"{url}/metrics").content
    answer = get(f"{url}/metrics", method="HEAD")
    assert answer.content == b"" and "content-length" not in answer.headers


def test_metrics_by_name_are_the_apps_alone(installed: Any, registry: CollectorRegistry) -> None:
    """A request for names gets those."""
    url = installed(sglang(registry))
    for query in ("name[]=vllm:requests_total", "name%5B%5D=vllm:requests_total"):
        assert names(get(f"{url}/metrics?{query}")) == ["vllm:requests"]


def test_off_unless_asked_for(installed: Any, registry: CollectorRegistry) -> None:
    """The default: the app's answer is as it was."""
    url = installed(sglang(registry), metrics_append=None)
    assert series(get(f"{url}/metrics").text) == 0
    assert series(get(f"{url}/tailwatch/metrics").text) > 200


def test_more_series_where_they_are_asked_for(installed: Any, registry: CollectorRegistry) -> None:
    """A number instead of True; what is left out is counted in the response."""
    url = installed(sglang(registry), metrics_append=5000)
    text = get(f"{url}/metrics").text
    assert series(text) > 200 and f'{LEFT_OUT}{{reason="limit"}} 0' in text


def test_a_family_that_the_app_has_is_left_out(installed: Any, registry: CollectorRegistry) -> None:
    """Also where it comes without a type, or from our own collector; both are counted."""
    Gauge("tailwatch_output_tokens", "Theirs", registry=registry).set(5)
    url = installed(sglang(registry))
    for accept in (OM, TEXT):
        answer = get(f"{url}/metrics", accept)
        assert names(answer).count("tailwatch_output_tokens") == 1
        assert f'{LEFT_OUT}{{reason="clash"}} 1' in answer.text


def test_our_collector_in_the_apps_registry(serve: Any, registry: CollectorRegistry) -> None:
    """Nothing of it comes twice."""
    app = sglang(registry)
    watch = tailwatch.install(app, metrics_append=True, gc="off")
    registry.register(Collector(watch.exposition))  # type: ignore[arg-type]
    found = names(get(f"http://127.0.0.1:{serve(app, lifespan='off').port}/metrics", OM))
    assert len(found) == len(set(found))


def answering(*messages: Any) -> Starlette:
    """An app whose route of the metrics sends these messages."""

    async def raw(scope: Any, receive: Any, send: Any) -> None:
        for message in messages:
            if isinstance(message, Exception):
                raise message
            await send(message)

    class Raw:
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await raw(scope, receive, send)

    return Starlette(routes=[Route("/metrics", Raw())])


def start(status: int = 200, kind: str = TEXT, *more: tuple[bytes, bytes], **fields: Any) -> dict[str, Any]:
    """The beginning of an answer."""
    headers = [(b"content-type", kind.encode()), *more]
    return {"type": "http.response.start", "status": status, "headers": headers, **fields}


def body(data: bytes, more_body: bool = False) -> dict[str, Any]:
    """The rest of it."""
    return {"type": "http.response.body", "body": data, "more_body": more_body}


def with_ours(app: Any) -> Watch:
    """The app, watched."""
    return tailwatch.install(app, metrics_append=True, gc="off")


UNTOUCHED = [
    (start(401), body(b"no")),
    (start(404), body(b"a 1\n")),
    (start(500), body(b"a 1\n")),
    (start(206), body(b"a 1\n")),
    (start(200, "application/json"), body(b"{}")),
    (start(200, "text/html"), body(b"# HELP a b\n")),
    (start(200, "text/plain; version=9"), body(b"a 1\n")),
    (start(200, "text/plain; version=0.0.4; charset=latin-1"), body(b"a 1\n")),
    (start(200, "text/plain"), body(b"hello\n")),
    (start(200, OM), body(b"a 1\n")),  # no end
    (start(200, OM), body(b"# EOF\na 1\n")),
    (start(200, "application/openmetrics-text; version=2.0.0"), body(b"# EOF\n")),
    (start(200, TEXT, (b"content-encoding", b"br")), body(b"\x00\x01")),
    (start(200, TEXT, (b"content-encoding", b"gzip")), body(b"no gzip")),
    (start(200, TEXT, (b"content-encoding", b"gzip")), body(gzip.compress(b"a 1\n") * 2)),
    (start(200, TEXT, trailers=True), body(b"a 1\n")),
    (start(), {"type": "http.response.pathsend", "path": "/x"}),
    (start(), body(b"a 1\n", True), body(b"b 1\n", True)),  # never ends
    (start(200, TEXT, (b"content-length", b"4")), body(b"a 1\n", True), body(b"", True)),
    (),
]


@pytest.mark.parametrize("messages", UNTOUCHED)
def test_other_answers_go_out_as_they_are(messages: Any, ask: Any) -> None:
    """Message by message, the same objects in the same order."""
    app = answering(*messages)
    with_ours(app)
    assert ask(app, "/metrics", method="GET").sent == list(messages)


def test_an_app_that_raises_in_its_answer(ask: Any) -> None:
    """What it had sent goes out, and its error goes where it went."""
    app = answering(start(), body(b"a 1\n", True), KeyError("theirs"))
    with_ours(app)
    exchange = ask(app, "/metrics", method="GET")
    assert exchange.sent[:2] == [start(), body(b"a 1\n", True)]
    assert isinstance(exchange.error, KeyError)


@pytest.mark.parametrize("limit", [metrics_append, append_module])
def test_an_answer_that_is_too_long(limit: Any, ask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not held in memory, packed or not."""
    monkeypatch.setattr(limit, "MOST_BYTES", 10_000)
    data = b"a 1\n" * 10_000
    packed = limit is append_module
    encoding = [(b"content-encoding", b"gzip")] if packed else []
    messages = [start(200, TEXT, *encoding), body(gzip.compress(data) if packed else data)]
    app = answering(*messages)
    with_ours(app)
    assert ask(app, "/metrics", method="GET").sent == messages
    assert tailwatch.snapshot().drops["metrics_append"] == 1


def test_ours_that_are_late_or_fail(ask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The app's bytes go out as they were; both are counted, and an error is one of ours."""
    messages = [start(200, TEXT, (b"content-length", b"4")), body(b"a 1\n")]
    app = answering(*messages)
    watch = with_ours(app)
    release = threading.Event()
    monkeypatch.setattr(metrics_append, "LATE_SECONDS", 0.01)
    monkeypatch.setattr(watch.exposition, "_take", lambda: release.wait(30) and 1 / 0)

    async def scrape() -> Any:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "GET", "path": "/metrics", "headers": [], "query_string": b""}
        await app(scope, None, send)  # type: ignore[arg-type]
        release.set()
        return sent

    assert asyncio.run(scrape()) == messages
    assert ask(app, "/metrics", method="GET").sent == messages
    found = watch.snapshot().drops["metrics_append"]
    assert found == 2


def test_the_headers_of_the_body_are_made_right(ask: Any) -> None:
    """A length that is ours, no tag of the app's body, and every other header as it was, in order."""
    given = [(b"x-a", b"1"), (b"Content-Length", b"4"), (b"etag", b"e"), (b"x-b", b"2"), (b"set-cookie", b"c=1")]
    app = answering(start(200, TEXT, *given), body(b"a", True), body(b" 1"))
    with_ours(app)
    exchange = ask(app, "/metrics", method="GET")
    kept = [header for header in given if header[0] not in (b"Content-Length", b"etag")]
    length = (b"content-length", str(len(exchange.body)).encode())
    assert exchange.sent[0]["headers"] == [(b"content-type", TEXT.encode()), *kept, length]
    assert exchange.body.startswith(b"a 1\n# HELP ")


def test_the_request_stays_one_that_the_app_sees_whole(ask: Any) -> None:
    """scope["tailwatch"] is there, as on any other route."""
    seen: list[Any] = []

    async def metrics(request: Request) -> Response:
        seen.append(request.scope["tailwatch"])
        return PlainTextResponse("a 1\n", media_type=TEXT)

    app = Starlette(routes=[Route("/metrics", metrics)])
    with_ours(app)
    assert b"tailwatch_" in ask(app, "/metrics", method="GET").body and seen


def test_a_watched_app_below_a_watched_one(ask: Any, registry: CollectorRegistry) -> None:
    """Ours follow once."""
    inner = sglang(registry)
    outer = Starlette(routes=[Mount("/", inner)])
    with_ours(inner).attach(outer)
    assert ask(outer, "/metrics", method="GET").body.count(b"# TYPE tailwatch_build") == 1


def test_after_uninstall_nothing_follows(ask: Any, registry: CollectorRegistry) -> None:
    """The app's answer is its own again."""
    app = sglang(registry)
    with_ours(app)
    tailwatch.uninstall()
    assert b"tailwatch_" not in ask(app, "/metrics", method="GET").body


def test_json_at_the_path_stays(ask: Any) -> None:
    """TensorRT-LLM's /metrics is JSON."""

    async def stats(request: Request) -> Response:
        return JSONResponse([{"iter": 1}])

    app = Starlette(routes=[Route("/metrics", stats)])
    with_ours(app)
    assert ask(app, "/metrics", method="GET").body == b'[{"iter":1}]'


def test_names_that_only_look_like_ours() -> None:
    """A label value, a help text and a longer name are no clash."""
    host = b'# HELP a tailwatch_x\na{b="tailwatch_x"} 1\ntailwatch_xy 1\n'
    own = b"# HELP tailwatch_x X.\n# TYPE tailwatch_x gauge\ntailwatch_x 1\n"
    made = append(host, TEXT, "", lambda kind: own, 200)
    assert made is not None and b"\ntailwatch_x 1\n" in b"".join(made)


@pytest.mark.parametrize(("shape", "features"), [(vllm, ()), (sglang, (NATIVE,))])
def test_a_real_prometheus_with_a_limit(
    shape: Any, features: tuple[str, ...], release: Release, tmp_path: Path, serve: Any, registry: CollectorRegistry
) -> None:
    """An existing job with room for 200 more samples takes both, also one that asks for native histograms first."""
    app = shape(registry)
    tailwatch.install(app, metrics_append=True, gc="off")
    port = serve(app, lifespan="off").port
    httpx.post(f"http://127.0.0.1:{port}/v1/completions", json={})
    theirs = 20
    prometheus = Prometheus(
        release,
        tmp_path,
        port,
        features,
        configuration="global: {scrape_interval: 1s, scrape_timeout: 1s}\nscrape_configs: [{job_name: j, "
        f"sample_limit: {theirs + 200}, static_configs: [{{targets: ['127.0.0.1:{port}']}}]}}]\n",
    )
    try:
        assert prometheus.wait_for("tailwatch_inter_token_latency_seconds_count") == {"m": 3.0}
        assert prometheus.wait_for('{__name__=~"vllm[:_]requests_total"}') == {"": 3.0}  # it may escape the colon
    finally:
        prometheus.close()
