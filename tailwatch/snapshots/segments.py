"""The segments of a directory's processes, as a reader outside of them maps them: whose they are, which live, and
their removal. Every call into tailwatch._cold drops the GIL.
"""

from __future__ import annotations

import os
from typing import Any

from tailwatch._cold import ffi, lib
from tailwatch.errors import EmptyGroupError, TailwatchError
from tailwatch.snapshots.core_values import text_of
from tailwatch.snapshots.directory_access import remedy
from tailwatch.snapshots.model import Process


def stamped_in(directory: str) -> tuple[int, set[str]] | None:
    """Streams opened in a group since it began, and the files of processes that stamp requests, in an app or by hand.
    None where it cannot be read."""
    try:
        members = _members_of(directory)
    except TailwatchError:
        return None
    found = [members.member[i] for i in range(members.n)]
    fronts = {ffi.string(each.name).decode() for each in found if each.segment.header.is_front and not each.list}
    return sum(each.segment.opened for each in found), fronts


def addresses_in(directory: str) -> tuple[Any, list[int]]:
    """The segments of the processes that share a directory, mapped for as long as the first is held. Errors as of
    take_directory()."""
    members = _members_of(directory)
    if not members.n:
        refused = f"; {members.refused} files are not of this version" if members.refused else ""
        raise EmptyGroupError(f"{directory}: no process has left numbers there{refused}")
    segments = sorted((members.member[i].segment for i in range(members.n)), key=lambda each: each.opened == 0)
    return members, [int(ffi.cast("uintptr_t", segment)) for segment in segments]


def file_of(directory: str, process: Process) -> str | None:
    """The name of a living process's segment in its group's directory; None: it has gone. A pid alone does not name
    it: containers that share the directory have pids of their own.

    Raises:
        TailwatchError: the directory must not be read, with the reason.
    """
    members = _members_of(directory)
    for member in (members.member[i] for i in range(members.n)):
        header = member.segment.header
        is_named_so = header.place in (0, process.index + 1) and text_of(header.role) == process.role
        if header.pid == process.pid and is_named_so and lib.tw_segment_lives(member.segment):
            return str(ffi.string(member.name).decode())
    return None


def has_ended_here(directory: int, name: str) -> bool:
    """Whether the process of a segment has certainly ended, and was one of this PID namespace. directory: descriptor;
    name: of the file in it."""
    return bool(lib.tw_member_end_in(directory, os.fsencode(name)) == lib.TW_MEMBER_ENDED)


def remove_shared(directory: str) -> None:
    """Remove the memory that the files of a directory name: a process that has it mapped keeps it.

    Raises:
        OSError: the directory cannot be read, or is a link.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        lib.tw_shared_remove_all(descriptor)
    finally:
        os.close(descriptor)


def remove_dead_shared() -> int:
    """Remove this user's memory that no process uses and no file names any more; returns how many segments."""
    return int(lib.tw_shared_remove_dead())


def _members_of(directory: str) -> Any:
    """A tw_members, mapped for as long as it is held."""
    problem = ffi.new("tw_group_problem *")
    descriptor = lib.tw_group_open_dir(os.fsencode(directory), problem)
    if descriptor < 0:
        raise TailwatchError(f"{directory}: {_problem(problem[0])}{remedy(directory)}")
    members = ffi.gc(ffi.new("tw_members *"), lib.tw_members_clear)
    try:
        found = lib.tw_members_renew(members, descriptor, ffi.NULL)
        reason = _problem(found)
    finally:
        os.close(descriptor)
    if found != lib.TW_GROUP_FINE:
        raise TailwatchError(f"{directory}: {reason}")
    return members


def _problem(problem: int) -> str:
    if problem == lib.TW_GROUP_SYSTEM:
        return os.strerror(ffi.errno)
    text: bytes = ffi.string(lib.tw_group_problem_text(problem))
    return text.decode()
