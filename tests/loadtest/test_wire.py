"""The load client against a server that does what the test asks: on asyncio's loop and on uvloop's."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import shutil
import socket
import ssl
import struct
import subprocess
from array import array
from collections.abc import Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("httptools", reason="the load client needs httptools: pip install '.[load]'")

from tailwatch._hot import now
from tailwatch.loadtest.connection import Connection
from tailwatch.loadtest.exchange import Ending, Exchange
from tailwatch.loadtest.pool import Pool, Target, tls_context
from tailwatch.loadtest.process import new_event_loop

from ..support.waiting import until_async

pytestmark = pytest.mark.integration

REQUEST = b"POST /v1/completions HTTP/1.1\r\nhost: t\r\ncontent-length: 2\r\n\r\n{}"
SSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
DONE = b"data: [DONE]\n\n"
LAST = b"0\r\n\r\n"
PATIENCE = 20.0  # seconds until a test gives up; none of them waits for it

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def stream(tokens: int) -> bytes:
    """A whole answer."""
    return SSE + chunk(ROLE) + b"".join(chunk(TOKEN) for _ in range(tokens)) + chunk(DONE) + LAST


async def read_request(reader: asyncio.StreamReader) -> bytes:
    """The next request of a connection; b"" when there is none."""
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        head = await reader.readuntil(b"\r\n\r\n")
        return head + await reader.readexactly(2)
    return b""


def answering(*parts: bytes, close: bool = False) -> Answer:
    """Answers every request with these bytes."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await read_request(reader):
            for part in parts:
                writer.write(part)
                await writer.drain()
            if close:
                return

    return answer


class Server:
    """Connections accepted so far, and where."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.accepted = 0


@asynccontextmanager
async def serving(answer: Answer, context: ssl.SSLContext | None = None) -> Any:
    """A server for one test; it closes a connection when answer() returns."""
    server = Server(0)
    running: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.accepted += 1
        task = asyncio.current_task()
        assert task is not None
        running.add(task)
        try:
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                await answer(reader, writer)
        finally:
            running.discard(task)
            writer.close()

    listening = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=context)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()
        for task in list(running):
            task.cancel()
        await settle_down()


async def settle_down() -> None:
    """Closed transports close in the next turns of the loop."""
    for _ in range(10):
        await asyncio.sleep(0)


@asynccontextmanager
async def pooled(port: int, **options: Any) -> Any:
    """A pool for one test."""
    pool = Pool(Target("127.0.0.1", port, options.pop("tls", None)), **options)
    try:
        yield pool
    finally:
        pool.close()
        await until_async(lambda: pool.connections == 0)
        await settle_down()


CHUNK, MESSAGES = 1, 4
"""Where they stand in seen()."""


def seen(pool: Pool) -> tuple[Any, ...]:
    """What the only connection has seen of its answer so far; zeros where there is none."""
    return next((connection._answer.result() for connection in pool._open), (0,) * 17)


async def ask(pool: Pool, request: bytes = REQUEST, planned_ns: int | None = None) -> Exchange:
    """One exchange, to its end; done is called once, and not from within send()."""
    over: asyncio.Future[Exchange] = asyncio.get_running_loop().create_future()
    exchange = Exchange(now() if planned_ns is None else planned_ns)
    pool.send(exchange, request, over.set_result)
    assert not over.done()
    assert await asyncio.wait_for(over, PATIENCE) is exchange
    await asyncio.sleep(0)
    return exchange


Run = Callable[[Callable[[], Awaitable[Any]]], Any]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    """Runs a test's coroutine on a loop of its own."""
    if request.param == "uvloop":
        pytest.importorskip("uvloop", reason="pip install uvloop to test the client on it")
        loop = new_event_loop()
        assert type(loop).__module__ == "uvloop"
    else:
        loop = asyncio.new_event_loop()
    yield lambda test: loop.run_until_complete(test())
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


def gaps_of(exchange: Exchange) -> list[int]:
    """Between messages with content, in order."""
    return [later - earlier for earlier, later in pairwise(array("Q", exchange.stamps))]


def one(run: Run, answer: Answer, **options: Any) -> Exchange:
    """One exchange with a server of its own."""

    async def test() -> Exchange:
        async with serving(answer) as server, pooled(server.port, **options) as pool:
            exchange = await ask(pool)
            assert pool.in_flight == 0
            return exchange

    exchange: Exchange = run(test)
    return exchange


# ---- answers ----


