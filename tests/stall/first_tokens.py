"""A real server whose requests do known work before their first token: what is it charged to?

python first_tokens.py LOOP PLAIN|MIDDLEWARE     FastAPI under uvicorn, on a free port, which it prints

POST /v1/chat/completions?plant=PLANT&ms=N does N ms of work as PLANT names, waits 60 ms for its engine (a timer), and
streams two tokens. Its own log has when each piece of work began and ended. GET /late: that log, and what tailwatch has
of the late tokens, by request id; GET /findings: what its doctor finds.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from starlette.middleware.base import BaseHTTPMiddleware

import tailwatch

ENGINE_SECONDS = 0.06
FRAME = b'data: {"id":"c","model":"m","choices":[{"index":0,"text":" t","finish_reason":null}]}\n\n'

log: dict[str, list[tuple[str, int, int, float]]] = {}  # by request: what, began, ended, seconds on CPU
app = FastAPI()


class Work:
    """What a request does for so long, noted in the log."""

    def __init__(self, request: str, what: str) -> None:
        self._request, self._what = request, what

    def __enter__(self) -> None:
        self._cpu, self._began = time.thread_time(), time.monotonic_ns()

    def __exit__(self, *_: object) -> None:
        entry = (self._what, self._began, time.monotonic_ns(), time.thread_time() - self._cpu)
        log.setdefault(self._request, []).append(entry)


def tokenize(seconds: float) -> None:
    """Python that takes so much CPU time."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


async def helper(request: str, seconds: float) -> None:
    """A task of the request's own."""
    with Work(request, "own"):
        tokenize(seconds)


async def answer(request: str, plant: str, seconds: float) -> AsyncIterator[bytes]:
    """Two tokens."""
    if plant == "generator":
        with Work(request, "own"):
            tokenize(seconds)
    with Work(request, "engine"):
        await asyncio.sleep(ENGINE_SECONDS)
    yield FRAME
    await asyncio.sleep(0.005)
    yield FRAME
    yield b"data: [DONE]\n\n"


@app.post("/v1/chat/completions")
async def complete(request: Request, plant: str, ms: int) -> StreamingResponse:
    """Its id is that of the header."""
    name, seconds = request.headers["x-request-id"], ms / 1e3
    if plant == "handler":
        with Work(name, "own"):
            tokenize(seconds)
    elif plant == "task":
        await asyncio.create_task(helper(name, seconds))
    elif plant == "steps":
        for _ in range(3):
            with Work(name, "own"):
                tokenize(seconds / 3)
            await asyncio.sleep(0.01)
    elif plant == "sleep":
        with Work(name, "own"):
            time.sleep(seconds)
    elif plant == "thread":
        with Work(name, "thread"):
            await asyncio.to_thread(time.sleep, seconds)
    return StreamingResponse(answer(name, plant, seconds), media_type="text/event-stream")


@app.get("/late")
def late() -> dict[str, Any]:
    """The log, and what is known of each first token."""
    first = {
        each.request_id: {
            "gap": each.gap,
            "causes": [(part.cause, part.seconds, part.name, part.certainty) for part in each.causes],
        }
        for each in tailwatch.why()
        if each.phase == "ttft"
    }
    return {"log": log, "first": first}


@app.get("/findings")
def findings() -> list[tuple[str, str, float]]:
    """The doctor's: rule, title, lateness."""
    return [(each.rule, each.title, each.lateness) for each in tailwatch.doctor()]


def main() -> None:
    loop, kind = sys.argv[1:]
    if kind == "middleware":
        app.add_middleware(BaseHTTPMiddleware, dispatch=lambda request, call: call(request))
    tailwatch.install(app, slo="ttft<=20ms", gc="observe")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(json.dumps(listener.getsockname()[1]), flush=True)
        uvicorn.Server(uvicorn.Config(app, loop=loop, log_level="error")).run([listener])


if __name__ == "__main__":
    main()
