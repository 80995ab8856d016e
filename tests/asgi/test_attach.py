"""The layer on an app: every kind of app, every order, and off again."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import functools
import gc
import inspect
import pickle
import types
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fastapi import FastAPI
from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import StreamingResponse
from starlette.routing import Mount, Route

from tailwatch.asgi import middleware

PATH = "/v1/chat/completions"
TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n'
N = 3


async def stream(scope: Any, receive: Any, send: Any) -> None:
    """An app that streams N tokens whatever it is asked for."""
    if scope["type"] == "lifespan":
        raise RuntimeError("no lifespan here")
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
    for _ in range(N):
        await send({"type": "http.response.body", "body": TOKEN, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


class Plain:
    """An app object."""

    def __init__(self, name: str = "plain") -> None:
        self.name = name

    async def __call__(self, scope: Any, receive: Any, send: Any) -> str:
        """Streams, and returns something."""
        await stream(scope, receive, send)
        return self.name


class Slotted:
    """An app object without a dict."""

    __slots__ = ("name",)

    def __init__(self, name: str = "slotted") -> None:
        self.name = name

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Streams."""
        await stream(scope, receive, send)


class Reducing(Plain):
    """An app object that pickles itself by its class."""

    def __reduce__(self) -> Any:
        return (type(self), (self.name,))


class Abstract(ABC):
    """An app class with a metaclass."""

    @abstractmethod
    def name(self) -> str:
        """Of the app."""


class Concrete(Abstract):
    """An app object of a class with a metaclass."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Streams."""
        await stream(scope, receive, send)

    def name(self) -> str:
        """Of the app."""
        return "concrete"


