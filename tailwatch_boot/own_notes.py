"""Lines of this process about requests that are not seen, in a file of its own in its group's directory:
``unseen-PID-START-NAMESPACE``, named as the group names a master. tailwatch/group/unseen.py reads them."""

from __future__ import annotations

import os
import re
import stat

NAME = re.compile(r"unseen-(\d+)-(\d+)-(\d+)")
_LONGEST = 200


def note(directory: str, kind: str, value: str) -> None:
    """Append a line; kind: "server", "route", "port", "app" for an ASGI app that could not be watched, "alone" for a
    process that could not join; of a launcher, what an earlier command left: "opened" for its number of streams,
    "front" for the file of a process that stamped them. Makes the directory, as a member does. What is not
    printable ASCII is not written. With its first line, files of processes that have ended are removed.

    Raises:
        OSError: it cannot be written, or others may write in the directory.
    """
    line = f"{kind} {value[:_LONGEST]}"
    if not all(" " <= character <= "~" for character in line):
        return
    if not os.path.exists(directory):
        os.mkdir(directory, 0o700)
    there = open_directory(directory)
    try:
        _append(there, own_name(), f"{line}\n".encode())
    finally:
        os.close(there)


def _append(directory: int, name: str, line: bytes) -> None:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    file = os.open(name, flags, 0o600, dir_fd=directory)
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            raise PermissionError(name)
        os.write(file, line)
        first = found.st_size == 0
    finally:
        os.close(file)
    if first:
        _remove_ended(directory)


def forget(directory: str) -> None:
    """Remove this process's file, if there is one. Never raises."""
    try:
        there = open_directory(directory)
        try:
            os.unlink(own_name(), dir_fd=there)
        finally:
            os.close(there)
    except OSError:
        return


def remove_ended(directory: str) -> None:
    """Remove the files of processes that have ended. Never raises."""
    try:
        there = open_directory(directory)
        try:
            _remove_ended(there)
        finally:
            os.close(there)
    except OSError:
        return


def _remove_ended(directory: int) -> None:
    for name in os.listdir(directory):
        match = NAME.fullmatch(name)
        if match and int(match[3]) == namespace() and start_of(int(match[1])) != int(match[2]):
            try:
                os.unlink(name, dir_fd=directory)
            except FileNotFoundError:  # another process did
                continue


def open_directory(path: str) -> int:
    """A descriptor of a directory that is this user's alone, as csrc/group/group.c has it. Raises OSError for any
    other."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found, parent, user = os.fstat(directory), os.stat("..", dir_fd=directory), os.geteuid()
        safe = parent.st_uid in (0, user) and (not parent.st_mode & 0o022 or parent.st_mode & stat.S_ISVTX)
        if found.st_uid != user or found.st_mode & 0o077 or not safe:
            raise PermissionError(path)
    except BaseException:
        os.close(directory)
        raise
    return directory


def own_name() -> str:
    """The name of this process's file. Raises OSError without /proc."""
    pid = os.getpid()
    return f"unseen-{pid}-{start_of(pid)}-{namespace()}"


def namespace() -> int:
    """The PID namespace of this process.

    Raises:
        OSError: it cannot be read.
    """
    return os.stat("/proc/self/ns/pid").st_ino


def start_of(pid: int) -> int | None:
    """When a process began, in clock ticks since the boot; None where there is none.

    Raises:
        OSError: it cannot be read.
    """
    try:
        with open(f"/proc/{pid}/task/{pid}/stat", "rb") as file:  # as csrc/base/process.c does
            return int(file.read().rpartition(b")")[2].split()[19])  # the 22nd field; the second may hold spaces
    except (FileNotFoundError, ProcessLookupError):
        return None
