"""A server of two processes that does on request whatever a dashboard is to show, and nothing by itself.

python planted_server.py GROUP_DIRECTORY     under uvicorn, on a free port, which it prints; its engine is a child

Collections happen where they are asked for only: what is measured between two requests does not change.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import json
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import uvicorn
from prometheus_client import Counter
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

import tailwatch

SLO = "ttft<=500ms,itl<=150ms@99%"
HEAP = 60_000
COMMANDS = ("steps", "collect", "freeze")

heap: list[object] = []
callback_seconds = [0.001]
blocks: list[Path] = []  # the file of a block that goes on until its file is gone


def foreign(phase: str, info: dict[str, int]) -> None:
    """Somebody else's gc callback, which takes its time."""
    if phase == "stop":
        time.sleep(callback_seconds[-1])
        while blocks and blocks[-1].exists():
            time.sleep(0.001)


def do(command: str) -> None:
    """One of COMMANDS, in this process."""
    if command == "steps":
        for i in range(12):
            time.sleep(0.002)
            with tailwatch.step("decode", batch=1 + i % 4, waiting=0 if i == 5 else 3) as step:
                time.sleep(0.003 if i else 0.02)
                if i == 8:
                    gc.collect()
            if i == 9:
                gc.collect()
            step.waiting = 3
        with tailwatch.step("prefill", batch=2):
            time.sleep(0.004)
        time.sleep(0.003)
        with tailwatch.step("prefill", batch=1):
            time.sleep(0.001)
    elif command == "collect":
        for generation in (0, 1, 2):
            cycle: list[object] = []
            cycle.append(cycle)
            del cycle  # for the collection to find
            gc.collect(generation)
    else:
        tailwatch.freeze()
        gc.unfreeze()


# ---- the engine ----


def engine(directory: str) -> None:
    """Obeys line by line, and says when it has."""
    tailwatch.install(role="engine", dir=directory, gc="observe")
    for line in sys.stdin:
        do(line.strip())
        print("done", flush=True)


# ---- the API process ----


async def tokens(request: Request) -> AsyncIterator[bytes]:
    """?tokens= of them, of ?bytes=, each after ?ms=, ?slow= of them after 250; ?hold=1: it never ends by itself."""
    asked = request.query_params
    chat = request.url.path.endswith("chat/completions")
    text = "x" * int(asked.get("bytes", "1"))
    choice = {"index": 0, "finish_reason": None, **({"delta": {"content": text}} if chat else {"text": text})}
    event = {"object": "chat.completion.chunk" if chat else "text_completion", "model": asked.get("model", "toy")}
    frame = f"data: {json.dumps({**event, 'choices': [choice]})}\n\n".encode()
    await asyncio.sleep(int(asked.get("first", "0")) / 1000)
    for i in range(int(asked.get("tokens", "8"))):
        if i:
            slow = i <= int(asked.get("slow", "0"))
            await asyncio.sleep(0.25 if slow else int(asked.get("ms", "4")) / 1000)
        yield frame
    if "hold" in asked:
        await asyncio.Event().wait()
    yield b"data: [DONE]\n\n"


async def generate(request: Request) -> Response:
    """A stream; ?status=: a refusal; ?encoding=: as one that cannot be read."""
    status = int(request.query_params.get("status", "200"))
    if status != 200:
        return JSONResponse({"error": "planted"}, status)
    encoding = request.query_params.get("encoding")
    headers = {"content-encoding": encoding} if encoding else None
    return StreamingResponse(tokens(request), media_type="text/event-stream", headers=headers)


async def plant(request: Request) -> Response:
    """?where=api|engine, ?what= one of COMMANDS, or of the API process: block (a collection that ends when ?file= is
    removed), crowd, fault."""
    what = request.query_params["what"]
    if what == "block":
        blocks.append(Path(request.query_params["file"]))
        blocks[-1].touch()
        gc.collect()
        blocks.pop()
    elif what == "crowd":
        crowd(request.app.state.watch.core)
    elif what == "fault":
        request.app.state.watch.core.count_error(4)
        request.app.state.watch.core.count_drop(4)
        request.app.state.watch.core.count_fallback("chat", "planted")
    elif request.query_params["where"] == "api":
        do(what)
    else:
        await asyncio.to_thread(request.app.state.tell, what)
    return JSONResponse("done")


async def signal(request: Request) -> Response:
    """What the server tells routers."""
    return JSONResponse(dataclasses.asdict(tailwatch.load_signal()))


def crowd(core: Any) -> None:
    """Requests whose TTFT is flat up to 8 in flight, and grows from there: what a healthy concurrency is found in."""
    for _ in range(40):
        start = time.monotonic_ns() - 1_000_000_000
        streams = [core.stream("toy", "/v1/completions", start, "", "") for _ in range(20)]
        for i, stream in enumerate(streams, 1):
            stream.token(at=start + 50_000_000 + 25_000_000 * max(0, i - 8))
        for stream in streams:
            stream.close()


def serve(directory: str) -> None:
    """Until it is killed, or its standard input ends."""
    command = [sys.executable, __file__, directory, "engine"]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
    assert child.stdin and child.stdout
    stdin, stdout, one = child.stdin, child.stdout, threading.Lock()

    def tell(what: str) -> None:
        with one:
            stdin.write(what + "\n")
            assert stdout.readline() == "done\n"

    generating = [Route(f"/v1/{path}", generate, methods=["POST"]) for path in ("completions", "chat/completions")]
    app = Starlette(routes=[*generating, Route("/plant", plant, methods=["POST"]), Route("/signal", signal)])
    app.state.tell = tell
    app.state.watch = tailwatch.install(
        app, dir=directory, gc="observe", slo=SLO, trust_request_start=True, max_label_sets=4
    )
    gc.callbacks.insert(1, foreign)
    Counter("app_requests", "The app's own registry.").inc()
    config = uvicorn.Config(app, port=0, log_level="info", access_log=False, timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)

    def end_with_parent() -> None:
        sys.stdin.read()
        server.should_exit = True

    threading.Thread(target=end_with_parent, daemon=True).start()
    try:
        server.run()
    finally:
        stdin.close()
        child.wait()


def main(arguments: list[str]) -> Any:
    gc.disable()
    heap.extend([i] for i in range(HEAP))
    gc.collect()
    return engine(arguments[0]) if arguments[1:] == ["engine"] else serve(arguments[0])


if __name__ == "__main__":
    main(sys.argv[1:])
