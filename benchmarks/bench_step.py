"""What does one engine step cost, with its histograms, its host gap and its pauses?

Entering and leaving a step object in C, against two reads of the clock; the `with` statement that makes one for each
iteration; the same where a pause fell between two steps, so that the ring is walked; and against one block timed by
prometheus_client.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import repeat
from typing import Any

from harness import LOOP, REPEATS, Report, Run, Samples, empty_loop, main, measure, native

import tailwatch
from tailwatch import _hot

CLOCKS, PAIR = "the clock read twice", "step entered and left"
MADE, PACKAGE, LOCK = "with core.step()", "with tailwatch.step()", "with a lock"
PAUSED, PROMETHEUS = "%s, a pause in each gap", "prometheus_client"
PAUSE_SECONDS = 60e-6


def clocks(n: int) -> float:
    """Two reads of the clock."""
    clock, steps = native("floors").clock, repeat(None, n)
    start = time.perf_counter_ns()
    for _ in steps:
        clock()
        clock()
    return (time.perf_counter_ns() - start) / n


def pair(step: _hot.Step) -> Run:
    """The two calls that a `with` makes."""
    enter, leave = step.__enter__, step.__exit__

    def run(n: int) -> float:
        steps = repeat(None, n)
        start = time.perf_counter_ns()
        for _ in steps:
            enter()
            leave(None, None, None)
        return (time.perf_counter_ns() - start) / n

    return run


def with_block(make: Callable[[], AbstractContextManager[Any]]) -> Run:
    """A block with nothing in it."""

    def run(n: int) -> float:
        steps = repeat(None, n)
        start = time.perf_counter_ns()
        for _ in steps:
            with make():
                pass
        return (time.perf_counter_ns() - start) / n

    return run


def after_pauses(core: _hot.Core, calls: Callable[[], object]) -> Run:
    """The calls, each after a recorded pause; only they are timed."""

    def run(n: int) -> float:
        spent = 0
        for _ in range(n):
            core.policy_begin()
            until = time.perf_counter() + PAUSE_SECONDS
            while time.perf_counter() < until:
                pass
            core.policy_end()
            start = time.perf_counter_ns()
            calls()
            spent += time.perf_counter_ns() - start
        return spent / n

    return run


def prometheus_case() -> Run:
    """One labelled histogram around the block."""
    from prometheus_client import CollectorRegistry, Histogram

    histogram = Histogram("step_seconds", "step", ["step"], registry=CollectorRegistry())
    return with_block(lambda: histogram.labels("decode").time())


def _plain(core: _hot.Core, repeats: int) -> Samples:
    lock, step = threading.Lock(), core.step("decode", 32, 5)
    cases = {LOOP: empty_loop, CLOCKS: clocks, PAIR: pair(step), LOCK: with_block(lambda: lock),
             MADE: with_block(lambda: core.step("decode", 32, 5)),
             PACKAGE: with_block(lambda: tailwatch.step("decode", batch=32, waiting=5)),
             PROMETHEUS: prometheus_case()}  # fmt: skip
    return measure(cases, number=dict.fromkeys(cases, 20_000) | {PROMETHEUS: 2_000}, repeats=repeats)


def _paused(core: _hot.Core, repeats: int) -> Samples:
    step = core.step("decode", 32, 5)
    enter, leave, clock = step.__enter__, step.__exit__, native("floors").clock
    cases = {
        PAUSED % CLOCKS: after_pauses(core, lambda: (clock(), clock())),
        PAUSED % PAIR: after_pauses(core, lambda: (enter(), leave(None, None, None))),
    }
    return measure(cases, number=300, repeats=repeats)


def report(quick: bool = False) -> Report:
    """Runs everything."""
    repeats = 5 if quick else REPEATS
    watch = tailwatch.install(gc="observe")
    made = Report("One engine step, everything on")
    try:
        plain, paused = _plain(watch.core, repeats), _paused(watch.core, repeats)
    finally:
        tailwatch.uninstall()
    made.calls = plain.calls() | paused.calls()
    made.bars = [
        plain.difference(PAIR, CLOCKS, bar=100, label="entered and left, beyond two reads of the clock"),
        plain.ratio(PAIR, CLOCKS, less=LOOP, label="entered and left / clock twice, loop subtracted"),
        plain.difference(MADE, LOCK, label="with core.step(), beyond with a lock"),
        plain.difference(PACKAGE, LOCK, label="with tailwatch.step(), beyond with a lock"),
        paused.difference(PAUSED % PAIR, PAUSED % CLOCKS, label="a pause to look up, beyond two reads of the clock"),
        plain.ratio(PROMETHEUS, PACKAGE, label="prometheus_client's timer / with tailwatch.step()"),
    ]
    return made


def test_step(benchmark: Any) -> None:
    """Entering and leaving, timed by pytest-benchmark; the differences are in extra_info. Each pair is one step."""
    made = report(quick=True)
    benchmark.extra_info.update(made.as_dict())
    tailwatch.install(gc="observe")
    try:
        step = tailwatch.step("decode", batch=32, waiting=5)
        benchmark.pedantic(lambda: (step.__enter__(), step.__exit__(None, None, None)), rounds=20, iterations=1_000)
        [kept] = tailwatch.snapshot().steps
        before = kept.steps.time.count
        pair(step)(1_000)
        [kept] = tailwatch.snapshot().steps
        assert kept.steps.time.count - before == 1_000
    finally:
        tailwatch.uninstall()


if __name__ == "__main__":
    main(report)
