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
from types import SimpleNamespace
from typing import Any

import uvicorn
from prometheus_client import Counter
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

import tailwatch
from tailwatch import _hot

SLO = "ttft<=500ms,itl<=150ms@99%"
HEAP = 60_000
COMMANDS = ("steps", "collect", "freeze")

heap: list[object] = []
callback_seconds = [0.001]
blocks: list[Path] = []  # the file of a block that goes on until its file is gone


def foreign(phase: str, info: dict[str, int]) -> None:
    """Another gc callback, which takes its time."""
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
        scheduled()
    elif command == "collect":
        for generation in (0, 1, 2):
            cycle: list[object] = []
            cycle.append(cycle)
            del cycle  # for the collection to find
            gc.collect(generation)
    else:
        tailwatch.freeze()
        gc.unfreeze()


class Planned(SimpleNamespace):
    """A scheduler: of 30 steps, each third has a prompt in it, and each tenth preempts a request."""

    number = 0

    def schedule(self) -> SimpleNamespace:
        self.number += 1
        tokens = (
            {"a": 1, "b": 200 + self.number} if self.number % 3 == 0 else dict.fromkeys("abc"[: self.number % 3], 1)
        )
        self.running = list(tokens)
        return SimpleNamespace(
            num_scheduled_tokens=tokens,
            total_num_scheduled_tokens=sum(tokens.values()),
            scheduled_new_reqs=[SimpleNamespace(req_id="b")] if "b" in tokens and tokens["b"] > 1 else [],
            scheduled_cached_reqs=SimpleNamespace(req_ids=["a"], num_output_tokens=[5], resumed_req_ids=set()),
            scheduled_spec_decode_tokens={},
            preempted_req_ids={"d"} if self.number % 10 == 0 else None,
        )

    def update_from_output(self, output: SimpleNamespace, answer: None) -> dict[int, SimpleNamespace]:
        return {0: SimpleNamespace(timestamp=time.monotonic())}


def scheduled() -> None:
    """Steps that are read off a scheduler."""
    scheduler = Planned(waiting=["next"], kv_cache_manager=SimpleNamespace(usage=0.75))
    steps = _hot.SchedulerSteps(tailwatch.current().core, scheduler, "m")
    schedule, update = (steps.around(name, getattr(scheduler, name)) for name in ("schedule", "update_from_output"))
    for _ in range(30):
        output = schedule()
        time.sleep(0.0005 + 2e-6 * output.total_num_scheduled_tokens)
        update(output, None)


# ---- the engine ----


def engine(directory: str) -> None:
    """Carries out line by line, and reports each."""
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
    removed), knee, fault, unfollowed (a slow gap that a thread other than the loop's stamps)."""
    what = request.query_params["what"]
    if what == "block":
        blocks.append(Path(request.query_params["file"]))
        blocks[-1].touch()
        gc.collect()
        blocks.pop()
    elif what == "knee":
        knee(request.app.state.watch.core)
    elif what == "unfollowed":
        await asyncio.to_thread(unfollowed, request.app.state.watch.core)
    elif what == "fault":
        request.app.state.watch.core.count_error(4)
        request.app.state.watch.core.count_drop(4)
        request.app.state.watch.core.count_fallback("chat", "planted")
    elif request.query_params["where"] == "api":
        do(what)
    else:
        await asyncio.to_thread(request.app.state.act, what)
    return JSONResponse("done")


async def signal(request: Request) -> Response:
    """What the server publishes to routers."""
    return JSONResponse(dataclasses.asdict(tailwatch.load_signal()))


def unfollowed(core: Any) -> None:
    """Twenty gaps of 10 ms and one of 200: of a thread without a clock it is not known when a token was ready. They
    begin now: no pause is as late as they are."""
    at = time.monotonic_ns()
    stream = core.stream("toy", "/v1/completions", at, "", "")
    for gap_ms in (*[10] * 20, 200):
        at += gap_ms * 1_000_000
        stream.token(at=at)
    stream.close(at=at)


def knee(core: Any) -> None:
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

    def act(what: str) -> None:
        with one:
            stdin.write(what + "\n")
            assert stdout.readline() == "done\n"

    generating = [Route(f"/v1/{path}", generate, methods=["POST"]) for path in ("completions", "chat/completions")]
    app = Starlette(routes=[*generating, Route("/plant", plant, methods=["POST"]), Route("/signal", signal)])
    app.state.act = act
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
