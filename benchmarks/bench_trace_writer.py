"""What does a trace cost to write, once it is asked for?

The encoder alone (points in an array to bytes), against a memcpy of what it wrote, the builder of the PyPI package
perfetto and Chrome's JSON by f-strings; a whole export of a trace file, nine tenths of it tokens; and the bytes of each
kind of point.
"""

from __future__ import annotations

import os
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import Bar, Report, Run, Samples, bar_of, main, measure

from tailwatch._cold import ffi, lib
from tailwatch.tracing import perfetto
from tailwatch.tracing.track_writer import BEGIN, END, INSTANT, SLICES, Timeline

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

START = 5_000 * 10**9
ENCODER, MEMCPY = "our encoder, one token", "memcpy of its bytes"
BUILDER, STRINGS = "perfetto's TraceProtoBuilder, one token", "Chrome JSON by f-strings, one token"
ROWS, APART_NS = 64, 150_000
BATCH = 200_000


def tokens(n: int, timeline: Timeline) -> Any:
    """n token instants on the rows of 64 requests, as one array."""
    sequence = timeline.sequence()
    name = timeline.name("token")
    rows = [timeline.track(SLICES, "requests", sequence=sequence) for _ in range(ROWS)]
    points = ffi.new("tw_point[]", n)
    for i in range(n):
        point = points[i]
        point.at_ns, point.track, point.name, point.type = START + i * APART_NS, rows[i % ROWS], name, INSTANT
    return points


def encoder(n: int) -> tuple[Run, Callable[[], float]]:
    """Writes n tokens to /dev/null; and how many bytes a token took."""
    sink = os.open(os.devnull, os.O_WRONLY)
    timeline = Timeline(sink)
    points = tokens(n, timeline)
    size = [0.0]

    def run(_: int) -> float:
        before, start = lib.tw_timeline_bytes(timeline.core), time.perf_counter_ns()
        lib.tw_timeline_points(timeline.core, points, n, ffi.NULL, 0, ffi.NULL, 0)
        took = time.perf_counter_ns() - start
        size[0] = (lib.tw_timeline_bytes(timeline.core) - before) / n
        shift(points, n)  # times never go back
        return took / n

    return run, lambda: size[0]


def shift(points: Any, n: int) -> None:
    """All of them later by the whole batch."""
    import numpy

    words = numpy.frombuffer(ffi.buffer(points), dtype=numpy.uint64).reshape(n, -1)
    words[:, 0] += numpy.uint64(n * APART_NS)


def memcpy(n: int, size: Callable[[], float]) -> Run:
    """Copies as many bytes as n tokens took, in chunks of the same size."""
    chunk = lib.TW_TIMELINE_CHUNK
    source = ffi.new("char[]", chunk)
    target = ffi.new("char[]", chunk)

    def run(_: int) -> float:
        times = max(1, round(n * size() / chunk))
        start = time.perf_counter_ns()
        for _ in range(times):
            ffi.memmove(target, source, chunk)
        return (time.perf_counter_ns() - start) / (times * chunk) * size()

    return run


def builder() -> Run:
    """The same tokens by the PyPI package."""
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TrackEvent
    from perfetto.trace_builder.proto_builder import TraceProtoBuilder

    def run(n: int) -> float:
        start = time.perf_counter_ns()
        trace = TraceProtoBuilder()
        for i in range(n):
            packet = trace.add_packet()
            packet.timestamp = START + i * APART_NS
            packet.trusted_packet_sequence_id = 1
            packet.track_event.type = TrackEvent.TYPE_INSTANT
            packet.track_event.track_uuid = i % ROWS + 1
            packet.track_event.name = "token"
        trace.serialize()
        return (time.perf_counter_ns() - start) / n

    return run


def strings(n: int) -> float:
    """The same tokens as Chrome's JSON."""
    start = time.perf_counter_ns()
    lines = [
        f'{{"ph":"n","cat":"request","name":"token","id":{i % ROWS},"pid":1,"tid":1,'
        f'"ts":{(START + i * APART_NS) / 1000:.3f}}}'
        for i in range(n)
    ]
    ",\n".join(lines).encode()
    return (time.perf_counter_ns() - start) / n