class Final:
    """An app whose class refuses subclasses."""

    marker = 7

    def __init_subclass__(cls) -> None:
        raise TypeError("final")

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Streams."""
        await stream(scope, receive, send)


class Awaitable3:
    """A class that is an app: its instances are awaited."""

    def __init__(self, scope: Any, receive: Any, send: Any) -> None:
        self.arguments = (scope, receive, send)

    def __await__(self) -> Any:
        return stream(*self.arguments).__await__()


async def body() -> AsyncIterator[bytes]:
    """N tokens."""
    for _ in range(N):
        yield TOKEN


async def chat(request: Any) -> StreamingResponse:
    """A streaming endpoint."""
    return StreamingResponse(body(), media_type="text/event-stream")


def starlette() -> Starlette:
    """A Starlette app with one streaming route."""
    return Starlette(routes=[Route(PATH, chat, methods=["POST"])])


def fastapi(**options: Any) -> FastAPI:
    """A FastAPI app with one streaming route."""
    app = FastAPI(**options)
    app.post(PATH)(streaming)
    return app


def streaming() -> StreamingResponse:
    """A streaming endpoint."""
    return StreamingResponse(body(), media_type="text/event-stream")


SWAPPED = [Plain, Slotted, Reducing, Concrete, starlette, fastapi]
WRAPPED = [
    Final,
    lambda: stream,
    lambda: Plain().__call__,
    lambda: Awaitable3,
    lambda: lambda scope, receive, send: stream(scope, receive, send),
]


@pytest.mark.parametrize("make", SWAPPED)
def test_an_app_object_keeps_its_identity(make: Any, observation: Any, ask: Any) -> None:
    """The app is changed in place: the same object, an instance of its class, with its names, and observed."""
    app = make()
    base = type(app)
    seen = observation()
    attached = seen.attach(app)
    assert attached.app is app
    assert isinstance(app, base)
    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        assert getattr(type(app), name) == getattr(base, name)
    assert inspect.iscoroutinefunction(app.__call__)  # how uvicorn recognises ASGI 3
    assert ask(app, PATH).scope["tailwatch"].tokens == N
    assert hasattr(app, "__dict__") == hasattr(make(), "__dict__")
    assert attached.detach() is None
    assert type(app) is base
    assert "tailwatch" not in ask(app, PATH).scope
    assert seen.core.opened == 1


@pytest.mark.parametrize("make", WRAPPED)
def test_what_has_no_class_to_swap_gets_a_wrapper(make: Any, observation: Any, ask: Any) -> None:
    """The wrapper observes; detached, it lets everything through, and reports that it stays."""
    app = make()
    seen = observation()
    attached = seen.attach(app)
    assert attached.app is not app
    assert inspect.iscoroutinefunction(attached.app.__call__)
    assert ask(attached.app, PATH).scope["tailwatch"].tokens == N
    assert "wrapper" in attached.detach()
    exchange = ask(attached.app, PATH)
    assert "tailwatch" not in exchange.scope
    assert len(exchange.sent) == N + 2
    assert seen.core.opened == 1
    assert attached.detach() is None


def test_a_wrapper_looks_like_what_it_wraps(observation: Any) -> None:
    """Attributes go through it in both directions, and pickling it pickles the app."""
    app = Final()
    wrapper = observation().attach(app).app
    assert wrapper.marker == 7
    wrapper.marker = 8
    assert app.marker == 8
    assert wrapper.__wrapped__ is app
    assert pickle.loads(pickle.dumps(observation().attach(stream).app)) is stream
    assert isinstance(copy.copy(wrapper), Final)
    with pytest.raises(AttributeError):
        wrapper.nothing  # noqa: B018


def test_wrap_leaves_the_object_alone(observation: Any, ask: Any) -> None:
    """wrap=True puts a wrapper around an object that could have been changed."""
    app = Plain()
    attached = observation().attach(app, wrap=True)
    assert type(app) is Plain
    assert ask(attached.app, PATH).scope["tailwatch"].tokens == N
    assert "tailwatch" not in ask(app, PATH).scope


def test_a_partial_is_served(observation: Any, ask: Any) -> None:
    """functools.partial objects are apps as well."""
    attached = observation().attach(functools.partial(stream))
    assert ask(attached.app, PATH).scope["tailwatch"].tokens == N


@pytest.mark.parametrize("app", [7, None, "module:app", lambda scope: None, lambda: None])
def test_what_is_no_app_is_refused(app: Any, observation: Any) -> None:
    """What cannot be called with scope, receive and send is an error with that reason."""
    with pytest.raises(TypeError, match="app: expected an ASGI"):
        observation().attach(app)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("make", [Plain, Reducing, Concrete])
def test_pickles_as_the_class_it_had(make: Any, protocol: int, observation: Any, ask: Any) -> None:
    """By every protocol a watched app is pickled as an object of its own class, and unpickles without us."""
    app = make()
    observation().attach(app)
    app.name = "changed"
    pickled = pickle.dumps(app, protocol)
    assert b"tailwatch.asgi" not in pickled
    found = pickle.loads(pickled)
    assert type(found) is make
    assert found.name == "changed"


@pytest.mark.parametrize("make", [Plain, Slotted, Reducing, Concrete])
def test_copies_are_not_watched(make: Any, observation: Any) -> None:
    """copy and deepcopy give objects of the app's own class."""
    app = make()
    observation().attach(app)
    assert type(copy.copy(app)) is make
    assert type(copy.deepcopy(app)) is make
    assert getattr(copy.copy(app), "name", None) is not None


def test_no_class_is_left_behind(observation: Any) -> None:
    """Attached and detached a hundred times, the app's class has no subclass of ours."""

    class Watched(Plain):
        pass

    app = Watched()
    seen = observation()
    for _ in range(100):
        assert seen.attach(app).detach() is None
    gc.collect()
    assert Watched.__subclasses__() == []


def test_what_the_app_returns_is_returned(observation: Any) -> None:
    """The value of the app's call is handed on."""
    app = Plain("value")
    observation().attach(app)

    async def nothing(*message: Any) -> None: ...

    scope = {"type": "http", "method": "POST", "path": PATH, "root_path": "", "headers": []}
    assert asyncio.run(app(scope, nothing, nothing)) == "value"


def test_attaching_twice_is_attaching_once(observation: Any, ask: Any) -> None:
    """An app that has the layer keeps the one it has, with the same hook or another."""
    app = Plain()
    seen, other = observation(), observation()
    attached = seen.attach(app)
    assert seen.attach(app) is attached
    assert other.attach(app) is attached
    assert ask(app, PATH).scope["tailwatch"].tokens == N
    assert (seen.core.opened, other.core.opened) == (1, 0)
    assert attached.detach() is None
    assert type(app) is Plain


