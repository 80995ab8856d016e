"""The metrics that are exported, and what is exported beside a snapshot, as the core takes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tailwatch._cold import ffi, lib
from tailwatch.snapshots import Point


class Metric(NamedTuple):
    """A metric that is exported: its family in Prometheus (a counter without _total), its name in OTLP (None: not
    exported there), its kind in Prometheus, its unit as OTLP has it, and its description."""

    prometheus: str | None
    otlp: str | None
    kind: str
    unit: str
    help: str


_KINDS = {
    lib.TW_INSTRUMENT_COUNTER: "counter",
    lib.TW_INSTRUMENT_UP_DOWN: "gauge",
    lib.TW_INSTRUMENT_GAUGE: "gauge",
    lib.TW_INSTRUMENT_HISTOGRAM: "histogram",
    lib.TW_INSTRUMENT_INFO: "info",
}


def metrics() -> tuple[Metric, ...]:
    """All of them: csrc/export/metrics.c."""
    count = ffi.new("size_t *")
    rows = lib.tw_instruments(count)

    def text(found: Any) -> str | None:
        return None if found == ffi.NULL else ffi.string(found).decode()

    return tuple(
        Metric(text(row.prometheus), text(row.otlp), _KINDS[row.kind], text(row.unit) or "", text(row.help) or "")
        for row in (rows[i] for i in range(count[0]))
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadGauges:
    """What is exported for routers; None: not known. Streams, seconds, shares; see load_signal.LoadSignal."""

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
    points = ffi.new("tw_ttft_point[]", [tuple(point) for point in load.points])
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


def metrics_info(
    version: str,
    python: str,
    slo: str,
    extra_bytes: int,
    registry_seconds: float,
    goodput_window: int,
    load: LoadGauges | None,
) -> tuple[dict[str, Any], list[Any]]:
    """tw_metrics_info, and what must live as long."""
    gauges, held = _gauges(load) if load is not None else (ffi.NULL, [])
    texts = [ffi.new("char[]", text.encode("utf-8", "replace")) for text in (version, python, slo)]
    return {
        **dict(zip(("version", "python", "slo"), texts, strict=True)),
        "extra_bytes": extra_bytes,
        "registry_seconds": registry_seconds,
        "goodput_window_s": goodput_window,
        "load": gauges,
    }, [gauges, held, texts]
