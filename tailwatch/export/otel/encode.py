"""A snapshot as an OTLP request, encoded by the core."""

from __future__ import annotations

from typing import NamedTuple

from tailwatch._cold import ffi, lib
from tailwatch.export.core_metrics import LoadGauges, metrics_info
from tailwatch.snapshots import Snapshot
from tailwatch.snapshots.core_values import check, utf8


class Own(NamedTuple):
    """What an exporter did, since it began: rounds, spans of requests, and the longest piece of work under the GIL.

    start_unix_ns: when it began; 0: with the numbers.
    """

    exported: int = 0
    failed: int = 0
    skipped: int = 0
    spans: int = 0
    spans_dropped: int = 0
    span_events_dropped: int = 0
    hold_ns: int = 0
    start_unix_ns: int = 0


_NOTHING_YET = Own()


def operation(route: str) -> str:
    """gen_ai.operation.name of a route."""
    text: bytes = ffi.string(lib.tw_otlp_operation(utf8(route)))
    return text.decode()


def otlp(
    snapshot: Snapshot,
    since: Snapshot | None = None,
    *,
    version: str,
    python: str = "",
    slo: str = "",
    extra_bytes: int = 0,
    registry_seconds: float = -1.0,
    load: LoadGauges | None = None,
    provider: str,
    server: tuple[str, int] = ("", 0),
    resource: bytes,
    schema_url: str = "",
    start_ns: int,
    since_ns: int = 0,
    delta_histograms: bool = False,
    delta_sums: bool = False,
    exponential: bool = True,
    own: Own = _NOTHING_YET,
    own_since: Own = _NOTHING_YET,
    max_buckets: int = 160,
    goodput_window: int = 60,
) -> bytes:
    """An OTLP ExportMetricsServiceRequest; encoded without the GIL.

    since: the snapshot of the export before, for what is delta; None: there was none. start_ns, since_ns: when counting
    began, and when ``since`` was taken, nanoseconds of the Unix epoch. provider: gen_ai.provider.name. server: its
    address and port; "": not known, 0: there is no port. resource: a Resource message. max_buckets: of an exponential
    histogram. Others: see render.render.
    """
    part = snapshot if since is None else snapshot - since
    metrics, held = metrics_info(version, python, slo, extra_bytes, registry_seconds, goodput_window, load)
    texts = [ffi.new("char[]", text.encode("utf-8", "replace")) for text in (provider, schema_url, server[0])]
    content = ffi.from_buffer(resource)
    info = ffi.new(
        "tw_otlp_info *",
        {
            "metrics": metrics,
            **dict(zip(("provider", "resource_schema_url", "server_address"), texts, strict=True)),
            "server_port": server[1],
            **{"resource": content, "resource_len": len(resource)},
            **{"start_unix_ns": start_ns, "since_unix_ns": since_ns or start_ns},
            "time_unix_ns": snapshot._core.taken.realtime_ns,
            **{"delta_histograms": delta_histograms, "delta_sums": delta_sums, "exponential": exponential},
            "max_buckets": max_buckets,
            **{"own": own._asdict(), "own_since": own_since._asdict()},
        },
    )
    buffer = ffi.gc(ffi.new("tw_buffer *"), lib.tw_buffer_free)
    check(
        lib.tw_otlp_metrics(snapshot._core, part._core, info, buffer), "max_buckets", max_buckets, "expected at least 2"
    )
    del held
    return bytes(ffi.buffer(buffer.data, buffer.length))
