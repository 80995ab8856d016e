"""`tailwatch top`: one table, or a screen that is renewed until Ctrl-C, q, or the end of the group."""

from __future__ import annotations

import argparse
import errno
import importlib.util
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailwatch import snapshots
from tailwatch.cli import find_group
from tailwatch.cli.snapshot_source import explained, read, url_of
from tailwatch.cli.top.view import GroupView, view_of
from tailwatch.cli.top.window_history import Marks
from tailwatch.errors import EmptyGroupError, OptionError, TailwatchError, how_to_install
from tailwatch.interrupts import INTERRUPTED
from tailwatch.loadtest.options import write_json
from tailwatch.options.slo import SLO, parse_duration, parse_window

if TYPE_CHECKING:
    from rich.console import Console

    from tailwatch.snapshots import Snapshot

ABOUT = "show a server's processes live: latencies, goodput, and stream time lost to pauses, by process and cause"
EXAMPLE = "tailwatch top http://127.0.0.1:8000"
EXITS = {0: "success, also if the group is removed meanwhile", 1: "the group can no longer be read"}
OK, FAILED = 0, 1
_WINDOW = "1m"
_PLAIN_WIDTH = 120  # of what is printed into a file or a pipe
_SHORTEST, _LONGEST = 0.05, 3600.0
_TERMINAL_GONE = (errno.EIO, errno.EPIPE)
_NO_PROCESS = "no process of the group is running"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Whose numbers, and how they are shown."""
    parser.epilog = "Ctrl-C or q ends it."
    whose = parser.add_mutually_exclusive_group()
    whose.add_argument("url", nargs="?", metavar="URL", help="server on this machine; its group is read from it once")
    whose.add_argument(
        "--dir", metavar="DIR", help="group directory, of running or exited processes (default: the only group found)"
    )
    parser.add_argument("--interval", default="1s", metavar="TIME", help="refresh interval (default 1s; 50ms to 1h)")
    parser.add_argument("--window", metavar="TIME", help=f"time window of the numbers, up to 1h (default {_WINDOW})")
    parser.add_argument(
        "--once",
        action="store_true",
        help="print one table and exit: over the group's lifetime, or with --window over that time from now",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the last numbers shown")
    parser.add_argument("--slo", metavar="SLO", help="also show the share of each histogram within these bounds")


def main(parsed: argparse.Namespace) -> int:
    """Show a group.

    Returns:
        0, also when the group is removed while it is watched; 1 when it cannot be read any more; 130 after Ctrl-C, 143
        after SIGTERM.

    Raises:
        TailwatchError: a bad option, no rich, no such group, or a file that cannot be written.
    """
    if importlib.util.find_spec("rich") is None:
        raise TailwatchError(f"`top` needs rich, which is not installed: {how_to_install('top')}")
    try:
        directory = find_group.chosen(parsed.dir) if parsed.url is None else _directory_of(parsed.url)
        top = Top(parsed, directory)
        status = top.run()
    except KeyboardInterrupt:  # before there was a screen
        return INTERRUPTED
    if parsed.json is not None and top.shown is not None:
        write_json(parsed.json, top.shown.as_dict(), indent=2)
    return status


def _directory_of(url: str) -> str:
    if url_of(url) is None:
        raise TailwatchError(f"{url}: expected an address like http://127.0.0.1:8000; use --dir for a directory")
    with explained(url):
        directory = read(url).get("directory")
    if not directory:
        raise TailwatchError(
            f"{url}: this server does not share its metrics; `top` needs a group directory: start the server with "
            f"`tailwatch run -- CMD` or `install(app, dir=...)`, or read it once with `tailwatch doctor {url}`"
        )
    return str(directory)


class Top:
    """One call of it. shown: the last view."""

    def __init__(self, options: argparse.Namespace, directory: str) -> None:
        from rich.console import Console

        self.shown: GroupView | None = None
        self._directory = directory
        self._interval = _seconds(options.interval)
        self._window = parse_window(options.window or _WINDOW)
        self._waits = self._window if options.window else 0  # for one table
        self._slo = SLO.parse(options.slo) if options.slo is not None else None
        self._tty = sys.stdout.isatty()
        plain = None if self._tty or "COLUMNS" in os.environ else _PLAIN_WIDTH
        self._console: Console = Console(width=plain, highlight=False)
        self._once = options.once or not self._tty or self._console.is_dumb_terminal

    def run(self) -> int:
        """Until its end. Raises TailwatchError where the group cannot be read at the first look."""
        first = snapshots.take_directory(self._directory)
        if self._once or not any(process.lives for process in first.processes):
            return self._print_one(first)
        return self._watch(first)

    def _print_one(self, first: Snapshot) -> int:
        if self._waits and any(process.lives for process in first.processes):
            time.sleep(self._waits)
            self._look(snapshots.take_directory(self._directory), first)
        else:
            self._look(first, None)
        self._print()
        return OK

    def _print(self) -> None:
        from tailwatch.cli.top.screen import screen

        if self.shown is None:
            return
        try:
            self._console.print(screen(self.shown, self._console.width))
            sys.stdout.flush()
        except BrokenPipeError:  # into head or less
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def _look(self, now: Snapshot, earlier: Snapshot | None) -> GroupView:
        self.shown = view_of(self._directory, now, earlier, self._slo)
        return self.shown

    def _watch(self, first: Snapshot) -> int:
        from tailwatch.cli.top.terminal import TerminalEvent

        live = _Live(self._console, self._directory, self._interval, self._look, Marks(self._window))
        try:
            while live.session(first) is TerminalEvent.SUSPENDED:
                os.kill(os.getpid(), signal.SIGSTOP)
            self._print()
            if live.end:
                print(f"tailwatch: {live.end}", file=sys.stderr)
        except OSError as error:
            if error.errno not in _TERMINAL_GONE:
                raise
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing is left to be written at exit
        ended = live.signal in (signal.SIGINT, signal.SIGTERM)
        return FAILED if live.failed else 128 + live.signal if ended else OK


class _Live:
    """The screen that is renewed. end: why there is nothing more to see; failed: that is an error."""

    def __init__(
        self,
        console: Console,
        directory: str,
        interval: float,
        look: Callable[[Snapshot, Snapshot | None], GroupView],
        marks: Marks,
    ) -> None:
        self.end = ""
        self.failed = False
        self.signal = 0  # that ended it
        self._console = console
        self._directory = directory
        self._interval = interval
        self._look = look
        self._marks = marks
        self._view: GroupView | None = None
        self._notice = ""

    def session(self, first: Snapshot) -> Any:
        """Draws until something ends it; with the terminal to itself. Returns what did."""
        from rich.live import Live

        from tailwatch.cli.top.terminal import Terminal, TerminalEvent

        with Terminal() as terminal, Live(console=self._console, screen=True, auto_refresh=False) as live:
            if self._view is None:
                self._show(first)
            event = TerminalEvent.TIME
            while not self.end:
                live.update(self._drawn(), refresh=True)
                event = terminal.wait(self._interval)
                if event in (TerminalEvent.SUSPENDED, TerminalEvent.ENDED):
                    break
                if event is TerminalEvent.TIME:
                    self._renew()
            self.signal = terminal.signal
            return event

    def _drawn(self) -> Any:
        from tailwatch.cli.top.screen import screen

        assert self._view is not None
        width, height = self._console.size
        return screen(self._view, width, height, self._notice)

    def _show(self, now: Snapshot) -> None:
        self._view = self._look(now, self._marks.oldest)
        self._notice = "" if any(row.lives for row in self._view.processes) else _NO_PROCESS
        self._marks.add(time.monotonic(), now)

    def _renew(self) -> None:
        try:
            self._show(snapshots.take_directory(self._directory))
        except EmptyGroupError:
            self._notice = _NO_PROCESS
        except TailwatchError as error:
            self.failed = os.path.lexists(self._directory)
            self.end = str(error) if self.failed else f"the group has ended: {self._directory} is gone"


def _seconds(text: str) -> float:
    seconds = parse_duration(text)
    if not _SHORTEST <= seconds <= _LONGEST:
        raise OptionError.of("interval", text, "expected a time from 50ms to 1h, like '1s' or '200ms'")
    return seconds
