"""What does our `send` add to each chunk of a stream?

Content events as the known servers frame them (tests/frames), the scan on. By itself: our Send against a Python
`async def` that stamps and looks for content, each around the same `async def send`, driven to completion; what
counts is what they add. And in an app under asyncio, beside everything that does something per chunk.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest
from harness import REPEATS, Report, Run, main, measure
from peers import ROUTE, available, python_send

import tailwatch
from tailwatch import _hot

FRAMES = Path(__file__).resolve().parent.parent / "tests" / "frames"
SERVERS = {
    "vLLM chat": ("vllm_chat", b'"content":"'),
    "vLLM chat, logprobs": ("vllm_chat_logprobs", b'"content":"'),
    "vLLM completions": ("vllm_completions", b'"text":"'),
    "SGLang chat": ("sglang_chat", b'"content":"'),
    "TensorRT-LLM chat": ("trtllm_chat", b'"content":"'),
    "LMDeploy chat": ("lmdeploy_chat", b'"content": "'),
    "Anthropic messages": ("anthropic_messages", b'"text": "'),
    "vLLM chat, n=2, choices alternate": ("vllm_chat_n2", b'"content":"'),
    "OpenAI responses, numbered events": ("openai_responses", b'"delta":"'),
}
"""Golden body, and where its text stands."""
TOKENS = [" the", " quick", ",", "\n", " fox", "es", " jump", ".", " \u00e9t\u00e9", " \u4e16", " 42", "ing", " a", "!"]
START = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}
LAST = {"type": "http.response.body", "body": b"", "more_body": False}
CHUNKS = 256


def frames(name: str) -> list[bytes]:
    """The events of a golden body, each with its empty line."""
    body = (FRAMES / f"{name}.txt").read_bytes()
    end = b"\r\n\r\n" if b"\r\n\r\n" in body else b"\n\n"
    return [event + end for event in body.split(end) if event.strip()]


def messages(name: str, needle: bytes) -> list[dict[str, Any]]:
    """What a stream repeats: the golden body's content events of one shape with other tokens in them, as ASGI
    messages. With n=2 the choices take turns; numbered events count up."""
    templates = [frame for frame in frames(name) if _text(frame, needle)]
    if name == "vllm_chat_n2":
        templates = [next(f for f in templates if b'"index":%d' % choice in f) for choice in (0, 1)]
    else:
        templates = templates[:1]
    bodies = [_filled(frame, needle, token, i) for i, token in enumerate(TOKENS) for frame in templates]
    return [{"type": "http.response.body", "body": body, "more_body": True} for body in bodies]


def _text(frame: bytes, needle: bytes) -> re.Match[bytes] | None:
    """The text of an event, where it has some."""
    return re.search(re.escape(needle) + rb'((?:[^"\\]|\\.)+)"', frame)


def _filled(frame: bytes, needle: bytes, token: str, number: int) -> bytes:
    found = _text(frame, needle)
    assert found
    filled = frame[: found.start(1)] + json.dumps(token)[1:-1].encode() + frame[found.end(1) :]
    return re.sub(rb'"sequence_number":\d+', b'"sequence_number":%d' % (100 + number), filled)


class Flow:
    """What uvicorn shows of its flow control."""

    write_paused = False


async def bare_send(message: Any) -> None:
    """A server's send that does nothing."""


def our_send(core: _hot.Core, flow: object) -> Any:
    """Send of one chat request, its headers sent."""
    return opened(core, flow).send


def opened(core: _hot.Core, flow: object) -> _hot.Send:
    """A request whose headers were sent."""
    now = _hot.now()
    sender = core.request(request(1), bare_send, True, now, now, 0, 1, flow, False)
    drive(sender.send(START))
    return sender


def drive(awaitable: Any) -> None:
    """Runs a coroutine that never waits."""
    try:
        awaitable.send(None)
    except StopIteration:
        return
    raise AssertionError("it waited")


def sending(make: Callable[[], Any], batch: list[dict[str, Any]]) -> Run:
    """A new wrapper for n messages of one stream; the first ones are not timed."""

    def run(n: int) -> float:
        send = make()
        for message in batch:
            drive(send(message))
        todo = list(islice(cycle(batch), n))
        start = time.perf_counter_ns()
        for message in todo:
            try:  # noqa: SIM105 (suppress() costs as much as what is measured)
                send(message).send(None)
            except StopIteration:
                pass
        return (time.perf_counter_ns() - start) / n

    return run


