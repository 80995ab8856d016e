"""What does each policy of the collector cost a server: tokens that wait, memory, processor time?

    python gc_policies.py [--python EXE ...] [--seconds 30] [--blocks 3] [--objects 2600000] [--loads LOAD ...]
                          [--realtime] [--memory | --auto | --slices] [--json FILE] [--quick]

gc_workload.py under each policy and load, one after the other, block by block, with the same seed in a block; each
Python on a core of its own, all of them at the same policy at the same time. The arm against which others are measured
is gc.disable() after a freeze: it never waits for the collector, and leaks.

Excess: what of a step's lateness lies in pauses (of the collector or of the policy, 50 us or more), by the pause clock.
A shared machine takes the processor away now and then, from a pause too: the thread's own clock, which stops where the
kernel knows of it, tells how long (others of the process may have had it as well), and both are judged, with it and
without. Such holes the arm that never collects sees, while it spins, by either clock: a bar is what is asked, or what
they would do to as much time as our slices took, whichever is larger; the notes tell the holes. Lateness
less gc.disable()'s: the median of the blocks' paired differences, against what is asked or the range of the control's
blocks, whichever is larger. --realtime (SCHED_FIFO, for root) keeps the other processes of the machine from making any
holes in the loads that leave the processor idle now and then, under all policies.

--auto: only the choice of gc="auto" is judged, against the fixed policies, by what their pauses add to a step (mean)
and to a request of 100 tokens (p99); the arm that never collects is left out.
--slices: only the CPU time of the slices of gc="idle" is judged, beside what one collection of a single new request
takes. What a slice frees is older, and no longer in the CPU's cache.
--objects: of the heap that lives as long as the server. Full collections are due after a quarter of it has grown old: a
smaller heap has as many of them in a shorter run.

--memory: for long runs, of which only memory is judged. It grows to the most that was dead at a time, and that record
is broken ever more seldom: a slope over half a minute shows it still.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import Bar, Report

FROZEN = 2_600_000
WORKLOAD = Path(__file__).resolve().parent / "gc_workload.py"
DISABLED, OBSERVE, FREEZE, OURS, AUTO = "gc.disable()", "observe", "freeze", "idle", "auto"
FIXED = (OBSERVE, FREEZE, OURS)
POLICIES = (DISABLED, *FIXED, AUTO)
CHOICES = ("growing", "threads", "host-froze")  # where the fixed policies differ most: only auto is judged
LOADS = ("light", "heavy", "bursty", "registry", "saturated", *CHOICES)
WITH_IDLE_TIME = ("light", "heavy", "bursty", "registry")  # the kernel stops what never leaves the processor
STILL_SECONDS, STILLS = 4.0, 4  # of each block; a pair differs by some hundredths on a shared machine
JUDGED = ("light", "heavy")  # tail and processor time
MOST_HOLES, KEPT_HOLES = 400, 20  # the longest: to judge by; in the file
LEAST_MS = 0.001  # a step; differences below it are none: pauses under 50 us are not recorded
REQUEST_TOKENS = 100
SLICE_MS = 0.5
BUSY = 0.7  # of the loads whose tail is judged: what the control spins is most of it
T_95 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365}
Run = dict[str, Any]


# ---- running ----


def place(core: int, realtime: bool) -> None:
    """In the child: on that core, before whatever else uses it."""
    os.sched_setaffinity(0, {core})
    if realtime:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))


@dataclass(frozen=True)
class Plan:
    """What is run."""

    pythons: list[str]
    loads: tuple[str, ...]
    seconds: float = 30.0
    blocks: int = 3
    objects: int = FROZEN
    realtime: bool = False
    memory: bool = False
    auto: bool = False
    slices: bool = False

    @property
    def policies(self) -> tuple[str, ...]:
        """The arms of each load."""
        if self.slices:
            return (OURS,)
        return (DISABLED, FREEZE, OURS) if self.memory else (*FIXED, AUTO) if self.auto else POLICIES

    @property
    def judges_cost(self) -> bool:
        """Whether steps without a pass due are compared."""
        return set(JUDGED) <= set(self.loads) and not (self.memory or self.auto or self.slices)


def run_one(plan: Plan, python: str, core: int, policy: str, load: str, seed: int) -> Run:
    """One process on one core."""
    seconds, realtime = STILL_SECONDS if load == "still" else plan.seconds, plan.realtime and load in WITH_IDLE_TIME
    command = [python, str(WORKLOAD), policy, load, str(seconds), str(seed), str(plan.objects)]
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=tempfile.gettempdir(),
        preexec_fn=lambda: place(core, realtime),
    )
    found: Run = json.loads(done.stdout)
    return summary(found)


def summary(run: Run) -> Run:
    """Without the single steps."""
    delay = run.pop("delay_ms")
    late, excess, own = (sorted(run.pop(name)) for name in ("late_ms", "excess_ms", "own_excess_ms"))
    holes, own_holes = sorted(run.pop("holes_ms")), sorted(run.pop("own_holes_ms"))
    rss = run.pop("rss")
    half = [value for at, value in rss if at >= rss[-1][0] / 2]
    return run | {
        "settled_ms": statistics.mean(delay[len(delay) // 2 :]),
        "request_ms": request_p99(delay[len(delay) // 2 :]),
        "longest_delay_ms": max(delay),
        "delay": tail(late),
        "excess": tail(excess),
        "own_excess": tail(own),
        "hole": holes[-1],
        "holes": holes[-MOST_HOLES:],
        "own_holes": own_holes[-MOST_HOLES:],
        "rss_median": statistics.median(half),
        "rss_end": half[-1],
        "rss_slope": slope([(at, value) for at, value in rss if at >= rss[-1][0] / 2]),
    }


def tail(ordered: list[float]) -> dict[str, float]:
    """By name."""
    return {name: quantile(ordered, q) for name, q in (("p50", 0.5), ("p99.9", 0.999), ("max", 1.0))}


def request_p99(delay: list[float]) -> float:
    """Of the requests that decode for REQUEST_TOKENS of these steps, whichever they begin with: by how much their steps
    were delayed in all, p99."""
    upto = [0.0, *itertools.accumulate(delay)]
    return quantile(sorted(end - begin for begin, end in zip(upto, upto[REQUEST_TOKENS:], strict=False)) or [0.0], 0.99)


def quantile(ordered: list[float], q: float) -> float:
    """Nearest rank."""
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)]


def slope(points: list[tuple[float, int]]) -> float:
    """Bytes a second, by least squares."""
    mean_x, mean_y = statistics.mean(x for x, _ in points), statistics.mean(y for _, y in points)
    over = sum((x - mean_x) * (y - mean_y) for x, y in points)
    return over / sum((x - mean_x) ** 2 for x, _ in points)


def run_all(plan: Plan) -> list[Run]:
    """Blocks of all loads and policies; the order of the policies turns around from each to the next."""
    cores = sorted(os.sched_getaffinity(0))
    found: list[Run] = []
    with ThreadPoolExecutor(len(plan.pythons)) as pool:
        for block in range(plan.blocks):
            stills = ("still",) * STILLS if plan.judges_cost else ()
            for turn, load in enumerate((*plan.loads, *stills), block):
                policies = (FREEZE, OURS) if load == "still" else plan.policies
                for policy in policies if turn % 2 == 0 else tuple(reversed(policies)):
                    jobs = [
                        pool.submit(run_one, plan, python, cores[at % len(cores)], policy, load, block + 1)
                        for at, python in enumerate(plan.pythons)
                    ]
                    for job in jobs:
                        found.append(job.result() | {"block": block})
                        print(line_of(found[-1]), file=sys.stderr, flush=True)
    return found


def line_of(run: Run) -> str:
    """What happens, while it happens."""
    return (
        f"{run['python']:8} {run['load']:9} {run['policy']:12} excess max {run['excess']['max']:7.2f} ms, delay by "
        f"pauses {run['settled_ms']:7.3f} ms a step, longest {run['longest_delay_ms']:7.1f}, "
        f"late max {run['delay']['max']:7.2f} ms, RSS {run['rss_median'] / 1e6:4.0f} MB, collector "
        f"{collector_ms(run):5.1f} ms/s, {run['tokens'] / run['seconds']:6.0f} tokens/s"
    )


# ---- what it prints ----


def collector_ms(run: Run) -> float:
    """A second of the run, in pauses."""
    return float(sum(run["paused"].values()) / run["seconds"] * 1e3)


class Runs:
    """Those of one Python."""

    def __init__(self, runs: list[Run]) -> None:
        self.runs = runs
        self.python = ".".join(runs[0]["python"].split(".")[:2])

    def of(self, load: str, policy: str) -> list[Run]:
        """By block."""
        found = [run for run in self.runs if run["load"] == load and run["policy"] == policy]
        return sorted(found, key=lambda run: int(run["block"]))

    def paired(self, load: str, other: str, value: Callable[[Run, Run], float]) -> list[float]:
        """Of each block, ours and the other's."""
        return [value(ours, its) for ours, its in zip(self.of(load, OURS), self.of(load, other), strict=True)]


