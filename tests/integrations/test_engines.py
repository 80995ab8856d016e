"""One API process and several engines in a group: a stream is charged for the engine that serves it, for no other."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import tailwatch
from tailwatch import _hot

from ..support.process import Python

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("no_collections")]

MS = 1_000_000
PAUSE_MS = 40

ENGINE = """
import gc, json, os, sys, time
import tailwatch
gc.disable()  # a collection would be charged beside the pause
watch = tailwatch.install(dir=sys.argv[1], gc="observe", **json.loads(sys.argv[2]))
children = []

def pause(seconds):
    before = time.monotonic_ns()
    watch.core.policy_begin()
    time.sleep(seconds)
    watch.core.policy_end()
    return [before, time.monotonic_ns()]

print(json.dumps(watch.membership.joined), flush=True)
for line in sys.stdin:
    print(json.dumps(pause(float(line))), flush=True)
"""


class Engine(Python):
    """Another process of the group, which stands still on command."""

    def __init__(self, directory: Path, **options: Any) -> None:
        super().__init__(ENGINE, directory, json.dumps(options))

    def pause(self, seconds: float = PAUSE_MS / 1e3) -> int:
        """Stands still. Returns how long, in ns, as seen from outside."""
        before, after = self.ask(seconds)
        return int(after - before)


@pytest.fixture
def start(directory: Path) -> Iterator[Callable[..., Engine]]:
    """Starts processes of the group; all are gone after the test."""
    started: list[Engine] = []

    def begin(role: str = "engine", **options: Any) -> Engine:
        started.append(Engine(directory, role=role, **options))
        assert started[-1].read() is True
        return started[-1]

    yield begin
    for engine in started:
        engine.kill()


async def nothing(scope: Any, receive: Any, send: Any) -> None:
    """Answers nothing."""


def install(directory: Path, **options: Any) -> tailwatch.Watch:
    watch = tailwatch.install(nothing, dir=directory, gc="observe", **options)
    watch.membership.renew()
    return watch


def charged(watch: tailwatch.Watch) -> dict[str, float]:
    """Stream seconds by source, of all causes and phases; sources that nothing was charged to are left out."""
    sums = {
        source: sum(sum(causes.values()) for causes in phases.values())
        for source, phases in watch.snapshot().overlap_by_source.items()
    }
    return {source: seconds for source, seconds in sums.items() if seconds > 0}


def gap(streams: list[_hot.Stream], during: Callable[[], Any]) -> tuple[Any, list[int]]:
    """One token of each stream before, and one after. What during() returns, and what each stream was charged, ns."""
    for stream in streams:
        stream.token()
    before = [stream.overlap_ns for stream in streams]
    result = during()
    for stream in streams:
        stream.token()
    return result, [stream.overlap_ns - old for stream, old in zip(streams, before, strict=True)]


def test_a_pause_is_charged_to_the_streams_of_its_engine(directory: Path, start: Callable[..., Engine]) -> None:
    """Bound to it: all of it. Bound to the other: nothing. Bound to none: once, as unbound."""
    paused, other = start(engine=0), start(engine="prefill-1")
    watch = install(directory)
    streams = [watch.core.stream("m", "r", None, "", "") for _ in range(3)]
    streams[0].bind(0)
    streams[1].bind("prefill-1")
    length, (mine, others, unbound) = gap(streams, paused.pause)
    assert PAUSE_MS * MS <= mine <= length
    assert others == 0
    assert unbound == mine
    assert charged(watch) == pytest.approx({"engine": mine / 1e9, "unbound": unbound / 1e9})
    _, (mine, others, _) = gap(streams, other.pause)
    assert mine == 0 < others


def test_an_unbound_stream_is_charged_for_one_engine_never_for_the_sum(
    directory: Path, start: Callable[..., Engine]
) -> None:
    """Both engines stand still, one after the other: the longer pause counts, as unbound."""
    engines = start(), start()
    watch = install(directory)
    with tailwatch.stream() as stream:
        lengths, (overlap,) = gap([stream], lambda: (engines[0].pause(0.02), engines[1].pause(0.06)))
    assert 60 * MS <= overlap <= max(lengths)
    assert list(charged(watch)) == ["unbound"]


def test_ranks_of_one_engine_are_a_unit(directory: Path, start: Callable[..., Engine]) -> None:
    """A stream bound to it waits for each of its ranks, and for those of no other."""
    start(engine=0), start(engine=1)
    rank, other_rank = start("worker", engine=1), start("worker", engine=0)
    watch = install(directory)
    with tailwatch.stream(engine=1) as stream:
        _, (overlap,) = gap([stream], rank.pause)
        assert overlap >= PAUSE_MS * MS
        _, (overlap,) = gap([stream], other_rank.pause)
        assert overlap == 0
    assert list(charged(watch)) == ["worker"]


def test_a_timeline_draws_arrows_from_the_pauses_of_its_engine(
    directory: Path, start: Callable[..., Engine], tmp_path: Path
) -> None:
    """Both engines and this process stand still: no arrow leads from the other engine to a bound stream's token, one
    from each to an unbound one's."""
    engines = start(engine=0, trace_events=1024), start(engine=1, trace_events=1024)
    watch = install(directory, trace_events=1024)

    def pause() -> None:
        for engine in engines:
            engine.pause()
        watch.core.policy_begin()
        time.sleep(PAUSE_MS / 1e3)
        watch.core.policy_end()

    for bound, arrows in ((1, 2), (None, 3)):
        since = time.monotonic_ns()
        with tailwatch.stream(engine=bound) as stream:
            gap([stream], pause)
        assert watch.tracing.dump(str(tmp_path / "timeline.pftrace"), since_ns=since).arrows == arrows