def test_events_of_a_stream_are_distinguished(run: Run) -> None:
    """First byte, first chunk and first content are three things; a role is no token; the end marker is seen."""
    exchange = one(run, answering(stream(5)))
    assert (exchange.ending, exchange.error, exchange.status) == (Ending.FINISHED, "", 200)
    assert (exchange.messages, exchange.tokens, exchange.done, exchange.failed) == (5, 5, True, False)
    assert exchange.content_type == "text/event-stream"
    assert exchange.body_bytes == len(ROLE) + 5 * len(TOKEN) + len(DONE)
    times = [exchange.planned_ns, exchange.sent_ns, exchange.written_ns, exchange.first_byte_ns]
    times += [exchange.first_chunk_ns, exchange.first_content_ns, exchange.last_content_ns, exchange.end_ns]
    assert times == sorted(times)
    assert min(times) > 0
    assert exchange.head == b""


def test_content_waits_for_the_first_token(run: Run) -> None:
    """TTFT ends with the first token, not with the role or a comment that came before it."""
    gate = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(SSE + chunk(b": ping\n\n") + chunk(ROLE))
        await gate.wait()
        writer.write(chunk(TOKEN) + chunk(DONE) + LAST)
        await reader.read()

    async def test() -> tuple[Exchange, int]:
        async with serving(answer) as server, pooled(server.port) as pool:
            over: asyncio.Future[Exchange] = asyncio.get_running_loop().create_future()
            exchange = Exchange(now())
            pool.send(exchange, REQUEST, over.set_result)
            await until_async(lambda: seen(pool)[CHUNK] > 0)
            opened = now()
            gate.set()
            return await asyncio.wait_for(over, PATIENCE), opened

    exchange, opened = run(test)
    assert exchange.first_content_ns > opened > exchange.first_chunk_ns >= exchange.first_byte_ns
    assert exchange.ttft_ns == exchange.first_content_ns - exchange.planned_ns


def test_gaps_are_those_between_messages(run: Run) -> None:
    """A stall in mid-stream is the largest gap, with its place; the planned start is where corrected times begin."""
    gate = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(SSE + chunk(TOKEN) + chunk(TOKEN))
        await gate.wait()
        writer.write(chunk(TOKEN) + chunk(TOKEN) + LAST)
        await reader.read()

    async def test() -> Exchange:
        async with serving(answer) as server, pooled(server.port, deadlines_ns=(10**6, 10**6)) as pool:
            over: asyncio.Future[Exchange] = asyncio.get_running_loop().create_future()
            exchange = Exchange(now() - 10**9)
            pool.send(exchange, REQUEST, over.set_result)
            await until_async(lambda: seen(pool)[MESSAGES] == 2)
            await asyncio.sleep(0.06)
            gate.set()
            return await asyncio.wait_for(over, PATIENCE)

    exchange = run(test)
    gaps = gaps_of(exchange)
    assert len(gaps) == 3
    assert max(gaps) == exchange.largest_gap_ns >= 50_000_000
    assert exchange.largest_gap_at_ns + exchange.largest_gap_ns <= exchange.last_content_ns
    assert exchange.sent_ns - exchange.planned_ns >= 10**9
    assert exchange.ttft_ns == exchange.first_content_ns - exchange.planned_ns >= 10**9
    assert exchange.e2e_ns == exchange.end_ns - exchange.planned_ns >= exchange.ttft_ns
    assert exchange.due > exchange.met > 0
    assert exchange.idle_ns > 0


def test_several_tokens_in_a_message(run: Run) -> None:
    """A message of several token ids is one message; the server's own count is kept beside ours."""
    many = b'data: {"choices":[{"index":0,"text":"abc","token_ids":[1,2,3]}]}\n\n'
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":4,"completion_tokens":9}}\n\n'
    exchange = one(run, answering(SSE + chunk(many + many) + chunk(usage) + chunk(DONE) + LAST))
    assert (exchange.messages, exchange.tokens, exchange.usage_tokens, exchange.output_tokens) == (2, 6, 9, 9)
    assert gaps_of(exchange) == [0]
    assert exchange.tpots_ns == ()


def test_an_error_event_is_seen_and_kept(run: Run) -> None:
    """An error inside a stream of status 200 is a failure, and its words are there to be read."""
    error = b'data: {"error":{"message":"out of memory","code":500}}\n\n'
    exchange = one(run, answering(SSE + chunk(error) + LAST))
    assert (exchange.ending, exchange.status, exchange.failed) == (Ending.FINISHED, 200, True)
    assert b"out of memory" in exchange.head


