"""Steps counted around the engines' own methods: fakes with the attributes that vLLM 0.33.0 and SGLang 0.5.23 have."""

from __future__ import annotations

import importlib.util
import sys
from collections import deque
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import tailwatch
from tailwatch import integrations, snapshots
from tailwatch.integrations.engine_steps import EngineStep


def loaded(monkeypatch: pytest.MonkeyPatch, name: str, **members: Any) -> ModuleType:
    """A module that was imported."""
    module = ModuleType(name)
    module.__spec__ = importlib.util.spec_from_loader(name, None)
    vars(module).update(members)
    monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, name.partition(".")[0], ModuleType(name.partition(".")[0]))
    return module


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    yield
    tailwatch.uninstall()


def by_name() -> dict[str, snapshots.Step]:
    return {step.name: step for step in tailwatch.snapshot().steps}


# ---- vLLM: vllm/v1/engine/core.py ----


class VllmScheduler:
    """Requests, each a number of tokens still to make."""

    def __init__(self, *requests: int) -> None:
        self.running: list[int] = []
        self.waiting = list(requests)

    def get_num_unfinished_requests(self) -> int:
        return len(self.running) + len(self.waiting)

    def run(self) -> tuple[dict[int, Any], bool]:
        self.running += self.waiting
        self.waiting = []
        outputs = SimpleNamespace(outputs=list(self.running))
        executed = bool(self.running)
        self.running = [left - 1 for left in self.running if left > 1]
        return ({0: outputs} if executed else {}), executed


def vllm_engine(monkeypatch: pytest.MonkeyPatch) -> Any:
    class EngineCore:
        def __init__(self, *requests: int, queue: bool = False) -> None:
            self.scheduler: Any = VllmScheduler(*requests)
            self.batch_queue: deque[Any] | None = deque(maxlen=2) if queue else None
            self.step_fn = self.step if self.batch_queue is None else self.step_with_batch_queue

        def step(self) -> tuple[dict[int, Any], bool]:
            """Schedule, execute, and make output."""
            return self.scheduler.run()  # type: ignore[no-any-return]

        def step_with_batch_queue(self) -> tuple[dict[int, Any] | None, bool]:
            assert self.batch_queue is not None
            executed = bool(self.scheduler.get_num_unfinished_requests())
            if executed:
                self.batch_queue.appendleft(self.scheduler.run())
                if len(self.batch_queue) < 2:
                    return None, True
            elif not self.batch_queue:
                return None, False
            return self.batch_queue.pop()[0], executed

    class EngineCoreProc(EngineCore):
        pass

    loaded(monkeypatch, "vllm.v1.engine.core", EngineCore=EngineCore, EngineCoreProc=EngineCoreProc)
    return EngineCoreProc


def test_vllm_s_step_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches are the requests in it, host gaps are between steps that left requests; an empty one is none."""
    Engine = vllm_engine(monkeypatch)
    watch = tailwatch.install(gc="off", role="engine")
    assert "vllm.v1.engine.core.EngineCore.step" in watch.steps.names
    engine = Engine(1, 2, 3)
    for _ in range(5):
        assert len(engine.step_fn()) == 2
    step = by_name()["step"]
    assert (step.steps.time.count, step.requests) == (3, 3 + 2 + 1)
    assert (step.host_gaps.time.count, step.unknown_gap) == (2, 0)


def test_vllm_s_batch_queue_hides_what_the_host_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a batch is queued a gap is not called one; with an empty queue it is known."""
    Engine = vllm_engine(monkeypatch)
    tailwatch.install(gc="off", role="engine")
    engine = Engine(2, 2, queue=True)
    assert engine.step_fn() == (None, True)
    engine.step_fn()
    engine.step_fn()
    step = by_name()["step_with_batch_queue"]
    assert (step.steps.time.count, step.host_gaps.time.count) == (3, 0)
    assert step.unknown_gap > 0


