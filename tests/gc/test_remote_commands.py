"""What an operator asks: the file that a process makes, whatever stands in it, and that each command is answered."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tailwatch
from tailwatch.gc import remote_commands
from tailwatch.gc.remote_commands import (
    BUSY,
    BYTES,
    COLLECT,
    DONE,
    FAILED,
    FREEZE,
    SWEPT,
    CommandActions,
    CommandFile,
    CommandResult,
    CommandServer,
    GCCommand,
    decode,
    encode,
)

HOUR_NS = 3600 * 10**9


def soon() -> int:
    return time.monotonic_ns() + HOUR_NS


# ---- the format ----


@given(
    st.integers(1, remote_commands.MOST_NUMBER - 1), st.sampled_from(remote_commands.VERBS), st.integers(0, 2**63 - 1)
)
def test_a_command_is_read_as_it_was_written(number: int, verb: str, deadline: int) -> None:
    """In a file of one size."""
    command = GCCommand(number, verb, deadline)
    assert len(encode(command)) == BYTES
    assert decode(encode(command)) == command


@given(st.binary(max_size=2 * BYTES))
def test_garbage_is_no_command(data: bytes) -> None:
    """Whatever the bytes."""
    assert decode(data) is None


@given(st.integers(0, BYTES - 1), st.integers(1, 255))
def test_a_changed_byte_is_seen(at: int, change: int) -> None:
    """One that is being written, or was meant for another version, is none."""
    data = bytearray(encode(GCCommand(17, FREEZE, 5)))
    data[at] ^= change
    assert decode(bytes(data)) is None


@given(st.sampled_from([DONE, SWEPT, BUSY, FAILED]), st.integers(0, 10**7), st.integers(0, 2**32 - 1))
def test_an_outcome_fits_into_a_word(code: int, ms: int, freed: int) -> None:
    """And comes out as it was, to the millisecond; more than fits is the most that does."""
    word = CommandResult(code, ms / 1e3, freed).word()
    assert 0 <= word < 2**64
    assert CommandResult.of(word) == CommandResult(code, ms / 1e3, freed)
    assert CommandResult.of(CommandResult(code, 1e9, 2**40).word()) == CommandResult(code, (2**24 - 1) / 1e3, 2**32 - 1)


# ---- the file ----


class Home:
    """A directory, the file that a process has there, and what it ignored."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "1-2-3.gc"
        self.where = str(self.path)
        self.ignored = 0
        self.file = CommandFile(lambda: self.where, self.ignore)
        assert self.file.take() is None

    def ignore(self) -> None:
        self.ignored += 1

    def looks(self, times: int = 3) -> list[GCCommand]:
        """What a few looks find."""
        return [command for _ in range(times) if (command := self.file.take()) is not None]

    def write(self, data: bytes) -> None:
        """As the command line does."""
        file = os.open(self.path, os.O_WRONLY)
        os.pwrite(file, data, 0)
        os.close(file)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def test_a_command_is_taken_once(home: Home) -> None:
    """The file is this user's alone, and empty at first; each command is taken once, also with the same time."""
    found = home.path.stat()
    assert (found.st_mode & 0o7777, found.st_size, found.st_uid) == (0o600, 0, os.geteuid())
    for number in (5, 6):
        home.write(encode(GCCommand(number, FREEZE, soon())))
        assert [command.number for command in home.looks()] == [number]
    assert home.looks() == []
    assert home.ignored == 0


def test_an_expired_command_is_ignored(home: Home) -> None:
    """The command that gave it has gone: nothing is done, and nothing is wrong."""
    home.write(encode(GCCommand(5, FREEZE, time.monotonic_ns() - 1)))
    assert (home.looks(), home.ignored) == ([], 0)


@pytest.mark.parametrize("data", [b"freeze\n", b"\0" * BYTES, b"x" * 10**6, encode(GCCommand(5, FREEZE, HOUR_NS))[:-1]])
def test_garbage_is_ignored_and_counted(home: Home, data: bytes) -> None:
    """Once; and what comes after it is taken."""
    home.write(data)
    assert (home.looks(), home.ignored) == ([], 1)
    os.truncate(home.path, 0)
    home.write(encode(GCCommand(6, COLLECT, soon())))
    assert [command.number for command in home.looks()] == [6]
    assert home.ignored == 1


def test_one_that_is_being_written_is_waited_for(home: Home) -> None:
    """The first look may see half of it."""
    command = encode(GCCommand(6, COLLECT, soon()))
    home.write(command[:40])
    assert home.file.take() is None
    home.write(command)
    assert [each.number for each in home.looks()] == [6]
    assert home.ignored == 0


def put_link(path: Path) -> None:
    target = path.with_name("target")
    target.write_bytes(encode(GCCommand(5, FREEZE, soon())))
    target.chmod(0o600)
    path.symlink_to(target)


def put_open_file(path: Path) -> None:
    path.write_bytes(encode(GCCommand(5, FREEZE, soon())))
    path.chmod(0o666)


def put_second_name(path: Path) -> None:
    target = path.with_name("target")
    put_link(path)
    path.unlink()
    os.link(target, path)


def put_fifo(path: Path) -> None:
    os.mkfifo(path, 0o600)


