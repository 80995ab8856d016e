"""`tailwatch demo --experiment`: measure, print, and write the files that were asked for."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tailwatch.demo import machine, settings
from tailwatch.demo.experiment import report
from tailwatch.demo.experiment.arms import ARMS
from tailwatch.demo.experiment.runs import SHORT, Experiment, Size, measure
from tailwatch.demo.experiment.summary import claims
from tailwatch.errors import OptionError
from tailwatch.interrupts import INTERRUPTED
from tailwatch.loadtest import options as output
from tailwatch.loadtest.histogram import LAYOUT_HASH
from tailwatch.loadtest.report import document
from tailwatch.loadtest.report.progress import Steps
from tailwatch.loadtest.results import FORMAT
from tailwatch.options.slo import SLO
from tailwatch.platform import VERSION

if TYPE_CHECKING:
    import argparse

OK, FAILED = 0, 1


def main(options: argparse.Namespace, slo: SLO, seed: int) -> int:
    """Runs it; 0, whatever the servers' numbers are; 1 where a process failed and 130 where Ctrl-C ended it, with what
    was measured until then.

    Raises:
        OptionError: an option that does not go with it.
        TailwatchError: a file cannot be written; before anything is measured.
    """
    if options.duration is not None:
        expected = "expected none with --experiment: runs are sized by collections"
        raise OptionError.of("--duration", options.duration, expected)
    files = {name: path for name in ("json", "html") if (path := getattr(options, name, None)) is not None}
    output.check_files(files)
    size = SHORT if options.short else Size(objects=settings.OBJECTS)
    before = machine.describe()
    found = measure(size, slo.text, seed, Steps().show, options.rate)
    print(report.show(found))
    if "html" in files:
        document.write(report.page(found), files["html"])
    if "json" in files:
        output.write_json(files["json"], as_dict(found, before))
        print(f"written to {files['json']}", file=sys.stderr)
    return INTERRUPTED if found.interrupted else FAILED if found.failed else OK


def as_dict(found: Experiment, before: dict[str, Any]) -> dict[str, Any]:
    """Results as `tailwatch bench --json` writes them, named by their server, and what the servers saw."""
    claimed = claims(found)
    return {
        "tailwatch": VERSION,
        "format": FORMAT,
        "layout": LAYOUT_HASH,
        "runs": [run.result.as_dict() for run in found.runs],
        "experiment": {
            "machine": before,
            "size": asdict(found.size),
            "seed": found.seed,
            "slo": found.slo,
            "capacity": found.capacity,
            "rate": found.rate,
            "seconds": found.seconds,
            "objects": found.objects,
            "interrupted": found.interrupted,
            "failed": found.failed,
            "arms": [asdict(arm) for arm in ARMS],
            "servers": [
                {"arm": run.arm, "block": run.block, "offline": run.offline, **run.server} for run in found.runs
            ],
            "rows": {"heads": report.HEADS, "rows": report.client_rows(found)},
            "differences": report.difference_rows(claimed),
            "sentences": list(report.sentences(found, claimed)),
        },
    }
