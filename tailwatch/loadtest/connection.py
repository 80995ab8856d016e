"""One keep-alive HTTP/1.1 connection: the parser is httptools (llhttp), what is in the body is counted in C.

No Python runs for a token but data_received() and two calls into C: the parser hands the body straight to _hot.Answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol as Interface
from typing import cast

from tailwatch._hot import Answer, now
from tailwatch.errors import UnsupportedError, how_to_install
from tailwatch.loadtest.decoding import Decoder, decoder_of
from tailwatch.loadtest.exchange import Ending, Exchange

try:
    import httptools
except ImportError as error:  # pragma: no cover - raised where the client is first asked for
    raise UnsupportedError(f"tailwatch.loadtest needs httptools: {how_to_install('load')}") from error

# tw_framing of csrc/include/tailwatch/wire/body_scan.h, by content type; other bodies are not looked into.
_SSE, _LINES, _RAW, _WHOLE = 0, 1, 3, 4
_FRAMINGS = {
    "text/event-stream": _SSE,
    "application/json": _WHOLE,
    "text/plain": _RAW,
    "application/x-ndjson": _LINES,
    "application/ndjson": _LINES,
    "application/jsonl": _LINES,
    "application/x-jsonlines": _LINES,
    "application/json-lines": _LINES,
    "application/stream+json": _LINES,
}


class Flight:
    """An exchange on its way: what is needed to send it once more, and to end it."""

    __slots__ = ("cancel", "done", "exchange", "over", "request", "timer")

    def __init__(self, exchange: Exchange, request: bytes, done: Callable[[Exchange], None]) -> None:
        self.exchange = exchange
        self.request = request
        self.done = done
        self.over = False
        self.timer: asyncio.TimerHandle | None = None
        self.cancel: Callable[[], object] | None = None


class Owner(Interface):
    """What a connection belongs to."""

    deadlines_ns: tuple[int, int]
    keep: bool
    marked: bool
    generates: bool

    def settle(self, flight: Flight, ending: Ending, error: str, end_ns: int) -> None:
        """The exchange has ended."""

    def again(self, flight: Flight) -> None:
        """The connection was stale: send it on a new one."""

    def connected(self, connection: Connection) -> None:
        """It is open."""

    def idle(self, connection: Connection) -> None:
        """It is free for another request."""

    def gone(self, connection: Connection) -> None:
        """It is closed."""


class Connection(asyncio.Protocol):
    """Carries one exchange after the other."""

    __slots__ = (
        "_answer",
        "_broken",
        "_carried",
        "_complete",
        "_decoder",
        "_encoding",
        "_feed",
        "_flight",
        "_framing",
        "_headed",
        "_lasting",
        "_owner",
        "_parser",
        "_sized",
        "_stamp",
        "_transport",
        "on_body",
    )

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._flight: Flight | None = None
        self._carried = 0
        self._answer = Answer()
        self._stamp = self._answer.stamp
        self.on_body = self._answer.feed
        """The parser calls it with each part of the body: without a line of Python between."""
        self._parser = httptools.HttpResponseParser(self)
        self._feed = self._parser.feed_data
        self._complete = self._headed = self._lasting = self._sized = False
        self._encoding = ""
        self._decoder: Decoder | None = None
        self._framing: int | None = None
        self._broken = ""

    @property
    def usable(self) -> bool:
        """Whether it may carry another request, as far as is known."""
        return self._transport is not None and not self._transport.is_closing()

    def begin(self, flight: Flight) -> None:
        """Write a request, and wait for its answer."""
        assert self._transport is not None
        exchange = flight.exchange
        self._flight = flight
        flight.cancel = self.give_up
        self._clear()
        self._answer.begin(exchange.planned_ns, *self._owner.deadlines_ns)
        exchange.reused, exchange.generates, exchange.unread = self._carried > 0, self._owner.generates, ""
        self._carried += 1
        exchange.written_ns = now()
        self._transport.write(flight.request)

    def give_up(self) -> None:
        """Note what came so far, and close it at once; nothing is reported."""
        flight, self._flight = self._flight, None
        if flight is not None:
            self._note(flight.exchange)
        self.abort()

    def abort(self) -> None:
        """Close it at once."""
        if self._transport is not None:
            self._transport.abort()

    # ---- asyncio ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._owner.connected(self)

    def data_received(self, data: bytes) -> None:
        if self._flight is None:  # nothing was asked, or nothing waits any more
            self.abort()
            return
        self._stamp()
        try:
            self._feed(data)
        except httptools.HttpParserUpgrade:
            self._broken = "the server switched protocols"
        except httptools.HttpParserError as error:
            self._broken = f"the answer's framing is broken: {error}" if self._headed else f"not HTTP: {error}"
        if self._complete or self._broken:
            self._end()

    def connection_lost(self, error: Exception | None) -> None:
        self._owner.gone(self)
        if self._flight is not None:
            self._lost(error)
        # The parser holds our methods: without this the two would wait for a collection that a load client never runs.
        del self._parser, self._feed, self.on_body

    # ---- httptools ----

    def on_header(self, name: bytes, value: bytes) -> None:
        """Four of them matter."""
        if self._complete:
            raise ValueError("more than one answer")
        if len(name) not in (12, 14, 16, 17):
            return
        name = name.lower()
        if name == b"content-type":
            kind = value.partition(b";")[0].strip().lower().decode("latin-1")
            assert self._flight is not None
            self._flight.exchange.content_type = kind
        elif name == b"content-encoding":
            self._encoding = value.strip().lower().removeprefix(b"identity").decode("latin-1")
        elif name in (b"content-length", b"transfer-encoding"):
            self._sized = True

    def on_headers_complete(self) -> None:
        """The status is known, and how to read the body."""
        if self._complete:
            raise ValueError("more than one answer")
        assert self._flight is not None
        exchange = self._flight.exchange
        exchange.status = self._parser.get_status_code()
        self._headed = exchange.status >= 200
        self._framing = self._read_as(exchange)
        if self._framing is None and self._owner.marked and 200 <= exchange.status < 300:
            exchange.unread = self._kind(exchange)
        if self._framing is not None:
            self._answer.framing(self._framing, self._owner.marked)
        if self._decoder is not None:
            self._answer.decoder(self._decoder)

    def _read_as(self, exchange: Exchange) -> int | None:
        """The framing of the body, None where it cannot be read; no API of models answers in plain text."""
        framing = _FRAMINGS.get(exchange.content_type)
        if self._encoding and (framing is not None or not 200 <= exchange.status < 300):
            self._decoder = decoder_of(self._encoding)
        if (self._encoding and self._decoder is None) or (framing == _RAW and self._owner.marked):
            return None
        return framing

    def _kind(self, exchange: Exchange) -> str:
        kind = exchange.content_type or "no content type"
        return f"{kind}, {self._encoding}" if self._encoding else kind

    def on_message_complete(self) -> None:
        """The whole answer is there; or one that only announces that it is being worked on."""
        if self._headed:
            self._complete = True
            self._lasting = self._parser.should_keep_alive()  # it forgets with this call
        else:
            self._clear()

    # ---- ends ----

    def _clear(self) -> None:
        self._complete = self._headed = self._lasting = self._sized = False
        self._encoding = ""
        self._decoder = None
        self._framing = None
        self._broken = ""

    def _end(self) -> None:
        """The answer is complete, or cannot be read on; what came behind it makes the connection useless."""
        assert self._transport is not None
        if self._broken or not self._lasting:
            self._transport.abort()
        self._answer.finish()
        ending = Ending.FINISHED if self._complete else Ending.GARBAGE
        self._hand_over(ending, "" if self._complete else self._broken, self._answer.now_ns)

    def _lost(self, error: Exception | None) -> None:
        assert self._flight is not None
        why = f": {error}" if error is not None else ""
        if self._answer.byte_ns == 0 and self._flight.exchange.reused and self._flight.exchange.retries == 0:
            flight, self._flight = self._flight, None
            self._owner.again(flight)
        elif self._answer.byte_ns == 0:
            self._hand_over(Ending.RESET, f"the server closed the connection before it answered{why}", now())
        elif self._headed and not self._sized and error is None:  # the end of the connection is the end of the answer
            self._answer.finish()
            self._hand_over(Ending.FINISHED, "", now())
        else:
            self._hand_over(Ending.TRUNCATED, f"the connection was lost inside the answer{why}", now())

    def _cut(self, exchange: Exchange) -> bool:
        """By HTTP this was all; but the protocol of the stream has an end marker, and it did not come."""
        due = self._owner.marked and 200 <= exchange.status < 300 and self._framing == _SSE
        return due and not exchange.done and not exchange.failed

    def _read_to_its_end(self, exchange: Exchange) -> tuple[Ending, str]:
        """How an answer ended that is complete in HTTP."""
        decoder = self._decoder
        if decoder is not None and 200 <= exchange.status < 300 and (why := _unread(decoder)):
            exchange.unread = f"{self._kind(exchange)}: {why}"
        if exchange.unread:
            missing = f" ({how_to_install('encodings')})" if self._encoding in ("br", "zstd") and not decoder else ""
            return Ending.FINISHED, f"its body cannot be read: {exchange.unread}{missing}"
        if decoder is not None and not decoder.whole and not exchange.done and not exchange.failed:
            return Ending.TRUNCATED, f"its {self._encoding} body ended too early"
        if self._cut(exchange):
            return Ending.TRUNCATED, "the stream ended without its end marker"
        return Ending.FINISHED, ""

    def _hand_over(self, ending: Ending, error: str, end_ns: int) -> None:
        flight, self._flight, self._complete = self._flight, None, False
        assert flight is not None
        self._note(flight.exchange)
        if ending is Ending.FINISHED:
            ending, error = self._read_to_its_end(flight.exchange)
        if self.usable:
            self._owner.idle(self)
        self._owner.settle(flight, ending, error, end_ns)

    def _note(self, exchange: Exchange) -> None:
        """What was seen of the answer so far."""
        (
            exchange.first_byte_ns,
            exchange.first_chunk_ns,
            exchange.first_content_ns,
            exchange.last_content_ns,
            exchange.messages,
            exchange.tokens,
            exchange.usage_tokens,
            exchange.largest_gap_ns,
            exchange.largest_gap_at_ns,
            exchange.due,
            exchange.met,
            exchange.idle_ns,
            exchange.body_bytes,
            exchange.done,
            exchange.failed,
            exchange.choices,
            exchange.stamps,
        ) = self._answer.result()
        empty = exchange.generates and not exchange.messages
        if self._owner.keep or exchange.failed or empty or not 200 <= exchange.status < 300:
            exchange.head = self._answer.head


def _unread(decoder: Decoder) -> str:
    """Why a body that is complete in HTTP cannot be read. What is no brotli can look like the beginning of it."""
    return decoder.error or ("" if decoder.whole or decoder.decoded else "none of it could be decoded")
