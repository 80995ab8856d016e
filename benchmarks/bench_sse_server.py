"""Does a server that streams many answers at once serve more of them with the fast encoders, and with shorter gaps?

A Starlette server under uvicorn in a process of its own; 64 connections from another one, kept alive, each asking for
answers of 256 tokens one after the other. The same answer comes made by vLLM's chat classes, by those classes
accelerated, by our template of their frame, and, as a control, by the classes again; a round is a short run of each,
the order turns round with each round. A ratio is the median of the ratios within a round; in brackets its 95 %
bootstrap interval over rounds. All four send the same bytes: that is asserted before anything is timed.
"""

from __future__ import annotations

import asyncio
import gc
import http.client
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

import numpy
import stream_classes
from bench_send import TOKENS as TEXTS
from harness import Bar, Report, bar_of, main

CLIENTS, TOKENS, REQUESTS, ROUNDS = 64, 256, 1, 24
ORIGINAL, ACCELERATED, TEMPLATE, CONTROL = "original", "accelerated", "template", "control"
WAYS = (ORIGINAL, ACCELERATED, TEMPLATE, CONTROL)
END = b"0\r\n\r\n"
DONE = b"data: [DONE]\n\n"


# ---- the server ----


def ways() -> dict[str, Callable[[str], bytes]]:
    """How each path makes the frame of a text."""
    from tailwatch import sse

    plain, fast = stream_classes.vllm_chat(), stream_classes.vllm_chat()
    sse.accelerate(fast.model)
    learnt = sse.Template.learn(plain.frame("hole"), "hole", dialect=plain.dialect)
    return {ORIGINAL: plain.frame, ACCELERATED: fast.frame, TEMPLATE: learnt.splice, CONTROL: plain.frame}


def texts(tokens: int) -> list[str]:
    """What an answer says."""
    return list(islice(cycle(TEXTS), tokens))


async def answer(frame_of: Callable[[str], bytes], tokens: int) -> AsyncIterator[bytes]:
    """One token, then every other stream's turn."""
    for text in texts(tokens):
        yield frame_of(text)
        await asyncio.sleep(0)
    yield DONE


def application() -> Any:
    """GET /<way>/<tokens> streams; GET /usage tells CPU time and collections so far."""
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse, StreamingResponse
    from starlette.routing import Route

    frames = ways()

    async def stream(request: Any) -> StreamingResponse:
        frame_of = frames[request.path_params["way"]]
        return StreamingResponse(answer(frame_of, request.path_params["tokens"]), media_type="text/event-stream")

    async def usage(request: Any) -> JSONResponse:
        collections = [generation["collections"] for generation in gc.get_stats()]
        return JSONResponse({"cpu": time.process_time_ns(), "collections": sum(collections)})

    return Starlette(routes=[Route("/usage", usage), Route("/{way}/{tokens:int}", stream)])


def serve() -> None:
    """Prints its port and serves until it is told to stop."""
    import uvicorn

    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listening:
        config = uvicorn.Config(application(), log_level="warning", access_log=False)
        print(listening.getsockname()[1], flush=True)
        uvicorn.Server(config).run(sockets=[listening])


