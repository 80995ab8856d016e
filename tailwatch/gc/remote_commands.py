"""Commands of an operator to the collector of a running process (``tailwatch gc``).

The process creates a command file beside its segment. A sender writes one command into that file and holds flock() on
it while it waits; the process writes the number of the command and its result into the segment. Expired commands are
ignored; their sender has already timed out. Other content of the file is counted and left unchanged.

    tailwatch-gc 1 NUMBER VERB DEADLINE CRC     128 bytes, filled up with blanks; DEADLINE: CLOCK_MONOTONIC, ns
"""

from __future__ import annotations

import os
import re
import stat
import threading
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

FREEZE, COLLECT = "freeze", "collect"
VERBS = (FREEZE, COLLECT)
BYTES = 128
SUFFIX = ".gc"
MOST_NUMBER = 2**63
_LINE = re.compile(rb"(tailwatch-gc 1 ([0-9]{1,19}) ([a-z]{1,16}) ([0-9]{1,19})) ([0-9a-f]{8}) *\n")
_YOUNG_SECONDS = 1.0  # a file system's times are as coarse as the kernel's tick

# The result of a command: the low byte of the answer. Above it 24 bits of milliseconds, and 32 of objects freed.
DONE, SWEPT, BUSY, FAILED = 1, 2, 3, 4
_MOST_MS, _MOST_OBJECTS = 2**24 - 1, 2**32 - 1


