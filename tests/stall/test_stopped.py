"""A process that is stopped while its loop waits for something else, which goes on waiting after it."""

from __future__ import annotations

import os
import signal
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

from ..support.process import Process, Python, clean_environment
from ..support.waiting import until

STOP_SECONDS = 0.3
WAITS = """
import asyncio, json, os, sys, threading
import tailwatch
from tailwatch import _hot
from tailwatch._cold import ffi

watch = tailwatch.install(role="api", gc="off")
segment = ffi.cast("const tw_segment *", watch.core.address)
pipe, end = os.pipe()
waits = threading.Event()

def obey():
    waits.wait()
    for order in sys.stdin:
        if order == "go on\\n":
            os.write(end, b"x")
            return
        ring = segment.host.by_watchdog
        looked = segment.host.samples, ring.span[(ring.head - 1) % len(ring.span)].to_ns
        print(json.dumps(looked if order == "look\\n" else looked[0]), flush=True)

async def wait():
    watch.host.use_loop()
    with tailwatch.stream(model="m"):
        await asyncio.sleep(0)
        began = _hot.now()
        waits.set()
        os.read(pipe, 1)
        print(json.dumps(watch.core.split_host(began, _hot.now())[0]), flush=True)

threading.Thread(target=obey, daemon=True).start()
asyncio.run(wait())
"""


@pytest.fixture
def waiting() -> Iterator[Process]:
    """A process whose loop waits for a pipe. It answers to "samples" with how many were taken; to "look" with that and
    until when the latest shows the wait; to "go on" with what the wait was made of."""
    with Python(WAITS, env=clean_environment()) as process:
        yield process


def stop(process: Process, seconds: float) -> tuple[float, float]:
    """Stops it for about that long: at least, at most."""
    before = time.monotonic()
    process.signal(signal.SIGSTOP)
    os.waitpid(process.pid, os.WUNTRACED)
    began = time.monotonic()
    time.sleep(seconds)  # this is the stop, and not a wait for anything
    ended = time.monotonic()
    process.signal(signal.SIGCONT)
    return ended - began, time.monotonic() - before


def sampled(process: Process, count: int) -> None:
    """Waits for so many samples more."""
    before = process.ask("samples")
    until(lambda: process.ask("samples") >= before + count, f"{count} samples")


def seconds_by_cause(parts: list[list[Any]]) -> dict[str, float]:
    """Of what split_host() gives."""
    found: dict[str, float] = defaultdict(float)
    for cause, ns, *_ in parts:
        found[cause] += ns / 1e9
    return found


@pytest.mark.alone
@pytest.mark.parametrize("samples", [3, 40])
def test_a_wait_does_not_go_on_through_a_stop(waiting: Process, samples: int) -> None:
    """Samples before and after the stop show the same wait, those of a long one far apart; the time between is the
    stop's, but for a period of the watchdog before it."""
    sampled(waiting, samples)
    least, most = stop(waiting, STOP_SECONDS)
    sampled(waiting, 3)
    parts = waiting.ask("go on")
    found = seconds_by_cause(parts)
    assert 0.9 * least <= found["stopped"] <= most + 0.1, parts
    assert found["io"] > 0, parts
    assert found["unexplained"] < 0.1, parts


@pytest.mark.alone
def test_a_wait_is_seen_to_go_on_between_two_samples(waiting: Process) -> None:
    """Each turn of the watchdog has it, which is many turns where samples are far apart."""
    sampled(waiting, 20)
    ends: dict[int, set[int]] = defaultdict(set)  # of the wait, by how many samples there were

    def looked() -> bool:
        samples, end_ns = waiting.ask("look")
        ends[samples].add(end_ns)
        return len(ends[samples]) > 3

    until(looked, "the wait to go on without a sample")
    assert waiting.ask("go on")
