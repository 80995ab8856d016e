"""What the answers themselves carry: ORCA and Server-Timing headers, the last comment of a stream.

A client that did not ask for it gets the same bytes as without us, and one that did gets the app's answer whole.
"""

from __future__ import annotations

import asyncio
import functools
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import httpx_sse
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import StreamingResponse
from starlette.routing import Route

import tailwatch
from tailwatch.asgi.response_headers import Annotator, _p99, _rounded

from ..support.live_servers import until
from .test_arrival_live import hypercorn_server
from .test_transparency import HOSTILE, ErrorLog, Hostile, awaited, error_log, idle, plain

pytestmark = pytest.mark.integration

__all__ = ["error_log"]

ROUTE = "/v1/chat/completions"
COMMENT = re.compile(rb": tailwatch ttft=\d+\.\d+ms(?: itl_p99=\d+\.\d+ms itl_max=\d+\.\d+ms)? gc=\d+\.\d+ms\n\n")
CHUNK = re.compile(rb"[0-9a-f]+\r\n: tailwatch [^\r\n]*\n\n\r\n")
OURS = re.compile(rb"(?:endpoint-load-metrics|server-timing): [^\r]*\r\n", re.IGNORECASE)
ALL = {"load": lambda form: b"TEXT x=1", "load_header": b"endpoint-load-metrics", "load_form": "text"}


def token(text: str = "x", **more: Any) -> bytes:
    """A chunk of a chat completion."""
    chunk = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m", **more}
    chunk["choices"] = [{"index": 0, "delta": {"content": text}, "finish_reason": None}]
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


SSE = [(b"content-type", b"text/event-stream; charset=utf-8")]
FRAMES = [token("a"), token("b"), token("c"), b"data: [DONE]\n\n"]


class App:
    """Answers with given headers and messages."""

    def __init__(self, *bodies: Any, headers: Any = SSE, status: Any = 200, start: Any = None) -> None:
        self.start = start or {"type": "http.response.start", "status": status, "headers": headers}
        last = len(bodies) - 1
        self.bodies = [
            body if isinstance(body, dict) else {"type": "http.response.body", "body": body, "more_body": i < last}
            for i, body in enumerate(bodies)
        ]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Sends them."""
        await send(self.start)
        for message in self.bodies:
            await send(message)
            await asyncio.sleep(0)


@pytest.fixture
def exchange(observation: Any, ask: Any) -> Callable[..., Any]:
    """exchange(app, path=..., annotator options): the messages that the server got."""

    def run(app: Any, path: str = ROUTE, headers: Any = (), method: str = "POST", **asked: Any) -> Any:
        seen = observation(annotator=Annotator(**({"load": None, "on_error": lambda: None} | asked)))
        return ask(seen.attach(app).app, path, headers=list(headers), method=method)

    return run


def header(answer: Any, name: bytes) -> list[bytes]:
    """The values of a header of the answer."""
    return [value for key, value in answer.sent[0]["headers"] if key.lower() == name]


# ---- the comment ----


def test_the_comment_follows_the_last_event(exchange: Any) -> None:
    """After everything else, once, with the numbers of this request; every other byte is the app's."""
    answer = exchange(App(*FRAMES, b""), sse_timing=True)
    assert answer.body.startswith(b"".join(FRAMES))
    assert COMMENT.fullmatch(answer.body[len(b"".join(FRAMES)) :])
    assert [message.get("more_body") for message in answer.sent[1:]] == [True, True, True, True, False]


