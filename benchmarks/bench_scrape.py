"""Does a scrape hold up the event loop?

A real server in a process of its own whose loop ticks each millisecond, with 500 label sets. A run is three windows
in changing order: two without scrapes and one with a scrape each 200 ms over TCP (text, OpenMetrics and protobuf with
native histograms, plain and gzip in turn). A stall is a tick later than 2 ms beyond the control's worst. The second
window without scrapes is held against the first in the same way: what it shows is the machine's own noise, and no
scrape can be asked to show less.

The CPU time of the loop's thread per scrape is taken with the ticking off. Its bar holds for what a Prometheus asks
for, which is gzip (its enable_compression is on by default: prometheus/prometheus#13166). The uncompressed body is
held against the same bytes in the same parts handed to a bare loopback socket: what the kernel takes for the copy is
out of our hands. The peer is generate_latest() in the loop.

The CPU time of the whole process to make an answer is held against generate_latest() for the same samples, made into
prometheus_client's objects beforehand; a compressed one against what prometheus_client's own apps do then, which is
gzip.compress(generate_latest()).
"""

from __future__ import annotations

import gzip
import http.client
import json
import multiprocessing
import socket
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import Bar, Report, bar_of, main_in_windows

SERVER = Path(__file__).resolve().parent / "scrape_server.py"
OPENMETRICS = "application/openmetrics-text; version=1.0.0"
PROTOBUF = "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
VARIANTS = {
    "text": {},
    "OpenMetrics": {"Accept": OPENMETRICS},
    "protobuf": {"Accept": PROTOBUF},
    "text, gzip": {"Accept-Encoding": "gzip"},
    "OpenMetrics, gzip": {"Accept": OPENMETRICS, "Accept-Encoding": "gzip"},
    "protobuf, gzip": {"Accept": PROTOBUF, "Accept-Encoding": "gzip"},
}
PART_BYTES = 64 * 1024
EVERY_SECONDS = 0.2
BEYOND_MS = 2.0


@dataclass
class Run:
    """One run: how late the worst tick of each window was, ms, and how many ticks were stalls."""

    control_ms: float
    noise_ms: float
    """Of the second window without scrapes."""
    scraped_ms: float
    noise_stalls: int
    stalls: int
    late: tuple[int, int, int]
    """Ticks over 2 ms late: control, noise, scraped."""


class Server:
    """One arm, and a connection to it."""

    def __init__(self, port: int) -> None:
        self.port = port

    def ask(self, path: str, method: str = "GET", headers: dict[str, str] | None = None) -> tuple[bytes, float]:
        """Body, and the ms it took. Each on a connection of its own, as scrapers whose targets close them."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
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
def serving(arm: str, script: Path = SERVER) -> Iterator[Server]:
    """A fresh process."""
    with subprocess.Popen([sys.executable, str(script), *arm.split()], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            server = Server(int(process.stdout.readline()))
            server.ask("/metrics")  # the first one of a server looks for the app's own
            yield server
        finally:
            process.terminate()


def one_run(server: Server, seconds: float, turn: int) -> Run:
    """Three windows, half of each at a time, each first in its turn."""
    windows: dict[str, list[float]] = {"control": [], "noise": [], "scraped": []}
    for part in range(2):
        names = list(windows)
        first = (turn + part) % len(names)
        for name in names[first:] + names[:first]:
            windows[name] += server.ticks(seconds / 2, scrape=name == "scraped")
    control, noise, scraped = windows.values()
    return Run(
        control_ms=max(control),
        noise_ms=max(noise),
        scraped_ms=max(scraped),
        noise_stalls=sum(late > max(control) + BEYOND_MS for late in noise),
        stalls=sum(late > max(control) + BEYOND_MS for late in scraped),
        late=(_late(control), _late(noise), _late(scraped)),
    )


def _late(ticks: list[float]) -> int:
    return sum(late > BEYOND_MS for late in ticks)


def bare_socket(body: bytes) -> float:
    """ms of CPU that a thread takes to hand a body in our parts to a loopback socket that another process reads."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        reader = multiprocessing.Process(target=_drain, args=[listener.getsockname()])
        reader.start()
        writer, _ = listener.accept()
        with writer, ThreadPoolExecutor(1) as renderer:
            parts = renderer.submit(_parts, body).result()  # made by another thread, as a scrape's are
            start = time.thread_time_ns()
            for part in parts:
                writer.sendall(part)
            took = time.thread_time_ns() - start
        reader.join()
    return took / 1e6


def _parts(body: bytes) -> list[bytes]:
    return [body[start : start + PART_BYTES] for start in range(0, len(body), PART_BYTES)]


def _drain(address: tuple[str, int]) -> None:
    with socket.create_connection(address) as reader:
        while reader.recv(PART_BYTES):
            pass


def stall_bars(taken: list[Run]) -> list[Bar]:
    """Runs without a stall, against those in which nothing scraped."""
    quiet = sum(run.stalls == 0 for run in taken)
    null = sum(run.noise_stalls == 0 for run in taken)
    runs = len(taken)
    bars = [
        Bar("runs without a stall", quiet, quiet, quiet, min(0.9 * runs, null), True, f"of {runs}"),
        Bar("runs without a stall, nobody scraping", null, null, null, None, True, f"of {runs}"),
        bar_of("latest tick, control", [run.control_ms for run in taken], unit="ms"),
        bar_of("latest tick, nobody scraping", [run.noise_ms for run in taken], unit="ms"),
        bar_of("latest tick, scraped", [run.scraped_ms for run in taken], unit="ms"),
    ]
    for i, name in enumerate(("control", "nobody scraping", "scraped")):
        bars.append(bar_of(f"ticks > 2 ms late per run, {name}", [run.late[i] for run in taken], unit="ticks"))
    return bars


