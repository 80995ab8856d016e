"""WebSockets: each message of the client is a request, and nothing changes for either side."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from tailwatch import snapshots

pytestmark = pytest.mark.integration

TOKEN = '{"model":"m","choices":[{"index":0,"delta":{"content":"x"}}]}'
N = 3


class Room:
    """Answers each message with N tokens, as text or bytes; "boom" raises, "bye" closes."""

    def __init__(self) -> None:
        self.became: list[str] = []
        self.scopes: list[Any] = []
        self.ended = threading.Event()

    async def __call__(self, socket: WebSocket) -> None:
        """One connection."""
        self.scopes.append(socket.scope)
        await socket.accept()
        try:
            await self.talk(socket)
            self.became.append("returned")
        except BaseException as error:
            self.became.append(f"{type(error).__name__}: {error}")
            if not isinstance(error, WebSocketDisconnect):
                raise
        finally:
            self.ended.set()

    async def talk(self, socket: WebSocket) -> None:
        """Until the client says bye."""
        while (line := await socket.receive_text()) != "bye":
            if line == "boom":
                raise ValueError("boom")
            for i in range(N):
                await (socket.send_text(TOKEN) if i % 2 == 0 else socket.send_bytes(TOKEN.encode()))
        await socket.close(4000, "bye")


def room() -> tuple[Starlette, Room]:
    """An app with one room."""
    inside = Room()

    async def endpoint(socket: WebSocket) -> None:
        await inside(socket)

    return Starlette(routes=[WebSocketRoute("/ws/{name}", endpoint)]), inside


def talk(port: int, *lines: str, path: str = "/ws/a") -> list[Any]:
    """What the client gets, and how it ended."""
    got: list[Any] = []
    with connect(f"ws://127.0.0.1:{port}{path}", open_timeout=30) as client:
        try:
            for line in lines:
                client.send(line)
                for _ in range(N if line not in ("bye", "boom") else 1):
                    got.append(client.recv(timeout=30))
        except ConnectionClosed as closed:
            got.append((closed.rcvd and closed.rcvd.code, closed.rcvd and closed.rcvd.reason))
    return got


CONVERSATIONS = [("hello", "again", "bye"), ("bye",), ("hello", "boom"), ("hello",), ()]


@pytest.mark.parametrize("lines", CONVERSATIONS, ids=lambda lines: " ".join(lines) or "nothing")
@pytest.mark.parametrize("ws", ["websockets-sansio", "wsproto"])
def test_conversations_go_as_without_us(ws: str, lines: tuple[str, ...], serve: Any, observation: Any) -> None:
    """The same messages, the same end on both sides; each message that asked for something is a request."""
    if ws == "wsproto":
        pytest.importorskip("wsproto")
    found = []
    for watched in (False, True):
        app, inside = room()
        seen = observation(patterns=["/ws/{name}"])
        if watched:
            seen.attach(app)
        got = talk(serve(app, ws=ws).port, *lines)
        assert inside.ended.wait(30)
        found.append((got, inside.became))
        assert ("tailwatch" in inside.scopes[0]) is watched
    assert found[0] == found[1]
    snapshot = snapshots.take([seen.core.address])
    turns = sum(line not in ("bye", "boom") for line in lines)
    assert snapshot.tokens == turns * N
    assert snapshot.ttft.count == turns


def test_other_websockets_are_left_alone(serve: Any, observation: Any) -> None:
    """A websocket on a route that is not known to generate is not observed."""
    app, inside = room()
    seen = observation()
    seen.attach(app)
    talk(serve(app, ws="websockets-sansio").port, "hello", "bye")
    assert inside.ended.wait(30)
    assert "tailwatch" not in inside.scopes[0]
    assert seen.core.opened == 0
