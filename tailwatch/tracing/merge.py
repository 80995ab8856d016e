"""Other tools' traces beside ours, on one clock.

Each time of theirs becomes CLOCK_MONOTONIC by the clock snapshots that our processes took about every second
(csrc/include/tailwatch/base/clock.h): a straight line between two of them, never one offset for all. Where
CLOCK_REALTIME was set while we recorded, a time may have been shown twice: a trace that fits between two such steps is
taken to lie there.
"""

from __future__ import annotations

import io
import os
import tarfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from tailwatch._cold import ffi, lib
from tailwatch.errors import TailwatchError
from tailwatch.tracing import foreign_formats
from tailwatch.tracing.foreign_formats import MONOTONIC, Foreign, ForeignEvent
from tailwatch.tracing.track_writer import BEGIN, COUNTER, END, INSTANT, PROCESS, SLICES, THREAD, Timeline, Value

read = foreign_formats.read
OURS = "tailwatch.pftrace"
MANIFEST = "perfetto_manifest.json"
_MONOTONIC, _REALTIME = 0, lib.TW_CLOCK_REALTIME
_STEP_PPM, _STEP_NS = 1000, 100_000
_FAR_NS = 5_000_000_000
_ROUNDING_NS = 2000
_FLOWS = 0x5458 << 48
_ARGS_MOST, _TEXT_MOST = 60, 1000
_PIDS = 2**22


@dataclass(frozen=True, slots=True)
class Merged:
    """What became of one trace of another tool. outside: events more than 5 s from our own clock snapshots, whose place
    is an extrapolation. ambiguous: CLOCK_REALTIME was set back, and the trace fits into both of the times that it
    showed twice. across: CLOCK_REALTIME was set while the trace was taken; its tool may have smeared that."""

    path: str
    tool: str
    events: int
    skipped: int
    outside: int
    ambiguous: bool = False
    across: bool = False

    def __str__(self) -> str:
        parts = [f"{os.path.basename(self.path)} ({self.tool}): {self.events} events"]
        if self.skipped:
            parts.append(f"{self.skipped} left out")
        if self.outside:
            parts.append(f"{self.outside} before or after our clock snapshots, placed by extrapolation")
        if self.ambiguous:
            parts.append("the wall clock was set back, and they may belong to either time")
        if self.across:
            parts.append("the wall clock was set while they were recorded")
        return ", ".join(parts)


class Clocks:
    """The clock snapshots of our processes, and what they convert."""

    def __init__(self, snapshots: Any, n: int) -> None:
        self._all, self._n = snapshots, n
        self._eras = self._divide()
        self._out = ffi.new("uint64_t *")
        self._from, self._to = 0, n
        self.ambiguous = self.across = False

    @classmethod
    def of(cls, files: Sequence[Any]) -> Clocks:
        """Of trace files that are mapped."""
        room = 2 * lib.TW_CLOCK_KEPT
        snapshots = ffi.new("tw_clock_snapshot[]", room)
        array = ffi.new("tw_trace *[]", list(files))
        n = lib.tw_trace_clocks_merged(array, len(files), snapshots, room)
        return cls(snapshots, int(n))

    def _wall(self, i: int) -> int:
        return int(self._all[i].at[_REALTIME])

    def _mono(self, i: int) -> int:
        return int(self._all[i].at[_MONOTONIC])

    def _divide(self) -> list[tuple[int, int]]:
        """Snapshots [from, to) between which the wall clock was not set."""
        eras, start = [], 0
        for i in range(1, self._n):
            mono, wall = self._mono(i) - self._mono(i - 1), self._wall(i) - self._wall(i - 1)
            if abs(wall - mono) > mono * _STEP_PPM // 1_000_000 + _STEP_NS:
                eras.append((start, i))
                start = i
        return [*eras, (start, self._n)] if self._n else []

    def settle(self, first_ns: int, last_ns: int) -> None:
        """The times to come lie between these, in CLOCK_REALTIME: looks for the era that holds them all."""
        fitting = []
        for i, (start, end) in enumerate(self._eras):
            begun = self._wall(start) - (_FAR_NS if i == 0 else 0)
            after = _FAR_NS if i == len(self._eras) - 1 else self._mono(end) - self._mono(end - 1)
            until = self._wall(end - 1) + after
            if begun <= first_ns and last_ns <= until:
                fitting.append((start, end))
        self.ambiguous = len(fitting) > 1
        self.across = not fitting and len(self._eras) > 1
        self._from, self._to = fitting[-1] if fitting else (0, self._n)

    def monotonic(self, wall_ns: int) -> int | None:
        """CLOCK_MONOTONIC at a time of CLOCK_REALTIME, ns; None: not known."""
        return self._convert(_REALTIME, _MONOTONIC, wall_ns)

    def wall(self, mono_ns: int) -> int | None:
        """The reverse."""
        return self._convert(_MONOTONIC, _REALTIME, mono_ns)

    def _convert(self, source: int, target: int, at: int) -> int | None:
        if not 0 <= at < 2**63:
            return None
        count = self._to - self._from
        fine = lib.tw_clock_convert(self._all + self._from, count, source, target, at, self._out)
        return int(self._out[0]) if fine else None

    def is_far(self, mono_ns: int) -> bool:
        """Whether no snapshot was taken within 5 s before or after."""
        return not self._n or not self._mono(0) - _FAR_NS <= mono_ns <= self._mono(self._n - 1) + _FAR_NS


