"""Byte for byte the host behaves as without us, whatever the app does."""

from __future__ import annotations

import asyncio
import functools
import logging
import random
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tailwatch import snapshots

pytestmark = pytest.mark.integration

STREAM = [(b"content-type", b"text/event-stream"), (b"transfer-encoding", b"chunked")]
TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n'


def start(headers: Any = STREAM, **more: Any) -> dict[str, Any]:
    """The start of an answer that streams."""
    return {"type": "http.response.start", "status": 200, "headers": headers, **more}


def part(body: Any = TOKEN, more_body: Any = True, **more: Any) -> dict[str, Any]:
    """A part of its body."""
    return {"type": "http.response.body", "body": body, "more_body": more_body, **more}


END = part(b"", False)


class Shouting(dict[str, Any]):
    """A dict with a mind of its own."""

    def __getitem__(self, key: str) -> Any:
        """What it holds, or the body's twice."""
        return dict.__getitem__(self, key) * 2 if key == "body" else dict.__getitem__(self, key)

    def get(self, key: str, default: Any = None) -> Any:
        """As above."""
        return self[key] if dict.__contains__(self, key) else default


class Odd(BaseException):
    """No Exception."""


async def send_all(send: Any, *messages: Any) -> None:
    """Sends one after the other."""
    for message in messages:
        await send(message)


async def boom_before(receive: Any, send: Any) -> None:
    raise ValueError("before")


async def boom_after_start(receive: Any, send: Any) -> None:
    await send(start())
    raise ValueError("after start")


async def boom_during(receive: Any, send: Any) -> None:
    await send_all(send, start(), part(), part())
    raise ValueError("during")


async def boom_after(receive: Any, send: Any) -> None:
    await send_all(send, start(), part(), END)
    raise ValueError("after")


async def base_exception(receive: Any, send: Any) -> None:
    await send_all(send, start(), part())
    raise Odd("odd")


async def cancelled(receive: Any, send: Any) -> None:
    await send_all(send, start(), part())
    raise asyncio.CancelledError


async def send_after_the_end(receive: Any, send: Any) -> None:
    await send_all(send, start(), part(), END, part(), END)


async def start_twice(receive: Any, send: Any) -> None:
    await send_all(send, start(), start())


async def body_first(receive: Any, send: Any) -> None:
    await send(part())


async def silence(receive: Any, send: Any) -> None:
    return None


async def no_end(receive: Any, send: Any) -> None:
    await send_all(send, start(), part())


async def swallowed_cancel(receive: Any, send: Any) -> None:
    await send_all(send, start(), part())
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        getattr(task, "uncancel", int)()
    await send_all(send, part(), END)


async def dict_subclass(receive: Any, send: Any) -> None:
    await send_all(send, Shouting(start()), Shouting(part()), Shouting(END))


async def bytearrays(receive: Any, send: Any) -> None:
    await send_all(send, start(), part(bytearray(TOKEN)), END)


async def memoryviews(receive: Any, send: Any) -> None:
    await send_all(send, start(), part(memoryview(TOKEN)), part(memoryview(TOKEN * 4).cast("I")), END)


async def text_body(receive: Any, send: Any) -> None:
    await send_all(send, start(), part("text"), END)


async def no_body(receive: Any, send: Any) -> None:
    await send_all(send, start(), {"type": "http.response.body", "more_body": True}, {"type": "http.response.body"})


async def odd_more_body(receive: Any, send: Any) -> None:
    await send_all(send, start(), part(more_body=1), part(more_body="yes"), part(more_body=None))


async def odd_status(receive: Any, send: Any) -> None:
    await send_all(send, start(status=299), part(), END)


async def huge_status(receive: Any, send: Any) -> None:
    await send_all(send, start(status=10**30), part(), END)


async def text_status(receive: Any, send: Any) -> None:
    await send_all(send, start(status="200"), part(), END)


async def header_iterator(receive: Any, send: Any) -> None:
    await send_all(send, start(iter(STREAM)), part(), END)


async def header_lists(receive: Any, send: Any) -> None:
    await send_all(send, start([list(pair) for pair in STREAM]), part(), END)


async def header_nonsense(receive: Any, send: Any) -> None:
    await send_all(send, start([(b"content-type",)]), part(), END)


async def header_text(receive: Any, send: Any) -> None:
    await send_all(send, start([("content-type", "text/event-stream")]), part(), END)


async def no_headers(receive: Any, send: Any) -> None:
    await send_all(send, {"type": "http.response.start", "status": 204}, {"type": "http.response.body"})


