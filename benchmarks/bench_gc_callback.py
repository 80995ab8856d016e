"""What do our two brackets add to each garbage collection?

Against one callback in C that does nothing (what CPython itself takes for calling it), with a tiny heap: all that is
alive is frozen, so that a collection of any generation costs next to nothing.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from itertools import repeat
from typing import Any

from harness import REPEATS, Report, Run, main, measure, native

from tailwatch import _hot
from tailwatch.gc.hook import collector_mode


def python_callback() -> Callable[..., None]:
    """What people write: a clock at both ends, in Python."""
    since = total = 0

    def callback(phase: str, info: dict[str, int]) -> None:
        nonlocal since, total
        if phase == "start":
            since = time.perf_counter_ns()
        else:
            total += time.perf_counter_ns() - since

    return callback


def collecting(callbacks: list[Any], generation: int) -> Run:
    """n collections of a generation with these callbacks."""

    def run(n: int) -> float:
        gc.callbacks[:] = callbacks
        collect, steps = gc.collect, repeat(None, n)
        start = time.perf_counter_ns()
        for _ in steps:
            collect(generation)
        spent = time.perf_counter_ns() - start
        gc.callbacks[:] = []
        return spent / n

    return run


def core() -> _hot.Core:
    """A writer that watches the collector."""
    made = _hot.Core("api", 2, (0, 0, 0, 0, 990_000), 0, lambda scope: "", lambda awaitable, stream: awaitable)
    made.watch_gc(collector_mode(), gc.callbacks, made.gc_last)
    return made


def report(quick: bool = False) -> Report:
    """Runs everything."""
    made = Report("What our brackets add to each collection (CPython's own dict and two calls included)")
    NONE, NOOP, OURS, PYTHON = "no callback", "a C no-op", "our two brackets", "a Python callback"
    ours = core()
    arms = {NONE: [], NOOP: [native("gcprobe").noop], OURS: [ours.gc_first, ours.gc_last], PYTHON: [python_callback()]}
    held = list(gc.callbacks)
    gc.disable()
    gc.collect()
    gc.freeze()
    try:
        for generation in range(3):
            cases = {name: collecting(callbacks, generation) for name, callbacks in arms.items()}
            samples = measure(cases, number=500, repeats=5 if quick else REPEATS)
            made.calls |= {f"gen {generation}: {name}": times for name, times in samples.calls().items()}
            bar = 1.6 if generation == 0 else None
            label = f"gen {generation}: added, ours / no-op"
            made.bars.append(samples.ratio(OURS, NOOP, less=NONE, bar=bar, label=label))
            if generation > 0:
                made.bars.append(
                    samples.difference(OURS, NOOP, bar=1.5, label=f"gen {generation}: ours beyond the no-op", unit="us")
                )
            made.bars.append(samples.difference(OURS, NONE, label=f"gen {generation}: added by ours"))
    finally:
        gc.callbacks[:] = held
        gc.unfreeze()
        gc.enable()
    return made


def test_gc_callback(benchmark: Any) -> None:
    """A collection with our brackets, timed by pytest-benchmark; each one closes its pause."""
    made = report(quick=True)
    benchmark.extra_info.update(made.as_dict())
    watched = core()
    run = collecting([watched.gc_first, watched.gc_last], 0)
    held = list(gc.callbacks)
    try:
        benchmark.pedantic(run, args=(100,), rounds=20)
    finally:
        gc.callbacks[:] = held
    assert not watched.paused_now()


if __name__ == "__main__":
    main(report)
