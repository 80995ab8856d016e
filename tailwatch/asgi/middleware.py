"""The outermost layer of an ASGI app: sees every request, changes nothing.

An app object keeps its identity: its class is swapped for a subclass of it with our `__call__`, which works before
and after start-up and beside any other instrumentation. What has no class to swap gets a wrapper. Everything of
ours is guarded: what goes wrong in it is reported to Hook.on_error, and the request goes on unobserved.
"""

from __future__ import annotations

import sys
import time
import types
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any

from tailwatch import _hot
from tailwatch.asgi.arrival import ASGI, ArrivalClock
from tailwatch.asgi.metrics_append import MetricsAppend
from tailwatch.asgi.metrics_route import Append, MetricsResponse, Scrape
from tailwatch.asgi.page_route import PageRoute, PageSource
from tailwatch.asgi.response_headers import Annotator
from tailwatch.asgi.routes import Routes
from tailwatch.gc.idle_hooks import running_loop

READY_SECONDS, _LOOK_SECONDS = 5.0, 0.02
_MARK = "__tailwatch__"
request_variable: ContextVar[_Serving | None] = ContextVar("tailwatch", default=None)
"""What a task's request holds, where Hook.carries is set; else None."""
_PLAIN = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType)


@dataclass(frozen=True, kw_only=True, slots=True)
class Hook:
    """What the layer needs of the rest; one of them may serve several apps.

    metrics: the answer to a scrape, given its Accept and Accept-Encoding; called in a worker thread, it may block.
        None: not served.
    append: what puts ours behind an app's own metrics. None: nothing does.
    snapshot: the answer to a client on this machine that asks for all numbers, from the query string; likewise.
    page: what answers at /tailwatch. None: the app alone.
    annotator: what is added to the answers themselves. None: nothing.
    on_startup: called before lifespan.startup.complete is handed on, or after an app without lifespan returned.
    is_ready: whether the processes that the server's tokens pass through are ready, too; asked before
        lifespan.startup.complete is handed on, until it is so, or for READY_SECONDS.
    on_idle: called when a request has ended and no other is in flight.
    on_request: called when a request has come in that is observed.
    on_error: called inside the handler of an exception of ours.
    carries: whether current_stream() is called, or request_variable is read.
    """

    core: _hot.Core
    routes: Routes
    on_request: Callable[[], object]
    on_startup: Callable[[], object]
    on_idle: Callable[[], object]
    on_error: Callable[[], object]
    carries: Callable[[], bool] = bool
    is_ready: Callable[[], bool] = lambda: True
    metrics: Callable[[str, str], MetricsResponse] | None = None
    append: MetricsAppend | None = None
    snapshot: Callable[[str], MetricsResponse] | None = None
    page: PageSource | None = None
    annotator: Annotator | None = None
    metrics_path: str = "/metrics"
    trust_request_start: bool = False


