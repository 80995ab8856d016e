"""Is B different from A, as far as their runs show: a table per load, a row per number, a verdict that may be "no".

The run is the unit, pairs of runs with one schedule are compared as pairs, and that many rows were looked at is counted
(Holm). Runs that may not be believed are left out, and marked so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tailwatch.errors import OptionError
from tailwatch.loadtest import results
from tailwatch.loadtest.merging import merged
from tailwatch.loadtest.metrics import Measure, measures
from tailwatch.loadtest.results import Result
from tailwatch.loadtest.statistics import FEWEST, LEVEL, Difference, bare, floor, floor_of_runs, holm, paired, unpaired

ALPHA = 1 - LEVEL
LAG_SHARE = 0.05  # of a difference, that the client's own lag (p99) may be without a word
PAIR = "pair"  # in the settings of a run: which pair of an ablation it belongs to
SHOWN, NOT_SHOWN, TOO_FEW, NO_NUMBER, CENSORED = "shown", "not shown", "too few runs", "no number", "censored"


@dataclass(frozen=True)
class VariantRuns:
    """The runs of one variant."""

    name: str
    runs: Sequence[Result] = field(repr=False)


@dataclass(frozen=True)
class ComparisonRow:
    """One number of B against A's.

    difference: None where no run of one of them has it. adjusted: p, once it is counted how many rows of the whole
    comparison were looked at. floor: what equal arms differ by in 95 of 100 such experiments, of the kind of the
    difference; None where not known. verdict: SHOWN, NOT_SHOWN, TOO_FEW, NO_NUMBER or CENSORED. censored: in how many
    runs of A and of B it is a lower bound only, because so many requests were dropped: then it is not known which
    one is better, and the estimate is a bound at best. notes: what a reader must know.
    """

    measure: Measure
    difference: Difference | None
    adjusted: float | None
    floor: float | None
    verdict: str
    notes: tuple[str, ...] = ()
    censored: tuple[int, int] = (0, 0)

    @property
    def better(self) -> bool | None:
        """Whether B is; None where no difference is shown."""
        if self.verdict != SHOWN or self.difference is None:
            return None
        return (self.difference.estimate < 0) == self.measure.lower


@dataclass(frozen=True)
class ComparisonTable:
    """B against A at one load. paired: by schedule. floor_of: where the floors come from, in words."""

    load: str
    a: str
    b: str
    runs: tuple[int, int]
    paired: bool
    floor_of: str
    rows: tuple[ComparisonRow, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """All of it. looked_at: rows that could have shown a difference: what p is adjusted for."""

    tables: tuple[ComparisonTable, ...]
    looked_at: int

    @property
    def shown(self) -> tuple[tuple[ComparisonTable, ComparisonRow], ...]:
        """The rows that show a difference."""
        return tuple((table, row) for table in self.tables for row in table.rows if row.verdict == SHOWN)

    def as_dict(self) -> dict[str, Any]:
        """For JSON: as it stands here, with each row's label and whether B is better."""
        data = asdict(self)
        for table, found in zip(self.tables, data["tables"], strict=True):
            for row, written in zip(table.rows, found["rows"], strict=True):
                written["measure"] = asdict(row.measure) | {"label": row.measure.label}
                written["better"] = row.better
        return data


def compare(arms: Sequence[VariantRuns], *, of: Sequence[Measure] = (), again: VariantRuns | None = None) -> Comparison:
    """Each arm against the first, at each load that both had.

    of: the numbers to look at; by default the usual ones. again: more runs of the first arm, interleaved with it: what
    A/A gives.

    Raises:
        OptionError: fewer than two arms, or no load in common.
    """
    if len(arms) < 2:
        raise OptionError("a comparison needs runs of two variants at least")
    looked = [(arms[0], arm, load) for arm in arms[1:] for load in _common(arms[0], arm)]
    drafts = [_Draft.of(a, b, load, of or measures(), again) for a, b, load in looked]
    rows = sum(draft.testable for draft in drafts)
    for draft in drafts:
        draft.measure(ALPHA / max(1, rows))
    adjusted = iter(holm([cell.p for draft in drafts for cell in draft.cells]))
    return Comparison(tuple(draft.table([next(adjusted) for _ in draft.cells]) for draft in drafts), rows)


