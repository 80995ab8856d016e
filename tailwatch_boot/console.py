"""The entry of the ``tailwatch`` command.

Ctrl-C and SIGTERM end a command without a traceback, from the first line of this file on: with status 130 and 143, as
a shell shows the death by these signals. Before it, while the interpreter itself starts, they are Python's. While
modules are imported there is nothing to write, and the process ends at once; afterwards tailwatch.cli raises
KeyboardInterrupt, and each command writes what it has. Needs nothing but the standard library's smallest modules.
"""

import os
import signal
import sys

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def main() -> int:
    """The console script: runs the command line, and returns its exit status."""
    guard()
    from tailwatch.cli import main as run

    return run()


def guard() -> None:
    """From now on SIGINT and SIGTERM end the process at once, where they have no other handler."""
    for number in SIGNALS:
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, end)


def end(number: int, frame: object) -> None:
    """The handler: nothing of ours is left to be written, and nothing is cleaned up that the kernel does not."""
    os._exit(128 + number)


def guard_module(name: str) -> None:
    """guard(), where ``python -m NAME`` is about to run the package that is being imported."""
    if sys.argv[:1] == ["-m"] and sys.orig_argv[-len(sys.argv)].removeprefix("-m") == name:
        guard()
