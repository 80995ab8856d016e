"""A Python that seems to run on another system.

    python simulated.py SYSTEM DIRECTORY SCRIPT ARGUMENTS...      SCRIPT may be -m, with a module as first argument

The package is that in DIRECTORY. The standard library is imported before, for the system that it is on, and so is
FastAPI.
"""

from __future__ import annotations

import importlib
import os
import runpy
import signal
import sys
from contextlib import suppress

BEFORE = (
    *("asyncio", "concurrent.futures", "ctypes", "multiprocessing", "platform", "random", "selectors", "shutil"),
    *("socket", "ssl", "subprocess", "tempfile", "threading", "urllib.request", "uuid", "webbrowser", "zipfile"),
)
LINUX_ONLY = ("memfd_create", "pidfd_open", "posix_fallocate", "sched_getaffinity")
NOT_ON_WINDOWS = (
    *("fork", "geteuid", "getloadavg", "getpgid", "getuid", "killpg", "nice", "register_at_fork", "setsid", "sysconf"),
)
MODULES_NOT_ON_WINDOWS = ("fcntl", "grp", "pty", "pwd", "resource", "termios", "tty", "uvloop")


def become(system: str) -> None:
    """What the system's Python does not have goes away, and so does what the package there does not depend on."""
    for name in BEFORE:
        importlib.import_module(name)
    with suppress(ImportError):  # what it is built of is chosen by the system's name, too
        importlib.import_module("fastapi.testclient")
    windows = system == "win32"
    for name in (*LINUX_ONLY, *(NOT_ON_WINDOWS if windows else ())):
        delattr(os, name)
    for name in ("_cffi_backend", "cffi", *(MODULES_NOT_ON_WINDOWS if windows else ())):
        sys.modules[name] = None  # type: ignore[assignment]
    for name in ("SIGHUP", "SIGKILL", "SIGUSR1") if windows else ():
        delattr(signal, name)
    sys.platform = system


if __name__ == "__main__":
    _, system, directory, script, *arguments = sys.argv
    become(system)
    sys.path[0] = directory
    if script == "-m":
        sys.argv = arguments
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [script, *arguments]
        runpy.run_path(script, run_name="__main__")
