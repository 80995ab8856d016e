"""``tailwatch run -- CMD ARGS…``: runs a command unchanged, watches its Python processes, and joins them in a group.

The command gets ``TAILWATCH=1``, the options, and on PYTHONPATH a directory whose sitecustomize begins the automatic
installation in interpreters that have no boot file of ours. Its standard streams, its terminal and its process group
are those of the caller; signals sent to us are passed on to it; its exit status is ours.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from tailwatch.errors import OptionError, TailwatchError
from tailwatch.group import temp_dirs
from tailwatch.group.temp_dirs import IN_MEMORY, LAUNCHER, PREFIX, sweep
from tailwatch.options.config import OPTIONS, SECRET, SECRET_OPTIONS, Config, variable_of

ABOUT = "run a server command unchanged and watch each of its Python processes"
NOT_EXECUTABLE, NOT_FOUND, SIGNALLED = 126, 127, 128  # the exit statuses of a shell
STARTUP = Path(__file__).parents[2] / "tailwatch_boot" / "startup"


OFFERED = tuple(name for name in OPTIONS if name != "role")  # each process has its own
# By name: other systems, where the package is imported too, do not have all of them.
_PASSED_ON = (
    "SIGHUP",
    "SIGINT",
    "SIGQUIT",
    "SIGTERM",
    "SIGUSR1",
    "SIGUSR2",
    "SIGWINCH",
    "SIGTTIN",
    "SIGTTOU",
    "SIGCONT",
)
_IGNORED_BY_PYTHON = ("SIGPIPE", "SIGXFSZ")
_FROM_THE_TERMINAL = 0x80  # SI_KERNEL: Ctrl-C reached the whole foreground process group, the command with it


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options, and the command to run."""
    parser.usage = "tailwatch run [--option=value ...] -- CMD ARGS..."
    parser.epilog = f"Options, the same as those of install(): {', '.join(OFFERED)}."
    parser.allow_abbrev = False
    for name in OFFERED:
        spellings = dict.fromkeys((f"--{name}", f"--{name.replace('_', '-')}"))  # as install() calls it, too
        parser.add_argument(*spellings, dest=name, metavar="VALUE", help=argparse.SUPPRESS)
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- CMD ARGS", help="command to run and watch")


def main(parsed: argparse.Namespace) -> int:
    """Runs the command to its end. Returns its exit status, 128 + n where signal n ended it, 127 where it was not
    found, 126 where it cannot be run.

    Raises:
        OptionError: a bad option in the call.
    """
    command: list[str] = parsed.command[1:] if parsed.command[:1] == ["--"] else parsed.command
    if not command:
        raise OptionError("run: expected a command, like: tailwatch run -- python -m uvicorn app:app")
    given = {variable_of(name): value for name in OFFERED if (value := getattr(parsed, name)) is not None}
    _check(given)
    with _signals_held() as before, _group({**os.environ, **given}) as directory:
        environment = environment_of(os.environ, given | directory)
        _say(f"watching every Python process of: {shlex.join(command)}{_with(given | directory)}")
        status = run(command, environment, before)
        if directory:
            _sum_up(*directory.values())
    return status


