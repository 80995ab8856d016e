"""What a page is made of: words, tiles, tables and charts, as plain data. document.py renders them.

A chart has one or more views (tabs); a view is two axes and curves over them. How a number is drawn depends on the
axis' kind alone, so that every chart of a run, of a search and of a comparison reads the same way:

    clock       seconds from the start, from 0
    latency     seconds, logarithmic
    number      from 0
    near        a number, from the least that is shown
    share       as per cent, from the least that is shown
    percentile  the tail magnified: x = nines(q), so that p90, p99 and p99.9 stand at equal distances
    change      the logarithm of a ratio, written as per cent: nothing changed is 0
    category    0, 1, 2 … with names
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

Kind = Literal["clock", "latency", "number", "near", "share", "percentile", "change", "category"]
Style = Literal["line", "dashed", "step", "area", "points", "interval"]
Colour = Literal["good", "warn", "accent", "soft", "ink", "gc0", "gc1", "gc2", "policy"]


def nines(share: float) -> float:
    """Where a quantile (0 … 1) stands on the percentile axis: 0 for p0, 1 for p90, 2 for p99; 9 for p100."""
    return 9.0 if share >= 1 else min(9.0, -math.log10(1.0 - share))


@dataclass(frozen=True, slots=True)
class Axis:
    """kind: see above. label: what is on it. names: of the categories. low, high: what must be in view, at least."""

    kind: Kind
    label: str = ""
    names: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Curve:
    """Points in order of x. interval: a mark at y with a whisker from low to high (a category on one axis).
    step: y holds up to the next x. None in ys: a gap."""

    name: str
    style: Style
    colour: Colour
    xs: Sequence[float]
    ys: Sequence[float | None]
    low: Sequence[float | None] = ()
    high: Sequence[float | None] = ()


@dataclass(frozen=True, slots=True)
class ReferenceLine:
    """A straight line across the chart: axis "x" or "y", at a value; a bound, a knee."""

    axis: Literal["x", "y"]
    at: float
    name: str
    colour: Colour = "good"


@dataclass(frozen=True, slots=True)
class Band:
    """A span of x that is shaded: a pause of the client, for example."""

    start: float
    stop: float


@dataclass(frozen=True, slots=True)
class View:
    """One tab of a chart. alt: what it shows, in a sentence, for a reader who does not see it."""

    name: str
    x: Axis
    y: Axis
    curves: tuple[Curve, ...]
    marks: tuple[ReferenceLine, ...] = ()
    bands: tuple[Band, ...] = ()
    bands_name: str = ""
    note: str = ""
    alt: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """A figure with a title. height: of the drawing, CSS pixels."""

    title: str
    views: tuple[View, ...]
    note: str = ""
    height: int = 260

    def as_dict(self) -> dict[str, Any]:
        """For the page's script."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Table:
    """heads, then rows of as many cells. left: columns that hold words. strong: the column that matters most."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    left: int = 1
    strong: int | None = None


@dataclass(frozen=True, slots=True)
class Tile:
    """One number, large."""

    name: str
    value: str
    note: str = ""
    bad: bool = False


@dataclass(frozen=True, slots=True)
class Tiles:
    """A row of numbers."""

    tiles: tuple[Tile, ...]


@dataclass(frozen=True, slots=True)
class Words:
    """Sentences; terms: pairs of a word and what it means. warn: they take a number back."""

    sentences: tuple[str, ...] = ()
    title: str = ""
    terms: tuple[tuple[str, str], ...] = ()
    warn: bool = False


@dataclass(frozen=True, slots=True)
class Pair:
    """Two charts side by side where there is room."""

    one: Chart
    other: Chart


Block: TypeAlias = Words | Tiles | Table | Chart | Pair


@dataclass(frozen=True)
class ReportPage:
    """title: of the window. lead: the sentence that answers. foot: how it was made."""

    title: str
    lead: str
    blocks: tuple[Block, ...]
    foot: str = ""
    status: str = ""
    bad: bool = field(default=False)
