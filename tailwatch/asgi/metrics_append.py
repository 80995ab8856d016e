"""Our metrics behind those that an app answers with itself, so that the scrape that is there already has both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tailwatch.asgi.scrape_turns import in_time, send_parts

LATE_SECONDS = 0.1
"""What has to be waited for longer is left out: a scrape has its own deadline."""

MOST_BYTES = 16 << 20
_OF_THE_BODY = (b"content-length", b"etag", b"content-md5", b"digest", b"content-digest", b"repr-digest")


def _selects_names(query: str) -> bool:
    from urllib.parse import unquote_plus  # here: a process that answers no scrape needs none of it

    return "name[]=" in unquote_plus(query)


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricsAppend:
    """What the layer needs to put ours behind the app's.

    series: how many of ours may follow; 0: none.
    takes: whether they can follow in a Content-Type and Content-Encoding.
    append: a body, its type, its encoding and the number of series: what is sent instead; None: the body is not what
        its type promises. Called in a worker thread.
    missed: called for each response that went out without ours.
    """

    series: Callable[[], int]
    takes: Callable[[str, str], object]
    append: Callable[[bytes, str, str, int], Sequence[bytes] | None]
    missed: Callable[[], object]

    def wanted(self, scope: Any) -> bool:
        """Whether ours are to follow in the answer to this scrape; one that selects metrics by name has no others."""
        query = scope.get("query_string", b"").decode("latin-1")
        return self.series() > 0 and not (query and _selects_names(query))


class HeldSend:
    """A send that holds an exposition back until it is whole, and passes on anything else at once. What was held goes
    out unchanged where ours fail or are late. head: the length of what a GET would get is not known, so none goes out.
    """

    __slots__ = ("_append", "_content", "_failed", "_head", "_held", "_size", "_through", "_to")

    def __init__(self, append: MetricsAppend, to: Any, failed: Callable[[], object], *, head: bool) -> None:
        self._append = append
        self._to = to
        self._failed = failed
        self._head = head
        self._held: list[Any] = []
        self._content = ("", "")
        self._size = 0
        self._through = False

    async def send(self, message: Any) -> None:
        """For the app."""
        if not self._through and self._holds(message):
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                await self._finish()
            return
        if self._held:
            await self.release()
        await self._to(message)

    async def release(self) -> None:
        """Send what was held, as it was."""
        self._through = True
        held, self._held = self._held, []
        for message in held:
            await self._to(message)

    def _holds(self, message: Any) -> bool:
        """Whether a message is kept; decides with the first one of the response."""
        try:
            if message["type"] == "http.response.start":
                return self._begins(message)
            if not self._held or message["type"] != "http.response.body" or self._head:
                return False
            self._size += len(message.get("body", b""))
            if self._size > MOST_BYTES:
                self._append.missed()
                return False
            self._held.append(message)
            return True
        except Exception:
            self._failed()
            return False

    def _begins(self, message: Any) -> bool:
        headers = {bytes(name).lower(): bytes(value).decode("latin-1") for name, value in message.get("headers", ())}
        self._content = (headers.get(b"content-type", ""), headers.get(b"content-encoding", ""))
        if message["status"] != 200 or message.get("trailers") or not self._append.takes(*self._content):
            self._through = True
            return False
        self._held.append({**message, "headers": _without_length(message)} if self._head else message)
        return True

    async def _finish(self) -> None:
        start, *bodies = self._held
        body = b"".join(message.get("body", b"") for message in bodies)
        try:
            made = await in_time(
                partial(self._append.append, body, *self._content, self._append.series()), LATE_SECONDS
            )
        except Exception:
            self._failed()
            made = None
        if made is None:
            self._append.missed()
            return await self.release()
        self._held, self._through = [], True
        length = [(b"content-length", str(sum(map(len, made))).encode())]
        await self._to({**start, "headers": [*_without_length(start), *length]})
        await send_parts(self._to, made)
        return None


def _without_length(start: Any) -> list[Any]:
    return [(name, value) for name, value in start.get("headers", ()) if bytes(name).lower() not in _OF_THE_BODY]