def bar(name: str, values: list[float], limit: float | None, unit: str = "", *, at_least: bool = False) -> Bar:
    """The median and the range of the blocks."""
    return Bar(name, statistics.median(values), min(values), max(values), limit, at_least, unit)


def worst(name: str, values: list[float], limit: float | None, unit: str = "") -> Bar:
    """The largest of all blocks."""
    return Bar(name, max(values), min(values), max(values), limit, False, unit)


def holes_ms(runs: Runs, load: str, name: str, holes: str) -> float:
    """What the machine's holes would do to as much time as our slices took, at that quantile of the steps. holes: by
    which clock."""

    def of_block(ours: Run, control: Run) -> float:
        share = collector_ms(ours) / (1e3 * BUSY)
        beyond = (0.001 if name == "p99.9" else 1 / control["steps"]) / share
        return float(quantile_from_the_end(control[holes], beyond * control["steps"]))

    return max(runs.paired(load, DISABLED, of_block))


def quantile_from_the_end(ordered: list[float], place: float) -> float:
    """Of so many longer ones."""
    return ordered[-1 - int(place)] if place < len(ordered) else 0.0


def tail_bars(runs: Runs, load: str) -> list[Bar]:
    """Light and heavy: from the pause clock, and as difference to the arm that never collects."""
    ours, control = runs.of(load, OURS), runs.of(load, DISABLED)
    found = []
    for name, limit in (("p99.9", 0.5), ("max", 2.0)):
        title = f"{runs.python} {load}, excess {name}"
        for clock, value, holes in (
            ("pause clock", "excess", "holes"),
            ("without what the machine took", "own_excess", "own_holes"),
        ):
            asked = max(limit, holes_ms(runs, load, name, holes))
            found.append(worst(f"{title}, {clock}", [run[value][name] for run in ours], asked, "ms"))
        more = runs.paired(load, DISABLED, lambda one, other, name=name: one["delay"][name] - other["delay"][name])  # type: ignore[misc]
        late = [run["delay"][name] for run in control]
        found.append(bar(f"{title}, lateness less gc.disable()'s", more, max(limit, max(late) - min(late)), "ms"))
    for policy in (FREEZE, OBSERVE):
        its = [run["excess"]["max"] for run in runs.of(load, policy)]
        found.append(bar(f"{runs.python} {load}, excess max, gc={policy!r}", its, None, "ms"))
    return found


