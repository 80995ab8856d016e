"""``tailwatch gc``: shows GC status of each process of a group, or requests a freeze or a collection."""

from __future__ import annotations

import argparse
import os
import secrets
import time
from dataclasses import dataclass

from tailwatch import snapshots
from tailwatch.cli import find_group
from tailwatch.errors import OptionError, TailwatchError
from tailwatch.gc.remote_commands import (
    BUSY,
    DONE,
    FAILED,
    MOST_NUMBER,
    SWEPT,
    VERBS,
    CommandResult,
    GCCommand,
    encode,
    is_plain,
    name_of,
)
from tailwatch.options.slo import duration

ABOUT = "show GC status of each process, or ask it to re-freeze or collect when idle"
EXAMPLE = "tailwatch gc freeze --dir /dev/shm/llm"
EXITS = {1: "a process did not carry out the command"}
OK, FOUND = 0, 1
LONGEST_SECONDS = 3600.0
_STATUS = "status"
_LOOK_SECONDS = 0.05
_GRACE_SECONDS = 3.0  # beside the time the process itself has: it looks four times a second


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command, and the processes that it addresses."""
    parser.add_argument(
        "verb",
        choices=(_STATUS, *VERBS),
        help="status: show counters; freeze: unfreeze, collect, freeze, collect; collect: all unfrozen objects",
    )
    parser.add_argument(
        "--dir", metavar="DIR", help="directory of the process group (default, for status: found automatically)"
    )
    parser.add_argument("--role", metavar="ROLE", help="only processes with this role, for example engine")
    parser.add_argument(
        "--timeout",
        metavar="30s",
        type=duration,
        default=30.0,
        help="time limit for a process to become idle (default 30s)",
    )


def main(parsed: argparse.Namespace) -> int:
    """Runs the command and prints a line for each process. Exit status 0, or 1 where one did not carry it out.

    Raises:
        TailwatchError: the group, or a process of that role, was not found.
    """
    if not 0 < parsed.timeout <= LONGEST_SECONDS:
        raise OptionError.of("--timeout", parsed.timeout, f"expected a time like 30s, at most {LONGEST_SECONDS:g}s")
    directory = find_group.chosen(parsed.dir)
    if parsed.dir is None and parsed.verb != _STATUS:
        raise OptionError(f"gc {parsed.verb}: expected --dir: it acts on no group that was not named")
    living = _living(directory, parsed.role)
    if parsed.verb == _STATUS:
        for process in living:
            print(f"{_head(process)}: {describe(process.policy)}")
        return OK
    asked = [_ask(directory, process, parsed.verb, parsed.timeout) for process in living]
    try:
        return _await(directory, asked, parsed.timeout + _GRACE_SECONDS)
    finally:
        for each in asked:
            if each.file >= 0:
                os.close(each.file)


def _living(directory: str, role: str | None) -> list[snapshots.Process]:
    living = [process for process in snapshots.take_directory(directory).processes if process.lives]
    found = [process for process in living if role is None or process.role == role]
    if not found:
        roles = ", ".join(sorted({process.role for process in living}))
        raise TailwatchError(
            f"{directory}: no running process with role {role!r}; running roles: {roles}"
            if living
            else f"{directory}: no running process in this group"
        )
    return found


def _head(process: snapshots.Process) -> str:
    return f"{process.name} (pid {process.pid})"


def describe(policy: snapshots.Policy) -> str:
    """One line about one process's policy."""
    mode = f" ({policy.mode})" if policy.mode else ""
    parts = [f"gc={policy.kind}{mode}"]
    if policy.frozen:
        parts.append(f"{policy.frozen} objects frozen")
    if policy.unfrozen is not None:
        parts.append(f"{policy.unfrozen} not frozen")
    for what, counts in (
        ("slices", policy.slices),
        ("collections", policy.collections),
        ("memory limits met", policy.memory_limits),
    ):
        if any(counts.values()):
            parts.append(f"{what}: " + ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in counts.items() if n))
    if policy.freed or policy.full_freed:
        parts.append(
            f"{policy.freed + policy.full_freed} objects freed in {policy.seconds + policy.full_seconds:.3g} s"
        )
    if interference := [f"gc.{name} {n}" for name, n in policy.interference.items() if n]:
        parts.append(f"interference: {', '.join(interference)}")
    if policy.ignored:
        parts.append(f"{policy.ignored} invalid commands ignored")
    return "; ".join(parts)