def add(timeline: Timeline, trace: Foreign, clocks: Clocks) -> Merged:
    """Put a trace onto the timeline, after our own events.

    Raises:
        TailwatchError: our trace has no clock snapshot that could place it.
    """
    _to_monotonic(trace, clocks)
    outside = sum(clocks.is_far(event.at) for event in trace.events)
    refused = timeline.refused
    _Drawing(timeline, trace).draw()
    timeline.flush()
    skipped = trace.skipped + timeline.refused - refused
    return Merged(trace.path, trace.tool, len(trace.events), skipped, outside, clocks.ambiguous, clocks.across)


def _to_monotonic(trace: Foreign, clocks: Clocks) -> None:
    """Its times become CLOCK_MONOTONIC, in place."""
    if not trace.events:
        return
    first, last = min(event.at for event in trace.events), max(event.at + event.dur for event in trace.events)
    if trace.clock == MONOTONIC:
        if not _is_of_another_boot(trace, clocks, first):
            return
        for event in trace.events:
            event.at += trace.wall_ahead_ns
        first, last = first + trace.wall_ahead_ns, last + trace.wall_ahead_ns
    clocks.settle(first, last)
    kept = []
    for event in trace.events:
        begin = clocks.monotonic(event.at)
        if begin is None:
            trace.skipped += 1
            continue
        if event.dur:
            end = clocks.monotonic(event.at + event.dur)
            event.dur = max(0, end - begin) if end is not None else event.dur
        event.at = begin
        kept.append(event)
    if not kept:
        raise TailwatchError(f"{trace.path}: our trace has no clock snapshot that could place it")
    trace.events = kept


def _is_of_another_boot(trace: Foreign, clocks: Clocks, first_ns: int) -> bool:
    """Whether its CLOCK_MONOTONIC is not ours: then the wall clock, as it has it, is all there is."""
    wall = clocks.wall(first_ns)
    return bool(trace.wall_ahead_ns) and wall is not None and abs(wall - first_ns - trace.wall_ahead_ns) > 3600 * 10**9


