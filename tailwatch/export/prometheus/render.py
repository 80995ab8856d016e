"""A snapshot in the formats that Prometheus reads, rendered by the core."""

from __future__ import annotations

from tailwatch._cold import ffi, lib
from tailwatch.export.core_metrics import LoadGauges, metrics_info
from tailwatch.snapshots import Snapshot
from tailwatch.snapshots.core_values import check

KINDS = {
    "text": lib.TW_FORMAT_TEXT,
    "openmetrics": lib.TW_FORMAT_OPENMETRICS,
    "protobuf": lib.TW_FORMAT_PROTOBUF,
    "protobuf_native": lib.TW_FORMAT_PROTOBUF_NATIVE,
}


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
    metrics, held = metrics_info(version, python, slo, extra_bytes, registry_seconds, goodput_window, load)
    info = ffi.new("tw_metrics_info *", metrics)
    buffer = ffi.gc(ffi.new("tw_buffer *"), lib.tw_buffer_free)
    check(lib.tw_exposition_render(snapshot._core, info, KINDS[kind], buffer), "snapshot", snapshot, "")
    del held
    data = ffi.gc(buffer.data, lambda _, owner=buffer: None)  # the bytes live as long as a view of them
    return memoryview(ffi.buffer(data, buffer.length))
