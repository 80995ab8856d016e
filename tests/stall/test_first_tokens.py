"""What a request's own code did before its first token was ready is charged to that code, as the server's own log has
it: real requests to FastAPI under uvicorn. What a thread or the engine did meanwhile stays upstream."""

from __future__ import annotations

import http.client
import importlib.util
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ..support.process import Script, clean_environment
from ..support.waiting import until

SCRIPT = Path(__file__).with_name("first_tokens.py")
MS = 150
HALF = ("own_code", "cpu", "throttled", "gil", "memory")  # of a handle that runs


class Seen(NamedTuple):
    """One request: what its log has, and what it was charged to; seconds."""

    own: float
    own_cpu: float
    engine: float
    thread: float
    gap: float
    causes: list[tuple[str, float, str, str]]

    def of(self, *causes: str) -> float:
        """Charged to them."""
        return sum(part[1] for part in self.causes if part[0] in causes)


class Server:
    """first_tokens.py."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._requests = 0

    def get(self, path: str, method: str = "GET", name: str = "") -> bytes:
        """One request, to its end."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=50)
        connection.request(method, path, headers={"x-request-id": name})
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        assert answer.status == 200, body
        return body

    def complete(self, plant: str, ms: int = MS) -> str:
        """A request; its id."""
        self._requests += 1
        name = f"{plant}-{self._requests}"
        self.get(f"/v1/chat/completions?plant={plant}&ms={ms}", "POST", name)
        return name

    def seen(self, name: str) -> Seen:
        """What is known of it."""
        late: Any = json.loads(self.get("/late"))
        sums = {"own": 0.0, "engine": 0.0, "thread": 0.0}
        cpu = 0.0
        for what, began, ended, on_cpu in late["log"][name]:
            sums[what] += (ended - began) / 1e9
            cpu += on_cpu if what == "own" else 0
        first = late["first"][name]
        causes = [tuple(part) for part in first["causes"]]
        return Seen(sums["own"], cpu, sums["engine"], sums["thread"], first["gap"], causes)


HAS_UVLOOP = importlib.util.find_spec("uvloop") is not None
SERVERS = [
    pytest.param((loop, kind), id=f"{loop}-{kind}", marks=marks)
    for loop, marks in (
        ("asyncio", ()),
        ("uvloop", pytest.mark.skipif(not HAS_UVLOOP, reason="pip install uvloop")),
    )
    for kind in ("plain", "middleware")
]


@pytest.fixture(scope="module", params=SERVERS)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """On asyncio or uvloop; with a middleware that runs the app in a task of its own, or without."""
    with Script(SCRIPT, *request.param, env=clean_environment()) as process:
        made = Server(process.read())
        until(lambda: made.complete("none"))
        yield made


def settle(server: Server, plant: str, holds: Callable[[Seen], bool]) -> Seen:
    """A request of which it holds: other work of the machine takes the watchdog's turns, and splits a handle's time."""
    tried = []
    for _ in range(6):
        tried.append(server.seen(server.complete(plant)))
        if holds(tried[-1]):
            return tried[-1]
    raise AssertionError(tried)


@pytest.mark.parametrize("plant", ["handler", "task", "generator", "steps"])
def test_own_code_before_the_first_token_is_named(server: Server, plant: str) -> None:
    """In the endpoint, in a task that it starts, in the answer's generator, in several steps: measured, as long as the
    server's log has it, and by its function and line. The wait for the engine stays upstream."""

    def holds(seen: Seen) -> bool:
        largest = max((part for part in seen.causes if part[0] == "own_code"), key=lambda part: part[1], default=None)
        return (
            seen.of("own_code") == pytest.approx(seen.own_cpu, rel=0.1, abs=0.01)
            and seen.of(*HALF) >= 0.9 * seen.own
            and seen.of("upstream") >= 0.9 * seen.engine
            and largest is not None
            and "tokenize" in largest[2]
            and "first_tokens.py:" in largest[2]
            and largest[3] == "measured"
        )

    seen = settle(server, plant, holds)
    assert sum(part[1] for part in seen.causes) == pytest.approx(seen.gap, abs=1e-8)


def test_a_sleep_of_its_own_is_a_sleep(server: Server) -> None:
    """time.sleep() in the endpoint, by samples."""
    seen = settle(server, "sleep", lambda seen: seen.of("sleep") == pytest.approx(seen.own, rel=0.1))
    assert seen.of("upstream") < seen.engine + 0.5 * seen.own
    assert sum(part[1] for part in seen.causes) == pytest.approx(seen.gap, abs=1e-8)


def test_what_a_thread_does_for_it_stays_upstream(server: Server) -> None:
    """asyncio.to_thread(): no handle of the loop ran meanwhile."""
    seen = settle(server, "thread", lambda seen: seen.of("upstream") >= 0.9 * (seen.thread + seen.engine))
    assert seen.of("own_code") < 0.2 * seen.thread


def test_the_code_of_another_request_is_not_its_own(server: Server) -> None:
    """One tokenizes while the other waits for a thread."""

    def both() -> tuple[Seen, Seen]:
        names: list[str] = []
        waiting = threading.Thread(target=lambda: names.append(server.complete("thread", 4 * MS)))
        waiting.start()
        names.insert(0, server.complete("handler"))
        waiting.join()
        first, second = (server.seen(name) for name in names)
        return first, second

    def apart() -> bool:
        tokenized, waited = both()
        own = tokenized.of("own_code") == pytest.approx(tokenized.own_cpu, rel=0.1, abs=0.01)
        return own and waited.of("own_code") < 0.1 * tokenized.own_cpu

    until(apart)


def test_the_doctor_ranks_what_came_from_upstream_beside_the_rest(server: Server) -> None:
    """By the delay that each explains: the wait for a thread is longer than the tokenizer here. Of a handler that got
    no CPU there is no sample: the next one is named."""

    def both() -> bool:
        for plant, ms in (("thread", 8 * MS), ("handler", 2 * MS)):
            server.complete(plant, ms)
        found: Any = json.loads(server.get("/findings"))
        lateness = [seconds for *_, seconds in found if seconds > 0]
        assert lateness == sorted(lateness, reverse=True)
        ranked = [(rule, title) for rule, title, seconds in found if seconds > 0]
        upstream = any(rule == "upstream" and "they were not ready" in title for rule, title in ranked)
        own = any(rule == "delay-cause" and "own code" in title and "tokenize" in title for rule, title in ranked)
        return upstream and own

    until(both)
