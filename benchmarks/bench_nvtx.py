"""What does an NVTX range of ours cost, with no tool attached and under one that does nothing?

From C, as our hooks emit them, and beside the PyPI package nvtx from Python, in the same process. Whether a tool is
attached is settled once in a process, so each of the two runs in processes of its own, turn and turn about.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import repeat
from pathlib import Path
from typing import Any

from harness import Bar, Report, Run, Samples, empty_loop, main, measure

import tailwatch

ROOT = Path(__file__).resolve().parent.parent
HEADERS, SOURCE = ROOT / "csrc" / "third_party", ROOT / "tests" / "native" / "nvtx_inject.c"

LOOP_C, LOOP_PYTHON = "the loop alone, C", "the loop alone, Python"
PUSH, START, MARK = "C: push and pop", "C: start and end", "C: mark"
WITH = "with tailwatch.nvtx.range(...)"
PACKAGE = "nvtx package: push and pop, prepared"
PACKAGE_START = "nvtx package: end(start), prepared"
ANNOTATE = "nvtx package: with nvtx.annotate(...)"
KEYWORDS = "nvtx package: push(message=, payload=), pop"
STEP = "with a step of the engine"


def in_c(core: Any, kind: int) -> Run:
    """n ranges of a kind, in C."""
    return lambda n: core.nvtx_timed(kind, n) / n


def calling(call: Callable[[], object]) -> Run:
    """n calls."""

    def run(n: int) -> float:
        turns = repeat(None, n)
        start = time.perf_counter_ns()
        for _ in turns:
            call()
        return (time.perf_counter_ns() - start) / n

    return run


def withs(make: Callable[[], AbstractContextManager[Any]]) -> Run:
    """n times `with make(): pass`."""

    def run(n: int) -> float:
        turns = repeat(None, n)
        start = time.perf_counter_ns()
        for _ in turns:
            with make():
                pass
        return (time.perf_counter_ns() - start) / n

    return run


def package() -> Iterator[tuple[str, Run]]:
    """What people use; nothing where it is not installed."""
    try:
        import nvtx
    except ImportError:
        return
    domain: Any = nvtx.get_domain("app")
    event = domain.get_event_attributes(message="work")
    push, pop, start, end = domain.push_range, domain.pop_range, domain.start_range, domain.end_range
    yield PACKAGE, calling(lambda: (push(event), pop()))
    yield PACKAGE_START, calling(lambda: end(start(event)))
    yield KEYWORDS, calling(lambda: (push(message="work", payload=5), pop()))
    yield ANNOTATE, withs(lambda: nvtx.annotate("work", domain="app"))


def child(repeats: int) -> dict[str, list[float]]:
    """Everything once, in this process."""
    watch = tailwatch.install(gc="observe")
    watch._daemon.stop()
    gc.disable()
    core, attached = watch.core, watch.nvtx.attached
    assert attached == ("NVTX_INJECTION64_PATH" in os.environ)
    cases: dict[str, Run] = {
        LOOP_C: in_c(core, 3),
        PUSH: in_c(core, 0),
        START: in_c(core, 1),
        MARK: in_c(core, 2),
        LOOP_PYTHON: empty_loop,
        WITH: withs(lambda: tailwatch.nvtx.range("work", payload=5)),
        STEP: withs(lambda: tailwatch.step("decode", batch=32, waiting=1)),
        **dict(package()),
    }
    number = {name: 100_000 if name.startswith("C:") or name == LOOP_C else 2_000 for name in cases}
    return measure(cases, number=number, repeats=repeats).by_case


def build(directory: str) -> Path:
    """The tool that attaches and does nothing: that of the tests without a file to write to."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise SystemExit("needs a C compiler")
    target = Path(directory) / "nvtx_inject.so"
    options = ["-std=gnu11", "-O2", "-shared", "-fPIC", "-isystem", str(HEADERS)]
    subprocess.run([compiler, *options, str(SOURCE), "-o", str(target), "-ldl"], check=True)
    return target


def process(tool: Path | None, repeats: int) -> dict[str, list[float]]:
    """child() in a process of its own."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("NVTX_", "TAILWATCH"))}
    if tool is not None:
        environment["NVTX_INJECTION64_PATH"] = str(tool)
    command = [sys.executable, str(Path(__file__).resolve()), "--child", str(repeats)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def gather(tool: Path | None, into: Samples | None, repeats: int) -> Samples:
    """Another process's rounds after those there are."""
    taken = process(tool, repeats)
    into = into or Samples(list(taken))
    for name, values in taken.items():
        into.by_case[name] += values
    return into


def report(quick: bool = False) -> Report:
    """Runs everything."""
    made = Report("What an NVTX range costs, without a tool and under one that does nothing")
    alone: Samples | None = None
    attached: Samples | None = None
    with tempfile.TemporaryDirectory() as directory:
        tool = build(directory)
        for _ in range(1 if quick else 5):
            alone = gather(None, alone, 5 if quick else 9)
            attached = gather(tool, attached, 5 if quick else 9)
    assert alone is not None and attached is not None
    made.calls = {f"no tool: {name}": row for name, row in alone.calls().items()}
    made.calls |= {f"a no-op tool: {name}": row for name, row in attached.calls().items()}
    for samples, which, bar in ((alone, "no tool", 3.0), (attached, "a no-op tool", 80.0)):
        for name in (PUSH, START):
            made.bars.append(samples.difference(name, LOOP_C, bar=bar, label=f"{which}: {name}"))
        made.bars.append(samples.difference(MARK, LOOP_C, label=f"{which}: {MARK}"))
        made.bars += [_times(samples, name, which) for name in (PACKAGE, KEYWORDS, ANNOTATE) if name in samples.by_case]
    if PACKAGE not in alone.by_case:
        made.notes.append("the PyPI package nvtx is not installed: it was not measured")
    return made


def _times(samples: Samples, name: str, which: str) -> Bar:
    """The package's range over ours, each with the loop that it was timed in: without a tool ours is lost in it."""
    return samples.ratio(name, PUSH, label=f"{which}: {name} / {PUSH}")


def test_nvtx(benchmark: Any) -> None:
    """A range without a tool, timed by pytest-benchmark."""
    made = report(quick=True)
    benchmark.extra_info.update(made.as_dict())
    core = tailwatch.install(gc="observe").core
    try:
        benchmark.pedantic(in_c(core, 0), args=(1000,), rounds=5)
    finally:
        tailwatch.uninstall()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(child(int(sys.argv[2]))))
    else:
        main(report)
