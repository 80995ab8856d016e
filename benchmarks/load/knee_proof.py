"""Whether `tailwatch bench --find goodput`, with its defaults, finds knees that are known: in virtual time.

The command's own parser, workload, schedules and search run; the server and the clock are simulated
(knee_queues.py). `python benchmarks/load/knee_proof.py --seeds 40` writes benchmarks/results/search_truth.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from array import array
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
from knee_queues import CASES, Answers, Case, kept

from tailwatch.loadtest import main as bench
from tailwatch.loadtest import workload as workloads
from tailwatch.loadtest.bench import Conditions
from tailwatch.loadtest.goodput import goodput_of
from tailwatch.loadtest.knee_search import KneeSearch
from tailwatch.loadtest.outcomes import CODE, Outcomes
from tailwatch.loadtest.requests import COLUMNS, NEVER, Requests
from tailwatch.loadtest.results import Result
from tailwatch.loadtest.saturation_point import Knee
from tailwatch.loadtest.schedule import Schedule

RESULTS = Path(__file__).resolve().parents[1] / "results" / "search_truth.json"
APART = 1000  # between the seeds of two searches: each of their probes has a seed of its own
BETWEEN = 0.2  # seconds between two runs


@dataclass
class VirtualServer:
    """Runs schedules against a simulated server, on a clock of its own."""

    case: Case
    seed: int
    now: float = 0.0
    rng: Any = field(init=False)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    def run(self, _: workloads.Workload, conditions: Conditions, schedule: Schedule) -> Result:
        """Instead of run_workload."""
        if conditions.workers:
            answers = self.case.server.closed(conditions.workers, schedule.duration, self.rng)
        else:
            answers = self.case.server.serve(np.array(schedule.times_ns) / 1e9, self.rng)
        self.now += max(schedule.duration, float(answers.end.max())) + BETWEEN
        return result_of(answers, conditions, schedule.duration)


def result_of(answers: Answers, conditions: Conditions, duration: float) -> Result:
    """As the recorder makes it."""
    n, slo = len(answers.planned), conditions.slo
    good = np.ones(n, bool) if slo is None else kept(answers, slo)
    rows = Requests()
    ns = {"planned": answers.planned, "sent": answers.planned, "first": answers.first, "end": answers.end}
    ns |= {"first_byte": answers.first, "first_chunk": answers.first, "last": answers.end}
    ns |= {"tpot": answers.tpot} if answers.tpot is not None else {}
    whole = {name: (value * 1e9).round().astype(np.int64) for name, value in ns.items()}
    whole |= {"reason": np.where(good, CODE["good"], CODE["late"]), "status": np.full(n, 200), "index": np.arange(n)}
    missing = {"tpot", "largest_gap", "largest_gap_at"}
    for name, code in COLUMNS.items():
        column = whole.get(name, np.full(n, NEVER if name in missing else 0))
        setattr(rows, name, array(code, column.astype(array(code).typecode).tobytes()))
    outcomes = Outcomes.of(rows.reason, rows.fault)
    share = goodput_of(outcomes, slo, duration=duration, throughput=0.0, tokens=0.0, broken={})
    return Result("", duration, share, slo=slo, outcomes=outcomes, closed=bool(conditions.workers), requests=rows)


def search(case: Case, seed: int, words: Sequence[str] = ()) -> tuple[Knee, float]:
    """One search with the defaults (and these further words of the command line), and the virtual seconds it took."""
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    asked = ["http://127.0.0.1:1", "--find", "goodput", "--slo", case.slo, "--seed", str(APART * seed), *words]
    parsed = parser.parse_args(asked)
    workload, conditions = workloads.from_arguments(parsed), bench.conditions_of(parsed)
    server = VirtualServer(case, seed)
    limits = bench.limits_of(parsed, workload, conditions)
    going = KneeSearch(workload, conditions, limits, parsed.find, run=server.run, clock=lambda: server.now)
    return going.find(), server.now


def summary(case: Case, found: Sequence[tuple[Knee, float]]) -> dict[str, Any]:
    """Of all seeds of a server. median_error: of the resolved. lower: the unresolved with a lower end; median_lower:
    the median of these ends, as a share of the truth."""
    resolved = [knee for knee, _ in found if knee.resolved]
    others = [knee for knee, _ in found if not knee.resolved]
    errors = [abs(knee.rate / case.truth - 1) for knee in resolved if knee.rate]
    lows = [knee.low / case.truth for knee in others if knee.low]
    row = {
        "slo": case.slo,
        "truth": round(case.truth, 4),
        "seeds": len(found),
        "resolved": len(resolved),
        "resolved_hold": sum(holds(case, knee) for knee in resolved),
        "median_error": round(statistics.median(errors), 5) if errors else None,
        "bounds": len(others),
        "bounds_hold": sum(holds(case, knee) for knee in others),
        "lower": len(lows),
        "median_lower": round(statistics.median(lows), 3) if lows else None,
        "explained": sum(bool(knee.reason) for knee in others),
        "reasons": sorted({knee.reason for knee in others})[:4],
        "median_seconds": round(statistics.median(seconds for _, seconds in found)),
    }
    return {**row, "bar": bar(row)}


def bar(row: dict[str, Any]) -> str:
    """What a server reaches. "interval": four in five searches resolve, nine in ten of these hold the truth, and their
    median error is at most 2 %. "bound": the same of those that resolve, if any; nine in ten of the others hold the
    truth, and each gives its reason. Else "missed"."""
    honest = row["resolved_hold"] >= 0.9 * row["resolved"] and (row["median_error"] or 0.0) <= 0.02
    if honest and row["resolved"] >= 0.8 * row["seeds"]:
        return "interval"
    sure = row["bounds_hold"] >= 0.9 * row["bounds"] and row["explained"] == row["bounds"]
    return "bound" if honest and sure else "missed"


def holds(case: Case, knee: Knee) -> bool:
    """Whether the truth lies within what it promises."""
    return (knee.low or 0.0) <= case.truth <= (knee.high or float("inf"))


def one(task: tuple[int, int]) -> tuple[int, Knee, float]:
    """A search, by the number of its server and its seed."""
    number, seed = task
    knee, seconds = search(CASES[number], seed)
    return number, replace(knee, tried=()), seconds


def main() -> None:
    """Writes the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--only", default="", help="one server, by its name")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--json", type=Path, default=RESULTS)
    parsed = parser.parse_args()
    numbers = [number for number, case in enumerate(CASES) if parsed.only in ("", case.name)]
    found: dict[int, list[tuple[Knee, float]]] = {number: [] for number in numbers}
    tasks = [(number, seed) for seed in range(parsed.seeds) for number in numbers]
    with ProcessPoolExecutor(parsed.processes) as pool:
        for number, knee, seconds in pool.map(one, tasks):
            found[number].append((knee, seconds))
            table = {CASES[each].name: summary(CASES[each], rows) for each, rows in found.items() if rows}
            parsed.json.write_text(json.dumps(table, indent=1) + "\n")
    for name, row in table.items():
        print(name, row)


if __name__ == "__main__":
    main()
