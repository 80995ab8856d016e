"""Traces that other tools wrote: whose they are, on which clock their times are, and their events one by one.

torch       Kineto: CLOCK_REALTIME, baseTimeNanoseconds + ts (older ones: us since the epoch)
viztracer   CLOCK_MONOTONIC; viztracer_metadata.baseTimeNanoseconds is what CLOCK_REALTIME was ahead of it
jax         XProf's NAME.trace.json.gz: relative; the NAME.xplane.pb beside it has since when, in CLOCK_REALTIME. Or
            that file itself

Anything else has no clock that could be found out, and is refused. Nothing here is about our own events.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from tailwatch.errors import TailwatchError

REALTIME, MONOTONIC = "REALTIME", "MONOTONIC"
_EPOCH_US = 10**15
_PS = 1000


@dataclass(slots=True)
class ForeignEvent:
    """One event. phase: X, B, E, i, C, s, f. at: ns of the trace's clock. dur: ns, of X. flow: of s and f."""

    phase: str
    at: int
    row: tuple[Any, Any]
    name: str = ""
    category: str = ""
    dur: int = 0
    args: dict[str, Any] = field(default_factory=dict)
    flow: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class ForeignProcess:
    """name: as the tool calls it. real: its number is the kernel's pid."""

    name: str
    real: bool


@dataclass(slots=True)
class Foreign:
    """A trace as it was read. base_ns: what is added to its own times to get those of its clock. processes and threads:
    by the numbers that rows have."""

    path: str
    tool: str
    clock: str
    base_ns: int
    processes: dict[Any, ForeignProcess] = field(default_factory=dict)
    threads: dict[tuple[Any, Any], str] = field(default_factory=dict)
    events: list[ForeignEvent] = field(default_factory=list)
    wall_ahead_ns: int = 0
    """Of a trace in CLOCK_MONOTONIC: what CLOCK_REALTIME was ahead; 0: not given."""
    skipped: int = 0
    """Events that are none: without a time, or of a kind that shows nothing on a timeline."""


def read(path: str) -> Foreign:
    """Read a trace.

    Raises:
        TailwatchError: it cannot be read, or has no clock; with which it could be.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise TailwatchError(f"{path}: {error.strerror}") from None
    if path.endswith(".pb"):
        return _read_xplane(path, content)
    return _read_json(path, _plain(path, content))


def _plain(path: str, content: bytes) -> bytes:
    if not content.startswith(b"\x1f\x8b"):
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise TailwatchError(f"{path}: {error}") from None


def _read_json(path: str, content: bytes) -> Foreign:
    try:
        trace = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise TailwatchError(f"{path}: not JSON ({error}); expected a trace of torch, JAX or viztracer") from None
    events = trace.get("traceEvents") if isinstance(trace, dict) else trace
    if not isinstance(events, list):
        raise TailwatchError(f"{path}: no traceEvents; expected a trace of torch, JAX or viztracer")
    found = _recognise(path, trace if isinstance(trace, dict) else {}, events)
    for event in events:
        if not isinstance(event, dict) or not _take(found, event):
            found.skipped += 1
    return found


def _recognise(path: str, trace: dict[str, Any], events: list[Any]) -> Foreign:
    viztracer = trace.get("viztracer_metadata")
    if isinstance(viztracer, dict):
        ahead = viztracer.get("baseTimeNanoseconds")
        return Foreign(path, "viztracer", MONOTONIC, 0, wall_ahead_ns=ahead if isinstance(ahead, int) else 0)
    base = trace.get("baseTimeNanoseconds")
    if isinstance(base, int):
        return Foreign(path, "torch", REALTIME, base)
    if "schemaVersion" in trace and any(_number(e.get("ts")) > _EPOCH_US for e in events if isinstance(e, dict)):
        return Foreign(path, "torch", REALTIME, 0)
    xplane = _beside(path)
    if xplane is not None:
        return Foreign(path, "jax", REALTIME, _profile_start(str(xplane), xplane.read_bytes()))
    raise TailwatchError(
        f"{path}: the clock of its times is not known: no baseTimeNanoseconds (torch, viztracer), and no "
        "*.xplane.pb beside it (JAX)"
    )


def _beside(path: str) -> Path | None:
    """The xplane file that belongs to a trace.json.gz of XProf."""
    own = Path(path)
    named = own.with_name(own.name.split(".trace.json")[0] + ".xplane.pb")
    if named.exists():
        return named
    others = sorted(own.parent.glob("*.xplane.pb"))
    return others[0] if len(others) == 1 else None


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0


def _ns(us: int | float) -> int:
    """A time of theirs in ns: integers exactly, others to the ns that they were printed with."""
    return us * 1000 if isinstance(us, int) else round(us * 1000)


def _take(found: Foreign, event: dict[str, Any]) -> bool:
    phase, row = event.get("ph"), (event.get("pid", 0), event.get("tid", 0))
    try:
        hash(row)
    except TypeError:
        return False
    args = event.get("args")
    known = args if isinstance(args, dict) else {}
    if phase == "M":
        _describe(found, str(event.get("name")), row, known)
        return True
    at = event.get("ts")
    if not isinstance(at, (int, float)) or at != at or abs(at) > 1e16 or phase not in _PHASES:
        return False
    name, category = str(event.get("name", "")), str(event.get("cat", ""))
    made = ForeignEvent(_PHASES[phase], found.base_ns + _ns(at), row, name, category, args=known)
    if made.phase == "X":
        made.dur = max(0, _ns(_number(event.get("dur"))))
    elif made.phase in "sf":
        made.flow = (made.category, made.name, str(event.get("id", "")))
    found.events.append(made)
    return True


_PHASES = {"X": "X", "B": "B", "E": "E", "i": "i", "I": "i", "C": "C", "s": "s", "f": "f"}


def _describe(found: Foreign, what: str, row: tuple[Any, Any], args: dict[str, Any]) -> None:
    pid, real = row[0], isinstance(row[0], int) and found.tool != "jax"
    process = found.processes.get(pid, ForeignProcess("", real))
    if what == "process_name":
        found.processes[pid] = ForeignProcess(str(args.get("name", "")), process.real)
    elif what == "process_labels":  # of torch: "CPU", or "GPU 0" for the devices, whose pid is their number
        label = str(args.get("labels", ""))
        own = found.tool != "torch" or label == "CPU"
        found.processes[pid] = ForeignProcess(process.name if own else label or process.name, process.real and own)
    elif what == "thread_name":
        found.threads[row] = str(args.get("name", ""))


# ---- xplane.pb: https://github.com/openxla/xla, tsl/profiler/protobuf/xplane.proto


def _fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """A protobuf message's fields: number and value, bytes as a view."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        kind = tag & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield tag >> 3, value
            continue
        if kind == 2:
            size, at = _varint(message, at)
        else:
            size = {1: 8, 5: 4}.get(kind, len(message))
        if at + size > len(message):
            raise ValueError("it ends in the middle of a message")
        yield tag >> 3, message[at : at + size]
        at += size


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(message) and shift < 70:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("it ends in the middle of a number")


