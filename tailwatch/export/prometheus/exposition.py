"""Metrics for Prometheus: text 0.0.4, OpenMetrics 1.0, and protobuf with native histograms.

Our own families are rendered in C without the GIL; the host's own prometheus_client registry follows them. All
of it runs on the calling thread, which must be a worker.
"""

from __future__ import annotations

import re
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tailwatch import snapshots
from tailwatch.export.core_metrics import LoadGauges, metrics
from tailwatch.export.prometheus import append
from tailwatch.export.prometheus.app_registry_cache import HostCache
from tailwatch.export.prometheus.negotiation import OPENMETRICS, PROTOBUF, Format, choose, wants_gzip
from tailwatch.export.prometheus.render import render

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric
    from prometheus_client.samples import Exemplar

    from tailwatch.export.page import Page
    from tailwatch.serve.http_server import MetricsServer

PART_BYTES = 64 * 1024
"""No part of a response is larger, so that a loop that sends it is never away for long."""

GENTLE_SECONDS = 0.0002
"""A thread that renders lets others run after so much work."""

OWN_FAMILIES = frozenset(metric.prometheus for metric in metrics() if metric.prometheus)
"""Our families by their OpenMetrics names (a counter without _total)."""


@dataclass(frozen=True)
class Response:
    """What to answer a scrape with."""

    content_type: str
    encoding: str
    """`gzip`, or empty."""
    parts: tuple[bytes, ...]
    """The body, in parts of at most PART_BYTES."""

    @property
    def headers(self) -> list[tuple[str, str]]:
        """Content-Type, Content-Length and, where it applies, Content-Encoding."""
        headers = [("Content-Type", self.content_type), ("Content-Length", str(sum(map(len, self.parts))))]
        return [*headers, ("Content-Encoding", self.encoding)] if self.encoding else headers