@contextlib.contextmanager
def _signals_held() -> Iterator[set[int]]:
    """Inside, signals wait until they can be passed on; those that come when the command has ended are dropped, and its
    status stands. Gives the mask from before, the command's."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where it is ignored, a child's exit status is lost
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _held())
    try:
        yield {int(number) for number in before}
    finally:
        while signal.sigtimedwait(_held() - before, 0) is not None:
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _held() -> set[int]:
    return _numbers(_PASSED_ON) | {signal.SIGCHLD}


@contextlib.contextmanager
def _group(environment: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """The variable that names the group's directory: one of our own, gone afterwards, where the caller has named none
    (then it is the caller's, and stays)."""
    named = environment.get(variable_of("dir"), "").strip()
    if named:
        yield {variable_of("dir"): named}
        return
    with contextlib.ExitStack() as stack:
        directory = _make_directory(stack)
        yield {variable_of("dir"): directory} if directory else {}


def _make_directory(stack: contextlib.ExitStack) -> str:
    """A directory that is there, and known to be in use, until the stack is closed; "" where none can be made."""
    import fcntl  # not on every system on which this module is imported

    sweep()
    try:
        directory = tempfile.mkdtemp(prefix=PREFIX, dir=IN_MEMORY)
        stack.callback(_clear, directory)
        lock = os.open(os.path.join(directory, LAUNCHER), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        stack.callback(os.close, lock)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return directory
    except OSError as error:
        stack.close()
        reason = f"{IN_MEMORY} is not writable ({error.strerror})"
        _say(f"{reason}: each process reports only its own numbers; set --dir to share them in another directory")
        return ""


def _clear(directory: str) -> None:
    """Remove what the group left, but for traces of a server that may have been killed: the sweep takes them later."""
    if temp_dirs.has_traces(directory):
        _say(f"recorded events are kept for an hour: tailwatch trace --dir {directory}")
    else:
        shutil.rmtree(directory, ignore_errors=True)


def _sum_up(directory: str) -> None:
    """What the processes left behind, if any of them was watched."""
    from tailwatch import snapshots
    from tailwatch.diagnose.rules import headline

    try:
        found = snapshots.take_directory(directory)
    except TailwatchError:
        return
    paused = (f"{process.name} {sum(process.paused.values()):.3g} s" for process in found.processes)
    _say(f"{headline(found)} (paused: {', '.join(paused)})")


def environment_of(inherited: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """The environment of the command: the options as variables, and automatic installation in every interpreter."""
    path = inherited.get("PYTHONPATH", "")  # an empty part of it is the current directory, an empty whole is nothing
    if path.split(os.pathsep)[0] != str(STARTUP):
        path = f"{STARTUP}{os.pathsep}{path}" if path else str(STARTUP)
    return {**inherited, **given, "TAILWATCH": "1", "PYTHONPATH": path}


def run(command: Sequence[str], environment: Mapping[str, str], mask: Iterable[int]) -> int:
    """Runs a command in our process group, with a signal mask, and passes on the signals that are held. Returns the
    exit status as a shell gives it."""
    try:
        return _wait(_spawn(command, environment, mask), _held())
    except FileNotFoundError:
        return _refuse(NOT_FOUND, command[0], "command not found")
    except OSError as error:
        if not _exists(command[0]):  # EACCES: a directory of PATH cannot be searched
            return _refuse(NOT_FOUND, command[0], "command not found")
        return _refuse(NOT_EXECUTABLE, command[0], f"cannot be run: {error.strerror}")


def _exists(name: str) -> bool:
    """Whether there is a file of that name where the command is looked for."""
    places = [""] if os.sep in name else os.get_exec_path()
    return any(os.path.exists(os.path.join(place, name)) for place in places)


def _spawn(command: Sequence[str], environment: Mapping[str, str], mask: Iterable[int]) -> int:
    return os.posix_spawnp(
        command[0], list(command), environment, setsigmask=mask, setsigdef=_numbers(_IGNORED_BY_PYTHON)
    )


def _numbers(names: Iterable[str]) -> set[int]:
    return {getattr(signal, name) for name in names}


def _wait(pid: int, signals: Iterable[int]) -> int:
    while True:
        received = signal.sigwaitinfo(signals)
        if received.si_signo == signal.SIGCHLD:
            status = _reap(pid)
            if status is not None:
                return SIGNALLED + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        elif received.si_code != _FROM_THE_TERMINAL:
            os.kill(pid, received.si_signo)


def _reap(pid: int) -> int | None:
    """The wait status of the command, None while it runs. As the first process of a container we have orphans too."""
    while True:
        ended, status = os.waitpid(-1, os.WNOHANG)
        if ended == pid:
            return status
        if ended == 0:
            return None


def _check(given: Mapping[str, str]) -> None:
    """A bad option of the call is an error. One that is inherited is reported, and the command runs without us."""
    for variable, value in given.items():
        Config.read({}, {variable: value})
    try:
        Config.read({}, {**os.environ, **given})
    except OptionError as error:
        _say(f"{error}; the command runs without tailwatch")


def _with(given: Mapping[str, str]) -> str:
    secret = {variable_of(name) for name in SECRET_OPTIONS}
    said = (f"{name}={SECRET if name in secret else value}" for name, value in given.items())
    return f" ({' '.join(said)})" if given else ""


def _refuse(status: int, name: str, reason: str) -> int:
    _say(f"{name}: {reason}")
    return status


def _say(sentence: str) -> None:
    print(f"tailwatch: {sentence}", file=sys.stderr, flush=True)
