"""The server of bench_group.py: scrape_server.py's, as one process of many.

    group_server.py tailwatch | prometheus_client MODELS

tailwatch: one of 64 processes that share a directory, each with streams of 8 models. GET /render returns what taking
and rendering their numbers costs the thread that does it. prometheus_client: its multiprocess mode, the same five
histograms of each of so many models in 16 processes, rendered by generate_latest() in the loop.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvicorn
from scrape_server import Ticker, answer_of

PROCESSES, MODELS = 64, 8
PEER_PROCESSES = 16
STREAMS, TOKENS = 10, 30
RENDERS = 10
C_CALLS = ("tw_snapshot_take", "tw_exposition_render", "tw_snapshot_free", "tw_buffer_free")


class Children:
    """Forked processes, which end when this one does: they read from a pipe whose other end is ours."""

    def __init__(self) -> None:
        self._end, self._ours = os.pipe()

    def start(self, work: Callable[[], object]) -> None:
        """Returns when the child has done the work; it keeps what it made."""
        ready, ready_end = os.pipe()
        if os.fork() == 0:
            os.close(self._ours)
            os.close(ready)
            kept = work()
            os.write(ready_end, b"x")
            os.read(self._end, 1)
            del kept
            os._exit(0)
        os.close(ready_end)
        assert os.read(ready, 1) == b"x", "a child failed"
        os.close(ready)


# ---- ours ----


def member(directory: str, app: Any = None) -> Any:
    """This process as one of the group, with numbers of its own."""
    import tailwatch

    watch = tailwatch.install(app, role="api", dir=directory, gc="observe", gc_warn_ms=0)
    while not watch.membership.joined:
        watch.membership.renew()
    chance = random.Random(os.getpid())
    for i in range(MODELS * STREAMS):
        at = time.monotonic_ns() - 60_000_000_000
        stream = watch.core.stream(f"model-{i % MODELS}", "/v1/chat/completions", at, "", "")
        for _ in range(TOKENS):
            at += int(chance.lognormvariate(-4, 1) * 1e9)
            stream.token(at=at)
        stream.close(at=at)
    return watch


class Timed:
    """The C library, with the calls that drop the GIL counted: the thread's CPU time in them, their wall time, and how
    far another thread's counter got meanwhile."""

    def __init__(self, lib: Any, count: Callable[[], int]) -> None:
        self._lib = lib
        self._count = count
        self.cpu = self.wall = self.ticks = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._lib, name)
        return self._timed(found) if name in C_CALLS else found

    def _timed(self, call: Any) -> Any:
        def timed(*arguments: Any) -> Any:
            ticks, wall, cpu = self._count(), time.perf_counter_ns(), time.thread_time_ns()
            try:
                return call(*arguments)
            finally:
                self.cpu += time.thread_time_ns() - cpu
                self.wall += time.perf_counter_ns() - wall
                self.ticks += self._count() - ticks

        return timed


class Counting:
    """A thread that counts up in Python, a little at a time."""

    def __init__(self) -> None:
        self.ticks = 0
        self._stop = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop:
            self.ticks += 1
            time.sleep(20e-6)

    def rate(self) -> float:
        """Ticks each ms while nothing renders."""
        before, start = self.ticks, time.perf_counter()
        time.sleep(0.2)
        return (self.ticks - before) / (time.perf_counter() - start) / 1e3

    def stop(self) -> None:
        self._stop = True
        self._thread.join()


def renders(respond: Callable[[], object]) -> dict[str, list[float]]:
    """ms of the thread's CPU of one scrape: all of it, and what was spent in C without the GIL; and how far another
    thread's ticks went on meanwhile, as a share of those when nothing renders."""
    from tailwatch.export.prometheus import render
    from tailwatch.snapshots import snapshot

    made: dict[str, list[float]] = {"cpu": [], "without_gil": [], "ticking": []}
    lib: Any = snapshot.lib
    counting = Counting()
    try:
        rate = counting.rate()
        for _ in range(RENDERS):
            snapshot.lib = render.lib = timed = Timed(lib, lambda: counting.ticks)
            start = time.thread_time_ns()
            respond()
            made["cpu"].append((time.thread_time_ns() - start) / 1e6)
            made["without_gil"].append(timed.cpu / 1e6)
            made["ticking"].append(timed.ticks / (timed.wall / 1e6) / rate)
    finally:
        snapshot.lib = render.lib = lib
        counting.stop()
    return made


def with_renders(app: Any, watch: list[Any]) -> Any:
    """The app, and /render."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"] != "/render":
            return await app(scope, receive, send)
        made = await asyncio.to_thread(renders, watch[0].exposition.respond)
        body = json.dumps(made).encode()
        headers = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": False})
        return None

    return answer


def ours(directory: str, ticker: Ticker) -> Any:
    """The app of one of 64 processes."""
    children = Children()
    for _ in range(PROCESSES - 1):
        children.start(lambda: member(directory))
    watch: list[Any] = []
    watch.append(member(directory, with_renders(answer_of(ticker, None), watch)))
    assert len(watch[0].snapshot().processes) == PROCESSES
    return watch[0].app


# ---- the peer's ----


def observe(models: int) -> Any:
    """Our five histograms of each model, as prometheus_client's."""
    from prometheus_client import CollectorRegistry, Histogram

    ttft = [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160]
    itl = [0.0005, 0.001, 0.002, 0.003, 0.004, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1,
           0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 10]  # fmt: skip
    registry = CollectorRegistry()
    names = {"ttft": ttft, "itl": itl, "itl_without_gc": itl, "tpot": itl, "e2e": ttft}
    labels = ["model_name", "route"]
    made = [Histogram(name, name, labels, registry=registry, buckets=bounds) for name, bounds in names.items()]
    for i in range(models):
        for histogram in made:
            histogram.labels(f"model-{i}", "/v1/chat/completions").observe(random.lognormvariate(-4, 1))
    return made


def peer(directory: str, ticker: Ticker, models: int) -> Any:
    """The app that renders what 16 processes have left."""
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = directory
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.multiprocess import MultiProcessCollector

    children = Children()
    for _ in range(PEER_PROCESSES):
        children.start(lambda: observe(models))
    registry = CollectorRegistry()
    MultiProcessCollector(registry)
    return answer_of(ticker, lambda: generate_latest(registry))


def main(arm: str, models: int) -> None:
    """Serves until it is killed; prints its port first."""
    ticker = Ticker()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as root:
        os.mkdir(f"{root}/group", 0o700)
        app = ours(f"{root}/group", ticker) if arm == "tailwatch" else peer(f"{root}/group", ticker, models)
        listener = socket.create_server(("127.0.0.1", 0))
        print(listener.getsockname()[1], flush=True)
        config = uvicorn.Config(app, log_level="warning", loop="asyncio", lifespan="off", access_log=False)
        uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else MODELS)
