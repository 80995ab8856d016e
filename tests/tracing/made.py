"""Trace files made by hand, word by word, as csrc/include/tailwatch/record/event_ring.h describes them: any events, of
any time."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tailwatch._cold import lib

NONE, OPEN, FIRST, TOKEN, DELAY, CLOSE, PAUSE, STEP, COUNTER, THREAD, STALL, FRAMES = range(12)
CAUSES = ("gc0", "gc1", "gc2", "gc_full", "gc_increment", "gc_own")
RINGS, SHARED = 9, 8
MAGIC = 0x3143415254215754
VERSION = 2
UNKNOWN = 2**64 - 1
MS = 1_000_000
START = 5_000 * 10**9
"""Where the times of the tests begin, ns."""
WALL = 1_790_000_000 * 10**9
"""What the wall clock is ahead of them."""
_HEAD_BYTES = 640 + RINGS * 128
_CLOCKS_FINE, _CLOCKS_EVERY, _CLOCKS_COARSE = 1024, 64, 512
_NAME_BYTES, _NAMES = 128, 512
_TABLE_BYTES = 16 + _NAMES * _NAME_BYTES


def event(time_ns: int, kind: int, *, a: int = 0, b: int = 0, c: int = 0, id: int = 0, value: int = 0) -> bytes:
    """One event, 32 bytes."""
    return struct.pack("=4Q", time_ns, kind | a << 8 | b << 16 | c << 32, id, value)


def clock(mono: int, *, ahead: int = WALL, width: int = 100) -> bytes:
    """A clock snapshot in which CLOCK_REALTIME is so far ahead of CLOCK_MONOTONIC."""
    return struct.pack("=8Q", mono, mono + 10**9, mono + ahead, mono + 2 * 10**9, 2 * mono, width, 0, 0)


@dataclass
class Made:
    """A trace file. rings: its events by ring, the oldest first; those that do not fit are overwritten, as by a
    writer."""

    role: str = "api"
    pid: int = 4242
    place: int = 1
    events: int = 1024
    rings: dict[int, list[bytes]] = field(default_factory=dict)
    labels: Sequence[tuple[str, str]] = (("other", "other"), ("llama", "/v1/completions"))
    steps: Sequence[str] = ("decode", "prefill")
    clocks: Sequence[bytes] = (clock(START), clock(START + 10**9), clock(START + 2 * 10**9))
    tids: dict[int, tuple[int, str]] = field(default_factory=lambda: {0: (4243, "loop")})
    open_pause: tuple[int, int] = (0, 0)
    names: dict[int, str] = field(default_factory=dict)
    frames: dict[int, str] = field(default_factory=dict)
    stalls_lost: int = 0

    def add(self, ring: int, *events: bytes) -> Made:
        """More events."""
        self.rings.setdefault(ring, []).extend(events)
        return self

    def bytes(self) -> bytes:
        """The whole file."""
        size = int(lib.tw_trace_bytes(self.events, len(self.labels)))
        at_clocks = _HEAD_BYTES + 256 * len(self.labels)
        at_stalls = at_clocks + (_CLOCKS_FINE + _CLOCKS_COARSE) * 64
        at_events = -(-(at_stalls + 2 * _TABLE_BYTES) // 4096) * 4096
        made = bytearray(size)
        made[:_HEAD_BYTES] = self._head(size, at_clocks, at_events, at_stalls)
        for at, names in ((at_stalls, self.names), (at_stalls + _TABLE_BYTES, self.frames)):
            for number, name in names.items():
                struct.pack_into("=Q120s", made, at + 16 + number * _NAME_BYTES, 7, name.encode())
        for i, (model, route) in enumerate(self.labels):
            struct.pack_into("128s128s", made, _HEAD_BYTES + 256 * i, model.encode(), route.encode())
        for n, snapshot in enumerate(self.clocks):
            made[(at := at_clocks + n % _CLOCKS_FINE * 64) : at + 64] = snapshot
            if n % _CLOCKS_EVERY == 0:
                made[(at := at_clocks + (_CLOCKS_FINE + n // _CLOCKS_EVERY % _CLOCKS_COARSE) * 64) : at + 64] = snapshot
        for ring, events in self.rings.items():
            self._put(made, at_events, ring, events)
        return bytes(made)

    def _put(self, made: bytearray, at_events: int, ring: int, events: list[bytes]) -> None:
        first, size = self._place(ring)
        for n, each in enumerate(events):
            at = at_events + (first + n % size) * 32
            made[at : at + 32] = each

    def _place(self, ring: int) -> tuple[int, int]:
        half, part = self.events // 2, self.events // 16
        return (0, half) if ring == 0 else (half + (ring - 1) * part, part)

    def _head(self, size: int, at_clocks: int, at_events: int, at_stalls: int) -> bytes:
        words = [MAGIC, VERSION, size, self.events, len(self.labels), _HEAD_BYTES, at_clocks, at_events]
        words += [self.pid, 100, 7, 1, 2, 0, 0]
        head = struct.pack("=15Q", *words) + self.role.encode().ljust(32, b"\0")
        head += struct.pack("=5Q", self.place, 0, *self.open_pause, len(self.labels))
        head += b"".join(name.encode().ljust(32, b"\0") for name in self.steps).ljust(8 * 32, b"\0")
        head += struct.pack("=4Q", len(self.clocks), 0, at_stalls, self.stalls_lost)
        head = head.ljust(640, b"\0")
        for ring in range(RINGS):
            first, count = self._place(ring)
            tid, name = self.tids.get(ring, (0, ""))
            head += struct.pack("=5Q16s", len(self.rings.get(ring, ())), first, count, tid, 0, name.encode()).ljust(
                128, b"\0"
            )
        return head

    def write(self, directory: Path) -> str:
        """The file, under the name of its process."""
        path = directory / f"{self.pid}-100-7.trace"
        path.write_bytes(self.bytes())
        path.chmod(0o600)
        return str(path)


def request(
    number: int, arrival: int, entry: int, tokens: Sequence[int], end: int, *, reason: int = 0, label: int = 1
) -> list[bytes]:
    """The events of one request: when it arrived, was entered, had each token, ended."""
    made = [event(entry, OPEN, a=1, b=label, id=number, value=arrival)]
    last = arrival
    for i, at in enumerate(tokens):
        kind = TOKEN if i else FIRST
        made.append(event(at, kind, b=label if i == 0 else 0, c=1, id=number, value=at - last if i else arrival))
        last = at
    return [*made, event(end, CLOSE, a=reason, b=label, c=len(tokens), id=number, value=arrival)]


def pause(start: int, stop: int, *, cause: int = 2, collected: int = 10, inner: bool = False) -> bytes:
    """A pause."""
    return event(stop, PAUSE, a=cause, b=int(inner), id=start, value=collected)
