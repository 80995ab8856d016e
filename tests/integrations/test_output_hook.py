"""Tokens on their way through the API process: a fake of vLLM's OutputProcessor around real streams."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import tailwatch
from tailwatch.diagnose.why import late_tokens
from tailwatch.integrations import vllm_routing
from tailwatch.integrations.output_hook import OutputHook

from .test_engine_steps import loaded

PATHS = vllm_routing.OUTPUTS
LATE_SECONDS = 1


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    yield
    tailwatch.uninstall()


class OutputProcessor:
    """Its two methods, with the arguments of 0.32."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def add_request(self, request: Any, prompt: Any, parent_req: Any = None, request_index: int = 0) -> None:
        self.seen.append(request)

    def process_outputs(
        self, engine_core_outputs: list[Any], engine_core_timestamp: float | None = None, iteration_stats: Any = None
    ) -> str:
        return "processed"


def output(request_id: str, finish_reason: Any = None) -> Any:
    return SimpleNamespace(request_id=request_id, finish_reason=finish_reason)


class Bench:
    """A hook around a fresh class, in a process with one stream."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: type | None = None) -> None:
        self.Processor: Any = owner or type("OutputProcessor", (), dict(vars(OutputProcessor)))
        loaded(monkeypatch, "vllm.v1.engine.output_processor", OutputProcessor=self.Processor)
        self.watch = tailwatch.install(gc="off", role="api")
        self.failures = 0
        self.notes: list[str] = []
        self.serving: Any = self.watch.core.stream("m", "/v1", None, "", "")
        self.calls: list[tuple[Any, ...]] = []
        core = SimpleNamespace(expect=self.watch.core.expect, received=self._received)
        self.hook = OutputHook(PATHS, core, lambda: self.serving, self._failed, self.notes.append)  # type: ignore[arg-type]
        self.hook.wrap_loaded()

    def _failed(self) -> None:
        self.failures += 1

    def _received(self, streams: Any, outputs: Any, key: float, came: int) -> Any:
        self.calls.append(([each.request_id for each in outputs if each.request_id in streams], key, came))
        return self.watch.core.received(streams, outputs, key, came)


def test_outputs_reach_the_stream_of_the_task_that_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the id that the engine has, until the last one."""
    bench = Bench(monkeypatch)
    processor = bench.Processor()
    processor.add_request(SimpleNamespace(request_id="chatcmpl-1"), "prompt", None, 0)
    bench.serving = None
    processor.add_request(SimpleNamespace(request_id="another"), "prompt")
    came = time.monotonic_ns()
    for end in (None, None, "length", None):
        outputs = [output("chatcmpl-1", end), output("another")]
        assert processor.process_outputs(outputs, time.monotonic(), None) == "processed"
    assert [ids for ids, *_ in bench.calls] == [["chatcmpl-1"]] * 3
    assert all(came <= at <= time.monotonic_ns() for *_, at in bench.calls)
    assert len(processor.seen) == 2
    assert bench.failures == 0


def test_messages_wait_for_as_many_tokens_as_the_request_has_them_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's own state of it; what is none is not known."""
    bench = Bench(monkeypatch)
    processor = bench.Processor()
    expected: list[Any] = []
    real = bench.watch.core.expect
    bench.hook._core.expect = lambda *known: (expected.append(known[1:]), real(*known))  # type: ignore[method-assign]
    delta, whole = (SimpleNamespace(name=name) for name in ("DELTA", "CUMULATIVE"))
    intervals = {"one": 1, "four": 4, "text": "x", "negative": -1, "large": 2**40}
    processor.request_states = {
        **{name: SimpleNamespace(stream_interval=n, output_kind=delta) for name, n in intervals.items()},
        "whole": SimpleNamespace(stream_interval=4, output_kind=whole),  # each token is sent
        "old": SimpleNamespace(),
    }
    for name in (*processor.request_states, "gone"):
        processor.add_request(SimpleNamespace(request_id=name), "")
    assert {name: n for name, n in expected if n} == {"one": 1, "four": 4}
    assert len(expected) == 8 and bench.failures == 0


