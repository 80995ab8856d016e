"""The command line. Each subcommand is a module or package with the members of `Command`.

Exit status 0: success; 1: a finding to act on, or a failure; 2: a usage error; 130, 143: ended by Ctrl-C or SIGTERM,
after what there was has been written. `run` returns the status of its command.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Protocol

from tailwatch import platform
from tailwatch.cli import demo, doctor, gc, run, trace
from tailwatch.cli.nsys import main as nsys
from tailwatch.cli.top import main as top
from tailwatch.errors import TailwatchError, UnsupportedError
from tailwatch.interrupts import INTERRUPTED, handled
from tailwatch.loadtest import ablate_main, capacity_main, compare_main
from tailwatch.loadtest import main as bench_main
from tailwatch.platform import VERSION

WRONG_CALL = 2


class Command(Protocol):
    """One subcommand."""

    @property
    def ABOUT(self) -> str:
        """What it does: the first line of its help."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Its options; it may set the parser's epilog and usage."""

    def main(self, parsed: argparse.Namespace) -> int:
        """Runs it and returns the exit status. A TailwatchError is printed as a usage error."""


COMMANDS: Mapping[str, Command] = {
    "demo": demo,
    "doctor": doctor,
    "run": run,
    "top": top,
    "nsys": nsys,
    "trace": trace,
    "gc": gc,
    "capacity": capacity_main,
    "bench": bench_main,
    "compare": compare_main,
    "ablate": ablate_main,
}
LINUX_ONLY = ("run", "top", "trace", "gc")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status; argparse itself exits with 2 on a usage error."""
    with handled() as status_of:
        try:
            return status_of(_run(arguments))
        except KeyboardInterrupt:
            print("tailwatch: interrupted", file=sys.stderr)
            return status_of(INTERRUPTED)


def _run(arguments: Sequence[str] | None) -> int:
    parsed = _parser().parse_args(arguments)
    try:
        if parsed.subcommand in LINUX_ONLY and not platform.LINUX:
            raise UnsupportedError(f"tailwatch {parsed.subcommand}: this command needs Linux")
        return COMMANDS[parsed.subcommand].main(parsed)
    except TailwatchError as error:
        print(f"tailwatch: {error}", file=sys.stderr)
        return WRONG_CALL


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tailwatch", description="Why was that token late?")
    parser.add_argument("--version", action="version", version=f"tailwatch {VERSION}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="subcommand")
    for name, command in COMMANDS.items():
        command.add_arguments(commands.add_parser(name, help=command.ABOUT, description=command.ABOUT))
    return parser
