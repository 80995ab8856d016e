"""Real Prometheus servers for the tests: version 2 (Debian: apt-get install prometheus), and version 3, which
CONTRIBUTING.md builds. Each test that uses one runs with either."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from .ports import free_port
from .waiting import until

NATIVE = "native-histograms"
HOW = {
    2: "no Prometheus 2 is installed (Debian: apt-get install prometheus)",
    3: "no Prometheus 3: CONTRIBUTING.md builds one; then PROMETHEUS=/path/to/prometheus pytest",
}


@dataclass(frozen=True)
class Release:
    """One version of Prometheus, as (3, 5), and the directory of its programs."""

    version: tuple[int, ...]
    directory: Path

    def program(self, name: str) -> str:
        """The path of prometheus or promtool; skips where that is missing."""
        path = self.directory / name
        if not path.exists():
            pytest.skip(f"{path} is missing: install or build it beside prometheus")
        return str(path)

    def range_ms(self, between: int) -> int:
        """Of a range that has the samples at both ends of so many milliseconds, for which rate() is exact: from 3.0 on
        a range leaves out a sample at its very beginning."""
        return between if self.version < (3,) else between + 1


@functools.cache
def releases() -> dict[int, Release]:
    """By major version: what the path has, and what PROMETHEUS names, which comes first."""
    found: dict[int, Release] = {}
    for path in filter(None, (shutil.which("prometheus"), os.environ.get("PROMETHEUS"))):
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60)
        numbers = re.search(r"version (\d+)\.(\d+)", done.stdout + done.stderr)
        assert numbers, f"{path} --version gives no version: {done.stdout + done.stderr}"
        version = int(numbers[1]), int(numbers[2])
        found[version[0]] = Release(version, Path(path).resolve().parent)
    return found


@pytest.fixture(scope="module", params=HOW, ids=lambda major: f"prometheus{major}")
def release(request: pytest.FixtureRequest) -> Release:
    """Each version of Prometheus; one that is not there is skipped."""
    if request.param not in releases():
        pytest.skip(HOW[request.param])
    return releases()[request.param]


class Prometheus:
    """A server of one target, with its API. features: of --enable-feature, such as native-histograms, which is a line
    of the configuration from 3.8 on. configuration: instead of that one target; it begins with "global: {". interval:
    of its scrapes. flags: further ones. The first scrape is no earlier than five seconds after its start, when it looks
    for its targets."""

    def __init__(
        self,
        release: Release,
        directory: Path,
        target: int,
        features: tuple[str, ...] = (),
        configuration: str | None = None,
        interval: str = "1s",
        flags: tuple[str, ...] = (),
    ) -> None:
        self.release, self.port = release, free_port()
        config = directory / "prometheus.yml"
        text = configuration or (
            f"global: {{scrape_interval: {interval}, scrape_timeout: {interval}}}\n"
            f"scrape_configs: [{{job_name: tailwatch, static_configs: [{{targets: ['127.0.0.1:{target}']}}]}}]\n"
        )
        if NATIVE in features and release.version >= (3, 8):
            features = tuple(feature for feature in features if feature != NATIVE)
            text = text.replace("global: {", "global: {scrape_native_histograms: true, ", 1)
        config.write_text(text)
        self._log = (directory / "log").open("wb")
        self.process = subprocess.Popen(
            [
                release.program("prometheus"),
                f"--config.file={config}",
                f"--storage.tsdb.path={directory / 'data'}",
                f"--web.listen-address=127.0.0.1:{self.port}",
                *(["--enable-feature=" + ",".join(features)] if features else []),
                *flags,
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

    def answers(self) -> bool:
        """Whether its API does."""
        assert self.process.poll() is None, Path(self._log.name).read_text()[-2000:]
        with contextlib.suppress(OSError):
            return bool(self.ask("status/buildinfo"))
        return False

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
