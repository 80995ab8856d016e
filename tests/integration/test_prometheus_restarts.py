"""Workers of a group are killed and replaced while a real Prometheus scrapes: no rate is negative, or doubled."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .. import prometheus_messages as messages
from .real_prometheus import DEADLINE_SECONDS, Prometheus, free_port, needs

WORKER = """
import json, sys, time
import tailwatch
tailwatch.install(gc="observe")
print(json.dumps(True), flush=True)
for line in sys.stdin:
    with tailwatch.stream(model="m", trace_id="4bf92f3577b34da6a3ce929d0e0e4736") as stream:
        for _ in range(int(line)):
            stream.token()
    print(json.dumps(True), flush=True)
"""
ACCEPT = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"
ROUNDS = 4


class Worker:
    """One process of the group; whichever of them holds the port serves the metrics of all."""

    def __init__(self, directory: Path, port: int) -> None:
        environment = {"TAILWATCH_DIR": str(directory), "TAILWATCH_METRICS_PORT": str(port), "TAILWATCH_ROLE": "api"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        self._read()

    def _read(self) -> None:
        assert self.process.stdout is not None
        assert json.loads(self.process.stdout.readline()) is True

    def stream(self, tokens: int) -> None:
        """One request of so many tokens."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{tokens}\n")
        self.process.stdin.flush()
        self._read()

    def kill(self) -> None:
        """Without a chance to say anything."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def workers() -> Iterator[list[Worker]]:
    """All are gone after the test."""
    started: list[Worker] = []
    yield started
    for worker in started:
        worker.kill()


def scrape(port: int) -> dict[str, Any]:
    """The families, once somebody serves them."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"Accept": ACCEPT})
    while True:
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return messages.read(answer.read())
        except (OSError, http.client.HTTPException):
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_created_is_when_the_first_began(tmp_path: Path, workers: list[Worker]) -> None:
    """Who comes later, or takes a dead one's place, changes it as little as who dies: all that was counted is there."""
    port, seen, created = free_port(), 0, set()
    workers.append(Worker(tmp_path / "group", port))
    for turn in range(4):
        workers[-1].stream(turn + 2)
        seen += turn + 2
        families = scrape(port)
        (tokens,) = families["tailwatch_output_tokens_total"].metric
        assert tokens.counter.value == seen
        (gaps,) = families["tailwatch_inter_token_latency_seconds"].metric
        assert gaps.histogram.sample_count == seen - turn - 1
        assert sum(messages.buckets(gaps.histogram).values()) + gaps.histogram.zero_count == gaps.histogram.sample_count
        created |= {tokens.counter.created_timestamp.ToNanoseconds(), gaps.histogram.created_timestamp.ToNanoseconds()}
        workers.append(Worker(tmp_path / "group", port))
        workers[turn].kill()
    assert len(created) == 1
    assert 0 < time.time() - created.pop() / 1e9 < 2 * DEADLINE_SECONDS


@needs["prometheus"]
@pytest.mark.parametrize(
    "features",
    [pytest.param((), id="openmetrics", marks=pytest.mark.slow), pytest.param(("native-histograms",), id="native")],
)
def test_no_rate_is_negative_or_doubled(tmp_path: Path, workers: list[Worker], features: tuple[str, ...]) -> None:
    """No counter of ours ever goes back, whoever dies between two scrapes, and at the end it is the true number."""
    port, tokens = free_port(), 0
    workers.append(Worker(tmp_path / "group", port))
    prometheus = Prometheus(tmp_path, port, features)
    try:
        for turn in range(ROUNDS):
            workers[-1].stream(turn + 2)
            tokens += turn + 2
            until(prometheus, "tailwatch_output_tokens_total", tokens)
            workers.append(Worker(tmp_path / "group", port))
            workers[turn].kill()
        until(prometheus, "sum(tailwatch_requests_total)", ROUNDS)
        check(prometheus, tokens, native=bool(features))
    finally:
        prometheus.close()


def until(prometheus: Prometheus, query: str, value: float) -> None:
    """Waits for the one value that a query has."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while list(prometheus.wait_for(query).values()) != [value]:
        assert time.monotonic() < deadline, (query, prometheus.wait_for(query))
        time.sleep(0.1)


def check(prometheus: Prometheus, tokens: int, *, native: bool) -> None:
    names = [name for name in prometheus.ask("label/__name__/values") if name.startswith(("tailwatch_", "python_gc_"))]
    counters = [name for name in names if name.endswith(("_total", "_bucket", "_count", "_sum"))]
    assert len(counters) > 10
    for name in counters:
        for row in prometheus.ask("query", query=f"resets({name}[5m])")["result"]:
            assert row["value"][1] == "0", (name, row)
    assert prometheus.wait_for("tailwatch_output_tokens_total") == {"m": tokens}
    gaps = "tailwatch_inter_token_latency_seconds"
    now = time.time()
    query = f"histogram_count({gaps})" if native else f"{gaps}_count"
    found = prometheus.ask("query_range", query=query, start=str(now - 120), end=str(now), step="1")["result"]
    (counts,) = [[float(value) for _, value in row["values"]] for row in found]
    assert counts == sorted(counts) and counts[-1] == tokens - ROUNDS
