"""Tokens on their way through the API process: a fake of vLLM's OutputProcessor around real streams."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import tailwatch
from tailwatch.integrations import vllm_routing
from tailwatch.integrations.output_hook import OutputHook

from .test_engine_steps import loaded

PATHS = vllm_routing.OUTPUTS


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
