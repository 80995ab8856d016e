"""Kernels that Triton compiles while a token waits are among its causes; Triton's hooks are as without us."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import tailwatch
from tailwatch import _hot
from tailwatch.integrations.kernel_compiles import KernelCompiles
from tailwatch.snapshots.step_records import StepRecords

from .test_engine_only import Answering, add, step
from .test_scheduler_hook import install
from .test_scheduler_steps import decoding, follow, scheduler_output


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    yield
    tailwatch.uninstall()


class Triton:
    """Its hooks, as of 3.6 or of 3.3, and what calls them (JITFunction._do_compile)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, age: str) -> None:
        for name in ("triton.knobs", "triton.runtime.jit"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        if age == "3.6":
            self.owner: Any = SimpleNamespace(jit_cache_hook=None, jit_post_compile_hook=None)
            self.names = ("jit_cache_hook", "jit_post_compile_hook")
            module, path = "triton.knobs", "runtime"
        else:
            self.owner = type("JITFunction", (), {"cache_hook": None, "compiled_hook": None})
            self.names = ("cache_hook", "compiled_hook")
            module, path = "triton.runtime.jit", "JITFunction"
        loaded = ModuleType(module)
        setattr(loaded, path, self.owner)
        monkeypatch.setitem(sys.modules, module, loaded)

    def hooks(self) -> tuple[Any, Any]:
        return getattr(self.owner, self.names[0]), getattr(self.owner, self.names[1])

    def compile(self, kernel: str, work: Callable[[], object] = lambda: None) -> bool:
        """Whether it was compiled."""
        call = {"key": ("i32", kernel), "fn": SimpleNamespace(module="m", name=kernel), "already_compiled": False}
        before, _ = self.hooks()
        if before is not None and before(**call, is_manual_warmup=False, compile={}, repr=""):
            return False
        work()
        _, after = self.hooks()
        if after is not None:
            after(**call, is_manual_warmup=False, compile={}, repr="")
        return True


AGES = pytest.mark.parametrize("age", ["3.3", "3.6"])


@AGES
def test_a_compilation_has_its_kernel_and_its_time(monkeypatch: pytest.MonkeyPatch, age: str) -> None:
    """Nested ones have their own; one that raises has no end; undo() leaves nothing."""
    triton, found = Triton(monkeypatch, age), list[tuple[str, int, int]]()
    compiles = KernelCompiles(lambda *each: found.append(each), pytest.fail)
    compiles.follow_loaded()
    compiles.follow_loaded()
    begin = _hot.now()
    triton.compile("outer", lambda: triton.compile("inner"))
    with pytest.raises(ZeroDivisionError):
        triton.compile("broken", lambda: 1 // 0)
    assert [name for name, _, _ in found] == ["inner", "outer"]
    (_, inner, inner_end), (_, outer, outer_end) = found
    assert begin <= outer <= inner <= inner_end <= outer_end <= _hot.now()
    assert compiles.undo() == []
    assert triton.hooks() == (None, None)
    triton.compile("later")
    assert len(found) == 2


@AGES
def test_hooks_of_others_are_called_as_before(monkeypatch: pytest.MonkeyPatch, age: str) -> None:
    """Theirs decides whether Triton compiles; one that was set after ours stays."""
    triton, found, theirs = Triton(monkeypatch, age), list[tuple[str, int, int]](), list[str]()

    def cached(**call: Any) -> bool:
        theirs.append(call["fn"].name)
        return bool(call["fn"].name == "cached")

    setattr(triton.owner, triton.names[0], staticmethod(cached) if age == "3.3" else cached)
    compiles = KernelCompiles(lambda *each: found.append(each), pytest.fail)
    compiles.follow_loaded()
    assert not triton.compile("cached") and triton.compile("new")
    assert theirs == ["cached", "new"] and [name for name, _, _ in found] == ["new"]
    ours = triton.hooks()[1]
    monkeypatch.setattr(triton.owner, triton.names[1], staticmethod(lambda **call: ours(**call)))
    assert [sentence.split()[1] for sentence in compiles.undo()] == [triton.names[1]]
    assert triton.hooks()[0] is cached
    triton.compile("new")
    assert len(found) == 1


def test_what_is_wrong_with_ours_is_noted_and_not_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Triton whose hooks are given something else."""
    triton, notes = Triton(monkeypatch, "3.6"), list[str]()
    KernelCompiles(lambda *each: None, notes.append).follow_loaded()
    before, after = triton.hooks()
    assert before(key=1) is None and after(key=1) is None
    assert len(notes) == 2 and "KeyError" in notes[0]


def test_a_late_token_names_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that compiled one in the midst of a step: measured, and not among what the device took."""
    triton = Triton(monkeypatch, "3.6")
    watch = tailwatch.install(gc="off", role="engine", slo="ttft<=10s,itl<=5s@99%")
    scheduler = Answering()
    steps = follow(watch.core, scheduler)
    KernelCompiles(steps.compiled, pytest.fail).follow_loaded()
    add(scheduler, "a")
    step(scheduler, {"a": 5}, ("a",))
    for _ in range(30):
        step(scheduler, {"a": 1}, sleep=0.001)
    scheduler.plans.append(scheduler_output("0.33", {"a": 1}))
    output = scheduler.schedule()
    triton.compile("attention_kernel", lambda: time.sleep(0.1))
    scheduler.update_from_output(output, scheduler.answer())
    late = next(gap for gap in tailwatch.snapshot().slowest if gap.phase == "itl" and gap.gap >= 0.1)
    assert (late.causes[0].cause, late.causes[0].name, late.causes[0].certainty) == (
        "jit",
        "attention_kernel",
        "measured",
    )
    assert late.causes[0].seconds >= 0.1 - late.typical
    assert sum(cause.seconds for cause in late.causes) == pytest.approx(late.gap - late.typical, abs=1e-6)


def test_an_engine_that_is_followed_is_followed_in_this_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """From its first step to uninstall()."""
    triton = Triton(monkeypatch, "3.6")
    Core, watch = install(monkeypatch)
    engine = Core(decoding("0.33"), decoding("0.33"))
    triton.compile("before the first step")
    engine.step()
    began = time.monotonic()
    triton.compile("kernel")
    (event,) = StepRecords(watch.core.address).events()
    assert event.kind == "compiled" and began <= event.start <= event.stop
    assert tailwatch.uninstall() is not None
    assert triton.hooks() == (None, None)
    engine.step()


@pytest.mark.gpu
def test_the_real_triton_s_compilations_are_seen() -> None:
    """A kernel that it has not cached, once; the second launch compiles nothing."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here: run `pytest -m gpu` on a machine that has one, with torch installed")
    kernels = import_module("tests.integrations.triton_kernels")
    found: list[tuple[str, int, int]] = []
    compiles = KernelCompiles(lambda *each: found.append(each), pytest.fail)
    compiles.follow_loaded()
    began = _hot.now()
    assert kernels.doubled(torch) == [2.0] * 64
    took = _hot.now() - began
    assert kernels.doubled(torch) == [2.0] * 64
    assert [name for name, _, _ in found] == ["double"]
    assert 10**6 < found[0][2] - found[0][1] <= took
    assert compiles.undo() == []
