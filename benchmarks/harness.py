"""What the benchmarks share: interleaved timing, ratios with their spread, bars, the machine, and how it is printed.

Every benchmark builds a list of cases and calls measure(): one short run of each case after the other, again and
again, so that what disturbs the machine disturbs all of them. A ratio is the median of the ratios within one round;
its spread is the middle half of them. A bar that is missed is printed, and fails nothing.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from functools import cache
from itertools import repeat
from pathlib import Path
from typing import Any

Run = Callable[[int], float]
"""Does something n times; returns the ns of one."""

REPEATS = 41
LOOP = "empty loop"


@dataclass(frozen=True)
class Bar:
    """A ratio or a number against what it must reach."""

    name: str
    value: float
    low: float
    high: float
    bar: float | None = None
    at_least: bool = False
    unit: str = ""
    """Empty: a ratio."""

    @property
    def met(self) -> bool | None:
        """None: there is no bar."""
        if self.bar is None:
            return None
        return self.value >= self.bar if self.at_least else self.value <= self.bar

    def __str__(self) -> str:
        unit = f" {self.unit}" if self.unit else " x"
        text = f"{_short(self.value)}{unit}"
        if (self.low, self.high) != (self.value, self.value):
            text += f"  ({_short(self.low)} to {_short(self.high)})"
        if self.bar is not None:
            sign = ">=" if self.at_least else "<="
            text += f"  bar {sign} {_short(self.bar)}{unit}: {'met' if self.met else 'NOT MET'}"
        return text


@dataclass
class Report:
    """One benchmark's answer."""

    question: str
    calls: dict[str, dict[str, float]] = field(default_factory=dict)
    """By case: min, median and high (upper quartile) in ns."""
    bars: list[Bar] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    machine: dict[str, Any] = field(default_factory=lambda: machine())

    def as_dict(self) -> dict[str, Any]:
        """What --json writes."""
        return asdict(self) | {"bars": [asdict(bar) | {"met": bar.met} for bar in self.bars]}

    def __str__(self) -> str:
        width = max((len(name) for name in [*self.calls, *(bar.name for bar in self.bars)]), default=0)
        lines = [self.question, "", *(f"{key}: {value}" for key, value in self.machine.items()), ""]
        if self.calls:
            lines.append(f"{'ns per call'.ljust(width)}  {'min':>10} {'median':>10} {'p75':>10}")
        for name, call in self.calls.items():
            lines.append(f"{name.ljust(width)}  {call['min']:10.1f} {call['median']:10.1f} {call['high']:10.1f}")
        lines += ["", *(f"{bar.name.ljust(width)}  {bar}" for bar in self.bars)]
        return "\n".join([*lines, *self.notes])


class Samples:
    """ns per call of every case in every round."""

    def __init__(self, names: list[str]) -> None:
        self.by_case: dict[str, list[float]] = {name: [] for name in names}

    def calls(self) -> dict[str, dict[str, float]]:
        """Raw times, the loop around the call included."""
        return {
            name: {"min": min(values), "median": statistics.median(values), "high": _quartiles(values)[1]}
            for name, values in self.by_case.items()
        }

    def values(self, name: str, less: str | None = None) -> list[float]:
        """A case's rounds, less another's in the same round."""
        if less is None:
            return self.by_case[name]
        return [a - b for a, b in zip(self.by_case[name], self.by_case[less], strict=True)]

    def ratio(
        self, name: str, over: str, *, less: str | None = None, bar: float | None = None, at_least: bool = False,
        label: str = "",
    ) -> Bar:  # fmt: skip
        """name / over, each less the case `less`, round by round."""
        pairs = zip(self.values(name, less), self.values(over, less), strict=True)
        return bar_of(label or f"{name} / {over}", [a / b for a, b in pairs if b > 0], bar=bar, at_least=at_least)

    def difference(self, name: str, less: str, *, bar: float | None = None, label: str = "", unit: str = "ns") -> Bar:
        """name - less, round by round, in ns or us."""
        scale = {"ns": 1.0, "us": 1e3}[unit]
        values = [value / scale for value in self.values(name, less)]
        return bar_of(label or f"{name} - {less}", values, bar=bar, unit=unit)