@pytest.mark.parametrize("status", [429, 503, 404])
def test_a_refusal_is_a_whole_answer(run: Run, status: int) -> None:
    """Other statuses finish, have the reason, and leave the connection usable."""
    body = b'{"error":"busy"}'
    head = b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (status, len(body))
    exchange = one(run, answering(head + body))
    assert (exchange.ending, exchange.status, exchange.failed) == (Ending.FINISHED, status, True)
    assert exchange.head == body
    assert exchange.first_content_ns == 0


def test_one_document(run: Run) -> None:
    """An answer that is no stream has an end and usage, and no first content."""
    body = b'{"choices":[{"text":"hello"}],"usage":{"completion_tokens":3}}'
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
    exchange = one(run, answering(head + body), keep=True)
    assert (exchange.ending, exchange.output_tokens, exchange.ttft_ns) == (Ending.FINISHED, 3, None)
    assert exchange.first_chunk_ns > 0
    assert exchange.head == body


def test_compressed_bodies_are_not_read(run: Run) -> None:
    """A body in gzip has an end and no tokens."""
    head = SSE.replace(b"Transfer", b"Content-Encoding: gzip\r\nTransfer")
    exchange = one(run, answering(head + chunk(TOKEN) + LAST))
    assert (exchange.ending, exchange.messages) == (Ending.FINISHED, 0)


def test_the_connection_ends_the_answer(run: Run) -> None:
    """Without a length the end of the connection is the end of the answer."""
    head = b"HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
    exchange = one(run, answering(head + TOKEN + TOKEN, close=True))
    assert (exchange.ending, exchange.tokens) == (Ending.FINISHED, 2)


@pytest.mark.parametrize("body", [[chunk(TOKEN) + LAST], [chunk(TOKEN) + chunk(DONE) + LAST]], ids=["bare", "marked"])
def test_an_end_marker_that_is_due(run: Run, body: list[bytes]) -> None:
    """By HTTP it may be all: without the marker the stream was cut off, where its protocol has one."""
    whole = DONE in body[0]
    due = one(run, answering(SSE, *body), marked=True)
    assert (due.ending, due.done) == (Ending.FINISHED if whole else Ending.TRUNCATED, whole)
    assert due.tokens == 1 and bool(due.error) is not whole
    assert one(run, answering(SSE, *body)).ending is Ending.FINISHED


def test_an_interim_answer_is_not_the_answer(run: Run) -> None:
    """100 Continue and 103 are passed over."""
    interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"
    exchange = one(run, answering(interim, stream(2)))
    assert (exchange.ending, exchange.status, exchange.tokens) == (Ending.FINISHED, 200, 2)


def test_an_answer_without_a_body(run: Run) -> None:
    """204 ends with its head."""
    exchange = one(run, answering(b"HTTP/1.1 204 No Content\r\n\r\n"))
    assert (exchange.ending, exchange.status, exchange.body_bytes) == (Ending.FINISHED, 204, 0)


# ---- connections ----


def test_connections_are_used_again(run: Run) -> None:
    """One after the other on one connection; two at once on two."""

    async def test() -> None:
        async with serving(answering(stream(3))) as server, pooled(server.port) as pool:
            first = await ask(pool)
            rest = [await ask(pool) for _ in range(5)]
            assert (pool.opened, server.accepted) == (1, 1)
            assert [first.reused, *(exchange.reused for exchange in rest)] == [False] + [True] * 5
            assert first.connect_ns > 0
            assert {exchange.connect_ns for exchange in rest} == {0}
            await asyncio.gather(ask(pool), ask(pool))
            assert (pool.opened, pool.connections) == (2, 2)

    run(test)


def test_warm_connections(run: Run) -> None:
    """Connections opened beforehand carry the first requests."""

    async def test() -> None:
        async with serving(answering(stream(1))) as server, pooled(server.port) as pool:
            assert await pool.warm(3) == 3
            found = await asyncio.gather(*(ask(pool) for _ in range(3)))
            assert pool.opened == 3
            assert {exchange.connect_ns for exchange in found} == {0}

    run(test)


