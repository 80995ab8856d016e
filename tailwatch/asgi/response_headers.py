"""What is added to the answer itself, where it was asked for: load and timings.

It stands behind our Send, next to the server: what it adds is not looked at, and its numbers include the last token.
Only generation routes' answers are touched. A message is never changed in place; one that is not as ASGI has it goes on
as it came.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tailwatch import _hot
from tailwatch.asgi.arrival import ASGI

_BYTES = (bytes, bytearray, memoryview)


@dataclass(frozen=True, kw_only=True, slots=True)
class Annotator:
    """What is asked for.

    load_header, load_format_header: names of the header that carries the load, and of the request's that asks for it.
    load: its value in a format; None: there is no such format. load_form: the format it is always sent in; "": the one
    that the request asks for. server_timing: a Server-Timing header with the waits known by then. sse_timing: a comment
    after the last event. on_error: called inside the handler of an exception of ours.
    """

    load: Callable[[str], bytes | None] | None
    load_header: bytes = b""
    load_format_header: bytes = b""
    load_form: str = ""
    server_timing: bool = False
    sse_timing: bool = False
    on_error: Callable[[], object]

    def begin(
        self, scope: Any, send: Any, arrival_ns: int, entry_ns: int, proxy_ns: int, source: int
    ) -> AnnotatedSend | None:
        """A send to put in the place of a request's; None: nothing is asked for."""
        form = self._form(scope) if self.load is not None else ""
        if not (form or self.server_timing or self.sse_timing):
            return None
        waits = (arrival_ns, entry_ns, proxy_ns, source)
        return AnnotatedSend(self, scope, send, form, waits)

    def _form(self, scope: Any) -> str:
        if self.load_form:
            return self.load_form
        for name, value in scope["headers"]:
            if name.lower() == self.load_format_header:
                return str(value.decode("latin-1")).strip()
        return ""


class AnnotatedSend:
    """The send of one request. `stream` is set before its first message."""

    __slots__ = ("_asked", "_form", "_gaps", "_last_ns", "_next", "_scope", "_send", "_tail", "_waits", "stream")

    stream: _hot.Stream

    def __init__(self, asked: Annotator, scope: Any, send: Any, form: str, waits: tuple[int, int, int, int]) -> None:
        self._asked = asked
        self._scope = scope
        self._send = send
        self._form = form
        self._waits = waits
        self._next: Callable[[dict[str, Any]], dict[str, Any]] | None = self._start
        self._tail = b""
        self._last_ns = 0
        self._gaps: dict[int, int] = {}

    def __call__(self, *messages: Any, **named: Any) -> Any:
        """What the server's send gives. One called in any other way than with a message is the server's to refuse."""
        if self._next is not None and len(messages) == 1 and not named and isinstance(messages[0], dict):
            try:
                messages = (self._next(messages[0]),)
            except Exception:
                self._next = None
                self._asked.on_error()
        return self._send(*messages, **named)

    def _start(self, message: dict[str, Any]) -> dict[str, Any]:
        if dict.get(message, "type") != "http.response.start":
            return message
        self._next = None
        headers = dict.get(message, "headers", [])
        if not self.stream.arrival_ns or not isinstance(headers, (list, tuple)):
            return message  # it generates nothing; or they are the server's to consume
        if self._asked.sse_timing and self._is_open_sse(message, headers):
            self._next = self._body
            self._last_ns = self.stream.arrival_ns
        more = list(self._headers(headers))
        return {**message, "headers": [*headers, *more]} if more else message

    def _headers(self, headers: Any) -> Iterator[tuple[bytes, bytes]]:
        load = self._asked.load
        if self._form and load is not None and not list(_values(headers, self._asked.load_header)):
            value = load(self._form)
            if value is not None:
                yield self._asked.load_header, value
        if self._asked.server_timing:
            yield b"server-timing", self._timing()

    def _timing(self) -> bytes:
        """Milliseconds, as the header has them. A wait that was not measured is left out."""
        arrival_ns, entry_ns, proxy_ns, source = self._waits
        waits = {"app": _hot.now() - entry_ns}
        if source != ASGI:
            waits = {"accept": entry_ns - arrival_ns, **waits}
        if proxy_ns:
            waits = {"proxy": proxy_ns, **waits}
        return ", ".join(f"{name};dur={ns / 1e6:.1f}" for name, ns in waits.items()).encode()

    def _is_open_sse(self, message: dict[str, Any], headers: Any) -> bool:
        """Whether more bytes may follow the last event: none where their number was given, or they are compressed."""
        status = dict.get(message, "status")
        types = [value.strip().lower() for value in _values(headers, b"content-type")]
        return (
            isinstance(status, int)
            and 200 <= status < 300
            and self._scope["method"] != "HEAD"
            and len(types) == 1
            and types[0].partition(b";")[0].strip() == b"text/event-stream"
            and not list(_values(headers, b"content-length"))
            and all(value.strip().lower() == b"identity" for value in _values(headers, b"content-encoding"))
        )

    def _body(self, message: dict[str, Any]) -> dict[str, Any]:
        kind = dict.get(message, "type")
        body, more = dict.get(message, "body", b""), dict.get(message, "more_body", False)
        if kind != "http.response.body" or not isinstance(body, _BYTES) or not isinstance(more, bool):
            self._next = None  # what is sent cannot be followed any more
            return message
        if len(body):
            self._look(body)
        if more:
            return message
        self._next = None
        comment = self._comment()
        return {**message, "body": bytes(body) + comment} if comment else message

    def _look(self, body: bytes | bytearray | memoryview) -> None:
        end = bytes(body[-4:])
        self._tail = end if len(end) == 4 else (self._tail + end)[-4:]
        last_ns = self.stream.last_ns
        if last_ns == self._last_ns:
            return
        if self._last_ns != self.stream.arrival_ns:
            gap = _rounded(last_ns - self._last_ns)
            self._gaps[gap] = self._gaps.get(gap, 0) + 1
        self._last_ns = last_ns

    def _comment(self) -> bytes:
        """Nothing in the middle of an event, and nothing where no token was seen."""
        line_ends = self._tail.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if self.stream.ttft_ns is None or not line_ends.endswith(b"\n\n"):
            return b""
        timings = {"ttft": self.stream.ttft_ns, "gc": self.stream.delay_ns}
        if self._gaps:
            timings = {
                "ttft": timings["ttft"],
                "itl_p99": _p99(self._gaps),
                "itl_max": self.stream.worst_gap_ns,
                "gc": timings["gc"],
            }
        return f": tailwatch {' '.join(f'{name}={ns / 1e6:.1f}ms' for name, ns in timings.items())}\n\n".encode()


def _values(headers: Any, wanted: bytes) -> Iterator[bytes]:
    """Of the pairs of bytes among them; others are the server's to refuse."""
    for pair in headers:
        name, value = pair if isinstance(pair, (list, tuple)) and len(pair) == 2 else (None, None)
        if isinstance(name, bytes) and isinstance(value, bytes) and name.lower() == wanted:
            yield value


def _rounded(ns: int) -> int:
    """To six significant bits, at most 1.6 % off: a stream of any length has few different gaps then."""
    shift = max(0, ns.bit_length() - 6)
    return ((ns >> shift) << shift) + ((1 << shift) >> 1)


def _p99(gaps: dict[int, int]) -> int:
    """The smallest gap that at least 99 % of them do not exceed."""
    rank, seen = -(-sum(gaps.values()) * 99 // 100), 0
    for gap in sorted(gaps):
        seen += gaps[gap]
        if seen >= rank:
            return gap
    return 0
