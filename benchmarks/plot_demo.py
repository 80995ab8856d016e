#!/usr/bin/env python3
"""Draw what `tailwatch demo --json DEMO.json` measured: the gaps between tokens, and the pauses that hit them.

    python benchmarks/plot_demo.py DEMO.json OUT.svg [--start S] [--seconds S]

Needs matplotlib. Legible on white and on dark pages: the background is transparent. The ending of OUT decides the
format.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import re
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")

from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, NullFormatter

from tailwatch.demo.report import TITLES
from tailwatch.options.slo import SLO

RED, INK, GREY, BLUE = "#e5484d", "#737b84", "#8b949e", "#3b82f6"
FULL = ("gc2", "gc_full")
SIZE = (10.0, 6.4)  # inches
TEXT = 10.0  # points, the smallest
CHARACTERS, INDENT = 98, 100.0  # of a sentence's line; where it begins, points
LOWEST = 0.005  # seconds; shorter gaps (two tokens in one read) are not shown
LINE = 13  # points from one line of it to the next
SHOWN = 40  # gaps, in the legend
LUMP = 0.1  # gaps of one pause that differ by less than a tenth are one disc
LOOK = {
    "svg.hashsalt": "tailwatch",
    "svg.fonttype": "none",
    "path.simplify": False,
    "font.size": TEXT,
    "axes.edgecolor": INK,
}
LOOK |= dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), INK)
TICKS = {0.005: "5 ms", 0.01: "10 ms", 0.1: "100 ms", 1.0: "1 s", 10.0: "10 s"}
DOT = re.compile(r"M ([\d.]+) ([\d.]+) \nL ([\d.]+) (?:\2) \n")


def main() -> None:
    """Read the file, draw the arms, write the picture."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--start", type=float, default=0.0, help="first second shown (0)")
    parser.add_argument("--seconds", type=float, help="seconds shown (all that were measured)")
    options = parser.parse_args()
    report = json.loads(options.file.read_text(encoding="utf-8"))
    seconds = options.seconds or report["schedule"]["seconds"] - options.start
    with pyplot.rc_context(LOOK):
        write(draw(report, options.start, options.start + seconds), options.out)


def draw(report: dict[str, Any], start: float, stop: float) -> Figure:
    """The arms one above the other on the same axes, and over each what tailwatch reported of it."""
    figure, panels = pyplot.subplots(len(TITLES), 1, sharex=True, sharey=True, figsize=SIZE, layout="constrained")
    for axes, (arm, title) in zip(panels, TITLES.items(), strict=True):
        part = report["arms"][arm]
        _frame(axes, SLO.parse(report["slo"]).itl)
        _fill(axes, part["timeline"], start, stop)
        _head(axes, title, part["server"]["tailwatch"]["headline"])
    panels[0].set_xlim(start, stop)
    highest = max(gap for arm in TITLES for gap in report["arms"][arm]["timeline"]["gaps"])
    panels[0].set_ylim(LOWEST, max(1.0, 2 * highest))
    panels[-1].set_xlabel(f"seconds since the load began, the same {report['schedule']['requests']:,} requests in each")
    panels[-1].xaxis.set_major_formatter("{x:g}")
    figure.supylabel("gap between tokens, at the client", fontsize=TEXT)
    figure.legend(handles=_legend(), loc="outside lower center", ncols=3, frameon=False, handletextpad=0.4)
    return figure


def _frame(axes: Axes, bound: float | None) -> None:
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(FixedLocator(list(TICKS)))
    axes.yaxis.set_major_formatter(lambda value, _: TICKS.get(round(value, 3), ""))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.minorticks_off()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=INK, alpha=0.2, linewidth=0.6)
    if bound is not None:
        axes.axhline(bound, color=BLUE, linewidth=1.0, linestyle=(0, (5, 3)))
        place = axes.get_yaxis_transform()
        axes.text(1.0, bound * 1.1, f"SLO: {bound * 1e3:g} ms", color=BLUE, transform=place, ha="right", va="bottom")


