"""Prints the rows of benchmarks/README.md from saved results: python benchmarks/table.py [results/*.json]"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ORDER = (
    *("stamp", "send", "request", "gc_callback", "scrape", "step"),
    *("memory", "sse", "accelerate", "sse_server", "group", "load"),
    *("exemplars", "otlp", "signal", "page", "trace", "trace_writer", "nvtx", "gpu"),
    *("gc_policies", "gc_policies_loads", "gc_policies_memory"),
)
RESULTS = Path(__file__).with_name("results")


def short(value: float) -> str:
    """Three digits."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def row(bar: dict[str, Any]) -> str:
    """One measure as a line of the table."""
    unit = f" {bar['unit']}" if bar["unit"] else " ×" if bar["bar"] is not None or "/" in bar["name"] else ""
    middle = f"{short(bar['low'])} to {short(bar['high'])}" if bar["low"] != bar["high"] else ""
    wanted = "" if bar["bar"] is None else f"{'≥' if bar['at_least'] else '≤'} {short(bar['bar'])}"
    verdict = {None: "", True: "met", False: "**not met**"}[bar["met"]]
    return f"| {bar['name']} | {short(bar['value'])}{unit} | {middle} | {wanted} | {verdict} |"


def main() -> None:
    """The whole table."""
    files = [Path(name) for name in sys.argv[1:]] or [RESULTS / f"{name}.json" for name in ORDER]
    print("| measure | value | middle half | bar | |\n|---|---|---|---|---|")
    for file in files:
        print("\n".join(row(bar) for bar in json.loads(file.read_text())["bars"]))


if __name__ == "__main__":
    main()