def test_what_a_step_raises_is_the_engine_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on its way; the step was one."""
    Engine = vllm_engine(monkeypatch)
    tailwatch.install(gc="off", role="engine")
    engine = Engine(1)
    engine.scheduler.run = lambda: 1 // 0
    with pytest.raises(ZeroDivisionError):
        engine.step()
    assert by_name()["step"].steps.time.count == 1


def test_an_engine_that_has_changed_is_counted_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attributes that are not there are no error of the engine: one request a step, and the doctor has it once."""
    Engine = vllm_engine(monkeypatch)
    watch = tailwatch.install(gc="off", role="engine")
    engine = Engine(3)
    del engine.batch_queue
    assert [engine.step()[1] for _ in range(2)] == [True, True]
    assert by_name()["step"].requests == 2
    [note] = [note for note in watch.notes if "EngineCore.step" in note]
    assert "batch_queue" in note


def test_uninstall_puts_the_methods_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The class is as it was; what an engine holds on to only hands on, and uninstall() reports it."""
    Engine = vllm_engine(monkeypatch)
    Base = Engine.__mro__[1]
    before = dict(vars(Base))
    tailwatch.install(gc="off", role="engine")
    assert vars(Base)["step"] is not before["step"]
    assert Base.step.__doc__ == before["step"].__doc__
    engine = Engine(2)
    engine.step_fn()
    report = tailwatch.uninstall()
    assert dict(vars(Base)) == before
    (held,) = report
    assert held.startswith("vllm.v1.engine.core.EngineCore.step is held ")
    assert engine.step_fn()[1] is True
    tailwatch.install(gc="off", role="engine")
    assert tailwatch.snapshot().steps == []


def test_what_others_put_there_after_us_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours inside it hands on."""
    Engine = vllm_engine(monkeypatch)
    Base = Engine.__mro__[1]
    tailwatch.install(gc="off", role="engine")
    ours = Base.step
    Base.step = theirs = lambda self: ours(self)
    report = tailwatch.uninstall()
    assert Base.step is theirs
    assert "EngineCore.step was replaced" in report[0]
    assert Engine(1).step()[1] is True


def test_a_module_that_comes_later_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the daemon, once; one that is half way through its import is left until it is whole."""
    watch = tailwatch.install(gc="off", role="engine")
    watch._daemon.stop()
    assert watch.steps.names == ()
    Engine = vllm_engine(monkeypatch)
    module = sys.modules["vllm.v1.engine.core"]
    module.__spec__._initializing = True  # type: ignore[union-attr]
    watch.steps.wrap_loaded()
    assert watch.steps.names == ()
    module.__spec__._initializing = False  # type: ignore[union-attr]
    watch.steps.wrap_loaded()
    wrapped = Engine.step
    watch.steps.wrap_loaded()
    assert Engine.step is wrapped
    assert len(watch.steps.names) == 2


@pytest.mark.parametrize("members", [{}, {"EngineCore": 3}, {"EngineCore": type("EngineCore", (), {"step": 1})}])
def test_another_vllm_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch, members: dict[str, Any]) -> None:
    """A class or a method that is not there is nothing to count, and no error; the doctor names it, once."""
    loaded(monkeypatch, "vllm.v1.engine.core", **members)
    monkeypatch.setattr(sys.modules["vllm"], "__version__", "0.99.0", raising=False)
    watch = tailwatch.install(gc="off", role="engine")
    watch.steps.wrap_loaded()
    assert watch.steps.names == ()
    assert [note.partition(" in ")[0] for note in watch.notes] == [
        "vllm 0.99.0 has no EngineCore.step",
        "vllm 0.99.0 has no EngineCore.step_with_batch_queue",
    ]


def test_what_cannot_be_replaced_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure of ours is a note for the doctor."""

    def broken() -> Iterator[EngineStep]:
        raise RuntimeError("mine")

    monkeypatch.setattr(integrations, "stepping", broken)
    watch = tailwatch.install(gc="off", role="engine")
    watch.steps.wrap_loaded()
    (note,) = watch.notes
    assert note.startswith("engine steps ") and note.endswith(": RuntimeError: mine")