def _fill(axes: Axes, timeline: dict[str, Any], start: float, stop: float) -> None:
    """Pauses of generation 2 as bars; the gaps that held one as red discs, the others as grey dots."""
    pauses = [(p["start"], p["start"] + p["seconds"]) for p in timeline["pauses"] if p["cause"] in FULL]
    for begin, end in pauses:
        axes.axvspan(begin, end, color=RED, alpha=0.3, linewidth=0.7)
    discs: Counter[tuple[float, int]] = Counter()
    dots = []
    for end, gap in zip(timeline["ends"], timeline["gaps"], strict=True):
        hit = pause_in(end, gap, pauses)
        if hit is not None:
            discs[hit[1], round(math.log(gap) / LUMP)] += 1
        elif start <= end <= stop:
            dots.append((end, gap))
    _dots(axes, dots)
    _discs(axes, discs)


def pause_in(end: float, gap: float, pauses: list[tuple[float, float]]) -> tuple[float, float] | None:
    """The last pause of which the gap holds more than half."""
    held = [(b, e) for b, e in pauses if min(end, e) - max(end - gap, b) > (e - b) / 2]
    return held[-1] if held else None


def _dots(axes: Axes, points: list[tuple[float, float]]) -> None:
    """All in one path, as lines of no length with round ends: a tenth of the bytes of as many markers."""
    times = [time for at, _ in points for time in (at, at + 1e-4, float("nan"))]
    values = [gap for _, gap in points for gap in (gap, gap, gap)]
    axes.plot(times, values, color=GREY, linewidth=2.0, solid_capstyle="round", snap=False)


def _discs(axes: Axes, counts: Counter[tuple[float, int]]) -> None:
    """One for all gaps of a pause that are equally long: it stops every stream at once. The area shows how many."""
    if counts:
        times, lengths = zip(*((at, math.exp(lump * LUMP)) for at, lump in counts), strict=True)
        axes.scatter(times, lengths, s=[area(count) for count in counts.values()], color=RED, linewidths=0, zorder=3)


def area(streams: int) -> float:
    """Of a disc, in square points."""
    return 4.0 + 2.0 * streams


def _head(axes: Axes, title: str, sentence: str) -> None:
    """The arm, and tailwatch's sentence about it, in full."""
    lines = textwrap.wrap(f"tailwatch: {sentence}", CHARACTERS)
    top = 5 + LINE * max(1, len(lines) - 1)
    place = {"xycoords": "axes fraction", "textcoords": "offset points", "va": "bottom", "annotation_clip": False}
    axes.annotate(title, (0, 1), (0, top), fontweight="bold", fontsize=TEXT + 1, **place)
    for row, line in enumerate(lines):
        axes.annotate(line, (0, 1), (INDENT, top - LINE * row), **place).set_in_layout(row == 0)


def _legend() -> list[Line2D | Patch]:
    dot = {"marker": "o", "linestyle": "", "markeredgewidth": 0}
    sized = math.sqrt(area(SHOWN))
    return [
        Patch(color=RED, alpha=0.3, label="pause of generation 2"),
        Line2D(
            [],
            [],
            color=RED,
            markersize=sized,
            label=f"gaps that such a pause hit (a disc of this size: {SHOWN})",
            **dot,
        ),
        Line2D([], [], color=GREY, markersize=3.5, label="another gap (short ones: a sample)", **dot),
    ]


def write(figure: Figure, out: Path) -> None:
    """As SVG with the dots in short; any other format as matplotlib writes it."""
    if out.suffix != ".svg":
        figure.savefig(out, dpi=192, transparent=True)
        return
    text = io.StringIO()
    figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    out.write_text(DOT.sub(_shortened, text.getvalue()), encoding="utf-8")


def _shortened(line: re.Match[str]) -> str:
    x, y, stop = (float(number) for number in line.groups())
    return f"M{x:.1f} {y:.1f}h0" if abs(stop - x) < 0.05 else line[0]


if __name__ == "__main__":
    main()