def bar_of(name: str, values: list[float], *, bar: float | None = None, at_least: bool = False, unit: str = "") -> Bar:
    """The median of values, with the middle half of them as its spread."""
    low, high = _quartiles(values)
    return Bar(name, statistics.median(values), low, high, bar, at_least, unit)


def measure(cases: Mapping[str, Run], *, number: int | Mapping[str, int], repeats: int = REPEATS) -> Samples:
    """Runs every case `number` times a round; the order turns round with each round."""
    samples = Samples(list(cases))
    times = {name: number if isinstance(number, int) else number[name] for name in cases}
    for name, run in cases.items():
        run(max(1, times[name] // 4))  # warm
    for turn in range(repeats):
        for name in cases if turn % 2 == 0 else reversed(cases):
            samples.by_case[name].append(cases[name](times[name]))
    return samples


def loop(call: Callable[[], object]) -> Run:
    """A case that calls it in the shortest loop there is."""

    def run(n: int) -> float:
        steps = repeat(None, n)
        start = time.perf_counter_ns()
        for _ in steps:
            call()
        return (time.perf_counter_ns() - start) / n

    return run


def empty_loop(n: int) -> float:
    """That loop without a call."""
    steps = repeat(None, n)
    start = time.perf_counter_ns()
    for _ in steps:
        pass
    return (time.perf_counter_ns() - start) / n


def machine() -> dict[str, Any]:
    """What the numbers were taken on; no names."""
    import tailwatch
    from tailwatch.platform import VERSION

    return {
        "tailwatch": VERSION if tailwatch else "",
        "when": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": f"{platform.python_implementation()} {platform.python_version()} ({platform.python_compiler()})",
        "load average": [round(load, 2) for load in os.getloadavg()],
    }


def _cpu() -> str:
    facts = dict(
        line.split(":", 1) for line in Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines() if ":" in line
    )
    found = {key.strip(): value.strip() for key, value in facts.items()}
    text = found.get("model name", platform.machine())
    family = found.get("cpu family")
    if family:
        text += f" (family {family}, model {found.get('model', '?')})"
    return text + (", a virtual machine" if "hypervisor" in found.get("flags", "") else "")


def main(report: Callable[[bool], Report], *, also: Callable[[argparse.ArgumentParser], None] | None = None) -> None:
    """The script: --quick for fewer rounds, --json FILE to keep the numbers."""
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds: shows that it runs, proves nothing")
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write what was measured")
    if also is not None:
        also(parser)
    options = parser.parse_args()
    made = report(options.quick)
    print(made)
    if options.json:
        options.json.write_text(json.dumps(made.as_dict(), indent=1) + "\n")


def main_in_windows(report: Callable[[bool, int, float], Report]) -> None:
    """main() for what is measured in so many runs of windows of so many seconds."""

    def options(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--runs", type=int, default=10)
        parser.add_argument("--seconds", type=float, default=5.0, help="of each window")

    def run(quick: bool) -> Report:
        parser = argparse.ArgumentParser()
        options(parser)
        given, _ = parser.parse_known_args()
        return report(quick, given.runs, given.seconds)

    main(run, also=options)


def _quartiles(values: list[float]) -> tuple[float, float]:
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def _short(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


@cache
def native(name: str) -> Any:
    """A module of tests/native, built with the compiler at hand."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise SystemExit("needs a C compiler")
    source = Path(__file__).resolve().parent.parent / "tests" / "native" / f"{name}.c"
    with tempfile.TemporaryDirectory() as directory:
        target = Path(directory) / f"{name}.so"
        include = sysconfig.get_path("include")
        build = [compiler, "-shared", "-fPIC", "-O2", f"-I{include}", str(source), "-o", str(target), "-ldl"]
        subprocess.run(build, check=True)
        spec = importlib.util.spec_from_file_location(name, target)
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module
