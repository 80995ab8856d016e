"""A least-load balancer that reads the absolute signal: `python examples/router.py`

Two servers, one with 4 slots and one with 16, each a process of its own with `tailwatch.install(app, orca="text")`.
What they can take is not configured: the balancer learns each server's healthy concurrency from the header
`endpoint-load-metrics` of its answers, and sends a request where its share of that is least. (A balancer that scrapes
reads the same as `tailwatch_load_ratio` and `tailwatch_healthy_concurrency`.) Balancers that compare servers with one
another ("fewest running") give the small one as many requests as the large one, until it queues.

The same requests are routed by both rules; printed is what they waited for their first token, as seen by the client.
Takes about 25 seconds; needs uvicorn and httpx.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx

STREAM_SECONDS, FIRST_TOKEN_SECONDS = 0.3, 0.01
SLOTS = (4, 16)
REQUESTS, PER_SECOND = 300, 0.7 * sum(SLOTS) / STREAM_SECONDS
LEARN_SECONDS = 40.0
TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n'


# ---- a server ----


def serve(slots: int) -> None:
    """Until its standard input ends. A request that finds no slot free waits for one."""
    import threading

    import uvicorn

    import tailwatch

    free = asyncio.Semaphore(slots)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async with free:
            await asyncio.sleep(FIRST_TOKEN_SECONDS)
            await send({"type": "http.response.body", "body": TOKEN, "more_body": True})
            await asyncio.sleep(random.expovariate(1 / STREAM_SECONDS))
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})

    tailwatch.install(app, orca="text", gc="observe")
    listening = socket.create_server(("127.0.0.1", 0))
    # Connections are kept for longer than the client keeps idle ones: else one may be closed as it is used again.
    watched = tailwatch.current().app
    server = uvicorn.Server(uvicorn.Config(watched, log_level="warning", lifespan="off", timeout_keep_alive=60))

    def stop() -> None:
        sys.stdin.read()
        server.should_exit = True

    threading.Thread(target=stop, daemon=True).start()
    print(listening.getsockname()[1], flush=True)
    server.run(sockets=[listening])


# ---- the balancer ----


@dataclass
class Server:
    """What the balancer has of one: where it is, what it sent there itself, and what the last answer held."""

    port: int
    sent: int = 0
    healthy: float | None = None

    def learn(self, report: str) -> None:
        """From the header of an answer: "TEXT application_utilization=0.7, named_metrics.healthy_concurrency=16.0"."""
        pairs = (pair.partition("=") for pair in report.removeprefix("TEXT ").split(","))
        values = {name.strip(): float(value) for name, _, value in pairs}
        self.healthy = values.get("named_metrics.healthy_concurrency", self.healthy)

    async def ask(self, client: httpx.AsyncClient) -> float:
        """One request; seconds to its first token."""
        self.sent += 1
        begun, first = time.perf_counter(), 0.0
        try:
            async with client.stream("POST", f"http://127.0.0.1:{self.port}/v1/completions") as answer:
                self.learn(answer.headers["endpoint-load-metrics"])
                async for _ in answer.aiter_raw():
                    first = first or time.perf_counter() - begun
        finally:
            self.sent -= 1
        return first


def by_running(servers: list[Server]) -> Server:
    """The one with the fewest requests: relative."""
    return min(servers, key=lambda server: server.sent)


def by_ratio(servers: list[Server]) -> Server:
    """The one that is least loaded in its own terms: absolute. One that is not known yet is taken for a small one."""
    return min(servers, key=lambda server: (server.sent + 1) / (server.healthy or 1.0))


async def learn(server: Server, client: httpx.AsyncClient) -> None:
    """Load that rises and falls, until the server has found where it begins to queue."""
    until, asked = time.monotonic() + LEARN_SECONDS, set[asyncio.Task[float]]()
    while server.healthy is None and time.monotonic() < until:
        for wanted in (*range(1, 33), *range(32, 0, -1)):
            while server.sent < wanted:
                asked.add(asyncio.create_task(server.ask(client)))
                await asyncio.sleep(0)
            await asyncio.sleep(STREAM_SECONDS / 3)
            asked = {task for task in asked if not task.done()}
    await asyncio.gather(*asked)


async def measure(servers: list[Server], choose: Callable[[list[Server]], Server], client: httpx.AsyncClient) -> None:
    """Poisson arrivals at seven tenths of what both can take, the same for each rule."""
    draw, asked = random.Random(7), []
    for _ in range(REQUESTS):
        await asyncio.sleep(draw.expovariate(PER_SECOND))
        asked.append(asyncio.create_task(choose(servers).ask(client)))
    waits = sorted(await asyncio.gather(*asked))
    median, p99 = statistics.median(waits) * 1e3, waits[int(0.99 * len(waits))] * 1e3
    print(f"{choose.__name__:10}: TTFT median {median:4.0f} ms, p99 {p99:5.0f} ms")


@contextlib.contextmanager
def servers_of(slots: tuple[int, ...]) -> Iterator[list[Server]]:
    """A process for each."""
    command = [sys.executable, __file__, "serve"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    started = [subprocess.Popen([*command, str(n)], text=True, **pipes) for n in slots]
    try:
        yield [Server(int(process.stdout.readline())) for process in started if process.stdout]
    finally:
        for process in started:
            process.communicate()


async def balance(servers: list[Server]) -> None:
    """Learn, then route by both rules."""
    limits = httpx.Limits(max_connections=200)
    async with httpx.AsyncClient(timeout=60, limits=limits) as client:
        await asyncio.gather(*(learn(server, client) for server in servers))
        for slots, server in zip(SLOTS, servers, strict=True):
            found = "not known" if server.healthy is None else f"{server.healthy:.1f}"
            print(f"{slots:2} slots: healthy concurrency {found}")
        for rule in (by_running, by_ratio):
            await measure(servers, rule, client)


def main() -> None:
    """The balancer, or with "serve N" one of its servers."""
    if len(sys.argv) == 3:
        serve(int(sys.argv[2]))
        return
    with servers_of(SLOTS) as servers:
        asyncio.run(balance(servers))


if __name__ == "__main__":
    main()
