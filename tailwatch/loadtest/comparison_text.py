"""A comparison as text: a table a load, what each change is worth, the sign rule, and a summary over the loads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tailwatch.loadtest.compare import CENSORED, NO_NUMBER, NOT_SHOWN, SHOWN, Comparison, ComparisonRow, ComparisonTable
from tailwatch.loadtest.report import text
from tailwatch.loadtest.statistics import FEWEST

NOTHING = "no difference shown"
HEADS = ("change", "95% interval", "p", "floor", "would show")


def show(comparison: Comparison) -> str:
    """All of it, for a terminal or a log."""
    parts = ["\n".join(_table(table)) for table in comparison.tables]
    if len({table.load for table in comparison.tables}) > 1:
        parts += ["\n".join(_summary(comparison.tables, b)) for b in dict.fromkeys(t.b for t in comparison.tables)]
    return "\n\n".join([*parts, "\n".join(how_to_read(comparison)), "\n".join(conclusion(comparison))]) + "\n"


def verdict(row: ComparisonRow, b: str) -> str:
    """A row's verdict in words."""
    if row.verdict == SHOWN and row.difference is not None:
        way = "lower" if row.difference.estimate < 0 else "higher"
        return f"{b} {way}: {'better' if row.better else 'worse'}"
    if row.verdict == NOT_SHOWN:
        return NOTHING
    return row.verdict if row.verdict in (NO_NUMBER, CENSORED) else f"fewer than {FEWEST} runs: no interval"


def cells(row: ComparisonRow) -> tuple[str, ...]:
    """A row's numbers as text: its label, A, B, and what `HEADS` names."""
    found, measure = row.difference, row.measure
    if found is None:
        return (measure.label, *["-"] * (2 + len(HEADS)))
    low, high = found.low, found.high
    interval = "-"
    if low is not None and high is not None:
        interval = f"{measure.change(low, found.ratio).partition(' ')[0]} .. {measure.change(high, found.ratio)}"
    return (
        measure.label,
        "≥" * bool(row.censored[0]) + measure.text(found.a),
        "≥" * bool(row.censored[1]) + measure.text(found.b),
        _change(row),
        interval,
        "-" if found.exact is None else f"{'~' if found.sampled else ''}{found.exact:.2g}",
        _about(row, row.floor),
        _about(row, found.detectable),
    )


def conclusion(comparison: Comparison) -> Iterator[str]:
    """What is shown, a line each; or that nothing is."""
    for table, row in comparison.shown:
        if row.difference is not None:
            change = row.measure.change(row.difference.estimate, row.difference.ratio)
            way = "lower" if row.difference.estimate < 0 else "higher"
            worth = "better" if row.better else "worse"
            yield f"{table.load}: {row.measure.label} {change}: {table.b} is {way} than {table.a}, which is {worth}"
    if comparison.shown:
        return
    if comparison.looked_at:
        yield f"{NOTHING}: of {comparison.looked_at} rows none shows a difference between the variants"
    else:
        yield f"{NOTHING}: an interval needs {FEWEST} runs of each (bench --runs {FEWEST}, or ablate)"


def how_to_read(comparison: Comparison) -> Iterator[str]:
    """The sign rule, and what the columns are."""
    yield "Sign: change = B / A - 1 (for shares: B - A, in points), A the first named. Negative: B is lower. Lower is"
    yield "better for latencies and failures; higher for goodput, attainment, throughput, tokens and fluidity."
    if any(row.verdict == CENSORED for table in comparison.tables for row in table.rows):
        yield "censored: so many requests got no answer (timed out, given up, never sent, failed) that the percentile"
        yield "is known as a lower bound only: no verdict on it, look at `failed`."
    if not comparison.looked_at:
        return
    rows = comparison.looked_at
    yield "The run is the unit. interval: of Student's t, the row's alone; p: of all exchanges of A and B (~: sampled)."
    yield f"A difference is called shown when p of t, counted that {rows} rows were looked at (Holm), is at most 0.05."
    yield "floor: what equal arms differ by in 95 of 100 such experiments. would show: the true change that four of"
    yield "five such experiments would show; a smaller one may be there and not be seen."


def _table(table: ComparisonTable) -> Iterator[str]:
    kind = "pairs of runs, each pair with one schedule" if table.paired else "runs each, not in pairs"
    runs = f"{table.runs[0]}" if table.runs[0] == table.runs[1] else f"{table.runs[0]} and {table.runs[1]}"
    yield f"{table.b} (B) against {table.a} (A) at {table.load}: {runs} {kind}"
    rows = [row for row in table.rows if row.verdict != NO_NUMBER]
    made = text.lines(("", table.a, table.b, *HEADS), [cells(row) for row in rows])
    width = max(map(len, made))
    yield from made[:2]
    for line, row in zip(made[2:], rows, strict=True):
        yield f"{line.ljust(width)}  {verdict(row, table.b)}"
    for row in rows:
        yield from (f"  {row.measure.label}: {note}" for note in row.notes)
    if without := [row.measure.label for row in table.rows if row.verdict == NO_NUMBER]:
        yield f"  no number, or too few requests a run for such a percentile: {', '.join(without)}"
    yield f"  floor: from {table.floor_of}"
    yield from (f"  {note}" for note in table.notes)


def _summary(tables: Sequence[ComparisonTable], b: str) -> Iterator[str]:
    """Changes by load; in brackets what is not shown."""
    mine = [table for table in tables if table.b == b]
    yield f"{b} (B) against {mine[0].a} (A), change at each load (in brackets: not shown)"
    labels = dict.fromkeys(row.measure.label for table in mine for row in table.rows if row.verdict != NO_NUMBER)
    rows = [(label, *(_short(table, label) for table in mine)) for label in labels]
    yield from text.lines(("", *(table.load for table in mine)), rows)


def _short(table: ComparisonTable, label: str) -> str:
    row = next((row for row in table.rows if row.measure.label == label), None)
    if row is None or row.difference is None:
        return "-"
    change = _change(row)
    return change if row.verdict == SHOWN else f"({change})"


def _change(row: ComparisonRow) -> str:
    """With a sign of its own where it is a bound; "-" where A and B are lower bounds both."""
    a, b = row.censored
    if row.difference is None or (a and b):
        return "-"
    return ("≤" if a else "≥" if b else "") + row.measure.change(row.difference.estimate, row.difference.ratio)


def _about(row: ComparisonRow, value: float | None) -> str:
    """A size without a sign; a factor may be one of less as well as of more."""
    if value is None or row.difference is None:
        return "-"
    size = row.measure.change(abs(value), row.difference.ratio)
    return size if size.endswith("x") else "±" + size.lstrip("+")
