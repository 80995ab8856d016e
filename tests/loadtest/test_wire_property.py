"""Whatever bytes come, and however the network cuts them: the client's answer is the same, and it never raises."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("httptools", reason="the load client needs httptools: pip install '.[load]'")

from tailwatch.loadtest.connection import Connection, Flight
from tailwatch.loadtest.exchange import Ending, Exchange

pytestmark = pytest.mark.property

SSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
EVENTS = (
    TOKEN,
    b'data: {"choices":[{"index":1,"delta":{"content":"b"}}]}\n\n',
    b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n',
    b'data: {"choices":[{"index":0,"text":"abc","token_ids":[1,2,3]}]}\r\n\r\n',
    b": ping\n\n",
    b'data: {"choices":[],"usage":{"completion_tokens":12}}\n\n',
    b'event: error\ndata: {"error":{"message":"x"}}\n\n',
    b"data: [DONE]\n\n",
)


class Transport:
    """What a connection does to it."""

    def __init__(self) -> None:
        self.closing = False
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def abort(self) -> None:
        self.closing = True

    def is_closing(self) -> bool:
        return self.closing


class Owner:
    """A pool that only listens."""

    deadlines_ns = (10**9, 10**7)
    keep = False
    marked = False
    generates = False

    def __init__(self) -> None:
        self.settled: list[tuple[Ending, str]] = []
        self.sent_again = 0

    def settle(self, flight: Flight, ending: Ending, error: str, end_ns: int) -> None:
        assert end_ns > 0
        self.settled.append((ending, error))

    def again(self, flight: Flight) -> None:
        self.sent_again += 1

    def connected(self, connection: Connection) -> None: ...
    def idle(self, connection: Connection) -> None: ...
    def gone(self, connection: Connection) -> None: ...


def received(parts: list[bytes], error: Exception | None = None) -> tuple[Exchange, Owner, Transport]:
    """What becomes of an exchange whose answer comes in these reads; then the connection is lost."""
    owner, transport, exchange = Owner(), Transport(), Exchange(1)
    connection = Connection(owner)
    connection.connection_made(transport)  # type: ignore[arg-type]
    connection.begin(Flight(exchange, b"GET / HTTP/1.1\r\n\r\n", lambda _: None))
    for part in parts:
        if transport.closing:
            break
        connection.data_received(part)
    connection.connection_lost(error)
    return exchange, owner, transport


def seen(exchange: Exchange) -> tuple[Any, ...]:
    """All of it but the times."""
    choices = [tokens for _, _, tokens in exchange.choices]
    counts = (exchange.messages, exchange.tokens, exchange.usage_tokens, exchange.body_bytes, len(exchange.stamps))
    return exchange.status, exchange.done, exchange.failed, exchange.content_type, choices, counts


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """The same bytes in pieces."""
    edges = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[start:end] for start, end in itertools.pairwise(edges)]


def chunked(events: list[bytes], sizes: list[int]) -> bytes:
    """A chunked body, whose chunks need not end where events do."""
    body = b"".join(events)
    parts = [part for part in cut(body, sizes) if part] if sizes else [event for event in events if event]
    return SSE + b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


PLACES = st.lists(st.integers(0, 5000), max_size=12)


@given(st.lists(st.sampled_from(EVENTS), max_size=12), PLACES, PLACES)
def test_reads_may_be_cut_anywhere(events: list[bytes], sizes: list[int], places: list[int]) -> None:
    """Neither the chunks of the server nor the reads of the client change what is counted."""
    whole = chunked(events, [])
    expected, owner, _ = received([whole])
    assert owner.settled == [(Ending.FINISHED, "")]
    assert expected.messages == sum(event in (EVENTS[0], EVENTS[1], EVENTS[3]) for event in events)
    assert expected.tokens == sum({EVENTS[0]: 1, EVENTS[1]: 1, EVENTS[3]: 3}.get(event, 0) for event in events)
    found, owner, _ = received(cut(chunked(events, sizes), places))
    assert owner.settled == [(Ending.FINISHED, "")]
    assert seen(found) == seen(expected)


def test_every_single_cut() -> None:
    """A read may end behind any byte of an answer."""
    whole = chunked(list(EVENTS), [7, 90, 91, 200])
    expected = seen(received([whole])[0])
    for place in range(len(whole) + 1):
        found, owner, transport = received(cut(whole, [place]))
        assert (seen(found), owner.settled, transport.closing) == (expected, [(Ending.FINISHED, "")], False)


PIECES = st.sampled_from(
    [SSE, TOKEN, b"0\r\n\r\n", b"\r\n", b"5\r\n", b"HTTP/1.1 ", b"200", b"data: ", b"\xff\x00", *EVENTS]
)


@given(st.lists(st.one_of(st.binary(max_size=40), PIECES), max_size=15), st.sampled_from([None, OSError(104, "reset")]))
def test_any_bytes_are_an_outcome(parts: list[bytes], error: Exception | None) -> None:
    """No bytes raise; each exchange ends once, and only bytes that make a whole answer finish it."""
    exchange, owner, transport = received([part for part in parts if part], error)
    assert len(owner.settled) == 1
    ending, why = owner.settled[0]
    assert ending in (Ending.FINISHED, Ending.RESET, Ending.TRUNCATED, Ending.GARBAGE)
    assert (why == "") == (ending is Ending.FINISHED)
    assert (exchange.status >= 200) or ending is not Ending.FINISHED
    assert transport.closing or ending is not Ending.GARBAGE
    assert owner.sent_again == 0


@given(st.integers(0, 400))
def test_what_is_cut_off_is_not_whole(place: int) -> None:
    """The beginning of an answer is truncated, reset if nothing came; it never finishes."""
    whole = chunked([TOKEN] * 4, [])
    part = whole[: place % len(whole)]
    exchange, owner, _ = received([part] if part else [])
    assert owner.settled[0][0] is (Ending.TRUNCATED if part else Ending.RESET)
    assert exchange.tokens <= 4