async def extra_keys(receive: Any, send: Any) -> None:
    await send_all(send, start(trailers=False, more=1), part(other=2), END)


async def keyword(receive: Any, send: Any) -> None:
    for message in (start(), part(), END):
        await send(message=message)


async def wrong_keyword(receive: Any, send: Any) -> None:
    await send(data=start())


async def no_argument(receive: Any, send: Any) -> None:
    await send()


async def two_arguments(receive: Any, send: Any) -> None:
    await send(start(), part())


async def together(receive: Any, send: Any) -> None:
    await send(start())
    await asyncio.gather(*(send(part(b"%d" % i)) for i in range(5)))
    await send(END)


async def other_thread(receive: Any, send: Any) -> None:
    loop = asyncio.get_running_loop()
    await asyncio.to_thread(
        lambda: [asyncio.run_coroutine_threadsafe(send(m), loop).result() for m in (start(), part(), END)]
    )


async def reads_all(receive: Any, send: Any) -> None:
    got = [await receive()]
    while got[-1].get("more_body"):
        got.append(await receive())
    await send_all(send, start(), part(repr([sorted(message) for message in got]).encode()), END)
    assert (await receive())["type"] == "http.disconnect"


async def error_event(receive: Any, send: Any) -> None:
    await send_all(send, start(), part(b'data: {"error": {"message": "x"}}\n\n'), END)


async def garbage(receive: Any, send: Any) -> None:
    noise = random.Random(7)
    await send(start())
    for _ in range(50):
        await send(part(noise.randbytes(noise.randrange(300))))
    await send(END)


async def torn(receive: Any, send: Any) -> None:
    await send(start())
    for i in range(len(TOKEN)):
        await send(part(TOKEN[i : i + 1]))
    await send(END)


async def wrong_messages(receive: Any, send: Any) -> None:
    odd: list[Any] = [None, 7, "http.response.start", ["type"], (), b"", object, {}, {"type": None}, {"type": 7},
                      {"type": "unknown"}, {7: 8}, {"type": "websocket.send", "text": "x"}]  # fmt: skip
    for message in odd:
        try:
            await send(message)
        except Exception as error:
            awaited.append(f"{type(error).__name__}: {error}")
    await send_all(send, start(), part(), END)


awaited: list[str] = []
HOSTILE: list[Callable[[Any, Any], Any]] = [
    boom_before, boom_after_start, boom_during, boom_after, base_exception, cancelled, send_after_the_end, start_twice,
    body_first, silence, no_end, swallowed_cancel, dict_subclass, bytearrays, memoryviews, text_body, no_body,
    odd_more_body, odd_status, huge_status, text_status, header_iterator, header_lists, header_nonsense, header_text,
    no_headers, extra_keys, keyword, wrong_keyword, no_argument, two_arguments, together, other_thread, reads_all,
    error_event, garbage, torn, wrong_messages,
]  # fmt: skip


class Hostile:
    """Behaves as the path asks, and records what became of it."""

    def __init__(self) -> None:
        self.became: list[str] = []
        self.ended = threading.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answers, somehow."""
        if scope["type"] != "http":
            raise RuntimeError("http only")
        try:
            await globals()[scope["path"].rpartition("/")[2]](receive, send)
            self.became.append("returned")
        except BaseException as error:
            self.became.append(f"{type(error).__name__}: {error}")
            raise
        finally:
            self.ended.set()


class ErrorLog(logging.Handler):
    """What the server logs, without the parts that differ from run to run."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[tuple[str, str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps level, text and exception."""
        error = repr(record.exc_info[1]) if record.exc_info else ""
        if "Exception" in record.getMessage() or "ASGI" in record.getMessage():
            self.records.append((record.levelname, record.getMessage(), error))


@pytest.fixture
def error_log() -> Iterator[ErrorLog]:
    """uvicorn's error log."""
    logger = logging.getLogger("uvicorn.error")
    handler = ErrorLog()
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


def idle(server: Any) -> bool:
    """Whether no app is running: what it raised has been logged."""
    return not server.busy


def plain(lines: list[str]) -> list[str]:
    """Without addresses."""
    return [re.sub(r"0x[0-9a-f]+", "0x", line) for line in lines]