def test_the_only_engine_is_beyond_doubt(directory: Path, start: Callable[..., Engine]) -> None:
    """An engine and a worker without an id: both are charged to streams without an engine, under their roles."""
    engine, worker, detokenizer = start(), start("worker"), start("detokenizer")
    watch = install(directory)
    with tailwatch.stream() as stream:
        gap([stream], lambda: [each.pause() for each in (engine, worker, detokenizer)])
    assert set(charged(watch)) == {"engine", "worker", "detokenizer"}


def test_the_detokenizer_of_several_engines_delays_every_stream(directory: Path, start: Callable[..., Engine]) -> None:
    """Bound or not."""
    start(engine=0), start(engine=1)
    detokenizer = start("detokenizer")
    watch = install(directory)
    streams = [watch.core.stream("m", "r", None, "", "") for _ in range(2)]
    streams[0].bind(0)
    length, overlaps = gap(streams, detokenizer.pause)
    assert all(PAUSE_MS * MS <= overlap <= length for overlap in overlaps)
    assert list(charged(watch)) == ["detokenizer"]


def test_workers_without_an_engine_are_a_doubt(directory: Path, start: Callable[..., Engine]) -> None:
    """Two processes that are not distinguished: what one does is charged as unbound, to no engine by name."""
    start("worker")
    worker = start("worker")
    watch = install(directory)
    with tailwatch.stream() as stream:
        gap([stream], worker.pause)
    assert list(charged(watch)) == ["unbound"]


def test_an_engine_is_bound_to_in_the_middle_of_a_stream(directory: Path, start: Callable[..., Engine]) -> None:
    """What was charged before stays; the gaps that end later are the engine's. None: not known again."""
    engine, _ = start(engine=0), start(engine=1)
    watch = install(directory)
    with tailwatch.stream() as stream:
        gap([stream], engine.pause)
        assert set(charged(watch)) == {"unbound"}
        stream.bind(1)
        assert gap([stream], engine.pause)[1] == [0]
        stream.bind("0")
        gap([stream], engine.pause)
        assert set(charged(watch)) == {"unbound", "engine"}
        stream.bind(None)
        before = charged(watch)
        gap([stream], engine.pause)
        after = charged(watch)
        assert after["unbound"] > before["unbound"] and after["engine"] == before["engine"]