class Attached:
    """One app with the layer on it. `app` is what to serve."""

    __slots__ = ("__weakref__", "_base", "app", "hook", "inert", "layer", "own_routes")

    def __init__(self, app: Any, hook: Hook, base: type | None) -> None:
        self.app = app
        self.hook = hook
        self._base = base
        path, append = hook.metrics_path, hook.append
        scrape = Scrape(hook.metrics, path, hook.snapshot, append) if hook.metrics and path else None
        behind = Append(scrape, path, append) if scrape is not None and append is not None else None
        page = PageRoute(hook.page, path) if hook.page is not None else None
        self.own_routes = tuple(own_route for own_route in (behind, scrape, page) if own_route is not None)
        self.layer: type | None = None
        self.inert = False  # detached: a layer that could not be taken off lets everything through

    def detach(self) -> str | None:
        """Everything as it was; None, or a sentence: what could not be taken off and is inert now."""
        if self.inert:
            return None
        self.inert = True
        if self._base is None:
            return "the wrapper around the app was handed out and stays where it is; it lets everything through"
        return self._restore(self._base)

    def _restore(self, base: type) -> str | None:
        found = type(self.app)
        if found is not self.layer:
            stays = "stays below it and lets everything through" if self.layer in found.__mro__ else "was gone already"
            return f"the class of the app was replaced by {found.__module__}.{found.__qualname__}; our layer {stays}"
        try:
            self.app.__class__ = base
        except TypeError as error:
            return f"the class of the app cannot be put back ({error}); our layer lets everything through"
        return None

    def begin(self, scope: Any, receive: Any, send: Any, entry_ns: int, clock: ArrivalClock) -> _hot.Send | None:
        """Opens a request of an http or websocket scope; None: it is not observed."""
        websocket = scope["type"] == "websocket"
        generates = self.hook.routes.generates(scope)
        if websocket and not generates:
            return None
        arrival, proxy, source = clock.arrival(scope, receive, send, entry_ns) if generates else (entry_ns, 0, ASGI)
        flow = getattr(getattr(send, "__self__", None), "flow", None)
        asked = self.hook.annotator
        answer = None
        if asked is not None and not websocket:
            answer = self._annotate(asked, scope, send, arrival, entry_ns, proxy, source)
        sender = self.hook.core.request(
            scope, answer or send, generates, arrival, entry_ns, proxy, source, flow, websocket
        )
        if answer is not None:
            answer.stream = sender.stream
        try:
            scope["tailwatch"] = sender.stream
            if self.hook.carries():
                request_variable.set(_Serving(sender))
            self.hook.on_request()
        except Exception:
            self.failed()
        return sender

    def _annotate(self, asked: Annotator, *request: Any) -> Any:
        try:
            return asked.begin(*request)
        except Exception:
            self.failed()
            return None

    def end(self, sender: _hot.Send, error: BaseException | None) -> None:
        """The app returned, or raised error."""
        core = self.hook.core
        try:
            serving = request_variable.get()
            errands = sender.finish(error)
            if serving is not None and serving.sender is sender:
                serving.sender = serving.span = None
            if errands & 1:
                for each in core.streamed(self.hook.routes.full):
                    self.hook.routes.streamed(each)
            if errands & 2:
                self.hook.on_idle()
        except Exception:
            self.failed()

    def started(self) -> None:
        """The app is about to take requests."""
        try:
            if not self.inert:
                self.hook.on_startup()
        except Exception:
            self.failed()
        self.look()

    async def ready(self) -> None:
        """Waits for the other processes: what they do before the first request delays none."""
        try:
            until = time.monotonic() + READY_SECONDS
            while not (self.inert or self.hook.is_ready()) and time.monotonic() < until:
                if running_loop() is None:  # trio
                    return
                await sys.modules["asyncio"].sleep(_LOOK_SECONDS)
        except Exception:
            self.failed()

    def look(self) -> None:
        """Log before the first scrape whether the app has the path of the metrics, or of the page, for itself."""
        try:
            for own_route in self.own_routes if not self.inert else ():
                own_route.look(self.app)
        except Exception:
            self.failed()

    def failed(self) -> None:
        """Reports the exception being handled, which is ours."""
        with suppress(Exception):
            self.hook.on_error()


def attach(app: Any, hook: Hook, *, wrap: bool = False) -> Attached:
    """Puts the layer around an ASGI 3 app: into the class of the object; where that is not possible, or with wrap,
    around the object.

    An app that has it already keeps the one it has. Raises TypeError for what is no ASGI 3 app.
    """
    existing = _existing(app)
    if existing is not None:
        return existing
    _check(app)
    return (None if wrap else _swap(app, hook)) or _wrap(app, hook)


class _Serving:
    """What tasks that a request starts take with them; they may outlive it, and hold nothing of it then."""

    __slots__ = ("sender", "span")

    def __init__(self, sender: _hot.Send) -> None:
        self.sender: _hot.Send | None = sender
        self.span: Any = None
        """The OpenTelemetry SERVER span that the app has opened for it, where spans are watched."""


def current_request() -> _Serving | None:
    """What the calling task's request holds; None where there is none, or it has ended, or Hook.carries is not set."""
    serving = request_variable.get()
    return None if serving is None or serving.sender is None else serving


def current_stream() -> _hot.Stream | None:
    """The stream of the request that the calling task works for, None where there is none, or Hook.carries is not
    set."""
    serving = request_variable.get()
    return None if serving is None or serving.sender is None else serving.sender.stream


async def timed_send(awaitable: Awaitable[Any], stream: _hot.Stream) -> Any:
    """Awaits a send, and books the time it took as waiting for the client. For _hot.Core."""
    since = _hot.now()
    result = await awaitable
    stream.record_send_wait(since, _hot.now())
    return result


def _existing(app: Any) -> Attached | None:
    found = type(app).__dict__.get(_MARK)
    return found if isinstance(found, Attached) and not found.inert else None


def _check(app: Any) -> None:
    if not callable(app):
        raise TypeError(f"app: expected an ASGI application, found {type(app).__qualname__} (not callable)")
    import inspect

    try:
        inspect.signature(app).bind({}, None, None)
    except TypeError:
        raise TypeError(f"app: expected an ASGI 3 application, app(scope, receive, send), found {app!r}") from None
    except ValueError:
        return  # it does not declare what it takes


