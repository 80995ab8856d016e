"""What does one token stamp cost from Python, with everything on?

Stream.token() with the collector bracketed, all histograms, verdicts and fluidity, against a function of the same
module that reads the clock and drops it; the same while 2 000 generation-0 collections a second run; and against
one observe() of prometheus_client and one record() of OpenTelemetry.
"""

from __future__ import annotations

import gc
import time
from typing import Any

from harness import LOOP, REPEATS, Report, Run, Samples, bar_of, empty_loop, loop, main, measure, native

import tailwatch
from tailwatch import _hot

COLLECTIONS_PER_SECOND = 2000
STREAMS = 64
TOKEN, CLOCK, PROMETHEUS, OTEL = "Stream.token()", "a read of the clock", "prometheus_client", "OpenTelemetry"
DISTURBED = "%s, 2000 gen0/s"


def prometheus_case() -> Run:
    """labels() with three labels, and observe(), as it is usually written."""
    from prometheus_client import CollectorRegistry, Histogram

    buckets = [0.0005 * 2**i for i in range(15)]
    names = ["model_name", "route", "phase"]
    histogram = Histogram("itl_seconds", "gap", names, registry=CollectorRegistry(), buckets=buckets)
    return loop(lambda: histogram.labels("model", "/v1/chat/completions", "itl").observe(0.02))


def otel_case() -> Run:
    """record() with three attributes into the SDK's default aggregation."""
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    provider = MeterProvider(metric_readers=[InMemoryMetricReader()], shutdown_on_exit=False)
    histogram = provider.get_meter("bench").create_histogram("itl", unit="s")
    attributes = {"gen_ai.request.model": "model", "http.route": "/v1/chat/completions", "phase": "itl"}
    return loop(lambda: histogram.record(0.02, attributes))


def garbage() -> list[Any]:
    """What a server allocates between two collections: 700 tracked objects, a fifth of them dead at once."""
    return [[i] for i in range(560) if [[i]]]


def disturbed(calls: list[Any]) -> Run:
    """Each call once (a step of that many streams) every 500 us, after some allocation and one collection of
    generation 0. Only the calls are timed; n is the number of steps."""

    def run(n: int) -> float:
        kept: list[Any] = []
        spent = 0
        due = time.perf_counter_ns()
        for _ in range(n):
            kept = garbage()
            gc.collect(0)
            start = time.perf_counter_ns()
            for call in calls:
                call()
            spent += time.perf_counter_ns() - start
            due += 1_000_000_000 // COLLECTIONS_PER_SECOND
            while time.perf_counter_ns() < due:
                pass
        del kept
        return spent / (n * len(calls))

    return run


def _plain(watch: tailwatch.Watch, repeats: int) -> Samples:
    with watch.stream(model="model", route="/bench") as stream:
        cases = {LOOP: empty_loop, CLOCK: loop(native("floors").clock), TOKEN: loop(stream.token),
                 PROMETHEUS: prometheus_case(), OTEL: otel_case()}  # fmt: skip
        number = dict.fromkeys(cases, 20_000) | {PROMETHEUS: 2_000, OTEL: 500}
        return measure(cases, number=number, repeats=repeats)


def _disturbed(watch: tailwatch.Watch, repeats: int) -> Samples:
    streams = [watch.core.stream("model", "/bench", None, "", "") for _ in range(STREAMS)]
    one = streams[0].token
    cases = {
        LOOP + DISTURBED[2:]: disturbed([_nothing] * STREAMS),
        DISTURBED % CLOCK: disturbed([native("floors").clock] * STREAMS),
        DISTURBED % TOKEN: disturbed([one] * STREAMS),
        f"{DISTURBED % TOKEN}, {STREAMS} streams": disturbed([stream.token for stream in streams]),
    }
    gc.disable()  # the collections are those that the case asks for
    try:
        return measure(cases, number=100, repeats=repeats)
    finally:
        gc.enable()


def _nothing() -> None:
    pass


def report(quick: bool = False) -> Report:
    """Runs everything."""
    repeats = 5 if quick else REPEATS
    watch = tailwatch.install(gc="observe")
    made = Report("One token stamp from Python, everything on")
    try:
        plain, busy = _plain(watch, repeats), _disturbed(watch, repeats)
    finally:
        tailwatch.uninstall()
    made.calls = plain.calls() | busy.calls()
    net = "loop subtracted"
    with_loop = plain.ratio(TOKEN, CLOCK, bar=1.3, label="stamp / clock")
    made.bars = [
        with_loop,
        plain.ratio(TOKEN, CLOCK, less=LOOP, bar=1.3, label=f"stamp / clock, {net}"),
        busy.ratio(DISTURBED % TOKEN, DISTURBED % CLOCK, bar=1.6, label="stamp / clock, 2000 gen0/s"),
        busy.ratio(f"{DISTURBED % TOKEN}, {STREAMS} streams", DISTURBED % CLOCK, bar=1.6,
                   label=f"stamp / clock, 2000 gen0/s, {STREAMS} streams"),
        bar_of("stamp, 2000 gen0/s / clock, undisturbed", _across(busy, plain), bar=1.6),
        plain.ratio(PROMETHEUS, TOKEN, bar=25, at_least=True, label="prometheus_client / stamp"),
        plain.ratio(OTEL, TOKEN, bar=100, at_least=True, label="OpenTelemetry / stamp"),
    ]  # fmt: skip
    return made


def _across(busy: Samples, plain: Samples) -> list[float]:
    clocks = plain.by_case[CLOCK]
    return [a / b for a, b in zip(busy.by_case[DISTURBED % TOKEN], clocks, strict=True)]


def test_stamp(benchmark: Any) -> None:
    """A stamp, timed by pytest-benchmark; the ratios are in extra_info. Each stamp is one token."""
    made = report(quick=True)
    benchmark.extra_info.update(made.as_dict())
    core = _hot.Core("api", 2, (0, 0, 0, 0, 990_000), 0, lambda scope: "", lambda awaitable, stream: awaitable)
    stream = core.stream("model", "/bench", None, "", "")
    benchmark.pedantic(stream.token, rounds=20, iterations=5_000, warmup_rounds=1)
    before = stream.tokens
    loop(stream.token)(1_000)
    assert stream.tokens - before == 1_000


if __name__ == "__main__":
    main(report)
