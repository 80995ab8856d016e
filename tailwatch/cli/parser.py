"""The command line. Each subcommand is a module or package with the members of `Command`.

Exit statuses: EXITS here, and what a subcommand's own EXITS has beside or instead.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from tailwatch import platform
from tailwatch.cli import demo, doctor, why
from tailwatch.cli.nsys import main as nsys
from tailwatch.errors import TailwatchError, UnsupportedError
from tailwatch.interrupts import INTERRUPTED, handled
from tailwatch.loadtest import ablate_main, capacity_main, compare_main
from tailwatch.loadtest import main as bench_main
from tailwatch.platform import VERSION

WRONG_CALL = 2
EXITS = {0: "success", WRONG_CALL: "usage error", 130: "ended by Ctrl-C (143: by SIGTERM); results so far were written"}


class Command(Protocol):
    """One subcommand."""

    @property
    def ABOUT(self) -> str:
        """What it does: the first line of its help."""

    @property
    def EXAMPLE(self) -> str:
        """A call of it, as typed."""

    @property
    def EXITS(self) -> Mapping[int, str]:
        """What its exit statuses mean, where that is not as in EXITS of this module."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Its options; it may set the parser's epilog and usage."""

    def main(self, parsed: argparse.Namespace) -> int:
        """Runs it and returns the exit status. A TailwatchError is printed as a usage error."""


if platform.LINUX:
    from tailwatch.cli import gc, run, trace
    from tailwatch.cli.top import main as top

    _LINUX_COMMANDS: Mapping[str, Command] = {"run": run, "top": top, "trace": trace, "gc": gc}
else:
    _LINUX_COMMANDS = {}

LINUX_ONLY = ("run", "top", "trace", "gc")
COMMANDS: Mapping[str, Command] = {
    "demo": demo,
    "doctor": doctor,
    "why": why,
    **_LINUX_COMMANDS,
    "nsys": nsys,
    "capacity": capacity_main,
    "bench": bench_main,
    "compare": compare_main,
    "ablate": ablate_main,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status; argparse itself exits with 2 on a usage error."""
    with handled() as status_of:
        try:
            return status_of(_run(arguments))
        except KeyboardInterrupt:
            print("tailwatch: interrupted", file=sys.stderr)
            return status_of(INTERRUPTED)


def _run(arguments: Sequence[str] | None) -> int:
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        if given[:1] and given[0] in LINUX_ONLY and not platform.LINUX:
            raise UnsupportedError(f"tailwatch {given[0]}: this command needs Linux")
        parsed = _parsed(given)
        with _json_on_stdout(parsed):
            return COMMANDS[parsed.subcommand].main(parsed)
    except TailwatchError as error:
        print(f"tailwatch: {error}", file=sys.stderr)
        return WRONG_CALL


@contextlib.contextmanager
def _json_on_stdout(parsed: argparse.Namespace) -> Iterator[None]:
    """`--json -`: standard output receives the JSON alone, standard error what else the command prints."""
    if str(getattr(parsed, "json", None)) != "-":
        yield
        return
    sys.stdout.flush()
    with os.fdopen(os.dup(sys.stdout.fileno()), "w") as out, contextlib.redirect_stdout(sys.stderr):
        parsed.json = type(parsed.json)(f"/dev/fd/{out.fileno()}")
        yield


def _parsed(given: list[str]) -> argparse.Namespace:
    """Of unknown arguments, argparse shows the usage of all commands: here it is that of the one called."""
    parser, commands = _parser()
    parsed, unknown = parser.parse_known_args(given)
    if unknown:
        commands[parsed.subcommand].error(f"unrecognized arguments: {' '.join(unknown)}")
    return parsed


def _parser() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """The parser, and those of the commands."""
    parser = argparse.ArgumentParser(prog="tailwatch", description="Why was that token late?")
    if not platform.LINUX:
        parser.epilog = f"{', '.join(LINUX_ONLY)}: these commands need Linux."
    parser.add_argument("--version", action="version", version=f"tailwatch {VERSION}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="subcommand")
    for name, command in COMMANDS.items():
        parsing = commands.add_parser(
            name,
            help=command.ABOUT,
            description=filled(command.ABOUT),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_arguments(parsing)
        paragraphs = (parsing.epilog, f"Example: {command.EXAMPLE}", f"Exit status: {exits(command)}.")
        parsing.epilog = "\n\n".join(filled(each) for each in paragraphs if each).replace("%", "%%")
    return parser, commands.choices


def filled(text: str) -> str:
    """Lines as wide as argparse makes them on a terminal of 80 columns."""
    return textwrap.fill(text, 78, break_long_words=False, break_on_hyphens=False)


def exits(command: Command) -> str:
    """The exit statuses of a subcommand: "0: success; 2: ..."."""
    return "; ".join(f"{status}: {meaning}" for status, meaning in sorted({**EXITS, **command.EXITS}.items()))
