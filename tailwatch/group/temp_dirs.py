"""Directories of groups that were not named: made under /dev/shm, and removed once no process is left in them."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time

from tailwatch_boot import own_notes

IN_MEMORY = "/dev/shm"
PREFIX = "tailwatch-run-"  # of directories that we make; those that a caller names are the caller's
_MADE = re.compile(PREFIX + "[a-z0-9_]{8}")
_SEGMENT = re.compile(r"(\d+)-(\d+).*\.(?:seg|trace|gc)")
KEPT = r"trace-[0-9]{8}T[0-9]{6}-[0-9]+-[0-9]+\.pftrace"  # what trace_on has kept
_TRACE = re.compile(rf".+\.trace|{KEPT}")
LAUNCHER = "launcher"  # a file that we hold locked as long as we live: in other pid namespaces our id means nothing
_MASTER = re.compile(r"master-(\d+)-(\d+)-(\d+)")  # pid, start time and pid namespace of what starts the members
# What group.h names, and ours; a timeline that was being written when its writer was killed.
_NOT_MEMBERS = re.compile(
    rf"page|index\.lock|port-[0-9]+|{own_notes.NAME.pattern}|otel|otel-server|{LAUNCHER}|{_MASTER.pattern}|merge\.tmp|.+\.gone|{KEPT}|\.tailwatch-.+\.tmp"
)
namespace, start_of = own_notes.namespace, own_notes.start_of
_ABANDONED_SECONDS = 3600.0  # a directory in which nothing was written for so long


def directory() -> str:
    """The path of a new one, for the first member to make; "" where there cannot be one."""
    return f"{IN_MEMORY}/{PREFIX}{os.urandom(4).hex()}" if os.access(IN_MEMORY, os.W_OK) else ""


def is_made(path: str) -> bool:
    """Whether a path is that of a directory of our own making."""
    return os.path.dirname(path) == IN_MEMORY and _MADE.fullmatch(os.path.basename(path)) is not None


def remove(path: str) -> None:
    """Remove one that directory() named, unless another process is in it, or traces are that were asked for."""
    with contextlib.suppress(OSError):
        if _is_left(path, young=True) and not has_traces(path):
            discard(path)


def discard(path: str) -> None:
    """Remove a directory, and the shared memory that its files name."""
    from shutil import rmtree  # here: it is expensive to import

    from tailwatch import snapshots  # what reads the files is not on every system

    with contextlib.suppress(OSError):
        snapshots.remove_shared(path)
    rmtree(path, ignore_errors=True)


def mark_used(path: str, pid: int, start: int, namespace: int) -> None:
    """Name a process in a directory of this user: the directory is in use while that process lives.

    Raises:
        OSError: it cannot be written, or it is not this user's.
    """
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(directory).st_uid != os.geteuid():
            raise PermissionError(path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        os.close(os.open(f"master-{pid}-{start}-{namespace}", flags, 0o600, dir_fd=directory))
    finally:
        os.close(directory)


def has_traces(path: str) -> bool:
    """Whether a trace was recorded there that may still be wanted."""
    try:
        return any(_TRACE.fullmatch(name) for name in os.listdir(path))
    except OSError:
        return False


def is_of_a_launcher(directory: str) -> bool:
    """Whether ``tailwatch run`` made it, for the command that it runs."""
    return bool(directory) and os.path.exists(os.path.join(directory, LAUNCHER))


def remove_dead() -> None:
    """Remove those without a process: of launchers that were killed, and of servers that ended. The last one that
    holds traces stays for an hour: who looks for what killed a server has started it again by then."""
    try:
        if start_of(os.getpid()) is None:  # without /proc no process seems to live
            return
        with os.scandir(IN_MEMORY) as entries:
            made = [entry.path for entry in entries if _MADE.fullmatch(entry.name)]
    except OSError:
        return
    left = []
    for path in made:
        with contextlib.suppress(OSError):  # it went, or it is no directory
            if _is_left(path):
                left.append(path)
    kept = _last_with_traces(left)
    for path in left:
        if path != kept:
            discard(path)
    _remove_dead_memory()


def _remove_dead_memory() -> None:
    """Remove shared memory whose directory was removed from outside."""
    from tailwatch import snapshots

    snapshots.remove_dead_shared()


def _last_with_traces(paths: list[str]) -> str | None:
    times = {}
    for path in paths:
        with contextlib.suppress(OSError):
            age = time.time() - os.stat(path).st_mtime
            if age < _ABANDONED_SECONDS and has_traces(path):
                times[path] = age
    return min(times, key=times.__getitem__, default=None)


def _is_left(path: str, *, young: bool = False) -> bool:
    """Whether a directory is our own, holds what a group leaves there and nothing else, and no process lives in it. One
    with a member or a master of another PID namespace is not left: what is about to join it is not seen from here.
    young: also where a process may be about to join.

    Raises:
        OSError: it cannot be read, or it is a link.
    """
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        found = os.fstat(directory)
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) != stat.S_IRWXU:
            return False
        names = os.listdir(directory)
        members = [name for name in names if not _NOT_MEMBERS.fullmatch(name)]
        if not all(_SEGMENT.fullmatch(name) for name in members):
            return False
        if not members and not young and time.time() - found.st_mtime < _ABANDONED_SECONDS:
            return False
        masters = [name for name in names if _MASTER.fullmatch(name)]
        if not all(_has_ended(name, directory) for name in (*members, *masters)):
            return False
        return LAUNCHER not in names or not _is_locked(LAUNCHER, directory)
    finally:
        os.close(directory)


def _has_ended(name: str, directory: int) -> bool:
    """Whether the process that a file is named after has certainly ended: one of this PID namespace."""
    if name.endswith(".seg"):
        from tailwatch import snapshots  # what reads the files is not on every system

        return snapshots.has_ended_here(directory, name)
    master = _MASTER.fullmatch(name)
    owner = master or _SEGMENT.fullmatch(name)
    elsewhere = master is not None and int(master[3]) != namespace()
    return not elsewhere and owner is not None and start_of(int(owner[1])) != int(owner[2])


def _is_locked(name: str, directory: int) -> bool:
    import fcntl

    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(file)