@contextmanager
def serving() -> Iterator[int]:
    """A fresh server process; its port. Server and client get a core each, where there are two."""
    ours = os.sched_getaffinity(0)
    with subprocess.Popen([sys.executable, __file__, "--serve"], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            port = int(process.stdout.readline())
            if len(ours) > 1:
                os.sched_setaffinity(process.pid, {min(ours)})
                os.sched_setaffinity(0, ours - {min(ours)})
            yield port
        finally:
            os.sched_setaffinity(0, ours)
            process.terminate()


# ---- the clients ----


class Client(asyncio.Protocol):
    """One connection. Notes when something came and how many events it was; looks at no more than that."""

    def __init__(self) -> None:
        self.arrivals: list[tuple[int, int]] = []
        self._half = b""
        self._end = b""
        self._transport: Any = None
        self._finished: asyncio.Future[None] | None = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter_ns()
        self.arrivals.append((now, (self._half + data).count(b"\n\n")))
        self._half = b"\n" if data.endswith(b"\n") and not data.endswith(b"\n\n") else b""
        self._end = (self._end + data)[-len(END) :]
        if self._end == END and self._finished:
            self._finished.set_result(None)
            self._finished = None

    def connection_lost(self, error: Exception | None) -> None:
        if self._finished:
            self._finished.set_exception(error or ConnectionError("the server closed the connection"))

    async def ask(self, path: str) -> list[tuple[int, int]]:
        """One request; when its events came."""
        self.arrivals, self._half, self._end = [], b"", b""
        self._finished = asyncio.get_running_loop().create_future()
        self._transport.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        await self._finished
        return self.arrivals

    def close(self) -> None:
        """The end of the connection."""
        self._transport.close()


def gaps(arrivals: list[tuple[int, int]]) -> list[int]:
    """ns between tokens; those that came together have none between them."""
    found: list[int] = []
    last = None
    for now, events in arrivals:
        if events and last is not None:
            found.append(now - last)
        found += [0] * (events - 1)
        last = now if events else last
    return found


@dataclass
class Run:
    """One short run of one way."""

    requests: float
    """Per second."""
    p99: float
    """Of the gaps between tokens, ms."""
    cpu: float
    """The server's, us per token."""
    collections: int


class Load:
    """The connections, and what runs over them."""

    def __init__(self, port: int, clients: int, tokens: int, requests: int) -> None:
        self._port, self._tokens, self._requests, self._count = port, tokens, requests, clients
        self._clients: list[Client] = []

    async def connect(self) -> None:
        """Opens them."""
        loop = asyncio.get_running_loop()
        for _ in range(self._count):
            _, client = await loop.create_connection(Client, "127.0.0.1", self._port)
            self._clients.append(client)

    def close(self) -> None:
        """Closes them."""
        for client in self._clients:
            client.close()

    async def run(self, way: str) -> Run:
        """Every client asks so many times, one answer after the other."""
        before = self._usage()
        gc.collect()
        gc.disable()  # the client's own collections are no gaps of the server's
        start = time.perf_counter_ns()
        arrivals = await asyncio.gather(*(self._ask(client, way) for client in self._clients))
        seconds = (time.perf_counter_ns() - start) / 1e9
        gc.enable()
        after = self._usage()
        every = [stamps for one in arrivals for stamps in one]
        events = sum(count for stamps in every for _, count in stamps)
        requests = self._requests * self._count
        assert events == requests * (self._tokens + 1), (events, requests)
        between = sorted(gap for stamps in every for gap in gaps(stamps))
        return Run(
            requests=requests / seconds,
            p99=between[int(len(between) * 0.99)] / 1e6,
            cpu=(after["cpu"] - before["cpu"]) / events / 1e3,
            collections=after["collections"] - before["collections"],
        )

    async def _ask(self, client: Client, way: str) -> list[list[tuple[int, int]]]:
        return [await client.ask(f"/{way}/{self._tokens}") for _ in range(self._requests)]

    def _usage(self) -> dict[str, int]:
        return json.loads(body_of(self._port, "/usage"))


def body_of(port: int, path: str) -> bytes:
    """The whole of an answer, over a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", path)
    response = connection.getresponse()
    assert response.status == 200, (path, response.status)
    body = response.read()
    connection.close()
    return body


def same_bytes(port: int, tokens: int) -> None:
    """Each way sends the answer that the classes make."""
    family = stream_classes.vllm_chat()
    expected = b"".join(family.expected(text) for text in texts(tokens)) + DONE
    for way in WAYS:
        assert body_of(port, f"/{way}/{tokens}") == expected, way


# ---- rounds, ratios and their intervals ----


async def _rounds(load: Load, rounds: int) -> dict[str, list[Run]]:
    runs: dict[str, list[Run]] = {way: [] for way in WAYS}
    await load.connect()
    for way in WAYS:
        await load.run(way)  # warm
    for turn in range(rounds):
        for way in WAYS if turn % 2 == 0 else reversed(WAYS):
            runs[way].append(await load.run(way))
    load.close()
    return runs


def interval(values: list[float], resamples: int = 10_000) -> tuple[float, float]:
    """95 % of the medians of so many samples drawn from these, with replacement."""
    chance = numpy.random.default_rng(1)
    drawn = chance.choice(numpy.asarray(values), size=(resamples, len(values)))
    low, high = numpy.percentile(numpy.median(drawn, axis=1), [2.5, 97.5])
    return float(low), float(high)


def ratios(name: str, values: list[float], *, held: bool) -> list[Bar]:
    """The median with its interval, and whether the interval lies above 1."""
    low, high = interval(values)
    bars = [Bar(name, statistics.median(values), low, high, 1.0 if held else None, True)]
    return [*bars, Bar(f"{name}: lower end", low, low, low, 1.0, True)] if held else bars


def _bars(runs: dict[str, list[Run]]) -> list[Bar]:
    bars = []
    original = runs[ORIGINAL]
    for way in (ACCELERATED, TEMPLATE, CONTROL):
        held = way != CONTROL
        pairs = list(zip(runs[way], original, strict=True))
        bars += ratios(
            f"requests/s: {way} / original", [ours.requests / theirs.requests for ours, theirs in pairs], held=held
        )
        bars += ratios(f"p99 gap: original / {way}", [theirs.p99 / ours.p99 for ours, theirs in pairs], held=held)
    for way in WAYS[:3]:
        bars.append(bar_of(f"{way}: requests/s", [run.requests for run in runs[way]], unit="requests/s"))
        bars.append(bar_of(f"{way}: p99 gap", [run.p99 for run in runs[way]], unit="ms"))
        bars.append(bar_of(f"{way}: server CPU per token", [run.cpu for run in runs[way]], unit="us"))
        collections = sum(run.collections for run in runs[way])
        bars.append(Bar(f"{way}: collections", collections, collections, collections, unit="collections"))
    return bars


def report(quick: bool = False) -> Report:
    """Runs everything."""
    clients, tokens, requests, rounds = (8, 64, 1, 2) if quick else (CLIENTS, TOKENS, REQUESTS, ROUNDS)
    made = Report(
        f"{clients} connections, answers of {tokens} tokens, {rounds} rounds of {clients * requests} answers each"
    )
    loop = _event_loop()
    try:
        with serving() as port:
            same_bytes(port, tokens)
            made.bars = _bars(loop.run_until_complete(_rounds(Load(port, clients, tokens, requests), rounds)))
    finally:
        loop.close()
    return made


def _event_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def test_sse_server(benchmark: Any) -> None:
    """Four short runs of a few clients; the ratios are in extra_info."""
    made = report(quick=True)
    benchmark.extra_info.update(made.as_dict())
    with serving() as port:
        benchmark.pedantic(same_bytes, args=(port, 32), rounds=2)


def test_gaps_are_those_between_events() -> None:
    """Events that came together have no gap between them; what came without an event is no arrival."""
    assert gaps([(100, 0), (200, 1), (350, 0), (400, 3), (1000, 1)]) == [200, 0, 0, 600]


def test_an_interval_holds_the_median() -> None:
    """The bootstrap interval of spread values lies around their median, and within them."""
    values = [float(value) for value in range(1, 32)]
    low, high = interval(values)
    assert 1.0 < low < statistics.median(values) < high < 31.0


if __name__ == "__main__":
    if sys.argv[1:] == ["--serve"]:
        serve()
    else:
        main(report)
