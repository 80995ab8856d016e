"""The answer to a scrape, served by the outermost layer; an app's own answer is never shadowed."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from tailwatch.asgi.metrics_append import HeldSend, MetricsAppend
from tailwatch.asgi.routes import path_below
from tailwatch.asgi.scrape_turns import PARTS_A_TURN, in_thread, send_parts
from tailwatch.serve.local_auth import HEADER, SNAPSHOT_PATH, holds

MOVED_PATH = "/tailwatch/metrics"
_PROOF = HEADER.encode()
_MARK = "tailwatch.metrics"
_MOST_WRAPPERS = 16


class MetricsResponse(Protocol):
    """headers: all of them, the length too. parts: of the body, small enough for a loop to send one at once."""

    @property
    def headers(self) -> list[tuple[str, str]]: ...
    @property
    def parts(self) -> Iterable[bytes]: ...


Respond = Callable[[str, str], MetricsResponse]


class Scrape:
    """Metrics at one path of one app, or at MOVED_PATH where the app has a route of that path.

    An app may answer there without a route that can be seen (a middleware, a bare callable). So the first scrape
    is shown to it: if it answers with metrics, they are its own and stay; anything else is not passed on.

    Beside them, to callers that prove to be on this machine (tailwatch/serve/local_auth.py): the snapshot, at
    SNAPSHOT_PATH, made of the query string.
    """

    observed = False
    __slots__ = ("_answers", "_append", "_logged", "_path", "_respond", "_snapshot")

    def __init__(
        self,
        respond: Respond,
        path: str,
        snapshot: Callable[[str], MetricsResponse] | None = None,
        append: MetricsAppend | None = None,
    ) -> None:
        self._append = append
        self._respond = respond
        self._path = path
        self._snapshot = snapshot
        self._answers: bool | None = None  # whether the app answers there by itself, None: not tried yet
        self._logged = False

    def wants(self, app: Any, scope: Mapping[str, Any]) -> bool:
        """Whether a request is a scrape that we answer."""
        path: str = scope["path"]
        if not path.endswith((self._path, MOVED_PATH, SNAPSHOT_PATH)) or scope["method"] not in ("GET", "HEAD"):
            return False
        path = path_below(scope, scope.get("root_path", ""))
        if path == SNAPSHOT_PATH:
            return self._snapshot is not None and header(scope, _PROOF) != ""
        if path == self._path:
            return not self.look(app)
        return path == MOVED_PATH and self.look(app)

    def look(self, app: Any) -> bool:
        """Whether the app has the path for itself; logged once."""
        taken = bool(self._answers) or has_route(app, self._path)
        if taken and not self._logged:
            self._logged = True
            if self._append is None or not self._append.series():
                logging.getLogger("tailwatch").warning(
                    "the app has a route %s of its own: tailwatch's metrics are at %s", self._path, MOVED_PATH
                )
        return taken

    async def serve(
        self, app: Callable[..., Awaitable[Any]], scope: Any, receive: Any, send: Any, failed: Callable[[], object]
    ) -> None:
        """Answers one scrape; failed: called inside the handler of what went wrong."""
        path = path_below(scope, scope.get("root_path", ""))
        if path == SNAPSHOT_PATH and self._snapshot is not None:
            if await in_thread(holds, header(scope, _PROOF)):
                query = str(scope["query_string"], "latin-1")
                snapshot = self._snapshot
                return await _answer(lambda *_: snapshot(query), scope, send, failed)
            await app(scope, receive, send)
            return None
        if self._answers is not None or path != self._path:
            return await _answer(self._respond, scope, send, failed)
        append = self._append
        wanted = append is not None and append.wanted(scope)
        held = HeldSend(append, send, failed, head=scope["method"] == "HEAD") if append and wanted else None
        trial = _Trial(held.send if held else send, partial(_answer, self._respond, scope, send, failed))
        try:
            await app(scope, receive, trial.send)
        except Exception:
            if trial.metrics:
                raise
        finally:
            if held:
                await held.release()
        if trial.metrics or scope["method"] == "GET":
            self._answers = bool(trial.metrics)
        if trial.metrics is None:  # it answered nothing
            await _answer(self._respond, scope, send, failed)
        return None


async def _answer(respond: Respond, scope: Any, send: Any, failed: Callable[[], object]) -> None:
    status, headers, held = await _rendered(respond, scope, failed)
    lines = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]
    number = 0
    with suppress(OSError):  # the client went away
        await send({"type": "http.response.start", "status": status, "headers": lines})
        number = await send_parts(send, held[0] if scope["method"] == "GET" else ())
    if number > PARTS_A_TURN:
        await in_thread(held.clear)  # giving megabytes back to the kernel takes a millisecond: not the loop's


async def _rendered(
    respond: Respond, scope: Any, failed: Callable[[], object]
) -> tuple[int, list[tuple[str, str]], list[Iterable[bytes]]]:
    """Status, headers, and a list that holds the only reference to the parts."""
    try:
        answer = await in_thread(respond, header(scope, b"accept"), header(scope, b"accept-encoding"))
        return 200, answer.headers, [answer.parts]
    except Exception:
        failed()
        text = b"tailwatch could not render its numbers\n"
        return 500, [("content-type", "text/plain; charset=utf-8"), ("content-length", str(len(text)))], [[text]]


class Append:
    """Ours behind the app's own, where it has the path of a Scrape for itself. With the slash behind it, too: a mounted
    app sends there."""

    __slots__ = ("_append", "_path", "_scrape")
    observed = True
    """The app's request is a request like any other."""

    def __init__(self, scrape: Scrape, path: str, append: MetricsAppend) -> None:
        self._append = append
        self._path = path
        self._scrape = scrape

    def wants(self, app: Any, scope: Mapping[str, Any]) -> bool:
        """Whether ours are to follow in the app's answer."""
        if not scope["path"].rstrip("/").endswith(self._path) or scope["method"] not in ("GET", "HEAD"):
            return False
        path = path_below(scope, scope.get("root_path", ""))
        known = path in (self._path, self._path + "/") and _MARK not in scope
        return known and self._append.wanted(scope) and self._scrape.look(app)

    def look(self, app: Any) -> bool:
        """The scrape looks."""
        return False

    async def serve(self, app: Any, scope: Any, receive: Any, send: Any, failed: Callable[[], object]) -> None:
        """The app answers, and ours follow where they can."""
        held = HeldSend(self._append, send, failed, head=scope["method"] == "HEAD")
        scope[_MARK] = True
        try:
            await app(scope, receive, held.send)
        finally:
            await held.release()  # what the app did not end


