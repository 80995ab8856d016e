"""What is wrong with a group's directory, in words: its mode, and the command that mends it."""

from __future__ import annotations

import os
import stat

_IN_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs", "hugetlbfs"})


def remedy(directory: str) -> str:
    """Behind the reason why a directory was refused: what is open, and what to do; "" where nothing is seen."""
    above = os.path.dirname(os.path.abspath(directory))
    try:
        own, parent = os.stat(directory), os.stat(above)
    except OSError:
        return ""
    if own.st_uid not in (os.geteuid(), 0):
        return f" (user {own.st_uid}): run this as that user"
    is_closed = not own.st_mode & 0o077
    if own.st_mode & stat.S_IWOTH or (own.st_uid == 0 != os.geteuid()) or not (is_closed or _is_groups(directory)):
        return f": its mode is {_mode(own)}; name a directory of your own in it, like {_within(directory)}"
    if not is_closed:
        return f": its mode is {_mode(own)}; chmod 700 {directory}"
    if parent.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not parent.st_mode & stat.S_ISVTX:
        own_parent, name = os.path.join(above, "own"), os.path.basename(os.path.abspath(directory))
        between = f"mkdir -m 700 {own_parent}, and name {os.path.join(own_parent, name)}"
        return f": the mode of {above} is {_mode(parent)}, not sticky, as of an emptyDir; {between}"
    return ""


def disk_of(directory: str) -> str:
    """The type of the file system of a directory that is not in memory; "" where it is, or is not known."""
    kind = ""
    try:
        device = os.stat(directory).st_dev
        wanted = f"{os.major(device)}:{os.minor(device)}"
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                before, _, after = line.partition(" - ")
                if before.split()[2] == wanted:
                    kind = after.split()[0]
    except (OSError, IndexError):
        return ""
    return "" if kind in _IN_MEMORY else kind


def _is_groups(directory: str) -> bool:
    """Whether it may be closed to others: a group's directory has files only, unlike /home or /etc."""
    try:
        with os.scandir(directory) as entries:
            return not any(entry.is_dir() for entry in entries)
    except OSError:
        return False


def _mode(found: os.stat_result) -> str:
    return f"{stat.S_IMODE(found.st_mode):04o}"


def _within(directory: str) -> str:
    return os.path.join(directory, "tailwatch")
