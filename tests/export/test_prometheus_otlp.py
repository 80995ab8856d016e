"""A real Prometheus receives our OTLP: it stores what the snapshot has, under names that it makes itself."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import tailwatch
from tailwatch import snapshots

from ..support.prometheus import HOW, Prometheus, releases
from ..support.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
MODEL, ROUTE = 'a "quoted"\\model, é', "/v1/chat/completions"
MS = 1_000_000


@dataclass
class Received:
    """What one process exported as it ended: its snapshot, and its own text for Prometheus of the same moment."""

    prometheus: Prometheus
    snapshot: snapshots.Snapshot
    text: str

    def values(self, query: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each series."""
        found = self.prometheus.ask("query", query=query)["result"]
        return [(row["metric"], float(row["value"][1])) for row in found]

    def value(self, query: str) -> float:
        """Of the one series that it gives."""
        ((_, found),) = self.values(query)
        return found


@pytest.fixture(scope="module")
def received(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Received]:
    """By an official exporter over HTTP."""
    exporters = pytest.importorskip(
        "opentelemetry.exporter.otlp.proto.http.metric_exporter", reason="pip install '.[otel]'"
    )
    if 3 not in releases():
        pytest.skip(HOW[3])
    prometheus = Prometheus(
        releases()[3],
        tmp_path_factory.mktemp("prometheus"),
        0,
        ("exemplar-storage",),
        configuration="global: {scrape_interval: 1s}\n",
        flags=("--web.enable-otlp-receiver",),
    )
    try:
        until(lambda: prometheus.answers(), "Prometheus answers")
        exporter = exporters.OTLPMetricExporter(endpoint=f"http://127.0.0.1:{prometheus.port}/api/v1/otlp/v1/metrics")
        watch = tailwatch.install(gc="observe", otel=exporter)
        for number in range(6):
            at = time.monotonic_ns() - 10**9
            with tailwatch.stream(model=MODEL, route=ROUTE, arrival=at, trace_id=TRACE) as stream:
                for gap in (30, 4, 7, 180 + number, 3):
                    at += gap * MS
                    stream.token(at=at)
                stream.close(at=at)
        with tailwatch.step("decode", batch=3):
            pass
        snapshot, text = tailwatch.snapshot(), watch.exposition.respond("", "")
        assert tailwatch.uninstall() == []
        until(lambda: prometheus.result("tailwatch_output_tokens_total"), "the export is stored")
        yield Received(prometheus, snapshot, b"".join(text.parts).decode())
    finally:
        tailwatch.uninstall()
        prometheus.close()


@pytest.mark.parametrize(
    ("name", "metric"),
    [
        ("gen_ai_server_inter_token_latency_seconds", "itl"),
        ("gen_ai_server_time_to_first_token_seconds", "ttft"),
        ("gen_ai_server_time_per_output_token_seconds", "tpot"),
        ("gen_ai_server_request_duration_seconds", "e2e"),
    ],
)
def test_histograms_are_the_snapshots(received: Received, name: str, metric: str) -> None:
    """Native ones: count and sum to the last bit, quantiles within a bucket, labels unharmed."""
    ours = getattr(received.snapshot, metric)
    ((labels, count),) = received.values(f"histogram_count({name})")
    assert count == ours.count > 0
    assert received.value(f"histogram_sum({name})") == ours.sum
    assert (labels["gen_ai_response_model"], labels["http_route"]) == (MODEL, ROUTE)
    assert labels["gen_ai_operation_name"] == "chat"
    for q in (0.6, 0.99):
        true = ours.p(100 * q)
        assert true / 2 ** (1 / 16) <= received.value(f"histogram_quantile({q}, {name})") <= true * 2 ** (1 / 16)


def test_names_of_prometheus_are_those_of_our_text(received: Received) -> None:
    """Where a metric has the name of one of /metrics it has its values, too; and none is called a ratio that is not."""
    families = list(text_string_to_metric_families(received.text))
    ours = {sample.name: 0.0 for family in families for sample in family.samples}
    for family in families:
        for sample in family.samples:
            ours[sample.name] += sample.value
    stored = [name for name in received.prometheus.ask("label/__name__/values") if name.startswith("tailwatch_")]
    same = [name for name in stored if name in ours]
    assert len(same) > 15 and {"tailwatch_build_info", "tailwatch_gc_policy_info"} <= set(same)
    moving = ("tailwatch_memory", "tailwatch_gc_", "tailwatch_slo_attainment")  # numbers of the moment
    for name in same:
        found = sum(value for _, value in received.values(name))
        assert name.startswith(moving) or math.isclose(found, ours[name], rel_tol=1e-12), name
    assert [name for name in stored if name.endswith("_ratio") and name not in ours] == []


def test_exemplars_have_their_trace(received: Received) -> None:
    """As those of a scrape."""
    end = received.snapshot.taken
    query = {"query": "gen_ai_server_request_duration_seconds", "start": str(end - 60), "end": str(end + 60)}
    found: list[dict[str, Any]] = received.prometheus.ask("query_exemplars", **query)
    traces = {exemplar["labels"].get("trace_id") for series in found for exemplar in series["exemplars"]}
    assert traces == {TRACE}
