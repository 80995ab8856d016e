"""``tailwatch trace``: writes the recorded events of a server's processes as a file for ui.perfetto.dev."""

from __future__ import annotations

import argparse
import sys

from tailwatch.cli import find_group
from tailwatch.group import temp_dirs

ABOUT = "write the recorded events of a server, running or exited, as a timeline for ui.perfetto.dev"
EXAMPLE = "tailwatch trace -o tail.pftrace"
EXITS: dict[int, str] = {}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The group, and the output file."""
    parser.epilog = (
        "Events are recorded with install(app, trace_events=1_000_000), or with TAILWATCH_TRACE_EVENTS=1000000 and "
        "`tailwatch run`."
    )
    parser.add_argument(
        "-o", dest="out", metavar="FILE",
        help="output file; -: standard output; NAME.tar: with --merge, an archive whose traces Perfetto merges",
    )  # fmt: skip
    parser.add_argument(
        "--dir", metavar="DIR", help="directory of the process group, running or exited (default: found automatically)"
    )
    parser.add_argument(
        "--format", choices=("perfetto", "json"), default="perfetto", help="output format; json: Chrome trace format"
    )
    merged = "trace of torch, JAX or viztracer to align to the same clock; repeatable"
    parser.add_argument("--merge", metavar="TRACE", action="append", default=[], help=merged)


def main(parsed: argparse.Namespace) -> int:
    """Writes the file and prints its contents by process.

    Raises:
        TailwatchError: the group was not found, no event was recorded, or the file cannot be written or merged.
    """
    from tailwatch.tracing import ring_files

    directory = find_group.chosen(parsed.dir, having=temp_dirs.has_traces)
    out = parsed.out or ("tailwatch.pftrace" if parsed.format == "perfetto" else "tailwatch.json")
    to = sys.stdout.fileno() if out == "-" else out
    files, written = ring_files.write_group(directory, to, parsed.format, merge=parsed.merge)
    lines = (
        f"  {file.process} (pid {file.pid}{', exited' if file.over else ''}): {file.events} events"
        + (f"; {file.lost} older ones were overwritten" if file.lost else "")
        for file in files
    )
    where = "standard output" if out == "-" else out
    head = f"{where}: {written}"
    print(head, *lines, sep="\n", file=sys.stderr if out == "-" else None)
    return 0