class Exposition:
    """Answers scrapes. Its methods block: call them on any thread but one that runs an event loop.

    take: gives the numbers. slo: gives the text of the bounds in force. extra_bytes: gives the memory outside the
    segments. goodput_window: seconds, 1 to 3600. on_registry_error: called for each thing of the host's own registry
    that could not be served. registry: whether that registry is served at all.

    histograms: what the scrapers get that ask for protobuf. "both": native histograms and the classic buckets;
    "native": native ones alone; "classic": they get OpenMetrics or text, as those do that do not ask: those
    formats have no native histograms, and always have the classic buckets. on_declined: called with a reason
    (host_cache.FAMILY, SLOW) for each scrape that asked for protobuf and got text because of the host's registry.
    """

    def __init__(
        self,
        take: Callable[[], snapshots.Snapshot],
        *,
        version: str,
        python: str,
        slo: Callable[[], str],
        extra_bytes: Callable[[], int] = int,
        goodput_window: int = 60,
        on_registry_error: Callable[[], object] = lambda: None,
        registry: bool = True,
        histograms: Callable[[], str] = lambda: "both",
        on_declined: Callable[[str], object] = lambda reason: None,
        load: Callable[[], LoadGauges | None] = lambda: None,
    ) -> None:
        self._take = take
        self._load = load
        self._slo = slo
        self._version = version
        self._fixed = {"python": python, "goodput_window": goodput_window}
        self._extra_bytes = extra_bytes
        self._histograms = histograms
        own = (OWN_FAMILIES, lambda collector: isinstance(collector, Collector))
        self._host = HostCache(*own, on_registry_error, on_declined) if registry else None
        self.after_fork()

    def after_fork(self) -> None:
        """In a fork child: forget what the parent's threads had begun."""
        self._shared: dict[tuple[Format, str, bool], _Shared] = {}
        if self._host:
            self._host.after_fork()

    def render(self, accept: str = "") -> tuple[str, bytes]:
        """Content type and whole body for an Accept header. Raises what `take` raises."""
        response = self.respond(accept)
        return response.content_type, b"".join(response.parts)

    def respond(self, accept: str = "", accept_encoding: str = "") -> Response:
        """The answer to a scrape. Scrapes that wait for one another share one render. Raises what `take` raises."""
        histograms = self._histograms()
        form = choose(accept, protobuf=histograms != "classic")
        host = self._host.protobuf(form) if self._host and form.name == PROTOBUF else []
        if host is None:
            form = choose(accept, protobuf=False)
        gzip = wants_gzip(accept_encoding)
        kind = "protobuf_native" if form.name == PROTOBUF and histograms == "native" else form.name
        shared = self._shared.setdefault((form, kind, gzip), _Shared())
        return shared.get(lambda: self._respond(form, kind, gzip, host))

    def append(self, host: bytes, content_type: str, content_encoding: str, series: int) -> tuple[bytes, ...] | None:
        """An app's own exposition with ours behind it: see append.append. Raises what `take` raises."""
        pieces = append.append(host, content_type, content_encoding, self.own, series)
        return None if pieces is None else tuple(_parts(_gently(_cuts(pieces))))

    def own(self, kind: str = "text") -> memoryview:
        """Our own families only, without the closing # EOF. kind: see render.render."""
        return render(self._take(), version=self._version, **self.info(), kind=kind)

    def info(self) -> dict[str, Any]:
        """What is exported beside the snapshot, but for our version: see render.render."""
        seconds = self._host.seconds if self._host else -1.0
        changing = {"extra_bytes": self._extra_bytes(), "slo": self._slo(), "load": self._load()}
        return {**self._fixed, **changing, "registry_seconds": seconds}

    def _respond(self, form: Format, kind: str, gzip: bool, host: list[bytes] | None) -> Response:
        pieces = self._pieces(form, kind, host)
        parts = tuple(_compressed(pieces) if gzip else _parts(_gently(_cuts(pieces))))
        return Response(form.content_type, "gzip" if gzip else "", parts)

    def _pieces(self, form: Format, kind: str, host: list[bytes] | None) -> Iterator[bytes | memoryview]:
        """The host's families are rendered first, so that our own include how long that took."""
        if form.name != PROTOBUF:
            host = self._host.text(form) if self._host else []
        yield self.own(kind)
        yield from host or ()
        if form.name == OPENMETRICS:
            yield b"# EOF\n"


class _Shared:
    """One render at a time: a scrape that comes while one runs takes its result."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: Future[Response] | None = None

    def get(self, make: Callable[[], Response]) -> Response:
        with self._lock:
            running, mine = self._running, Future[Response]()
            if running is None:
                self._running = mine
        if running is not None:
            return running.result()
        try:
            mine.set_result(make())
        except BaseException as error:
            mine.set_exception(error)
        finally:
            with self._lock:
                self._running = None
        return mine.result()


def _cuts(pieces: Iterable[bytes | memoryview]) -> Iterator[memoryview]:
    for piece in pieces:
        view = memoryview(piece)
        for start in range(0, len(view), PART_BYTES):
            yield view[start : start + PART_BYTES]


def _parts(cuts: Iterable[memoryview]) -> Iterator[bytes]:
    """Small cuts together, so that a thousand small families are not a thousand sends."""
    waiting: list[memoryview] = []
    size = 0
    for cut in cuts:
        if size + len(cut) > PART_BYTES:
            yield b"".join(waiting)
            waiting, size = [], 0
        waiting.append(cut)
        size += len(cut)
    if waiting:
        yield b"".join(waiting)


def _compressed(pieces: Iterable[bytes | memoryview]) -> Iterator[bytes]:
    """zlib drops the GIL; level 1, because the text shrinks twentyfold at any."""
    compressor = zlib.compressobj(level=1, wbits=31)
    yield from _parts(_cuts(_deflate(compressor, _gently(_cuts(pieces)))))


def _deflate(compressor: zlib._Compress, pieces: Iterable[bytes | memoryview]) -> Iterator[bytes]:
    for piece in pieces:
        yield compressor.compress(piece)
    yield compressor.flush()


def _gently(cuts: Iterable[memoryview]) -> Iterator[memoryview]:
    """Hands them on, and sleeps between two once they cost GENTLE_SECONDS: a loop that wakes meanwhile needs the GIL,
    and maybe this very core, which the kernel would leave to us for milliseconds. sleep(0) gives up neither."""
    since = time.perf_counter()
    for cut in cuts:
        yield cut
        if time.perf_counter() - since > GENTLE_SECONDS:
            time.sleep(1e-6)
            since = time.perf_counter()


class Collector:
    """Our families for users who keep their own prometheus_client endpoint: `REGISTRY.register(Collector(exposition))`.

    Registering it never collects. It names no families in advance, so `name[]` (restricted_registry) finds it only
    in a registry made with `CollectorRegistry(support_collectors_without_names=True)`. Collecting costs
    prometheus_client's usual 20 us a line on the thread that scrapes, with the GIL held; our own endpoint does not.
    """

    def __init__(self, exposition: Exposition) -> None:
        self._exposition = exposition

    def describe(self) -> list[Metric]:
        """Nothing: without it, registering would call collect() under the registry's lock."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The families with their exemplars, classic histograms only."""
        return _families(bytes(self._exposition.own(OPENMETRICS)).decode())