def test_parts_of_a_request_on_several_engines_leave_it_unbound(directory: Path, start: Callable[..., Engine]) -> None:
    """Parts that all go to one engine bind it; a part that goes to another ends that, for good."""
    engine, _ = start(engine=0), start(engine=1)
    watch = install(directory)
    with tailwatch.stream() as stream:
        for part in (0, 0):
            stream.bind(part, part=True)
        gap([stream], engine.pause)
        assert set(charged(watch)) == {"engine"}
        for part in (1, 0):
            stream.bind(part, part=True)
        gap([stream], engine.pause)
        assert set(charged(watch)) == {"engine", "unbound"}


def test_an_api_process_may_serve_one_engine_only(directory: Path, start: Callable[..., Engine]) -> None:
    """engine= of the process that has the app binds all its streams, and no header of a client changes that."""
    mine, other = start(engine=0), start(engine=1)
    watch = install(directory, engine=0)
    assert through(watch, other, {"x-tailwatch-engine": "1"}) == {}
    assert set(through(watch, mine, {"x-tailwatch-engine": "1"})) == {"engine"}


def test_ranks_that_step_together_can_be_named_one_engine(directory: Path, start: Callable[..., Engine]) -> None:
    """TAILWATCH_ENGINE=0 for a whole server: each pause counts for each stream, whichever rank the server chose."""
    first, second = start("engine-0", engine=0), start("engine-1", engine=0)
    watch = install(directory, engine=0)
    with tailwatch.stream() as stream:
        stream.bind(1, part=True)
        _, (overlap,) = gap([stream], lambda: (first.pause(), second.pause()))
    assert overlap >= 2 * PAUSE_MS * MS
    assert set(charged(watch)) == {"engine-0", "engine-1"}


def through(
    watch: tailwatch.Watch, engine: Engine, headers: dict[str, str], first: Callable[[], object] = bool
) -> dict[str, float]:
    """One request through the app's layer with a pause of an engine in it. What all streams were charged by now."""
    frame = b'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n'

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        if message.get("body") == frame:
            engine.pause()

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}
        first()
        await send(start)
        for body in (frame, frame.replace(b"x", b"y"), b""):
            await send({"type": "http.response.body", "body": body, "more_body": bool(body)})

    scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "root_path": "", "scheme": "http"}
    lines = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    watched = watch.attach(answer, wrap=True)
    asyncio.run(watched({**scope, "headers": lines}, receive, send))
    return charged(watch)


@pytest.mark.parametrize("header", ["x-data-parallel-rank", "x-tailwatch-engine"])
def test_a_header_names_the_engine(directory: Path, start: Callable[..., Engine], header: str) -> None:
    """What vLLM and SGLang route by, or what a router in front sets."""
    mine, other = start(engine=0), start(engine=1)
    watch = install(directory)
    assert through(watch, other, {header: "0"}) == {}
    assert set(through(watch, mine, {header: "0"})) == {"engine"}


@pytest.mark.parametrize("value", ["2", "-1", "", "1 ", "\xff" * 300, "9" * 40, "engine"])
def test_a_header_that_names_no_engine_of_the_group_is_passed_over(
    directory: Path, start: Callable[..., Engine], value: str
) -> None:
    """A client can choose among the engines there are, and nothing else."""
    engine, _ = start(engine=0), start(engine=1)
    watch = install(directory)
    assert set(through(watch, engine, {"x-tailwatch-engine": value, "x-data-parallel-rank": value})) == {"unbound"}


CHILD = """
import subprocess, sys
code, directory = sys.argv[1:]
import tailwatch
watch = tailwatch.install(dir=directory, gc="observe", role="engine", engine=0)
sys.exit(subprocess.call([sys.executable, "-c", code, directory, '{"role": "worker"}']))
"""


