"""One client process under a closed loop of streams: ours, and the least that a client can do.

    python clients.py WAY PORT --connections 400 --seconds 3 --tokens 64 [--stamps FILE]

WAY: `pool` is tailwatch.loadtest's client as it is; `bare` is a protocol that stamps each read, counts "data: " in it
and looks whether it ends an answer: no HTTP, no JSON, no times between tokens. Both on uvloop (`--asyncio`: on
asyncio's own), both with as many connections, each asking again as soon as it was answered, all from one moment on (how
their tokens fall together decides how often a client wakes up, which costs it more than the tokens do). Prints one JSON
object: what was counted within the window, and the CPU time of this process for it. --stamps (of `pool`): when each
message came, in the format of token_server.c, which names a request by its seed.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import json
import struct
import sys
import time
from pathlib import Path
from typing import Any, BinaryIO

# This directory is no package; the compiled modules are those of the installed tailwatch.
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parents[2]]

LAST = b"0\r\n\r\n"
WARM = 0.7  # seconds before the window


def request(tokens: int, seed: int) -> bytes:
    """The bytes of one request."""
    body = b'{"model":"m","prompt":"x","stream":true,"max_tokens":%d,"seed":%d}' % (tokens, seed)
    return (
        b"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%s" % (len(body), body)
    )


class Tally:
    """What was answered."""

    def __init__(self) -> None:
        self.tokens = self.answers = 0
        self.ttft: list[int] = []
        self.counting = False

    def add(self, tokens: int, ttft_ns: int) -> None:
        """One answer."""
        self.tokens += tokens
        self.answers += 1
        self.ttft.append(ttft_ns)


class Bare(asyncio.Protocol):
    """One connection of the bare client."""

    def __init__(self, tally: Tally, data: bytes) -> None:
        self._tally = tally
        self._request = data
        self._transport: Any = None
        self._first = self._sent = self._events = 0
        self.over = False

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def ask(self) -> None:
        """Sends the request."""
        self._first = self._events = 0
        self._sent = time.monotonic_ns()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.monotonic_ns()
        events = data.count(b"data: ")
        if events and self._first == 0:
            self._first = now
        self._events += events
        if data.endswith(LAST):
            self._tally.add(self._events - 2, self._first - self._sent)  # usage and [DONE] are no tokens
            if not self.over:
                self.ask()

    def close(self) -> None:
        """The end of it."""
        self.over = True
        self._transport.abort()


async def bare(port: int, connections: int, tokens: int, tally: Tally) -> Any:
    """Starts the bare client; what ends it."""
    loop = asyncio.get_running_loop()
    clients = [
        (await loop.create_connection(lambda: Bare(tally, request(tokens, 0)), "127.0.0.1", port))[1]
        for _ in range(connections)
    ]
    for client in clients:
        loop.call_soon(client.ask)
    return lambda: [client.close() for client in clients]


async def pool(port: int, connections: int, tokens: int, tally: Tally, stamps: BinaryIO | None = None) -> Any:
    """Starts ours."""
    from tailwatch.loadtest.exchange import Ending, Exchange
    from tailwatch.loadtest.pool import Pool, Target

    made = Pool(Target("127.0.0.1", port), timeout=60, deadlines_ns=(10**8, 10**7))
    await made.warm(connections)
    data, over, seeds = request(tokens, 0), [], itertools.count(1)

    def ask() -> None:
        if over:
            return
        seed = next(seeds)
        made.send(Exchange(time.monotonic_ns(), seed), data if stamps is None else request(tokens, seed), done)

    def done(exchange: Exchange) -> None:
        if exchange.ending is not Ending.FINISHED:
            return
        tally.add(exchange.tokens, exchange.first_content_ns - exchange.sent_ns)
        if stamps is not None and tally.counting:
            stamps.write(struct.pack("2Q", exchange.tag, exchange.messages) + exchange.stamps)
        ask()

    loop = asyncio.get_running_loop()
    for _ in range(connections):
        loop.call_soon(ask)
    return lambda: (over.append(1), made.close())


WAYS = {"bare": bare, "pool": pool}


def percentile(values: list[int], q: float) -> float:
    """Nearest rank, in ms."""
    return sorted(values)[min(int(len(values) * q), len(values) - 1)] / 1e6 if values else float("nan")


async def run(options: argparse.Namespace) -> dict[str, float]:
    """Warm, then the window."""
    tally = Tally()
    file = {} if options.stamps is None else {"stamps": options.stamps}
    stop = await WAYS[options.way](options.port, options.connections, options.tokens, tally, **file)
    await asyncio.sleep(WARM)
    gc.collect()
    gc.freeze()
    gc.disable()  # as a load client runs
    tally.tokens = tally.answers = 0
    tally.counting = True
    tally.ttft.clear()
    cpu, wall = time.process_time(), time.monotonic()
    await asyncio.sleep(options.seconds)
    cpu, wall = time.process_time() - cpu, time.monotonic() - wall
    tokens, answers, ttft = tally.tokens, tally.answers, list(tally.ttft)
    stop()
    await asyncio.sleep(0.05)
    return {
        "tokens_per_s": tokens / wall,
        "tokens_per_cpu_s": tokens / cpu,
        "cpu": cpu / wall,
        "answers": answers,
        "ttft_p50_ms": percentile(ttft, 0.5),
        "ttft_p99_ms": percentile(ttft, 0.99),
    }


def main() -> None:
    """The script."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("port", type=int)
    parser.add_argument("--connections", type=int, default=400)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--asyncio", action="store_true")
    parser.add_argument("--stamps", type=argparse.FileType("wb"))
    options = parser.parse_args()
    loop = asyncio.new_event_loop()
    if not options.asyncio:
        import uvloop

        loop = uvloop.new_event_loop()
    print(json.dumps(loop.run_until_complete(run(options))))
    loop.close()
    if options.stamps is not None:
        options.stamps.close()


if __name__ == "__main__":
    main()