_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_LABELS = r'\{(?:\w+="(?:[^"\\]|\\.)*",?)*\}'
_SAMPLE = re.compile(rf"(\w+)({_LABELS})? (\S+)(?: # ({_LABELS}) (\S+) (\S+))?")
_UNESCAPED = {r"\\": "\\", r"\"": '"', r"\n": "\n"}


def _families(text: str) -> Iterator[Metric]:
    """What csrc/export/prom_text.c writes, as prometheus_client's objects; not a parser of anything else."""
    from prometheus_client.metrics_core import Metric

    for block in ("\n" + text).split("\n# HELP ")[1:]:
        header, *lines = block.rstrip("\n").split("\n")
        name, _, documentation = header.partition(" ")
        facts = {line.split(" ", 3)[1]: line.split(" ", 3)[3] for line in lines if line.startswith("# ")}
        metric = Metric(name, documentation, facts["TYPE"], facts.get("UNIT", ""))
        for line in lines:
            if not line.startswith("# "):
                metric.add_sample(*_sample(line))
        yield metric


def _sample(line: str) -> tuple[str, dict[str, str], float, None, Exemplar | None]:
    from prometheus_client.samples import Exemplar, Timestamp

    found = _SAMPLE.fullmatch(line)
    assert found is not None, line
    name, labels, value, traced, measured, when = found.groups()
    if not traced:
        return name, _labels(labels or ""), float(value), None, None
    seconds, _, fraction = when.partition(".")
    moment = Timestamp(int(seconds), int(fraction.ljust(9, "0")))  # a float has not all its digits
    return name, _labels(labels or ""), float(value), None, Exemplar(_labels(traced), float(measured), moment)


def _labels(text: str) -> dict[str, str]:
    return {key: _unescaped(value) for key, value in _LABEL.findall(text)}


def _unescaped(text: str) -> str:
    return re.sub(r"\\.", lambda found: _UNESCAPED[found[0]], text) if "\\" in text else text


def serve_http(
    port: int,
    exposition: Exposition,
    host: str = "127.0.0.1",
    *,
    on_error: Callable[[], object] = lambda: None,
    page: Page | None = None,
) -> MetricsServer:
    """Serve /metrics on a port from a daemon thread; call what comes back to stop. Raises OSError if it is taken.

    on_error: called for each scrape that could not be answered. page: serve it too, while it is on.
    """
    from tailwatch.serve.http_server import MetricsServer

    return MetricsServer(exposition.respond, port, host, on_error, page)
