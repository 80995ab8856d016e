"""What does the load signal cost: a request, a reading, and the daemon's look for the healthy concurrency?

A request pays for one sample in its row (ttft_by_concurrency.h), two counters and a comparison. The sample is timed
through cffi, the cost of whose call is taken off; rows of 250 concurrencies in turn, so that the caches are as cold
as in a server. Beside it the whole request by hand, which contains it; and with sse_timing on what each message pays
on its way.
"""

from __future__ import annotations

import itertools
import time
from typing import Any

from harness import LOOP, REPEATS, Report, Run, empty_loop, loop, main, measure

import tailwatch
from tailwatch import _hot, snapshots
from tailwatch._cold import ffi, lib
from tailwatch.asgi.response_headers import Annotator

SAMPLE, CALL, REQUEST, READ = "a first token's sample", "a cffi call", "a request by hand", "load_signal()"
SEND, ASKED = "a message", "a message, sse_timing on"
BAR_NS = 200.0
CHUNK = {"type": "http.response.body", "body": b'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n',
         "more_body": True}  # fmt: skip
START = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}


class Flow:
    """A connection that takes everything."""

    write_paused = False


def rows() -> Any:
    """Concurrencies of 250 rows, in an order that no prefetcher follows."""
    return itertools.cycle([1 + 97 * i % 251 for i in range(250)])


def sample() -> Run:
    """tw_ttft_note()."""
    ttfts, streams, note = ffi.new("tw_ttft_by_concurrency *"), rows(), lib.tw_ttft_note
    now = _hot.now()
    return loop(lambda: note(ttfts, next(streams), 50_000_000, now))


def call() -> Run:
    """As many arguments, and hardly any work."""
    ttfts, streams, share = ffi.new("tw_ttft_by_concurrency *"), rows(), lib.tw_ttft_share
    return loop(lambda: share(ttfts, next(streams) * 0))


def request(watch: tailwatch.Watch) -> Run:
    """Opened, one token, closed."""

    def serve() -> None:
        stream = watch.core.stream("m", "/r", None, "", "")
        stream.token()
        stream.close()

    return loop(serve)


def sender(watch: tailwatch.Watch, annotator: Annotator | None) -> Run:
    """One chunk after another of one answer."""
    scope: dict[str, Any] = {"type": "http", "method": "POST", "headers": []}
    now = _hot.now()
    answer = annotator.begin(scope, lambda message: None, now, now, 0, 1) if annotator else None
    made = watch.core.request(scope, answer or (lambda message: None), True, now, now, 0, 1, Flow, False)
    if answer is not None:
        answer.stream = made.stream
    made.send(START)
    return loop(lambda: made.send(CHUNK))


def planted(watch: tailwatch.Watch) -> None:
    """A table full up to 250 streams."""
    base = _hot.now() - 60_000_000_000
    for again in range(20):
        streams = []
        for number in range(1, 251):
            arrival = base + again * 2_000_000_000
            stream = watch.core.stream("m", "/r", arrival, "", "")
            stream.token(at=arrival + (50 + 5 * max(0, number - 128) + again) * 1_000_000)
            streams.append(stream)
        for stream in streams:
            stream.close()


def look(watch: tailwatch.Watch, times: int) -> list[float]:
    """Milliseconds of the daemon's look, from a full table."""
    spent = []
    for _ in range(times):
        start = time.perf_counter_ns()
        snapshots.healthy([watch.core.address])
        spent.append((time.perf_counter_ns() - start) / 1e6)
    return sorted(spent)


def report(quick: bool = False) -> Report:
    """Runs everything."""
    made = Report("What the load signal costs")
    repeats = 5 if quick else REPEATS
    watch = tailwatch.install(gc="off", role="engine")
    try:
        planted(watch)
        watch.load.refresh()
        asked = Annotator(load=None, sse_timing=True, on_error=lambda: None)
        cases = {
            LOOP: empty_loop, SAMPLE: sample(), CALL: call(), REQUEST: request(watch), READ: loop(watch.load_signal),
            SEND: sender(watch, None), ASKED: sender(watch, asked),
        }  # fmt: skip
        samples = measure(cases, number=dict.fromkeys(cases, 2_000) | {LOOP: 20_000}, repeats=repeats)
        made.calls |= samples.calls()
        made.bars.append(
            samples.difference(SAMPLE, CALL, label=f"{SAMPLE}: what a request pays", unit="ns", bar=BAR_NS)
        )
        made.bars.append(samples.ratio(SAMPLE, REQUEST, less=CALL, label="the same / a request by hand"))
        made.bars.append(samples.difference(READ, LOOP, label=READ, unit="us"))
        made.bars.append(samples.difference(ASKED, SEND, label=f"{ASKED}: added", unit="ns"))
        spent = look(watch, 5 if quick else 101)
        made.notes.append(f"the daemon's look, every 2 s, without the GIL: {spent[len(spent) // 2]:.2f} ms (median)")
    finally:
        tailwatch.uninstall()
    return made


def test_signal(benchmark: Any) -> None:
    """A reading, timed by pytest-benchmark; what it reads is there."""
    made = report(quick=True)
    benchmark.extra_info.update(made.as_dict())
    watch = tailwatch.install(gc="off", role="engine")
    try:
        planted(watch)
        watch.load.refresh()
        found = benchmark.pedantic(watch.load_signal, rounds=20, iterations=50)
        assert found.verdict == "found"
        assert found.healthy is not None and 115 <= found.healthy <= 141
    finally:
        tailwatch.uninstall()


if __name__ == "__main__":
    main(report)
