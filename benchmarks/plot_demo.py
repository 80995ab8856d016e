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
import re
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
from tailwatch.goodput import SLO

RED, INK, GREY, BLUE = "#e5484d", "#7d858e", "#8b949e", "#3b82f6"
FULL = ("gc2", "gc_full")
SIZE = (10.0, 4.6)  # inches
TEXT = 10.0  # points, the smallest
LOOK = {"svg.hashsalt": "tailwatch", "path.simplify": False, "font.size": TEXT, "axes.edgecolor": INK}
LOOK |= dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), INK)
TICKS = {0.01: "10 ms", 0.03: "30 ms", 0.1: "100 ms", 0.3: "300 ms", 1.0: "1 s", 3.0: "3 s", 10.0: "10 s"}
DOT = re.compile(r"M ([\d.]+) ([\d.]+) \nL ([\d.]+) \2 \n")


def main() -> None:
    """Read the file, draw both arms, write the picture."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--start", type=float, default=0.0, help="first second shown (0)")
    parser.add_argument("--seconds", type=float, default=30.0, help="seconds shown (30)")
    options = parser.parse_args()
    report = json.loads(options.file.read_text(encoding="utf-8"))
    with pyplot.rc_context(LOOK):
        write(draw(report, options.start, options.start + options.seconds), options.out)


def draw(report: dict[str, Any], start: float, stop: float) -> Figure:
    """Both arms one above the other on the same axes, and over each what tailwatch said of it."""
    figure, panels = pyplot.subplots(2, 1, sharex=True, sharey=True, figsize=SIZE, layout="constrained")
    for axes, (arm, title) in zip(panels, TITLES.items(), strict=True):
        part = report["arms"][arm]
        _frame(axes, SLO.parse(report["slo"]).itl)
        _fill(axes, part["timeline"], start, stop)
        _head(axes, title, part["server"]["tailwatch"]["headline"])
    panels[0].set_xlim(start, stop)
    panels[1].set_xlabel("seconds since the load began")
    panels[1].xaxis.set_major_formatter("{x:g}")
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
    """Pauses of generation 2 as bars; the gaps as dots, red where such a pause is inside."""
    pauses = [(p["start"], p["start"] + p["seconds"]) for p in timeline["pauses"] if p["cause"] in FULL]
    for begin, end in pauses:
        axes.axvspan(begin, end, color=RED, alpha=0.3, linewidth=0.7)
    gaps = [gap for gap in zip(timeline["ends"], timeline["gaps"], strict=True) if start <= gap[0] <= stop]
    for hit, colour, size in ((False, GREY, 2.0), (True, RED, 3.2)):
        _dots(axes, [gap for gap in gaps if is_hit(*gap, pauses) is hit], colour, size)


def _dots(axes: Axes, points: list[tuple[float, float]], colour: str, size: float) -> None:
    """All in one path, as lines of no length with round ends: a tenth of the bytes of as many markers."""
    times = [time for at, _ in points for time in (at, at + 1e-4, float("nan"))]
    values = [gap for _, gap in points for gap in (gap, gap, gap)]
    axes.plot(times, values, color=colour, linewidth=size, solid_capstyle="round")


def is_hit(end: float, gap: float, pauses: list[tuple[float, float]]) -> bool:
    """Whether the gap holds more than half of some pause."""
    return any(min(end, stop) - max(end - gap, begin) > (stop - begin) / 2 for begin, stop in pauses)


def _head(axes: Axes, title: str, sentence: str) -> None:
    """The arm, and tailwatch's sentence about it, in full."""
    axes.set_title(title, loc="left", fontsize=TEXT + 1.5, fontweight="bold", pad=20)
    axes.text(0.0, 1.03, f"tailwatch: {sentence}", transform=axes.transAxes, va="bottom", fontsize=TEXT)


def _legend() -> list[Line2D | Patch]:
    dot = {"marker": "o", "linestyle": "", "markeredgewidth": 0}
    return [
        Patch(color=RED, alpha=0.3, label="pause of generation 2"),
        Line2D([], [], color=RED, markersize=4.5, label="gap that such a pause hit", **dot),
        Line2D([], [], color=GREY, markersize=3.5, label="other gap (short ones: a sample)", **dot),
    ]


def write(figure: Figure, out: Path) -> None:
    """As SVG with the dots told in short; any other format as matplotlib writes it."""
    if out.suffix != ".svg":
        figure.savefig(out, dpi=192, transparent=True)
        return
    text = io.StringIO()
    figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    short = DOT.sub(lambda found: f"M{float(found[1]):.1f} {float(found[2]):.1f}h0", text.getvalue())
    out.write_text(short, encoding="utf-8")


if __name__ == "__main__":
    main()
