"""A scrape at the outermost layer, and an app's own metrics, which are never shadowed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

pytestmark = pytest.mark.integration

TEXT = "text/plain; version=0.0.4; charset=utf-8"
MOVED = "/tailwatch/metrics"


@dataclass
class Answer:
    """What an exporter answers."""

    parts: tuple[bytes, ...] = (b"ours 1\n",)
    headers: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.headers = [("Content-Type", TEXT), ("Content-Length", str(sum(map(len, self.parts))))]


def ours(accept: str, accept_encoding: str) -> Answer:
    """An exporter."""
    return Answer()


async def theirs(request: Any) -> Response:
    """An app's own metrics."""
    return PlainTextResponse("theirs 1\n", media_type="text/plain; version=0.0.4")


async def their_json(request: Any) -> Response:
    """An app's own page that is no exposition."""
    return JSONResponse({"theirs": 1})


async def exposition(scope: Any, receive: Any, send: Any) -> None:
    """An app without routes that answers /metrics itself."""
    if scope["path"] == "/metrics":
        await PlainTextResponse("theirs 1\n", media_type="text/plain; version=0.0.4")(scope, receive, send)
    else:
        await PlainTextResponse("no", 404)(scope, receive, send)


async def deaf(scope: Any, receive: Any, send: Any) -> None:
    """An app that streams whatever it is asked for, without an end."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
    await send({"type": "http.response.body", "body": b"data: x\n\n", "more_body": True})
    await receive()
    assert (await receive())["type"] == "http.disconnect"


class Inside:
    """A middleware that answers /metrics."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Its own, or the app's."""
        mine = scope["type"] == "http" and scope["path"] == "/metrics"
        await (exposition if mine else self.app)(scope, receive, send)


def included() -> FastAPI:
    """The route comes by a router with a prefix."""
    router = APIRouter(prefix="/metrics")
    router.get("")(lambda: Response("theirs 1\n"))
    app = FastAPI()
    app.include_router(router)
    return app


def middleware() -> FastAPI:
    """A middleware answers, no route has it."""
    app = FastAPI()
    app.add_middleware(Inside)
    return app


WITH_OWN: list[Callable[[], Any]] = [
    lambda: Starlette(routes=[Route("/metrics", theirs)]),
    lambda: Starlette(routes=[Route("/metrics", their_json)]),
    lambda: Starlette(routes=[Mount("/metrics", PlainTextResponse("theirs 1\n"))]),
    lambda: Starlette(routes=[Mount("/", Starlette(routes=[Route("/metrics", theirs)]))]),
    included,
    lambda: ProxyHeadersMiddleware(Starlette(routes=[Route("/metrics", theirs)])),
    middleware,
    lambda: exposition,
]
WITHOUT: list[Callable[[], Any]] = [
    FastAPI,
    Starlette,
    lambda: Starlette(routes=[Route("/{anything:path}", their_json)]),
    lambda: Starlette(routes=[Mount("/", PlainTextResponse("spa"))]),
    lambda: Starlette(routes=[Route("/metricsx", theirs), Mount("/m", Starlette(routes=[Route("/metrics", theirs)]))]),
    lambda: deaf,
]


@pytest.mark.parametrize("make", WITHOUT)
def test_scrape(make: Any, serve: Any, observation: Any, flavour: dict[str, str]) -> None:
    """200, type and length, at once and again, and nothing at the other path."""
    server = serve(observation(metrics=ours).attach(make()).app, lifespan="off", **flavour)
    for _ in range(2):
        status, headers, body = server.http("/metrics", "GET")
        assert (status, headers["content-type"], headers["content-length"], body) == (200, TEXT, "7", b"ours 1\n")
    if make is not WITHOUT[-1]:  # which never ends
        assert b"ours" not in server.http(MOVED, "GET")[2]


