"""The server of bench_trace.py: uvicorn, an event loop that ticks each millisecond, streams that stamp, 10^6 events.

    trace_server.py

POST /ticks starts the ticking, GET /ticks stops it and returns how late each tick was; POST /dump writes what is
recorded to a file in memory, in a thread, as the daemon does for trace_on, and returns how long that took and what was
in it."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import tempfile
import time
from typing import Any

import uvicorn
from scrape_server import Ticker

import tailwatch

EVENTS = 1_000_000
STREAMS = 20
GAP_SECONDS = 0.005
TOKENS = 500
"""Of a request."""


def dump(path: str) -> bytes:
    """Writes it, and reports it."""
    start = time.perf_counter()
    written = tailwatch.trace(path)
    took = time.perf_counter() - start
    return json.dumps({"seconds": took, "events": written.events, "bytes": os.path.getsize(path)}).encode()


def answer_of(ticker: Ticker, path: str) -> Any:
    """The app."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        if scope["path"] == "/dump":
            body = await asyncio.to_thread(dump, path)
        elif scope["path"] != "/ticks":
            body = b"{}"
        elif scope["method"] == "POST":
            ticker.start()
            body = b"{}"
        else:
            body = json.dumps(ticker.stop()).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": False})

    return app


def fill() -> None:
    """As many tokens as the first thread's ring holds, and their requests."""
    for _ in range(EVENTS // TOKENS):
        with tailwatch.stream(model="m") as stream:
            for _ in range(TOKENS):
                stream.token()


async def serve_streams() -> None:
    """One after the other, for ever."""
    while True:
        async with tailwatch.stream(model="m") as stream:
            for _ in range(TOKENS):
                stream.token()
                await asyncio.sleep(GAP_SECONDS)


async def main() -> None:
    """Serves until it is killed; prints its port first."""
    ticker = Ticker()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place:
        watch = tailwatch.install(
            answer_of(ticker, f"{place}/dump.pftrace"), trace_events=2 * EVENTS, dir=f"{place}/group"
        )
        fill()
        load = [asyncio.ensure_future(serve_streams()) for _ in range(STREAMS)]
        listener = socket.create_server(("127.0.0.1", 0))
        print(listener.getsockname()[1], flush=True)
        config = uvicorn.Config(watch.app, log_level="warning", loop="asyncio", lifespan="off", access_log=False)
        await uvicorn.Server(config).serve(sockets=[listener])
        for each in load:
            each.cancel()


if __name__ == "__main__":
    asyncio.run(main())