def test_a_wrapped_wrapper_is_the_same(observation: Any) -> None:
    """Attaching the wrapper of a bare callable changes nothing."""
    seen = observation()
    attached = seen.attach(stream)
    assert seen.attach(attached.app) is attached


def test_two_apps_share_a_core(observation: Any, ask: Any) -> None:
    """Two apps in one process are both observed, and let go of one by one."""
    seen = observation()
    first, second = Plain(), starlette()
    attached = [seen.attach(first), seen.attach(second)]
    ask(first, PATH), ask(second, PATH)
    assert seen.core.opened == 2
    assert attached[0].detach() is None
    ask(first, PATH), ask(second, PATH)
    assert seen.core.opened == 3


def test_nested_layers_count_a_request_once(observation: Any, ask: Any) -> None:
    """An observed app mounted in an observed app: the outer one has the request, whatever its core."""
    outer_seen, inner_seen = observation(), observation()
    inner = starlette()
    outer = Starlette(routes=[Mount("/in", inner)])
    inner_seen.attach(inner)
    outer_seen.attach(outer)
    assert ask(outer, "/in" + PATH).scope["tailwatch"].tokens == N
    assert (outer_seen.core.opened, inner_seen.core.opened) == (1, 0)
    assert ask(inner, PATH).scope["tailwatch"].tokens == N
    assert inner_seen.core.opened == 1


def test_a_class_swapped_over_ours_by_inheritance(observation: Any, ask: Any) -> None:
    """Another's subclass of our class: we still see requests; detaching reports what stays, and it is inert."""
    app = Plain()
    seen = observation()
    attached = seen.attach(app)
    app.__class__ = type("Theirs", (type(app),), {})
    assert ask(app, PATH).scope["tailwatch"].tokens == N
    sentence = attached.detach()
    assert "Theirs" in sentence
    assert "lets everything through" in sentence
    exchange = ask(app, PATH)
    assert "tailwatch" not in exchange.scope
    assert len(exchange.sent) == N + 2
    again = seen.attach(app)
    assert ask(app, PATH).scope["tailwatch"].tokens == N
    assert again.detach() is None
    assert type(app).__name__ == "Theirs"


def test_a_class_swapped_past_ours(observation: Any, ask: Any) -> None:
    """Another class is put in the place of ours: we see nothing, leave it alone and report that."""
    app = Plain()
    attached = observation().attach(app)
    theirs = type("Theirs", (Plain,), {})
    app.__class__ = theirs
    assert "tailwatch" not in ask(app, PATH).scope
    assert "Theirs" in attached.detach()
    assert type(app) is theirs


def test_a_call_patched_after_us_is_called(observation: Any, ask: Any) -> None:
    """Others may replace the class's __call__ later: it is looked up at each request."""

    class Patched(Plain):
        pass

    app = Patched()
    observation().attach(app)
    called = []

    async def theirs(self: Any, scope: Any, receive: Any, send: Any) -> None:
        called.append(scope["path"])
        await stream(scope, receive, send)

    Patched.__call__ = theirs  # type: ignore[method-assign,assignment]
    assert ask(app, PATH).scope["tailwatch"].tokens == N
    assert called == [PATH]


def test_detaching_during_a_request(observation: Any) -> None:
    """Requests in flight end as they began, observed, and the next ones are not."""
    seen = observation()
    gate = asyncio.Event()

    class ImportHooks:
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await gate.wait()
            await stream(scope, receive, send)

    app = ImportHooks()
    attached = seen.attach(app)

    async def nothing(*message: Any) -> None: ...

    async def main() -> None:
        scope: dict[str, Any] = {"type": "http", "method": "POST", "path": PATH, "root_path": "", "headers": []}
        running = asyncio.create_task(app(scope, nothing, nothing))
        unstarted = app(dict(scope), nothing, nothing)
        await asyncio.sleep(0)
        assert seen.core.in_flight == 1
        assert attached.detach() is None
        gate.set()
        await running
        await unstarted
        assert scope["tailwatch"].tokens == N

    asyncio.run(main())
    assert seen.core.opened == 1


