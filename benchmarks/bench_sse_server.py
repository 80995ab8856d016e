"""Does a server that streams many answers at once serve more of them with fast_sse, and with shorter gaps?

A Starlette server under uvicorn, as tailwatch.install(app) leaves it, against tailwatch.install(app, fast_sse=True):
each in a process of its own, with vLLM's chat classes where vLLM has them. 64 connections from another process, kept
alive, each asking for answers of 256 tokens one after the other. Beside them a server that makes the same frames with
an encoder of ours, and, as a control, the first one again in one more process. All run on the same core, one at a time;
a round is a short run of each, the order turns round with each round. A ratio is the median of the ratios within a
round; in brackets its 95 % bootstrap interval over rounds. All four send the same bytes: that is asserted before
anything is timed, and afterwards that nothing fell back.
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
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import cycle, islice
from types import ModuleType
from typing import Any

import numpy
from bench_send import TOKENS as TEXTS
from bench_sse import undecided
from families import CREATED, ID, MODEL, vllm_chat
from harness import Bar, Report, bar_of, main

CLIENTS, TOKENS, REQUESTS, ROUNDS = 64, 256, 1, 24
ORIGINAL, FAST, ENCODER, CONTROL = "install(app)", "fast_sse=True", "encoder", "install(app) again"
WAYS = (ORIGINAL, FAST, ENCODER, CONTROL)
MODULE, CLASS = "vllm.entrypoints.openai.chat_completion.protocol", "ChatCompletionStreamResponse"
END = b"0\r\n\r\n"
DONE = b"data: [DONE]\n\n"


# ---- the server ----


def frames_of(way: str) -> Callable[[], Callable[[str], bytes]]:
    """Called for each answer: how its frames are made."""
    from tailwatch import sse

    if way == ENCODER:
        return lambda: sse.ChatStream(ID, MODEL, CREATED, like="vllm").content
    family = vllm_chat()
    module: Any = ModuleType(MODULE)
    setattr(module, CLASS, family.model)
    sys.modules[MODULE] = module
    return lambda: family.frame


def texts(tokens: int) -> list[str]:
    """What an answer holds."""
    return list(islice(cycle(TEXTS), tokens))


async def answer(frame_of: Callable[[str], bytes], tokens: int) -> AsyncIterator[bytes]:
    """One token, then every other stream's turn."""
    for text in texts(tokens):
        yield frame_of(text)
        await asyncio.sleep(0)
    yield DONE


def application(way: str) -> Any:
    """GET /<tokens> streams; GET /usage returns CPU time, collections and what fast_sse does."""
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse, StreamingResponse
    from starlette.routing import Route

    import tailwatch

    frames = frames_of(way)

    async def stream(request: Any) -> StreamingResponse:
        return StreamingResponse(answer(frames(), request.path_params["tokens"]), media_type="text/event-stream")

    async def usage(request: Any) -> JSONResponse:
        collections = sum(generation["collections"] for generation in gc.get_stats())
        fallbacks = sum(watch.snapshot().sse_fallbacks.values())
        reported = {"accelerated": list(watch.accelerated), "fallbacks": fallbacks}
        return JSONResponse({"cpu": time.process_time_ns(), "collections": collections, **reported})

    watch = tailwatch.install(
        Starlette(routes=[Route("/usage", usage), Route("/{tokens:int}", stream)]), fast_sse=way == FAST
    )
    return watch.app


def serve(way: str) -> None:
    """Prints its port and serves until it is stopped."""
    import uvicorn

    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listening:
        config = uvicorn.Config(application(way), log_level="warning", access_log=False, timeout_keep_alive=600)
        print(listening.getsockname()[1], flush=True)
        uvicorn.Server(config).run(sockets=[listening])


@contextmanager
def serving(way: str) -> Iterator[int]:
    """A fresh server process; its port. The servers get one core and the client the others, where there are two."""
    cores = sorted(os.sched_getaffinity(0))
    command = [sys.executable, __file__, "--serve", way]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            port = int(process.stdout.readline())
            for thread in os.listdir(f"/proc/{process.pid}/task"):
                os.sched_setaffinity(int(thread), cores[:1])
            yield port
        finally:
            process.terminate()


@contextmanager
def serving_all() -> Iterator[dict[str, int]]:
    """A server of each way; their ports."""
    cores = os.sched_getaffinity(0)
    with ExitStack() as servers:
        ports = {way: servers.enter_context(serving(way)) for way in WAYS}
        os.sched_setaffinity(0, cores - {min(cores)} or cores)
        try:
            yield ports
        finally:
            os.sched_setaffinity(0, cores)


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
    """The connections to one server, and what runs over them."""

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

    async def run(self) -> Run:
        """Every client asks so many times, one answer after the other."""
        before = self._usage()
        gc.collect()
        gc.disable()  # the client's own collections are no gaps of the server's
        start = time.perf_counter_ns()
        arrivals = await asyncio.gather(*(self._ask(client) for client in self._clients))
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

    async def _ask(self, client: Client) -> list[list[tuple[int, int]]]:
        return [await client.ask(f"/{self._tokens}") for _ in range(self._requests)]

    def _usage(self) -> dict[str, Any]:
        return usage_of(self._port)


