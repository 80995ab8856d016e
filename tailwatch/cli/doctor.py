"""``tailwatch doctor``: shows problems of a running server, or of a saved snapshot, and how to fix them."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailwatch import snapshots
from tailwatch.cli import find_group
from tailwatch.cli.snapshot_source import (
    HOW_TO_SAVE,
    NotServedError,
    add_source,
    check_window,
    explained,
    read,
    url_of,
)
from tailwatch.diagnose.finding import DiagnosisContext, Finding
from tailwatch.diagnose.rules import doctor, headline
from tailwatch.diagnose.rules_server import nothing_seen
from tailwatch.diagnose.text import format_findings, format_slow, format_tail
from tailwatch.errors import EmptyGroupError
from tailwatch.group import temp_dirs, unseen
from tailwatch.loadtest.options import write_json

if TYPE_CHECKING:
    from tailwatch.snapshots import Snapshot

ABOUT = "show problems of a running server, or of a saved snapshot, and how to fix them"
EXAMPLE = "tailwatch doctor http://127.0.0.1:8000 --window 10m"
EXITS = {1: "a finding is high or medium"}
OK, FOUND = 0, 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The source of the numbers, and the output."""
    parser.epilog = f"To get a FILE, {HOW_TO_SAVE}."
    add_source(parser)
    parser.add_argument(
        "--window", metavar="10m", help="with a URL: only the last minutes, up to 1h (default: since the start)"
    )
    parser.add_argument(
        "--slow-gaps", action="store_true", help="also list the longest slow gaps of each minute, hour and the run"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the report as JSON")


def main(parsed: argparse.Namespace) -> int:
    """Prints the findings. Returns 1 if one of them needs action.

    Raises:
        TailwatchError: the numbers cannot be read, or the report cannot be written.
    """
    if parsed.window is not None:
        check_window(parsed.file, parsed.window)
    directory = None if parsed.file is not None else find_group.chosen(parsed.dir)
    with explained(parsed.file):
        report, findings = _examine(parsed, directory)
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


def _examine(parsed: argparse.Namespace, directory: str | None) -> tuple[dict[str, Any], list[Finding]]:
    """The report, and the findings in it."""
    if directory is None:
        try:
            snapshot, context = _load(read(parsed.file, parsed.window))
        except NotServedError:
            directory = find_group.serving(url_of(parsed.file) or "")
            if directory is None:
                raise
    if directory is not None:
        try:
            snapshot, context = _of_group(directory)
        except EmptyGroupError:
            if (finding := nothing_seen(context_without_numbers(directory))) is None:
                raise
            return _report("no gaps between tokens yet", [finding]), [finding]
    findings = doctor(snapshot, context)
    slow = [format_slow(gap) for gap in snapshot.slowest] if parsed.slow_gaps else None
    return _report(headline(snapshot, context), findings, format_tail(snapshot), slow), findings


def _report(title: str, findings: list[Finding], tail: str = "", slow: list[str] | None = None) -> dict[str, Any]:
    return {"headline": title, "findings": [asdict(each) for each in findings], "tail": tail, "slow": slow}


def _of_group(directory: str) -> tuple[Snapshot, DiagnosisContext]:
    """How its processes were set up is mostly not known from outside."""
    return snapshots.take_directory(directory), context_of(directory)


def context_of(directory: str) -> DiagnosisContext:
    """What a group's directory holds beside a snapshot. Errors as of snapshots.take_directory()."""
    healthy = snapshots.healthy_in(directory)
    return replace(
        context_without_numbers(directory),
        healthy_concurrency=healthy.streams,
        highest_concurrency=healthy.highest,
        queued_seconds=healthy.queued_seconds,
    )


def context_without_numbers(directory: str) -> DiagnosisContext:
    """What it holds where no process has left numbers."""
    found = unseen.read(directory)
    ports = {*found.ports, *unseen.Connections().look(found.pids)} if found.pids else found.ports
    stamped = found.is_stamped(directory)
    return DiagnosisContext(
        started="run" if temp_dirs.is_of_a_launcher(directory) else "install",
        unseen_servers=() if stamped else found.servers,
        unseen_ports=() if stamped else tuple(sorted(ports)),
        uncounted_routes=found.routes,
        opened_before=found.opened,
    )


def _load(data: Mapping[str, Any]) -> tuple[Snapshot, DiagnosisContext]:
    """A file holds a snapshot, or {"snapshot": ..., "context": ...} where it also holds how the process was set up."""
    from tailwatch.snapshots.serialization import from_dict

    if "snapshot" not in data:
        return from_dict(data), DiagnosisContext()
    return from_dict(data["snapshot"]), DiagnosisContext.from_dict(data.get("context") or {})
