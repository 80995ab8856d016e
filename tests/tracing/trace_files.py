"""Reads trace files as csrc/include/tailwatch/record/event_ring.h lays them out, without any code of ours: for
tests."""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass
from pathlib import Path

OPEN, FIRST, TOKEN, DELAY, CLOSE, PAUSE, STEP, COUNTER, THREAD, STALL, FRAMES = range(1, 12)
RINGS, SHARED = 9, 8
_HEAD, _ENTRY, _EVENT = struct.Struct("=15Q"), struct.Struct("=8Q"), struct.Struct("=4Q")
_SHARED, _SHARED_MAGIC = struct.Struct("=8Q"), 0x31304D4853215754  # base/shared_memory.h
_READ_ONLY = 0o10000  # SHM_RDONLY
_FIRST_ENTRY, _ENTRY_BYTES, _MAGIC = 640, 128, 0x3143415254215754


@dataclass(frozen=True)
class Event:
    """One event; the fields are those of tw_ring_event."""

    ring: int
    number: int
    time_ns: int
    kind: int
    a: int
    b: int
    c: int
    id: int
    value: int


@dataclass(frozen=True)
class Trace:
    """A file: whose it is, what its rings hold, and what they have lost."""

    pid: int
    tids: list[int]
    lost: list[int]
    events: list[Event]

    def of(self, *kinds: int) -> list[Event]:
        """The events of these kinds, in the order of their rings."""
        return [event for event in self.events if event.kind in kinds]


def _content(path: Path | str) -> bytes:
    """What a file holds, or the memory that it names."""
    data = Path(path).read_bytes()
    magic, size, number, *_ = _SHARED.unpack_from(data, len(data) - _SHARED.size)
    if magic != _SHARED_MAGIC:
        return data
    libc = ctypes.CDLL(None, use_errno=True)
    libc.shmat.restype = ctypes.c_void_p
    at = libc.shmat(number - 1, None, _READ_ONLY)
    assert at != ctypes.c_void_p(-1).value, ctypes.get_errno()
    try:
        return ctypes.string_at(at, size)
    finally:
        libc.shmdt(ctypes.c_void_p(at))


def read_trace(path: Path | str) -> Trace:
    """A file that nothing writes to meanwhile, or whose writer we do not mind."""
    data = _content(path)
    head = _HEAD.unpack_from(data)
    assert head[0] == _MAGIC
    at_events = head[7]
    tids, lost, events = [], [], []
    for ring in range(RINGS):
        written, first, size, tid, *_ = _ENTRY.unpack_from(data, _FIRST_ENTRY + ring * _ENTRY_BYTES)
        oldest = max(0, written - (size - 1))
        tids.append(tid)
        lost.append(oldest)
        for number in range(oldest, written):
            place = at_events + (first + number % size) * _EVENT.size
            time_ns, what, ident, value = _EVENT.unpack_from(data, place)
            parts = (what & 0xFF, what >> 8 & 0xFF, what >> 16 & 0xFFFF, what >> 32)
            events.append(Event(ring, number, time_ns, *parts, ident, value))
    return Trace(head[8], tids, lost, events)
