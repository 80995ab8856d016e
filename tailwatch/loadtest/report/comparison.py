"""The page of a comparison: each difference with its interval, and what none would have hidden."""

from __future__ import annotations

import math

from tailwatch.loadtest import compare, comparison_text
from tailwatch.loadtest.report.blocks import (
    Axis,
    Block,
    Chart,
    Colour,
    Curve,
    ReferenceLine,
    ReportPage,
    Table,
    View,
    Words,
)
from tailwatch.platform import VERSION

SIGN = "Minus: B less than A. Of latencies less is better; of goodput, throughput, attainment and fluidity more."
MOST_NAMED = 4
_HEIGHT = 34  # of a row of the chart, CSS pixels


def page(found: compare.Comparison) -> ReportPage:
    """All tables of a comparison."""
    shown = len(found.shown)
    rows = sum(len(table.rows) for table in found.tables)
    return ReportPage(
        title="tailwatch compare · "
        + ", ".join(dict.fromkeys(f"{table.b} against {table.a}" for table in found.tables)),
        lead=_lead(found, shown, rows),
        blocks=tuple(block for table in found.tables for block in _blocks(table)),
        foot=f"The run is the unit. p is adjusted for {found.looked_at} rows (Holm). tailwatch {VERSION}",
        status=f"{shown} of {rows} rows differ" if shown else "no difference shown",
    )


def _lead(found: compare.Comparison, shown: int, rows: int) -> str:
    if not shown:
        return "No difference is shown. That does not mean that there is none: see what would have shown."
    best = [
        f"{row.measure.label} {row.measure.change(row.difference.estimate, row.difference.ratio)} ({table.load})"
        for table, row in found.shown[:MOST_NAMED]
        if row.difference is not None
    ]
    more = f", and {shown - MOST_NAMED} more" if shown > MOST_NAMED else ""
    return f"{shown} of {rows} rows show a difference: {'; '.join(best)}{more}."


def _blocks(table: compare.ComparisonTable) -> list[Block]:
    way = "pairs of runs with one schedule" if table.paired else "runs that share no schedule"
    floor = f"Floor: what equal arms differ by, from {table.floor_of}."
    note = f"{table.runs[0]} and {table.runs[1]} runs, {way}. {floor} {SIGN}"
    blocks: list[Block] = []
    if table.notes:
        blocks.append(Words(table.notes, f"{table.b} against {table.a}", warn=True))
    if chart := _chart(table):
        blocks.append(chart)
    heads = ("", table.a, table.b, *comparison_text.HEADS, "")
    rows = tuple(
        (*comparison_text.cells(row), "; ".join((comparison_text.verdict(row, table.b), *row.notes)))
        for row in table.rows
    )
    return [*blocks, Table(f"{table.b} against {table.a}: {table.load}", heads, rows, note, strong=3)]


def _chart(table: compare.ComparisonTable) -> Chart | None:
    """Ratios only: what is no ratio has another axis, and stands in the table."""
    rows = [row for row in table.rows if row.difference is not None and row.difference.ratio and not any(row.censored)]
    if not rows:
        return None
    kinds: tuple[tuple[str, Colour, bool | None], ...] = (
        ("better", "good", True), ("worse", "gc2", False), ("no difference shown", "soft", None),
    )  # fmt: skip
    curves = []
    for name, colour, better in kinds:
        at = [i for i, row in enumerate(rows) if row.better is better]
        differences = [rows[i].difference for i in at]
        if at:
            middle = [_log(each.estimate) or 0.0 for each in differences if each is not None]
            low, high = ([_log(getattr(each, end)) for each in differences] for end in ("low", "high"))
            curves.append(Curve(name, "interval", colour, middle, [float(i) for i in at], low, high))
    names = tuple(row.measure.label for row in rows)
    alt = "; ".join(
        f"{row.measure.label} {row.measure.change(row.difference.estimate, True)}" for row in rows if row.difference
    )
    view = View(
        table.load, Axis("change", "change"), Axis("category", names=names), tuple(curves),
        (ReferenceLine("x", 0.0, "no change", "soft"),), note=f"With the interval of 95 %. {SIGN}", alt=alt,
    )  # fmt: skip
    return Chart(f"{table.b} against {table.a}: {table.load}", (view,), height=60 + _HEIGHT * len(rows))


def _log(change: float | None) -> float | None:
    return None if change is None or change <= -1 else math.log1p(change)
