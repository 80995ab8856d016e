"""Trace files as a reader sees them: those of a group's directory, of the living and the dead.

Every process writes its own (csrc/include/tailwatch/record/event_ring.h); here they are found, judged and handed to the
writer of the timeline (tracing/perfetto.py). Nothing in a directory is believed, and nothing is written there.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tailwatch._cold import ffi, lib
from tailwatch.errors import TailwatchError
from tailwatch.options.trace_triggers import Triggers

if TYPE_CHECKING:
    from tailwatch.tracing.perfetto import Written

ENDING = ".trace"
FORMATS = ("perfetto", "json")
LATEST_NS = 2**63 - 1
_AT_FDCWD = -100  # Linux
Where = str | tuple[int, int]
"""A file's path; or address and bytes of what this process records in its own memory."""


@dataclass(frozen=True, slots=True)
class TraceFile:
    """One process's trace file.

    over: it is certain that nothing writes to it any more. seen: when its process was last known to live, seconds since
    the epoch. bytes: of the file. events: that it holds; lost: that it had to overwrite.
    """

    path: str
    process: str
    pid: int
    over: bool
    seen: float
    bytes: int
    events: int
    lost: int


def bytes_of(events: int, label_sets: int) -> int:
    """Bytes of a trace file with that many events and label sets; 0: out of range."""
    return int(lib.tw_trace_bytes(events, label_sets))


def ring_sizes(events: int) -> tuple[int, ...]:
    """Events of each ring: of the first thread that stamps, of each of seven more, and of all others together."""
    return tuple(int(lib.tw_ring_size(events, i)) for i in range(lib.TW_RINGS))


def files_of(directory: str) -> list[TraceFile]:
    """The trace files in a group's directory, the oldest first. What is none of this version and user is passed over.

    Raises:
        TailwatchError: the directory must not be read, with the reason.
    """
    problem = ffi.new("tw_group_problem *")
    descriptor = lib.tw_group_open_dir(os.fsencode(directory), problem)
    if descriptor < 0:
        sentence = os.strerror(ffi.errno) if problem[0] == lib.TW_GROUP_SYSTEM else ""
        raise TailwatchError(f"{directory}: {sentence or _sentence(problem[0])}")
    try:
        names = [name for name in os.listdir(descriptor) if name.endswith(ENDING)]
    finally:
        os.close(descriptor)
    found = (look_into(os.path.join(directory, name)) for name in names)
    return sorted((each for each in found if each is not None), key=lambda each: each.seen)


def _sentence(problem: int) -> str:
    text: bytes = ffi.string(lib.tw_group_problem_text(problem))
    return text.decode()


def look_into(path: str) -> TraceFile | None:
    """What a trace file has of itself; None where it is none."""
    trace = ffi.new("tw_trace *")
    if lib.tw_trace_map(os.fsencode(path), trace) != 0:
        return None
    try:
        return _described(path, trace)
    finally:
        lib.tw_trace_close(trace)


def remove(path: str) -> None:
    """Remove a file, and the memory that it names; nothing happens where another process was first."""
    lib.tw_shared_remove(_AT_FDCWD, os.fsencode(path))


def _described(path: str, trace: Any) -> TraceFile | None:
    name = ffi.new("char[48]")
    lib.tw_trace_process(trace, name)
    if os.path.basename(path) != f"{trace.pid}-{trace.start_time}-{trace.joined_ns}{ENDING}":
        return None  # a copy under another name would count twice
    first, end = ffi.new("uint64_t *"), ffi.new("uint64_t *")
    held = lost = 0
    for ring in range(lib.TW_RINGS):
        lost += lib.tw_ring_bounds(trace, ring, first, end)
        held += end[0] - first[0]
    process = ffi.string(name).decode("utf-8", "replace")
    return TraceFile(path, process, trace.pid, lib.tw_trace_is_over(trace), _seen(trace), trace.bytes, held, lost)


def _seen(trace: Any) -> float:
    clocks = ffi.new("tw_clock_snapshot[]", lib.TW_CLOCK_KEPT)
    n = lib.tw_trace_clocks(trace, clocks)
    return float(clocks[n - 1].at[lib.TW_CLOCK_REALTIME]) / 1e9 if n else 0.0


class Look:
    """Looks for what is worth keeping, in what this process records, from now on."""

    def __init__(self, triggers: Triggers) -> None:
        self._trigger = ffi.new("tw_trigger *")
        self._trigger.gap_ns, self._trigger.ttft_ns, self._trigger.slo = triggers.gap_ns, triggers.ttft_ns, triggers.slo
        self._begun = False

    def look(self, memory: tuple[int, int]) -> tuple[int, int]:
        """How much there was since the last look, and when the first of it was, monotonic ns. memory: stays where it is
        meanwhile. The first look passes over what is there."""
        trace, found = ffi.new("tw_trace *"), ffi.new("tw_trigger_found *")
        if not lib.tw_trace_open(ffi.cast("void *", memory[0]), memory[1], trace):
            return 0, 0
        if not self._begun:
            self._begun = True
            lib.tw_trigger_skip(self._trigger, trace)
        lib.tw_trigger_look(self._trigger, trace, found)
        return int(found.matches), int(found.first_ns)


def write(
    to: str | int,
    where: Sequence[Where],
    form: str = "perfetto",
    *,
    since_ns: int = 0,
    until_ns: int = LATEST_NS,
    merge: Sequence[str] = (),
) -> Written:
    """Make a timeline of trace files: to a path, which is replaced whole, or a file descriptor. since_ns, until_ns:
    monotonic. merge: paths of traces that other tools wrote.

    Raises:
        TailwatchError: a form that there is not, or it cannot be written, with the reason.
    """
    if form not in FORMATS:
        raise TailwatchError(f"format={form!r}: expected one of {', '.join(FORMATS)}")
    from tailwatch.tracing import perfetto

    return perfetto.write(to, where, format=form, since_ns=since_ns, until_ns=until_ns, merge=merge)


def write_group(
    directory: str,
    to: str | int,
    form: str = "perfetto",
    *,
    since_ns: int = 0,
    until_ns: int = LATEST_NS,
    merge: Sequence[str] = (),
) -> tuple[list[TraceFile], Written]:
    """write() of all processes of a group, living and dead. Returns their files too.

    Raises:
        TailwatchError: there are none, or it cannot be written; with what to do.
    """
    for last in (False, False, True):
        files = files_of(directory)
        if not files:
            raise TailwatchError(
                f"{directory}: no process has left a trace there: record one with install(app, trace_events=1_000_000) "
                "or TAILWATCH_TRACE_EVENTS=1000000"
            )
        try:
            paths = [file.path for file in files]
            return files, write(to, paths, form, since_ns=since_ns, until_ns=until_ns, merge=merge)
        except TailwatchError:  # one of them went meanwhile: its process was uninstalled
            if last or all(os.path.exists(file.path) for file in files):
                raise
    raise AssertionError
