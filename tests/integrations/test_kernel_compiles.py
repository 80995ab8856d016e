"""Kernels that Triton compiles while a token waits are among its causes; its listener is as without us."""

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
    """Its compiler's listener, and what calls it (triton/compiler/compiler.py, compile())."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.knobs = SimpleNamespace(listener=None)
        loaded = ModuleType("triton.knobs")
        loaded.compilation = self.knobs  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "triton.knobs", loaded)

    def compile(self, kernel: str, work: Callable[[], object] = lambda: None, *, cached: bool = False) -> None:
        began = time.monotonic()
        listener = self.knobs.listener
        work()
        if listener is not None:
            times = SimpleNamespace(total=int((time.monotonic() - began) * 1e6))
            listener(src=SimpleNamespace(name=kernel), metadata={}, metadata_group={}, times=times, cache_hit=cached)


def test_a_compilation_has_its_kernel_and_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that raises has no end, one from Triton's cache is none; undo() leaves nothing."""
    triton, found = Triton(monkeypatch), list[tuple[str, int, int]]()
    compiles = KernelCompiles(lambda *each: found.append(each), pytest.fail)
    compiles.follow_loaded()
    compiles.follow_loaded()
    begin = _hot.now()
    triton.compile("double", lambda: time.sleep(0.01))
    triton.compile("known", cached=True)
    with pytest.raises(ZeroDivisionError):
        triton.compile("broken", lambda: 1 // 0)
    ((name, began, ended),) = found
    assert name == "double" and begin - 2000 <= began <= ended - 10**7 and ended <= _hot.now()
    assert compiles.undo() == []
    assert triton.knobs.listener is None
    triton.compile("later")
    assert len(found) == 1


def test_the_listener_of_others_is_called_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was set after ours stays."""
    triton, found, theirs = Triton(monkeypatch), list[tuple[str, int, int]](), list[str]()

    def listener(**call: Any) -> None:
        theirs.append(call["src"].name)

    triton.knobs.listener = listener
    compiles = KernelCompiles(lambda *each: found.append(each), pytest.fail)
    compiles.follow_loaded()
    triton.compile("new")
    assert theirs == [name for name, _, _ in found] == ["new"]
    ours = triton.knobs.listener
    triton.knobs.listener = later = lambda **call: ours(**call)
    assert len(compiles.undo()) == 1 and triton.knobs.listener is later
    triton.compile("newer")
    assert theirs == ["new", "newer"] and len(found) == 1


def test_what_is_wrong_with_ours_is_noted_and_not_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Triton whose listener is given something else, and one that has none."""
    triton, notes = Triton(monkeypatch), list[str]()
    KernelCompiles(lambda *each: None, notes.append).follow_loaded()
    triton.knobs.listener(source=1)
    assert len(notes) == 1 and "TypeError" in notes[0]
    del triton.knobs.listener
    KernelCompiles(lambda *each: None, pytest.fail).follow_loaded()
    assert not hasattr(triton.knobs, "listener")


def test_a_late_token_names_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that compiled one in the midst of a step: measured, and not among what the device took."""
    triton = Triton(monkeypatch)
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
    triton = Triton(monkeypatch)
    Core, watch = install(monkeypatch)
    engine = Core(decoding("0.33"), decoding("0.33"))
    triton.compile("before the first step")
    engine.step()
    began = time.monotonic()
    triton.compile("kernel")
    (event,) = StepRecords(watch.core.address).events()
    assert event.kind == "compiled" and began <= event.start <= event.stop
    assert tailwatch.uninstall() is not None
    assert triton.knobs.listener is None
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
