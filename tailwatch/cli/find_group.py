"""Finds the process group of this user where none was named."""

from __future__ import annotations

import os
import sys
import urllib.parse
from collections.abc import Callable, Mapping

from tailwatch import snapshots
from tailwatch.errors import TailwatchError
from tailwatch.group import unseen
from tailwatch.group.temp_dirs import IN_MEMORY, PREFIX
from tailwatch.options.config import variable_of

_NONE = (
    f"no process group of this user found under {IN_MEMORY}: start the server with `tailwatch run -- CMD`, "
    "or pass its shared-memory directory with --dir DIR"
)


def chosen(directory: str | None, *, having: Callable[[str], bool] | None = None) -> str:
    """The directory that was given, else find()'s, which a line on standard error names. Errors as of find()."""
    if directory is not None:
        return directory
    found = find(os.environ, having=having)
    print(f"tailwatch: group {found}", file=sys.stderr)
    return found


def find(environment: Mapping[str, str], among: str = IN_MEMORY, *, having: Callable[[str], bool] | None = None) -> str:
    """The directory that TAILWATCH_DIR names; else the one that `tailwatch run` of this user made under ``among``, of
    several the one in which processes live. having: of several only those for which it is true, if it is for any.

    Raises:
        TailwatchError: none was found, or several; the message gives the option to set.
    """
    named = environment.get(variable_of("dir"), "").strip()
    if named:
        return named
    made = _made(among)
    if having is not None:
        made = [path for path in made if having(path)] or made
    living = {path: _living(path) for path in made}
    chosen = [path for path, processes in living.items() if processes] or list(living)
    if not chosen:
        raise TailwatchError(_NONE)
    if len(chosen) > 1:
        lines = (
            f"  --dir {path}   ({living[path] or 'no'} running {'process' if living[path] == 1 else 'processes'})"
            for path in chosen
        )
        raise TailwatchError("\n".join(("several process groups found; choose one:", *lines)))
    return chosen[0]


def serving(url: str, among: str = IN_MEMORY) -> str | None:
    """The directory of this user's group of which a process listens on the port of an address of this machine; None:
    there is none, or no server in it is one whose requests are not seen."""
    address = urllib.parse.urlsplit(url)
    if address.hostname not in ("127.0.0.1", "localhost", "::1"):
        return None
    for path in _made(among):
        connections = unseen.Connections()
        connections.look(unseen.read(path).pids)
        if address.port in connections.listening:
            return path
    return None


def _made(among: str) -> list[str]:
    """Directories with the name that `tailwatch run` gives, of this user."""
    try:
        with os.scandir(among) as entries:
            named = [entry for entry in entries if entry.name.startswith(PREFIX)]
            return sorted(entry.path for entry in named if _is_ours(entry))
    except OSError:
        return []


def _is_ours(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_uid == os.geteuid()
    except OSError:  # it went
        return False


def _living(path: str) -> int:
    try:
        return sum(process.lives for process in snapshots.take_directory(path).processes)
    except TailwatchError:
        return 0
