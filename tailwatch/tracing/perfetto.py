"""Trace files as one timeline: Perfetto's format, or Chrome JSON; alone, or with other tools' traces beside them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from tailwatch._cold import ffi, lib
from tailwatch.errors import TailwatchError
from tailwatch.tracing import merge as merging
from tailwatch.tracing.merge import Merged
from tailwatch.tracing.track_writer import LATEST_NS, Timeline

Where = str | os.PathLike[str] | tuple[int, int]
"""A file's path; or address and bytes of what this process records in its own memory."""


@dataclass(frozen=True, slots=True)
class Written:
    """What a timeline holds, and what was left out.

    bytes: of the file. events: read from the trace files; tokens, requests, pauses, steps, stalls: of them. unfinished:
    requests without an end. beginless: requests whose beginning was overwritten. lost: events that the rings had to
    overwrite. stalls_lost: at most so many were overwritten before they could be recorded; stalls_left_out: of threads
    beyond the rows that there are. unreadable: events that are none. arrows: from a pause to a token that it delayed;
    arrows_left_out: for which there was no room. merged: of each trace of another tool.
    """

    bytes: int
    events: int
    requests: int
    tokens: int
    pauses: int
    steps: int
    stalls: int
    host_gaps: int
    unfinished: int
    beginless: int
    lost: int
    stalls_lost: int
    stalls_left_out: int
    unreadable: int
    arrows: int
    arrows_left_out: int
    merged: tuple[Merged, ...] = ()
    by_kind: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        parts = [f"{self.events} events ({self.tokens} tokens of {self.requests} requests, {self.pauses} pauses)"]
        if self.lost:
            parts.append(f"{self.lost} older ones were overwritten")
        if self.beginless:
            parts.append(f"of {self.beginless} requests the beginning is lost")
        if self.stalls_lost:
            parts.append(f"up to {self.stalls_lost} stalls were overwritten before they could be recorded")
        if self.stalls_left_out:
            rows = lib.TW_TRACE_STALL_THREADS
            parts.append(f"no rows for {self.stalls_left_out} stalls of more than {rows} threads")
        if self.arrows_left_out:
            parts.append(f"no room for {self.arrows_left_out} arrows from pauses to tokens")
        if self.unreadable:
            parts.append(f"{self.unreadable} events could not be read")
        return "; ".join([*parts, *map(str, self.merged)])


def write(
    to: str | os.PathLike[str] | int,
    where: Sequence[Where],
    *,
    format: str = "perfetto",
    since_ns: int = 0,
    until_ns: int = LATEST_NS,
    merge: Sequence[str | os.PathLike[str]] = (),
) -> Written:
    """Make a timeline of trace files: to a path, which is replaced whole, or a file descriptor. To NAME.tar: an archive
    of it and the traces to merge as they are, which Perfetto 58 and later merges by itself (merge.write_archive).

    Args:
        to: a path or an open file descriptor.
        where: the trace files, one for each process; what is none is refused.
        format: "perfetto" or "json" (Chrome's).
        since_ns: only what happened from then on, CLOCK_MONOTONIC.
        until_ns: and until then.
        merge: traces of torch (Kineto), JAX, viztracer, or Chrome JSON like theirs, put onto the same clock.

    Raises:
        TailwatchError: there is none, one is no trace file, or it cannot be written; with which and the reason.
    """
    if not isinstance(to, int) and os.fspath(to).endswith(".tar"):
        return _write_archive(os.fspath(to), where, format, since_ns, until_ns, merge)
    others = [merging.read(os.fspath(path)) for path in merge]
    with opened(where) as files, _target(to) as descriptor, Timeline(descriptor, format) as timeline:
        account = ffi.new("tw_trace_account *")
        array = ffi.new("tw_trace *[]", files)
        _check(lib.tw_trace_export(timeline.core, array, len(files), since_ns, min(until_ns, LATEST_NS), account))
        merged = tuple(merging.add(timeline, other, merging.Clocks.of(files)) for other in others)
        return _written(account, timeline.finish(), merged)


