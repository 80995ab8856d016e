"""An engine process that serves no app: what its own /metrics, and its group's, have of its steps."""

from __future__ import annotations

import contextlib
import json
import os
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

import tailwatch
from tailwatch import snapshots

from ..support.ports import free_port
from ..support.process import Python, Script
from ..support.waiting import until

pytestmark = pytest.mark.integration

SHORT_SECONDS = 50e-6

ENGINE = """
import gc, json, sys, time
import tailwatch

options = json.loads(sys.argv[1])
gc.disable()
heap = [[i] for i in range(300_000)]
tailwatch.install(role="engine", gc="observe", **options)

def witness(phase, info):
    times.append(time.monotonic())

def planted():
    '''A collection of the heap: its length seen from inside and from outside, seconds.'''
    times.clear()
    before = time.monotonic()
    gc.collect()
    after = time.monotonic()
    return times[-1] - times[0], after - before

times = []
gc.callbacks.insert(1, witness)  # between ours: inside the pause
inside, between = [], []
for i in range(20):
    with tailwatch.step("decode", batch=8, waiting=3) as step:
        if i % 5 == 1:
            inside.append(planted())
        if i == 19:
            step.waiting = 0
    if i % 5 == 3:
        between.append(planted())
idle = planted()
with tailwatch.step("decode", batch=8, waiting=0):
    pass
print(json.dumps([inside, between, idle]), flush=True)
sys.stdin.readline()
"""


class Engine(Python):
    """The process, and what it planted."""

    inside: list[list[float]]
    between: list[list[float]]


@pytest.fixture
def start() -> Iterator[Callable[..., Engine]]:
    started: list[Engine] = []

    def begin(**options: Any) -> Engine:
        engine = Engine(ENGINE, json.dumps(options))
        started.append(engine)
        engine.inside, engine.between, _ = engine.read()
        return engine

    yield begin
    for engine in started:
        engine.kill()


def scrape(port: int) -> str:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/metrics", headers={"Accept": "application/openmetrics-text"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        body: bytes = answer.read()
    return body.decode()


def value(text: str, name: str, **labels: str) -> float:
    """One sample."""
    found = [
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    assert len(found) == 1, (name, labels, found)
    return float(found[0])


def assert_between(rows: list[list[float]], seconds: float, times: int = 1) -> None:
    """What was attributed lies between what was seen from inside the pauses and from outside. Times are kept even."""
    inner, outer = (sum(column) for column in zip(*rows, strict=True))
    assert all(row[0] >= SHORT_SECONDS for row in rows), "a pause of this heap is recorded"
    slack = 2e-9 * len(rows)
    assert times * (inner - slack) <= seconds <= times * (outer + slack)


def test_an_engine_without_an_app_exports_its_steps(start: Callable[..., Engine]) -> None:
    """Its own port: which step, which cause, and as long as the planted collections were; the idle one is not there."""
    port = free_port()
    engine = start(metrics_port=port)
    text = scrape(port)
    labels = {"process": "engine-0", "step": "decode"}

    assert value(text, "tailwatch_step_seconds_count", **labels) == 21
    assert value(text, "tailwatch_step_requests_total", **labels) == 21 * 8
    assert value(text, "tailwatch_step_host_gap_seconds_count", **labels) == 19
    assert value(text, "tailwatch_step_unknown_gap_seconds_total", **labels) == 0
    for phase, planted, requests in (("step", engine.inside, 8), ("host_gap", engine.between, 3)):
        where = {**labels, "cause": "gc2", "phase": phase}
        assert_between(planted, value(text, "tailwatch_step_overlap_seconds_total", **where))
        assert_between(planted, value(text, "tailwatch_step_request_overlap_seconds_total", **where), requests)
    assert value(text, "tailwatch_step_overlap_seconds_total", **labels, cause="gc0", phase="step") == 0


def test_the_group_s_answer_has_the_engine_s_steps(start: Callable[..., Engine], tmp_path: Path) -> None:
    """A process that joins sees them by process, also after a kill -9; the doctor reads them from outside."""
    directory = tmp_path / "group"
    tailwatch.install(role="api", dir=str(directory), gc="off")
    try:
        engines = [start(dir=str(directory)), start(dir=str(directory))]
        seen = {step.process: step for step in tailwatch.snapshot().steps}
        assert sorted(seen) == ["engine-0", "engine-1"]
        engines[0].kill()
        for after in (tailwatch.snapshot(), snapshots.take_directory(str(directory))):
            assert sum(step.requests for step in after.steps) == 2 * 21 * 8
            assert sum(step.steps.time.count for step in after.steps) == 2 * 21
        for engine, step in zip(engines, (seen["engine-0"], seen["engine-1"]), strict=True):
            assert_between(engine.inside, step.steps.overlap["gc2"])
            assert_between(engine.between, step.host_gaps.overlap["gc2"])
        text = bytes(tailwatch.current().exposition.own("openmetrics")).decode() + "# EOF\n"
        assert value(text, "tailwatch_step_seconds_count", process="engine-1", step="decode") == 21
    finally:
        tailwatch.uninstall()


CORE = """
from collections import deque
from types import SimpleNamespace


class Scheduler:
    def __init__(self):
        self.running = [1, 2, 3]

    def get_num_unfinished_requests(self):
        return len(self.running)


class EngineCore:
    def __init__(self):
        from tailwatch_boot import plugin  # the entry point, as load_general_plugins() calls it

        plugin()
        self.scheduler = Scheduler()
        self.batch_queue = None
        self.step_fn = self.step

    def step(self):
        outputs = {0: SimpleNamespace(outputs=list(self.scheduler.running))}
        self.scheduler.running.pop()
        return outputs, True


def run_engine_core(done):
    engine = EngineCore()
    for _ in range(3):
        engine.step_fn()
    done.wait()
"""

SERVER = """
import multiprocessing, sys
sys.path.insert(0, sys.argv[1])
from vllm.v1.engine.core import run_engine_core

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    done = context.Event()
    engine = context.Process(target=run_engine_core, args=(done,), name="EngineCore")
    engine.start()
    sys.stdin.readline()
    done.set()
    engine.join()
"""


def test_the_plugin_counts_an_engine_s_own_steps(tmp_path: Path) -> None:
    """A server of vLLM's shape, with TAILWATCH=1 and no line of ours: its engine's steps are in the group."""
    package = tmp_path / "site" / "vllm" / "v1" / "engine"
    package.mkdir(parents=True)
    (package / "core.py").write_text(CORE)
    script, group = tmp_path / "server.py", tmp_path / "group"
    script.write_text(SERVER)
    environment = {**os.environ, "TAILWATCH": "1", "TAILWATCH_DIR": str(group), "TAILWATCH_GC": "observe"}
    with Script(script, tmp_path / "site", env=environment, stdout=None) as server:
        try:
            step = until(lambda: counted(group, 3), "the engine's steps are in the group")
        finally:
            server.finish("\n")
    assert (step.process, step.name, step.requests) == ("engine-0", "step", 3 + 2 + 1)
    assert (step.host_gaps.time.count, step.unknown_gap) == (2, 0)


def counted(group: Path, count: int) -> snapshots.Step | None:
    """The first of a group's steps, once it was taken so often."""
    with contextlib.suppress(tailwatch.TailwatchError):
        steps = snapshots.take_directory(str(group)).steps
        if steps and steps[0].steps.time.count == count:
            return steps[0]
    return None