class _Trial:
    """A send that passes an app's own metrics on, and puts ours in the place of anything else."""

    __slots__ = ("_answer", "_send", "metrics")

    def __init__(self, send: Any, answer: Callable[[], Awaitable[None]]) -> None:
        self._send = send
        self._answer = answer
        self.metrics: bool | None = None

    async def send(self, message: Any) -> None:
        if self.metrics is None and message["type"] == "http.response.start":
            headers = message.get("headers", ())
            self.metrics = any(name.lower() == b"content-type" and _exposes(value) for name, value in headers)
            if not self.metrics:
                await self._answer()  # now: the app's own answer may never end
        if self.metrics:
            await self._send(message)


def _exposes(content_type: bytes) -> bool:
    kind, _, parameters = content_type.lower().partition(b";")
    if kind.strip() == b"text/plain":
        return b"version=" in parameters
    return kind.strip() in (b"application/openmetrics-text", b"application/vnd.google.protobuf")


def header(scope: Any, wanted: bytes) -> str:
    """The values of a header, as one."""
    return ",".join(value.decode("latin-1") for name, value in scope["headers"] if name == wanted)


def has_route(app: Any, path: str) -> bool:
    """Whether a Starlette app's routes name this very path, mounted ones too; a catch-all does not count. Of an app
    that others wrap, as uvicorn does, its own."""
    scope = {"type": "http", "method": "GET", "path": path, "root_path": "", "headers": []}
    routes = _routes(_innermost(app))
    return _names(routes, scope) or _names(routes, scope | {"path": path + "/"})


def _innermost(app: Any) -> Any:
    """The first with routes, of what is wrapped as ``app``."""
    for _ in range(_MOST_WRAPPERS):
        if _routes(app) or not callable(getattr(app, "app", None)):
            break
        app = app.app
    return app


def _routes(holder: Any) -> list[Any]:
    found = getattr(holder, "routes", None)
    if found is None:
        found = getattr(getattr(holder, "router", None), "routes", None)
    return list(found) if isinstance(found, (list, tuple)) else []


def _names(routes: list[Any], scope: dict[str, Any]) -> bool:
    path = scope["path"]
    for route in routes:
        if getattr(route, "path", None) == path:
            return True
        match, child = _matched(route, dict(scope))
        if not match or child.get("path_params"):
            continue
        inner = _routes(route)
        if not (hasattr(route, "routes") and path_below(scope | child, child.get("root_path", "")) != "/"):
            return True
        if _names(inner, scope | child):
            return True
    return False


def _matched(route: Any, scope: dict[str, Any]) -> tuple[bool, dict[str, Any]]:
    """What a route answers to a scope; one without an answer does not match."""
    try:
        match, child = route.matches(scope)
        return bool(match.value), dict(child)
    except Exception:
        return False, {}