def _alone(made: Report, core: _hot.Core, repeats: int) -> None:
    BARE, PYTHON, OURS, OTHER = "bare send", "Python wrapper", "our Send", "our Send, flow control not seen"
    for server, (name, needle) in SERVERS.items():
        batch = messages(name, needle)
        wrap = partial(python_send, bare_send, needle)
        cases = {
            BARE: sending(lambda: bare_send, batch),
            PYTHON: sending(wrap, batch),
            OURS: sending(lambda: our_send(core, Flow), batch),
        }
        if server == "vLLM chat":
            cases[OTHER] = sending(lambda: our_send(core, None), batch)
        samples = measure(cases, number=3000, repeats=repeats)
        made.calls |= {f"{server}: {case}": times for case, times in samples.calls().items()}
        made.bars.append(samples.ratio(OURS, PYTHON, less=BARE, bar=0.4, label=f"{server}: added, ours / Python"))
        made.bars.append(samples.difference(OURS, BARE, label=f"{server}: added by ours"))
        if server == "vLLM chat":
            made.bars.append(samples.ratio(OTHER, PYTHON, less=BARE, label=f"{server}: same, flow control not seen"))
            made.bars.append(samples.difference(PYTHON, BARE, label=f"{server}: added by Python"))


def streaming_app(batch: list[dict[str, Any]]) -> Any:
    """Streams scope["chunks"] chunks."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        for message in islice(cycle(batch), scope["chunks"]):
            await send(message)
        await send(LAST)

    return app


def request(chunks: int) -> dict[str, Any]:
    """A scope as a server makes it."""
    return {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
        "path": ROUTE, "raw_path": ROUTE.encode(), "query_string": b"", "root_path": "", "headers": [(b"host", b"x")],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2), "chunks": chunks,
    }  # fmt: skip


def serving(loop: asyncio.AbstractEventLoop, app: Any) -> Callable[[int, int], float]:
    """Serves requests of so many chunks; ns per request."""

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def serve(requests: int, chunks: int) -> float:
        start = time.perf_counter_ns()
        for _ in range(requests):
            await app(request(chunks), receive, bare_send)
        return (time.perf_counter_ns() - start) / requests

    return lambda requests, chunks: loop.run_until_complete(serve(requests, chunks))


def per_chunk(serve: Callable[[int, int], float]) -> Run:
    """The slope: what each further chunk costs, whatever a request costs."""

    def run(n: int) -> float:
        return (serve(n, CHUNKS + 1) - serve(n, 1)) / CHUNKS

    return run


def _in_app(made: Report, repeats: int) -> None:
    BARE, OURS = "no instrumentation", "tailwatch"
    batch = messages(*SERVERS["vLLM chat"])
    loop = asyncio.new_event_loop()
    around = available(made.notes)
    apps: dict[str, Any] = {BARE: streaming_app(batch), OURS: tailwatch.install(streaming_app(batch), gc="observe").app}
    apps |= {name: wrap(streaming_app(batch)) for name, wrap in around.items()}
    slow = [name for name in around if "ASGI" in name or "BaseHTTP" in name]
    cases = {name: per_chunk(serving(loop, app)) for name, app in apps.items()}
    samples = measure(cases, number={name: 2 if name in slow else 10 for name in cases}, repeats=repeats)
    loop.close()
    made.calls |= {f"app: {name}": times for name, times in samples.calls().items()}
    for name in (OURS, *around):
        made.bars.append(samples.difference(name, BARE, label=f"in an app: {name}, added"))
    for name in around:
        bar = 0.4 if "Python" in name else 1.0
        made.bars.append(samples.ratio(OURS, name, less=BARE, bar=bar, label=f"in an app: ours / {name}"))


def report(quick: bool = False) -> Report:
    """Runs everything."""
    made = Report("What `send` adds to each chunk, real frames, scan on")
    watch = tailwatch.install(gc="observe")
    try:
        _alone(made, watch.core, 3 if quick else REPEATS)
        _in_app(made, 3 if quick else 15)
    finally:
        tailwatch.uninstall()
    return made


def test_send(benchmark: Any) -> None:
    """Our Send, timed by pytest-benchmark; each chunk is one token."""
    made = report(quick=True)
    benchmark.extra_info.update(made.as_dict())
    core = _hot.Core("api", 2, (0, 0, 0, 0, 990_000), 0, lambda scope: ROUTE, lambda awaitable, stream: awaitable)
    sender = opened(core, Flow)
    batch = messages(*SERVERS["vLLM chat"])
    stream = cycle(batch)
    benchmark.pedantic(lambda: drive(sender.send(next(stream))), rounds=20, iterations=1_000)
    before = sender.stream.tokens
    for _ in range(1_000):
        drive(sender.send(next(stream)))
    assert sender.stream.tokens - before == 1_000


@pytest.mark.parametrize("server", SERVERS)
def test_every_frame_is_a_token(server: str) -> None:
    """What is timed is what it claims to be: each message of a batch is one token to the scan."""
    core = _hot.Core("api", 2, (0, 0, 0, 0, 990_000), 0, lambda scope: ROUTE, lambda awaitable, stream: awaitable)
    sender = opened(core, Flow)
    batch = messages(*SERVERS[server])
    assert len(batch) >= len(TOKENS)
    for message in batch:
        drive(sender.send(message))
    assert sender.stream.tokens == len(batch)


if __name__ == "__main__":
    main(report)