def test_the_comment_has_what_was_measured(exchange: Any) -> None:
    """TTFT and the longest gap of a request that waits 30 ms for its first token and 60 ms for its third."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": SSE})
        for wait in (0.03, 0.001, 0.06, 0.001):
            await asyncio.sleep(wait)
            await send({"type": "http.response.body", "body": token(), "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    began = time.monotonic()
    body = exchange(app, sse_timing=True).body
    took_ms = (time.monotonic() - began) * 1e3
    found = {name: float(value) for name, value in re.findall(rb"(\w+)=([\d.]+)ms", COMMENT.search(body)[0])}
    assert 30 <= found[b"ttft"] < took_ms
    assert 60 <= found[b"itl_max"] < took_ms
    assert found[b"itl_p99"] == pytest.approx(found[b"itl_max"], rel=0.02)
    assert found[b"gc"] >= 0


def test_a_body_in_the_last_message_goes_first(exchange: Any) -> None:
    """Where the last message has an event itself."""
    answer = exchange(App(token("a"), token("b")), sse_timing=True)
    assert answer.body.startswith(token("a") + token("b"))
    assert COMMENT.fullmatch(answer.body[len(token("a") + token("b")) :])


@pytest.mark.parametrize(
    ("app", "why"),
    [
        (App(*FRAMES, b"", headers=[*SSE, (b"Content-Length", b"1000")]), "its length is given"),
        (App(*FRAMES, b"", headers=[*SSE, (b"content-encoding", b"gzip")]), "it is compressed"),
        (App(*FRAMES, b"", headers=[(b"content-type", b"application/x-ndjson")]), "it is no event stream"),
        (App(*FRAMES, b"", headers=[*SSE, *SSE]), "it has two types"),
        (App(*FRAMES, b"", headers=[]), "it has no type"),
        (App(*FRAMES, b"", headers=iter(SSE)), "its headers are the server's to consume"),
        (App(*FRAMES, b"", headers=[("content-type", "text/event-stream")]), "they are no bytes"),
        (App(*FRAMES, b"", status=500), "it failed"),
        (App(*FRAMES, b"", status="200"), "its status is none"),
        (App(token(), b"data: half"), "it ends in the middle of an event"),
        (App(token(), b"data: half\n"), "it ends in the middle of an event, after a line"),
        (App(b": ping\n\n", b""), "it has no token"),
        (App(*FRAMES, "text"), "its body is no bytes"),
        (App(*FRAMES, {"type": "http.response.body", "body": b"", "more_body": 0}), "its end is odd"),
        (App(*FRAMES, {"type": "http.response.pathsend", "path": "/"}, b""), "a part of it was a file"),
    ],
)
def test_no_comment(exchange: Any, app: App, why: str) -> None:
    """The messages are the very objects that the app sent."""
    answer = exchange(app, sse_timing=True)
    assert all(got is sent for got, sent in zip(answer.sent[1:], app.bodies, strict=True)), why


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
@pytest.mark.parametrize("cut", [1, 2, 3, 5, 1000])
def test_ends_of_events_in_pieces(exchange: Any, end: bytes, cut: int) -> None:
    """Each of the three line ends, however the bytes were cut into messages."""
    whole = token().rstrip(b"\n") + end
    pieces = [whole[i : i + cut] for i in range(0, len(whole), cut)]
    body = exchange(App(*pieces, b""), sse_timing=True).body
    assert body.startswith(whole)
    assert COMMENT.fullmatch(body[len(whole) :])


def test_other_bytes_count_as_bytes(exchange: Any) -> None:
    """bytearray and memoryview."""
    answer = exchange(App(bytearray(token()), memoryview(token())), sse_timing=True)
    assert COMMENT.search(answer.body)
    assert answer.body.startswith(token() * 2)


def test_head_has_no_body(exchange: Any) -> None:
    """Where the method is HEAD nothing is added."""
    assert b"tailwatch" not in exchange(App(*FRAMES, b""), method="HEAD", sse_timing=True).body


@given(st.lists(st.integers(1, 10**12), min_size=1, max_size=300))
def test_p99_of_gaps(gaps: list[int]) -> None:
    """Within 2 % of the gap of rank ceil(0.99 n)."""
    counts: dict[int, int] = {}
    for gap in gaps:
        counts[_rounded(gap)] = counts.get(_rounded(gap), 0) + 1
    exact = sorted(gaps)[-(-99 * len(gaps) // 100) - 1]
    assert _p99(counts) == pytest.approx(exact, rel=0.02)


def test_gaps_are_few_numbers() -> None:
    """What is kept of a stream stays small."""
    assert len({_rounded(gap) for gap in range(1, 10**5)}) < 500


# ---- headers ----


def test_load_on_request_and_always(exchange: Any) -> None:
    """In the format that the request asks for; with a fixed one, always."""

    def load(form: str) -> bytes | None:
        return form.upper().encode() + b" x=1" if form.upper() in ("TEXT", "JSON") else None

    asked = {
        "load": load,
        "load_header": b"endpoint-load-metrics",
        "load_format_header": b"endpoint-load-metrics-format",
    }
    for form, expected in ((b"TEXT", b"TEXT x=1"), (b" json", b"JSON x=1")):
        answer = exchange(App(*FRAMES), headers=[(b"Endpoint-Load-Metrics-Format", form)], **asked)
        assert header(answer, b"endpoint-load-metrics") == [expected]
    assert header(exchange(App(*FRAMES), **asked), b"endpoint-load-metrics") == []
    wanted = [(b"endpoint-load-metrics-format", b"BIN")]
    assert header(exchange(App(*FRAMES), headers=wanted, **asked), b"endpoint-load-metrics") == []
    assert header(exchange(App(*FRAMES), **asked, load_form="json"), b"endpoint-load-metrics") == [b"JSON x=1"]


def test_the_apps_own_report_stands(exchange: Any) -> None:
    """vLLM sends its own: there is one, and it is the app's."""
    own = [*SSE, (b"Endpoint-Load-Metrics", b"TEXT named_metrics.kv_cache_usage_perc=0.4")]
    answer = exchange(App(*FRAMES, headers=own), **ALL)
    assert header(answer, b"endpoint-load-metrics") == [own[1][1]]


