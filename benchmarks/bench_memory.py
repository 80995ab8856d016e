"""How much memory does it take, and does it stay that way?

Fixed at install at the defaults; growth of the process over 10^7 stamps and 10^5 streams, as the kernel counts it
and as tracemalloc does; and what a stream in flight takes. Each in a process of its own.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from itertools import repeat
from pathlib import Path
from typing import Any

from harness import Bar, Report, main

STAMPS, STREAMS, IN_FLIGHT = 10_000_000, 100_000, 5_000
QUICK = 20
PROBES: dict[str, Callable[[int], dict[str, float]]] = {}


def probe(run: Callable[[int], dict[str, float]]) -> Callable[[int], dict[str, float]]:
    """Something measured in a fresh process, by its name."""
    PROBES[run.__name__] = run
    return run


def resident() -> int:
    """Bytes of this process in memory."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("Rss:"))


def settled() -> int:
    """The same after a collection."""
    gc.collect()
    return resident()


@probe
def fixed(times: int) -> dict[str, float]:
    """What install reports, and what the kernel reports it took."""
    import tailwatch

    before = settled()
    watch = tailwatch.install()
    return {"says": watch.memory_bytes, "resident": settled() - before}


@probe
def stamps(times: int) -> dict[str, float]:
    """One stream, so many tokens."""
    import tailwatch

    tailwatch.install(gc="observe")
    with tailwatch.stream(model="m") as stream:
        _stamp(stream.token, 100_000)
        before = settled()
        _stamp(stream.token, times)
        grown = settled() - before
        tracemalloc.start()
        traced = tracemalloc.get_traced_memory()[0]
        _stamp(stream.token, 100_000)
        return {"resident": grown, "traced": tracemalloc.get_traced_memory()[0] - traced}


def _stamp(token: Callable[[], object], times: int) -> None:
    for _ in repeat(None, times):
        token()


@probe
def streams(times: int) -> dict[str, float]:
    """So many streams of four tokens, under 100 routes where 32 label sets fit, 64 at once."""
    import tailwatch

    tailwatch.install(gc="observe")
    _streams(5_000)
    before = settled()
    _streams(times)
    grown = settled() - before
    tracemalloc.start()
    _streams(1_000)
    traced = tracemalloc.get_traced_memory()[0]
    _streams(5_000)
    return {"resident": grown, "traced": tracemalloc.get_traced_memory()[0] - traced}


def _streams(times: int) -> None:
    import tailwatch

    for turn in range(times // 64):
        contexts = [tailwatch.stream(model="m", route=f"/{(turn + i) % 100}") for i in range(64)]
        opened = [context.__enter__() for context in contexts]
        for _ in range(4):
            for stream in opened:
                stream.token()
        for context in contexts:
            context.__exit__(None, None, None)


@probe
def in_flight(times: int) -> dict[str, float]:
    """Bytes of each open stream, by hand and in an app."""
    import tailwatch
    from tailwatch import _hot

    watch = tailwatch.install(gc="observe")
    before = settled()
    streams = [watch.core.stream("m", "r", None, "", "") for _ in range(times)]
    by_hand = (settled() - before) / len(streams)

    def send(message: Any) -> None:
        pass

    scope = {"type": "http", "headers": [], "method": "POST", "path": "/v1/completions"}
    start = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}
    before = settled()
    requests = [watch.core.request(scope, send, True, _hot.now(), _hot.now(), 0, 1, None, False) for _ in range(times)]
    waiting = (settled() - before) / times
    for request in requests:
        request.send(start)
    streaming = (settled() - before) / times
    return {"by hand": by_hand, "in an app, before its answer": waiting, "in an app, streaming": streaming}


def measured(name: str, times: int) -> dict[str, float]:
    """Runs a probe in a fresh process."""
    command = [sys.executable, __file__, "--probe", name, str(times)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def report(quick: bool = False) -> Report:
    """Runs everything."""
    share = QUICK if quick else 1
    made = Report("Memory: fixed at install, and no growth")

    def add(name: str, value: float, unit: str, bar: float | None = None) -> None:
        made.bars.append(Bar(name, value, value, value, bar, unit=unit))

    install = measured("fixed", 0)
    add("fixed at install, defaults", install["says"] / 2**20, "MiB", 5)
    add("of that resident before the first request", install["resident"] / 2**20, "MiB")
    for name, times in (("stamps", STAMPS // share), ("streams", STREAMS // share)):
        grown = measured(name, times)
        add(f"growth over {times} {name}, resident", grown["resident"] / 1024, "KiB")
        add(f"growth of Python objects over {name}, traced", grown["traced"], "bytes")
    flight = measured("in_flight", IN_FLIGHT // share)
    for how, each in flight.items():
        add(f"a stream in flight, {how}", each, "bytes")
    return made


def test_memory(benchmark: Any) -> None:
    """The memory reported at install stays within 5 MiB, and nothing of Python's grows with streams."""
    made = report(quick=True)
    benchmark.extra_info.update(made.as_dict())
    benchmark.pedantic(measured, args=("fixed", 0), rounds=1)
    values = {bar.name: bar.value for bar in made.bars}
    assert values["fixed at install, defaults"] <= 5
    assert values["growth of Python objects over stamps, traced"] < 1024
    assert values["growth of Python objects over streams, traced"] < 16 * 1024


if __name__ == "__main__":
    if sys.argv[1:2] == ["--probe"]:
        print(json.dumps(PROBES[sys.argv[2]](int(sys.argv[3]))))
    else:
        main(report)
