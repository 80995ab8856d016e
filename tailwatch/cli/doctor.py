"""``tailwatch doctor``: shows problems of a running server, or of a saved snapshot, and how to fix them."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailwatch.cli import find_group
from tailwatch.cli.snapshot_source import HOW_TO_SAVE, explained, read
from tailwatch.diagnose.finding import DiagnosisContext
from tailwatch.diagnose.rules import doctor, headline
from tailwatch.diagnose.text import format_findings, format_slow, format_tail
from tailwatch.loadtest.options import write_json

if TYPE_CHECKING:
    from tailwatch.snapshots import Snapshot

ABOUT = "show problems of a running server, or of a saved snapshot, and how to fix them"
OK, FOUND = 0, 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The source of the numbers, and the output."""
    parser.epilog = f"To get a FILE, {HOW_TO_SAVE}."
    whose = parser.add_mutually_exclusive_group()
    whose.add_argument(
        "file",
        nargs="?",
        metavar="URL|FILE",
        help="URL of a server on this machine, or a snapshot saved as JSON ('-': standard input)",
    )
    whose.add_argument(
        "--dir", metavar="DIR", help="directory of the process group, running or exited (default: found automatically)"
    )
    parser.add_argument("--slow-gaps", action="store_true", help="also list the slow gaps, newest first")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the report as JSON")


def main(parsed: argparse.Namespace) -> int:
    """Prints the findings. Returns 1 if one of them needs action.

    Raises:
        TailwatchError: the numbers cannot be read, or the report cannot be written.
    """
    directory = parsed.dir if parsed.file is not None or parsed.dir is not None else find_group.find(os.environ)
    with explained(parsed.file):
        snapshot, context = _of_group(directory) if directory is not None else _load(read(parsed.file))
    findings = doctor(snapshot, context)
    report: dict[str, Any] = {
        "headline": headline(snapshot, context),
        "findings": [asdict(finding) for finding in findings],
        "tail": format_tail(snapshot),
        "slow": [format_slow(gap) for gap in snapshot.slowest] if parsed.slow_gaps else None,
    }
    try:
        print(report["headline"], format_findings(findings), report["tail"], sep="\n\n")
        if parsed.slow_gaps:
            print("", *(report["slow"] or ["no slow gaps recorded"]), sep="\n")
        sys.stdout.flush()
    except BrokenPipeError:  # into head or less
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if parsed.json is not None:
        write_json(parsed.json, report, indent=2)
    return FOUND if any(finding.severity in ("high", "medium") for finding in findings) else OK


def _of_group(directory: str) -> tuple[Snapshot, DiagnosisContext]:
    """How its processes were set up is not known from outside."""
    from tailwatch import snapshots

    return snapshots.take_directory(directory), DiagnosisContext()


def _load(data: Mapping[str, Any]) -> tuple[Snapshot, DiagnosisContext]:
    """A file holds a snapshot, or {"snapshot": ..., "context": ...} where it also says how the process was set up."""
    from tailwatch.snapshots.serialization import from_dict

    if "snapshot" not in data:
        return from_dict(data), DiagnosisContext()
    return from_dict(data["snapshot"]), DiagnosisContext.from_dict(data.get("context") or {})
