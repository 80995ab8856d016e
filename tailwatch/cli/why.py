"""``tailwatch why``: the last late tokens of a server, each with its causes."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tailwatch.cli import find_group
from tailwatch.cli.snapshot_source import add_source, explained, read
from tailwatch.diagnose.why import events_of, format_why, late_tokens
from tailwatch.loadtest.options import write_json
from tailwatch.options.slo import parse_window
from tailwatch.snapshots.serialization import encode, from_dict

if TYPE_CHECKING:
    from tailwatch.snapshots import Snapshot

ABOUT = "show the last late tokens, each with the causes that add up to its lateness"
EXAMPLE = "tailwatch why http://127.0.0.1:8000 --last 10m"
EXITS = {0: "success, also if late tokens are shown"}
_MOST = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The source of the numbers, and which tokens."""
    add_source(parser)
    parser.add_argument("--request", metavar="ID", help="only requests whose id or trace id begins so")
    parser.add_argument("--last", metavar="10m", help="only the last minutes, up to 1h (default: all that are kept)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write them as JSON, with all that are kept")


def main(parsed: argparse.Namespace) -> int:
    """Prints the latest tokens, worst first.

    Raises:
        TailwatchError: the numbers cannot be read, or the file cannot be written.
    """
    last = float(parse_window(parsed.last)) if parsed.last is not None else None
    gaps = late_tokens(_snapshot(parsed), request=parsed.request, last=last)
    try:
        events = events_of(gaps)
        shown = [format_why(gap, others) for gap, others in events[:_MOST]]
        print(*(shown or ["no late token is kept"]), sep="\n")
        if len(events) > _MOST:
            rest = sum(1 + others for _, others in events[_MOST:])
            print(f"{rest} more; --json FILE has them all")
        sys.stdout.flush()
    except BrokenPipeError:  # into head or less
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if parsed.json is not None:
        write_json(parsed.json, {"late": [encode(gap) for gap in gaps]}, indent=2)
    return 0


def _snapshot(parsed: argparse.Namespace) -> Snapshot:
    with explained(parsed.file):
        if parsed.file is not None:
            data = read(parsed.file)
            return from_dict(data.get("snapshot", data))
        from tailwatch import snapshots

        return snapshots.take_directory(find_group.chosen(parsed.dir))
