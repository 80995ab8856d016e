"""The group of a server's workers where no directory was named: the processes that one master started share one.

A worker is a process that uvicorn, hypercorn, granian or gunicorn started to serve an app. Its master is read from this
process's own memory, where multiprocessing or gunicorn keeps it, and must still be its parent: a parent alone proves
nothing, and process 1 adopts orphans of every server. A pid is used again, so the master's start time and its PID
namespace belong to its name: a restarted master has a new group, a restarted worker returns to the group of its master.

Read in uvicorn 0.54.0, hypercorn 0.18.0, granian 2.8.7, gunicorn 27.0.1.
"""

from __future__ import annotations

import base64
import os
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from tailwatch.group import temp_dirs
from tailwatch.platform import current_process, parent_process

if TYPE_CHECKING:
    from tailwatch.options.config import Config

# Where the function is that a worker runs. uvicorn.run as a target, as in a script with two servers, is not among them.
_TARGETS = frozenset({"uvicorn._subprocess", "hypercorn.asyncio.run", "hypercorn.trio.run", "granian.server.mp"})
_ARBITER = "gunicorn.arbiter"


class Master(NamedTuple):
    """A process that started workers. start: as temp_dirs.start_of(). namespace: the PID namespace of its pid."""

    pid: int
    start: int
    namespace: int

    @property
    def directory(self) -> str:
        """The path of its workers' directory: another one for each user, and after each boot."""
        from hashlib import sha256  # here: only workers of several need it

        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            boot = file.read()
        identity = repr((os.geteuid(), boot, *self)).encode()
        name = base64.b32encode(sha256(identity).digest()[:5]).decode().lower()
        return f"{temp_dirs.IN_MEMORY}/{temp_dirs.PREFIX}{name}"


def directory() -> str:
    """The directory that the workers of this process's master share, made where it is missing; "": this process is not
    a worker, or its master is not known for certain. What cannot be made is left to the process that joins, and reports
    it."""
    try:
        master = _master()
        path = master.directory if master is not None else ""
    except OSError:  # /proc is missing, or hides other users' processes
        return ""
    if master is not None:
        _make(path, master)
    return path


def directory_for(config: Config) -> str:
    """directory(), unless ``dir`` was given, also as "" (then "")."""
    return "" if config.dir or "dir" in config.explicit else directory()


def _master() -> Master | None:
    pid = _spawning_parent() or _arbiter()
    if pid <= 1 or os.readlink("/proc/self") != str(os.getpid()):  # or /proc is that of another namespace
        return None
    start = temp_dirs.start_of(pid)
    if start is None or os.getppid() != pid:  # in this order: a parent's pid is not used again
        return None
    return Master(pid, start, temp_dirs.namespace())


def _spawning_parent() -> int:
    """The process whose multiprocessing started this one to be a worker; 0: none did."""
    parent = parent_process()
    target = getattr(current_process(), "_target", None)
    is_worker = getattr(target, "__module__", None) in _TARGETS
    return (parent.pid or 0) if parent is not None and is_worker else 0


def _arbiter() -> int:
    """The gunicorn master that forked this process: a worker lives inside its master's spawn_worker(); 0: none did."""
    if _ARBITER not in sys.modules:
        return 0
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        if frame.f_code.co_name == "spawn_worker" and frame.f_globals.get("__name__") == _ARBITER:
            pid = getattr(frame.f_locals.get("self"), "pid", 0)
            return pid if isinstance(pid, int) else 0
        frame = frame.f_back
    return 0


def _make(path: str, master: Master) -> None:
    """Make the directory, and name the master in it: while that lives, it is in use, also when all workers restart."""
    if not os.path.lexists(path):
        temp_dirs.remove_dead()  # of masters that ended
    with suppress(OSError):
        os.mkdir(path, 0o700)
    with suppress(OSError):
        temp_dirs.mark_used(path, *master)