def _swap(app: Any, hook: Hook) -> Attached | None:
    """The same object with another class; None where its class or the object does not allow that."""
    base = type(app)
    if isinstance(app, _PLAIN):
        return None
    attached = Attached(app, hook, base)

    def reduce(self: Any, protocol: Any) -> Any:
        reduced: object = types.MethodType(base.__reduce_ex__, self)(protocol)
        return _as_of(base, attached, reduced)

    def call(self: Any, scope: Any, receive: Any, send: Any) -> Any:
        return base.__call__(self, scope, receive, send)  # as it is now: others may patch it after us

    names = {"__slots__": (), "__call__": _layer(attached, call), "__reduce_ex__": reduce, _MARK: attached}
    names |= {name: getattr(base, name, None) for name in ("__doc__", "__module__", "__qualname__")}
    try:
        layer = types.new_class(base.__name__, (base,), {}, lambda namespace: namespace.update(names))
        attached.layer = layer
        app.__class__ = layer
    except Exception:  # final, slotted another way, made by C, or of a metaclass that minds
        return None
    return attached


def _as_of(base: type, attached: Attached, reduced: Any) -> Any:
    """What an object of our class gives pickle and copy, in the name of the class it had."""
    if not isinstance(reduced, tuple):
        return reduced

    def other(value: Any) -> Any:
        return base if value is attached.layer else value

    make, arguments, *state = reduced
    first, *rest = (other(argument) for argument in arguments) if arguments else (None,)
    if getattr(make, "__name__", "") in ("__newobj__", "__newobj_ex__"):  # pickle compares the class with the object's
        return (partial(make, first), tuple(rest), *state)
    return (other(make), (first, *rest) if arguments else (), *state)


def _wrap(app: Any, hook: Hook) -> Attached:
    attached = Attached(app, hook, None)

    def call(self: Any, scope: Any, receive: Any, send: Any) -> Any:
        return app(scope, receive, send)

    names = {
        "__slots__": (),
        "__doc__": "An ASGI app with tailwatch around it.",
        "__module__": __name__,
        "__wrapped__": property(lambda self: app),
        "__call__": _layer(attached, call),
        "__getattr__": lambda self, name: getattr(app, name),
        "__setattr__": lambda self, name, value: setattr(app, name, value),
        "__reduce_ex__": lambda self, protocol: (_unwrapped, (app,)),
        "__repr__": lambda self: f"<tailwatch around {app!r}>",
        _MARK: attached,
    }
    attached.app = type("Watched", (), names)()
    return attached


def _unwrapped(app: Any) -> Any:
    """How a wrapper is unpickled: as the app itself."""
    return app


def _layer(attached: Attached, call: Callable[[Any, Any, Any, Any], Any]) -> Callable[..., Any]:
    """The `__call__` of one app's layer; call(self, scope, receive, send) is the app's own."""
    clock = ArrivalClock(attached.hook.trust_request_start)

    async def __call__(self: Any, scope: Any, receive: Any, send: Any) -> Any:
        kind = sender = own_route = None
        try:
            entry = _hot.now()
            if isinstance(scope, dict) and "tailwatch" not in scope and not attached.inert:  # no outer layer has it
                kind = scope["type"]
                if kind == "http" and scope["method"] != "POST":
                    own_route = next((each for each in attached.own_routes if each.wants(self, scope)), None)
                if own_route is None and (kind == "http" or kind == "websocket"):
                    sender = attached.begin(scope, receive, send, entry, clock)
        except Exception:
            attached.failed()
        if sender is None:
            if kind == "lifespan":
                return await _lifespan(attached, partial(call, self), scope, receive, send)
            if own_route is not None:
                inner = __call__ if own_route.observed else call
                return await own_route.serve(partial(inner, self), scope, receive, send, attached.failed)
            return await call(self, scope, receive, send)
        try:
            result = await call(self, scope, _watched(receive, sender), sender.send)
        except BaseException as error:
            attached.end(sender, error)
            raise
        attached.end(sender, None)
        return result

    return __call__


def _watched(receive: Any, sender: _hot.Send) -> Callable[[], Awaitable[Any]]:
    async def watched_receive() -> Any:
        message = await receive()
        kind = dict.get(message, "type") if isinstance(message, dict) else None
        if kind == "http.disconnect" or kind == "websocket.disconnect":
            sender.disconnected()
        elif kind == "websocket.receive":
            sender.turn()
        return message

    return watched_receive


async def _lifespan(attached: Attached, app: Any, scope: Any, receive: Any, send: Any) -> Any:
    """An app that turns lifespan down by returning starts as well. One that raises may be on its way out instead:
    nothing in proportion to the heap runs then, the first idle moment makes up for it."""
    answered = False

    async def watched_send(message: Any) -> Any:
        nonlocal answered
        kind = dict.get(message, "type") if isinstance(message, dict) else None
        if kind == "lifespan.startup.complete" and not answered:
            attached.started()
            await attached.ready()
        answered = answered or kind in ("lifespan.startup.complete", "lifespan.startup.failed")
        return await send(message)

    try:
        result = await app(scope, receive, watched_send)
    except Exception:
        if not answered:
            attached.look()
        raise
    if not answered:
        attached.started()
    return result
