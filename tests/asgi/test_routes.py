"""Which requests generate tokens, and what they are labelled with."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.types import ASGIApp

from tailwatch.asgi.routes import UNMATCHED, Routes, expression, route_of
from tailwatch.errors import OptionError


def http(path: str, method: str = "POST", **more: Any) -> dict[str, Any]:
    """An http scope."""
    return {"type": "http", "method": method, "path": path, "root_path": "", "headers": [], **more}


def websocket(path: str) -> dict[str, Any]:
    """A websocket scope: it has no method."""
    return {"type": "websocket", "path": path, "root_path": "", "headers": []}


def routed(app: ASGIApp, path: str, **more: Any) -> dict[str, Any]:
    """The scope after an app has answered it."""
    scope = http(path, query_string=b"", **more)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        assert message["type"].startswith("http.response.")

    asyncio.run(app(scope, receive, send))
    return scope


async def endpoint(request: Any) -> PlainTextResponse:
    """Answers anything."""
    return PlainTextResponse("ok")


def test_what_streams_and_is_not_counted_is_named() -> None:
    """By its template, the first few, each once; never by what a client wrote."""
    routes = Routes()
    app = Starlette(routes=[Route("/feed/{user}", endpoint)])
    for _ in range(2):
        routes.streamed(routed(app, "/feed/7", method="GET"))
    for path in ("/raw", "/x\nserver evil", "/\udcff"):
        routes.streamed(http(path, "GET"))
    assert routes.uncounted == [("GET", "/feed/{user}")] and not routes.full
    for number in range(20):
        routes.streamed(routed(Starlette(routes=[Route(f"/{number}", endpoint)]), f"/{number}", method="GET"))
    routes.streamed(routed(Starlette(routes=[Route("/a b", endpoint)]), "/a b", method="GET"))
    assert len(routes.uncounted) == 8 and routes.full
    assert Routes([path for _, path in routes.uncounted]).generates(http("/feed/7", "GET"))


@pytest.mark.parametrize(
    "path",
    [
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/responses",
        "/v1/messages",
        "/chat/completions",
        "/generate",
        "/generate_stream",
        "/inference/v1/generate",
        "/completion",
        "/infill",
        "/api/generate",
        "/api/chat",
        "/v2/models/llama/generate_stream",
        "/v2/models/llama/versions/3/generate",
        "/v1/completions/",
        "/api/generate/",
        "/v2/models/llama/generate_stream/",
    ],
)
def test_known_paths_generate(path: str) -> None:
    """The paths of the known servers generate tokens when posted to, and over WebSockets, and never otherwise."""
    routes = Routes()
    assert routes.generates(http(path))
    assert routes.generates(websocket(path))
    assert not routes.generates(http(path, "GET"))
    assert not routes.generates(http(path, "HEAD"))


@pytest.mark.parametrize(
    "path",
    ["/", "", "/health", "/v1/models", "/v1/messages/count_tokens", "/xv1/completions", "/images/generate",
     "/v1/completions//x", "/v1/completions/x/", "/v1beta/models/gemini:streamGenerateContent",
     "/V1/completions", "/v2/models/a/b/generate", "/v1/chat/completions/7"],
)  # fmt: skip
def test_other_paths_do_not(path: str) -> None:
    """What only resembles a known path is not one."""
    assert not Routes().generates(http(path))


def test_a_trailing_slash_makes_no_label_of_its_own() -> None:
    """With and without it, a request has the same label."""
    for path in ("/v1/completions", "/llm/v1/completions", "/v1/completions/", "/llm/v1/completions/"):
        assert route_of(http(path)) == "/v1/completions"


def test_known_paths_under_a_mount_or_root_path() -> None:
    """OpenAI's paths count wherever they are mounted, the shorter names only under the root path."""
    routes = Routes()
    assert routes.generates(http("/llm/v1/chat/completions"))
    assert routes.generates(http("/api/generate", root_path="/api"))
    assert routes.generates(http("/proxy/generate", root_path="/proxy"))
    assert routes.generates(http("/generate", root_path="/proxy"))
    assert routes.generates(http("/sub/generate", root_path="/sub", app_root_path=""))
    assert not routes.generates(http("/proxygenerate", root_path="/proxy"))


def test_patterns_asked_for() -> None:
    """routes= adds exact paths and templates; a parameter is one segment, a path parameter any number."""
    routes = Routes(["/chat", "/users/{user}/ask", "/files/{name:path}", "/n/{id:int}"])
    assert routes.generates(http("/chat"))
    assert routes.generates(http("/users/ann/ask"))
    assert not routes.generates(http("/users/ann/b/ask"))
    assert not routes.generates(http("/users//ask"))
    assert routes.generates(http("/files/a/b/c"))
    assert routes.generates(http("/n/7"))
    assert not routes.generates(http("/chat/x"))


@pytest.mark.parametrize("pattern", ["chat", "", "/a/{b", "/a/b}", "/a/{}", "v1/{x}"])
def test_bad_pattern_is_an_error_that_names_the_option(pattern: str) -> None:
    """A pattern that is no path is refused, with the option, what was expected and what was found."""
    with pytest.raises(OptionError, match="routes") as caught:
        Routes([pattern])
    assert repr(pattern) in str(caught.value)
    assert "expected" in str(caught.value)


