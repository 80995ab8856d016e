"""The numbers of a run that runs are compared by: what each is, which way is better, and how it is written."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailwatch.errors import OptionError
from tailwatch.loadtest.report import text

if TYPE_CHECKING:
    from tailwatch.loadtest.results import Result

PERCENTILES = (50.0, 90.0, 99.0, 99.9)
BUCKET = 0.022  # width of a histogram's bucket, as a share of its value
ANSWERED = ("good", "late", "4xx", "3xx")  # outcomes that are no failure of the server or the client


@dataclass(frozen=True, slots=True)
class Measure:
    """One number of a run.

    name: "ttft", "goodput" …, as a user asks for it. percent: of a latency, 100 for its largest; None for others.
    unit: "s" (shown as ms), "/s", or "%" of a share. lower: whether lower is better. ratio: whether a change is a ratio
    (shares change by points). planned: whether it is timed from the planned start, so that the client's own lag is in
    it.
    """

    name: str
    percent: float | None = None
    unit: str = "s"
    lower: bool = True
    ratio: bool = True
    planned: bool = False

    @property
    def label(self) -> str:
        """ "ttft p99", "largest gap max", "goodput"."""
        words = self.name.replace("_", " ")
        if self.percent is None:
            return words
        return f"{words} max" if self.percent == 100 else f"{words} p{self.percent:g}"

    def of(self, run: Result) -> float | None:
        """Its value in a run: seconds, per second, or a share; None where the run has none."""
        if self.percent is None:
            value = _COUNTED[self.name](run)
        elif self._out_of_reach(run):
            return None
        else:
            value = run.percentile(self.name, self.percent)
        return value if value is not None and math.isfinite(value) else None

    def censored(self, run: Result) -> bool:
        """Whether its value in a run is a lower bound: that many requests were dropped (censored_percentiles.py)."""
        found = None if self.percent is None else run.quantile(self.name, self.percent)
        return found is not None and found.censored

    def resolution(self, runs: Iterable[Result]) -> float:
        """What its values are rounded to, as a share of them; 0: exact."""
        if self.percent in (None, 100):
            return 0.0
        return BUCKET if self.name in ("itl", "itl_unmarked") or any(run.requests is None for run in runs) else 0.0

    def text(self, value: float) -> str:
        """A value with its unit: "62.1 ms", "38.4/s", "99.2%"."""
        if self.unit == "s":
            return text.duration(value)
        return text.share(value) if self.unit == "%" else text.rate(value)

    def change(self, value: float, ratio: bool) -> str:
        """A change of it, with its sign: "-55.8%", "3.5x" from twice on; where there is no ratio "+0.3 points", or in
        its unit."""
        if ratio:
            return f"{text.three(1 + value)}x" if value >= 1 else f"{value:+.1%}"
        if self.unit == "%":
            return f"{value * 100:+.2f} points"
        return f"{value * 1e3:+.3g} ms" if self.unit == "s" else f"{value:+.3g}/s"

    def _out_of_reach(self, run: Result) -> bool:
        """A percentile beyond the last sample is the maximum under another name."""
        samples = run.latencies.sample(self.name).count
        return self.percent != 100 and samples * (100 - (self.percent or 0)) < 100 - 1e-9


def measures(names: Sequence[str] = (), percentiles: Sequence[float] = PERCENTILES) -> list[Measure]:
    """Those of a comparison, in the order of a table. names: of `NAMES`; all of the usual ones when empty. The usual
    percentiles are others where a number is one a request: p99.9 of TPOT is no use, and a largest gap has a maximum.

    Raises:
        OptionError: a name that is none, or a percentile that is none.
    """
    for percent in percentiles:
        if not 0 < percent <= 100:
            raise OptionError.of("percentiles", percent, "expected numbers above 0 and up to 100")
    for name in names:
        if name not in NAMES:
            raise OptionError.of("metrics", name, f"expected some of {', '.join(NAMES)}", choices=NAMES)
    return [measure for name in names or USUAL for measure in _of_name(name, percentiles)]


def _of_name(name: str, percentiles: Sequence[float]) -> list[Measure]:
    if name in _COUNTED:
        return [_SHAPES[name]]
    shown = list(percentiles)
    if tuple(percentiles) == PERCENTILES and name in ("tpot", "largest_gap"):
        shown = [50.0, 99.0, 100.0] if name == "largest_gap" else [50.0, 90.0, 99.0]
    return [Measure(name, percent, planned=name in _PLANNED) for percent in dict.fromkeys(shown)]


def failed(run: Result) -> float | None:
    """Share of what counts (the attainment's denominator) that was not answered: errors, refusals, timeouts, given up,
    never sent."""
    counted = run.goodput.counted
    misses = sum(count for reason, count in run.outcomes.by_reason.items() if reason not in ANSWERED)
    return misses / counted if counted else None


_COUNTED: dict[str, Callable[[Result], float | None]] = {
    "goodput": lambda run: run.goodput.rate,
    "attainment": lambda run: run.goodput.attainment,
    "throughput": lambda run: run.goodput.throughput,
    "tokens": lambda run: run.goodput.tokens,
    "fluidity": lambda run: run.fluidity,
    "failed": failed,
}
_SHAPES = {
    "goodput": Measure("goodput", unit="/s", lower=False),
    "attainment": Measure("attainment", unit="%", lower=False, ratio=False),
    "throughput": Measure("throughput", unit="/s", lower=False),
    "tokens": Measure("tokens", unit="/s", lower=False),
    "fluidity": Measure("fluidity", unit="%", lower=False, ratio=False),
    "failed": Measure("failed", unit="%", ratio=False),
}
_PLANNED = ("ttft", "e2e", "first_byte", "first_chunk")
_LATENCIES = (*_PLANNED, "tpot", "itl", "largest_gap", "ttft_naive", "e2e_naive", "itl_unmarked")
NAMES = (*_LATENCIES, *_COUNTED)
USUAL = ("ttft", "tpot", "largest_gap", "e2e", "goodput", "throughput", "failed")