def test_a_stale_connection_is_tried_once_more(run: Run) -> None:
    """The server closed it as the request came: it is sent again on a new one, and keeps its planned time."""
    asked = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await read_request(reader):
            asked.append(1)
            if len(asked) == 2:
                return  # the second request finds the connection closed
            writer.write(stream(2))

    async def test() -> None:
        async with serving(answer) as server, pooled(server.port) as pool:
            await ask(pool)
            planned = now() - 5_000_000
            exchange = await ask(pool, planned_ns=planned)
            assert (exchange.ending, exchange.tokens, exchange.retries) == (Ending.FINISHED, 2, 1)
            assert (exchange.planned_ns, exchange.reused) == (planned, False)
            assert exchange.sent_ns <= exchange.written_ns - exchange.connect_ns
            assert (pool.retries, server.accepted, len(asked)) == (1, 2, 3)

    run(test)


def test_only_a_stale_connection_is_tried_again(run: Run) -> None:
    """A new connection that is closed before an answer is a fault of the server's: counted, never hidden."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)

    exchange = one(run, answer)
    assert (exchange.ending, exchange.retries) == (Ending.RESET, 0)
    assert "before it answered" in exchange.error


def test_a_server_that_hangs_up_at_once(run: Run) -> None:
    """Whether it is noticed before the request is written or behind it: each exchange ends, as a reset."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        return

    async def test() -> None:
        async with serving(answer) as server, pooled(server.port) as pool:
            found = await asyncio.gather(*(ask(pool) for _ in range(20)))
            assert {exchange.ending for exchange in found} == {Ending.RESET}

    run(test)


def test_a_connection_that_is_closed_as_it_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was lost before the first request is noticed, and not written to."""

    async def test() -> Exchange:
        loop = asyncio.get_running_loop()
        connect = loop.create_connection

        async def closed(*args: Any, **options: Any) -> Any:
            transport, connection = await connect(*args, **options)
            transport.abort()
            await settle_down()
            return transport, connection

        monkeypatch.setattr(loop, "create_connection", closed)
        async with serving(answering(stream(1))) as server, pooled(server.port) as pool:
            exchange: Exchange = await ask(pool)
            return exchange

    exchange = asyncio.run(test())
    assert (exchange.ending, exchange.written_ns) == (Ending.RESET, 0)


def test_an_unforeseen_error_ends_the_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of any kind while connecting is an outcome: a run waits for every exchange."""

    async def test() -> Exchange:
        async def strange(*_: object, **__: object) -> None:
            raise RuntimeError

        monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", strange)
        async with pooled(1) as pool:
            exchange: Exchange = await ask(pool)
            return exchange

    exchange = asyncio.run(test())
    assert (exchange.ending, exchange.error) == (Ending.REFUSED, "no connection: RuntimeError")


def test_connections_that_come_too_late(run: Run) -> None:
    """A pool that is closed while it opens connections keeps none."""

    async def test() -> None:
        async with serving(answering(stream(1))) as server:
            pool = Pool(Target("127.0.0.1", server.port))
            warming = asyncio.ensure_future(pool.warm(5))
            await asyncio.sleep(0)
            pool.close()
            await warming
            await until_async(lambda: pool.connections == 0)

    run(test)


def test_connection_close_is_obeyed(run: Run) -> None:
    """An answer with close is the last one of its connection."""
    closing = stream(1).replace(b"Transfer", b"Connection: close\r\nTransfer")

    async def test() -> None:
        async with serving(answering(closing)) as server, pooled(server.port) as pool:
            assert [(await ask(pool)).ending for _ in range(3)] == [Ending.FINISHED] * 3
            assert (server.accepted, pool.retries) == (3, 0)

    run(test)


def test_unrequested_bytes(run: Run) -> None:
    """A second answer to one request belongs to no request: the first counts, the connection is closed."""

    async def test() -> None:
        async with serving(answering(stream(2) + stream(9))) as server, pooled(server.port) as pool:
            first, second = await ask(pool), await ask(pool)
            assert [first.tokens, second.tokens] == [2, 2]
            assert [first.ending, second.ending] == [Ending.FINISHED] * 2
            assert server.accepted == 2

    run(test)


def test_nothing_is_left_for_the_collector(run: Run) -> None:
    """Closed connections go without a collection: a load client freezes its heap and runs none."""

    async def test() -> None:
        async with serving(answering(stream(2))) as server, pooled(server.port) as pool:
            for _ in range(3):
                await ask(pool)
            await ask(pool, REQUEST.replace(b"{}", b"{{"))

    gc.collect()
    gc.disable()
    try:
        run(test)
        assert [thing for thing in gc.get_objects() if isinstance(thing, Connection)] == []
    finally:
        gc.enable()


