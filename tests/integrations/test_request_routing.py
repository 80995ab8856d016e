"""The engine that a server chooses for a request binds its stream; the server's own function does what it did."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import tailwatch
from tailwatch import integrations
from tailwatch.asgi import middleware
from tailwatch.integrations.request_routing import Choice, Routing

MODULE = "vllm.v1.engine.core_client"


def core_client() -> ModuleType:
    """As vLLM 0.33.0 has it: engines are known by their rank as two bytes, little endian."""
    module: Any = ModuleType(MODULE)

    class DPAsyncMPClient:
        def __init__(self, ranks: list[int]) -> None:
            self.core_engines = [rank.to_bytes(2, "little") for rank in ranks]
            self.core_engine = self.core_engines[0]

        def get_core_engine_for_request(self, request: Any) -> bytes:
            """Theirs."""
            return self.core_engine

    class DPLBAsyncMPClient(DPAsyncMPClient):
        def get_core_engine_for_request(self, request: Any) -> bytes:
            if request < 0:
                raise IndexError(request)
            return self.core_engines[request]

    module.DPAsyncMPClient, module.DPLBAsyncMPClient = DPAsyncMPClient, DPLBAsyncMPClient
    return module


class Bound:
    """A stream that remembers."""

    def __init__(self) -> None:
        self.engines: list[tuple[Any, bool]] = []

    def bind(self, engine: str | int | None, *, part: bool = False) -> None:
        self.engines.append((engine, part))


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module, as if vLLM had been imported."""
    module = core_client()
    monkeypatch.setitem(sys.modules, MODULE, module)
    return module


@pytest.fixture
def routing() -> Iterator[Callable[..., Routing]]:
    """Routing(choices, stream, failed) with vLLM's choices, undone at the end."""
    made: list[Routing] = []

    def make(stream: Callable[[], Any], failed: Callable[[], object] = lambda: pytest.fail("raised")) -> Routing:
        made.append(Routing(integrations.choices(), stream, failed))
        return made[-1]

    yield make
    for each in made:
        each.undo()


def test_the_choice_binds_the_stream_of_its_task(client: Any, routing: Callable[..., Routing]) -> None:
    """Both kinds of client: one that has one engine, and one that balances. The answer is the server's own."""
    stream = Bound()
    followed = routing(lambda: stream)
    assert not followed.active()
    followed.wrap_loaded()
    followed.wrap_loaded()
    assert followed.active() and len(followed.names) == 2
    assert client.DPAsyncMPClient([3]).get_core_engine_for_request(None) == b"\3\0"
    assert client.DPLBAsyncMPClient([0, 1, 300]).get_core_engine_for_request(2) == b"\x2c\1"
    assert stream.engines == [(3, True), (300, True)]
    assert client.DPAsyncMPClient.get_core_engine_for_request.__doc__ == "Theirs."


def test_undone_the_server_s_function_is_back(client: Any, routing: Callable[..., Routing]) -> None:
    """The very same; one that others wrapped meanwhile stays, with ours inert inside, and is named."""
    before = [vars(each)["get_core_engine_for_request"] for each in (client.DPAsyncMPClient, client.DPLBAsyncMPClient)]
    stream = Bound()
    followed = routing(lambda: stream)
    followed.wrap_loaded()
    ours = client.DPLBAsyncMPClient.get_core_engine_for_request
    client.DPLBAsyncMPClient.get_core_engine_for_request = lambda self, request: ours(self, request)
    (sentence,) = followed.undo()
    assert "DPLBAsyncMPClient.get_core_engine_for_request was replaced" in sentence
    assert vars(client.DPAsyncMPClient)["get_core_engine_for_request"] is before[0]
    assert client.DPLBAsyncMPClient([0, 1]).get_core_engine_for_request(1) == b"\1\0"
    assert stream.engines == [] and not followed.active()


def test_what_fails_in_ours_is_counted_and_what_fails_in_theirs_is_theirs(
    client: Any, routing: Callable[..., Routing]
) -> None:
    """The request goes on in both cases as without us."""
    failures: list[int] = []

    def stream() -> Any:
        raise RuntimeError("ours")

    followed = routing(stream, lambda: failures.append(1))
    followed.wrap_loaded()
    assert client.DPAsyncMPClient([0]).get_core_engine_for_request(None) == b"\0\0"
    assert failures == [1]
    with pytest.raises(IndexError):
        client.DPLBAsyncMPClient([0]).get_core_engine_for_request(-1)
    assert failures == [1]


