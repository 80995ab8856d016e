"""The events of one trace file (csrc/include/tailwatch/record/event_ring.h), one by one, to be joined with other
files."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tailwatch._cold import ffi, lib
from tailwatch.errors import TailwatchError

OPEN, FIRST, TOKEN, _, CLOSE, PAUSE, STEP = range(1, 8)  # tw_kind
_THREAD = 9
_AT_A_TIME = 4096
_NOT_ONE = (
    "this is no trace file of this version of tailwatch: expected a PID-….trace from the group's directory, not what "
    "`tailwatch trace` made of it"
)


@dataclass(frozen=True, slots=True)
class Recorded:
    """One event: its kind, CLOCK_MONOTONIC ns, and the four fields that event_ring.h describes for each kind."""

    kind: int
    at: int
    a: int
    labels: int
    id: int
    value: int
    c: int
    tid: int


@dataclass
class Recording:
    """What one process recorded: the events of one thread after those of another. lost: how many it had to overwrite.

    Raises:
        TailwatchError: it is no trace file of this version and user, with the reason.
    """

    path: str
    pid: int = 0
    process: str = ""
    lost: int = 0
    events: list[Recorded] = field(default_factory=list)
    _labels: dict[int, str] = field(default_factory=dict)
    _steps: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        trace = ffi.new("tw_trace *")
        problem = lib.tw_trace_map(os.fsencode(self.path), trace)
        if problem != 0:
            raise TailwatchError(f"{self.path}: {_NOT_ONE if problem == errno.EINVAL else os.strerror(problem)}")
        try:
            self._take(trace)
        finally:
            lib.tw_trace_close(trace)

    def label(self, labels: int) -> str:
        """ "MODEL ROUTE" of a label set."""
        return self._labels.get(labels, "other other")

    def step(self, number: int) -> str:
        """Name of an engine step."""
        return self._steps.get(number, "other")

    def _take(self, trace: Any) -> None:
        name, model, route = ffi.new("char[48]"), ffi.new("char[256]"), ffi.new("char[256]")
        self.pid = int(trace.pid)
        lib.tw_trace_process(trace, name)
        self.process = _text(name)
        for ring in range(lib.TW_RINGS):
            self.events += self._of(trace, ring)
        for labels in {event.labels for event in self.events if event.kind in (FIRST, CLOSE)}:
            lib.tw_trace_label(trace, labels, model, route)
            self._labels[labels] = f"{_text(model)} {_text(route)}"
        for step in {event.a for event in self.events if event.kind == STEP}:
            lib.tw_trace_step(trace, step, name)
            self._steps[step] = _text(name)

    def _of(self, trace: Any, ring: int) -> Iterator[Recorded]:
        at, end, lost = (ffi.new("uint64_t *") for _ in range(3))
        out = ffi.new("tw_ring_event[]", _AT_A_TIME)
        lib.tw_ring_bounds(trace, ring, at, end)
        at[0] = 0  # so that all that was ever overwritten counts as lost
        tid = int(lib.tw_ring_thread(trace, ring, ffi.new("char[16]")))
        while n := lib.tw_ring_read(trace, ring, at, end[0], out, _AT_A_TIME, lost):
            for i in range(n):
                what, id = out[i].what, out[i].id
                if what & 0xFF == _THREAD:
                    tid = id
                yield Recorded(
                    what & 0xFF,
                    out[i].time_ns,
                    what >> 8 & 0xFF,
                    what >> 16 & 0xFFFF,
                    id,
                    out[i].value,
                    what >> 32,
                    tid,
                )
        self.lost += int(lost[0])


def _text(text: Any) -> str:
    found: bytes = ffi.string(text)
    return found.decode("utf-8", "replace")