def _one(message: memoryview, number: int) -> int | memoryview:
    return next((value for field, value in _fields(message) if field == number), 0)


def _integer(message: memoryview, number: int) -> int:
    value = _one(message, number)
    if not isinstance(value, int):
        return 0
    return value - 2**64 if value >= 2**63 else value


def _text(message: memoryview, number: int) -> str:
    value = _one(message, number)
    return str(value, "utf-8", "replace") if isinstance(value, memoryview) else ""


def _messages(message: memoryview, number: int) -> list[memoryview]:
    return [value for field, value in _fields(message) if field == number and isinstance(value, memoryview)]


def _names(plane: memoryview, number: int) -> dict[int, str]:
    """A map of numbers to metadata: their names."""
    entries = ((_integer(entry, 1), _one(entry, 2)) for entry in _messages(plane, number))
    return {key: _text(value, 2) for key, value in entries if isinstance(value, memoryview)}


def _profile_start(path: str, content: bytes) -> int:
    """When the profile began: ns of CLOCK_REALTIME.

    Raises:
        TailwatchError: the file does not have it.
    """
    try:
        for plane in _messages(memoryview(content), 1):
            names = _names(plane, 5)
            for stat in _messages(plane, 6):
                if names.get(_integer(stat, 1)) == "profile_start_time":
                    return _integer(stat, 3) or _integer(stat, 4)
    except ValueError as error:
        raise TailwatchError(f"{path}: {error}") from None
    raise TailwatchError(f"{path}: it does not have when the profile began (profile_start_time)")


def _read_xplane(path: str, content: bytes) -> Foreign:
    found = Foreign(path, "jax", REALTIME, _profile_start(path, content))
    try:
        for number, plane in enumerate(_messages(memoryview(content), 1)):
            _take_plane(found, number, plane)
    except ValueError as error:
        raise TailwatchError(f"{path}: {error}") from None
    return found


def _take_plane(found: Foreign, number: int, plane: memoryview) -> None:
    names = _names(plane, 4)
    found.processes[number] = ForeignProcess(_text(plane, 2), real=False)
    for at, line in enumerate(_messages(plane, 3)):
        row = (number, at)
        found.threads[row] = _text(line, 11) or _text(line, 2)
        start_ns = found.base_ns + _integer(line, 3)
        for event in _messages(line, 4):
            begin_ps, length_ps = _integer(event, 2), _integer(event, 3)
            name = names.get(_integer(event, 1), "")
            found.events.append(ForeignEvent("X", start_ns + begin_ps // _PS, row, name, dur=max(0, length_ps // _PS)))