def test_server_timing_keeps_the_apps(exchange: Any) -> None:
    """Its own stands first; ours is a second field, which the header allows, with what is known by then."""
    own = [*SSE, (b"server-timing", b"db;dur=3")]
    values = header(exchange(App(*FRAMES, headers=own), server_timing=True), b"server-timing")
    assert values[0] == b"db;dur=3"
    assert re.fullmatch(rb"app;dur=\d+\.\d", values[1])  # its arrival is not known: no such wait is claimed


def test_the_apps_headers_are_not_touched(exchange: Any) -> None:
    """Neither its list nor its message, which it may send again; order and duplicates stay."""
    headers = [*SSE, (b"x-a", b"1"), (b"x-a", b"2")]
    app = App(*FRAMES, headers=headers)
    answer = exchange(app, **ALL, server_timing=True)
    assert headers == [*SSE, (b"x-a", b"1"), (b"x-a", b"2")]
    assert app.start["headers"] is headers
    assert answer.sent[0]["headers"][:3] == headers


def test_only_generation_routes(exchange: Any) -> None:
    """Any other answer goes through as the object it is; a POST that turns out to stream is one of them."""
    app = App(b"{}", headers=[(b"content-type", b"application/json")])
    answer = exchange(app, path="/health", **ALL, server_timing=True, sse_timing=True)
    assert answer.sent[0] is app.start
    streaming = exchange(App(*FRAMES, b""), path="/unknown", **ALL, sse_timing=True)
    assert header(streaming, b"endpoint-load-metrics") == [b"TEXT x=1"]
    assert COMMENT.search(streaming.body)


def test_what_goes_wrong_in_ours_is_counted_and_kept_from_the_app(observation: Any, ask: Any) -> None:
    """A load that cannot be read: the answer goes on without it."""
    errors: list[int] = []

    def load(form: str) -> bytes:
        raise RuntimeError("no load")

    asked = Annotator(load=load, load_header=b"x-load", load_form="text", on_error=lambda: errors.append(1))
    answer = ask(observation(annotator=asked).attach(App(*FRAMES)).app, ROUTE)
    assert answer.body == b"".join(FRAMES)
    assert errors == [1]


def test_nothing_asked_for_stands_in_no_way(observation: Any) -> None:
    """With the options off no wrapper is made: the server's send is the one that our Send calls."""
    seen = observation(annotator=Annotator(load=None, on_error=lambda: None))
    assert seen.hook.annotator.begin({"headers": []}, None, 0, 0, 0, 0) is None
    watch = tailwatch.install(App(), gc="off")
    try:
        assert watch._hook().annotator is None
    finally:
        tailwatch.uninstall()


def test_hostile_apps_behave_as_without_us(
    serve: Any, observation: Any, flavour: dict[str, str], error_log: ErrorLog, wait_until: Any
) -> None:
    """With everything on, every misdeed on a generation route gives the same bytes but for what we add, the same
    exceptions in the app and the same log of the server."""
    asked = Annotator(**ALL, server_timing=True, sse_timing=True, on_error=lambda: pytest.fail("an error of ours"))
    bare, watched = Hostile(), Hostile()
    seen = observation(patterns=["/known/{misdeed}"], annotator=asked)
    servers = [(bare, serve(bare, **flavour)), (watched, serve(seen.attach(watched).app, **flavour))]
    for misdeed in HOSTILE:
        found = []
        for hostile, server in servers:
            hostile.ended.clear()
            awaited.clear()
            error_log.records.clear()
            line = f"POST /known/{misdeed.__name__} HTTP/1.1"
            request = f"{line}\r\nHost: x\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbody"
            answer = CHUNK.sub(b"", OURS.sub(b"", server.raw(request.encode())))
            assert hostile.ended.wait(30)
            wait_until(functools.partial(idle, server))
            found.append((answer, plain(hostile.became), plain(list(awaited)), list(error_log.records)))
            hostile.became.clear()
        assert found[0] == found[1], misdeed.__name__


# ---- real servers and clients ----


