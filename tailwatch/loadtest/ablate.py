"""Which of a server's settings made the difference: each variant in fresh servers, interleaved, in pairs of runs.

A pair (of two variants and more: a block) is one run of each, all with one schedule, which is the pair's own. The order
turns with each: A B, B A, B A, A B …, so that neither a drift of the machine nor the order separates them. The
first variant runs once more in each as "A again": what equal arms differ by.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tailwatch.errors import OptionError, TailwatchError
from tailwatch.loadtest import results
from tailwatch.loadtest.compare import PAIR, Comparison, VariantRuns, compare
from tailwatch.loadtest.metrics import Measure
from tailwatch.loadtest.results import Result
from tailwatch.loadtest.statistics import FEWEST
from tailwatch.loadtest.variants import Variant

AGAIN = "again"
MOST_PAIRS = 1000
SPARE = 3  # pairs run in place of those that may not be believed

RunOne = Callable[[Variant, str, int], Result]
"""One run of a variant in a fresh server: at a load, with the schedule of a pair."""


@dataclass(frozen=True)
class AblationPlan:
    """What is run. loads: names of loads, each compared by itself. again: the first variant twice in each pair."""

    variants: Sequence[Variant]
    loads: Sequence[str] = ("",)
    pairs: int = FEWEST
    again: bool = True

    def __post_init__(self) -> None:
        if not FEWEST <= self.pairs <= MOST_PAIRS:
            raise OptionError.of("pairs", self.pairs, f"expected {FEWEST} to {MOST_PAIRS}: fewer give no interval")

    @property
    def arms(self) -> tuple[Variant, ...]:
        """The variants, with the first one again at the end."""
        first = self.variants[0]
        return (*self.variants, replace(first, name=self.again_name)) if self.again else tuple(self.variants)

    @property
    def again_name(self) -> str:
        """Of the equal arm."""
        return f"{self.variants[0].name} ({AGAIN})"

    @property
    def runs(self) -> int:
        """How many there are, unless some must be repeated."""
        return self.pairs * len(self.arms) * len(self.loads)


@dataclass
class Found:
    """The runs so far, by the arm's name. whole: pairs all of whose runs may be believed. interrupted: Ctrl-C ended the
    last run."""

    plan: AblationPlan
    runs: dict[str, list[Result]] = field(default_factory=dict)
    whole: int = 0
    interrupted: bool = False

    def compare(self, of: Sequence[Measure] = ()) -> Comparison:
        """The verdict.

        Raises:
            TailwatchError: no pair is complete.
        """
        missing = [arm.name for arm in self.plan.arms if not self.runs.get(arm.name)]
        if missing:
            raise TailwatchError(f"there is no run of {', '.join(missing)}: nothing to compare")
        arms = [VariantRuns(variant.name, self.runs[variant.name]) for variant in self.plan.variants]
        again = VariantRuns(self.plan.again_name, self.runs[self.plan.again_name]) if self.plan.again else None
        return compare(arms, of=of, again=again)

    def save(self, directory: Path) -> None:
        """A file a variant, for `tailwatch compare`.

        Raises:
            TailwatchError: a file cannot be written.
        """
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise TailwatchError(f"-o {directory}: {error.strerror}") from error
        for name, runs in self.runs.items():
            plain = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in name)
            results.save(directory / f"{plain}.json", runs)


def order(variants: int, pair: int) -> list[int]:
    """Which arm runs when in a pair: turned round in every second, begun with another one after two."""
    shifted = [(pair // 2 + i) % variants for i in range(variants)]
    return shifted[::-1] if pair % 2 else shifted


def ablate(plan: AblationPlan, run: RunOne, show: Callable[[str], None] = lambda sentence: None) -> Iterator[Found]:
    """Runs it, and yields what is found, always the same object, after each pair. A pair with a run that may not be
    believed is repeated, with a schedule of its own, three times in all; its runs are kept and left out by the
    comparison.

    Whatever `run` raises ends it; what was found before stands, with the runs of the pair that was begun.
    """
    found, pair = Found(plan, {arm.name: [] for arm in plan.arms}), 0
    while found.whole < plan.pairs and pair < plan.pairs + SPARE:
        made = []
        for name, result in _pair(plan, run, pair, show):
            found.runs[name].append(result)
            made.append(result)
            found.interrupted = result.interrupted
        if found.interrupted:
            return
        found.whole += all(result.valid for result in made)
        pair += 1
        yield found


def _pair(plan: AblationPlan, run: RunOne, pair: int, show: Callable[[str], None]) -> Iterator[tuple[str, Result]]:
    arms = plan.arms
    for load in plan.loads:
        for i in order(len(arms), pair):
            result = run(arms[i], load, pair)
            result.name, result.settings = arms[i].name, {**result.settings, PAIR: pair}
            show(_run_sentence(result, load, pair, plan.pairs))
            yield arms[i].name, result
            if result.interrupted:
                return


def _run_sentence(result: Result, load: str, pair: int, pairs: int) -> str:
    p99 = result.quantile("ttft", 99)
    seen = "no answer" if p99 is None else f"ttft p99 {'≥' * p99.censored}{p99.seconds * 1e3:.4g} ms"
    reasons = [] if result.valid else [result.validity.verdict, *result.validity.reasons[-1:]]
    doubt = f" ({'; '.join(reasons)})" if reasons else ""
    place = f"pair {pair + 1}" + (f" of {pairs}" if pair < pairs else ", for one that may not be believed")
    return f"{place}, {result.name}{load and ', ' + load}: {seen}{doubt}"
