"""The server of bench_scrape.py: uvicorn on a free port, an event loop that ticks each millisecond, 500 label sets.

    scrape_server.py tailwatch | prometheus_client

POST /ticks starts the ticking, GET /ticks stops it and returns how late each tick was; GET /cpu the CPU time of
the loop's thread, GET /cpu/all that of the process. /metrics is tailwatch's, or generate_latest() in the loop.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import sys
import time
from typing import Any

import uvicorn

LABEL_SETS = 500
TICK_SECONDS = 0.001


class Ticker:
    """Sleeps for a millisecond again and again: when it woke, and how late."""

    def __init__(self) -> None:
        self.ticks: list[tuple[int, int]] = []
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.ticks = []
        self._task = asyncio.ensure_future(self._run())

    def stop(self) -> list[tuple[int, int]]:
        assert self._task
        self._task.cancel()
        return self.ticks

    async def _run(self) -> None:
        clock, width = time.monotonic_ns, int(TICK_SECONDS * 1e9)
        while True:
            due = clock() + width
            await asyncio.sleep(TICK_SECONDS)
            now = clock()
            self.ticks.append((now, now - due))


def answer_of(ticker: Ticker, metrics: Any) -> Any:
    """The app."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        kind = b"application/json"
        if scope["path"] == "/cpu":
            body = str(time.thread_time_ns()).encode()
        elif scope["path"] == "/cpu/all":
            body = str(time.process_time_ns()).encode()
        elif scope["path"] == "/metrics" and metrics is not None:
            body, kind = metrics(), b"text/plain; version=0.0.4"
        elif scope["path"] != "/ticks":
            body = b"{}"
        elif scope["method"] == "POST":
            ticker.start()
            body = b"{}"
        else:
            body = json.dumps(ticker.stop()).encode()
        headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": False})

    return app


def fill_tailwatch(watch: Any) -> None:
    """500 label sets with ten streams of 30 tokens each, their gaps spread over three decades."""
    chance = random.Random(1)
    for i in range(LABEL_SETS):
        for _ in range(10):
            at = 1_000_000_000_000
            stream = watch.core.stream(f"model-{i % 20}", f"/route/{i // 20}", at, "", "")
            at += int(chance.lognormvariate(-1.5, 1) * 1e9)
            for _ in range(30):
                stream.token(at=at)
                at += int(chance.lognormvariate(-4, 1) * 1e9)
            stream.close(at=at)


def client_metrics() -> Any:
    """The peer: one histogram with 500 label sets, rendered by generate_latest() in the loop as make_asgi_app does."""
    from prometheus_client import CollectorRegistry, Histogram, generate_latest

    registry = CollectorRegistry()
    buckets = [0.0005 * 2**i for i in range(20)]
    histogram = Histogram("itl_seconds", "gap", ["model_name", "route"], registry=registry, buckets=buckets)
    chance = random.Random(1)
    for i in range(LABEL_SETS):
        for _ in range(30):
            histogram.labels(f"model-{i % 20}", f"/route/{i // 20}").observe(chance.lognormvariate(-4, 1))
    return lambda: generate_latest(registry)


def main(arm: str) -> None:
    """Serves until it is killed; prints its port first."""
    ticker = Ticker()
    if arm == "tailwatch":
        import tailwatch

        watch = tailwatch.install(answer_of(ticker, None), max_label_sets=LABEL_SETS + 12, page=True)
        fill_tailwatch(watch)
        app = watch.app
    else:
        app = answer_of(ticker, client_metrics())
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    config = uvicorn.Config(app, log_level="warning", loop="asyncio", lifespan="off", access_log=False)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main(sys.argv[1])
