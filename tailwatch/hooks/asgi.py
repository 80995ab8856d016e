"""The outermost layer of an ASGI app: sees every request, changes nothing.

An app object keeps its identity: its class is swapped for a subclass of it with our `__call__`, which works before
and after start-up and beside any other instrumentation. What has no class to swap gets a wrapper. Everything of
ours is guarded: what goes wrong in it is reported to Hook.on_error, and the request goes on unobserved.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tailwatch import _hot
from tailwatch.hooks.arrival import Clock
from tailwatch.hooks.routes import Routes
from tailwatch.hooks.scrape import Scrape

ERROR_ASGI = 0  # tw_error

_MARK = "__tailwatch__"
_PLAIN = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType)


@dataclass(frozen=True, kw_only=True, slots=True)
class Hook:
    """What the layer needs of the rest; one of them may serve several apps.

    metrics: given an Accept header, the content type and the rendered parts of an answer; it is awaited on the
        serving loop, so it renders in a worker thread. None: not served.
    on_startup: called before lifespan.startup.complete is handed on, or after an app turned lifespan down.
    on_idle: called when a request has ended and no other is in flight.
    on_error: called inside the handler of an exception of ours, with a tw_error.
    """

    core: _hot.Core
    routes: Routes
    on_startup: Callable[[], object]
    on_idle: Callable[[], object]
    on_error: Callable[[int], object]
    metrics: Callable[[str], Awaitable[tuple[str, Iterable[bytes]]]] | None = None
    metrics_path: str = "/metrics"
    trust_request_start: bool = False


class Attached:
    """One app with the layer on it. `app` is what to serve."""

    __slots__ = ("_base", "_inert", "_layer", "_scrape", "app", "hook")

    def __init__(self, app: Any, hook: Hook, base: type | None, scrape: Scrape | None) -> None:
        self.app = app
        self.hook = hook
        self._base = base
        self._scrape = scrape
        self._inert = False
        self._layer: type | None = None

    @property
    def inert(self) -> bool:
        """Detached: a layer that could not be taken off lets everything through."""
        return self._inert

    def detach(self) -> str | None:
        """Everything as it was; None, or a sentence that says what could not be taken off and is inert now."""
        if self._inert:
            return None
        self._inert = True
        if self._base is None:
            return "the wrapper around the app was handed out and stays where it is; it lets everything through"
        return self._restore(self._base)

    def _restore(self, base: type) -> str | None:
        found = type(self.app)
        if found is not self._layer:
            stays = "stays below it and lets everything through" if self._layer in found.__mro__ else "was gone already"
            return f"the class of the app was replaced by {found.__module__}.{found.__qualname__}; our layer {stays}"
        try:
            self.app.__class__ = base
        except TypeError as error:
            return f"the class of the app cannot be put back ({error}); our layer lets everything through"
        return None

    def _begin(self, scope: Any, receive: Any, send: Any, clock: Clock) -> _hot.Send | None:
        """Opens a request of an http or websocket scope; None: it is not observed."""
        entry = _hot.now()
        websocket = scope["type"] == "websocket"
        if "tailwatch" in scope:  # an outer layer has it
            return None
        generates = self.hook.routes.generates(scope)
        if websocket and not generates:
            return None
        arrival, proxy, source = clock.arrival(scope, receive, send, entry)
        flow = getattr(getattr(send, "__self__", None), "flow", None)
        sender = self.hook.core.request(scope, send, generates, arrival, entry, proxy, source, flow, websocket)
        try:
            scope["tailwatch"] = sender.stream
        except Exception:
            self.hook.on_error(ERROR_ASGI)
        return sender

    def _end(self, sender: _hot.Send, error: BaseException | None) -> None:
        hook = self.hook
        try:
            sender.finish(error)
            for template in hook.core.streamed():
                hook.routes.learn(template)
            if hook.core.in_flight == 0:
                hook.on_idle()
        except Exception:
            hook.on_error(ERROR_ASGI)

    def _started(self) -> None:
        try:
            if self._scrape is not None:
                self._scrape.look(self.app)
            self.hook.on_startup()
        except Exception:
            self.hook.on_error(ERROR_ASGI)


def attach(app: Any, hook: Hook, *, in_place: bool = True) -> Attached:
    """Puts the layer around an ASGI 3 app: into the class of the object where that is possible and in_place.

    An app that has it already keeps the one it has. Raises TypeError for what is no ASGI 3 app.
    """
    existing = _existing(app)
    if existing is not None:
        return existing
    _check(app)
    scrape = Scrape(hook.metrics, hook.metrics_path) if hook.metrics is not None and hook.metrics_path else None
    return (_swap(app, hook, scrape) if in_place else None) or _wrap(app, hook, scrape)


async def timed_send(awaitable: Awaitable[None], stream: _hot.Stream) -> None:
    """Awaits a send, and books the time it took as waiting for the client. For _hot.Core."""
    since = _hot.now()
    await awaitable
    stream.sent(since, _hot.now())


def _existing(app: Any) -> Attached | None:
    found = type(app).__dict__.get(_MARK)
    return found if isinstance(found, Attached) and not found.inert else None


def _check(app: Any) -> None:
    if not callable(app):
        raise TypeError(f"app: expected an ASGI application, found {type(app).__qualname__} (not callable)")
    try:
        inspect.signature(app).bind({}, None, None)
    except TypeError:
        raise TypeError(f"app: expected an ASGI 3 application, app(scope, receive, send), found {app!r}") from None
    except ValueError:
        return  # it does not say what it takes


def _swap(app: Any, hook: Hook, scrape: Scrape | None) -> Attached | None:
    """The same object with another class; None where its class or the object does not allow that."""
    base = type(app)
    if isinstance(app, _PLAIN) or not hasattr(base, "__call__"):
        return None
    attached = Attached(app, hook, base, scrape)

    def reduce(self: Any, protocol: Any) -> Any:
        return _as_of(base, attached, super(layer, self).__reduce_ex__(protocol))

    def call(self: Any, scope: Any, receive: Any, send: Any) -> Any:
        return base.__call__(self, scope, receive, send)  # as it is now: others may patch it after us

    names = {"__slots__": (), "__call__": _layer(attached, call), "__reduce_ex__": reduce, _MARK: attached}
    names |= {name: getattr(base, name, None) for name in ("__doc__", "__module__", "__qualname__")}
    try:
        layer = types.new_class(base.__name__, (base,), {}, lambda namespace: namespace.update(names))
        attached._layer = layer
        app.__class__ = layer
    except Exception:  # final, slotted another way, made by C, or of a metaclass that minds
        return None
    return attached


def _as_of(base: type, attached: Attached, reduced: Any) -> Any:
    """What an object of our class says to pickle and copy, in the name of the class it had."""
    if not isinstance(reduced, tuple):
        return reduced

    def other(value: Any) -> Any:
        return base if value is attached._layer else value

    make, arguments, *state = reduced
    return (other(make), tuple(map(other, arguments)), *state)


def _wrap(app: Any, hook: Hook, scrape: Scrape | None) -> Attached:
    attached = Attached(app, hook, None, scrape)

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
    clock = Clock(attached.hook.trust_request_start)
    scrape = attached._scrape
    on_error = attached.hook.on_error

    async def __call__(self: Any, scope: Any, receive: Any, send: Any) -> Any:
        sender = None
        try:
            kind = scope["type"] if isinstance(scope, dict) and not attached._inert else None
            if kind == "lifespan":
                return await _lifespan(attached, call(self, scope, receive, _Startup(attached, send).send))
        return await call(self, scope, receive, send)

    return __call__
