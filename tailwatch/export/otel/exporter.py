"""OpenTelemetry: metrics by OTLP, encoded in C, and a span for each request.

When it is on. ``install(otel=...)`` or TAILWATCH_OTEL decide. Without them it is on where the standard variables
name an endpoint for metrics: OTEL_METRICS_EXPORTER lists ``otlp``, or it is not set and OTEL_EXPORTER_OTLP_ENDPOINT or
OTEL_EXPORTER_OTLP_METRICS_ENDPOINT is; and an exporter is installed (else the doctor reports it).
OTEL_SDK_DISABLED=true switches it off in every case.

Where it goes. ``otel=True``: through the exporters of the app's MeterProvider where it has set one before the first
export, else through an official OTLP exporter made here as set in OTEL_EXPORTER_OTLP_*. ``otel=`` a MetricExporter, a
MeterProvider, or several: through those. Each has a thread, and its own temporality.

What it is called. Metric names are in csrc/export/metrics.c. gen_ai.operation.name is read off the route
(csrc/include/tailwatch/export/otlp.h). gen_ai.provider.name is that of OTEL_RESOURCE_ATTRIBUTES or of the app's
Resource, else the name of the serving engine that this process has imported (vllm, sglang, ...), else "self_hosted".
gen_ai.response.model is the model name in the answers. gen_ai.request.model, in spans only, is the one given to
tailwatch.stream() or in a gateway's header; bodies of requests are not read. server.address and server.port: see
server_address.py. Histograms are exponential; explicit with
the conventions' bounds where OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION is explicit_bucket_histogram.
One process of a group exports for all, under one service.instance.id; spans are each process's own. Switch it on in
every process that serves: one without it keeps no success-only histograms, and the GenAI TTFT and TPOT that another
exports leave it out.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from tailwatch import snapshots
from tailwatch.errors import OptionError, how_to_install
from tailwatch.export.otel import TRACE_ENDPOINTS, asks, listed
from tailwatch.export.otel.encode import Own
from tailwatch.export.otel.push import Facts, Push
from tailwatch.export.otel.server_address import ServerAddress
from tailwatch.export.otel.spans import Spans
from tailwatch.export.otel.transport import Sender, exporter_class
from tailwatch.serve.leader_lock import GroupLock

FLUSH_SECONDS = 3.0
"""What uninstall() and the end of the process wait for the last export."""

_ENGINES = ("vllm", "sglang", "tensorrt_llm", "lmdeploy", "litserve", "llama_cpp")
_PROVIDER = "gen_ai.provider.name"
_INSTANCE = "service.instance.id"


class OTel:
    """The exporters and spans of one process.

    Args:
        option: Config.otel.
        take: gives the numbers of the group.
        place: the group's directory; "": there is no group; None: that is not known yet.
        serving: see Spans.
        info: what is exported beside the numbers: see Push.
        count_drop: takes a tw_drop.
        note: takes what a user ought to read, a sentence, once each.

    start(), stop() and after_fork() are for the thread that installs; turn() for one other.
    """

    def __init__(
        self,
        option: object,
        take: Callable[[], snapshots.Snapshot],
        place: Callable[[], str | None],
        serving: Callable[[], Any],
        *,
        info: Callable[[], dict[str, Any]],
        version: str,
        count_drop: Callable[[int], object],
        note: Callable[[str], object],
    ) -> None:
        self._info = info
        self._option, self._take, self._place, self._serving = option, take, place, serving
        self._version, self._count_drop, self._note = version, count_drop, note
        self._export_drop, self._span_drop = snapshots.DROPS.index("export"), snapshots.DROPS.index("span")
        self._class: Any = None
        self._made_resource: Any = None
        self._resource_pid = 0
        self._stopped = self._started = False
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._lock = GroupLock("otel")
        self._directory: str | None = None
        self._pushes: list[Push] = []
        self._provider_name: str | None = None
        self._server = ServerAddress()
        from uuid import uuid4  # here and below: it is expensive to import

        self._instance = str(uuid4())
        self._noted_slow = False
        self.spans = Spans(
            self.provider_name, self._tracer_provider, self._serving, lambda: self._count_drop(self._span_drop)
        )

    def start(self) -> None:
        """Import what the thread will use: not while tokens are served.

        Raises:
            OptionError: it was asked for, and is not installed.
        """
        try:
            import opentelemetry.exporter.otlp.proto.common.metrics_encoder
            import opentelemetry.sdk.metrics.export
            import opentelemetry.sdk.trace.export  # noqa: F401
        except ImportError as error:
            expected = f"expected opentelemetry's SDK and encoder ({error}): {how_to_install('otel')}"
            raise OptionError.of("otel", True, expected) from error
        if not isinstance(self._option, tuple):
            self._class = exporter_class(os.environ, "metric")
        if self._makes_spans():
            exporter_class(os.environ, "trace")
        self._created()
        self._started = True
        self.spans.notice()
        atexit.register(self.stop)

    def ended(self, stream: Any, scope: Any, asked_model: str = "") -> None:
        """A request has ended: see Spans.ended()."""
        if not self._server.has_seen and stream.summary() is not None:  # one that is counted, no probe
            self._server.see(scope)
        self.spans.ended(stream, scope, asked_model)

    def turn(self) -> None:
        """Once a second: export where it is this process's turn, and see to the exporters that hang."""
        if self._stopped:
            return
        self.spans.notice()
        directory = self._place()
        if directory is None:
            return
        if directory != self._directory:
            self._lock.drop()
            self._server.move()
            self._directory = directory
        self._server.settle(directory)
        if directory and not self._lock.take(directory):
            return
        if not self._pushes:
            self._begin()
        now = time.monotonic()
        for push in self._pushes:
            push.check(now)

    def stop(self) -> list[str]:
        """One last export, for FLUSH_SECONDS at most. What could not be undone, a sentence each."""
        if self._stopped:
            return []
        self._export_short_life()
        self._server.settle(self._directory or "")
        self._stopped = True
        atexit.unregister(self.stop)
        until = time.monotonic() + FLUSH_SECONDS
        for push in self._pushes:
            push.stop()
        ended = [push.join(until - time.monotonic()) or push.give_up() for push in self._pushes]
        report = self.spans.stop(until - time.monotonic())
        self._lock.drop()
        if not all(ended):
            report.append(f"an OTLP exporter did not return within {FLUSH_SECONDS:g} s: its thread ends when it does")
        self._pushes = []
        return report

    def _export_short_life(self) -> None:
        """A process that lived for less than a turn has numbers to export, too."""
        if not self._pushes and self._started and self._take().opened:
            self.turn()

    def after_fork(self) -> None:
        """In a child: the threads are the parent's, and so is the lock."""
        self._lock.drop()
        parents = self.spans
        for push in self._pushes:
            push.after_fork()
        self._begin_anew()
        self.spans.inherit(parents)

    # ---- the exporters ----

    def _begin(self) -> None:
        late = bool(self._directory) and not self._lock.first
        for make in self._senders():
            push = Push(
                make,
                self._take,
                self._facts,
                info=lambda: {**self._info(), "server": self._server.fixed},
                spans=self._span_counts,
                interval=_milliseconds("OTEL_METRIC_EXPORT_INTERVAL", 60_000.0),
                timeout=_milliseconds("OTEL_METRIC_EXPORT_TIMEOUT", 30_000.0),
                missed=lambda: self._count_drop(self._export_drop),
                taken=self._lock.mark,
                late=late,
            )
            self._pushes.append(push)
            try:
                push.start()
            except RuntimeError:  # the process ends
                push.round()

    def _senders(self) -> list[Callable[[], Sender]]:
        """Each is made in its thread."""
        made = self._option if isinstance(self._option, tuple) else (_app_provider(),)
        exporters = [found for each in made for found in _exporters_of(each)]
        if not exporters and self._class is not None:
            return [lambda: Sender(self._class(), self._resource, mine=True)]
        return [partial(self._sender_of, exporter, turn) for exporter, turn in exporters]

    def _sender_of(self, exporter: Any, turn: Any) -> Sender:
        sender = Sender(exporter, self._resource, turn=turn)
        if not sender.fast and not self._noted_slow:
            self._noted_slow = True
            self._note(
                f"{sender.name} takes no encoded bytes: the metrics are made into objects for it, under the GIL; "
                "tailwatch.otel.longest_hold has for how long at once"
            )
        return sender

    def _resource(self) -> Any:
        from opentelemetry.sdk.resources import Resource

        made = self._option if isinstance(self._option, tuple) else (_app_provider(),)
        found = next((resource for each in made if (resource := _resource_of(each)) is not None), None)
        resource = found if found is not None else self._created()
        given = _INSTANCE in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
        if self._directory and not given:
            return resource.merge(Resource({_INSTANCE: _group_id(self._directory)}))
        return resource if _INSTANCE in resource.attributes else resource.merge(Resource({_INSTANCE: self._instance}))

    def _created(self) -> Any:
        """From the variables and the SDK's detectors, anew in a fork child; those need a thread, which a process that
        ends cannot have any more."""
        from opentelemetry.sdk.resources import Resource

        if self._resource_pid != os.getpid():
            with suppress(RuntimeError):
                self._made_resource = Resource.create()
            self._resource_pid = os.getpid()
        return self._made_resource

    def _facts(self) -> Facts:
        from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
        from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics

        resource = self._resource()
        encoded = encode_metrics(MetricsData([ResourceMetrics(resource, [], resource.schema_url)])).resource_metrics[0]
        return Facts(self._version, self.provider_name(), encoded.resource.SerializeToString(), resource.schema_url)

    def provider_name(self) -> str:
        """gen_ai.provider.name."""
        if self._provider_name is None:
            given = self._resource().attributes.get(_PROVIDER)
            engine = next((name for name in _ENGINES if name in sys.modules), "self_hosted")
            self._provider_name = str(given) if given else engine
        return self._provider_name

    # ---- spans ----

    def _span_counts(self) -> Own:
        spans = self.spans
        return Own(spans=spans.made, spans_dropped=spans.dropped, span_events_dropped=spans.events_dropped)

    def _makes_spans(self) -> bool:
        unsaid = self._option is True and not listed(os.environ, "OTEL_TRACES_EXPORTER")
        return unsaid or asks(os.environ, "OTEL_TRACES_EXPORTER", TRACE_ENDPOINTS)

    def _tracer_provider(self) -> Any:
        """Where the app has none: one of ours, which no other code sees, if it is known where spans go."""
        if not self._makes_spans():
            return None
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        provider = TracerProvider(resource=self._resource(), shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(exporter_class(os.environ, "trace")()))
        return provider


