"""A queue of knee_queues.py behind a socket, in real time: `python queue_server.py CASE SEED`.

Its first line of output is its port; it ends with its standard input. The queue keeps a time of its own: a request
joins when it is read, and a timer that fires late takes nothing from the capacity.
"""

from __future__ import annotations

import asyncio
import heapq
import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

# This directory is no package; the compiled modules are those of the installed tailwatch.
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parents[2]]

import numpy as np  # noqa: E402
from knee_queues import CASES, FCFS, Batches, drawn  # noqa: E402

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 3\r\n\r\nok\n"
Done = Callable[[], None]


class Slots:
    """First come, first served."""

    def __init__(self, server: FCFS, seed: int) -> None:
        self._loop, self._free = asyncio.get_running_loop(), [0.0] * server.servers
        self._lengths = drawn(server.draw, np.random.default_rng(seed))

    def join(self, done: Done) -> None:
        """done: called when it was served."""
        end = max(self._loop.time(), self._free[0]) + next(self._lengths)
        heapq.heapreplace(self._free, end)
        self._loop.call_at(end, done)


class Batching:
    """All that wait at once, up to a number."""

    def __init__(self, server: Batches, _: int) -> None:
        self._loop, self._server, self._busy = asyncio.get_running_loop(), server, False
        self._waiting: deque[tuple[float, Done]] = deque()

    def join(self, done: Done) -> None:
        """done: called when it was served."""
        now = self._loop.time()
        self._waiting.append((now, done))
        if not self._busy:
            self._begin(now)

    def _begin(self, start: float) -> None:
        batch = []
        while self._waiting and len(batch) < self._server.most and self._waiting[0][0] <= start:
            batch.append(self._waiting.popleft()[1])
        end = start + self._server.fixed + self._server.each * len(batch)
        self._busy = True
        self._loop.call_at(end, self._end, batch, end)

    def _end(self, batch: list[Done], end: float) -> None:
        for done in batch:
            done()
        self._busy = False
        if self._waiting:
            self._begin(max(end, self._waiting[0][0]))


class Connection(asyncio.Protocol):
    """GET requests, one after the other; the path does not matter."""

    def __init__(self, queue: Slots | Batching) -> None:
        self._queue, self._transport, self._read = queue, None, b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._read += data
        while b"\r\n\r\n" in self._read:
            self._read = self._read.partition(b"\r\n\r\n")[2]
            self._queue.join(lambda: self._transport.write(ANSWER))


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


async def main() -> None:
    """Serves until standard input ends."""
    server = next(case.server for case in CASES if case.name == sys.argv[1])
    queue = (Slots if isinstance(server, FCFS) else Batching)(server, int(sys.argv[2]))
    loop = asyncio.get_running_loop()
    listening = await loop.create_server(lambda: Connection(queue), "127.0.0.1", 0, backlog=4096)
    print(listening.sockets[0].getsockname()[1], flush=True)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    await listening.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
