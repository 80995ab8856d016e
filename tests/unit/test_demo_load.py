"""The demo's client: what counts as a token, and parsing of answers that arrive in any pieces."""

from __future__ import annotations

import asyncio

import pytest

from tailwatch.demo import load, schedule

ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}'
CHAT = b'data: {"choices":[{"index":0,"delta":{"content":" lo"}}]}'
TEXT = b'data: {"choices":[{"index":0,"text":" lo"}]}'
EMPTY = b'data: {"choices":[{"index":0,"text":"","finish_reason":"length"}]}'
DONE = b"data: [DONE]"


@pytest.mark.parametrize(
    ("frame", "expected"), [(ROLE, False), (CHAT, True), (TEXT, True), (EMPTY, False), (DONE, False)]
)
def test_only_generated_text_is_a_token(frame: bytes, expected: bool) -> None:
    """A role, an empty delta and [DONE] are no tokens."""
    assert load.has_content(frame) is expected


class FakeTransport(asyncio.Transport):
    """Keeps what was written, and whether it was aborted."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def abort(self) -> None:
        self.aborted = True


def answer(*frames: bytes) -> bytes:
    """A chunked HTTP/1.1 answer, a chunk per frame, as uvicorn writes it."""
    chunks = [frame + b"\n\n" for frame in frames]
    body = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    return b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + body + b"0\r\n\r\n"


def begin() -> tuple[load.Connection, load.Exchange, list[load.Exchange], list[load.Connection]]:
    """A connection with a request on it."""
    idle: list[load.Connection] = []
    done: list[load.Exchange] = []
    connection = load.Connection(idle)
    connection.connection_made(FakeTransport())
    exchange = load.Exchange(planned=0.0, tokens=2)
    connection.begin(exchange, b"POST", done.append)
    return connection, exchange, done, idle


@pytest.mark.parametrize("size", [1000, 40, 17])
def test_an_answer_in_any_pieces_is_the_same_answer(size: int) -> None:
    """Tokens, end, and the connection's return to the pool do not depend on where the reads are cut."""
    connection, exchange, done, idle = begin()
    data = answer(ROLE, CHAT, CHAT, CHAT, DONE)

    for at in range(0, len(data), size):
        connection.data_received(data[at : at + size])

    assert exchange.first is not None and len(exchange.gaps) == 2
    assert exchange.end is not None and exchange.error is None
    assert done == [exchange] and idle == [connection]


def test_an_answer_that_is_no_200_is_an_error() -> None:
    """The status becomes the error, and the connection is not used again."""
    connection, exchange, done, idle = begin()

    connection.data_received(b"HTTP/1.1 503 Service Unavailable\r\n\r\nbusy")

    assert exchange.error == "503" and done == [exchange] and idle == []


def test_a_lost_connection_is_an_error_once() -> None:
    """A server that goes away mid-stream leaves an error; a second loss changes nothing."""
    connection, exchange, done, _ = begin()

    connection.data_received(answer(CHAT, CHAT)[:-30])
    connection.connection_lost(None)
    connection.connection_lost(None)

    assert exchange.error == "connection lost" and exchange.end is None and done == [exchange]


def test_latencies_count_from_the_planned_start() -> None:
    """A request that was sent late has its wait in TTFT and E2E, and the lag beside them."""
    exchange = load.Exchange(planned=10.0, tokens=2, sent=10.5)
    exchange.token(11.0)
    exchange.token(11.25)
    exchange.end = 11.5

    line = exchange.as_line(start=9.0)

    assert (line["planned"], line["send_lag"], line["ttft"], line["e2e"]) == (1.0, 0.5, 1.0, 1.5)
    assert line["gaps"] == [0.25]


def test_an_open_loop_does_not_wait_for_the_server() -> None:
    """Against a server that never answers every request is still sent, and counted as unfinished."""

    async def run() -> list[dict[str, object]]:
        server = await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0)
        client = load.Client(server.sockets[0].getsockname()[1], lambda line: None)
        client.patience = 0.3
        planned = schedule.plan(100.0, 0.2, 1)
        found = await client.run_open(planned, 0.2)
        server.close()
        assert len(found["exchanges"]) == len(planned) > 5
        return list(found["exchanges"])

    exchanges = asyncio.run(run())

    assert {exchange["error"] for exchange in exchanges} == {"unfinished"}
