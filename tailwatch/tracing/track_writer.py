"""A trace being written, from Python: a thin hold on csrc/include/tailwatch/trace/track_writer.h, which is the manual.

Points are gathered as words and handed over in thousands, so that a merged trace of a million events costs one C call
for each few thousand of them.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Sequence
from struct import Struct
from types import TracebackType
from typing import Any

from tailwatch._cold import ffi, lib
from tailwatch.errors import TailwatchError

FORMATS = {"perfetto": lib.TW_TIMELINE_PERFETTO, "json": lib.TW_TIMELINE_JSON}
PROCESS, THREAD, SLICES, COUNTER = (
    lib.TW_TRACK_PROCESS,
    lib.TW_TRACK_THREAD,
    lib.TW_TRACK_SLICES,
    lib.TW_TRACK_COUNTER,
)
BEGIN, END, INSTANT, COUNT, COUNT_DOUBLE = 1, 2, 3, 4, 5
LATEST_NS = 2**63 - 1
_POINT = Struct("=QQ6I4H")
_ARG = Struct("=IIQ")
_DOUBLE = Struct("=d")
_BATCH = 4096
_MASK = 2**64 - 1
Value = int | float | bool | str


class Timeline:
    """One file in the making, on a file descriptor that stays the caller's. Finish it, or use it in a with statement:
    only then is it whole."""

    def __init__(self, descriptor: int, form: str = "perfetto") -> None:
        made = ffi.new("tw_timeline **")
        _check(lib.tw_timeline_create_fd(made, FORMATS[form], descriptor))
        self.core: Any = made[0]
        self._points = bytearray()
        self._args = bytearray()
        self._flows = array("Q")
        self._names: dict[str, int] = {}
        self._finished = False
        self.refused = 0
        """Points that were not written, because they lie out of time."""
        self._bytes = -1

    def __enter__(self) -> Timeline:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.finish()
        self.free()

    def finish(self) -> int:
        """Write what is left; a second time does nothing. Returns the bytes of the file.

        Raises:
            TailwatchError: it could not be written, with the reason.
        """
        if not self._finished:
            self._finished = True
            self.flush()
            _check(lib.tw_timeline_finish(self.core))
        return int(lib.tw_timeline_bytes(self.core))

    def free(self) -> None:
        """Give its memory back; it cannot be used any more."""
        core, self.core = self.core, ffi.NULL
        lib.tw_timeline_free(core)

    def name(self, text: str) -> int:
        """The number of a text."""
        number = self._names.get(text)
        if number is None:
            encoded = text.encode("utf-8", "replace")
            number = self._names[text] = int(lib.tw_timeline_name(self.core, encoded, len(encoded)))
        return number

    def sequence(self) -> int:
        """A new sequence."""
        return int(lib.tw_timeline_sequence(self.core))

    def track(
        self, kind: int, name: str = "", *, sequence: int, parent: int = 0, rank: int = 0, unit: str = "", pid: int = 0,
        tid: int = 0,
    ) -> int:  # fmt: skip
        """A new track. pid and tid: of a process or thread, as the kernel has it."""
        described = ffi.new("tw_track *", {"kind": kind, "sequence": sequence, "parent": parent, "rank": rank})
        described.name = self.name(name) if name else 0
        described.unit = self.name(unit) if unit else 0
        described.pid, described.tid = pid, tid
        return int(lib.tw_timeline_track(self.core, described))

    def find(self, kind: int, pid: int, tid: int = 0) -> int:
        """The track of a process or thread; 0: it has none yet."""
        return int(lib.tw_timeline_find(self.core, kind, pid, tid))

    def clocks(self, snapshots: Any, n: int) -> None:
        """Clock snapshots, before all else."""
        lib.tw_timeline_clocks(self.core, snapshots, n)

    def point(
        self, at_ns: int, track: int, kind: int, name: int = 0, category: int = 0,
        args: Sequence[tuple[int, Value]] = (), starts: Sequence[int] = (), ends: Sequence[int] = (),
    ) -> None:  # fmt: skip
        """One event. name, category and the first of each argument: numbers of names."""
        if not 0 <= at_ns <= LATEST_NS:
            self.refused += 1
            return
        arg_at, flow_at = len(self._args) // _ARG.size, len(self._flows)
        for key, value in args:
            self._args += self._arg(key, value)
        self._flows.extend(starts)
        self._flows.extend(ends)
        self._add(at_ns, 0, track, name, category, kind, arg_at, flow_at, len(args), len(starts), len(ends))

    def count(self, at_ns: int, track: int, value: int | float) -> None:
        """A counter's value from now on."""
        if not 0 <= at_ns <= LATEST_NS:
            self.refused += 1
        elif isinstance(value, int) and -(2**63) <= value < 2**63:
            self._add(at_ns, value & _MASK, track, 0, 0, COUNT, 0, 0, 0, 0, 0)
        else:
            bits = int.from_bytes(_DOUBLE.pack(value), "little")
            self._add(at_ns, bits, track, 0, 0, COUNT_DOUBLE, 0, 0, 0, 0, 0)

    def _add(self, *words: int) -> None:
        self._points += _POINT.pack(*words, 0)
        if len(self._points) >= _BATCH * _POINT.size:
            self.flush()

    def _arg(self, name: int, value: Value) -> bytes:
        if isinstance(value, bool):
            return _ARG.pack(name, 3, value)
        if isinstance(value, int) and -(2**63) <= value < 2**64:
            return _ARG.pack(name, 1 if value < 0 else 0, value & _MASK)
        if isinstance(value, (int, float)):
            return _ARG.pack(name, 2, int.from_bytes(_DOUBLE.pack(float(value)), "little"))
        return _ARG.pack(name, 4, self.name(value))

    def flush(self) -> None:
        """Hand over what was gathered."""
        n, n_args, n_flows = len(self._points) // _POINT.size, len(self._args) // _ARG.size, len(self._flows)
        points = ffi.cast("tw_point *", ffi.from_buffer(self._points))
        args = ffi.cast("tw_arg *", ffi.from_buffer(self._args))
        flows = ffi.cast("uint64_t *", ffi.from_buffer(self._flows))
        self.refused += n - int(lib.tw_timeline_points(self.core, points, n, args, n_args, flows, n_flows))
        self._points, self._args, self._flows = bytearray(), bytearray(), array("Q")


def _check(problem: int) -> None:
    if problem:
        raise TailwatchError(f"the trace cannot be written: {os.strerror(problem)}")