@pytest.mark.parametrize("mode", ["swapped", "wrapped"])
def test_hostile_apps_behave_as_without_us(
    mode: str, serve: Any, observation: Any, flavour: dict[str, str], error_log: ErrorLog, wait_until: Any
) -> None:
    """The same bytes to the client, the same exceptions in the app, the same log of the server, for every misdeed
    on a generation route and on another one."""
    bare, watched = Hostile(), Hostile()
    seen = observation(patterns=["/known/{misdeed}"])
    app = seen.attach(watched, wrap=mode == "wrapped").app
    servers = [(bare, serve(bare, **flavour)), (watched, serve(app, **flavour))]
    for misdeed in HOSTILE:
        for prefix in ("known", "other"):
            found = []
            for hostile, server in servers:
                hostile.ended.clear()
                awaited.clear()
                error_log.records.clear()
                line = f"POST /{prefix}/{misdeed.__name__} HTTP/1.1"
                answer = server.raw(f"{line}\r\nHost: x\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbody".encode())
                assert hostile.ended.wait(30)
                wait_until(functools.partial(idle, server))
                found.append((answer, plain(hostile.became), plain(list(awaited)), list(error_log.records)))
                hostile.became.clear()
            assert found[0] == found[1], misdeed.__name__
    assert seen.core.opened > len(HOSTILE)


class Chatty:
    """Streams until the client is gone, and records how that became known."""

    def __init__(self) -> None:
        self.got: list[str] = []
        self.ended = threading.Event()
        self.scope: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Streams."""
        self.scope = scope
        await receive()
        gone = asyncio.ensure_future(receive())
        await send_all(send, start(), part())
        while not gone.done():
            await send(part())
            await asyncio.sleep(0.001)
        self.got.append(gone.result()["type"])
        for _ in range(3):
            await send(part())
        self.ended.set()


def test_a_client_that_goes_away(serve: Any, observation: Any, flavour: dict[str, str]) -> None:
    """The app learns of it as without us; for us it is an abort, and the tokens after it are none."""
    for watched in (False, True):
        app = Chatty()
        seen = observation()
        server = serve(seen.attach(app).app if watched else app, **flavour, lifespan="off")
        with server.connect() as client:
            client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
            assert client.recv(10)
        assert app.ended.wait(30)
        assert app.got == ["http.disconnect"]
        assert ("tailwatch" in app.scope) is watched
    assert app.scope["tailwatch"].closed
    snapshot = snapshots.take([seen.core.address])
    assert snapshot.requests["abort_early"] + snapshot.requests["abort_late"] == 1


def test_an_answer_that_completed_is_no_abort(serve: Any, observation: Any, flavour: dict[str, str]) -> None:
    """http.disconnect after the last byte is how some servers end every request."""
    seen = observation(patterns=["/known/{misdeed}"])
    app = Hostile()
    server = serve(seen.attach(app).app, **flavour)
    server.http("/known/reads_all")
    assert app.ended.wait(30)
    assert app.became == ["returned"]
    snapshot = snapshots.take([seen.core.address])
    assert snapshot.requests["good"] == 1


def test_many_paths_and_models_make_few_labels(observation: Any, ask: Any) -> None:
    """10^4 paths and models: as many label sets as allowed and no more, the overflow counted, all requests kept."""
    noise = random.Random(11)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        frame = b'data: {"model":"%d","choices":[{"index":0,"delta":{"content":"x"}}]}\n\n' % noise.randrange(10**9)
        await send_all(send, start(), part(frame), END)

    seen = observation()
    served = seen.attach(app).app

    async def nothing(*message: Any) -> None: ...

    async def main() -> None:
        for i in range(10_000):
            path = f"/{noise.randbytes(6).hex()}/{i}" + ("" if i % 2 else "/v1/completions")
            await served(
                {"type": "http", "method": "POST", "path": path, "root_path": "", "headers": []}, nothing, nothing
            )

    asyncio.run(main())
    snapshot = snapshots.take([seen.core.address])
    assert len(snapshot.labels) <= 8
    assert snapshot.label_overflow > 9_000
    assert sum(snapshot.requests.values()) == 10_000
    assert {route for _, route in snapshot.labels} <= {"/v1/completions", "unmatched", "other"}


def test_keep_alive_connections(serve: Any, observation: Any, flavour: dict[str, str]) -> None:
    """Several requests on one connection are as many requests, and the same bytes."""
    request = b"POST /known/bytearrays HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
    last = request.replace(b"Host: x", b"Host: x\r\nConnection: close")
    seen = observation()
    watched = serve(seen.attach(Hostile()).app, **flavour).raw(request * 3 + last)
    assert watched == serve(Hostile(), **flavour).raw(request * 3 + last)
    assert watched.count(TOKEN) == 4
    assert seen.core.opened == 4
