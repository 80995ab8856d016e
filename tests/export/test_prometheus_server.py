"""A real Prometheus scrapes us, and promtool reads what we write."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from tailwatch import _hot, snapshots
from tailwatch.export.prometheus.exposition import Exposition, serve_http

from ..support.prometheus import Prometheus, Release

pytestmark = pytest.mark.integration

MS = 1_000_000
GAPS_MS = [30, 4, 4, 180, 4]


@pytest.fixture(scope="module")
def exposition() -> Exposition:
    slo = (2_000_000_000, 200_000_000, 0, 0, 990_000)
    core = _hot.Core("api", 4, slo, 0, lambda scope: "", lambda waiting, stream: waiting)
    start = _hot.now() - 1000 * MS
    stream = core.stream('a "quoted"\\model', "/v1/chat", start, "", "")
    for gap in GAPS_MS:
        start += gap * MS
        stream.token(at=start)
    stream.close(at=start)
    return Exposition(
        lambda: snapshots.take([core.address]), version="1.0", python="3.11", slo=lambda: "ttft<=2s@99%", registry=False
    )


def test_promtool_finds_no_fault(exposition: Exposition, release: Release) -> None:
    """`promtool check metrics` accepts the text: names, help, types, units and order, without a warning."""
    body = exposition.render()[1]
    checked = subprocess.run(
        [release.program("promtool"), "check", "metrics"], input=body, capture_output=True, timeout=60
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, exposition: Exposition, release: Release) -> Iterator[Prometheus]:
    closer = serve_http(0, exposition)
    prometheus = Prometheus(release, tmp_path_factory.mktemp("prometheus"), closer.port)
    yield prometheus
    prometheus.close()
    closer()


def test_prometheus_scrapes_every_family(server: Prometheus) -> None:
    """The target is up, its labels arrive unharmed, and the types are known as we wrote them."""
    tokens = server.wait_for("tailwatch_output_tokens_total")
    assert tokens == {'a "quoted"\\model': len(GAPS_MS)}
    assert server.wait_for("up") == {"": 1.0}
    types = {name: entries[0]["type"] for name, entries in server.ask("metadata").items()}
    assert types["tailwatch_time_to_first_token_seconds"] == "histogram"
    assert types["tailwatch_build"] == "info"  # only OpenMetrics has it: that is what was negotiated


def test_prometheus_reads_our_histograms(server: Prometheus) -> None:
    """Buckets arrive as counted, and histogram_quantile answers within the classic bucket of the true value."""
    buckets = server.wait_for("tailwatch_inter_token_latency_seconds_bucket")
    assert buckets["0.004"] == 3 and buckets["0.15"] == 3 and buckets["0.2"] == 4 and buckets["+Inf"] == 4
    (quantile,) = server.wait_for("histogram_quantile(0.99, tailwatch_inter_token_latency_seconds_bucket)").values()
    assert 0.15 < quantile <= 0.2
