"""Tokens on their way from SGLang's scheduler to its tokenizer manager: a fake of the latter around real streams, and
an engine process of its group, whose records of what it sent are what messages are joined by.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tailwatch
from tailwatch.integrations import sglang_outputs
from tailwatch.integrations.output_hook import OutputHook

from ..support.process import Python
from .test_engine_steps import loaded
from .test_sglang_steps import AGES, Req, SenderWrapper, followed

pytestmark = pytest.mark.integration
MODULE = "sglang.srt.managers.tokenizer_manager"

ENGINE = """
import json, sys, time
from types import SimpleNamespace
import tailwatch
from tailwatch import _hot
from tailwatch.integrations.step_shapes import Batch, Outputs

watch = tailwatch.install(role="engine", gc="off", dir=sys.argv[1])
steps = _hot.SchedulerSteps(watch.core, SimpleNamespace(running=[1], waiting=[]), "m")
schedule = steps.around("schedule", lambda: object(), lambda *call: object())
send = steps.around("send", lambda request, made: None, lambda args, kwargs, result: steps.end_update(*args))

def process(seconds, request, made):
    time.sleep(seconds)
    send(request, made)

read = lambda *call: (Batch(1, 1, frozenset()), None, {0: Outputs(list)})
process = steps.around("process_result", process, read)
for line in sys.stdin:
    schedule()
    process(*json.loads(line))
    print("null", flush=True)
"""


class TokenizerManager:
    """Its two methods, with the arguments of 0.5.23."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    async def _send_one_request(self, tokenized_obj: Any) -> str:
        self.calls.append(tokenized_obj.rid)
        return "sent"

    async def _handle_batch_output(self, recv_obj: Any) -> str:
        self.calls.append("handled")
        return "handled"


def seconds_of(late: tailwatch.SlowGap) -> dict[str, float]:
    """By cause, of whatever name."""
    found: dict[str, float] = defaultdict(float)
    for each in late.causes:
        found[each.cause] += each.seconds
    return found


def message(made: dict[str, int], *ended: str) -> Any:
    """A BatchStrOutput."""
    reasons = [{"type": "length"} if rid in ended else None for rid in made]
    return SimpleNamespace(rids=list(made), finished_reasons=reasons, completion_tokens=list(made.values()))


class Bench:
    """A hook around a fresh class, in a process with one stream, and an engine beside it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
        owner: Any = type("TokenizerManager", (), dict(vars(TokenizerManager)))
        loaded(monkeypatch, MODULE, TokenizerManager=owner)
        self.watch = tailwatch.install(gc="off", role="api", dir=str(directory), stalls="clock")
        self.failures: list[None] = []
        self.notes: list[str] = []
        self.stream: Any = self.watch.core.stream("m", "/v1", None, "", "")
        self.hook = OutputHook(
            sglang_outputs.OUTPUTS,
            self.watch.core,
            lambda: self.stream,
            lambda: self.failures.append(None),
            self.notes.append,
        )
        self.hook.wrap_loaded()
        self.manager = owner()

    def handle(self, received: Any) -> Any:
        return asyncio.run(self.manager._handle_batch_output(received))

    def send(self, request: Any) -> Any:
        return asyncio.run(self.manager._send_one_request(request))


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Bench]:
    yield Bench(monkeypatch, tmp_path / "group")
    tailwatch.uninstall()


@pytest.fixture
def engine(bench: Bench, tmp_path: Path) -> Iterator[Python]:
    with Python(ENGINE, tmp_path / "group") as process:
        process.ask('[0, "other", 1]')

        bench.watch.core.renew()
        assert len(bench.watch.core.members()) == 1
        yield process  # type: ignore[misc]


def test_a_late_token_is_the_engine_s_where_its_step_was_long(bench: Bench, engine: Python) -> None:
    """The message has no stamp, but how many tokens its first request has: the record of the step that sent it too."""
    assert bench.send(SimpleNamespace(rid="r")) == "sent"
    for made in range(1, 20):
        engine.ask(f'[{0.3 if made == 15 else 0.005}, "r", {made}]')
        assert bench.handle(message({"r": made, "another": 3})) == "handled"
        bench.stream.token()
    [late] = [each for each in tailwatch.why() if each.token == 15]
    by_cause = seconds_of(late)
    assert by_cause["device"] > 0.2
    assert "upstream" not in by_cause
    assert sum(by_cause.values()) == pytest.approx(late.gap - late.typical, abs=1e-6)
    assert bench.failures == []


@pytest.mark.parametrize("waiting", [60, 300])
def test_messages_that_wait_are_joined_to_the_steps_that_sent_them(bench: Bench, engine: Python, waiting: int) -> None:
    """Not to the latest: what the process was late by is not the engine's."""
    bench.send(SimpleNamespace(rid="r"))
    for made in range(1, 9):
        engine.ask(f'[0.005, "r", {made}]')
        bench.handle(message({"r": made}))
        bench.stream.token()
    for made in range(9, 9 + waiting):
        engine.ask(f'[0.005, "r", {made}]')
    bench.handle(message({"aborted": 1}))  # no step sent it, however far it is looked for
    for made in range(9, 9 + waiting):
        bench.handle(message({"r": made}))
        bench.stream.token()
    [late] = [each for each in tailwatch.why() if each.token == 9]
    by_cause = seconds_of(late)
    assert late.gap > 0.3
    assert by_cause["device"] < late.gap / 2
    assert by_cause["transport"] > late.gap / 3