def test_learned_routes_count() -> None:
    """A route that ever streamed generates from then on; "unmatched" teaches nothing."""
    routes = Routes()
    assert not routes.generates(http("/talk/7"))
    routes.learn("/talk/{id}")
    routes.learn("/say")
    routes.learn(UNMATCHED)
    assert routes.generates(http("/talk/7"))
    assert routes.generates(http("/say"))
    assert not routes.generates(http(UNMATCHED))


def test_template_characters_are_literal() -> None:
    """Characters with a meaning in regular expressions have none in a template."""
    assert expression("/a.b/{x}+").fullmatch("/a.b/7+")
    assert not expression("/a.b/{x}+").fullmatch("/aXb/7+")


def test_label_is_the_template_of_the_matched_route() -> None:
    """Parameters appear by name, whatever they were."""
    app = FastAPI()
    app.post("/ask/{user}")(lambda user: user)
    assert route_of(routed(app, "/ask/ann")) == "/ask/{user}"
    assert route_of(routed(app, "/ask/ask")) == "/ask/{user}"


def test_label_includes_the_routers_prefix() -> None:
    """A route of an included router is labelled with the prefix of the router, parameters by name."""
    inner = APIRouter(prefix="/deep/{tenant}")
    inner.post("/gen/{x}")(lambda tenant, x: x)
    outer = APIRouter(prefix="/v2")
    outer.include_router(inner)
    app = FastAPI()
    app.include_router(outer, prefix="/pre")
    assert route_of(routed(app, "/pre/v2/deep/acme/gen/5")) == "/pre/v2/deep/{tenant}/gen/{x}"


def test_label_includes_the_mount() -> None:
    """A route of a mounted app is labelled with the mount before it, and not with the server's root path."""
    inner = Starlette(routes=[Route("/a/{b}", endpoint, methods=["POST"]), Route("/z", endpoint, methods=["POST"])])
    app = Starlette(routes=[Mount("/st", inner), Mount("/t/{tenant}", inner)])
    assert route_of(routed(app, "/st/a/q")) == "/st/a/{b}"
    assert route_of(routed(app, "/st/z")) == "/st/z"
    assert route_of(routed(app, "/t/acme/a/q")) == "/t/{tenant}/a/{b}"
    assert route_of(routed(app, "/root/st/a/q", root_path="/root")) == "/st/a/{b}"


def test_label_never_holds_what_the_client_invented() -> None:
    """Unmatched paths, and what follows a mount of something without routes, stay out of the labels."""
    app = Starlette(routes=[Mount("/bare", PlainTextResponse("hi")), Mount("/t/{tenant}", Starlette())])
    for i in range(100):
        assert route_of(routed(app, f"/no/{i}")) == UNMATCHED
        assert route_of(routed(app, f"/bare/{i}/bare")) in ("/bare", UNMATCHED)
        assert route_of(routed(app, f"/t/{i}/x{i}")) in ("/t/{tenant}", UNMATCHED)


def test_label_of_a_known_path_without_a_router() -> None:
    """A bare callable has no routes: a known path is its own template, cut to the part that is known."""
    routes = Routes(["/users/{user}/ask"])
    assert routes.route_of(http("/v1/completions")) == "/v1/completions"
    assert routes.route_of(http("/whatever/9/v1/chat/completions")) == "/v1/chat/completions"
    assert routes.route_of(http("/users/ann/ask")) == "/users/{user}/ask"
    assert routes.route_of(http("/v2/models/m7/generate")) == "/v2/models/{model}/generate"
    assert routes.route_of(http("/users/ann")) == UNMATCHED


def test_label_of_routers_that_only_name_an_endpoint() -> None:
    """Older Starlettes give endpoint and parameters, not the route: the values are put back as names."""
    assert route_of(http("/a/5/b", endpoint=endpoint, path_params={"n": 5})) == "/a/{n}/b"
    assert route_of(http("/a/b", endpoint=endpoint, path_params={})) == "/a/b"
    assert route_of(http("/a/b", endpoint=endpoint, path_params={"n": 6})) == UNMATCHED
    assert route_of(http("/a/b", endpoint=endpoint, path_params={}, app_root_path="", root_path="/a")) == UNMATCHED


@pytest.mark.parametrize("odd", [None, 7, SimpleNamespace(), SimpleNamespace(path=None)])
def test_label_of_odd_route_objects(odd: object) -> None:
    """A route that has no path is as good as none."""
    assert route_of(http("/x", route=odd)) == UNMATCHED


def test_websocket_routes_have_labels() -> None:
    """The label of a websocket is the template of its route."""
    route = WebSocketRoute("/ws/{room}", endpoint)
    scope = websocket("/ws/7") | {"route": route, "path_params": {"room": "7"}}
    assert route_of(scope) == "/ws/{room}"


def labels(paths: Iterable[str], app: ASGIApp) -> set[str]:
    """The labels that requests of these paths get."""
    return {route_of(routed(app, path)) for path in paths}


def test_number_of_labels_is_bounded_by_the_app() -> None:
    """However many paths clients try, labels come from the app's own routes."""
    inner = Starlette(routes=[Route("/{x}/{y:path}", endpoint, methods=["POST"])])
    app = Starlette(routes=[Mount("/m/{k}", inner), Route("/u/{id:int}", endpoint, methods=["POST"])])
    paths = [f"/m/{i % 7}/{i}/{i}/m" for i in range(200)] + [f"/u/{i:03d}" for i in range(200)]
    assert labels(paths, app) <= {"/m/{k}/{x}/{y:path}", "/u/{id:int}", UNMATCHED}
