"""The options of `tailwatch demo --experiment`; needs nothing but the standard library."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the experiment, beside those of the demo."""
    group = parser.add_argument_group("the whole experiment")
    group.add_argument(
        "--experiment", action="store_true",
        help="a trace replayed on five servers in six interleaved blocks, with intervals; up to 20 minutes",
    )  # fmt: skip
    group.add_argument(
        "--short", action="store_true", help="with --experiment: two blocks in four minutes, without intervals"
    )
    group.add_argument("--html", metavar="FILE", help="with --experiment: write a page that needs nothing else")
