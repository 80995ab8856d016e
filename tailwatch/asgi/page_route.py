"""The page at /tailwatch, served by the outermost layer where it was asked for; an app's own route there stays."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Protocol

from tailwatch.asgi.metrics_route import has_route, header
from tailwatch.asgi.routes import path_below
from tailwatch.asgi.scrape_turns import in_thread
from tailwatch.serve.page_access import Access, access

PATH, MOVED = "/tailwatch", "/tailwatch/page"
_DATA = "/data"
_ENDINGS = (PATH, PATH + _DATA, MOVED, MOVED + _DATA)


class PageResponse(Protocol):
    """headers: all of them, the length too. parts: of the body, small enough for a loop to send one at once."""

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> list[tuple[str, str]]: ...
    @property
    def parts(self) -> Iterable[bytes]: ...


class PageSource(Protocol):
    """token: that is asked for, "" none, None: the page is off. reply: see export/page.py; it may block."""

    @property
    def token(self) -> Callable[[], str | None]: ...
    def reply(self, data: bool, access: Access, query: str, accept_encoding: str) -> PageResponse: ...


class PageRoute:
    """The page of one app: at PATH, or at MOVED where the app has a route of that path, or the metrics are there; its
    numbers below it."""

    observed = False
    __slots__ = ("_logged", "_metrics", "_moved", "_page")

    def __init__(self, page: PageSource, metrics_path: str) -> None:
        self._page = page
        self._metrics = metrics_path
        self._moved: bool | None = None  # as of the last look; None: none yet
        self._logged = False

    def wants(self, app: Any, scope: Mapping[str, Any]) -> bool:
        """Whether a request asks for what we answer."""
        path: str = scope["path"]
        if not path.endswith(_ENDINGS) or scope["method"] not in ("GET", "HEAD") or self._page.token() is None:
            return False
        path = path_below(scope, scope.get("root_path", ""))
        if path not in _ENDINGS:
            return False
        moved = (
            self._moved if path.endswith(_DATA) else None
        )  # an app of many routes is not searched every other second
        return path.startswith(MOVED) is (self.look(app) if moved is None else moved)

    def look(self, app: Any) -> bool:
        """Whether the app has the path for itself; logged once, and not while the page is off."""
        if self._page.token() is None:
            return False
        paths = (PATH, PATH + _DATA)
        self._moved = taken = self._metrics in paths or any(has_route(app, path) for path in paths)
        if taken and not self._logged:
            self._logged = True
            sentence = "something else is at %s: tailwatch's page is at %s"
            logging.getLogger("tailwatch").warning(sentence, PATH, MOVED)
        return taken

    async def serve(self, app: Any, scope: Any, receive: Any, send: Any, failed: Callable[[], object]) -> None:
        """Answers one request; failed: called inside the handler of what went wrong."""
        status, headers, parts = await self._answer(scope, failed)
        lines = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        with suppress(OSError):  # the client went away
            await send({"type": "http.response.start", "status": status, "headers": lines})
            for part in parts if scope["method"] == "GET" else ():
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _answer(
        self, scope: Any, failed: Callable[[], object]
    ) -> tuple[int, list[tuple[str, str]], Iterable[bytes]]:
        try:
            token = self._page.token()
            peer = scope.get("client")
            version = scope.get("http_version", "1.1")
            found = access(token or "", peer[0] if peer else None, version, scope["headers"])
            query = scope.get("query_string", b"").decode("latin-1")
            data = scope["path"].endswith(_DATA)
            reply = await in_thread(self._page.reply, data, found, query, header(scope, b"accept-encoding"))
            return reply.status, reply.headers, reply.parts
        except Exception:
            failed()
            text = b"tailwatch could not read its numbers\n"
            return 500, [("content-type", "text/plain; charset=utf-8"), ("content-length", str(len(text)))], [text]
