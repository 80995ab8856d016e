"""What does the page cost the server, closed and with ten viewers?

The server of bench_scrape.py: an event loop that ticks each millisecond, 500 label sets, 256 slow gaps. A viewer asks
for the numbers of five minutes each 2 s, as the page does. A run is three windows in changing order: two without
viewers and one with ten. Beside the stalls: the CPU time of the whole process with one viewer and with ten, of the
loop's thread per answer, and the bytes of an answer.
"""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Iterator
from typing import Any

from bench_scrape import Server, one_run, serving, stall_bars
from harness import Bar, Report, bar_of, main_in_windows

PATH = "/tailwatch/data?window=5m"
GZIP = {"Accept-Encoding": "gzip"}
VIEWERS = 10
EVERY_SECONDS = 2.0


class Viewed(Server):
    """A server that is looked at rather than scraped."""

    def ticks(self, seconds: float, *, scrape: bool) -> list[float]:
        """How late each tick of a window was, ms; scrape: with ten viewers."""
        with _viewers(self.port, VIEWERS if scrape else 0):
            return super().ticks(seconds, scrape=False)


class _viewers:
    """So many, each on a connection of its own that it keeps, spread over the 2 s."""

    def __init__(self, port: int, count: int) -> None:
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._look, args=(port, i / max(count, 1))) for i in range(count)]

    def __enter__(self) -> None:
        for thread in self._threads:
            thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _look(self, port: int, phase: float) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        if not self._over.wait(phase * EVERY_SECONDS):
            while True:
                connection.request("GET", PATH, headers=GZIP)
                answer = connection.getresponse()
                answer.read()
                assert answer.status == 200
                if self._over.wait(EVERY_SECONDS):
                    break
        connection.close()


def cpu_share(server: Server, viewers: int, seconds: float) -> float:
    """CPU time of the process while so many look, percent of a core."""
    with _viewers(server.port, viewers):
        time.sleep(0.2)
        before, since = int(server.ask("/cpu/all")[0]), time.monotonic()
        time.sleep(seconds)
        spent = int(server.ask("/cpu/all")[0]) - before
        return spent / (time.monotonic() - since) / 1e7


def cost_bars(server: Server, quick: bool) -> Iterator[Bar]:
    """CPU and bytes."""
    seconds, rounds = (2.0, 1) if quick else (6.0, 3)
    shares: dict[int, list[float]] = {0: [], 1: [], VIEWERS: []}
    for _ in range(rounds):
        for viewers, found in shares.items():
            found.append(cpu_share(server, viewers, seconds))
    yield bar_of("CPU of the process, the page closed", shares[0], unit="% of a core")
    one = [a - b for a, b in zip(shares[1], shares[0], strict=True)]
    ten = [a - b for a, b in zip(shares[VIEWERS], shares[0], strict=True)]
    yield bar_of("one viewer adds", one, bar=1.0, unit="% of a core")
    yield bar_of("ten viewers add", ten, bar=3.0, unit="% of a core")
    yield bar_of(
        "loop-thread CPU per answer", [_loop_cpu(server) for _ in range(3 if quick else 7)], bar=1.0, unit="ms"
    )
    body, _ = server.ask(PATH, headers=GZIP)
    yield bar_of("an answer, gzip", [len(body) / 1024], bar=16.0, unit="KiB")
    document, _ = server.ask("/tailwatch", headers=GZIP)
    yield bar_of("the document, gzip, once", [len(document) / 1024], bar=48.0, unit="KiB")


def _loop_cpu(server: Server, times: int = 20) -> float:
    def spent(path: str) -> float:
        before = int(server.ask("/cpu")[0])
        for _ in range(times):
            server.ask(path, headers=GZIP)
        return (int(server.ask("/cpu")[0]) - before) / times / 1e6

    return spent(PATH) - spent("/nothing")


def report(quick: bool = False, runs: int = 10, seconds: float = 5.0) -> Report:
    """Runs everything."""
    if quick:
        runs, seconds = 2, 1.0
    made = Report(f"Stalls of a loop that ticks each ms, ten viewers of the page, {runs} runs of {seconds:g} s windows")
    with serving("tailwatch") as server:
        viewed = Viewed(server.port)
        viewed.ask("/tailwatch")  # the document is made once
        taken = [one_run(viewed, seconds, turn) for turn in range(runs)]
        made.bars += [*stall_bars(taken), *cost_bars(viewed, quick)]
    made.notes += [f"run {i}: {run}" for i, run in enumerate(taken, 1)]
    return made


def test_page(benchmark: Any) -> None:
    """An answer over TCP, timed by pytest-benchmark: mostly one that was made for another viewer."""
    benchmark.extra_info.update(report(quick=True).as_dict())
    with serving("tailwatch") as server:
        body, _ = benchmark.pedantic(lambda: server.ask(PATH), rounds=5)
    assert b'"latency"' in body


if __name__ == "__main__":
    main_in_windows(report)
