"""Does a scrape hold up the event loop?

A real server in a process of its own whose loop ticks each millisecond, with 500 label sets. A run is a window
without scrapes (the control) and a window with a scrape each 200 ms over TCP (text and OpenMetrics, plain and
gzip in turn), in changing order. A stall is a tick later than 2 ms beyond the control's worst. The CPU time of the
loop's thread per scrape is taken with the ticking off. The peer is generate_latest() in the loop.
"""

from __future__ import annotations

import argparse
import http.client
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import Bar, Report, bar_of, main

SERVER = Path(__file__).resolve().parent / "scrape_server.py"
OPENMETRICS = "application/openmetrics-text; version=1.0.0"
VARIANTS = {
    "text": {},
    "OpenMetrics": {"Accept": OPENMETRICS},
    "text, gzip": {"Accept-Encoding": "gzip"},
    "OpenMetrics, gzip": {"Accept": OPENMETRICS, "Accept-Encoding": "gzip"},
}
EVERY_SECONDS = 0.2
BEYOND_MS = 2.0


@dataclass
class Run:
    """One run: how late the worst tick of each window was, ms, and how many scraped ticks were stalls."""

    control_ms: float
    scraped_ms: float
    stalls: int
    control_late: int
    """Ticks over 2 ms late in the control."""
    scraped_late: int


class Server:
    """One arm, and a connection to it."""

    def __init__(self, port: int) -> None:
        self._port = port

    def ask(self, path: str, method: str = "GET", headers: dict[str, str] | None = None) -> tuple[bytes, float]:
        """Body, and the ms it took. Each on a connection of its own, as scrapers whose targets close them."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        start = time.perf_counter()
        connection.request(method, path, headers=headers or {})
        response = connection.getresponse()
        body = response.read()
        took = (time.perf_counter() - start) * 1e3
        connection.close()
        assert response.status == 200, (path, response.status)
        return body, took

    def ticks(self, seconds: float, *, scrape: bool) -> list[float]:
        """How late each tick of a window was, ms."""
        self.ask("/ticks", "POST")
        end = time.monotonic() + seconds
        turn = 0
        while (left := end - time.monotonic()) > 0:
            due = time.monotonic() + EVERY_SECONDS
            if scrape:
                self.ask("/metrics", headers=list(VARIANTS.values())[turn % len(VARIANTS)])
                turn += 1
            time.sleep(max(0.0, min(left, due - time.monotonic())))
        body, _ = self.ask("/ticks")
        return [late / 1e6 for _, late in json.loads(body)]

    def cpu_per_scrape(self, headers: dict[str, str], scrapes: int) -> float:
        """ms of the loop's thread, without what a request that answers nothing takes."""
        return self._cpu("/metrics", headers, scrapes) - self._cpu("/nothing", headers, scrapes)

    def _cpu(self, path: str, headers: dict[str, str], times: int) -> float:
        before = int(self.ask("/cpu")[0])
        for _ in range(times):
            self.ask(path, headers=headers)
        return (int(self.ask("/cpu")[0]) - before) / times / 1e6


@contextmanager
def serving(arm: str) -> Iterator[Server]:
    """A fresh process."""
    with subprocess.Popen([sys.executable, str(SERVER), arm], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            server = Server(int(process.stdout.readline()))
            server.ask("/metrics")  # the first one of a server looks for the app's own
            yield server
        finally:
            process.terminate()


def one_run(server: Server, seconds: float, turn: int) -> Run:
    """Control and scraped window, half of each first."""
    windows: dict[bool, list[float]] = {False: [], True: []}
    for part in range(2):
        for scrape in (False, True) if (turn + part) % 2 == 0 else (True, False):
            windows[scrape] += server.ticks(seconds / 2, scrape=scrape)
    control, scraped = windows[False], windows[True]
    return Run(
        control_ms=max(control),
        scraped_ms=max(scraped),
        stalls=sum(late > max(control) + BEYOND_MS for late in scraped),
        control_late=sum(late > BEYOND_MS for late in control),
        scraped_late=sum(late > BEYOND_MS for late in scraped),
    )


def report(quick: bool = False, runs: int = 10, seconds: float = 5.0) -> Report:
    """Runs everything."""
    if quick:
        runs, seconds = 2, 1.0
    made = Report(
        f"Stalls of a loop that ticks each ms, 500 label sets, {runs} runs, control and scraped {seconds:g} s each"
    )
    with serving("tailwatch") as server:
        sizes = {name: len(server.ask("/metrics", headers=headers)[0]) for name, headers in VARIANTS.items()}
        taken = [one_run(server, seconds, turn) for turn in range(runs)]
        for name, headers in VARIANTS.items():
            cpu = [server.cpu_per_scrape(headers, 3 if quick else 5) for _ in range(3 if quick else 7)]
            made.bars.append(bar_of(f"loop-thread CPU per scrape, {name}", cpu, bar=1.0, unit="ms"))
            took = [server.ask("/metrics", headers=headers)[1] for _ in range(3 if quick else 10)]
            made.bars.append(bar_of(f"a scrape takes, {name}", took, unit="ms"))
    quiet = sum(run.stalls == 0 for run in taken)
    made.bars.insert(0, Bar("runs without a stall", quiet, quiet, quiet, 0.9 * runs, True, f"of {runs}"))
    made.bars.insert(1, bar_of("latest tick, control", [run.control_ms for run in taken], unit="ms"))
    made.bars.insert(2, bar_of("latest tick, scraped", [run.scraped_ms for run in taken], unit="ms"))
    made.bars.insert(3, bar_of("ticks > 2 ms late per run, control", [run.control_late for run in taken], unit="ticks"))
    made.bars.insert(4, bar_of("ticks > 2 ms late per run, scraped", [run.scraped_late for run in taken], unit="ticks"))
    made.notes += [f"bytes of a scrape, {name}: {size}" for name, size in sizes.items()]
    made.notes += [f"run {i}: {run}" for i, run in enumerate(taken, 1)]
    with serving("prometheus_client") as server:
        peer = one_run(server, 1.0 if quick else 4.0, 0)
        cpu = [server.cpu_per_scrape({}, 3) for _ in range(3)]
    made.bars.append(bar_of("generate_latest() in the loop: latest tick", [peer.scraped_ms], unit="ms"))
    made.bars.append(bar_of("generate_latest() in the loop: loop-thread CPU", cpu, unit="ms"))
    return made


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each window")


def _report(quick: bool) -> Report:
    parser = argparse.ArgumentParser()
    _options(parser)
    options, _ = parser.parse_known_args()
    return report(quick, options.runs, options.seconds)


def test_scrape(benchmark: Any) -> None:
    """A scrape over TCP, timed by pytest-benchmark; each of its variants is the whole exposition."""
    benchmark.extra_info.update(report(quick=True).as_dict())
    with serving("tailwatch") as server:
        body, _ = benchmark.pedantic(lambda: server.ask("/metrics"), rounds=5)
    assert body.count(b"tailwatch_inter_token_latency_seconds_count{") == 500


if __name__ == "__main__":
    main(_report, also=_options)
