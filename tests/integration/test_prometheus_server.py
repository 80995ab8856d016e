"""A real Prometheus scrapes us, and promtool reads what we write (Debian: apt-get install prometheus)."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tailwatch import _hot, snapshots
from tailwatch.export.prometheus import Exposition, serve_http

DEADLINE_SECONDS = 60
MS = 1_000_000
GAPS_MS = [30, 4, 4, 180, 4]

needs = {
    name: pytest.mark.skipif(shutil.which(name) is None, reason=f"{name} is not installed (Debian package: prometheus)")
    for name in ("prometheus", "promtool")
}


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


@needs["promtool"]
def test_promtool_finds_no_fault(exposition: Exposition) -> None:
    """`promtool check metrics` accepts the text: names, help, types, units and order, without a warning."""
    body = exposition.render()[1]
    checked = subprocess.run(["promtool", "check", "metrics"], input=body, capture_output=True, timeout=60)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


class Prometheus:
    """A server of one target, with its API."""

    def __init__(self, directory: Path, target: int) -> None:
        self.port = free_port()
        config = directory / "prometheus.yml"
        config.write_text(
            "global: {scrape_interval: 1s, scrape_timeout: 1s}\n"
            f"scrape_configs: [{{job_name: tailwatch, static_configs: [{{targets: ['127.0.0.1:{target}']}}]}}]\n"
        )
        self._log = (directory / "log").open("wb")
        self.process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={config}",
                f"--storage.tsdb.path={directory / 'data'}",
                f"--web.listen-address=127.0.0.1:{self.port}",
            ],
            stdout=self._log,
            stderr=self._log,
        )

    def close(self) -> None:
        self.process.kill()
        self.process.wait(30)
        self._log.close()

    def ask(self, path: str, **query: str) -> Any:
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]

    @staticmethod
    def key(labels: dict[str, str]) -> str:
        return labels.get("le", labels.get("model_name", ""))

    def wait_for(self, query: str) -> dict[str, float]:
        """The result of a query, by le or model name, once it has one; fails after the deadline or at its death."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                result = self.ask("query", query=query)["result"]
            except OSError:
                result = []
            if result:
                return {self.key(row["metric"]): float(row["value"][1]) for row in result}
            time.sleep(0.1)
        pytest.fail(f"no answer to {query}: {Path(self._log.name).read_text()[-2000:]}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, exposition: Exposition) -> Iterator[Prometheus]:
    closer = serve_http(0, exposition)
    prometheus = Prometheus(tmp_path_factory.mktemp("prometheus"), closer.port)
    yield prometheus
    prometheus.close()
    closer()


@needs["prometheus"]
def test_prometheus_scrapes_every_family(server: Prometheus) -> None:
    """The target is up, its labels arrive unharmed, and the types are known as we wrote them."""
    tokens = server.wait_for("tailwatch_output_tokens_total")
    assert tokens == {'a "quoted"\\model': len(GAPS_MS)}
    assert server.wait_for("up") == {"": 1.0}
    types = {name: entries[0]["type"] for name, entries in server.ask("metadata").items()}
    assert types["tailwatch_time_to_first_token_seconds"] == "histogram"
    assert types["tailwatch_build"] == "info"  # only OpenMetrics says so: that is what was negotiated


@needs["prometheus"]
def test_prometheus_reads_our_histograms(server: Prometheus) -> None:
    """Buckets arrive as counted, and histogram_quantile answers within the classic bucket of the true value."""
    buckets = server.wait_for("tailwatch_inter_token_latency_seconds_bucket")
    assert buckets["0.004"] == 3 and buckets["0.15"] == 3 and buckets["0.2"] == 4 and buckets["+Inf"] == 4
    (quantile,) = server.wait_for("histogram_quantile(0.99, tailwatch_inter_token_latency_seconds_bucket)").values()
    assert 0.15 < quantile <= 0.2