@pytest.mark.parametrize("first", ["r", "another"])
def test_a_message_that_no_step_sent_gives_no_stamp(bench: Bench, engine: Python, first: str) -> None:
    """An abort's, or one of a scheduler that is not followed: the wait is upstream, not guessed."""
    bench.send(SimpleNamespace(rid="r"))
    for made in range(1, 10):
        engine.ask(f'[{0.2 if made == 8 else 0.005}, "r", {made}]')
        bench.handle(message({first: made + 1000} | ({} if first == "r" else {"r": made})))
        bench.stream.token()
    assert not {"device", "transport"} & {each.cause for late in tailwatch.why() for each in late.causes}
    assert bench.failures == []


def test_what_is_strange_is_the_server_s(bench: Bench) -> None:
    """Embeddings, messages of another shape, a request without an id."""
    assert bench.send(SimpleNamespace(rid="r")) == "sent"
    for strange in (
        SimpleNamespace(rids=["r"], finished_reasons=[None]),
        SimpleNamespace(rids=["r"], finished_reasons=[], completion_tokens=[1]),
        SimpleNamespace(rids=[], finished_reasons=[], completion_tokens=[]),
        SimpleNamespace(rids=["r"], finished_reasons=[None], completion_tokens=["one"]),
        SimpleNamespace(rids=[7], finished_reasons=[None], completion_tokens=[1]),
    ):
        assert bench.handle(strange) == "handled"
    assert bench.failures == []
    assert bench.handle(SimpleNamespace(rids=None, finished_reasons=None, completion_tokens=[1])) == "handled"
    assert bench.handle(SimpleNamespace(rids=["r"], finished_reasons=[None], completion_tokens=[1 << 99])) == "handled"
    assert len(bench.failures) == 2
    bench.stream = None
    assert bench.send(SimpleNamespace(rid=None)) == "sent"


class Raises:
    """A message or request of another shape: what it is asked for raises."""

    def __init__(self, *has: str) -> None:
        self.has = has

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in self.has:
            return SimpleNamespace()
        raise RuntimeError(name)


STRANGE = [
    SimpleNamespace(completion_tokens=[1]),
    SimpleNamespace(completion_tokens=[1], rids=["r"]),
    Raises(),
    Raises("completion_tokens"),
    Raises("completion_tokens", "rids"),
]


@pytest.mark.parametrize(
    "strange", STRANGE, ids=["no rids", "no reasons", "tokens raise", "rids raise", "reasons raise"]
)
def test_what_a_message_lacks_is_raised_nowhere(bench: Bench, strange: Any) -> None:
    """The server goes on, and each is counted as a failure of ours; none once the hook is undone."""
    bench.send(SimpleNamespace(rid="r"))
    handle = bench.manager._handle_batch_output  # as a caller may keep it
    assert asyncio.run(handle(strange)) == "handled"
    assert len(bench.failures) == 1
    assert bench.hook.undo() == []
    assert asyncio.run(handle(strange)) == "handled"
    assert len(bench.failures) == 1


def test_a_request_whose_id_raises_is_sent(bench: Bench) -> None:
    """None reads it once the hook is undone but the server."""
    send = bench.manager._send_one_request  # as a caller may keep it
    reads: list[None] = []

    class Request:
        @property
        def rid(self) -> str:
            reads.append(None)
            if len(reads) == 1:
                raise RuntimeError("rid")
            return "r"  # to the server

    assert asyncio.run(send(Request())) == "sent"
    assert (len(reads), len(bench.failures)) == (2, 1)
    assert bench.hook.undo() == []
    assert asyncio.run(send(Request())) == "sent"
    assert (len(reads), len(bench.failures)) == (3, 1)


def test_a_request_is_let_go_with_its_last_message(bench: Bench) -> None:
    """Whether its step was found or not."""
    bench.send(SimpleNamespace(rid="r"))
    bench.handle(message({"r": 1}))
    assert bench.hook.expects("r")
    bench.handle(message({"r": 2}, "r"))
    assert not bench.hook.expects("r")


@pytest.mark.parametrize("age", AGES)
def test_a_step_is_recorded_before_its_message_leaves(monkeypatch: pytest.MonkeyPatch, age: str) -> None:
    """Once: what comes after it in the same call is the next step's. 0.4.10 has no method of its own that sends."""
    scheduler, steps, watch = followed(monkeypatch, age)
    try:
        recorded: list[int] = []
        scheduler.sender.look = lambda: recorded.append(len(steps()))
        scheduler.turn(Req("a", 5, 9), Req("b", 5, 9))
        for _ in range(3):
            scheduler.turn()
        assert scheduler.sender.sent == [(["a", "b"], made) for made in range(1, 5)]
        assert recorded == ([0, 1, 2, 3] if age == "0.4.10" else [1, 2, 3, 4])
        assert [(s.prefill_tokens, s.decode_tokens) for s in steps()] == [(10, 0), (0, 2), (0, 2), (0, 2)]
        assert len([each for each in watch.notes if "send_output" in each]) == (age == "0.4.10")
    finally:
        tailwatch.uninstall()


def test_what_leaves_outside_of_a_step_ends_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """An abort of a request that waits."""
    scheduler, steps, _ = followed(monkeypatch, "0.5.23")
    try:
        scheduler.turn(Req("a", 5, 9))
        scheduler.stream_output(scheduler.running_batch.reqs or [])
        assert len(steps()) == 1
        scheduler.turn()
        assert len(steps()) == 2
    finally:
        tailwatch.uninstall()


def test_undo_leaves_no_trace_on_the_sender(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of its class, or of it."""
    scheduler, _, _ = followed(monkeypatch, "0.5.23")
    assert vars(type(scheduler.sender))["send_output"] is not vars(SenderWrapper)["send_output"]
    tailwatch.uninstall()
    assert vars(type(scheduler.sender))["send_output"] is vars(SenderWrapper)["send_output"]
