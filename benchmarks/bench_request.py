"""What does our layer add to a request that streams nothing?

A route that answers at once, under Starlette, with our layer around the app and with
prometheus-fastapi-instrumentator in it. The request is one that we count in full: a generation route, on a real
TCP socket whose kernel is asked for the arrival. Also one that we only look past.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from typing import Any

from harness import REPEATS, Report, Run, main, measure

import tailwatch

GENERATION, OTHER = "/v1/chat/completions", "/health"
START = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]}
BODY = {"type": "http.response.body", "body": b"{}", "more_body": False}


class Endpoint:
    """The no-op ASGI app behind each route."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        await send(BODY)


def starlette() -> Any:
    """A fresh app with both routes."""
    from starlette.applications import Starlette
    from starlette.routing import Route

    return Starlette(routes=[Route(path, Endpoint(), methods=["POST"]) for path in (GENERATION, OTHER)])


def instrumented() -> Any:
    """The same with prometheus-fastapi-instrumentator at its defaults."""
    from prometheus_client import CollectorRegistry
    from prometheus_fastapi_instrumentator import Instrumentator

    app = starlette()
    Instrumentator(registry=CollectorRegistry()).instrument(app)
    return app


def watched() -> Any:
    """The same with our layer around it."""
    return tailwatch.install(starlette(), gc="observe").app


class Cycle:
    """What uvicorn hands to an app: receive and send are methods of what holds the transport and flow control."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.transport = self
        self.flow = self
        self.write_paused = False

    def is_closing(self) -> bool:
        return False

    def get_extra_info(self, name: str) -> Any:
        return self.connection

    async def receive(self) -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(self, message: Any) -> None:
        pass


def scope_of(path: str) -> dict[str, Any]:
    """As uvicorn makes it."""
    return {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
        "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "",
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json"), (b"content-length", b"0")],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2), "state": {},
    }  # fmt: skip


def serving(loop: asyncio.AbstractEventLoop, app: Any, path: str, connection: socket.socket) -> Run:
    """n requests, one after the other."""

    async def serve(n: int) -> float:
        start = time.perf_counter_ns()
        for _ in range(n):
            cycle = Cycle(connection)
            await app(scope_of(path), cycle.receive, cycle.send)
        return (time.perf_counter_ns() - start) / n

    return lambda n: loop.run_until_complete(serve(n))


def connection() -> tuple[socket.socket, socket.socket]:
    """Two ends of a TCP connection, as there is under a real request."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
    client.sendall(b"POST")
    return server, client


def report(quick: bool = False) -> Report:
    """Runs everything."""
    made = Report("What a request that streams nothing pays")
    BARE, OURS, PEER = "Starlette", "with tailwatch", "with prometheus-fastapi-instrumentator"
    makers: dict[str, Callable[[], Any]] = {BARE: starlette, OURS: watched}
    try:
        instrumented()
        makers[PEER] = instrumented
    except ImportError as error:
        made.notes.append(f"not compared: prometheus-fastapi-instrumentator ({error})")
    server, client = connection()
    loop = asyncio.new_event_loop()
    try:
        for path in (GENERATION, OTHER):
            cases = {name: serving(loop, make(), path, server) for name, make in makers.items()}
            samples = measure(cases, number=200, repeats=5 if quick else REPEATS)
            made.calls |= {f"{path} {name}": times for name, times in samples.calls().items()}
            for name in list(cases)[1:]:
                made.bars.append(samples.difference(name, BARE, label=f"{path}: added {name}", unit="us"))
            if PEER in cases:
                label = f"{path}: added, ours / instrumentator"
                made.bars.append(samples.ratio(OURS, PEER, less=BARE, bar=0.2, label=label))
    finally:
        tailwatch.uninstall()
        loop.close()
        server.close()
        client.close()
    return made


def test_request(benchmark: Any) -> None:
    """A request through our layer, timed by pytest-benchmark; each is counted once."""
    made = report(quick=True)
    benchmark.extra_info.update(made.as_dict())
    loop = asyncio.new_event_loop()
    watch = tailwatch.install(starlette(), gc="observe")
    server, client = connection()
    try:
        run = serving(loop, watch.app, GENERATION, server)
        benchmark.pedantic(run, args=(1,), rounds=20, iterations=50)
        before = watch.core.opened
        run(100)
        assert watch.core.opened - before == 100
        assert watch.core.in_flight == 0
    finally:
        tailwatch.uninstall()
        loop.close()
        server.close()
        client.close()


if __name__ == "__main__":
    main(report)
