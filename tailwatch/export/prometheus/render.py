"""A snapshot in the formats that Prometheus reads, rendered by the core."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tailwatch._cold import ffi, lib
from tailwatch.snapshots import Point, Snapshot
from tailwatch.snapshots.core_values import check

KINDS = {
    "text": lib.TW_FORMAT_TEXT,
    "openmetrics": lib.TW_FORMAT_OPENMETRICS,
    "protobuf": lib.TW_FORMAT_PROTOBUF,
    "protobuf_native": lib.TW_FORMAT_PROTOBUF_NATIVE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadGauges:
    """What render() writes for routers; None: not known. Streams, seconds, shares; see loadsignal.LoadSignal."""

    running: float
    waiting: float
    healthy: float | None
    confidence: float | None
    ratio: float | None
    utilization: float | None
    headroom: float | None
    predicted_s: float | None
    within_slo: bool | None
    verdict: str
    points: Sequence[Point]


def _gauges(load: LoadGauges) -> tuple[Any, list[Any]]:
    """As C takes them, and what must live as long."""
    points = ffi.new("tw_crowd_point[]", [tuple(point) for point in load.points])
    verdict = ffi.new("char[]", load.verdict.encode())
    names = (
        "running",
        "waiting",
        "healthy",
        "confidence",
        "ratio",
        "utilization",
        "headroom",
        "predicted_s",
        "within_slo",
    )
    values = {name: -1.0 if (value := getattr(load, name)) is None else float(value) for name in names}
    made = {**values, "verdict": verdict, "points": points, "point_count": len(points)}
    return ffi.new("tw_load_gauges *", made), [points, verdict]


def render(
    snapshot: Snapshot,
    *,
    version: str,
    python: str,
    slo: str,
    extra_bytes: int = 0,
    registry_seconds: float = -1.0,
    goodput_window: int = 60,
    kind: str = "text",
    load: LoadGauges | None = None,
) -> memoryview:
    """Every family of ours in one of KINDS: Prometheus text 0.0.4, OpenMetrics 1.0 without its closing # EOF, delimited
    protobuf with native and classic histograms, or with native ones alone. Not copied.

    slo: the text the user gave. extra_bytes: memory outside segments. registry_seconds: what rendering the host's
    own registry took last; below 0: there is none. goodput_window: seconds. load: None leaves those families out.
    """
    gauges, held = _gauges(load) if load is not None else (ffi.NULL, [])
    texts = [ffi.new("char[]", text.encode()) for text in (version, python, slo)]
    info = ffi.new(
        "tw_exposition_info *",
        {
            **dict(zip(("version", "python", "slo"), texts, strict=True)),
            "extra_bytes": extra_bytes,
            "registry_seconds": registry_seconds,
            "goodput_window_s": goodput_window,
            "load": gauges,
        },
    )
    buffer = ffi.gc(ffi.new("tw_buffer *"), lib.tw_buffer_free)
    check(lib.tw_exposition_render(snapshot._core, info, KINDS[kind], buffer), "snapshot", snapshot, "")
    del held
    data = ffi.gc(buffer.data, lambda _, owner=buffer: None)  # the bytes live as long as a view of them
    return memoryview(ffi.buffer(data, buffer.length))