def test_workers_belong_to_the_engine_that_started_them(directory: Path, start: Callable[..., Engine]) -> None:
    """As in vLLM with data parallel engines of a dense model, whose workers do not publish which they are of."""
    start(engine=1)
    with Python(CHILD, ENGINE, directory) as parent:
        assert parent.read() is True
        watch = install(directory)
        with tailwatch.stream(engine=0) as stream:
            stream.token()
            before, after = parent.ask(PAUSE_MS / 1e3)
            stream.token()
            assert PAUSE_MS * MS <= stream.overlap_ns <= after - before
        assert list(charged(watch)) == ["worker"]
        parent.finish()
        assert parent.popen.returncode == 0


def test_the_engine_that_vllm_chooses_binds_the_stream(
    directory: Path, start: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where its client is loaded: chosen inside the request, seen there, and charged. No header, no option."""
    module: Any = ModuleType("vllm.v1.engine.core_client")

    class DPLBAsyncMPClient:
        def get_core_engine_for_request(self, request: int) -> bytes:
            return request.to_bytes(2, "little")

    module.DPLBAsyncMPClient = DPLBAsyncMPClient
    monkeypatch.setitem(sys.modules, module.__name__, module)
    mine, other = start(engine=0), start(engine=1)
    watch = install(directory)
    watch._follow_routing()
    choose = DPLBAsyncMPClient().get_core_engine_for_request
    assert through(watch, other, {}, lambda: choose(0)) == {}
    assert set(through(watch, mine, {}, lambda: choose(0))) == {"engine"}


NAMED = """
import multiprocessing, os, sys
code, directory, name = sys.argv[1:]
stdin = os.dup(0)  # a child of multiprocessing has none
def run():
    sys.stdin = os.fdopen(stdin)
    sys.argv[1:] = [directory, '{"role": "engine"}']
    exec(code, {})
child = multiprocessing.get_context("fork").Process(target=run, name=name)
child.start()
os.close(stdin)
child.join()
"""


def test_engines_that_a_server_numbers_need_no_option(directory: Path, start: Callable[..., Engine]) -> None:
    """What vLLM calls EngineCore_DP1 is engine 1: a stream of rank 1 is charged for it, one of rank 0 is not."""
    start(engine=0)
    with Python(NAMED, ENGINE, directory, "EngineCore_DP1") as parent:
        assert parent.read() is True
        watch = install(directory)
        streams = [watch.core.stream("m", "r", None, "", "") for _ in range(2)]
        for rank, stream in enumerate(streams):
            stream.bind(rank)
            stream.token()
        parent.ask(PAUSE_MS / 1e3)
        for stream in streams:
            stream.token()
        assert streams[0].overlap_ns == 0
        assert streams[1].overlap_ns >= PAUSE_MS * MS
        assert list(charged(watch)) == ["engine"]
        parent.finish()
        assert parent.popen.returncode == 0


def test_a_websocket_s_turns_are_requests_of_their_own(directory: Path, start: Callable[..., Engine]) -> None:
    """What bound the parts of one turn does not bind the next; what the app bound holds."""
    engine, _ = start(engine=0), start(engine=1)
    watch = install(directory, routes=["/chat"])
    core = watch.core
    now = _hot.now()
    scope = {"type": "websocket", "path": "/chat", "headers": []}
    sender = core.request(scope, lambda message: None, True, now, now, 0, 1, None, True)
    stream = sender.stream

    def turn() -> dict[str, float]:
        before = charged(watch)
        gap([stream], engine.pause)
        after = charged(watch)
        return {
            source: after[source] - before.get(source, 0) for source in after if after[source] > before.get(source, 0)
        }

    sender.turn()
    stream.bind(1, part=True)
    assert turn() == {}
    sender.turn()
    assert set(turn()) == {"unbound"}
    stream.bind(0)
    sender.turn()
    assert set(turn()) == {"engine"}
