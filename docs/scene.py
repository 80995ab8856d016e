"""The server of the outputs and pictures in the guides: a toy that streams 15 ms a token, and is late.

python docs/scene.py PORT: a thread that keeps the interpreter lock, a function on the event loop, a collection: one of
them in each of three requests.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import itertools
import json
import re
import sys
import threading
from collections.abc import AsyncIterator, Callable

import uvicorn
from fastapi import FastAPI
from fastapi.responses import StreamingResponse

import tailwatch

app = FastAPI()
heap = [{"id": i, "text": str(i)} for i in range(200_000)]  # what a server has loaded, for collections to visit


def rank() -> list[str]:
    """Python on the event loop."""
    return sorted((hashlib.sha256(str(i).encode()).hexdigest() for i in range(30_000)), reverse=True)


def compile_grammar() -> object:
    """C that keeps the interpreter lock."""
    return re.match("(a+)+$", "a" * 22 + "b")


def start_compiler() -> None:
    """Beside the event loop."""
    threading.Thread(target=compile_grammar, name="grammar").start()


def drop_cache() -> None:
    """What collects."""
    gc.collect()


reasons = itertools.cycle((start_compiler, rank, drop_cache, None))


async def tokens(reason: Callable[[], object] | None) -> AsyncIterator[str]:
    """100 of them, the 60th late."""
    for number in range(1, 101):
        await asyncio.sleep(0.015)
        if number == 60 and reason:
            reason()
        event = {"object": "text_completion", "model": "toy", "choices": [{"index": 0, "text": f"w{number} "}]}
        yield f"data: {json.dumps(event)}\n\n"
    yield "data: [DONE]\n\n"


@app.post("/v1/completions")
async def completions() -> StreamingResponse:
    """Streams one event a token."""
    return StreamingResponse(tokens(next(reasons)), media_type="text/event-stream")


tailwatch.install(
    app, slo="ttft<=500ms,tpot<=40ms,itl<=100ms@99%", gc="observe", page=True, sse_timing=True, server_timing=True
)

if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]))