def saturated_bars(runs: Runs) -> list[Bar]:
    """Longest step, and throughput."""
    longer = runs.paired("saturated", DISABLED, lambda one, other: one["longest_turn_ms"] - other["longest_turn_ms"])
    faster = runs.paired("saturated", FREEZE, lambda one, other: one["steps"] / other["steps"])
    return [
        bar(f"{runs.python} saturated, longest step less gc.disable()'s", longer, 3.0, "ms"),
        bar(f"{runs.python} saturated, steps, idle / freeze", faster, 1.0, at_least=True),
    ]


def interval(values: list[float]) -> tuple[float, float, float]:
    """Mean and the 95 % interval of it; a run is the unit."""
    mean = statistics.mean(values)
    if len(values) < 2:
        return mean, -math.inf, math.inf
    half = T_95.get(len(values) - 1, 1.96) * statistics.stdev(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def memory_bars(runs: Runs, load: str) -> list[Bar]:
    """Bounded, in runs that were long enough to show it."""
    ours = runs.of(load, OURS)
    more = runs.paired(load, FREEZE, lambda one, other: one["rss_median"] / other["rss_median"])
    leak = runs.paired(load, DISABLED, lambda one, other: other["rss_end"] / one["rss_median"])
    _, low, high = interval([run["rss_slope"] / 1e6 for run in ours])
    left = [run["left"] / run["live_unfrozen"] for run in ours]
    name = f"{runs.python} {load}, {ours[0]['seconds']:.0f} s"
    found = [
        bar(f"{name}, RSS, idle / freeze", more, 1.05),
        bar(f"{name}, RSS at the end, gc.disable() / idle", leak, 1.5, at_least=True),
        bar(f"{name}, objects in the end / before traffic", left, 1.02),
    ]
    if len(ours) > 1:
        away = max(0.0, low, -high)
        found.append(Bar(f"{name}, RSS slope, 0 is outside of its interval by", away, low, high, 0.0, False, "MB/s"))
    return found


def steps_of(run: Run) -> float:
    """In a second of processor time, passes aside."""
    return float(run["steps"] / (run["cpu_seconds"] - sum(run["paused"].values())))


def cost_bars(runs: Runs) -> list[Bar]:
    """Hooks without a pass, and the collector's time."""
    still = runs.paired("still", FREEZE, lambda one, other: steps_of(one) / steps_of(other))
    found = [bar(f"{runs.python} hooks, no pass due: steps a CPU second / freeze's", still, 0.99, at_least=True)]
    for load in JUDGED:
        busy = runs.paired(load, FREEZE, lambda one, other: collector_ms(one) / collector_ms(other))
        found.append(bar(f"{runs.python} {load}, collector time, idle / freeze", busy, 1.0))
    return found


DELAYS = {
    "settled_ms": ("mean delay of a step by pauses", LEAST_MS),
    "request_ms": (f"delay by pauses of {REQUEST_TOKENS} tokens, p99", LEAST_MS * REQUEST_TOKENS),
}


def auto_bars(runs: Runs, load: str, policies: tuple[str, ...]) -> list[Bar]:
    """gc="auto" against the best fixed policy in the second half of a run, when it has chosen, by what pauses add to a
    step and to a request: the paired interval must not lie wholly on the worse side, by a microsecond a step. And what
    it chose. Not lateness: a process that works in its idle time is woken sooner, whatever it works at, and is less
    late than one that never collects."""
    found = []
    for key, (what, least) in DELAYS.items():
        found += best_bars(runs, load, key, what, least)
    shown = {key: what for key, (what, _) in DELAYS.items()} | {"longest_delay_ms": "longest delay of a step by pauses"}
    for policy in policies:
        its = runs.of(load, policy)
        for key, what in shown.items():
            found.append(bar(f"{runs.python} {load}, {policy}: {what}", [run[key] for run in its], None, "ms"))
    return found


def slice_bars(runs: Runs, load: str) -> list[Bar]:
    """What slices take of their thread's CPU."""
    its = runs.of(load, OURS)
    found = [
        bar(f"{runs.python} {load}, a slice, {place}", [run["own_ms"][place] for run in its], SLICE_MS, "ms")
        for place in ("p50", "p90", "p99")
    ]
    single = [run["request_collected_ms"] for run in its]
    return [*found, bar(f"{runs.python} {load}, gc.collect(0) of one request of 200 tokens", single, None, "ms")]


def best_bars(runs: Runs, load: str, key: str, what: str, least: float) -> list[Bar]:
    """Of auto, less the fixed policy that is best by that key."""
    best = min(FIXED, key=lambda policy: statistics.mean(run[key] for run in runs.of(load, policy)))
    pairs = zip(runs.of(load, AUTO), runs.of(load, best), strict=True)
    mean, low, high = interval([ours[key] - its[key] for ours, its in pairs])
    chosen = sorted({run["status"]["kind"] for run in runs.of(load, AUTO)})
    name = f"{runs.python} {load}, auto ({', '.join(chosen)}) less {best}: {what}"
    return [
        Bar(f"{name}, low end of the interval", low, low, high, least, False, "ms"),
        Bar(name, mean, low, high, None, False, "ms"),
    ]


def report_of(found: list[Run], plan: Plan) -> Report:
    """All bars (memory, auto, slices: those alone), and what the workload was."""
    report = Report("What does each policy of the collector cost a server: tokens that wait, memory, processor time?")
    loads, every = plan.loads, not (plan.memory or plan.auto or plan.slices)
    for python in dict.fromkeys(run["python"] for run in found):
        runs = Runs([run for run in found if run["python"] == python])
        for load in [load for load in loads if load in JUDGED and every]:
            report.bars += tail_bars(runs, load)
        report.bars += saturated_bars(runs) if "saturated" in loads and every else []
        for load in loads if plan.slices else []:
            report.bars += slice_bars(runs, load)
        for load in [] if plan.memory or plan.slices else loads:
            report.bars += auto_bars(runs, load, plan.policies)
        for load in [load for load in loads if load not in CHOICES and not (plan.auto or plan.slices)]:
            report.bars += memory_bars(runs, load)
        if plan.judges_cost:
            report.bars += cost_bars(runs)
        heavy = runs.of(loads[0], OURS)[0]
        report.notes.append(
            f"Python {python}: {heavy['frozen']:,} frozen, {heavy['live_unfrozen']:,} live and not frozen, "
            f"{heavy['new_objects_per_second']:,.0f} new objects a second ({loads[0]}), "
            f"runs of {heavy['seconds']:.0f} s, {len(runs.of(loads[0], OURS))} blocks; "
            f"pauses lost: {sum(run['pauses_lost'] for run in runs.runs)}; longest hole of the machine: "
            f"{max(run['hole'] for run in runs.runs):.1f} ms, by the thread's own clock "
            f"{max(run['own_holes'][-1] for run in runs.runs):.1f} ms"
        )
    return report


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", action="append", help="an interpreter that has tailwatch; again for another one")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--blocks", type=int, default=3)
    parser.add_argument("--loads", nargs="+", default=list(LOADS), choices=LOADS)
    parser.add_argument("--realtime", action="store_true", help="before all other processes of the machine; needs root")
    parser.add_argument("--objects", type=int, default=FROZEN, help="of the long-lived heap; default %(default)s")
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--memory", action="store_true", help="long runs: nothing but memory is judged")
    only.add_argument("--auto", action="store_true", help='nothing but the choice of gc="auto" is judged')
    only.add_argument("--slices", action="store_true", help="nothing but the CPU time of slices is judged")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true", help="one block of short runs: whether it works")
    options = parser.parse_args()
    seconds, blocks = (3.0, 1) if options.quick else (options.seconds, options.blocks)
    pythons, loads = options.python or [sys.executable], tuple(options.loads)
    how = {name: getattr(options, name) for name in ("objects", "realtime", "memory", "auto", "slices")}
    plan = Plan(pythons, loads, seconds, blocks, **how)
    found = run_all(plan)
    report = report_of(found, plan)
    if options.realtime:
        report.notes.append(f"SCHED_FIFO: {', '.join(load for load in loads if load in WITH_IDLE_TIME)}")
    print(report)
    if options.json:
        for run in found:
            for name in ("holes", "own_holes"):
                run[name] = [] if plan.auto or plan.slices else run[name][-KEPT_HOLES:]
        options.json.write_text(json.dumps(report.as_dict() | {"runs": found}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