def put_stranger(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("another owner can only be made by root")
    put_open_file(path)
    path.chmod(0o600)
    os.chown(path, 12345, 12345)


@pytest.mark.parametrize("put", [put_link, put_open_file, put_second_name, put_fifo, put_stranger])
def test_what_is_not_ours_is_never_read(home: Home, put: Callable[[Path], None]) -> None:
    """A link, a file that others may write, one with two names, a pipe, another's: counted, and ours is put back."""
    home.path.unlink()
    put(home.path)
    assert home.looks() == []
    assert home.ignored == 1
    home.write(encode(GCCommand(6, COLLECT, soon())))
    assert [command.number for command in home.looks()] == [6]


def test_a_directory_in_its_place_is_left(home: Home) -> None:
    """It cannot be put right, and breaks nothing."""
    home.path.unlink()
    home.path.mkdir()
    assert home.looks() == []
    assert home.ignored == 1
    home.path.rmdir()
    home.looks(1)
    assert home.path.is_file()


def test_a_file_that_is_gone_is_made_again(home: Home) -> None:
    """Also after another name was given to it; at the end nothing is left."""
    home.path.unlink()
    home.looks()
    assert home.path.is_file()
    home.where = str(home.path.with_name("4-5-6.gc"))
    home.looks()
    assert [path.name for path in home.path.parent.iterdir()] == ["4-5-6.gc"]
    home.file.close()
    assert list(home.path.parent.iterdir()) == []


def test_a_fork_child_leaves_its_parent_s(home: Home) -> None:
    """It forgets it, and makes its own."""
    home.file.forget()
    home.where = ""
    home.looks()
    home.file.close()
    assert home.path.is_file()


# ---- carrying out ----


class Server:
    """A process that is busy or not, and whose thread that serves may be had or not."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.busy = False
        self.loop: list[Callable[[], None]] | None = None
        self.slices = True
        self.round: int | None = None
        self.done: list[str] = []
        self.answers: list[tuple[int, CommandResult]] = []
        self.failures = 0
        self.commands = CommandServer(
            home.file,
            CommandActions(
                no_stream_waits=lambda: not self.busy,
                act=self.act,
                begin_round=lambda: self.slices,
                round_over=lambda: self.round,
                hand_over=self.hand_over,
                answer=lambda number, word: self.answers.append((number, CommandResult.of(word))),
                failed=self.fail,
            ),
        )

    def act(self, verb: str) -> tuple[float, int]:
        self.done.append(verb)
        if verb == COLLECT and self.round == -1:
            raise MemoryError
        return 0.25, 7

    def fail(self) -> None:
        self.failures += 1

    def hand_over(self, call: Callable[[], None]) -> bool:
        if self.loop is not None:
            self.loop.append(call)
        return self.loop is not None

    def ask(self, verb: str, number: int = 5, deadline_ns: int | None = None) -> None:
        self.home.write(encode(GCCommand(number, verb, soon() if deadline_ns is None else deadline_ns)))
        self.commands.turn()


@pytest.fixture
def server(home: Home) -> Server:
    return Server(home)


def test_no_stream_waits_and_there_is_no_loop(server: Server) -> None:
    """The daemon does it."""
    server.ask(FREEZE)
    assert server.answers == [(5, CommandResult(DONE, 0.25, 7))]
    server.commands.turn()
    server.commands.run_waiting()
    assert server.done == [FREEZE]


def test_the_thread_that_serves_does_it(server: Server) -> None:
    """Asked once; if a stream waits by then, at the next moment without."""
    server.loop = []
    server.ask(FREEZE)
    server.commands.turn()
    assert len(server.loop) == 1 and server.answers == []
    server.busy = True
    server.loop.pop()()
    assert server.done == []
    server.busy = False
    server.commands.run_waiting()
    assert server.answers == [(5, CommandResult(DONE, 0.25, 7))]


def test_a_command_waits_for_the_end_of_a_collection() -> None:
    """gc.collect() does nothing inside one, so a freeze would be one of garbage."""
    watch = tailwatch.install(gc="observe")
    try:
        may_act = watch.coordinator.commands._actions.no_stream_waits
        assert may_act()
        watch.core.policy_begin()
        assert not may_act()
        watch.core.policy_end()
        assert may_act()
    finally:
        tailwatch.uninstall()


def test_streams_in_flight_are_never_stopped(server: Server) -> None:
    """A freeze waits, and is given up when nothing waits for its answer any more."""
    server.busy = True
    server.ask(FREEZE, deadline_ns=time.monotonic_ns() + 20_000_000)
    assert server.commands.waiting
    server.commands.run_waiting()
    deadline = time.monotonic() + 30
    while not server.answers and time.monotonic() < deadline:
        server.commands.turn()
    assert server.answers == [(5, CommandResult(BUSY))]
    assert server.done == [] and not server.commands.waiting


def test_a_collection_is_made_in_slices_meanwhile(server: Server) -> None:
    """Where the slicer works: answered when it is through."""
    server.busy = True
    server.ask(COLLECT)
    server.commands.turn()
    assert server.answers == []
    server.busy = False
    server.commands.run_waiting()
    assert server.done == [], "it is being made already"
    server.round = 123
    server.commands.turn()
    assert server.answers == [(5, CommandResult(SWEPT, 0.0, 123))]


def test_what_fails_is_answered_too(server: Server) -> None:
    """And the next command is taken."""
    server.round = -1
    server.ask(COLLECT)
    assert server.answers == [(5, CommandResult(FAILED))] and server.failures == 1
    server.ask(FREEZE, 6)
    assert server.answers[1] == (6, CommandResult(DONE, 0.25, 7))