def _write_archive(
    to: str, where: Sequence[Where], form: str, since_ns: int, until_ns: int, merge: Sequence[str | os.PathLike[str]]
) -> Written:
    if form != "perfetto":
        raise TailwatchError(f"{to}: our part of an archive is in Perfetto's own format; name a file without .tar")
    with tempfile.TemporaryDirectory(prefix="tailwatch-") as directory:
        ours = os.path.join(directory, merging.OURS)
        written = write(ours, where, since_ns=since_ns, until_ns=until_ns)
        merging.write_archive(to, ours, [os.fspath(path) for path in merge])
    return written


@contextmanager
def opened(where: Sequence[Where]) -> Iterator[list[Any]]:
    """The trace files, mapped while the block lasts: one tw_trace * each.

    Raises:
        TailwatchError: one is no trace file; with its name.
    """
    files: list[Any] = []
    try:
        for place in where:
            files.append(_open(place))
        yield files
    finally:
        for place, file in zip(where, files, strict=False):
            if not isinstance(place, tuple):
                lib.tw_trace_close(file)


def _open(place: Where) -> Any:
    trace = ffi.new("tw_trace *")
    if isinstance(place, tuple):
        address, size = place
        if not lib.tw_trace_open(ffi.cast("void *", address), size, trace):
            raise TailwatchError("what this process records is no trace of this version of tailwatch")
        return trace
    problem = lib.tw_trace_map(os.fsencode(place), trace)
    if problem:
        why = "not a trace file of this version of tailwatch" if problem == _INVALID else os.strerror(problem)
        raise TailwatchError(f"{os.fspath(place)}: {why}")
    return trace


_INVALID = 22


@contextmanager
def _target(to: str | os.PathLike[str] | int) -> Iterator[int]:
    """A descriptor to write to. A file appears under its name when it is whole, and not at all if it cannot be."""
    if isinstance(to, int):
        yield to
        return
    path = os.path.realpath(os.fspath(to))  # a link stays one
    if os.path.exists(path) and not os.path.isfile(path):
        with _as_it_is(path) as descriptor:
            yield descriptor
        return
    try:
        descriptor, unfinished = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".tailwatch-", suffix=".tmp")
    except OSError as error:
        raise TailwatchError(f"{path}: {error.strerror}") from None
    try:
        yield descriptor
        os.fchmod(descriptor, 0o666 & ~_umask())
        with _freed_aside(path):
            os.replace(unfinished, path)
    except OSError as error:
        os.unlink(unfinished)
        raise TailwatchError(f"{path}: {error.strerror}") from None
    except BaseException:
        os.unlink(unfinished)
        raise
    finally:
        os.close(descriptor)


@contextmanager
def _freed_aside(path: str) -> Iterator[None]:
    """What the block lets go of at a path is freed where it delays nothing: the kernel takes 0.15 ms a MiB."""
    old = None
    with suppress(OSError):
        old = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        yield
    finally:
        if old is not None:
            lib.tw_close_aside(old)


@contextmanager
def _as_it_is(path: str) -> Iterator[int]:
    """A device or a pipe, which nothing may take the place of."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except OSError as error:
        raise TailwatchError(f"{path}: {error.strerror}") from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _umask() -> int:
    """Of this process, read without a moment in which it is another."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            return next((int(line.split()[1], 8) for line in status if line.startswith("Umask:")), 0o077)
    except OSError:
        return 0o077


def _check(problem: int) -> None:
    if problem:
        raise TailwatchError(f"the trace cannot be made: {os.strerror(problem)}")


def _written(account: Any, size: int, merged: tuple[Merged, ...]) -> Written:
    kinds = {ffi.string(lib.tw_kind_name(i)).decode(): int(account.kind[i]) for i in range(len(account.kind))}
    return Written(
        bytes=size,
        events=account.events,
        requests=account.requests,
        tokens=kinds["token"] + kinds["first"],
        pauses=kinds["pause"] + account.open_pauses,
        steps=kinds["step"],
        stalls=account.stalls,
        host_gaps=account.host_gaps,
        unfinished=account.unfinished,
        beginless=account.beginless,
        lost=account.lost,
        stalls_lost=account.stalls_lost,
        stalls_left_out=account.stalls_left_out,
        unreadable=kinds["none"],
        arrows=account.arrows,
        arrows_left_out=account.arrows_left_out,
        merged=merged,
        by_kind=kinds,
    )