def cost_bars(server: Server, quick: bool) -> Iterator[Bar]:
    """What a scrape takes of the loop's thread, and how long it takes."""
    for name, headers in VARIANTS.items():
        repeats = range(3 if quick else 7)
        cpu = [server.cpu_per_scrape(headers, 3 if quick else 5) for _ in repeats]
        bar = 1.0 if "gzip" in name else None
        yield bar_of(f"loop-thread CPU per scrape, {name}", cpu, bar=bar, unit="ms")
        if bar is None:
            body, _ = server.ask("/metrics", headers=headers)
            floor = [bare_socket(body) for _ in repeats]
            yield bar_of(f"the same bytes to a bare socket, {name}", floor, unit="ms")
        took = [server.ask("/metrics", headers=headers)[1] for _ in range(3 if quick else 10)]
        yield bar_of(f"a scrape takes, {name}", took, unit="ms")


def render_bars(quick: bool) -> Iterator[Bar]:
    """CPU of the process for an answer, ms, and the share of it in what generate_latest() takes."""
    ours, theirs = expositions()
    repeats = 3 if quick else 9
    peers = {
        "plain": [_cpu_ms(theirs) for _ in range(repeats)],
        "gzip": [_cpu_ms(lambda: gzip.compress(theirs())) for _ in range(repeats)],
    }
    for name, peer in peers.items():
        yield bar_of(f"generate_latest(), the same samples, {name}: CPU", peer, unit="ms")
    for name, headers in VARIANTS.items():
        asked = headers.get("Accept", ""), headers.get("Accept-Encoding", "")
        took = [_cpu_ms(lambda: ours.respond(*asked)) for _ in range(repeats)]  # noqa: B023 - called at once
        yield bar_of(f"CPU of an answer, {name}", took, unit="ms")
        least = min(peers["gzip" if "gzip" in name else "plain"])
        yield bar_of(
            f"CPU of an answer / generate_latest(), {name}", [each / least for each in took], bar=0.1, unit="x"
        )


def expositions() -> tuple[Any, Callable[[], bytes]]:
    """Ours, of the server's label sets, and the same samples through prometheus_client."""
    from prometheus_client.exposition import generate_latest
    from scrape_server import LABEL_SETS, fill_tailwatch

    from tailwatch import _hot, snapshots
    from tailwatch.export.prometheus.exposition import Collector, Exposition

    core = _hot.Core("api", LABEL_SETS + 12, (0, 0, 0, 0, 0), 0, lambda scope: "", lambda waiting, stream: waiting)
    fill_tailwatch(types.SimpleNamespace(core=core))
    ours = Exposition(lambda: snapshots.take([core.address]), version="1", python="3", slo=lambda: "", registry=False)
    families = list(Collector(ours).collect())
    return ours, lambda: generate_latest(types.SimpleNamespace(collect=lambda: families))  # type: ignore[arg-type]


def _cpu_ms(work: Callable[[], object]) -> float:
    start = time.process_time_ns()
    work()
    return (time.process_time_ns() - start) / 1e6


def report(quick: bool = False, runs: int = 10, seconds: float = 5.0) -> Report:
    """Runs everything."""
    if quick:
        runs, seconds = 2, 1.0
    made = Report(f"Stalls of a loop that ticks each ms, 500 label sets, {runs} runs of three windows of {seconds:g} s")
    with serving("tailwatch") as server:
        sizes = {name: len(server.ask("/metrics", headers=headers)[0]) for name, headers in VARIANTS.items()}
        taken = [one_run(server, seconds, turn) for turn in range(runs)]
        made.bars += [*stall_bars(taken), *cost_bars(server, quick)]
    made.bars += render_bars(quick)
    made.notes += [f"bytes of a scrape, {name}: {size}" for name, size in sizes.items()]
    made.notes += [f"run {i}: {run}" for i, run in enumerate(taken, 1)]
    with serving("prometheus_client") as server:
        peer = one_run(server, 1.0 if quick else 4.0, 0)
        cpu = [server.cpu_per_scrape({}, 3) for _ in range(3)]
    made.bars.append(bar_of("generate_latest() in the loop: latest tick", [peer.scraped_ms], unit="ms"))
    made.bars.append(bar_of("generate_latest() in the loop: loop-thread CPU", cpu, unit="ms"))
    return made


def test_scrape(benchmark: Any) -> None:
    """A scrape over TCP, timed by pytest-benchmark; each of its variants is the whole exposition."""
    benchmark.extra_info.update(report(quick=True).as_dict())
    with serving("tailwatch") as server:
        body, _ = benchmark.pedantic(lambda: server.ask("/metrics"), rounds=5)
    assert body.count(b"tailwatch_inter_token_latency_seconds_count{") == 500


if __name__ == "__main__":
    main_in_windows(report)
