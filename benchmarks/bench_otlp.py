"""What does it cost to export by OTLP?

The encoder: three histograms for 100 label sets (time to first token, time per output token, request duration) as OTLP
bytes, from a snapshot; measured is the whole request, which also has the fourth histogram and every counter. The peer,
in the same rounds, is the SDK: the same histograms recorded through its instruments and encoded by the official
encoder, and what one record() of it costs, which an application that records per token pays each time. What the slow
way (an exporter of the user's own, which takes objects) holds at once is beside it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from harness import LOOP, REPEATS, Bar, Report, bar_of, empty_loop, loop, main, measure

from tailwatch import _hot, snapshots
from tailwatch.export.otel.encode import otlp

LABEL_SETS = 100
REQUESTS = 20
TOKENS = 30
SLO = (2_000_000_000, 200_000_000, 0, 0, 990_000)
HISTOGRAMS = ("time_to_first_token", "time_per_output_token", "request.duration")


def busy() -> snapshots.Snapshot:
    """A process with that many models, each with requests of different lengths."""
    core = _hot.Core("api", LABEL_SETS + 1, SLO, 0, lambda scope: "/", lambda awaitable, stream: awaitable, True)
    for i in range(LABEL_SETS):
        for k in range(REQUESTS):
            at = max(1, time.monotonic_ns() - 3600 * 10**9)
            stream = core.stream(f"model-{i}", "/v1/chat/completions", at, "", "")
            step = 3_000_000 + (i * 37 + k * 1_700_000) % 90_000_000
            for token in range(TOKENS):
                stream.token(at=at + (token + 3) * step + (token * token % 7) * 1_000_000)
            stream.close(at=at + (TOKENS + 5) * step)
    busy.core = core  # type: ignore[attr-defined]  # its memory is what the snapshot was taken of
    return snapshots.take([core.address])


def encode(snapshot: snapshots.Snapshot, **options: Any) -> bytes:
    """One request."""
    facts: dict[str, Any] = {"version": "0", "provider": "p", "resource": b"", "start_ns": 1}
    return otlp(snapshot, **facts, **options)


class SDK:
    """The same through the SDK's instruments: exponential histograms, an in-memory reader, the official encoder."""

    def __init__(self) -> None:
        from opentelemetry.sdk.metrics import Histogram, MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader
        from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation

        self.reader = InMemoryMetricReader(preferred_aggregation={Histogram: ExponentialBucketHistogramAggregation()})
        provider = MeterProvider([self.reader], shutdown_on_exit=False)
        meter = provider.get_meter("peer")
        self.instruments = [meter.create_histogram(f"gen_ai.server.{name}", unit="s") for name in HISTOGRAMS]
        self.labels = [self._attributes(i) for i in range(LABEL_SETS)]
        for i, attributes in enumerate(self.labels):
            for k in range(REQUESTS):
                for instrument in self.instruments:
                    instrument.record(0.003 + (i * 37 + k * 1_700_000) % 90_000_000 / 1e9, attributes)

    @staticmethod
    def _attributes(i: int) -> dict[str, str]:
        return {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "p",
            "gen_ai.response.model": f"model-{i}",
            "http.route": "/v1/chat/completions",
        }

    def record(self) -> None:
        """One sample of one histogram."""
        self.instruments[0].record(0.0123, self.labels[0])

    def export(self) -> bytes:
        """Collect and encode."""
        from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics

        made: bytes = encode_metrics(self.reader.get_metrics_data()).SerializeToString()
        return made


def slow_hold(snapshot: snapshots.Snapshot) -> float:
    """The longest piece of work under the GIL, ms, when an exporter takes objects."""
    from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
    from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult
    from opentelemetry.sdk.resources import Resource

    from tailwatch.export.otel.transport import Sender

    class Encoding(MetricExporter):  # type: ignore[misc, unused-ignore]
        """As an exporter of the app's would."""

        def export(self, metrics_data: Any, timeout_millis: float = 10_000, **_: Any) -> Any:
            encode_metrics(metrics_data).SerializeToString()
            return MetricExportResult.SUCCESS

        def force_flush(self, timeout_millis: float = 10_000) -> bool:
            return True

        def shutdown(self, timeout_millis: float = 30_000, **_: Any) -> None:
            pass

    sender = Sender(Encoding(), Resource.get_empty)
    sender.send(encode(snapshot), 10.0)
    return sender.hold_ns / 1e6


def report(quick: bool = False) -> Report:
    """Runs everything."""
    made = Report("What it costs to export by OTLP")
    snapshot = busy()
    OURS, EXPLICIT, DELTA = "encode", "encode, explicit", "encode, delta"
    RECORD, EXPORT = "SDK record()", "SDK collect and encode"
    cases: dict[str, Callable[[int], float]] = {
        LOOP: empty_loop,
        OURS: loop(lambda: encode(snapshot)),
        EXPLICIT: loop(lambda: encode(snapshot, exponential=False)),
        DELTA: loop(lambda: encode(snapshot, since=snapshot, delta_histograms=True, delta_sums=True)),
    }
    number = {LOOP: 1000, OURS: 5, EXPLICIT: 5, DELTA: 5}
    try:
        sdk = SDK()
        cases |= {RECORD: loop(sdk.record), EXPORT: loop(sdk.export)}
        number |= {RECORD: 200, EXPORT: 1}
    except ImportError as error:
        made.notes.append(f"not compared: the SDK ({error}); pip install '.[otel]' in tailwatch's repository")
    samples = measure(cases, number=number, repeats=3 if quick else REPEATS)
    made.calls = samples.calls()
    label = f"{LABEL_SETS} label sets, all metrics: bytes"
    for name, bar in ((OURS, 2.0), (EXPLICIT, 2.0)):
        values = [value / 1e6 for value in samples.values(name)]
        made.bars.append(Bar(f"{label}, {name} (min)", min(values), min(values), max(values), bar, unit="ms"))
    if EXPORT in cases:
        made.bars.append(samples.ratio(OURS, EXPORT, label="encode all / SDK, its three histograms"))
        made.bars.append(bar_of("SDK record()", [value / 1e3 for value in samples.values(RECORD)], unit="us"))
        holds = [slow_hold(snapshot) for _ in range(2 if quick else 9)]
        made.bars.append(bar_of("an exporter that takes objects: longest hold", holds, unit="ms"))
    made.notes.append(
        f"the request is {len(encode(snapshot))} bytes; explicit {len(encode(snapshot, exponential=False))}"
    )
    return made


def test_otlp(benchmark: Any) -> None:
    """A request of 100 label sets is encoded, timed by pytest-benchmark."""
    made = report(quick=True)
    benchmark.extra_info.update(made.as_dict())
    snapshot = busy()
    assert len(benchmark.pedantic(lambda: encode(snapshot), rounds=5, iterations=3)) > 10_000


if __name__ == "__main__":
    main(report)
