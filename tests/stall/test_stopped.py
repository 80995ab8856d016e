"""A process that is stopped while its loop waits for something else, which goes on waiting after it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from ..support.process import clean_environment

STOP_SECONDS = 0.4
WAITS = """
import asyncio, json, os, sys, threading, time
import tailwatch
from tailwatch import _hot
from tailwatch._cold import ffi

watch = tailwatch.install(role="api", gc="off")
segment = ffi.cast("const tw_segment *", watch.core.address)
pipe, end = os.pipe()

def obey():
    for order in sys.stdin:
        if order == "go on\\n":
            os.write(end, b"x")
            return
        before = segment.host.samples
        while segment.host.samples < before + 3:
            time.sleep(0.002)
        print("sampled", flush=True)

async def wait():
    watch.host.use_loop()
    with tailwatch.stream(model="m"):
        await asyncio.sleep(0)
        began = _hot.now()
        os.read(pipe, 1)
        print(json.dumps(watch.core.split_host(began, _hot.now())[0]), flush=True)

threading.Thread(target=obey, daemon=True).start()
asyncio.run(wait())
"""


class Waiting:
    """A process whose loop waits for a pipe, and a thread of it that takes orders."""

    def __init__(self) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            [sys.executable, "-c", WAITS], stdin=pipe, stdout=pipe, text=True, env=clean_environment()
        )

    def ask(self, order: str) -> str:
        """The line that it answers."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(order, file=self.process.stdin, flush=True)
        return self.process.stdout.readline()

    def stop(self, seconds: float) -> float:
        """For that long. Returns how long it was."""
        os.kill(self.process.pid, signal.SIGSTOP)
        os.waitpid(self.process.pid, os.WUNTRACED)
        began = time.monotonic()
        time.sleep(seconds)
        stopped = time.monotonic() - began
        os.kill(self.process.pid, signal.SIGCONT)
        return stopped


@pytest.fixture
def waiting() -> Iterator[Waiting]:
    """Ended with the test."""
    one = Waiting()
    with one.process:
        yield one
        one.process.kill()


@pytest.mark.alone
def test_a_wait_does_not_go_on_through_a_stop(waiting: Waiting) -> None:
    """Samples before and after the stop show the same wait; the time between them is the stop's."""
    assert waiting.ask("sample") == "sampled\n"
    stopped = waiting.stop(STOP_SECONDS)
    assert waiting.ask("sample") == "sampled\n"
    parts = json.loads(waiting.ask("go on"))
    by_cause = {cause: ns / 1e9 for cause, ns, *_ in parts}
    assert by_cause["stopped"] == pytest.approx(stopped, rel=0.1), parts
    assert by_cause["io"] > 0, parts
