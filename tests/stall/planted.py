"""A server in one file whose event loop is stalled on purpose: what is charged, and how much.

An engine, a process of its own, sends the time by a socket every 10 ms; the loop reads it and stamps it: readiness is
known. Stalls are planted, each with a log of its own. Of each token that is later than 2 ms the thread's time from its
emission to its stamp is split, and written as a line of JSON beside the plants that overlap it, and beside what the
thread waited for a CPU meanwhile: two readings of the kernel's counter, the first one by the engine. A wait that goes
on as the token is emitted is in it, too. 0 where the kernel has no such counter:

    python planted.py [--trace=FILE] LOOP SECONDS_BETWEEN ROUNDS PLANT [PLANT ...]       "a+b": both at once
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
from importlib import import_module
from pathlib import Path
from typing import Any

import tailwatch
from tailwatch import _hot
from tailwatch.demo.plants import before_stamp, log, prepare, run, start

LATE_NS = 2_000_000
TOKEN_SECONDS = 0.01

STAMP_BYTES = 16  # a token: when it was sent, what the loop's thread had waited for a CPU until then

ENGINE = """
import socket, sys, time
out = socket.socket(fileno=int(sys.argv[1]))
due = time.monotonic()
while True:
    due = max(due + float(sys.argv[2]), time.monotonic() - 1)
    time.sleep(max(0, due - time.monotonic()))
    try:
        with open(sys.argv[3]) as counter:
            queued = int(counter.read().split()[1])
    except OSError:
        queued = 0
    out.sendall(time.monotonic_ns().to_bytes(8, "little") + queued.to_bytes(8, "little"))
"""


class Tokens:
    """Reads the engine's times."""

    def __init__(self, core: _hot.Core, stream: Any, source: socket.socket, counter: str) -> None:
        self.core, self.stream, self.source = core, stream, source
        self.counter = Path(counter)
        self.late: list[tuple[int, int, int, Any]] = []
        self.tokens = 0
        self.stamped = 0

    def read(self) -> None:
        data = self.source.recv(STAMP_BYTES * 64)
        emitted, queued = (int.from_bytes(word, "little") for word in (data[:8], data[8:STAMP_BYTES]))
        ran_own = bool(before_stamp)
        while before_stamp:
            run(before_stamp.pop())
        self.stream.token()
        now = _hot.now()
        self.tokens += 1
        # What is late because the one before it was is no stall of its own.
        if now - emitted > LATE_NS:
            waited = int(self.counter.read_text(encoding="ascii").split()[1]) - queued if queued else 0
            self.late.append((emitted, now, waited, self.core.split_host(emitted, now)))
        if ran_own:
            self.source.recv(STAMP_BYTES * 64)  # those that came meanwhile waited for another call of this function


def describe(emitted: int, stamped: int, queued: int, split: Any) -> dict[str, Any]:
    parts, idle = split
    truth: dict[str, int] = {}
    for name, began, ended in log:
        if (overlap := min(ended, stamped) - max(began, emitted)) > 0:
            truth[name] = truth.get(name, 0) + overlap
    return {"late": stamped - emitted, "queued": queued, "idle": idle, "truth": truth, "parts": parts}


async def serve(between: float, rounds: int, plants: list[str], trace: str = "") -> dict[str, Any]:
    watch = tailwatch.install(role="api", gc="observe", trace_events=65536 if trace else 0)
    watch.host.use_loop()
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    counter = f"/proc/{os.getpid()}/task/{threading.get_native_id()}/schedstat"
    engine = subprocess.Popen(
        [sys.executable, "-c", ENGINE, str(theirs.fileno()), str(TOKEN_SECONDS), counter], pass_fds=[theirs.fileno()]
    )
    try:
        with tailwatch.stream(model="m") as stream:
            tokens = Tokens(watch.core, stream, ours, counter)
            loop.add_reader(ours, tokens.read)
            await asyncio.sleep(0.3)
            tokens.late.clear()
            for _ in range(rounds):
                for plant in plants:
                    for each in plant.split("+"):
                        prepare(each)
                    await asyncio.sleep(between)
                    for each in plant.split("+"):
                        start(loop, each)
                    await asyncio.sleep(between)
                    while any(thread.name.startswith("Thread") for thread in threading.enumerate()):
                        await asyncio.sleep(0.01)
            loop.remove_reader(ours)
        status = watch.core.host_status()
        if trace:
            tailwatch.trace(trace)
        stalls = {cause: [times.count, times.sum] for cause, times in tailwatch.snapshot().stalls.items()}
    finally:
        engine.kill()
        engine.wait()
    found = [describe(*each) for each in tokens.late]
    return {"tokens": tokens.tokens, "late": found, "status": status, "stalls": stalls, "log": log} | {
        "undone": tailwatch.uninstall()
    }


def main() -> None:
    trace = sys.argv.pop(1).removeprefix("--trace=") if sys.argv[1].startswith("--trace=") else ""
    loop, between, rounds, *plants = sys.argv[1:]
    if loop == "uvloop":
        import_module("uvloop").install()
    print(json.dumps(asyncio.run(serve(float(between), int(rounds), plants, trace))), flush=True)


if __name__ == "__main__":
    main()
