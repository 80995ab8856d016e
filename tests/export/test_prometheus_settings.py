"""The settings of Prometheus 3 that examples/grafana/README.md names: what each does with our metrics."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailwatch import _hot, snapshots
from tailwatch.export.prometheus.exposition import Exposition, serve_http

from ..support.prometheus import HOW, Prometheus, releases

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]  # Prometheus takes five seconds to begin

README = Path(__file__).parents[2] / "examples" / "grafana" / "README.md"
PROTOCOLS = "scrape_protocols: [PrometheusProto, OpenMetricsText1.0.0, PrometheusText0.0.4]"
JOBS = {
    "native": f"{PROTOCOLS}, scrape_native_histograms: true",
    "both": "scrape_native_histograms: true, always_scrape_classic_histograms: true",
    "converted": "convert_classic_histograms_to_nhcb: true",
}
FEATURES = ("exemplar-storage", "created-timestamp-zero-ingestion")
GAPS_MS = [30, 4, 4, 180, 4]
ITL = "tailwatch_inter_token_latency_seconds"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """One that scrapes the same target in each of these ways."""
    if 3 not in releases():
        pytest.skip(HOW[3])
    core = _hot.Core("api", 4, (2_000_000_000, 0, 0, 0, 990_000), 0, lambda scope: "", lambda waiting, stream: waiting)
    stream = core.stream("m", "/v1/chat", time.monotonic_ns(), "", "")
    for _ in GAPS_MS:
        stream.token()
    exposition = Exposition(
        lambda: snapshots.take([core.address]), version="1", python="3", slo=lambda: "", registry=False
    )
    closer = serve_http(0, exposition)
    targets = f"static_configs: [{{targets: ['127.0.0.1:{closer.port}']}}]"
    jobs = ", ".join(f"{{job_name: {name}, {settings}, {targets}}}" for name, settings in JOBS.items())
    text = f"global: {{scrape_interval: 1s, scrape_timeout: 1s}}\nscrape_configs: [{jobs}]\n"
    prometheus = Prometheus(releases()[3], tmp_path_factory.mktemp("prometheus"), 0, FEATURES, text)
    try:
        prometheus.wait_for(f"count(up == 1) == {len(JOBS)}")
        yield prometheus
    finally:
        prometheus.close()
        closer()


def jobs_with(server: Prometheus, query: str) -> dict[str, float]:
    """By job: what it has of a query."""
    return {
        row["metric"]["job"]: float(row["value"][1])
        for row in server.ask("query", query=f"sum by (job) ({query})")["result"]
    }


def test_the_guide_names_what_runs_here() -> None:
    """Each setting and each flag of its table."""
    table = README.read_text().partition("## Prometheus 3")[2].partition("\n## ")[0]
    settings = {setting for line in JOBS.values() for setting in line.replace(f"{PROTOCOLS}, ", "").split(", ")}
    named = {line.split("`")[1] for line in table.splitlines() if line.startswith("| `")}
    assert named == {*settings, PROTOCOLS, *(f"--enable-feature={feature}" for feature in FEATURES)}


def test_histograms_are_as_the_settings_ask(server: Prometheus) -> None:
    """Native, native beside classic, classic as native ones with our own bounds: each of the same gaps."""
    gaps = len(GAPS_MS) - 1
    assert jobs_with(server, f"histogram_count({ITL})") == dict.fromkeys(JOBS, gaps)
    assert jobs_with(server, f'{ITL}_bucket{{le="+Inf"}}') == {"both": gaps}


def test_the_first_scrape_of_a_series_counts(server: Prometheus) -> None:
    """It had a value before it was scraped for the first time: increase() has it."""
    found = jobs_with(server, "increase(tailwatch_output_tokens_total[5m])")
    assert set(found) == set(JOBS) and all(value >= len(GAPS_MS) for value in found.values()), found
