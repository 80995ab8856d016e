"""The options of install() and Middleware as editors and type checkers see them; docs/options.md has them in full."""

from __future__ import annotations

import os
from collections.abc import Sequence, Set
from typing import Literal, TypedDict

from tailwatch.gc.memory_limit import MemoryLimit
from tailwatch.options.slo import SLO
from tailwatch.options.trace_triggers import Keep, Triggers


class Options(TypedDict, total=False):
    """Keyword arguments of install() and Middleware. None, and what is left out, is as TAILWATCH_<NAME> has it, or the
    default."""

    slo: str | SLO | None
    """Bounds of a good request, "ttft<=500ms,tpot<=40ms@99%", or a preset."""
    gc: Literal["auto", "freeze", "idle", "observe", "off"] | None
    """Policy of the collector: "auto" is chosen by measurement, "observe" only measures, "off" has no hook."""
    gc_memory_limit: str | MemoryLimit | None
    """With gc="idle": "rss=+256MB", "rss=8GiB", "objects=2000000"; above it, collections are forced."""
    gc_warn_ms: float | None
    """Log each pause of at least this many milliseconds; 0: off."""
    gc_log_all: bool | None
    """Log each pause."""
    slow_gap_ms: float | None
    """Log each gap of at least this many milliseconds; 0: off."""
    stalls: Literal["auto", "clock", "off"] | None
    """What an event loop's thread did: "auto" with samples of busy loops, "clock" without, "off" nothing."""
    metrics_path: str | None
    """Path of the metrics in an app, "/metrics"; "": not served."""
    metrics_append: bool | int | None
    """Let this many series follow the app's own metrics at that path; True: 200."""
    metrics_port: int | None
    """Loopback TCP port of the metrics in a process without an app; 0: none."""
    histograms: Literal["both", "native", "classic"] | None
    """What a Prometheus that requests native histograms receives."""
    exemplars: bool | None
    """Trace ids in histogram buckets."""
    role: str | None
    """Name of this process in metrics, at most 31 characters."""
    engine: str | int | None
    """The engine that this process works for, or that serves its streams, by number or name."""
    routes: str | Sequence[str] | Set[str] | None
    """Further routes that generate tokens, as templates: ["/chat/{user}"]."""
    max_label_sets: int | None
    """Pairs of model and route with their own series, 1 to 4096."""
    page: bool | None
    """Serve the live page at /tailwatch."""
    page_token: str | None
    """Token that the page requires; "": none, loopback clients only."""
    trust_request_start: bool | None
    """Trust a proxy's X-Request-Start or X-Queue-Start header."""
    fast_sse: bool | None
    """Write the streams of known servers by templates."""
    orca: bool | Literal["off", "request", "text", "json"] | None
    """The load in the response header endpoint-load-metrics."""
    server_timing: bool | None
    """A Server-Timing header with the waits before the response."""
    sse_timing: bool | None
    """A comment with TTFT, ITL and delay after the last event of a stream."""
    quiet: bool | None
    """No line at INFO when the server starts."""
    dir: str | os.PathLike[str] | None
    """Shared-memory directory of the process group, an absolute path; "": no group."""
    nvtx: bool | Literal["auto", "on", "off"] | None
    """NVTX ranges: "auto" where a tool is attached."""
    nvtx_tokens: bool | None
    """A mark for each message of tokens."""
    trace_events: int | None
    """Room for this many events in the process, 256 to 2**28; 0: none are recorded."""
    trace_on: str | Triggers | None
    """Keep the seconds around "gap>100ms", "ttft>1s" or "slo" as a file; "": never."""
    trace_keep: str | Keep | None
    """Number and total size of the trace files that are kept: "5,100MB"."""
    otel: object
    """OTLP export: True, False, a MetricExporter, a MeterProvider, or several; None: as the OTEL_* variables ask."""
