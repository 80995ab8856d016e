"""Workers of a group are killed and replaced while a real Prometheus scrapes: no rate is negative, or doubled."""

from __future__ import annotations

import http.client
import os
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .. import prometheus_messages as messages
from ..support.ports import free_port
from ..support.process import Python
from ..support.prometheus import NATIVE, Prometheus, Release
from ..support.waiting import until

pytestmark = pytest.mark.integration

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
ROUNDS = 3


class Worker(Python):
    """One process of the group; whichever of them holds the port serves the metrics of all."""

    def __init__(self, directory: Path, port: int) -> None:
        environment = {"TAILWATCH_DIR": str(directory), "TAILWATCH_METRICS_PORT": str(port), "TAILWATCH_ROLE": "api"}
        super().__init__(WORKER, env={**os.environ, **environment})
        assert self.read() is True

    def stream(self, tokens: int) -> None:
        """One request of so many tokens."""
        assert self.ask(tokens) is True


@pytest.fixture
def workers() -> Iterator[list[Worker]]:
    """All are gone after the test."""
    started: list[Worker] = []
    yield started
    for worker in started:
        worker.kill()


def scrape(port: int) -> dict[str, Any]:
    """The families, once a process serves them."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"Accept": ACCEPT})

    def answer() -> bytes:
        try:
            with urllib.request.urlopen(request, timeout=10) as response:
                return bytes(response.read())
        except (OSError, http.client.HTTPException):
            return b""

    return messages.read(until(answer))


def test_created_is_when_the_first_began(tmp_path: Path, workers: list[Worker]) -> None:
    """A process that comes later, or takes a dead one's place, changes it as little as one that dies: all that was
    counted is there."""
    port, seen, created, began = free_port(), 0, set(), time.time()
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
    assert began - 1 < created.pop() / 1e9 < time.time()


@pytest.mark.parametrize(
    "features",
    [pytest.param((), id="openmetrics", marks=pytest.mark.slow), pytest.param((NATIVE,), id="native")],
)
def test_no_rate_is_negative_or_doubled(
    release: Release, tmp_path: Path, workers: list[Worker], features: tuple[str, ...]
) -> None:
    """No counter of ours ever goes back, whichever process dies between two scrapes, and at the end it is the true
    number."""
    port, tokens = free_port(), 0
    prometheus = Prometheus(release, tmp_path, port, features, interval="200ms")
    try:
        workers.append(Worker(tmp_path / "group", port))
        for turn in range(ROUNDS):
            workers[-1].stream(turn + 2)
            tokens += turn + 2
            until_it_is(prometheus, "tailwatch_output_tokens_total", tokens)
            workers.append(Worker(tmp_path / "group", port))
            workers[turn].kill()
        until_it_is(prometheus, "sum(tailwatch_requests_total)", ROUNDS)
        check(prometheus, tokens, native=bool(features))
    finally:
        prometheus.close()


def until_it_is(prometheus: Prometheus, query: str, value: float) -> None:
    """Waits for the one value of a query."""
    until(lambda: list(prometheus.result(query).values()) == [value], f"{query} is {value}")


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
    span = {"start": f"{now - 120:.3f}", "end": f"{now:.3f}", "step": "0.25"}  # the last of them is now
    found = prometheus.ask("query_range", query=query, **span)["result"]
    (counts,) = [[float(value) for _, value in row["values"]] for row in found]
    assert counts == sorted(counts) and counts[-1] == tokens - ROUNDS