def test_a_message_ends_with_the_token_that_it_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three, of which one step made two: it is that step's way that counts, not the next one's, and what the request's
    own code takes until it is sent."""
    bench = Bench(monkeypatch)
    bench.serving = bench.watch.core.stream("m", "/v1", None, "its client's id", "")
    processor = bench.Processor()
    state = SimpleNamespace(stream_interval=3, output_kind=SimpleNamespace(name="DELTA"))
    processor.request_states = {"a": state}
    processor.add_request(SimpleNamespace(request_id="a"), "")

    def step(tokens: int, way: float = 0.0) -> None:
        made = SimpleNamespace(request_id="a", finish_reason=None, new_token_ids=[1] * tokens)
        processor.process_outputs([made], time.monotonic() - way * LATE_SECONDS)

    for _ in range(40):
        step(1)
        bench.serving.token()
    for tokens, way in ((1, 3), (2, 2), (1, 0)):
        step(tokens, way)
    bench.serving.token(4, at=time.monotonic_ns() + 4 * LATE_SECONDS * 10**9)
    causes = {cause.cause: cause.seconds for cause in late_tokens(tailwatch.snapshot())[0].causes}
    assert causes["transport"] / causes["own_code"] == pytest.approx(2 / 4, rel=0.2)
    assert bench.failures == 0


def test_several_ids_may_be_one_stream_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """n=2 is two requests of the engine; each ends by itself."""
    bench = Bench(monkeypatch)
    processor = bench.Processor()
    for name in ("0_chatcmpl", "1_chatcmpl"):
        processor.add_request(request=SimpleNamespace(request_id=name), prompt="")
    processor.process_outputs([output("0_chatcmpl", "stop"), output("1_chatcmpl")], engine_core_timestamp=1.0)
    processor.process_outputs([output("1_chatcmpl")], engine_core_timestamp=2.0)
    assert [ids for ids, *_ in bench.calls] == [["0_chatcmpl", "1_chatcmpl"], ["1_chatcmpl"]]


def test_streams_that_ended_without_an_output_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Aborted requests do not add up."""
    bench = Bench(monkeypatch)
    processor = bench.Processor()
    for i in range(2000):
        bench.serving = bench.watch.core.stream("m", "/v1", None, "", "")
        processor.add_request(SimpleNamespace(request_id=f"aborted-{i}"), "")
        bench.serving.abort()
    assert len(bench.hook._streams) < 600


def test_what_is_strange_is_counted_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs without ids, stamps that are none: the server's result is the server's."""
    bench = Bench(monkeypatch)
    processor = bench.Processor()
    processor.add_request(SimpleNamespace(), "")
    assert bench.failures == 1
    processor.add_request(SimpleNamespace(request_id="r"), "")
    assert processor.process_outputs([SimpleNamespace()], 1.0) == "processed"
    assert processor.process_outputs([output("r")], "yesterday") == "processed"
    assert processor.process_outputs([output("r")], None) == "processed"
    assert processor.process_outputs([output("r")], float("nan")) == "processed"
    assert bench.failures == 3


def test_a_request_whose_id_raises_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is registered by then: the server's result is the server's."""
    bench = Bench(monkeypatch)

    class Request:
        @property
        def request_id(self) -> str:
            raise RuntimeError("request_id")

    add_request = bench.Processor().add_request  # as a caller may keep it
    add_request(Request(), "")
    assert bench.failures == 1
    bench.hook.undo()
    add_request(Request(), "")
    assert bench.failures == 1


def test_undo_puts_both_methods_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """And reports what it cannot put back."""
    bench = Bench(monkeypatch)
    owner = f"{PATHS[0].module}.OutputProcessor"
    assert bench.hook.names == (f"{owner}.add_request", f"{owner}.process_outputs")
    ours = vars(bench.Processor)["process_outputs"]
    bench.Processor.process_outputs = lambda *args: ours(*args)
    [sentence] = bench.hook.undo()
    assert "process_outputs was replaced by other code" in sentence
    assert vars(bench.Processor)["add_request"] is vars(OutputProcessor)["add_request"]
    assert bench.Processor().process_outputs([], 1.0) == "processed"


def test_a_class_without_them_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another version than is known: nothing is wrapped, and the doctor gives the name."""
    bench = Bench(monkeypatch, type("OutputProcessor", (), {"process_outputs": OutputProcessor.process_outputs}))
    assert not bench.hook.active()
    [note] = bench.notes
    assert "has no OutputProcessor.add_request" in note