def load_of(run: Result) -> str:
    """The load a run was given, in words: runs of equal ones are compared."""
    if run.closed:
        return f"closed loop, {run.settings.get('workers', '?')} in flight"
    target = str(run.schedule.get("target") or f"{run.offered:.4g}/s")
    rate = run.settings.get("rate")
    return target if rate is None or f"{rate:g}" in target else f"{target}, {rate:g}/s"


def read(path: str | Path) -> VariantRuns:
    """A file of results. Its name is that of its runs, where they have one, else the file's."""
    runs = results.load(path)
    names = {run.name for run in runs}
    return VariantRuns(names.pop() if len(names) == 1 and "" not in names else Path(path).stem, runs)


def merge(files: Sequence[Sequence[Result]]) -> list[Result]:
    """Results of several machines that drove one load together: the first run of each becomes one, and so on.

    Raises:
        OptionError: different numbers of runs, of different targets or bounds.
    """
    if len({len(runs) for runs in files}) > 1:
        counts = ", ".join(str(len(runs)) for runs in files)
        raise OptionError(f"files of one load have as many runs each, found {counts}")
    in_order = [sorted(runs, key=lambda run: run.started) for runs in files]
    return [merged(together) for together in zip(*in_order, strict=True)]


@dataclass
class _Cell:
    """A row on its way: the values of the runs that have it."""

    measure: Measure
    a: list[float]
    b: list[float]
    again: tuple[list[float], list[float]]
    runs: tuple[Result, ...]
    missing: int
    censored: tuple[int, int] = (0, 0)
    difference: Difference | None = None

    @property
    def testable(self) -> bool:
        """A number that was the same in every run of both sides could not have shown anything; nor does a bound."""
        return not any(self.censored) and min(len(self.a), len(self.b)) >= FEWEST and len({*self.a, *self.b}) > 1

    @property
    def p(self) -> float | None:
        return self.difference.p if self.difference is not None and self.testable else None