# ---- faults ----


def test_refused(run: Run) -> None:
    """Nothing listens."""

    async def test() -> Exchange:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            async with pooled(taken.getsockname()[1]) as pool:
                exchange: Exchange = await ask(pool)
                assert await pool.warm(2) == 0
                return exchange

    exchange = run(test)
    assert (exchange.ending, exchange.status, exchange.written_ns) == (Ending.REFUSED, 0, 0)
    assert exchange.end_ns >= exchange.sent_ns > 0


def test_a_server_that_dies_in_mid_stream(run: Run) -> None:
    """What came is kept, and the answer is not whole."""
    exchange = one(run, answering(SSE + chunk(TOKEN) + chunk(TOKEN), close=True))
    assert (exchange.ending, exchange.tokens, exchange.e2e_ns) == (Ending.TRUNCATED, 2, None)


def test_a_reset_in_mid_stream(run: Run) -> None:
    """RST is not a clean end, also where the end of the connection would be the end of the answer."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + TOKEN)
        await reader.read(1)  # the client writes when it has seen the token
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    async def test() -> Exchange:
        async with serving(answer) as server, pooled(server.port) as pool:
            over: asyncio.Future[Exchange] = asyncio.get_running_loop().create_future()
            exchange = Exchange(now())
            pool.send(exchange, REQUEST, over.set_result)
            await until_async(lambda: seen(pool)[MESSAGES] == 1)
            (connection,) = pool._open
            connection._transport.write(b"x")
            return await asyncio.wait_for(over, PATIENCE)

    exchange = run(test)
    assert (exchange.ending, exchange.tokens) == (Ending.TRUNCATED, 1)


@pytest.mark.parametrize(
    "answer_head",
    [b"\x16\x03\x01\x02\x00", b"<html>nothing here</html>\r\n\r\n", b"HTTP/9.9 xx\r\n\r\n", SSE + b"zz\r\n" + TOKEN],
)
def test_garbage(run: Run, answer_head: bytes) -> None:
    """What is not HTTP is an outcome."""
    exchange = one(run, answering(answer_head))
    assert exchange.ending is Ending.GARBAGE
    assert exchange.error
    assert exchange.end_ns > 0


def test_switching_protocols_is_not_an_answer(run: Run) -> None:
    """No WebSocket was asked for."""
    exchange = one(run, answering(b"HTTP/1.1 101 Switching\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\nxx"))
    assert exchange.ending is Ending.GARBAGE


async def one_token_and_silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A stream that never ends."""
    await read_request(reader)
    writer.write(SSE + chunk(TOKEN))
    await reader.read()


def test_a_timeout_keeps_what_came(run: Run) -> None:
    """A stream that never ends is ended by the tester; its first token was real, and its connection is closed."""

    async def test() -> Exchange:
        async with serving(one_token_and_silence) as server, pooled(server.port, timeout=1000) as pool:
            over: asyncio.Future[Exchange] = asyncio.get_running_loop().create_future()
            pool.send(Exchange(now()), REQUEST, over.set_result)
            await until_async(lambda: seen(pool)[MESSAGES] == 1)
            (flight,) = pool._flights
            pool._time_out(flight)
            await until_async(lambda: pool.connections == 0)
            return over.result()

    exchange = run(test)
    assert (exchange.ending, exchange.tokens, exchange.status) == (Ending.TIMEOUT, 1, 200)
    assert exchange.end_ns >= exchange.first_content_ns > 0


def test_a_timeout_comes_by_itself(run: Run) -> None:
    """After so many seconds, not before."""
    exchange = one(run, one_token_and_silence, timeout=0.1)
    assert exchange.ending is Ending.TIMEOUT
    assert exchange.end_ns - exchange.sent_ns >= 95_000_000
    assert "0.1 s" in exchange.error


def test_a_timeout_while_connecting(run: Run) -> None:
    """A server that accepts nothing: its queue is full, and connecting takes as long as it is allowed."""

    async def test() -> Exchange:
        with socket.socket() as full, contextlib.ExitStack() as held:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            for _ in range(4):
                waiting = held.enter_context(socket.socket())
                waiting.setblocking(False)
                waiting.connect_ex(full.getsockname())
            async with pooled(full.getsockname()[1], timeout=0.2) as pool:
                exchange: Exchange = await ask(pool)
                return exchange

    exchange = run(test)
    assert exchange.ending is Ending.TIMEOUT
    assert exchange.first_byte_ns == 0


