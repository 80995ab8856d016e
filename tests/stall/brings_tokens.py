"""An API process that stamps tokens of another one: a thread brings them to its loop, or the loop reads them itself.

    brings_tokens.py DIRECTORY asyncio|uvloop thread|loop PAUSE_MS LATER_MS

Once the stream's gaps are known, another thread collects: a pause of PAUSE_MS, in which nothing else of the process
runs. The next token is asked for as it begins, or, with LATER_MS, so long after its end. Prints, as JSON, what the
API process's pauses cost the stream and what they coincided with, seconds, and how long the pause was.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import tailwatch

ENGINE = """
import os, sys, tailwatch
tailwatch.install(role="engine", dir=sys.argv[1], gc="observe")
os.write(1, b".")
while os.read(0, 1):
    os.write(1, b".")
"""
USUAL_TOKENS, USUAL_SECONDS = 16, 0.002
EPOLL_WAITS = {"232", "281", "22"}  # epoll_wait, epoll_pwait; that on aarch64


class Pause:
    """Garbage whose collection takes a while, all of it with the interpreter lock."""

    def __init__(self, engine: subprocess.Popen[bytes], milliseconds: int, asks: bool) -> None:
        assert engine.stdin is not None
        ask_first = f"printf . > /proc/{os.getpid()}/fd/{engine.stdin.fileno()}; " if asks else ""
        self.me, self.command = self, f"{ask_first}sleep {milliseconds / 1e3}".encode()

    def __del__(self) -> None:
        assert ctypes.PyDLL(None).system(self.command) == 0  # one call, all of it with the interpreter lock


def ask(engine: subprocess.Popen[bytes]) -> None:
    """For a token."""
    assert engine.stdin is not None
    os.write(engine.stdin.fileno(), b".")


def sleeps(thread: int) -> bool:
    """Whether the loop of that thread waits for events."""
    return Path(f"/proc/self/task/{thread}/syscall").read_text().split()[0] in EPOLL_WAITS


def pause(engine: subprocess.Popen[bytes], milliseconds: int, later: int) -> None:
    """In a thread of its own, once the loop sleeps."""
    while not sleeps(threading.main_thread().native_id or 0):
        time.sleep(0.001)
    Pause(engine, milliseconds, not later)
    gc.collect()
    if later:
        time.sleep(later / 1e3)
        ask(engine)


class Tokens:
    """The engine's, as they come."""

    def __init__(self, engine: subprocess.Popen[bytes], way: str) -> None:
        assert engine.stdout is not None
        self.fd, self.way = engine.stdout.fileno(), way

    async def next(self) -> None:
        """The next one is here."""
        if self.way == "loop":
            await self.readable()
            assert os.read(self.fd, 1)
        else:
            assert await asyncio.to_thread(os.read, self.fd, 1)

    async def readable(self) -> None:
        """By the loop."""
        loop, came = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self.fd, came.set)
        await came.wait()
        loop.remove_reader(self.fd)


async def serve(directory: str, way: str, milliseconds: int, later: int) -> dict[str, Any]:
    """One stream."""
    watch = tailwatch.install(role="api", dir=directory, gc="observe", gc_warn_ms=0)
    watch.host.use_loop()
    engine = subprocess.Popen([sys.executable, "-c", ENGINE, directory], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with engine, tailwatch.stream() as stream:
        tokens = Tokens(engine, way)
        await tokens.next()  # it has joined
        while len(watch.snapshot().processes) < 2:
            await asyncio.sleep(USUAL_SECONDS)
        gc.disable()
        for _ in range(USUAL_TOKENS):
            ask(engine)
            await tokens.next()
            stream.token()
            await asyncio.sleep(USUAL_SECONDS)
        before = watch.snapshot()
        paused = threading.Thread(target=pause, args=(engine, milliseconds, later))
        paused.start()
        await tokens.next()
        stream.token()
        paused.join()
        after = watch.snapshot()
        assert engine.stdin is not None
        engine.stdin.close()
    charged = [total(after.delay_by_source) - total(before.delay_by_source)]
    charged += [total(after.overlap_by_source) - total(before.overlap_by_source)]
    return {"delay": charged[0], "overlap": charged[1], "errors": after.errors}


def total(by_source: dict[str, dict[str, dict[str, float]]]) -> float:
    """Seconds of gaps that collections of the API process took."""
    return sum(by_source.get("api", {}).get("itl", {}).values())


if __name__ == "__main__":
    directory, loop, way, milliseconds, later = sys.argv[1:]
    if loop == "uvloop":
        __import__("uvloop").install()
    print(json.dumps(asyncio.run(serve(directory, way, int(milliseconds), int(later)))))