@pytest.mark.parametrize("started", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("make", [Plain, starlette, fastapi])
def test_before_and_after_start_up(make: Any, started: bool, observation: Any, ask: Any, start_up: Any) -> None:
    """An app can be attached before and after it has started, and then still takes middleware or refuses it."""
    app = make()
    seen = observation()
    if started:
        start_up(app)
        ask(app, "/nothing")
    seen.attach(app)
    if not started:
        start_up(app)
        assert seen.calls == ([] if make is Plain else ["on_startup"])  # Plain raises at lifespan
    assert ask(app, PATH).scope["tailwatch"].tokens == N


class Stamp:
    """A middleware that leaves its mark."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Marks the scope, which already has the stream."""
        scope["mark"] = "tailwatch" in scope
        await self.app(scope, receive, send)


@pytest.mark.parametrize("late", [False, True])
def test_outside_every_middleware(late: bool, observation: Any, ask: Any) -> None:
    """Also middleware that is added after us is inside of us."""
    app = Starlette(routes=[Route(PATH, chat, methods=["POST"])], middleware=[] if late else [Middleware(Stamp)])
    observation().attach(app)
    if late:
        app.add_middleware(Stamp)
    assert ask(app, PATH).scope["mark"] is True


def traced() -> tuple[TracerProvider, InMemorySpanExporter]:
    """A tracer provider that keeps its spans."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider, exporter


@pytest.mark.parametrize("order", ["us first", "them first", "us between", "after start-up"])
def test_beside_opentelemetrys_instrumentation(order: str, observation: Any, ask: Any, start_up: Any) -> None:
    """In every order both see the request, as many spans as without us."""
    spans = []
    for watched in (False, True):
        provider, exporter = traced()
        app = fastapi()
        seen = observation()
        if order == "us first" and watched:
            seen.attach(app)
        FastAPIInstrumentor.instrument_app(app, tracer_provider=provider)
        if order in ("them first", "us between") and watched:
            seen.attach(app)
        start_up(app)
        if order == "after start-up" and watched:
            seen.attach(app)
        exchange = ask(app, PATH)
        assert exchange.status == 200
        assert ("tailwatch" in exchange.scope) is watched
        assert not watched or exchange.scope["tailwatch"].tokens == N
        FastAPIInstrumentor.uninstrument_app(app)
        assert ask(app, PATH).status == 200
        spans.append(sorted(span.name for span in exporter.get_finished_spans()))
    assert spans[0] == spans[1]
    assert spans[1]


def test_beside_fastapis_own_telemetry(observation: Any, ask: Any, start_up: Any) -> None:
    """FastAPI's own spans are the same with and without us."""
    spans = []
    for watched in (False, True):
        provider, exporter = traced()
        app = fastapi(telemetry={"tracer_provider": provider})
        if watched:
            observation().attach(app)
        start_up(app)
        exchange = ask(app, PATH)
        assert exchange.status == 200
        assert not watched or exchange.scope["tailwatch"].tokens == N
        spans.append(sorted(span.name for span in exporter.get_finished_spans()))
    assert spans[0] == spans[1]
    assert spans[1]


def test_on_startup_runs_before_start_up_is_announced(observation: Any) -> None:
    """on_startup runs before the server gets lifespan.startup.complete, once."""
    events: list[str] = []
    seen = observation(on_startup=lambda: events.append("ours"))
    app = starlette()
    seen.attach(app)
    received = iter(({"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}))

    async def receive() -> Any:
        return next(received)

    async def send(message: Any) -> None:
        events.append(message["type"])

    asyncio.run(app({"type": "lifespan", "state": {}}, receive, send))
    assert events == ["ours", "lifespan.startup.complete", "lifespan.shutdown.complete"]


def test_an_app_that_raises_before_it_has_started_gets_no_start_up(observation: Any, ask: Any) -> None:
    """It may be on its way out, where a freeze would only hold it up: the exception goes on, nothing runs."""
    seen = observation()
    app = seen.attach(stream).app
    assert isinstance(ask(app, "", type="lifespan").error, RuntimeError)
    assert seen.calls == []


def test_an_app_that_returns_from_lifespan_starts_as_well(observation: Any, ask: Any) -> None:
    """It has no lifespan and takes requests next: on_startup runs."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        """Does nothing."""

    seen = observation()
    ask(seen.attach(app).app, "", type="lifespan")
    assert seen.calls == ["on_startup"]


def test_a_start_up_that_failed_is_none(observation: Any, start_up: Any) -> None:
    """An app that could not start never takes requests: on_startup does not run."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "lifespan.startup.failed", "message": "no"})

    seen = observation()
    assert start_up(seen.attach(app).app) == ["lifespan.startup.failed"]
    assert seen.calls == []


def test_on_idle_runs_when_the_last_request_ends(observation: Any, ask: Any) -> None:
    """on_request runs as a request comes in, on_idle when none is left in flight."""
    seen = observation()
    app = Plain()
    seen.attach(app)
    ask(app, PATH)
    assert seen.calls == ["on_request", "on_idle"]


def test_a_route_that_streams_is_a_generation_route_from_then_on(observation: Any, ask: Any) -> None:
    """An unknown route that streams is counted from its first stream, and its refusals after that."""
    app = FastAPI()
    refuse = []

    async def talk(room: str) -> Any:
        return StreamingResponse(body(), status_code=429 if refuse else 200, media_type="text/event-stream")

    app.post("/talk/{room}")(talk)
    seen = observation()
    seen.attach(app)
    assert not seen.routes.generates({"type": "http", "method": "POST", "path": "/talk/7", "root_path": ""})
    assert ask(app, "/talk/7").scope["tailwatch"].tokens == N
    assert seen.core.opened == 1
    assert seen.routes.generates({"type": "http", "method": "POST", "path": "/talk/8", "root_path": ""})


class Broken(Exception):
    """Raised by our own parts in the next tests."""


def breaks(*arguments: Any) -> Any:
    """Goes wrong."""
    raise Broken


@pytest.mark.parametrize("where", ["on_request", "on_idle", "on_startup"])
def test_a_hook_that_raises_stays_in_us(where: str, observation: Any, ask: Any, start_up: Any) -> None:
    """What goes wrong in a hook is reported, and start-up and request go on."""
    seen = observation(**{where: breaks})
    app = starlette()
    seen.attach(app)
    assert start_up(app) == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert ask(app, PATH).body == TOKEN * N
    assert [type(error) for error in seen.errors] == [Broken]
    seen.errors.clear()


def test_a_layer_that_cannot_see_lets_through(observation: Any, ask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a request cannot be opened it goes on unobserved, and that is reported."""
    seen = observation()
    app = Plain()
    seen.attach(app)
    monkeypatch.setattr(type(seen.routes), "generates", breaks)
    exchange = ask(app, PATH)
    assert exchange.body == TOKEN * N
    assert "tailwatch" not in exchange.scope
    assert [type(error) for error in seen.errors] == [Broken]
    seen.errors.clear()


def test_a_report_that_raises_changes_nothing(observation: Any, ask: Any) -> None:
    """Even the reporting of errors may go wrong."""
    seen = observation(on_request=breaks)
    hook = dataclasses.replace(seen.hook, on_error=breaks)
    app = Plain()
    middleware.attach(app, hook)
    assert ask(app, PATH).body == TOKEN * N


@pytest.mark.parametrize(
    "scope",
    [
        {"type": "http"},
        {"type": "http", "method": "POST"},
        {"type": "http", "method": "POST", "path": None, "headers": []},
        {"type": "http", "method": "POST", "path": PATH, "headers": 7},
        {"type": "websocket"},
        {"type": "other"},
        {"type": None},
        {},
    ],
)
def test_any_scope_reaches_the_app(scope: dict[str, Any], observation: Any) -> None:
    """Whatever a server makes of a scope, the app gets it and no error of ours."""
    got: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        got.append(scope)

    async def nothing(*message: Any) -> None: ...

    seen = observation()
    asyncio.run(seen.attach(app).app(scope, nothing, nothing))
    assert got == [scope]
    assert got[0] is scope
    seen.errors.clear()


@pytest.mark.parametrize("scope", [None, 7, "scope", [("type", "http")], types.MappingProxyType({"type": "http"})])
def test_scopes_that_are_no_dict_go_straight_through(scope: Any, observation: Any) -> None:
    """What is no dict is none of our business, and no error."""
    got: list[Any] = []

    async def app(*arguments: Any) -> None:
        got.append(arguments)

    seen = observation()
    asyncio.run(seen.attach(app).app(scope, 1, 2))
    assert got == [(scope, 1, 2)]
    assert seen.errors == []