def test_close_ends_everything(run: Run) -> None:
    """The end of a run: what was in flight is reported, with what came so far; nothing is sent afterwards."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(SSE + chunk(TOKEN))
        await reader.read()

    async def test() -> None:
        ended: list[Exchange] = []
        async with serving(answer) as server, pooled(server.port) as pool:
            for _ in range(3):
                pool.send(Exchange(now()), REQUEST, ended.append)
            await until_async(lambda: sum(connection._answer.result()[MESSAGES] for connection in pool._open) == 3)
            late = Exchange(now())
            pool.send(late, REQUEST, ended.append)  # is still connecting
            assert (pool.in_flight, ended) == (4, [])
            pool.close()
            assert pool.in_flight == 0
            assert [exchange.ending for exchange in ended] == [Ending.ABANDONED] * 4
            assert sorted(exchange.tokens for exchange in ended) == [0, 1, 1, 1]
            pool.send(Exchange(now()), REQUEST, ended.append)
            await until_async(lambda: len(ended) == 5)
            assert ended[4].ending is Ending.ABANDONED

    run(test)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EADDRNOTAVAIL])
def test_our_own_limit_is_not_the_servers(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Without descriptors or ports left the client reports it."""

    async def test() -> Exchange:
        async def none_left(*_: object, **__: object) -> None:
            raise OSError(number, "none left")

        monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", none_left)
        async with pooled(1) as pool:
            exchange: Exchange = await ask(pool)
            return exchange

    assert asyncio.run(test()).ending is Ending.LIMIT


def test_a_name_that_does_not_resolve(monkeypatch: pytest.MonkeyPatch) -> None:
    """Is refused, each time it is asked for."""

    async def test() -> list[Exchange]:
        async def unknown(*_: object, **__: object) -> None:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", unknown)
        pool = Pool(Target("nowhere.invalid", 80))
        found = [await ask(pool), *(await asyncio.gather(ask(pool), ask(pool)))]
        pool.close()
        return found

    found = asyncio.run(test())
    assert {exchange.ending for exchange in found} == {Ending.REFUSED}
    assert "does not resolve" in found[0].error


def test_a_name_with_several_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that answers is used; afterwards it is tried first."""

    async def test() -> list[str]:
        async def two(*_: object, **__: object) -> list[Any]:
            return [(0, 0, 0, "", (address, 0)) for address in ("127.0.0.1", "127.0.0.2")]

        def on_the_second(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            tasks.append(asyncio.ensure_future(answering(stream(1))(reader, writer)))
            writers.append(writer)

        tasks: list[Any] = []
        writers: list[asyncio.StreamWriter] = []
        server = await asyncio.start_server(on_the_second, "127.0.0.2", 0)
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", two)
        pool = Pool(Target("twice.invalid", server.sockets[0].getsockname()[1]))
        assert (await ask(pool)).ending is Ending.FINISHED
        pool.close()
        await asyncio.gather(*tasks)
        for writer in writers:
            writer.close()
        server.close()
        await settle_down()
        return pool._addresses

    assert asyncio.run(test()) == ["127.0.0.2", "127.0.0.1"]


# ---- TLS ----


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for localhost that signs itself, and its key, in one file."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("makes a certificate with openssl: apt install openssl")
    file = tmp_path_factory.mktemp("tls") / "both.pem"
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    names += ["-addext", "keyUsage=critical,digitalSignature,keyCertSign"]  # asked for by CPython 3.13
    files = ["-keyout", str(file), "-out", str(file.with_suffix(".crt"))]
    subprocess.run([openssl, "req", "-x509", *kind, *names, *files], check=True, capture_output=True)
    file.write_bytes(file.read_bytes() + file.with_suffix(".crt").read_bytes())
    return file


def test_tls(run: Run, certificate: Path) -> None:
    """Certificates are checked unless switched off; a failed handshake is an outcome."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)

    async def test() -> None:
        async with serving(answering(stream(3)), context) as server:
            for tls in (tls_context(ca_file=str(certificate)), tls_context(insecure=True)):
                async with pooled(server.port, tls=tls) as pool:
                    exchanges = [await ask(pool), await ask(pool)]
                    assert [exchange.tokens for exchange in exchanges] == [3, 3]
                    assert pool.opened == 1
            async with pooled(server.port, tls=tls_context()) as pool:
                exchange = await ask(pool)
                assert exchange.ending is Ending.TLS
                assert "certificate" in exchange.error.lower()

    run(test)
