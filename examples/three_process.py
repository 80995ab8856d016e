"""A server of three processes, shaped like vLLM's: the API process streams, an engine makes the tokens of all requests
in a batching loop, a worker stands for the device that the engine waits for at each step.

It has no line of tailwatch. `tailwatch run` watches all three, and charges the pauses of the engine and of the
worker to the streams that waited for them:

tailwatch run --gc=observe -- python examples/three_process.py 8000
curl -N -X POST 'http://127.0.0.1:8000/v1/completions?max_tokens=200' &
curl -X POST 'http://127.0.0.1:8000/debug/collect?where=engine'
tailwatch top

The names of the two other processes, "engine" and "worker", give their roles.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import itertools
import json
import multiprocessing
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from multiprocessing.connection import Connection

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

SPAWN = multiprocessing.get_context("spawn")
DEVICE_SECONDS = 0.005  # of one step
HEAP: list[object] = []  # what makes a full collection long, as a framework's own objects do


def grow_heap(objects: int) -> None:
    """Each process has one, from its start."""
    HEAP.extend([i] for i in range(objects))


def collect() -> None:
    """The debug door: what would come by itself, sooner or later."""
    gc.collect()


# ---- the worker ----


def worker(engine: Connection, heap: int) -> None:
    """Takes the requests of a step, gives a token for each."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the API process's; the others end after it
    grow_heap(heap)
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            batch = engine.recv()
            if batch == "collect":
                collect()
                continue
            time.sleep(DEVICE_SECONDS)
            engine.send([f" t{request}" for request in batch])


# ---- the engine ----


class Engine:
    """One step after the other, as long as there is a request."""

    def __init__(self, api: Connection, worker: Connection) -> None:
        self._api = api
        self._worker = worker
        self._left: dict[int, int] = {}  # tokens to make, by request

    def run(self) -> None:
        """Until the API process has gone."""
        with contextlib.suppress(EOFError, ConnectionError):
            while True:
                while self._api.poll(0 if self._left else None):
                    self._take(self._api.recv())
                self._step()

    def _take(self, message: tuple[str, int, int]) -> None:
        what, request, tokens = message
        if what == "add":
            self._left[request] = tokens
        elif what == "abort":
            self._left.pop(request, None)
        elif what == "collect worker":
            self._worker.send("collect")
        else:
            collect()

    def _step(self) -> None:
        if not self._left:
            return
        batch = list(self._left)
        self._worker.send(batch)
        made = dict(zip(batch, self._worker.recv(), strict=True))
        for request in batch:
            self._left[request] -= 1
        ended = [request for request in batch if self._left[request] == 0]
        for request in ended:
            del self._left[request]
        self._api.send((made, ended))


def engine(api: Connection, heap: int) -> None:
    """The engine process: it starts the worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    grow_heap(heap)
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=worker, args=(theirs, heap), name="worker", daemon=True)
    process.start()
    theirs.close()
    Engine(api, ours).run()


# ---- the API process ----


@dataclass
class Client:
    """The API process's end of the engine."""

    engine: Connection
    numbers: itertools.count[int]
    waiting: dict[int, asyncio.Queue[str | None]]

    def listen(self) -> None:
        """Called when the engine has sent something."""
        try:
            made, ended = self.engine.recv()
        except EOFError:
            asyncio.get_running_loop().remove_reader(self.engine.fileno())
            made, ended = {}, list(self.waiting)
        for request, token in made.items():
            if request in self.waiting:
                self.waiting[request].put_nowait(token)
        for request in ended:
            if request in self.waiting:
                self.waiting[request].put_nowait(None)

    async def tokens(self, count: int) -> AsyncIterator[str]:
        """Of one request."""
        request = next(self.numbers)
        queue = self.waiting[request] = asyncio.Queue()
        self.engine.send(("add", request, count))
        try:
            while (token := await queue.get()) is not None:
                yield token
        finally:
            del self.waiting[request]
            self.engine.send(("abort", request, 0))


async def events(client: Client, count: int) -> AsyncIterator[str]:
    """Server-sent events, as OpenAI's."""
    async with contextlib.aclosing(client.tokens(count)) as tokens:
        async for token in tokens:
            choice = {"index": 0, "text": token, "finish_reason": None}
            yield f"data: {json.dumps({'object': 'text_completion', 'model': 'toy', 'choices': [choice]})}\n\n"
    yield "data: [DONE]\n\n"


async def completions(request: Request) -> Response:
    """Streams ?max_tokens= tokens."""
    count = max(1, int(request.query_params.get("max_tokens", "20")))
    return StreamingResponse(events(request.app.state.client, count), media_type="text/event-stream")


async def debug_collect(request: Request) -> Response:
    """A full collection in one process, ?where=api, engine or worker."""
    where = request.query_params.get("where", "engine")
    if where not in ("api", "engine", "worker"):
        return JSONResponse({"error": "where=api, engine or worker"}, 400)
    if where == "api":
        collect()
    else:
        request.app.state.client.engine.send(("collect worker" if where == "worker" else "collect", 0, 0))
    return JSONResponse({"collected": where})


@contextlib.asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    """The engine process lives as long as the app."""
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=engine, args=(theirs, app.state.heap), name="engine")
    process.start()
    theirs.close()
    grow_heap(app.state.heap)
    app.state.client = Client(ours, itertools.count(), {})
    app.state.engine = ours
    asyncio.get_running_loop().add_reader(ours.fileno(), app.state.client.listen)
    yield
    asyncio.get_running_loop().remove_reader(ours.fileno())
    ours.close()
    process.join()


def main() -> None:
    """Serves on loopback, on the port given (8000; 0: a free one, which uvicorn prints)."""
    parser = argparse.ArgumentParser()
    parser.add_argument("port", nargs="?", type=int, default=8000)
    parser.add_argument("--heap", type=int, default=500_000, help="objects in each process")
    options = parser.parse_args()
    routes = [
        Route("/v1/completions", completions, methods=["POST"]),
        Route("/debug/collect", debug_collect, methods=["POST"]),
    ]
    app = Starlette(routes=routes, lifespan=lifespan)
    app.state.heap = options.heap
    try:
        uvicorn.run(app, host="127.0.0.1", port=options.port)
    finally:  # interrupted as it starts, uvicorn ends without the rest of the lifespan: the engine ends with its pipe
        if hasattr(app.state, "engine"):
            app.state.engine.close()


if __name__ == "__main__":
    main()
