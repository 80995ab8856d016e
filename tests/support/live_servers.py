"""Servers, requests and observed apps for the tests of the ASGI layer."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

import tailwatch
from tailwatch import _hot, snapshots
from tailwatch.asgi import middleware
from tailwatch.asgi.routes import Routes

from .waiting import until

DEADLINE_SECONDS = 30
SLO = (2_000_000_000, 200_000_000, 0, 0, 990_000)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Of a group; it is not made yet."""
    return tmp_path / "group"


@pytest.fixture
def no_collections() -> Iterator[None]:
    """None of this process; nothing is installed afterwards."""
    gc.disable()
    yield
    gc.enable()
    tailwatch.uninstall()


class Observation:
    """A core, a hook around it, and what the hook was given."""

    def __init__(self, **options: Any) -> None:
        self.routes = Routes(options.pop("patterns", ()))
        self.core = _hot.Core("api", 8, SLO, 0, self.routes.route_of, middleware.timed_send)
        self.calls: list[str] = []
        self.errors: list[BaseException] = []
        hooks: dict[str, Any] = {name: self._teller(name) for name in ("on_request", "on_startup", "on_idle")}
        self.hook = middleware.Hook(core=self.core, routes=self.routes, on_error=self._failed, **(hooks | options))

    def attach(self, app: Any, **options: Any) -> middleware.Attached:
        """The app, observed."""
        return middleware.attach(app, self.hook, **options)

    def _teller(self, name: str) -> Callable[[], None]:
        return lambda: self.calls.append(name)

    def _failed(self) -> None:
        try:
            raise
        except Exception as error:
            self.errors.append(error)


@pytest.fixture
def observation() -> Iterator[Callable[..., Observation]]:
    """Makes observations; afterwards none may have met an error of ours, or have a request left in flight."""
    made: list[Observation] = []

    def make(**options: Any) -> Observation:
        made.append(Observation(**options))
        return made[-1]

    yield make
    until(lambda: all(one.core.in_flight == 0 for one in made))
    assert [error for one in made for error in one.errors] == []


class Exchange:
    """One request given to an app without a server: what it sent, and what it raised."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.error: BaseException | None = None
        self.scope: Any = None

    @property
    def status(self) -> int:
        """Of the answer."""
        return int(self.sent[0]["status"])

    @property
    def body(self) -> bytes:
        """Of the answer."""
        return b"".join(message.get("body", b"") for message in self.sent if message["type"] == "http.response.body")


async def _ask(app: Any, path: str, received: tuple[Any, ...], scope: dict[str, Any]) -> Exchange:
    exchange = Exchange()
    exchange.scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "method": "POST",
        "scheme": "http", "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "headers": [],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2), "state": {}, **scope,
    }  # fmt: skip
    messages = iter(received or ({"type": "http.request", "body": b"", "more_body": False},))

    async def receive() -> Any:
        for message in messages:
            return message
        return await asyncio.Event().wait()

    async def send(message: Any) -> None:
        exchange.sent.append(message)

    try:
        await app(exchange.scope, receive, send)
    except Exception as error:
        exchange.error = error
    return exchange


@pytest.fixture
def ask() -> Callable[..., Exchange]:
    """ask(app, path, *received, **scope): one request, without a server."""

    def run(app: Any, path: str, *received: Any, **scope: Any) -> Exchange:
        return asyncio.run(asyncio.wait_for(_ask(app, path, received, scope), DEADLINE_SECONDS))

    return run


@pytest.fixture
def start_up() -> Callable[[Any], list[str]]:
    """start_up(app): lifespan.startup and shutdown; the types of what the app sent."""

    def run(app: Any) -> list[str]:
        received = ({"type": "lifespan.startup"}, {"type": "lifespan.shutdown"})
        exchange = asyncio.run(_ask(app, "", received, {"type": "lifespan"}))
        return [message["type"] for message in exchange.sent]

    return run


class Served:
    """An app under uvicorn, in a thread."""

    def __init__(self, app: Any, **options: Any) -> None:
        settings: dict[str, Any] = {"loop": "asyncio", "http": "h11", "log_config": None, "date_header": False}
        self._server = uvicorn.Server(uvicorn.Config(app, **(settings | options)))
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), daemon=True)
        self._thread.start()
        until(lambda: self._server.started or not self._thread.is_alive())
        assert self._server.started

    def connect(self) -> socket.socket:
        """A connection to it."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=DEADLINE_SECONDS)

    def raw(self, request: bytes) -> bytes:
        """Sends bytes, and reads until the server closes."""
        with self.connect() as connection:
            connection.sendall(request)
            return read_all(connection)

    def http(
        self, path: str, method: str = "POST", headers: str = "", body: str = ""
    ) -> tuple[int, dict[str, str], bytes]:
        """One request on a connection of its own: status, headers, body."""
        fixed = f"Host: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
        answer = self.raw(f"{method} {path} HTTP/1.1\r\n{fixed}{headers}\r\n{body}".encode())
        head, _, rest = answer.partition(b"\r\n\r\n")
        first, *others = head.decode("latin-1").split("\r\n")
        fields = {name.lower(): value for name, _, value in (line.partition(": ") for line in others)}
        return int(first.split()[1]), fields, unchunked(rest) if "transfer-encoding" in fields else rest

    @property
    def busy(self) -> bool:
        """Whether an app is running."""
        return bool(self._server.server_state.tasks)

    def stop(self) -> None:
        """Shuts it down and waits for it."""
        self._server.should_exit = True
        self._thread.join(DEADLINE_SECONDS)
        assert not self._thread.is_alive()
        self._socket.close()


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    """serve(app, **uvicorn options): the app under uvicorn until the test ends."""
    with contextlib.ExitStack() as stack:

        def start(app: Any, **options: Any) -> Served:
            served = Served(app, **options)
            stack.callback(served.stop)
            return served

        yield start