class _Drawing:
    """One trace's rows, and what is on them."""

    def __init__(self, timeline: Timeline, trace: Foreign) -> None:
        self._timeline, self._trace = timeline, trace
        self._roots: dict[Any, int] = {}
        self._own = timeline.sequence()
        self._counters: dict[tuple[Any, str, str], int] = {}
        self._flow_numbers: dict[tuple[Any, ...], int] = {}
        self._starts: dict[tuple[Any, int], list[int]] = defaultdict(list)
        self._ends: dict[tuple[Any, int], list[int]] = defaultdict(list)

    def draw(self) -> None:
        """Everything."""
        rows: dict[tuple[Any, Any], list[ForeignEvent]] = defaultdict(list)
        whole = self._whole_flows()
        for event in self._trace.events:
            if event.phase == "C":
                self._count(event)
            elif event.phase in "sf":
                if event.flow in whole:
                    number = self._flow_numbers.setdefault(event.flow, _FLOWS + len(self._flow_numbers))
                    (self._starts if event.phase == "s" else self._ends)[event.row, event.at].append(number)
            else:
                rows[event.row].append(event)
        for row, events in rows.items():
            self._draw_row(row, events)

    def _whole_flows(self) -> set[tuple[Any, ...]]:
        """Arrows that have one start and one end."""
        seen: dict[tuple[Any, ...], str] = defaultdict(str)
        for event in self._trace.events:
            if event.phase in "sf":
                seen[event.flow] += event.phase
        return {flow for flow, phases in seen.items() if sorted(phases) == ["f", "s"]}

    def _is_real(self, pid: Any) -> bool:
        """Whether it is a process of the kernel's."""
        process = self._trace.processes.get(pid)
        known = self._trace.tool != "jax" if process is None else process.real
        return known and isinstance(pid, int) and 0 < pid < _PIDS

    def _root(self, pid: Any) -> int:
        """The track that stands for a process, or for what the tool calls one."""
        if pid not in self._roots:
            process = self._trace.processes.get(pid)
            real = self._is_real(pid)
            name = process.name if process is not None else ""
            if real:
                self._roots[pid] = self._timeline.find(PROCESS, pid) or self._timeline.track(
                    PROCESS, name or str(pid), sequence=self._own, pid=pid
                )
            else:
                called = f"{self._trace.tool}: {name or pid}"
                self._roots[pid] = self._timeline.track(SLICES, called, sequence=self._own)
        return self._roots[pid]

    def _row(self, row: tuple[Any, Any], sequence: int) -> tuple[int, str]:
        """The parent of a row's tracks, and what they are called."""
        pid, tid = row
        name, root = self._trace.threads.get(row, ""), self._root(pid)
        if self._is_real(pid) and isinstance(tid, int) and 0 < tid < _PIDS:
            thread = self._timeline.find(THREAD, pid, tid) or self._timeline.track(
                THREAD, name, sequence=sequence, parent=root, rank=3, pid=pid, tid=tid
            )
            return thread, self._trace.tool
        return root, name or str(tid)

    def _draw_row(self, row: tuple[Any, Any], events: list[ForeignEvent]) -> None:
        sequence = self._timeline.sequence()
        parent, name = self._row(row, sequence)
        lanes = _Lanes(lambda: self._timeline.track(SLICES, name, sequence=sequence, parent=parent, rank=4))
        timeline, number = self._timeline, self._timeline.name
        for event in sorted(events, key=lambda e: (e.at, -e.dur)):
            args = [(number(key), value) for key, value in _arguments(event.args)]
            category = number(event.category) if event.category else 0
            arrows = self._starts.get((row, event.at), ()), self._ends.get((row, event.at), ())
            if event.phase == "X":
                track, over = lanes.place(event.at, event.at + event.dur)
                for end in over:
                    timeline.point(end, track, END)
                timeline.point(event.at, track, BEGIN, number(event.name), category, args, *arrows)
                self._starts.pop((row, event.at), None)
                self._ends.pop((row, event.at), None)
            elif event.phase == "E":
                timeline.point(event.at, lanes.main(), END, args=args)
            else:
                kind = BEGIN if event.phase == "B" else INSTANT
                timeline.point(event.at, lanes.main(), kind, number(event.name), category, args, *arrows)
        for track, over in lanes.rest():
            for end in over:
                timeline.point(end, track, END)

    def _count(self, event: ForeignEvent) -> None:
        for key, value in event.args.items():
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                continue
            called = (event.row[0], event.name, str(key))
            if called not in self._counters:
                name = event.name if key in ("", "value") else f"{event.name} {key}"
                self._counters[called] = self._timeline.track(
                    COUNTER, name, sequence=self._own, parent=self._root(event.row[0])
                )
            self._timeline.count(event.at, self._counters[called], value)


