"""Constructs what publishes the numbers of a process: exposition, page, OTLP exporter, metrics port, and the hook of
the ASGI layer. What they read of a Watch is `Source`; each gets callables, and imports nothing of the others.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from tailwatch import _hot, snapshots
from tailwatch.asgi import middleware
from tailwatch.asgi.metrics_append import MetricsAppend
from tailwatch.asgi.response_headers import Annotator
from tailwatch.asgi.routes import Routes
from tailwatch.export.otel import asked_for
from tailwatch.group.membership import GroupMember
from tailwatch.options.config import Config
from tailwatch.platform import VERSION
from tailwatch.runtime.load_signal import LoadMeter
from tailwatch.serve.metrics_port import MetricsPort

if TYPE_CHECKING:  # what publishes is imported where it is made: most processes of a server publish nothing
    from tailwatch.diagnose.finding import DiagnosisContext
    from tailwatch.export.otel.exporter import OTel
    from tailwatch.export.page import Page
    from tailwatch.export.prometheus.exposition import Exposition, Response
    from tailwatch.serve.http_server import MetricsServer

# As enums.h has them.
ERROR_ASGI, ERROR_GC_HOOK, ERROR_POLICY, ERROR_DAEMON, ERROR_RENDER, ERROR_REGISTRY, ERROR_GROUP = range(7)
_DROP_APPEND = snapshots.DROPS.index("metrics_append")
_GOODPUT_WINDOW = 60
_PART_BYTES = 65536
_LEAST_TOKEN = 16  # characters


class Source(Protocol):
    """What is read of a Watch. ``config`` and ``history`` may be other ones later."""

    config: Config
    core: _hot.Core
    membership: GroupMember
    history: snapshots.History
    load: LoadMeter
    notes: list[str]

    def snapshot(self, window: str | None = None) -> snapshots.Snapshot:
        """All numbers since install."""

    def context(self) -> DiagnosisContext:
        """What the doctor needs beside the numbers."""


def make_exposition(source: Source, extra_bytes: Callable[[], int]) -> Exposition:
    """The metrics page. extra_bytes: gives the memory that the core does not count."""
    from tailwatch.export.prometheus.exposition import Exposition

    return Exposition(
        source.snapshot,
        version=VERSION,
        python=sys.version.split()[0],
        slo=lambda: source.config.slo.text,
        extra_bytes=extra_bytes,
        goodput_window=_GOODPUT_WINDOW,
        on_registry_error=lambda: source.core.count_error(ERROR_REGISTRY),
        histograms=lambda: source.config.histograms,
        on_declined=lambda reason: source.core.count_drop(snapshots.DROPS.index(f"protobuf_{reason}")),
        load=source.load.gauges,
    )


def make_page(source: Source) -> Page:
    """The live page at /tailwatch."""
    from tailwatch.diagnose.rules import headline
    from tailwatch.export.page import Page

    return Page(
        source.snapshot,
        lambda now, seconds: source.history.window(now, seconds),
        lambda now, seconds: source.history.window_of_labels(now, seconds),
        lambda window: headline(window, source.context()),
        lambda: source.config.slo.text,
        VERSION,
        lambda: source.config.page_token if source.config.page else None,
        source.load.read,
    )


def make_otel(source: Source, info: Callable[[], dict[str, Any]]) -> OTel | None:
    """The OTLP exporter; None: neither the option nor a variable asks for it."""
    if not asked_for(source.config.otel, os.environ):
        return None
    from tailwatch.export.otel.exporter import OTel

    membership = source.membership
    return OTel(
        source.config.otel,
        source.snapshot,
        lambda: "" if membership.alone else membership.directory or None,
        middleware.current_request,
        info=info,
        version=VERSION,
        count_drop=source.core.count_drop,
        note=source.notes.append,
    )


def make_port(
    source: Source, exposition: Callable[[], Exposition], page: Callable[[], Page], taken: Callable[[str], object]
) -> MetricsPort:
    """The listener of ``metrics_port``. taken: called with a sentence where the port is not free."""

    def serve(port: int) -> MetricsServer:
        from tailwatch.export.prometheus.exposition import serve_http

        return serve_http(port, exposition(), on_error=lambda: source.core.count_error(ERROR_RENDER), page=page())

    return MetricsPort(
        source.config.metrics_port,
        serve,
        lambda: source.membership.directory,
        source.notes.append,
        taken,
    )


def make_hook(
    source: Source,
    routes: Routes,
    exposition: Exposition,
    page: Page,
    *,
    on_request: Callable[[], object],
    on_startup: Callable[[], object],
    is_ready: Callable[[], bool],
    on_idle: Callable[[], object],
    carries: Callable[[], bool],
) -> middleware.Hook:
    """What the ASGI layer calls and serves."""
    return middleware.Hook(
        core=source.core,
        routes=routes,
        trust_request_start=source.config.trust_request_start,
        metrics=exposition.respond,
        append=MetricsAppend(
            series=lambda: source.config.metrics_append,
            takes=_format_of,
            append=exposition.append,
            missed=lambda: source.core.count_drop(_DROP_APPEND),
        ),
        snapshot=lambda query: _snapshot_answer(source, query),
        page=page,
        metrics_path=source.config.metrics_path,
        on_request=on_request,
        on_startup=on_startup,
        is_ready=is_ready,
        on_idle=on_idle,
        on_error=lambda: source.core.count_error(ERROR_ASGI),
        carries=carries,
        annotator=_annotator(source),
    )


def _format_of(content_type: str, content_encoding: str) -> str | None:
    from tailwatch.export.prometheus.append import format_of

    return format_of(content_type, content_encoding)


def _snapshot_answer(source: Source, query: str) -> Response:
    """query: "window=10m" or "": since install."""
    import json
    from urllib.parse import parse_qsl

    from tailwatch.export.prometheus.exposition import Response

    window = dict(parse_qsl(query)).get("window")
    numbers = {"snapshot": source.snapshot(window).as_dict(), "context": source.context().as_dict()}
    body = json.dumps({**numbers, "directory": source.membership.directory}).encode()
    parts = tuple(body[i : i + _PART_BYTES] for i in range(0, len(body), _PART_BYTES))
    return Response("application/json", "", parts)


def _annotator(source: Source) -> Annotator | None:
    """None: nothing is asked for, and nothing stands before the server's send."""
    config = source.config
    if config.orca == "off" and not (config.server_timing or config.sse_timing):
        return None
    from tailwatch.export import orca

    return Annotator(
        load=None if config.orca == "off" else lambda form: orca.report(source.load.read(), form),
        load_header=orca.HEADER,
        load_format_header=orca.FORMAT_HEADER,
        load_form="" if config.orca == "request" else config.orca,
        server_timing=config.server_timing,
        sse_timing=config.sse_timing,
        on_error=lambda: source.core.count_error(ERROR_ASGI),
    )


def page_notes(config: Config) -> list[str]:
    """What the doctor is to report of the page's options."""
    token = config.page_token
    if token and not config.page:
        return ["page_token is set, but page is off: /tailwatch is not served"]
    if token and len(token) < _LEAST_TOKEN:
        hint = "`openssl rand -hex 16` makes a safe one"
        return [f"page_token has only {len(token)} characters and can be guessed; {hint}"]
    return []
