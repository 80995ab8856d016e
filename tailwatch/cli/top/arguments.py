"""The options of `tailwatch top`. Imported wherever the command line is."""

from __future__ import annotations

import argparse
from pathlib import Path

WINDOW = "1m"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `tailwatch top`, but for whose numbers it shows."""
    parser.add_argument("--interval", default="1s", metavar="TIME", help="between two looks (1s; from 50ms to 1h)")
    parser.add_argument("--window", metavar="TIME", help=f"what a screen covers, up to 1h ({WINDOW})")
    parser.add_argument(
        "--once",
        action="store_true",
        help="print one table and end: of all the group's time, or, with --window, after watching for so long",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was shown last")
    parser.add_argument("--slo", metavar="SLO", help="also show how much of each histogram keeps these bounds")
