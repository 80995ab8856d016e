"""A real Prometheus for the tests (Debian: apt-get install prometheus)."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from .ports import free_port
from .waiting import until

needs = {
    name: pytest.mark.skipif(shutil.which(name) is None, reason=f"{name} is not installed (Debian package: prometheus)")
    for name in ("prometheus", "promtool")
}


class Prometheus:
    """A server of one target, with its API. features: of --enable-feature, such as native-histograms. configuration:
    instead of that one target. interval: of its scrapes. The first one is no earlier than five seconds after its
    start, when it looks for its targets."""

    def __init__(
        self,
        directory: Path,
        target: int,
        features: tuple[str, ...] = (),
        configuration: str | None = None,
        interval: str = "1s",
    ) -> None:
        self.port = free_port()
        config = directory / "prometheus.yml"
        config.write_text(
            configuration
            or f"global: {{scrape_interval: {interval}, scrape_timeout: {interval}}}\n"
            f"scrape_configs: [{{job_name: tailwatch, static_configs: [{{targets: ['127.0.0.1:{target}']}}]}}]\n"
        )
        self._log = (directory / "log").open("wb")
        self.process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={config}",
                f"--storage.tsdb.path={directory / 'data'}",
                f"--web.listen-address=127.0.0.1:{self.port}",
                *(["--enable-feature=" + ",".join(features)] if features else []),
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
        """The result of a query, by le or model name, once it has one; fails where the server has ended."""
        return until(lambda: self.result(query), query)

    def result(self, query: str) -> dict[str, float]:
        """What a query gives now; empty also before the server answers."""
        assert self.process.poll() is None, Path(self._log.name).read_text()[-2000:]
        time.sleep(0.02)  # scrapes are a second apart, and a query takes both processes' time
        try:
            found = self.ask("query", query=query)["result"]
        except OSError:
            found = []
        return {self.key(row["metric"]): float(row["value"][1]) for row in found}


def must_be_exact(prometheus: Prometheus) -> None:
    """Skips where rate() over a range that begins with a sample is not exact."""
    if not prometheus.ask("status/buildinfo")["version"].startswith("2."):
        pytest.skip(
            "needs Prometheus 2 (Debian 12's): later ones leave the first sample out of a range that begins with it"
        )