@dataclass(frozen=True, slots=True)
class GCCommand:
    """One command. deadline_ns: the time at which its sender stops waiting, monotonic."""

    number: int
    verb: str
    deadline_ns: int


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The result of a command: DONE, SWEPT (in slices), BUSY (streams were in flight until the deadline), FAILED."""

    code: int
    seconds: float = 0.0
    freed: int = 0

    def word(self) -> int:
        """The result as one word of the segment."""
        ms = min(round(self.seconds * 1e3), _MOST_MS)
        return self.code | ms << 8 | min(self.freed, _MOST_OBJECTS) << 32

    @classmethod
    def of(cls, word: int) -> CommandResult:
        """The result encoded in a word of the segment."""
        return cls(word & 0xFF, (word >> 8 & _MOST_MS) / 1e3, word >> 32)


def encode(command: GCCommand) -> bytes:
    """The bytes of a command in the file."""
    line = b"tailwatch-gc 1 %d %s %d" % (command.number, command.verb.encode(), command.deadline_ns)
    return (b"%s %08x" % (line, zlib.crc32(line))).ljust(BYTES - 1) + b"\n"


def decode(data: bytes) -> GCCommand | None:
    """The command in these bytes; None if they are not a valid command."""
    match = _LINE.fullmatch(data) if len(data) == BYTES else None
    if match is None or int(match[5], 16) != zlib.crc32(match[1]):
        return None
    command = GCCommand(int(match[2]), match[3].decode(), int(match[4]))
    return command if command.verb in VERBS and 0 < command.number < MOST_NUMBER else None


def name_of(segment: str) -> str:
    """The name of the command file that belongs to a segment."""
    return segment.removesuffix(".seg") + SUFFIX if segment else ""


def is_plain(found: os.stat_result) -> bool:
    """Whether a regular file belongs to this user, has mode 0600 and one link."""
    return (
        stat.S_ISREG(found.st_mode)
        and stat.S_IMODE(found.st_mode) == 0o600
        and found.st_uid == os.geteuid()
        and found.st_nlink == 1
    )


class CommandFile:
    """The command file of this process. For one thread.

    Args:
        path: returns the path of the file; "": commands are not accepted.
        ignored: called for each content of the file that is not a valid command.
    """

    def __init__(self, path: Callable[[], str], ignored: Callable[[], object]) -> None:
        self._where = path
        self._ignored = ignored
        self._path = ""
        self._made: tuple[int, int] | None = None
        self._seen: tuple[int, ...] = ()
        self._unsure: tuple[int, ...] = ()
        self._counted: tuple[int, ...] = ()
        self._last = 0

    def take(self) -> GCCommand | None:
        """The next command, once; None without one, in about 3 us."""
        path = self._where()
        if path != self._path:
            self.close()
            self._path = path
            self._make()
        if not path:
            return None
        try:
            found = os.lstat(path)
        except OSError:
            self._make()
            return None
        mark = (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size)
        if mark == self._seen and time.time() - found.st_mtime > _YOUNG_SECONDS:
            return None
        if mark[:2] != self._made or not is_plain(found):
            self._replace(mark)
            return None
        return self._read(mark) if found.st_size else None

    def close(self) -> None:
        """Removes the file."""
        path, made = self._path, self._made
        self._path, self._made, self._seen = "", None, ()
        if made is None:
            return
        with suppress(OSError):
            found = os.lstat(path)
            if (found.st_dev, found.st_ino) == made:
                os.unlink(path)

    def forget(self) -> None:
        """In a fork child: the file belongs to the parent."""
        self._path, self._made, self._seen, self._last = "", None, (), 0

    def _read(self, mark: tuple[int, ...]) -> GCCommand | None:
        command = decode(self._content())
        if command is None:
            self._doubt(mark)
            return None
        self._seen = mark
        if command.number == self._last or command.deadline_ns <= time.monotonic_ns():
            return None
        self._last = command.number
        return command

    def _content(self) -> bytes:
        try:
            file = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return b""
        try:
            same = os.fstat(file)
            return os.read(file, BYTES + 1) if (same.st_dev, same.st_ino) == self._made else b""
        except OSError:
            return b""
        finally:
            os.close(file)

    def _doubt(self, mark: tuple[int, ...]) -> None:
        """The content may still be written: it is invalid if it is the same at the next call."""
        if self._unsure != mark:
            self._unsure = mark
            return
        self._seen = mark
        self._count(mark)

    def _count(self, mark: tuple[int, ...]) -> None:
        if self._counted != mark:
            self._counted = mark
            self._ignored()

    def _replace(self, mark: tuple[int, ...]) -> None:
        """Replaces a file that another process put at this path."""
        self._seen = mark
        self._count(mark)
        with suppress(OSError):
            os.unlink(self._path)
        self._make()

    def _make(self) -> None:
        self._made = None
        if not self._path:
            return
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with suppress(OSError):  # the directory is being left, or it is full: the next look tries again
            file = os.open(self._path, flags, 0o600)
            found = os.fstat(file)
            os.close(file)
            self._made = (found.st_dev, found.st_ino)


@dataclass(frozen=True, slots=True)
class CommandActions:
    """The functions that carry out commands.

    Attributes:
        no_stream_waits: whether no stream is in flight that this process would stall.
        act: runs a verb now, on this thread; returns seconds and objects freed.
        begin_round: starts a cycle of slices over the old heap; False: slices are not possible.
        round_over: the objects freed by that cycle once it is complete; None before.
        hand_over: schedules a call on the serving thread; False: the process has none.
        answer: writes the number of a command and its result into the segment.
        failed: called when a command failed.
    """

    no_stream_waits: Callable[[], bool]
    act: Callable[[str], tuple[float, int]]
    begin_round: Callable[[], bool]
    round_over: Callable[[], int | None]
    hand_over: Callable[[Callable[[], None]], bool]
    answer: Callable[[int, int], object]
    failed: Callable[[], object]


class CommandServer:
    """Carries out commands one by one and answers each: the daemon polls, the serving thread runs them."""

    def __init__(self, file: CommandFile, actions: CommandActions) -> None:
        self.file = file
        self._actions = actions
        self._open: GCCommand | None = None
        self._slicing = False
        self._handed = False
        self._lock = threading.Lock()

    @property
    def waiting(self) -> bool:
        """Whether a command waits for an idle slot: read at the end of each request that leaves no other in flight."""
        return self._open is not None

    def turn(self) -> None:
        """Called by the daemon, four times a second."""
        newer = self.file.take()
        if newer is not None:  # the sender of the one before has gone: a waiting sender holds a lock
            self._open = newer
            self._slicing = self._handed = False
        command = self._open
        if command is None:
            return
        if time.monotonic_ns() > command.deadline_ns:
            self._close(command, CommandResult(BUSY))
        elif self._slicing:
            freed = self._actions.round_over()
            if freed is not None:
                self._close(command, CommandResult(SWEPT, freed=freed))
        elif self._actions.no_stream_waits():
            self._hand_over()
        elif command.verb == COLLECT:
            self._slicing = self._actions.begin_round()

    def run_waiting(self) -> None:
        """An idle slot: runs the open command unless a stream waits after all. Any thread; never raises."""
        self._handed = False
        command = self._open
        if command is None or self._slicing or not self._lock.acquire(blocking=False):
            return
        try:
            if self._open is command and self._actions.no_stream_waits():
                self._open = None
                seconds, freed = self._actions.act(command.verb)
                self._actions.answer(command.number, CommandResult(DONE, seconds, freed).word())
        except Exception:
            self._open = None
            self._actions.failed()
            self._actions.answer(command.number, CommandResult(FAILED).word())
        finally:
            self._lock.release()

    def after_fork(self) -> None:
        """In a fork child: commands are the parent's."""
        self.file.forget()
        self._open, self._lock = None, threading.Lock()
        self._slicing = self._handed = False

    def _hand_over(self) -> None:
        if self._handed:
            return
        self._handed = True
        if not self._actions.hand_over(self.run_waiting):
            self.run_waiting()

    def _close(self, command: GCCommand, result: CommandResult) -> None:
        if not self._lock.acquire(blocking=False):  # it is being carried out
            return
        try:
            if self._open is command:
                self._open = None
                self._actions.answer(command.number, result.word())
        finally:
            self._lock.release()
