"""The measurements of one connection's responses: csrc/wire/client_response.c in Python."""

from __future__ import annotations

import re
import time
from array import array
from collections.abc import Callable, Iterable

from tailwatch.pure.events import LINES, RAW, SSE, WHOLE, Event, look, whole

_MOST_STAMPS, _MOST_CHOICES, _HEAD, _PART = 131_072, 8, 512, 1 << 20
_SSE_END = re.compile(rb"\r?\n\r?\n|\r\r")
_OPAQUE = -1

now = time.monotonic_ns


class ClientResponse:
    """As tailwatch._hot.Answer: measures the responses of one connection, one after the other."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.begin(0, 0, 0)

    def begin(self, planned_ns: int, ttft_ns: int, step_ns: int, /) -> None:
        """Starts a response: the deadline of its first token, and of each next one; 0: none."""
        self.byte_ns = 0
        self.head = b""
        self._planned, self._ttft, self._step = planned_ns, ttft_ns, step_ns
        self._framing, self._objects_only = _OPAQUE, False
        self._decode: Callable[[bytes], Iterable[bytes]] | None = None
        self._part = bytearray()
        self._chunk = self._first = self._last = self._messages = self._tokens = self._usage = self._bytes = 0
        self._gap = self._gap_at = self._slack = self._due = self._met = self._idle = self._read_until = 0
        self._done = self._error = False
        self._choices: dict[int, tuple[int, int, int]] = {}
        self._stamps: array[int] = array("Q")

    def framing(self, kind: int, objects_only: bool, /) -> None:
        """Sets how the body is cut into events, and so that it is scanned. objects_only: an event that is no JSON
        object is no token.

        Raises:
            ValueError: no such number.
        """
        if not SSE <= kind <= WHOLE:
            raise ValueError(f"framing(): expected {SSE} to {WHOLE}, found {kind}")
        self._framing, self._objects_only = kind, objects_only

    def decoder(self, decode: Callable[[bytes], Iterable[bytes]], /) -> None:
        """Passes the parts of this response's body through decode first."""
        self._decode = decode

    def stamp(self) -> None:
        """Stamps the return of a read."""
        self.now_ns = now()
        self.byte_ns = self.byte_ns or self.now_ns

    def feed(self, body: bytes, /) -> None:
        """Takes a part of the body that the read returned."""
        for part in (body,) if self._decode is None else self._decode(body):
            self._feed(part)

    def _feed(self, body: bytes) -> None:
        if not body:
            return
        self._bytes += len(body)
        self.head += body[: _HEAD - len(self.head)]
        at = self._stamp_of()
        if self._framing == RAW:
            content = Event()
            content.count(0, 1)
            self._take(content, at)
        elif self._framing != _OPAQUE:
            self._part += body
            self._cut(at)

    def _cut(self, at: int) -> None:
        while self._framing in (SSE, LINES):
            end = (_SSE_END if self._framing == SSE else re.compile(rb"\n")).search(self._part)
            if end is None:
                break
            event = bytes(self._part[: end.end()])
            del self._part[: end.end()]
            self._take(self._look(event), at)
        del self._part[_PART:]

    def _look(self, event: bytes) -> Event:
        found = look(event, self._framing)
        if self._objects_only and not found.object and len(event) < _PART:
            found.counts = {}
        if found.error and not self._error and self._messages:
            self.head = event[:_HEAD]
        return found

    def finish(self) -> None:
        """Ends the body in that read."""
        if self._framing == _OPAQUE or self._bytes == 0:
            return
        if self._framing == WHOLE:
            found = whole(bytes(self._part))
        else:
            found = self._look(bytes(self._part)) if self._part else Event()
        if self._framing == SSE:  # without its empty line no client sees it
            found.counts = {}
        self._take(found, self._stamp_of())
        self._part.clear()

    def result(
        self,
    ) -> tuple[
        int, int, int, int, int, int, int, int, int, int, int, int, int, bool, bool,
        tuple[tuple[int, int, int], ...], bytes,
    ]:  # fmt: skip
        """Byte, chunk, first and last content ns; messages, tokens, usage tokens; largest gap and when it began;
        deadlines due and met; idle ns; bytes; end marker, error; choices; stamps."""
        times = (self.byte_ns, self._chunk, self._first, self._last)
        counts = (self._messages, self._tokens, self._usage, self._gap, self._gap_at, self._due, self._met)
        choices = tuple(self._choices[index] for index in sorted(self._choices))
        return (*times, *counts, self._idle, self._bytes, self._done, self._error, choices, self._stamps.tobytes())

    def _stamp_of(self) -> int:
        at = max(self.now_ns, self._last, 1)
        self._chunk = self._chunk or at
        return at

    def _take(self, found: Event, at: int) -> None:
        if found.counts:
            self._take_message(found, at)
        self._usage = max(self._usage, found.usage)
        self._done = self._done or found.done
        self._error = self._error or found.error

    def _take_message(self, found: Event, at: int) -> None:
        if self._messages == 0:
            self._first = at
        elif at - self._last > self._gap:
            self._gap, self._gap_at = at - self._last, self._last
        for choice, n in found.counts.items():
            if choice < _MOST_CHOICES:
                self._count_choice(choice, n, at)
        if self._messages < _MOST_STAMPS:
            self._stamps.append(at)
        self._messages += 1
        self._tokens += found.tokens
        self._last = at

    def _count_choice(self, index: int, n: int, at: int) -> None:
        first, last, tokens = self._choices.get(index, (at, 0, 0))
        if index == 0 and self._step:
            self._read_on(n, at, tokens == 0)
            if self._ttft:
                since = self._planned if tokens == 0 else last
                self._judge(max(0, at - since), self._step if tokens else self._ttft, n)
        self._choices[index] = first, at, tokens + n

    def _read_on(self, n: int, at: int, is_first: bool) -> None:
        """A reader who takes a step for each token has nothing to read from when it has read all."""
        if not is_first and at > self._read_until:
            self._idle += at - self._read_until
        self._read_until = (at if is_first else max(self._read_until, at)) + n * self._step

    def _judge(self, waited: int, deadline: int, n: int) -> None:
        """A late token misses every deadline that passed meanwhile, and the slack is gone."""
        budget = self._slack + deadline
        if waited > budget:
            self._due += (waited - budget) // deadline + 1
            self._slack = 0
        else:
            self._slack = budget - waited
            self._due += 1
            self._met += 1
        self._slack += self._step * (n - 1)
        self._due += n - 1
        self._met += n - 1
