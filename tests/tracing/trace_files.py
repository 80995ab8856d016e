"""Reads trace files as csrc/include/tailwatch/record/event_ring.h lays them out, without any code of ours: for
tests."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

OPEN, FIRST, TOKEN, DELAY, CLOSE, PAUSE, STEP, COUNTER, THREAD = range(1, 10)
RINGS, SHARED = 9, 8
_HEAD, _ENTRY, _EVENT = struct.Struct("=15Q"), struct.Struct("=8Q"), struct.Struct("=4Q")
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


def read_trace(path: Path | str) -> Trace:
    """A file that nobody writes to meanwhile, or whose writer we do not mind."""
    data = Path(path).read_bytes()
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
