"""What a request waited before the app could see it: over real sockets, with a loop that is held."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import hypercorn.asyncio
import hypercorn.config
import pytest

from tailwatch import _hot, snapshots

pytestmark = pytest.mark.integration

HOLD_SECONDS = 0.4
CLIENTS = 4
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nClient: %b\r\n\r\n"


class Held:
    """Streams one token; on /hold it holds the loop until the clients have sent, and 400 ms more."""

    def __init__(self) -> None:
        self.holding = threading.Event()
        self.go = threading.Event()
        self.released_ns = 0
        self.streams: dict[bytes, Any] = {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Holds, or streams."""
        if scope["type"] != "http":
            raise RuntimeError("http only")
        if scope["path"] == "/hold":
            self.holding.set()
            self.go.wait(30)
            time.sleep(HOLD_SECONDS)
            self.released_ns = time.monotonic_ns()
        else:
            self.streams[dict(scope["headers"])[b"client"]] = scope["tailwatch"]
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        frame = b'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n'
        await send({"type": "http.response.body", "body": frame, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class Client:
    """One request while the loop is held."""

    def __init__(self, connection: socket.socket, name: bytes) -> None:
        self.connection = connection
        self.name = name
        self.begun_ns = self.sent_ns = self.first_ns = 0

    def send(self) -> None:
        """Sends the request, and notes when."""
        self.begun_ns = time.monotonic_ns()
        self.connection.sendall(HEAD % self.name)
        self.sent_ns = time.monotonic_ns()

    def read(self) -> None:
        """Reads until the token is there."""
        got = b""
        while b"delta" not in got:
            part = self.connection.recv(65536)
            assert part
            got += part
        self.first_ns = time.monotonic_ns()


@contextlib.contextmanager
def hypercorn_server(app: Any) -> Iterator[int]:
    """The app under hypercorn, in a thread; its port."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = hypercorn.config.Config()
    port = listener.getsockname()[1]
    config.bind = [f"fd://{listener.detach()}"]
    config.errorlog = None
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()
    serving = hypercorn.asyncio.serve(app, config, shutdown_trigger=stop.wait)  # type: ignore[arg-type]
    thread = threading.Thread(target=loop.run_until_complete, args=(serving,), daemon=True)
    thread.start()
    try:
        yield port
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)
        loop.close()


@pytest.fixture(params=["h11-asyncio", "httptools-uvloop", "hypercorn"])
def port_of(request: pytest.FixtureRequest, serve: Any) -> Iterator[Any]:
    """port_of(app): the app under a server."""
    with contextlib.ExitStack() as stack:

        def start(app: Any) -> int:
            if request.param == "hypercorn":
                return stack.enter_context(hypercorn_server(app))
            http, loop = request.param.split("-")
            return int(serve(app, http=http, loop=loop, lifespan="off").port)

        yield start


@pytest.mark.parametrize("kept", [False, True], ids=["new connections", "kept alive"])
def test_a_paused_process(kept: bool, port_of: Any, observation: Any) -> None:
    """Requests that reach the kernel while the loop is held are charged their wait: TTFT is at least the planted
    wait less two ticks of the kernel's clock, and no more than the client saw and one. The kernel stamps with its last
    tick: where that came late, because its processor was away, the stamp is early by as much."""
    app = Held()
    seen = observation()
    port = port_of(seen.attach(app).app)
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(socket.create_connection(("127.0.0.1", port), 30)) for _ in range(CLIENTS)]
        clients = [Client(connection, b"%d" % i) for i, connection in enumerate(connections)]
        if kept:
            for client in clients:
                client.send()
                client.read()
        holder = stack.enter_context(socket.create_connection(("127.0.0.1", port), 30))
        holder.sendall(b"POST /hold HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
        assert app.holding.wait(30)
        for client in clients:
            client.send()
        app.go.set()
        with ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(Client.read, clients))
    tick = _hot.jiffy_ns()
    for client in clients:
        stream = app.streams[client.name]
        planted = app.released_ns - client.sent_ns
        assert planted >= HOLD_SECONDS * 1e9
        assert planted - 2 * tick <= stream.ttft_ns <= client.first_ns - client.begun_ns + tick
        assert stream.arrival_ns >= client.begun_ns - tick
    snapshot = snapshots.take([seen.core.address])
    assert snapshot.arrivals["tcp_info"] >= CLIENTS
    assert snapshot.ttft.count == CLIENTS * (2 if kept else 1) + 1  # and the one that held
    assert snapshot.ttft.max >= HOLD_SECONDS - 2 * _hot.jiffy_ns() / 1e9


def test_a_server_that_shows_no_socket(observation: Any, ask: Any) -> None:
    """The arrival is the moment the app was entered."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 429, "headers": []})
        await send({"type": "http.response.body"})

    seen = observation()
    before = time.monotonic_ns()
    exchange = ask(seen.attach(app).app, "/v1/completions")
    assert before <= exchange.scope["tailwatch"].arrival_ns <= time.monotonic_ns()
    assert snapshots.take([seen.core.address]).arrivals["asgi"] == 1


def test_the_time_at_a_proxy_is_a_stage_of_its_own(observation: Any, ask: Any) -> None:
    """With trust_request_start the header's time goes to the proxy's queue, not into the arrival."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body"})

    for trust in (False, True):
        seen = observation(trust_request_start=trust)
        before = time.monotonic_ns()
        headers = [(b"x-request-start", b"t=%d" % (time.time_ns() // 1000 - 250_000))]
        exchange = ask(seen.attach(app).app, "/v1/completions", headers=headers)
        snapshot = snapshots.take([seen.core.address])
        assert exchange.scope["tailwatch"].arrival_ns >= before
        assert snapshot.queue["proxy"].count == trust
        assert snapshot.arrivals["header"] == trust
        assert not trust or snapshot.queue["proxy"].sum >= 0.249