@dataclass(slots=True)
class _Asked:
    process: snapshots.Process
    number: int
    outcome: str = ""
    done: bool = False
    file: int = -1


def _ask(directory: str, process: snapshots.Process, verb: str, timeout: float) -> _Asked:
    """Write the command into the process's file. What prevents that is its answer."""
    import fcntl  # not on every system on which this module is imported

    asked = _Asked(process, 1 + secrets.randbelow(MOST_NUMBER - 1))
    if process.policy.kind in ("off", "observe"):
        asked.outcome = f"nothing was done: with gc={process.policy.kind!r} tailwatch does not control the collector"
        return asked
    segment = snapshots.file_of(directory, process)
    command = GCCommand(asked.number, verb, time.monotonic_ns() + round(timeout * 1e9))
    try:
        if segment is None:
            raise FileNotFoundError
        path = os.path.join(directory, name_of(segment))
        asked.file = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        asked.outcome = "nothing was done: its command file is missing or was replaced (has its daemon started yet?)"
        return asked
    try:
        if is_plain(os.fstat(asked.file)):
            fcntl.flock(asked.file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until we end, whatever ends us
            os.ftruncate(asked.file, 0)
            os.pwrite(asked.file, encode(command), 0)
        else:
            asked.outcome = "nothing was done: its command file has an unexpected owner or mode"
    except BlockingIOError:
        asked.outcome = "nothing was done: another `tailwatch gc` is waiting for this process"
    except OSError as error:
        asked.outcome = f"nothing was done: {error.strerror}"
    return asked


def _await(directory: str, asked: list[_Asked], seconds: float) -> int:
    until = time.monotonic() + seconds
    for each in asked:
        if each.outcome:
            print(f"{_head(each.process)}: {each.outcome}", flush=True)
    while any(not each.outcome for each in asked) and time.monotonic() < until:
        time.sleep(_LOOK_SECONDS)
        _look(directory, [each for each in asked if not each.outcome])
    for each in asked:
        if not each.outcome:
            each.outcome = f"no answer within {seconds:g} s"
            print(f"{_head(each.process)}: {each.outcome}", flush=True)
    return OK if all(each.done for each in asked) else FOUND


def _look(directory: str, asked: list[_Asked]) -> None:
    living = [process for process in snapshots.take_directory(directory).processes if process.lives]
    for each in asked:
        now = _same(each.process, living)
        if now is None:
            each.outcome = "the process has exited"
        elif now.policy.answered == each.number:
            result = CommandResult.of(now.policy.answer)
            each.outcome, each.done = _sentence(result), result.code in (DONE, SWEPT)
        if each.outcome:
            print(f"{_head(each.process)}: {each.outcome}", flush=True)


def _same(process: snapshots.Process, living: list[snapshots.Process]) -> snapshots.Process | None:
    """The process in a later snapshot. Its role may have been settled since; another container may have its pid."""
    with_pid = [each for each in living if each.pid == process.pid]
    with_name = [each for each in with_pid if each.name == process.name]
    return next(iter(with_name or with_pid), None)


def _sentence(result: CommandResult) -> str:
    freed = f"{result.freed} objects freed"
    return {
        DONE: f"done in {result.seconds * 1e3:.0f} ms, {freed}",
        SWEPT: f"done in slices while streams were in flight, {freed}",
        BUSY: "nothing was done: streams were in flight until the timeout",
        FAILED: "failed; counted in tailwatch_internal_errors_total",
    }.get(result.code, "unknown result: the process runs another version of tailwatch")
