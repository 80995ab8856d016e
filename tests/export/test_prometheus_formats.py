"""A real Prometheus scrapes each of our formats, and what PromQL answers is what snapshot() has."""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tailwatch import _hot, snapshots
from tailwatch.export.prometheus.exposition import Exposition, serve_http

from ..support.prometheus import NATIVE, Prometheus, Release

NS = 1_000_000_000
MODEL = 'a "quoted"\\model, é'
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TEXT, OPENMETRICS, PROTOBUF = "", "application/openmetrics-text", None  # None: what it asks for itself
WIDTH = 2 ** (1 / 32)
FEATURES = (NATIVE, "exemplar-storage")

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]  # Prometheus takes five seconds to begin


@dataclass
class Load:
    """What was measured, and the snapshot of it."""

    gaps_ns: list[int]
    snapshot: Any

    def exposition(self) -> Exposition:
        return Exposition(
            lambda: self.snapshot, version="1.0", python="3.11", slo=lambda: "ttft<=2s@99%", registry=False
        )


@pytest.fixture(scope="module")
def load() -> Load:
    """Some thousand gaps over four decades, some of them slow, and a few beyond every bound."""
    core = _hot.Core("api", 4, (2 * NS, NS // 5, 0, 0, 990_000), 0, lambda scope: "", lambda waiting, stream: waiting)
    core.exemplify(True, None)
    chance = random.Random(20)
    gaps: list[int] = []
    for number in range(40):
        at = max(1, _hot.now() - 3000 * NS)  # a machine may have begun since
        stream = core.stream(MODEL, "/v1/chat", at, "", TRACE)
        at += int(chance.lognormvariate(-1, 1) * NS)
        stream.token(at=at)
        new = [int(chance.lognormvariate(-4.5, 1.2) * NS) for _ in range(100)]
        new += [500] if number == 1 else [1200 * NS] if number == 2 else []
        for gap in new:
            at += gap
            stream.token(at=at)
        stream.close(at=at)
        gaps += new
    return Load(sorted(gaps), snapshots.take([core.address]))


@dataclass
class Scraped:
    """A Prometheus that scrapes one format."""

    prometheus: Prometheus
    load: Load
    accept: str | None


@pytest.fixture(scope="module")
def scraped(
    tmp_path_factory: pytest.TempPathFactory, load: Load, release: Release
) -> Iterator[dict[str | None, Scraped]]:
    """All of them, by what is served. They start at once: each looks for its targets only after five seconds."""
    with contextlib.ExitStack() as stack:

        def serving(accept: str | None) -> Scraped:
            exposition = load.exposition()
            if accept is not None:
                respond: Callable[..., Any] = exposition.respond
                exposition.respond = lambda asked="", encoding="": respond(accept, encoding)  # type: ignore[method-assign]
            closer = serve_http(0, exposition)
            stack.callback(closer)
            prometheus = Prometheus(release, tmp_path_factory.mktemp("prometheus"), closer.port, FEATURES)
            stack.callback(prometheus.close)
            return Scraped(prometheus, load, accept)

        yield {accept: serving(accept) for accept in (TEXT, OPENMETRICS, PROTOBUF)}


@pytest.fixture(params=[TEXT, OPENMETRICS], ids=["text", "openmetrics"])
def classic(request: pytest.FixtureRequest, scraped: dict[str | None, Scraped]) -> Scraped:
    """Whatever it asks for, it gets this format."""
    return scraped[request.param]


@pytest.fixture
def native(scraped: dict[str | None, Scraped]) -> Scraped:
    """It asks for protobuf, and gets it."""
    return scraped[PROTOBUF]


def value(scraped: Scraped, query: str) -> float:
    (found,) = scraped.prometheus.wait_for(query).values()
    return found


@pytest.mark.parametrize(("name", "metric"), [("time_to_first_token", "ttft"), ("inter_token_latency", "itl")])
def test_classic_counts_sums_and_buckets_are_the_snapshots(classic: Scraped, name: str, metric: str) -> None:
    """Equal to the last bit, labels unharmed: the sum in nanoseconds is written as the decimal that it is."""
    ours = getattr(classic.load.snapshot, metric)
    series = f"tailwatch_{name}_seconds"
    assert classic.prometheus.wait_for(f"{series}_count") == {MODEL: ours.count}
    assert classic.prometheus.wait_for(f"{series}_sum") == {MODEL: ours.sum}
    buckets = classic.prometheus.wait_for(f"{series}_bucket")
    assert buckets == {le: round(ours.below(float(le)) * ours.count) for le in buckets}
    assert len(buckets) > 15 and buckets["+Inf"] == ours.count


def test_native_counts_and_sums_are_the_snapshots(native: Scraped) -> None:
    """The same from the native histogram, bit for bit."""
    for name, ours in (
        ("time_to_first_token", native.load.snapshot.ttft),
        ("inter_token_latency", native.load.snapshot.itl),
    ):
        assert value(native, f"histogram_count(tailwatch_{name}_seconds)") == ours.count
        assert value(native, f"histogram_sum(tailwatch_{name}_seconds)") == ours.sum


def test_native_buckets_hold_what_was_measured(native: Scraped) -> None:
    """Every bucket that Prometheus has counts the gaps between its edges, what lies below and above the range too."""
    native.prometheus.wait_for("histogram_count(tailwatch_inter_token_latency_seconds)")
    (row,) = native.prometheus.ask("query", query="tailwatch_inter_token_latency_seconds")["result"]
    found = row["histogram"][1]["buckets"]
    assert sum(int(count) for *_, count in found) == len(native.load.gaps_ns)
    seconds = [gap / 1e9 for gap in native.load.gaps_ns]
    assert found[0][2] == "9.958970855974329e-07" and found[-1][2] == "+Inf"
    assert int(found[-1][3]) == sum(gap > 1002 for gap in seconds)  # above the range: in a bucket without upper edge
    for rule, low, high, count in found[:-1]:
        inside = sum(
            float(low) < gap <= float(high) if rule == 0 else float(low) <= gap <= float(high) for gap in seconds
        )
        assert inside == int(count), (rule, low, high)


@pytest.mark.parametrize("q", [0.5, 0.9, 0.99, 0.995])
def test_native_quantiles_are_within_a_bucket_of_the_truth(native: Scraped, q: float) -> None:
    """histogram_quantile() and .p() are both within 2.2 % of the sample of that rank."""
    true = native.load.gaps_ns[math.ceil(q * len(native.load.gaps_ns)) - 1] / 1e9
    theirs = value(native, f"histogram_quantile({q}, tailwatch_inter_token_latency_seconds)")
    for found in (theirs, native.load.snapshot.itl.p(100 * q)):
        assert true / WIDTH <= found <= true * WIDTH


def exemplars(scraped: Scraped) -> list[dict[str, Any]]:
    value(scraped, 'tailwatch_requests_total{outcome="good"}')
    end = scraped.load.snapshot.taken
    query = '{__name__=~"tailwatch_time_to_first_token_seconds.*"}'
    found = scraped.prometheus.ask("query_exemplars", query=query, start=str(end - 7200), end=str(end))
    return [exemplar for series in found for exemplar in series["exemplars"]]


def check_exemplars(scraped: Scraped) -> None:
    found = exemplars(scraped)
    assert found
    end = scraped.load.snapshot.taken
    for exemplar in found:
        assert exemplar["labels"] == {"trace_id": TRACE}
        assert 0 < float(exemplar["value"]) <= scraped.load.snapshot.ttft.max
        assert end - 3100 < float(exemplar["timestamp"]) < end


def test_exemplars_arrive_by_openmetrics(classic: Scraped) -> None:
    """Each with its trace id, its value, and the time at which it was measured; text has none."""
    if classic.accept == OPENMETRICS:
        check_exemplars(classic)
    else:
        assert exemplars(classic) == []


def test_exemplars_arrive_with_native_histograms(native: Scraped) -> None:
    """The same by protobuf."""
    check_exemplars(native)


def test_the_target_is_up_and_has_our_types(native: Scraped) -> None:
    """Nothing of a protobuf scrape is refused."""
    value(native, "tailwatch_build_info")
    assert value(native, "up") == 1
    types = {name: entries[0]["type"] for name, entries in native.prometheus.ask("metadata").items()}
    assert types["tailwatch_time_to_first_token_seconds"] == "histogram"
    assert types["tailwatch_requests_total"] == "counter"