async def stream_frames() -> Any:
    """A short answer."""
    for frame in FRAMES:
        yield frame
        await asyncio.sleep(0.001)


def streaming_app(**middleware: Any) -> Starlette:
    """A chat route, as a framework writes it."""

    async def chat(request: Any) -> StreamingResponse:
        return StreamingResponse(stream_frames(), media_type="text/event-stream")

    app = Starlette(routes=[Route(ROUTE, chat, methods=["POST"])])
    if middleware.get("gzip"):
        app.add_middleware(GZipMiddleware, minimum_size=1)
    return app


@pytest.fixture
def install() -> Iterator[Callable[..., Any]]:
    """install(app, **options): with everything asked for."""
    options = {"gc": "off", "orca": "text", "server_timing": True, "sse_timing": True}
    yield lambda app, **more: tailwatch.install(app, **(options | more)).app
    tailwatch.uninstall()


@pytest.fixture(params=["uvicorn", "hypercorn"])
def address(request: pytest.FixtureRequest, install: Any, serve: Any) -> Iterator[str]:
    """A real server with everything on, over a socket."""
    app = install(streaming_app())
    if request.param == "uvicorn":
        yield f"http://127.0.0.1:{serve(app).port}"
        return
    with hypercorn_server(app) as port:
        yield f"http://127.0.0.1:{port}"


def test_clients_ignore_the_comment(address: str) -> None:
    """The OpenAI SDK and httpx-sse read the same events as without it; the bytes have it, and the headers."""
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
        stream = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "?"}], stream=True)
        assert [chunk.choices[0].delta.content for chunk in stream] == ["a", "b", "c"]
    with httpx.Client() as plain_client:
        with httpx_sse.connect_sse(plain_client, "POST", address + ROUTE) as source:
            assert [event.data for event in source.iter_sse()][-1] == "[DONE]"
        answer = plain_client.post(address + ROUTE)
    assert COMMENT.search(answer.content).end() == len(answer.content)
    assert answer.headers["endpoint-load-metrics"].startswith("TEXT rps_fractional=")
    assert "named_metrics.num_requests_waiting=1.0" in answer.headers["endpoint-load-metrics"]
    assert "app;dur=" in answer.headers["server-timing"]
    until(lambda: tailwatch.snapshot().in_flight == 0)
    assert tailwatch.snapshot().requests["good"] == 3
    assert not any(tailwatch.snapshot().errors.values())


def test_a_wait_in_the_kernel_is_shown(serve: Any, install: Any) -> None:
    """A request that came while the loop stood still: Server-Timing has how long it waited to be accepted."""
    inner = streaming_app()
    begun, go_on = threading.Event(), threading.Event()

    async def stall(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"] == "/stall":
            begun.set()
            go_on.wait(30)  # in the loop: no request is served meanwhile
        await inner(scope, receive, send)

    server = serve(install(stall), lifespan="off")
    request = f"POST {ROUTE} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()
    with server.connect() as first, server.connect() as second:
        first.sendall(b"GET /stall HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert begun.wait(30)
        began = time.monotonic()
        second.sendall(request)
        sent = time.monotonic()
        time.sleep(0.2)
        held_ms = (time.monotonic() - sent) * 1e3
        go_on.set()
        answer = b""
        while part := second.recv(65536):
            answer += part
        took_ms = (time.monotonic() - began) * 1e3
        first.recv(100)
    found = re.search(rb"server-timing: accept;dur=([\d.]+), app;dur=", answer)
    assert found
    assert held_ms - 20 <= float(found[1]) <= took_ms + 20  # the kernel counts in ticks


def test_a_compressed_stream_is_left_alone(serve: Any, install: Any) -> None:
    """Behind a gzip middleware: what the client unpacks is the app's answer."""
    server = serve(install(streaming_app(gzip=True)))
    answer = httpx.post(f"http://127.0.0.1:{server.port}{ROUTE}", headers={"accept-encoding": "gzip"})
    assert answer.content == b"".join(FRAMES) or COMMENT.search(answer.content)
    if answer.headers.get("content-encoding") == "gzip":
        assert answer.content == b"".join(FRAMES)


def test_keep_alive_after_a_comment(serve: Any, install: Any) -> None:
    """The next answer on the same connection is whole: the chunks were framed right."""
    server = serve(install(streaming_app()))
    with httpx.Client() as client:
        for _ in range(3):
            answer = client.post(f"http://127.0.0.1:{server.port}{ROUTE}")
            assert answer.content.startswith(b"".join(FRAMES))
            assert COMMENT.search(answer.content)
