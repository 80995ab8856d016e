"""What do the other processes of a group cost: at each token stamp, and at a scrape?

Stamp: one stream of a process whose group has 8 engines, of one that is alone in its group, and of one in no group, in
one run. Then the same with the cache evicted between stamps: each arm walks the same buffer, larger than the caches,
before each stamp, and only the stamp is timed; what two clock readings take is subtracted.

Scrape: 64 processes with 8 models each. CPU of the thread that renders, what of it was spent in calls that drop the
GIL (the rest holds it), and the stalls of the server's loop, as in bench_scrape.py. That the GIL is free meanwhile is
seen from outside: another thread ticks while the numbers are taken and rendered. The peer is prometheus_client's
multiprocess mode with the same histograms of 16 processes.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench_scrape import Server, cost_bars, one_run, serving, stall_bars
from harness import REPEATS, Bar, Report, Run, Samples, bar_of, loop, main, measure

from tailwatch import _hot

SERVER = Path(__file__).resolve().parent / "group_server.py"
ENGINES = 8
WALK_BYTES = 96 << 20
NONE, ALONE, PEERS = "stamp, no group", "stamp, alone in a group", f"stamp, {ENGINES} engines"
TIMER = "two clock readings"
EVICTED = "%s, cache evicted"

ENGINE = """
import sys, tailwatch
watch = tailwatch.install(role="engine", dir=sys.argv[1], gc="observe", gc_warn_ms=0)
print(watch.membership.joined, flush=True)
sys.stdin.read()
"""


# ---- the stamp ----


@contextmanager
def engines(directory: str, count: int) -> Iterator[None]:
    """Real processes that joined the group; they do nothing, as an engine between two pauses."""
    command = [sys.executable, "-c", ENGINE, directory]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    # Not here: with -c the first place to import from is where one stands, and the source tree has no compiled modules.
    started = [subprocess.Popen(command, cwd=tempfile.gettempdir(), **pipes) for _ in range(count)]
    try:
        assert all(process.stdout and process.stdout.readline() == "True\n" for process in started)
        yield
    finally:
        for process in started:
            process.communicate()


def stream_in(directory: str) -> tuple[_hot.Core, _hot.Stream]:
    """A stream of a core that is in that group; "": in none."""
    core = _hot.Core("api", 2, (0, 0, 0, 0, 990_000), 0, lambda scope: "", lambda awaitable, stream: awaitable)
    if directory:
        assert core.join(directory, 0) is None
        core.renew()
    return core, core.stream("model", "/bench", None, "", "")


class Walk:
    """Evicts the caches: reads a word of each line of a buffer larger than they are."""

    def __init__(self) -> None:
        import numpy

        self._lines = numpy.ones(WALK_BYTES // 8, dtype=numpy.int64)[::8]

    def __call__(self) -> None:
        assert self._lines.sum() == WALK_BYTES // 64


def evicted(call: Callable[[], object] | None, walk: Walk) -> Run:
    """The median of n calls, each after a walk, with the two clock readings around it; None: these alone."""

    def run(n: int) -> float:
        clock = time.perf_counter_ns
        took = []
        for _ in range(n):
            walk()
            start = clock()
            if call is not None:
                call()
            took.append(clock() - start)
        return statistics.median(took)

    return run


def stamps(repeats: int) -> tuple[Samples, Samples]:
    """Plain, and with the cache evicted."""
    with tempfile.TemporaryDirectory() as root, engines(f"{root}/peers", ENGINES):
        kept = [stream_in(""), stream_in(f"{root}/alone"), stream_in(f"{root}/peers")]
        assert [len(core.members()) for core, _ in kept] == [0, 0, ENGINES]
        calls = {name: stream.token for name, (_, stream) in zip((NONE, ALONE, PEERS), kept, strict=True)}
        plain = measure({name: loop(call) for name, call in calls.items()}, number=20_000, repeats=repeats)
        walk = Walk()
        cold = {EVICTED % name: evicted(call, walk) for name, call in calls.items()}
        return plain, measure(cold | {EVICTED % TIMER: evicted(None, walk)}, number=9, repeats=repeats)


def stamp_bars(plain: Samples, cold: Samples) -> Iterator[Bar]:
    """With the others, over the stamp of a process in no group and of one that is alone in one."""
    for base, name in ((NONE, "none"), (ALONE, "alone in a group")):
        label = f"stamp, {ENGINES} foreign processes / {name}"
        yield plain.ratio(PEERS, base, bar=1.2, label=label)
        yield cold.ratio(EVICTED % PEERS, EVICTED % base, less=EVICTED % TIMER, bar=2, label=EVICTED % label)


# ---- the scrape ----


def render_bars(server: Server, repeats: int) -> Iterator[Bar]:
    """What a scrape costs the thread that renders."""
    made: dict[str, list[float]] = {}
    for _ in range(repeats):
        for name, values in json.loads(server.ask("/render")[0]).items():
            made.setdefault(name, []).extend(values)
    held = [cpu - free for cpu, free in zip(made["cpu"], made["without_gil"], strict=True)]
    yield bar_of("scrape of 64 x 8: CPU without the GIL", made["without_gil"], bar=20, unit="ms")
    yield bar_of("scrape of 64 x 8: CPU with the GIL", held, unit="ms")
    yield bar_of("another thread's ticks meanwhile / when nobody renders", made["ticking"])


def peer_bars(models: int, seconds: float) -> Iterator[Bar]:
    """prometheus_client's multiprocess mode."""
    with serving(f"prometheus_client {models}", SERVER) as server:
        took = [server.ask("/metrics")[1] for _ in range(3)]
        peer = one_run(server, seconds, 0)
    name = f"prometheus_client multiprocess, 16 processes x {models}"
    yield bar_of(f"{name}: a scrape takes", took, unit="ms")
    yield bar_of(f"{name}: latest tick", [peer.scraped_ms], unit="ms")


def report(quick: bool = False, runs: int = 10, seconds: float = 5.0) -> Report:
    """Runs everything."""
    if quick:
        runs, seconds = 2, 1.0
    made = Report(f"Other processes: {ENGINES} at each stamp; 64 x 8 models at a scrape, {runs} runs of {seconds:g} s")
    plain, cold = stamps(5 if quick else REPEATS)
    made.calls = plain.calls() | cold.calls()
    made.bars += stamp_bars(plain, cold)
    with serving("tailwatch", SERVER) as server:
        made.bars += render_bars(server, 1 if quick else 5)
        taken = [one_run(server, seconds, turn) for turn in range(runs)]
        shown = [*stall_bars(taken), *cost_bars(server, quick)]
        made.bars += [replace(bar, name=f"64 x 8: {bar.name}") for bar in shown]
    made.notes += [f"run {i}: {run}" for i, run in enumerate(taken, 1)]
    made.bars += peer_bars(8, 1.0 if quick else 4.0)
    if not quick:
        made.bars += peer_bars(400, 4.0)
    return made


def test_group(benchmark: Any) -> None:
    """A stamp with 8 engines, timed by pytest-benchmark; the rest is in extra_info."""
    benchmark.extra_info.update(report(quick=True).as_dict())
    with tempfile.TemporaryDirectory() as root, engines(f"{root}/peers", ENGINES):
        _core, stream = stream_in(f"{root}/peers")
        benchmark.pedantic(stream.token, rounds=20, iterations=5_000, warmup_rounds=1)
        before = stream.tokens
        loop(stream.token)(1_000)
        assert stream.tokens - before == 1_000


if __name__ == "__main__":
    main(report)
