"""`tailwatch compare A.json B.json`: compares the runs of two or more files.

Exit status: 0: success, also if no difference is shown; 2: usage error.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tailwatch.errors import OptionError
from tailwatch.loadtest import options, results
from tailwatch.loadtest.compare import Comparison, VariantRuns, compare, merge, read
from tailwatch.loadtest.comparison_text import show
from tailwatch.loadtest.metrics import NAMES, PERCENTILES, Measure, measures
from tailwatch.loadtest.options import refuse, write_json
from tailwatch.loadtest.report import comparison as page
from tailwatch.loadtest.report import document
from tailwatch.platform import VERSION

ABOUT = "compare the runs of two or more variants, saved by `bench --json`; the run is the statistical unit"
EXAMPLE = "tailwatch compare before.json after.json"
EXITS = {0: "success, also if a difference is shown"}
OK = 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help="results of bench --json or ablate -o; the first is the baseline"
    )
    parser.add_argument(
        "--baseline-repeat",
        metavar="FILE",
        help="repeat runs of the baseline, used to estimate A/A noise",
    )
    parser.add_argument(
        "--merge", metavar="OUT",
        help="merge files of machines that sent one load together: write the merged runs to OUT instead of comparing",
    )  # fmt: skip
    add_looking(parser)


def add_looking(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """The options for metrics, percentiles and output files."""
    parser.add_argument(
        "--metrics", metavar="NAMES",
        help=f"metrics to compare, some of {', '.join(NAMES)}; fewer metrics show smaller differences",
    )  # fmt: skip
    shown = ",".join(f"{percent:g}" for percent in PERCENTILES)
    parser.add_argument("--percentiles", metavar="P,P", help=f"percentiles of latencies (default {shown})")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the comparison as JSON")
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write it as a page that works offline")


def looked_at(parsed: argparse.Namespace) -> list[Measure]:
    """What these options ask for.

    Raises:
        OptionError: a name or a number that is none.
    """
    names = [name.strip() for name in parsed.metrics.split(",")] if parsed.metrics else []
    return measures(names, _percentiles(parsed.percentiles) if parsed.percentiles else PERCENTILES)


def main(parsed: argparse.Namespace) -> int:
    """Runs the command."""
    if parsed.merge is not None:
        return _merge(parsed)
    if len(parsed.files) < 2:
        raise OptionError("compare: expected at least two files; the first is the baseline")
    options.check_files({"json": parsed.json, "html": parsed.html})
    arms = _named([read(path) for path in parsed.files], parsed.files)
    again = read(parsed.baseline_repeat) if parsed.baseline_repeat is not None else None
    present(compare(arms, of=looked_at(parsed), again=again), parsed)
    return OK


def present(found: Comparison, parsed: argparse.Namespace) -> None:
    """Prints it, and writes the files that the options of `add_looking` ask for.

    Raises:
        TailwatchError: a file cannot be written.
    """
    print(show(found), end="")
    if parsed.json is not None:
        data = {"tailwatch": VERSION, "format": results.FORMAT, "comparison": found.as_dict()}
        write_json(parsed.json, data, indent=1)
    if parsed.html is not None:
        document.write(page.page(found), parsed.html)


def _merge(parsed: argparse.Namespace) -> int:
    refuse(
        parsed, ("baseline_repeat", "metrics", "percentiles", "json", "html"), "merge: runs are merged, not compared"
    )
    options.check_files({"merge": parsed.merge})
    files = [results.load(path) for path in parsed.files]
    merged = merge(files)
    results.save(parsed.merge, merged)
    print(f"{parsed.merge}: {len(merged)} runs, each merged from {len(files)} machines")
    return OK


def _named(arms: list[VariantRuns], paths: list[str]) -> list[VariantRuns]:
    """Two files whose runs have one name are distinguished by the files'."""
    if len({arm.name for arm in arms}) == len(arms):
        return arms
    names = [Path(path).stem for path in paths]
    names = names if len(set(names)) == len(names) else paths
    return [VariantRuns(name, arm.runs) for name, arm in zip(names, arms, strict=True)]


def _percentiles(written: str) -> list[float]:
    try:
        return [float(part.strip().removeprefix("p")) for part in written.split(",")]
    except ValueError:
        raise OptionError.of("percentiles", written, "expected numbers like 50,99,99.9") from None