# ---- SGLang: sglang/srt/managers/scheduler.py ----


class Req:
    """A request that makes so many tokens more."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens

    def finished(self) -> bool:
        return self.tokens <= 0


def sglang_scheduler(monkeypatch: pytest.MonkeyPatch) -> Any:
    class Scheduler:
        enable_pdmux = False

        def __init__(self, *requests: Req) -> None:
            self.waiting_queue: list[Req] = []
            self.running_batch: Any = SimpleNamespace(reqs=list(requests))

        def run_batch(self, batch: Any, pp_proxy_tensors: Any = None) -> str:
            return "result"

        def process_batch_result(self, batch: Any, result: str) -> None:
            for each in batch.reqs:
                each.tokens -= 1

        def normal_turn(self) -> None:
            self.running_batch.reqs = [each for each in self.running_batch.reqs if not each.finished()]
            batch = self.running_batch
            if batch.reqs:
                self.process_batch_result(batch, self.run_batch(batch))

    loaded(monkeypatch, "sglang.srt.managers.scheduler", Scheduler=Scheduler)
    return Scheduler


def test_sglang_s_normal_loop_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host gap is from the end of a result to the next forward, while requests have not finished."""
    Scheduler = sglang_scheduler(monkeypatch)
    tailwatch.install(gc="off", role="engine")
    scheduler = Scheduler(Req(1), Req(3))
    for _ in range(5):
        scheduler.normal_turn()
    steps = by_name()
    assert (steps["run_batch"].steps.time.count, steps["run_batch"].requests) == (3, 2 + 1 + 1)
    assert steps["process_batch_result"].steps.time.count == 3
    assert steps["run_batch"].host_gaps.time.count == 2
    assert steps["process_batch_result"].host_gaps.time.count == 0
    assert steps["run_batch"].unknown_gap == 0


def test_sglang_s_requests_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch and its copy hold the same ones; queued ones count beside them."""
    Scheduler = sglang_scheduler(monkeypatch)
    tailwatch.install(gc="off", role="engine")
    scheduler = Scheduler(Req(9), Req(9))
    scheduler.waiting_queue = [Req(1)]
    [read] = [step.read for step in integrations.stepping() if step.method == "process_batch_result"]
    copy = SimpleNamespace(reqs=[*scheduler.running_batch.reqs, Req(0), Req(4)])
    assert read(scheduler, (copy, "result"), {}, None) == (4, 1 + 2 + 1)
    assert read(scheduler, (), {"batch": copy, "result": "result"}, None) == (4, 4)


def test_sglang_s_overlapping_loop_hides_what_the_host_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a result to come nothing is known; with none, and nothing left, the engine is idle."""
    Scheduler = sglang_scheduler(monkeypatch)
    tailwatch.install(gc="off", role="engine")
    scheduler = Scheduler(Req(2))
    batch = scheduler.running_batch
    scheduler.result_queue = deque(["one more"])
    scheduler.run_batch(batch)
    scheduler.process_batch_result(batch, result="result")
    scheduler.run_batch(batch, pp_proxy_tensors=None)
    scheduler.result_queue.clear()
    scheduler.process_batch_result(batch, "result")
    scheduler.run_batch(batch)
    steps = by_name()
    assert steps["run_batch"].host_gaps.time.count == steps["process_batch_result"].host_gaps.time.count == 0
    assert steps["run_batch"].unknown_gap > 0


def test_an_idle_rank_s_batch_is_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a request nothing ran for this engine."""
    Scheduler = sglang_scheduler(monkeypatch)
    tailwatch.install(gc="off", role="engine")
    scheduler = Scheduler()
    scheduler.process_batch_result(scheduler.running_batch, scheduler.run_batch(scheduler.running_batch))
    assert {name: step.steps.time.count for name, step in by_name().items()} == {
        "run_batch": 0,
        "process_batch_result": 0,
    }


def test_nothing_is_imported_for_servers_that_are_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither server loaded: no methods."""
    for name in ("vllm", "sglang"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert list(integrations.stepping()) == []