@pytest.fixture(params=["h11-asyncio", "httptools-uvloop"])
def flavour(request: pytest.FixtureRequest) -> dict[str, str]:
    """uvicorn's two protocols, and the two loops."""
    http, loop = request.param.split("-")
    return {"http": http, "loop": loop}


def read_all(connection: socket.socket) -> bytes:
    """What comes until the other side closes, or resets."""
    parts = []
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts)


def unchunked(body: bytes) -> bytes:
    """The body of a chunked answer."""
    parts = []
    while body:
        size, _, body = body.partition(b"\r\n")
        parts.append(body[: int(size, 16)])
        body = body[int(size, 16) + 2 :]
    return b"".join(parts)


@pytest.fixture
def wait_until() -> Callable[[Callable[[], object]], None]:
    """wait_until(condition): waits for something that must come."""
    return until


async def one_by_one(frames: Iterable[bytes]) -> AsyncIterator[bytes]:
    """Each frame in a message of its own; other streams go on in between."""
    for frame in frames:
        yield frame
        await asyncio.sleep(0)


class Stage:
    """A watched server that answers with the frames a test gives it."""

    def __init__(self) -> None:
        self.answer: Callable[[], Iterable[bytes]]
        self.last_ids: list[str | None] = []
        paths = ("chat/completions", "completions", "responses", "messages")
        routes = [Route(f"/v1/{path}", self._stream, methods=["POST"]) for path in paths]
        self.app = Starlette(routes=[*routes, Route("/events", self._stream)])
        self.port = 0

    async def _stream(self, request: Request) -> Response:
        self.last_ids.append(request.headers.get("last-event-id"))
        return StreamingResponse(one_by_one(self.answer()), media_type="text/event-stream")

    @property
    def url(self) -> str:
        """Of the server."""
        return f"http://127.0.0.1:{self.port}"


@pytest.fixture(scope="module")
def sse_server() -> Iterator[Stage]:
    """The server of all these tests."""
    made = Stage()
    served = Served(made.app)
    made.port = served.port
    yield made
    served.stop()


@pytest.fixture
def stage(sse_server: Stage) -> Iterator[Stage]:
    """It, with tailwatch in it, from zero."""
    sse_server.last_ids.clear()
    tailwatch.install(sse_server.app, gc="off", routes=("/events",))
    yield sse_server
    until(lambda: tailwatch.snapshot().in_flight == 0)
    tailwatch.uninstall()


def counted() -> snapshots.Snapshot:
    """What tailwatch saw of the answers, once they are over."""
    until(lambda: tailwatch.snapshot().in_flight == 0)
    taken = tailwatch.snapshot()
    assert not any(taken.errors.values()) and not any(taken.drops.values())
    return taken