@pytest.mark.parametrize("make", WITH_OWN)
def test_an_apps_own_metrics_are_never_shadowed(
    make: Any, serve: Any, observation: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The app's answer is what it is without us; ours is at the other path, and one line of the log has it."""
    server = serve(observation(metrics=ours).attach(make()).app, lifespan="off")
    bare = serve(make(), lifespan="off")
    with caplog.at_level(logging.INFO, "tailwatch"):
        for _ in range(3):
            for method in ("GET", "HEAD", "POST"):
                assert server.http("/metrics", method)[::2] == bare.http("/metrics", method)[::2]
            assert server.http(MOVED, "GET")[2] == b"ours 1\n"
    lines = [record.getMessage() for record in caplog.records if record.name == "tailwatch"]
    assert len(lines) == 1
    assert MOVED in lines[0]


@pytest.mark.parametrize("make", WITH_OWN[:-2])
def test_the_move_is_logged_at_start_up(
    make: Any, serve: Any, observation: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The log has it before the wrong path is scraped, and ours is found there; also where uvicorn wraps."""
    with caplog.at_level(logging.INFO, "tailwatch"):
        server = serve(observation(metrics=ours).attach(make()).app)
    assert [MOVED in record.getMessage() for record in caplog.records if record.name == "tailwatch"] == [True]
    assert server.http(MOVED, "GET")[2] == b"ours 1\n"


def test_head_has_no_body(observation: Any, ask: Any) -> None:
    """HEAD: the headers of GET, and nothing after them, whatever the server does."""
    app = observation(metrics=ours).attach(Starlette()).app
    exchange = ask(app, "/metrics", method="HEAD")
    assert (exchange.status, exchange.body) == (200, b"")
    assert (b"content-length", b"7") in exchange.sent[0]["headers"]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_other_methods_are_the_apps_business(method: str, observation: Any, ask: Any) -> None:
    """What is no GET and no HEAD gets the app's own answer."""
    app = observation(metrics=ours).attach(Starlette()).app
    assert ask(app, "/metrics", method=method).status == 404


@pytest.mark.parametrize(
    "path", ["/metrics/", "/metrics/x", "/x/metrics", "/metricsx", "//metrics", "/tailwatch/metrics"]
)
def test_other_paths_are_the_apps_business(path: str, observation: Any, ask: Any) -> None:
    """The path is exact: no redirect, no prefix."""
    app = observation(metrics=ours).attach(Starlette()).app
    assert ask(app, path, method="GET").status == 404


def test_below_a_root_path(observation: Any, ask: Any) -> None:
    """The path counts from the root path, given whole or stripped by the proxy."""
    app = observation(metrics=ours).attach(Starlette()).app
    for path in ("/api/metrics", "/metrics"):
        assert ask(app, path, method="GET", root_path="/api").body == b"ours 1\n"


def test_a_mounted_app_that_is_observed_alone(observation: Any, ask: Any) -> None:
    """Below its mount an observed app serves its metrics."""
    inner = observation(metrics=ours).attach(Starlette()).app
    assert ask(Starlette(routes=[Mount("/in", inner)]), "/in/metrics", method="GET").body == b"ours 1\n"


@pytest.mark.parametrize("options", [{}, {"metrics": ours, "metrics_path": ""}])
def test_not_served(options: dict[str, Any], observation: Any, ask: Any) -> None:
    """Without metrics or with an empty path nothing is served."""
    app = observation(**options).attach(Starlette()).app
    assert ask(app, "/metrics", method="GET").status == 404
    assert ask(app, "", method="GET").status == 404


def test_another_path(observation: Any, ask: Any) -> None:
    """metrics_path moves them."""
    app = observation(metrics=ours, metrics_path="/internal/m").attach(Starlette()).app
    assert ask(app, "/internal/m", method="GET").body == b"ours 1\n"
    assert ask(app, "/metrics", method="GET").status == 404


def test_not_served_once_detached(observation: Any, ask: Any) -> None:
    """After detaching the path is the app's again, also behind a wrapper."""
    for wrap in (False, True):
        attached = observation(metrics=ours).attach(Starlette(), wrap=wrap)
        attached.detach()
        assert ask(attached.app, "/metrics", method="GET").status == 404


def test_rendered_off_the_loop_and_sent_in_parts(observation: Any, ask: Any) -> None:
    """The exporter runs on another thread, gets what is accepted, and its parts are messages of their own."""
    asked: list[Any] = []

    def render(accept: str, accept_encoding: str) -> Answer:
        asked.append((accept, accept_encoding, threading.current_thread() is threading.main_thread()))
        return Answer(tuple(b"%d\n" % i for i in range(5)))

    app = observation(metrics=render).attach(Starlette()).app
    headers = [(b"accept", b"text/plain"), (b"accept", b"*/*;q=0.1"), (b"accept-encoding", b"gzip")]
    exchange = ask(app, "/metrics", method="GET", headers=headers)
    assert asked == [("text/plain,*/*;q=0.1", "gzip", False)]
    assert [message["body"] for message in exchange.sent[1:]] == [b"0\n", b"1\n", b"2\n", b"3\n", b"4\n", b""]
    assert [message["more_body"] for message in exchange.sent[1:]] == [True] * 5 + [False]


def test_an_exporter_that_raises_is_a_failed_scrape(observation: Any, ask: Any) -> None:
    """A scraper must see the failure: 500, reported, and nothing raised."""

    def render(accept: str, accept_encoding: str) -> Answer:
        raise ZeroDivisionError

    seen = observation(metrics=render)
    exchange = ask(seen.attach(Starlette()).app, "/metrics", method="GET")
    assert (exchange.status, exchange.error) == (500, None)
    assert [type(error) for error in seen.errors] == [ZeroDivisionError]
    seen.errors.clear()


def test_a_scraper_that_goes_away_is_no_error(observation: Any, ask: Any) -> None:
    """A send that finds the connection gone ends the scrape in silence."""

    class Gone(Starlette):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            async def broken(message: Any) -> None:
                raise BrokenPipeError

            await super().__call__(scope, receive, broken)

    inner = Starlette()
    seen = observation(metrics=ours)
    outer = Gone(routes=[Mount("/in", seen.attach(inner).app)])
    assert ask(outer, "/in/metrics", method="GET").error is None


def test_scrapes_are_not_counted(observation: Any, ask: Any) -> None:
    """A scrape is no request of the app's."""
    seen = observation(metrics=ours)
    ask(seen.attach(Starlette()).app, "/metrics", method="GET")
    assert seen.calls == []
    assert seen.core.opened == 0