def sizes() -> dict[str, float]:
    """Bytes of each kind of point, where its names are known."""
    with open(os.devnull, "wb") as sink:
        timeline = Timeline(sink.fileno())
        sequence, name = timeline.sequence(), timeline.name("token")
        row = timeline.track(SLICES, "requests", sequence=sequence)
        found: dict[str, float] = {}

        def took(*points: tuple[Any, ...]) -> float:
            timeline.flush()
            before = lib.tw_timeline_bytes(timeline.core)
            for point in points:
                timeline.point(*point)
            timeline.flush()
            return float(lib.tw_timeline_bytes(timeline.core) - before)

        took((START, row, INSTANT, name, 0, ((name, 1),)))
        at = START + 1_000_000
        found["an instant"] = took((at, row, INSTANT, name))
        args = ((name, 3), (name, 9999))
        found["an instant with two arguments"] = took((at + 15_000_000, row, INSTANT, name, 0, args))
        slice_of = ((at + 30_000_000, row, BEGIN, name, 0, (), (7,)), (at + 45_000_000, row, END))
        found["a slice with an arrow"] = took(*slice_of)
        timeline.free()
    return found


def file_of(events: int, directory: Path) -> str:
    """A trace file with so many events in its first ring, nine tenths of them tokens."""
    from tracing.made import Made, request

    path = directory / "4242-100-7.trace"
    made = Made(events=2 * (events + 64), rings={})
    per = 18
    tokens_each = per - 2
    stamps = [START + (i + 1) * APART_NS for i in range(tokens_each)]
    template: list[bytes] = request(1, START, START, stamps, START + per * APART_NS)
    count = events // len(template)
    import numpy

    words = numpy.frombuffer(b"".join(template) * count, dtype=numpy.uint64).reshape(count, len(template), 4).copy()
    number = numpy.arange(count, dtype=numpy.uint64)[:, None]
    later = number * numpy.uint64(per * APART_NS // 2)
    words[:, :, 0] += later
    words[:, :, 2] += number
    for at in (0, 1, len(template) - 1):  # their arrival
        words[:, at, 3] += later[:, 0]
    flat = words.reshape(-1, 4)
    flat = flat[numpy.argsort(flat[:, 0], kind="stable")]
    empty = bytearray(made.bytes())
    at_events = len(empty) - (made.events * 32 + 4095) // 4096 * 4096
    empty[at_events : at_events + flat.nbytes] = flat.tobytes()
    struct.pack_into("=Q", empty, 640, len(flat))
    path.write_bytes(empty)
    path.chmod(0o600)
    return str(path)


def export(events: int, repeats: int) -> tuple[list[float], float]:
    """Seconds of an export of so many events to /dev/null, each time; and bytes an event."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as directory:
        path = file_of(events, Path(directory))
        sink = os.open(os.devnull, os.O_WRONLY)
        seconds = []
        for _ in range(repeats):
            start = time.perf_counter()
            written = perfetto.write(sink, [path])
            seconds.append((time.perf_counter() - start) / written.events * events)
        os.close(sink)
    return seconds, written.bytes / written.events


def report(quick: bool) -> Report:
    """Everything."""
    n = 20_000 if quick else BATCH
    run, size = encoder(n)
    cases: dict[str, Run] = {ENCODER: run, MEMCPY: memcpy(n, size), BUILDER: builder(), STRINGS: strings}
    numbers = {ENCODER: n, MEMCPY: n, BUILDER: n // 20, STRINGS: n // 20}
    samples = measure(cases, number=numbers, repeats=3 if quick else 21)
    made = Report("What does a trace cost to write, once it is asked for?", samples.calls())
    made.bars += timing(samples)
    bars = {"an instant": 22, "an instant with two arguments": 36, "a slice with an arrow": 64}
    made.bars += [Bar(f"bytes of {name}", found, found, found, bars[name], unit="B") for name, found in sizes().items()]
    events = 10**5 if quick else 10**7
    seconds, each = export(events, 2 if quick else 5)
    made.bars.append(bar_of(f"export of {events:,} events, 90 % tokens", seconds, bar=1.0, unit="s"))
    made.bars.append(Bar("  of it, the fastest", min(seconds), min(seconds), min(seconds), 1.0, unit="s"))
    made.notes.append(f"bytes of an event in that export: {each:.1f}")
    return made


def timing(samples: Samples) -> list[Bar]:
    """Of the encoder."""
    fastest = min(samples.values(ENCODER))
    return [
        samples.ratio(ENCODER, MEMCPY, label=f"{ENCODER} / {MEMCPY} (bar: 2.5, or the next)"),
        Bar(ENCODER, fastest, fastest, fastest, 15.0, unit="ns"),
        samples.ratio(BUILDER, ENCODER, bar=50, at_least=True),
        samples.ratio(STRINGS, ENCODER, bar=20, at_least=True),
    ]


def test_quick() -> None:
    """It runs."""
    assert report(True).bars


if __name__ == "__main__":
    main(report)