@dataclass
class _Draft:
    load: str
    names: tuple[str, str]
    sides: tuple[list[Result], list[Result]]
    paired: bool
    cells: list[_Cell]
    notes: list[str]

    @classmethod
    def of(cls, a: VariantRuns, b: VariantRuns, load: str, of: Sequence[Measure], again: VariantRuns | None) -> _Draft:
        notes: list[str] = []
        sides = (_usable(a, load, notes), _usable(b, load, notes))
        pairs = _pairs(*sides)
        if pairs is not None:
            alone = len(sides[0]) + len(sides[1]) - 2 * len(pairs)
            notes += [f"{alone} runs left out: their pair has no other run"] if alone else []
            sides = ([one for one, _ in pairs], [two for _, two in pairs])
        elif all(sides) and len({_digest(run) for side in sides for run in side}) > 1:
            notes.append("the runs had different schedules and are compared as no pairs")
        notes += _drift(a, b, *sides)
        same = _pairs(sides[0], _usable(again, load, [])) if again is not None else None
        cells = [_cell(measure, sides, pairs is not None, same or []) for measure in _fair(of, sides, notes)]
        return cls(load, (a.name, b.name), sides, pairs is not None, cells, notes)

    @property
    def testable(self) -> int:
        return sum(cell.testable for cell in self.cells)

    def measure(self, alpha: float) -> None:
        test = paired if self.paired else unpaired
        for cell in self.cells:
            if cell.a and cell.b:
                rounded = cell.measure.resolution(cell.runs)
                cell.difference = test(cell.a, cell.b, ratio=cell.measure.ratio, alpha=alpha, resolution=rounded)

    def table(self, adjusted: Sequence[float | None]) -> ComparisonTable:
        rows = tuple(self._row(cell, p) for cell, p in zip(self.cells, adjusted, strict=True))
        equal = [cell for cell in self.cells if _aa_differs(cell, len(self.cells))]
        notes = list(self.notes)
        if equal:
            names = ", ".join(cell.measure.label for cell in equal)
            notes.append(f"the two equal arms ({self.names[0]} and itself) differ in {names}: the setting is biased")
        counts = (len(self.sides[0]), len(self.sides[1]))
        return ComparisonTable(self.load, *self.names, counts, self.paired, self._floor_of(), rows, tuple(notes))

    def _floor_of(self) -> str:
        if any(cell.again[0] for cell in self.cells):
            return f"{self.names[0]} against itself, interleaved (A/A)"
        return f"the spread of {self.names[0]}'s own runs" + (" and their schedules" if self.paired else "")

    def _row(self, cell: _Cell, adjusted: float | None) -> ComparisonRow:
        found = cell.difference
        if found is None:
            return ComparisonRow(cell.measure, None, None, None, NO_NUMBER)
        least = None if any(cell.censored) else _floor(cell, found)
        notes = [f"{cell.missing} runs have no such number"] if cell.missing else []
        if any(cell.censored):
            notes += _dropped(cell, self.names)
            return ComparisonRow(cell.measure, bare(found), None, None, CENSORED, tuple(notes), cell.censored)
        if found.low is None:
            return ComparisonRow(cell.measure, found, None, least, TOO_FEW, tuple(notes))
        if adjusted is None:
            return ComparisonRow(cell.measure, found, None, least, NOT_SHOWN, (*notes, "the same in every run"))
        verdict, why = _verdict(cell, found, adjusted, least)
        return ComparisonRow(cell.measure, found, adjusted, least, verdict, (*notes, *why))


def _dropped(cell: _Cell, names: tuple[str, str]) -> list[str]:
    """What a lower bound on one side means for the change: a bound as well; on both sides nothing."""
    one, two = cell.censored
    who = [f"{n} runs of {name}" for n, name in zip(cell.censored, names, strict=True) if n]
    change = "the change is not known" if one and two else f"the change is {'at most' if one else 'at least'} this"
    return [f"a lower bound in {' and '.join(who)}, where too many requests got none: {change}"]


def _verdict(cell: _Cell, found: Difference, adjusted: float, least: float | None) -> tuple[str, list[str]]:
    if adjusted > ALPHA:
        alone = found.p is not None and found.p <= ALPHA
        return NOT_SHOWN, ["alone it would be, among so many rows it is not"] if alone else []
    if cell.again[0] and least is not None and abs(found.estimate) <= least:
        return NOT_SHOWN, ["equal arms differed by as much"]
    lag = max((run.latencies.send_lag.p(99) or 0.0) for run in cell.runs)
    if cell.measure.planned and lag > LAG_SHARE * abs(found.b - found.a):
        return SHOWN, [f"the client itself sent up to {lag * 1e3:.3g} ms late (p99), which is in these numbers"]
    return SHOWN, []


def _floor(cell: _Cell, found: Difference) -> float | None:
    if cell.again[0]:
        return floor(*cell.again, ratio=found.ratio)
    return floor_of_runs(cell.a, min(len(cell.a), len(cell.b)), ratio=found.ratio)


def _aa_differs(cell: _Cell, rows: int) -> bool:
    """Whether equal arms differ, counted that each row was looked at."""
    if len(cell.again[0]) < FEWEST:
        return False
    made = paired(*cell.again, ratio=cell.measure.ratio, resolution=cell.measure.resolution(cell.runs))
    return made.p is not None and made.p * rows <= ALPHA