class _Lanes:
    """Tracks of one row on which slices nest: one that overlaps another without being inside it stands beside it."""

    def __init__(self, make: Any) -> None:
        self._make = make
        self._tracks: list[int] = []
        self._open: list[list[int]] = []

    def main(self) -> int:
        """The first track."""
        if not self._tracks:
            self._add()
        return self._tracks[0]

    def _add(self) -> None:
        self._tracks.append(self._make())
        self._open.append([])

    def place(self, begin: int, end: int) -> tuple[int, list[int]]:
        """Where a slice goes, and the ends of slices that are over there by then."""
        for track, open_ends in zip(self._tracks, self._open, strict=True):
            over = []
            while open_ends and open_ends[-1] <= begin:
                over.append(open_ends.pop())
            if not open_ends or end <= open_ends[-1] + _ROUNDING_NS:
                open_ends.append(min(end, open_ends[-1]) if open_ends else end)
                return track, over
            open_ends.extend(reversed(over))
        self._add()
        self._open[-1].append(end)
        return self._tracks[-1], []

    def rest(self) -> list[tuple[int, list[int]]]:
        """Each track, and the ends that are left on it."""
        return [(track, ends[::-1]) for track, ends in zip(self._tracks, self._open, strict=True)]


def _arguments(args: dict[str, Any]) -> list[tuple[str, Value]]:
    """Those of an event, as a timeline takes them."""
    made: list[tuple[str, Value]] = []
    for key, value in list(args.items())[:_ARGS_MOST]:
        if isinstance(value, (bool, int, float, str)):
            made.append((str(key), value[:_TEXT_MOST] if isinstance(value, str) else value))
        elif value is not None:
            made.append((str(key), orjson.dumps(value, default=str).decode()[:_TEXT_MOST]))
    return made


# ---- the archive that Perfetto merges by itself


def write_archive(to: str | os.PathLike[str], ours: bytes | str | os.PathLike[str], others: Sequence[str]) -> None:
    """A tar of our trace (Perfetto's format) and the others as they are, with the manifest by which trace_processor 58
    and later puts them on one timeline. It has one offset for each file: where clocks drifted or were set, write() is
    exact.

    Raises:
        TailwatchError: one cannot be read, has no clock, or is of a format that Perfetto does not read.
    """
    for path in others:
        if path.endswith(".pb"):
            raise TailwatchError(f"{path}: Perfetto does not read this format; take the *.trace.json.gz beside it")
    content = ours if isinstance(ours, bytes) else _bytes_of(ours)
    members = [(f"{i}-{os.path.basename(path)}", path, read(path)) for i, path in enumerate(others, 1)]
    files = [{"path": OURS}, *(manifest_entry(name, trace) for name, _, trace in members)]
    manifest = {"perfetto_manifest": {"version": 1, "trace_time": {"clock": MONOTONIC, "file": OURS}, "files": files}}
    try:
        with tarfile.open(to, "w") as archive:
            _put(archive, MANIFEST, orjson.dumps(manifest))
            _put(archive, OURS, content)
            for name, path, _ in members:
                _put(archive, name.removesuffix(".gz"), foreign_formats._plain(path, _bytes_of(path)))
    except OSError as error:
        raise TailwatchError(f"{os.fspath(to)}: {error.strerror}") from None


def manifest_entry(name: str, trace: Foreign) -> dict[str, Any]:
    """How a file of the archive relates to the clocks of ours."""
    clocks = {"sync_to": {"file": OURS, "clock": trace.clock}, "offset_ns": trace.base_ns}
    return {"path": name.removesuffix(".gz"), "clocks": clocks}


def _bytes_of(path: str | os.PathLike[str]) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise TailwatchError(f"{os.fspath(path)}: {error.strerror}") from None


def _put(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))
