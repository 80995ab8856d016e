"""What the valid runs show together: means of each server's, and differences between pairs of one block."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tailwatch.demo.experiment.arms import ARMS, BY_KEY, QUESTIONS, Question
from tailwatch.demo.experiment.runs import FEWEST_FULL, ArmRun, Experiment
from tailwatch.loadtest import statistics
from tailwatch.loadtest.statistics import Difference
from tailwatch.snapshots.serialization import from_dict


@dataclass(frozen=True, slots=True)
class RunMetric:
    """One number of a run. name: as in the table; of: None where a run has none. less: whether less is better.
    at_least: whether it is a lower bound only, because so many requests were dropped (`Result.quantile`)."""

    key: str
    name: str
    of: Callable[[ArmRun], float | None]
    less: bool = True
    at_least: Callable[[ArmRun], bool] = lambda run: False


def _client(key: str, name: str, latency: str, percent: float) -> RunMetric:
    def of(run: ArmRun) -> float | None:
        found = run.result.quantile(latency, percent)
        return None if found is None else found.seconds

    def at_least(run: ArmRun) -> bool:
        found = run.result.quantile(latency, percent)
        return found is not None and found.censored

    return RunMetric(key, name, of, at_least=at_least)


METRICS = (
    _client("ttft_p90", "TTFT p90", "ttft", 90),
    _client("ttft_p99", "TTFT p99", "ttft", 99),
    _client("tpot_p90", "TPOT p90", "tpot", 90),
    _client("tpot_p99", "TPOT p99", "tpot", 99),
    _client("e2e_p90", "E2E p90", "e2e", 90),
    _client("e2e_p99", "E2E p99", "e2e", 99),
    RunMetric("itl_max", "ITL max", lambda run: run.result.largest_gap.max),
    RunMetric("offline", "offline tokens/s", lambda run: run.offline or None, less=False),
)
METRIC = {metric.key: metric for metric in METRICS}
COMPARED = ("e2e_p99", "itl_max", "ttft_p99", "tpot_p99", "e2e_p90", "offline")
ALPHA = 0.05  # of all differences together
MARGIN = 0.05  # a number is unchanged where the interval of its ratio lies within 1 / (1 + this) and 1 + this


def runs_of(found: Experiment, arm: str) -> list[ArmRun]:
    """The valid ones, in the order of their blocks."""
    return sorted((run for run in found.runs if run.arm == arm and run.result.valid), key=lambda run: run.block)


def pairs_of(found: Experiment, question: Question) -> list[tuple[ArmRun, ArmRun]]:
    """A pair for each block that has both runs, both valid."""
    after = {run.block: run for run in runs_of(found, question.after)}
    return [(run, after[run.block]) for run in runs_of(found, question.before) if run.block in after]


def values(found: Experiment, arm: str, metric: RunMetric) -> list[float]:
    """Of the runs that have one."""
    return [value for run in runs_of(found, arm) if (value := metric.of(run)) is not None]


def mean(values: list[float]) -> float | None:
    """Geometric, as ratios are compared; None of nothing."""
    kept = [value for value in values if value > 0]
    return math.exp(sum(map(math.log, kept)) / len(kept)) if kept else None


def difference(found: Experiment, question: Question, metric: RunMetric) -> Difference | None:
    """Of the blocks that have both runs, both valid; None where there is no such block. Nothing is proved where one of
    the numbers is a lower bound."""
    pairs = pairs_of(found, question)
    known = ((metric.of(before), metric.of(after)) for before, after in pairs)
    whole = [(one, other) for one, other in known if one and other]
    if not whole:
        return None
    sides = [one for one, _ in whole], [other for _, other in whole]
    made = statistics.paired(*sides, alpha=ALPHA / (len(QUESTIONS) * len(COMPARED)))
    return statistics.bare(made) if doubt(pairs, metric) else made


def doubt(pairs: list[tuple[ArmRun, ArmRun]], metric: RunMetric) -> str:
    """Why no pairs of valid runs, however many, show a difference; "": they may."""
    runs = [run for pair in pairs for run in pair]
    if any(BY_KEY[run.arm].unfrozen and run.full < FEWEST_FULL for run in runs):
        return f"unfrozen runs had fewer than {FEWEST_FULL} full collections"
    bound = any(metric.at_least(run) for run in runs)
    return "so many requests were dropped that it is known as a lower bound only" if bound else ""


@dataclass(frozen=True, slots=True)
class Claim:
    """One difference of the table. p: of the t-test, counted that all of the table were looked at (Holm); None with
    fewer than 6 pairs, and where there is a doubt."""

    difference: Difference
    p: float | None
    doubt: str = ""

    @property
    def pairs(self) -> int:
        """Of valid runs."""
        return self.difference.runs[0]

    @property
    def resolved(self) -> bool:
        """Whether there is an interval."""
        return self.difference.low is not None

    @property
    def why_not(self) -> str:
        """Why there is none."""
        if self.pairs < statistics.FEWEST:
            return f"pairs of valid runs: {self.pairs}, and an interval needs {statistics.FEWEST}"
        return self.doubt

    @property
    def shown(self) -> bool:
        """Whether the difference is one."""
        return self.p is not None and self.p <= ALPHA

    @property
    def unchanged(self) -> bool:
        """Whether the whole interval lies within the margin: more than that no difference is shown."""
        low, high = self.difference.low, self.difference.high
        return low is not None and high is not None and low >= 1 / (1 + MARGIN) - 1 and high <= MARGIN


Claims = dict[tuple[str, str], Claim]  # by the name of the question and the key of the metric


def claims(found: Experiment) -> Claims:
    """Every difference that is reported, as one family."""
    differences = {
        (question.name, key): made
        for question in QUESTIONS
        for key in COMPARED
        if (made := difference(found, question, METRIC[key])) is not None
    }
    adjusted = statistics.holm([made.p for made in differences.values()])
    pairs = {question.name: pairs_of(found, question) for question in QUESTIONS}
    return {
        (name, key): Claim(made, p, doubt(pairs[name], METRIC[key]))
        for ((name, key), made), p in zip(differences.items(), adjusted, strict=True)
    }


def unresolved(found: Experiment) -> list[str]:
    """Why the runs do not show what full collections cost; empty where they do."""
    reasons = list(found.notes)
    for arm in ARMS:
        full = [run.full for run in runs_of(found, arm.key)] if arm.unfrozen else []
        if few := sum(count < FEWEST_FULL for count in full):
            reasons.append(f"{arm.name}: {few} of {len(full)} runs had fewer than {FEWEST_FULL} full collections")
    invalid = [run for run in found.runs if not run.result.valid]
    if invalid:
        names = ", ".join(sorted({f"{BY_KEY[run.arm].name} ({run.result.validity.verdict})" for run in invalid}))
        left_out = f"{len(invalid)} of {len(found.runs)} runs are not valid"
        reasons.append(f"{left_out} and are left out, each with its pair: {names}")
    pairs = [(question.name, len(pairs_of(found, question))) for question in QUESTIONS]
    if lacking := [f"{name} {count}" for name, count in pairs if count < statistics.FEWEST]:
        reasons.append(f"pairs of valid runs: {', '.join(lacking)}; an interval needs {statistics.FEWEST}")
    for metric in METRICS:
        if bounds := sum(metric.at_least(run) for arm in ARMS for run in runs_of(found, arm.key)):
            reasons.append(f"{metric.name} is a lower bound only in {bounds} of the runs: too many requests dropped")
    return reasons


# The server's own view of the same requests; times in seconds.
SERVER_COLUMNS = (
    ("TTFT p90", "ttft", 90.0),
    ("p99", "ttft", 99.0),
    ("TPOT p90", "tpot", 90.0),
    ("p99", "tpot", 99.0),
    ("E2E p90", "e2e", 90.0),
    ("p99", "e2e", 99.0),
    ("ITL max", "itl", 100.0),
)


def _quantile(samples: Any, percent: float) -> float | None:
    """A saved snapshot has its maximum under another name."""
    found: float | None = samples.max if percent == 100 else samples.p(percent)
    return found


def server_view(found: Experiment, arm: str) -> dict[str, Any]:
    """Means over the runs of what tailwatch inside the server saw: SERVER_COLUMNS, "longest" (pause), "full"."""
    runs = runs_of(found, arm)
    snapshots = [from_dict(run.server["tailwatch"]["snapshot"]) for run in runs]
    columns = [
        mean([value for snapshot in snapshots if (value := _quantile(getattr(snapshot, name), percent))])
        for _, name, percent in SERVER_COLUMNS
    ]
    pauses = [max((value or 0.0 for value in run.server["tailwatch"]["longest"].values()), default=0.0) for run in runs]
    return {
        "columns": columns,
        "longest": max(pauses, default=None),
        "full": sum(run.full for run in runs) / max(1, len(runs)),
    }
