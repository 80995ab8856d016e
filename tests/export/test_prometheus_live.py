"""A live server that streams, with metrics of its own, under a real Prometheus that asks for native histograms."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import prometheus_client
import pytest
from fastapi import FastAPI
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.metrics_core import Metric
from prometheus_client.samples import BucketSpan, NativeHistogram
from starlette.responses import StreamingResponse

import tailwatch
from tailwatch.export.prometheus import app_registry_cache

from ..support.prometheus import NATIVE, Prometheus, Release

pytestmark = pytest.mark.integration

REQUESTS, WORDS = 5, 20


@pytest.fixture(autouse=True)
def uninstalled() -> Iterator[None]:
    gc.disable()
    yield
    tailwatch.uninstall()
    gc.enable()


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> CollectorRegistry:
    """The app's own, with a counter and a histogram."""
    registry = CollectorRegistry()
    monkeypatch.setattr(prometheus_client, "REGISTRY", registry)
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)
    Counter("app_jobs", "Jobs", registry=registry).inc(7)
    Histogram("app_wait_seconds", "Wait", registry=registry).observe(0.3)
    registry.register(Native())  # type: ignore[arg-type]
    return registry


class Native:
    """A native histogram of the app's own, which prometheus_client can only hold."""

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        family = Metric("app_native_seconds", "Native", "histogram")
        value = NativeHistogram(7, 1.25, 3, 0.001, 1, (BucketSpan(-2, 2), BucketSpan(1, 1)), None, (1, 2, -1), None)
        family.add_sample("app_native_seconds", {"a": "é"}, 0, native_histogram=value)
        yield family


async def words() -> AsyncIterator[str]:
    for word in range(WORDS):
        yield f'data: {{"model":"m","choices":[{{"index":0,"delta":{{"content":"{word}"}}}}]}}\n\n'
    yield "data: [DONE]\n\n"


def make_app() -> FastAPI:
    app = FastAPI()

    @app.post("/v1/chat/completions")
    async def answer() -> StreamingResponse:
        return StreamingResponse(words(), media_type="text/event-stream")

    return app


def load(serve: Any, **options: Any) -> Any:
    """A server that has answered some requests."""
    served = serve(tailwatch.install(make_app(), **options).app)
    for _ in range(REQUESTS):
        assert httpx.post(f"http://127.0.0.1:{served.port}/v1/chat/completions", json={}).text.endswith("[DONE]\n\n")
    return served


@pytest.fixture
def scrape(tmp_path: Path, release: Release) -> Iterator[Any]:
    """Starts a Prometheus that asks for protobuf first."""
    started: list[Prometheus] = []

    def begin(port: int) -> Prometheus:
        started.append(Prometheus(release, tmp_path, port, (NATIVE, "exemplar-storage")))
        return started[-1]

    yield begin
    for prometheus in started:
        prometheus.close()


def value(prometheus: Prometheus, query: str) -> float:
    (found,) = prometheus.wait_for(query).values()
    return found


def test_native_histograms_beside_the_apps_own_metrics(serve: Any, scrape: Any, registry: CollectorRegistry) -> None:
    """Both are there, ours native and equal to snapshot(), theirs as they are."""
    prometheus = scrape(load(serve).port)
    snapshot = tailwatch.snapshot()
    assert value(prometheus, "histogram_count(tailwatch_inter_token_latency_seconds)") == REQUESTS * (WORDS - 1)
    assert value(prometheus, "histogram_sum(tailwatch_inter_token_latency_seconds)") == snapshot.itl.sum
    assert value(prometheus, "histogram_sum(tailwatch_time_to_first_token_seconds)") == snapshot.ttft.sum
    assert value(prometheus, "app_jobs_total") == 7
    assert value(prometheus, 'histogram_count(app_native_seconds{a="é"})') == 7
    assert value(prometheus, "histogram_fraction(0.001, 1, app_native_seconds)") == pytest.approx(4 / 7)
    assert prometheus.wait_for("app_wait_seconds_bucket")["+Inf"] == 1
    assert prometheus.wait_for('tailwatch_dropped_events_total{reason=~"protobuf.*"}') == {"": 0.0}


def test_a_registry_that_takes_too_long_is_served_as_text(
    serve: Any, scrape: Any, registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scraper gets what it ranks next: everything is there, ours with classic buckets, and it is counted."""
    monkeypatch.setattr(app_registry_cache, "FIT_SECONDS", 0.0)
    prometheus = scrape(load(serve).port)
    assert value(prometheus, "tailwatch_inter_token_latency_seconds_count") == REQUESTS * (WORDS - 1)
    assert value(prometheus, "app_jobs_total") == 7
    assert value(prometheus, 'tailwatch_dropped_events_total{reason="protobuf_slow"} > 0') >= 1


def test_classic_is_no_protobuf(serve: Any, scrape: Any, registry: CollectorRegistry) -> None:
    """histograms="classic": the series that dashboards know, whatever Prometheus is able to."""
    prometheus = scrape(load(serve, histograms="classic").port)
    assert value(prometheus, "tailwatch_inter_token_latency_seconds_count") == REQUESTS * (WORDS - 1)
    assert prometheus.wait_for('tailwatch_dropped_events_total{reason=~"protobuf.*"}') == {"": 0.0}
