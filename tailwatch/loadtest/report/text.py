"""Numbers as a person reads them, and tables that line up on a terminal, in a log and in a mail."""

from __future__ import annotations

import math
from collections.abc import Sequence

NONE = "-"
# From how many seconds on, the unit, its name.
_UNITS = ((5997.0, 3600.0, "h"), (99.95, 60.0, "min"), (0.9995, 1.0, "s"), (0.9995e-3, 1e-3, "ms"), (0.0, 1e-6, "µs"))
_GAP = "  "


def duration(seconds: float | None) -> str:
    """Three digits and a unit; "-" where it is not known. Minutes from 100 s on, hours from 100 minutes."""
    if seconds is None or not math.isfinite(seconds):
        return NONE
    if seconds < 0:
        return "-" + duration(-seconds)
    if seconds == 0:
        return "0 ms"
    unit, name = next((unit, name) for least, unit, name in _UNITS if seconds >= least)
    return f"{three(seconds / unit)} {name}"


def three(number: float) -> str:
    """Three significant digits, never an exponent, no trailing zeros behind the point."""
    if not math.isfinite(number):
        return NONE
    if abs(number) >= 99.95:
        return f"{number:,.0f}"
    if number == 0:
        return "0"
    places = max(0, 2 - math.floor(math.log10(abs(number))))
    text = f"{number:.{min(places, 6)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def rate(per_second: float | None) -> str:
    """Per second, three digits."""
    return NONE if per_second is None else f"{three(per_second)}/s"


def share(part: float | None) -> str:
    """Per cent with two places at most; never rounded to 100 or 0 when it is neither."""
    if part is None or not math.isfinite(part):
        return NONE
    if part in (0.0, 1.0):
        return f"{part:.0%}"
    percent = min(max(part * 100, 0.01), 99.99) if 0 < part < 1 else part * 100
    return f"{percent:.2f}".rstrip("0").rstrip(".") + "%"


def change(before: float | None, after: float | None) -> str:
    """after against before, with its sign: "-60.5%", "+1.2%", "3.5x" from twice on; "-" where there is none."""
    if before is None or after is None or before <= 0 or not math.isfinite(after / before):
        return NONE
    ratio = after / before
    return f"{three(ratio)}x" if ratio >= 2 else f"{ratio - 1:+.1%}"


def count(number: int | float | None) -> str:
    """Whole, with separators."""
    return NONE if number is None else f"{number:,.0f}"


def lines(heads: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> list[str]:
    """A table as lines: the first `left` columns to the left, the others to the right. An empty row is a blank line."""
    widths = [max(len(row[i]) for row in (heads, *rows) if i < len(row)) for i in range(len(heads))]

    def line(cells: Sequence[str]) -> str:
        padded = (
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(cells, widths, strict=False))
        )
        return _GAP.join(padded).rstrip()

    rule = "-" * (sum(widths) + len(_GAP) * (len(widths) - 1))
    return [line(heads), rule, *(line(row) if row else "" for row in rows)]