def body_of(port: int, path: str) -> bytes:
    """The whole of an answer, over a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", path)
    response = connection.getresponse()
    assert response.status == 200, (path, response.status)
    body = response.read()
    connection.close()
    return body


def usage_of(port: int) -> dict[str, Any]:
    """What a server returns of itself."""
    reported: dict[str, Any] = json.loads(body_of(port, "/usage"))
    return reported


def same_bytes(ports: dict[str, int], tokens: int) -> None:
    """Each server sends the answer that the classes make, and the one with fast_sse, and no other, does so for them."""
    family = vllm_chat()
    expected = b"".join(family.expected(text) for text in texts(tokens)) + DONE
    for way, port in ports.items():
        assert body_of(port, f"/{tokens}") == expected, way
        reported = usage_of(port)
        assert (f"{MODULE}.{CLASS}" in reported["accelerated"]) == (way == FAST), (way, reported)
        assert reported["fallbacks"] == 0, (way, reported)


# ---- rounds, ratios and their intervals ----


async def _rounds(loads: dict[str, Load], rounds: int) -> dict[str, list[Run]]:
    runs: dict[str, list[Run]] = {way: [] for way in loads}
    for load in loads.values():
        await load.connect()
        await load.run()  # warm
    for turn in range(rounds):
        for way in loads if turn % 2 == 0 else reversed(loads):
            runs[way].append(await loads[way].run())
    for load in loads.values():
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
    """The bars hold for fast_sse; the others stand beside it."""
    bars = []
    original = runs[ORIGINAL]
    for way in (FAST, ENCODER, CONTROL):
        pairs = list(zip(runs[way], original, strict=True))
        requests = [ours.requests / theirs.requests for ours, theirs in pairs]
        bars += ratios(f"requests/s: {way} / {ORIGINAL}", requests, held=way == FAST)
        p99 = [theirs.p99 / ours.p99 for ours, theirs in pairs]
        bars += ratios(f"p99 gap: {ORIGINAL} / {way}", p99, held=way == FAST)
    for way in WAYS[:3]:
        bars.append(bar_of(f"{way}: requests/s", [run.requests for run in runs[way]], unit="requests/s"))
        bars.append(bar_of(f"{way}: p99 gap", [run.p99 for run in runs[way]], unit="ms"))
        bars.append(bar_of(f"{way}: server CPU per token", [run.cpu for run in runs[way]], unit="us"))
        collections = sum(run.collections for run in runs[way])
        bars.append(Bar(f"{way}: collections", collections, collections, collections, unit="collections"))
    return bars


NOTES = [
    "The loop is saturated: every client asks again at once, and the server does nothing but stream. So requests/s is "
    "what one core can do, and a gap is the time that all the other streams' turns take. A server whose loop is idle "
    "between tokens saves CPU time by it, and neither gains requests/s nor shortens its gaps that much.",
    "Collections of all generations are told as they were; no ratio rests on them.",
]


def report(quick: bool = False) -> Report:
    """Runs everything."""
    clients, tokens, requests, rounds = (8, 64, 1, 2) if quick else (CLIENTS, TOKENS, REQUESTS, ROUNDS)
    made = Report(
        f"{clients} connections, answers of {tokens} tokens, {rounds} rounds of {clients * requests} answers each",
        notes=list(NOTES),
    )
    loop = _event_loop()
    try:
        with serving_all() as ports:
            same_bytes(ports, tokens)
            loads = {way: Load(port, clients, tokens, requests) for way, port in ports.items()}
            made.bars = _bars(loop.run_until_complete(_rounds(loads, rounds)))
            same_bytes(ports, tokens)
    finally:
        loop.close()
    return undecided(made) if quick else made


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
    with serving(FAST) as port:
        benchmark.pedantic(same_bytes, args=({FAST: port}, 32), rounds=2)


def test_gaps_are_those_between_events() -> None:
    """Events that came together have no gap between them; what came without an event is no arrival."""
    assert gaps([(100, 0), (200, 1), (350, 0), (400, 3), (1000, 1)]) == [200, 0, 0, 600]


def test_an_interval_holds_the_median() -> None:
    """The bootstrap interval of spread values lies around their median, and within them."""
    values = [float(value) for value in range(1, 32)]
    low, high = interval(values)
    assert 1.0 < low < statistics.median(values) < high < 31.0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2])
    else:
        main(report)