def _cell(
    measure: Measure, sides: tuple[list[Result], list[Result]], in_pairs: bool, same: Sequence[tuple[Result, Result]]
) -> _Cell:
    runs = (*sides[0], *sides[1], *(run for pair in same for run in pair))
    if in_pairs:
        both = [(measure.of(one), measure.of(two)) for one, two in zip(*sides, strict=True)]
        a, b = _known(both)
        missing = 2 * (len(both) - len(a))
    else:
        a, b = ([value for run in side if (value := measure.of(run)) is not None] for side in sides)
        missing = len(sides[0]) + len(sides[1]) - len(a) - len(b)
    again = _known([(measure.of(one), measure.of(two)) for one, two in same])
    censored = tuple(sum(map(measure.censored, side)) for side in sides)
    return _Cell(measure, a, b, again, runs, missing, (censored[0], censored[1]))


def _known(pairs: Sequence[tuple[float | None, float | None]]) -> tuple[list[float], list[float]]:
    whole = [(one, two) for one, two in pairs if one is not None and two is not None]
    return [one for one, _ in whole], [two for _, two in whole]


def _common(a: VariantRuns, b: VariantRuns) -> list[str]:
    """Loads of both, in the order of A's runs."""
    others = {load_of(run) for run in b.runs}
    found = [load for load in dict.fromkeys(load_of(run) for run in a.runs) if load in others]
    if not found:
        one, two = (", ".join(sorted({load_of(run) for run in arm.runs})) or "no run" for arm in (a, b))
        raise OptionError(f"nothing to compare: {a.name} was run at {one}; {b.name} at {two}")
    return found


def _usable(arm: VariantRuns, load: str, notes: list[str]) -> list[Result]:
    """Runs at this load that may be believed, in order of time; the others are reported."""
    runs = sorted((run for run in arm.runs if load_of(run) == load), key=lambda run: run.started)
    left_out: dict[str, int] = defaultdict(int)
    for run in runs:
        if not run.valid:
            left_out[run.validity.verdict] += 1
    notes += [f"{arm.name}: {count} of {len(runs)} runs left out: {verdict}" for verdict, count in left_out.items()]
    return [run for run in runs if run.valid]


def _pairs(a: Sequence[Result], b: Sequence[Result]) -> list[tuple[Result, Result]] | None:
    """Runs that belong together, in A's order: by an ablation's number of the pair, else by a schedule that each side
    had once. None where runs share nothing of the kind."""
    for key in (lambda run: run.settings.get(PAIR), _digest):
        keyed = [{key(run): run for run in side} for side in (a, b)]
        whole = all(len(found) == len(side) and None not in found for found, side in zip(keyed, (a, b), strict=True))
        both = [number for number in keyed[0] if number in keyed[1]]
        if whole and both and 2 * len(both) > min(len(a), len(b)):
            return [(keyed[0][number], keyed[1][number]) for number in both]
    return None


def _digest(run: Result) -> object:
    return None if run.closed else run.schedule.get("digest")


def _drift(a: VariantRuns, b: VariantRuns, before: Sequence[Result], after: Sequence[Result]) -> Iterator[str]:
    """Runs that do not alternate cannot separate a difference from a drift."""
    spans = [(min(run.started for run in side), max(run.started for run in side)) for side in (before, after) if side]
    if len(spans) == 2 and (spans[0][1] < spans[1][0] or spans[1][1] < spans[0][0]):
        yield (
            f"all runs of {a.name} lie on one side of those of {b.name}: what changed meanwhile on the machine would "
            "look the same; `tailwatch ablate` alternates"
        )


def _fair(of: Sequence[Measure], sides: tuple[list[Result], list[Result]], notes: list[str]) -> list[Measure]:
    """Without what bounds that differ would make unequal."""
    if len({run.slo for side in sides for run in side}) <= 1:
        return list(of)
    notes.append("their SLOs differ: goodput and attainment are not compared")
    return [measure for measure in of if measure.name not in ("goodput", "attainment", "fluidity")]