@pytest.mark.parametrize("identity", [b"\0", "0", None, object()])
def test_an_engine_that_is_known_by_something_else_binds_nothing(
    client: Any, routing: Callable[..., Routing], identity: Any
) -> None:
    """Of another version: it is left alone."""
    stream = Bound()
    routing(lambda: stream).wrap_loaded()
    one = client.DPAsyncMPClient([0])
    one.core_engine = identity
    assert one.get_core_engine_for_request(None) is identity
    assert stream.engines == []


def test_a_server_that_is_not_what_it_was_is_left_alone(client: Any, routing: Callable[..., Routing]) -> None:
    """No such class, or no plain method of that name."""
    del client.DPAsyncMPClient
    client.DPLBAsyncMPClient.get_core_engine_for_request = property(lambda self: None)
    followed = routing(Bound)
    followed.wrap_loaded()
    assert not followed.active() and followed.undo() == []


def test_a_class_that_comes_later_is_found(client: Any) -> None:
    """A module may be half way through its import."""
    whole = client.DPAsyncMPClient
    del client.DPAsyncMPClient
    followed = Routing((Choice(MODULE, "DPAsyncMPClient", "get_core_engine_for_request", len),), Bound, pytest.fail)
    followed.wrap_loaded()
    assert not followed.active()
    client.DPAsyncMPClient = whole
    followed.wrap_loaded()
    assert followed.active() and followed.undo() == []


async def receive() -> Any:
    """No body."""
    return {"type": "http.request", "body": b"", "more_body": False}


async def send(message: Any) -> None:
    """Takes everything."""


SCOPE = {"type": "http", "method": "POST", "path": "/v1/completions", "root_path": "", "scheme": "http", "headers": []}


def test_each_request_s_tasks_find_its_own_stream(client: Any, tmp_path: Path) -> None:
    """Also tasks that it starts; one that outlives it finds nothing, and holds nothing. Nothing else does."""
    seen: list[bool] = []
    left: list[Any] = []

    async def inner(scope: Any) -> None:
        await asyncio.sleep(0)
        seen.append(middleware.current_stream() is scope["tailwatch"])

    async def later(ended: asyncio.Event) -> None:
        await ended.wait()
        left.append(middleware.current_stream())

    async def main() -> None:
        ended = asyncio.Event()
        outliving: list[asyncio.Task[None]] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            outliving.append(asyncio.create_task(later(ended)))
            await asyncio.gather(inner(scope), asyncio.create_task(inner(scope)))
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})

        watched = tailwatch.install(app, dir=tmp_path / "group", gc="off").app
        tailwatch.current()._follow_routing()
        await asyncio.gather(*(watched(dict(SCOPE), receive, send) for _ in range(3)))
        ended.set()
        await asyncio.gather(*outliving)

    try:
        asyncio.run(main())
    finally:
        tailwatch.uninstall()
    assert seen == [True] * 6
    assert left == [None] * 3


def test_nothing_is_wrapped_outside_a_group(client: Any) -> None:
    """A process without others to wait for needs no engine, and one request carries nothing."""
    original = vars(client.DPAsyncMPClient)["get_core_engine_for_request"]
    found: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        found.append(middleware.current_stream())
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    watched = tailwatch.install(app, gc="off").app
    try:
        tailwatch.current()._follow_routing()
        asyncio.run(watched(dict(SCOPE), receive, send))
    finally:
        tailwatch.uninstall()
    assert vars(client.DPAsyncMPClient)["get_core_engine_for_request"] is original
    assert found == [None]


def test_asking_for_the_choices_imports_no_encoder() -> None:
    """Every install() asks: the encoders, and what they need, stay with those that use them."""
    code = "import sys, tailwatch.integrations as s; s.choices(); sys.exit('tailwatch.sse.accelerate' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd="/").returncode == 0


def test_what_another_thread_wraps_meanwhile_is_left_to_it(client: Any, routing: Callable[..., Routing]) -> None:
    """The daemon and the start of the app may wrap at the same time: neither raises."""
    one = routing(lambda: None)

    class Taken(list[Choice]):
        """The other thread takes each of them between the look and the wrap."""

        def remove(self, choice: Choice) -> None:
            super().remove(choice)
            super().remove(choice)

    one._waiting = Taken(one._waiting)
    one.wrap_loaded()
    assert one.names == ()
    assert one._waiting == []
