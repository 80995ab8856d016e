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
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from tailwatch import snapshots
from tailwatch.diagnose.finding import DiagnosisContext
from tailwatch.diagnose.rules_server import nothing_seen
from tailwatch.errors import OptionError, TailwatchError
from tailwatch.group import temp_dirs, unseen
from tailwatch.group.temp_dirs import IN_MEMORY, LAUNCHER, PREFIX, remove_dead
from tailwatch.options.config import OPTIONS, SECRET, SECRET_OPTIONS, Config, variable_of
from tailwatch_boot import own_notes

ABOUT = "run a server command unchanged and watch each of its Python processes"
EXAMPLE = "tailwatch run --slow-gap-ms=100 -- vllm serve MODEL"
EXITS = {
    0: "the command's own exit status, as is any other; 128 + n if signal n ended it",
    126: "the command cannot be run",
    127: "the command was not found",
}
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
_LOOK_SECONDS, _LOOK_EARLY_SECONDS, _EARLY_LOOKS, _TRAFFIC_SECONDS = 2.0, 0.5, 20, 60.0
_FROM_THE_TERMINAL = 0x80  # SI_KERNEL: Ctrl-C reached the whole foreground process group, the command with it
_elsewhere: list[int] = []  # signals that a thread of other code took: a sitecustomize or a .pth file may start one


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options, and the command to run."""
    parser.usage = "tailwatch run [--option=value ...] -- CMD ARGS..."
    parser.epilog = f"Options, the same as those of install(): {', '.join(OFFERED)}."
    parser.allow_abbrev = False
    for name in OFFERED:
        spellings = dict.fromkeys((f"--{name}", f"--{name.replace('_', '-')}"))  # as install() calls it, too
        bare: dict[str, str] = {"nargs": "?", "const": "1"} if name == "quiet" else {}
        parser.add_argument(*spellings, dest=name, metavar="VALUE", help=argparse.SUPPRESS, **bare)  # type: ignore[arg-type]
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
    watched, quiet = _check(given)
    with _signals_held() as before, _group({**os.environ, **given}) as directory:
        environment = environment_of(os.environ, given | directory)
        if not quiet:
            _print(f"watching every Python process of: {shlex.join(command)}{_with(given | directory)}")
        traffic = UnseenTraffic(*directory.values()) if watched and directory and not quiet else None
        status = run(command, environment, before, traffic)
        if directory and not quiet:
            _sum_up(*directory.values())
        if traffic is not None:
            traffic.finish()
    return status


class UnseenTraffic:
    """Notices connections to a command's ports while no request is seen in its group: a line after a minute of them,
    and at the end. It looks no more once requests are stamped, and is silent where that is not known: the group cannot
    be read, or an app cannot join it. Nothing raises.

    directory: the group's. What an earlier command left there does not count."""

    def __init__(self, directory: str) -> None:
        own_notes.remove_ended(directory)
        self._directory = directory
        self._opened, self._fronts = snapshots.stamped_in(directory) or (0, set())
        with contextlib.suppress(OSError):  # for the doctor
            if self._opened:
                own_notes.note(directory, "opened", str(self._opened))
            for name in sorted(self._fronts):
                own_notes.note(directory, "front", name)
        self._connections: unseen.Connections | None = None
        self._pid = 0
        self._ports: set[int] = set()
        self._noted: set[int] = set()
        self._since = self._last = 0.0
        self._looks = 0
        self._printed = False

    @property
    def looks(self) -> bool:
        """Whether turn() is to be called again."""
        return self._connections is not None and not self._printed

    @property
    def pause(self) -> float:
        """Seconds until the next turn: a short run is seen, too."""
        return _LOOK_EARLY_SECONDS if self._looks < _EARLY_LOOKS else _LOOK_SECONDS

    def begin(self, pid: int) -> None:
        """The command has begun."""
        self._pid, self._connections = pid, unseen.Connections()

    def turn(self) -> None:
        """Look."""
        self._looks += 1
        if self._look() and self._last - self._since >= _TRAFFIC_SECONDS:
            self._printed = True
            self._print_finding()

    def finish(self) -> None:
        """The command has ended: what came until now."""
        if self._look() and self._ports:
            self._print_finding()

    def _look(self) -> bool:
        """Whether it is certain that no request is stamped."""
        try:
            stamped = snapshots.stamped_in(self._directory)
            if self._connections is None or (stamped is not None and self._is_more(*stamped)):
                self._connections = None
                return False
            self._take(self._connections.look([self._pid]))
            if stamped is None or self._connections.others or unseen.read(self._directory).unwatched:
                return False
            self._note()
            return True
        except Exception:  # signals are passed on, and the exit status is, whatever is wrong here
            self._connections = None
            return False

    def _is_more(self, opened: int, fronts: set[str]) -> bool:
        return opened > self._opened or not fronts <= self._fronts

    def _take(self, ports: set[int]) -> None:
        if ports:
            self._last = time.monotonic()
            self._since = self._since or self._last
            self._ports |= ports

    def _note(self) -> None:
        new, self._noted = self._ports - self._noted, set(self._ports)
        with contextlib.suppress(OSError):
            for port in new:
                own_notes.note(self._directory, "port", str(port))

    def _print_finding(self) -> None:
        servers, ports = unseen.read(self._directory).servers, tuple(sorted(self._ports))
        finding = nothing_seen(DiagnosisContext(unseen_servers=servers, unseen_ports=ports))
        if finding is not None:
            _print(f"{finding.title}: {finding.detail} To measure them, {finding.advice}")


