"""What does it cost to record a trace, and does writing one hold up the event loop?

The stamp with and without a ring, in instructions of our own (callgrind, as tests/stamp/test_instructions.py counts)
and in ns. Then a real server in a process of its own whose loop ticks each millisecond while 20 streams stamp: three
windows in changing order, two without a dump and one in which 10^6 events are dumped, once. A stall is a tick
later than 2 ms beyond the control's worst; the second window without dumps shows what the machine does by itself.
"""

from __future__ import annotations

import importlib
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bench_scrape import Server, one_run, serving, stall_bars
from harness import LOOP, Bar, Report, bar_of, empty_loop, loop, main_in_windows, measure

from tailwatch import _hot

HERE = Path(__file__).resolve().parent
SCRIPT = HERE / "trace_server.py"
SLO = (2 * 10**9, 2 * 10**8, 0, 0, 990_000)


class DumpServer(Server):
    """Dumps where the other is scraped."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.dumps: list[dict[str, float]] = []

    def ticks(self, seconds: float, *, scrape: bool) -> list[float]:
        """How late each tick of a window was, ms."""
        self.ask("/ticks", "POST")
        end = time.monotonic() + seconds
        time.sleep(seconds / 4)
        if scrape:
            self.dumps.append(json.loads(self.ask("/dump", "POST")[0]))
        time.sleep(max(0.0, end - time.monotonic()))
        body, _ = self.ask("/ticks")
        return [late / 1e6 for _, late in json.loads(body)]


@contextmanager
def dumping() -> Iterator[DumpServer]:
    """A fresh process."""
    with serving("", SCRIPT) as server:
        yield DumpServer(server.port)


def instruction_bars() -> Iterator[Bar]:
    """By callgrind: ours only, so it does not depend on the machine."""
    if shutil.which("valgrind") is None:
        return
    sys.path.insert(0, str(HERE.parent))
    counting = importlib.import_module("tests.stamp.test_instructions")
    found = None
    with tempfile.TemporaryDirectory() as directory, suppress(pytest.skip.Exception):
        found = counting.count("stamps", Path(_hot.__file__), Path(directory))
    for name, base, bar in (
        ()
        if found is None
        else (
            ("stamp", "stamp", 1.25),
            ("step", "step entered and left", None),
            ("collection of generation 0", "collection of generation 0", None),
        )
    ):
        value = found[f"{name}, recorded"].instructions / found[base].instructions
        yield Bar(f"ring event by instruction count: {name}", value, value, value, bar)


def stamp_bars(made: Report, quick: bool) -> None:
    """In ns, of the same stamp."""
    cores = [_hot.Core("api", 4, SLO, 0, lambda scope: "", lambda waits, stream: waits) for _ in range(2)]
    cores[1].trace_start(100_000)
    plain, recorded = (core.stream("m", "r", None, "", "").token for core in cores)
    cases = {LOOP: empty_loop, "stamp": loop(plain), "stamp, recorded": loop(recorded)}
    samples = measure(cases, number=20_000, repeats=5 if quick else 41)
    made.calls.update(samples.calls())
    made.bars.append(samples.ratio("stamp, recorded", "stamp", less=LOOP))
    made.bars.append(samples.difference("stamp, recorded", "stamp"))
    cores[1].trace_stop()


def report(quick: bool = False, runs: int = 10, seconds: float = 5.0) -> Report:
    """Runs everything."""
    if quick:
        runs, seconds = 2, 1.0
    made = Report(
        f"A recorded stamp, and dumps of 10^6 events during load: {runs} runs of three windows of {seconds:g} s"
    )
    made.bars += instruction_bars()
    stamp_bars(made, quick)
    with dumping() as server:
        taken = [one_run(server, seconds, turn) for turn in range(runs)]
    for bar in stall_bars(taken):
        made.bars.append(replace(bar, name=_named(bar.name)))
    made.bars.append(bar_of("events of a dump", [dump["events"] for dump in server.dumps], unit="events"))
    made.bars.append(bar_of("a dump takes", [dump["seconds"] for dump in server.dumps], unit="s"))
    made.bars.append(bar_of("bytes of a dump", [dump["bytes"] for dump in server.dumps], unit="bytes"))
    made.notes += [f"run {i}: {run}" for i, run in enumerate(taken, 1)]
    return made


def _named(name: str) -> str:
    return name.replace("nobody scraping", "no dump").replace("scraped", "dumped")


def test_trace(benchmark: Any) -> None:
    """A dump of 10^6 events, timed by pytest-benchmark, from a server under load."""
    benchmark.extra_info.update(report(quick=True).as_dict())
    with dumping() as server:
        body, _ = benchmark.pedantic(lambda: server.ask("/dump", "POST"), rounds=3)
    assert json.loads(body)["events"] >= 0.99e6  # of what rings have lost meanwhile nothing is written


if __name__ == "__main__":
    main_in_windows(report)