def _milliseconds(name: str, default: float) -> float:
    """Seconds; what is no positive number counts as not set."""
    try:
        value = float(os.environ.get(name, default))
    except ValueError:
        return default / 1e3
    return (value if value > 0 else default) / 1e3


def _app_provider() -> Any:
    """The SDK MeterProvider that the app has set, or None."""
    from opentelemetry import metrics
    from opentelemetry.sdk.metrics import MeterProvider

    provider = metrics.get_meter_provider()
    return provider if isinstance(provider, MeterProvider) else None


def _exporters_of(made: Any) -> list[tuple[Any, Any]]:
    """Of a MeterProvider those of its periodic readers, with the lock that each is called under; an exporter is one."""
    if made is None or hasattr(made, "export"):
        return [] if made is None else [(made, None)]
    readers = getattr(getattr(made, "_sdk_config", None), "metric_readers", ())
    added = getattr(made, "_metric_readers", ())
    every = dict.fromkeys((*readers, *added))
    found = [(getattr(reader, "_exporter", None), getattr(reader, "_export_lock", None)) for reader in every]
    return [(exporter, turn) for exporter, turn in found if exporter is not None]


def _resource_of(made: Any) -> Any:
    return getattr(getattr(made, "_sdk_config", None), "resource", None)


def _group_id(directory: str) -> str:
    """Of the group's directory, not of the process that exports for it: its numbers go on when that one dies."""
    from uuid import NAMESPACE_URL, getnode, uuid5

    try:
        found = os.stat(directory)
        what = f"{directory}:{found.st_dev}:{found.st_ino}"
    except OSError:
        what = directory
    return str(uuid5(NAMESPACE_URL, f"tailwatch:{getnode()}:{what}"))