@contextlib.contextmanager
def _signals_held() -> Iterator[set[int]]:
    """Inside, signals wait until they can be passed on; those that come when the command has ended are dropped, and its
    status stands. Gives the mask from before, the command's."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where it is ignored, a child's exit status is lost
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _held())
    ours = [number for number in _numbers(_PASSED_ON) if signal.getsignal(number) is not signal.SIG_IGN]
    handlers = {number: signal.signal(number, lambda number, frame: _elsewhere.append(number)) for number in ours}
    try:
        yield {int(number) for number in before}
    finally:
        while signal.sigtimedwait(_held() - before, 0) is not None:
            pass
        for number, handler in handlers.items():
            signal.signal(number, handler)
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

    remove_dead()
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
        _print(f"{reason}: each process reports only its own numbers; set --dir to share them in another directory")
        return ""


def _clear(directory: str) -> None:
    """Remove what the group left, but for traces of a server that may have been killed: remove_dead() does later."""
    if temp_dirs.has_traces(directory):
        _print(f"recorded events are kept for an hour: tailwatch trace --dir {directory}")
    else:
        temp_dirs.discard(directory)


def _sum_up(directory: str) -> None:
    """What the processes left behind, if any of them was watched."""
    from tailwatch.cli.doctor import context_of
    from tailwatch.diagnose.rules import headline
    from tailwatch.diagnose.text import format_extremes

    try:
        found, context = snapshots.take_directory(directory), context_of(directory)
    except TailwatchError:
        return
    _print(f"{headline(found, context)} ({format_extremes(found)})")


def environment_of(inherited: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """The environment of the command: the options as variables, and automatic installation in every interpreter."""
    path = inherited.get("PYTHONPATH", "")  # an empty part of it is the current directory, an empty whole is nothing
    if path.split(os.pathsep)[0] != str(STARTUP):
        path = f"{STARTUP}{os.pathsep}{path}" if path else str(STARTUP)
    appends = variable_of("metrics_append")
    defaults = {} if inherited.get(appends, "").strip() else {appends: "1"}  # where `curl /metrics` looks
    return {**inherited, **defaults, **given, "TAILWATCH": "1", "PYTHONPATH": path}


def run(
    command: Sequence[str],
    environment: Mapping[str, str],
    mask: Iterable[int],
    traffic: UnseenTraffic | None = None,
) -> int:
    """Runs a command in our process group, with a signal mask, and passes on the signals that are held. traffic: takes
    its turns meanwhile. Returns the exit status as a shell gives it."""
    try:
        pid = _spawn(command, environment, mask)
    except FileNotFoundError:
        return _refuse(NOT_FOUND, command[0], "command not found")
    except OSError as error:
        if not _exists(command[0]):  # EACCES: a directory of PATH cannot be searched
            return _refuse(NOT_FOUND, command[0], "command not found")
        return _refuse(NOT_EXECUTABLE, command[0], f"cannot be run: {error.strerror}")
    _name_in(environment.get(variable_of("dir"), ""), pid)
    if traffic is not None:
        traffic.begin(pid)
    return _wait(pid, _held(), traffic)


def _name_in(directory: str, pid: int) -> None:
    """Names the command in a directory of our own making: if we are killed, the group lives as long as the command,
    also while none of its processes is in it, as when a server starts its workers again."""
    with contextlib.suppress(OSError):
        start = temp_dirs.start_of(pid)
        if temp_dirs.is_made(directory) and start is not None:
            temp_dirs.mark_used(directory, pid, start, temp_dirs.namespace())


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


def _wait(pid: int, signals: Iterable[int], traffic: UnseenTraffic | None) -> int:
    while True:
        received = _next(signals, traffic)
        if received is None or received.si_signo == signal.SIGCHLD:  # None: another thread may have taken a SIGCHLD
            status = _reap(pid)
            if status is not None:
                return SIGNALLED + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        elif received.si_code != _FROM_THE_TERMINAL:
            _pass_on(pid, received.si_signo, traffic)
        while _elsewhere:
            if (number := _elsewhere.pop(0)) != signal.SIGINT:  # which is the terminal's, as a rule
                _pass_on(pid, number, traffic)


def _pass_on(pid: int, number: int, traffic: UnseenTraffic | None) -> None:
    if traffic is not None and traffic.looks:
        traffic.turn()  # the command may end at once
    os.kill(pid, number)


def _next(signals: Iterable[int], traffic: UnseenTraffic | None) -> signal.struct_siginfo | None:
    """None: none came for a while."""
    if traffic is None or not traffic.looks:
        return signal.sigtimedwait(signals, _LOOK_SECONDS)
    received = signal.sigtimedwait(signals, traffic.pause)
    if received is None:
        traffic.turn()
    return received


def _reap(pid: int) -> int | None:
    """The wait status of the command, None while it runs. As the first process of a container we have orphans too."""
    while True:
        ended, status = os.waitpid(-1, os.WNOHANG)
        if ended == pid:
            return status
        if ended == 0:
            return None


def _check(given: Mapping[str, str]) -> tuple[bool, bool]:
    """A bad option of the call is an error. One that is inherited is reported, and the command runs without us. Returns
    whether it runs with us, and whether ``quiet`` is in force."""
    for variable, value in given.items():
        Config.read({}, {variable: value})
    try:
        config = Config.read({}, {**os.environ, **given})
    except OptionError as error:
        _print(f"{error}; the command runs without tailwatch")
        return False, False
    if given.get(variable_of("page_token")) and not config.page:
        raise OptionError("page_token: the page is off; add --page=1")
    return True, config.quiet


def _with(given: Mapping[str, str]) -> str:
    secret = {variable_of(name) for name in SECRET_OPTIONS}
    settings = (f"{name}={SECRET if name in secret else value}" for name, value in given.items())
    return f" ({' '.join(settings)})" if given else ""


def _refuse(status: int, name: str, reason: str) -> int:
    _print(f"{name}: {reason}")
    return status


def _print(sentence: str) -> None:
    """A line to standard error; nothing where its reader is gone, as after `2>&1 | head`."""
    if sys.stderr is None:
        return
    try:
        print(f"tailwatch: {sentence}", file=sys.stderr, flush=True)
    except (OSError, ValueError):
        with contextlib.suppress(OSError, ValueError):  # what is left in the buffer goes nowhere, too
            os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), sys.stderr.fileno())
