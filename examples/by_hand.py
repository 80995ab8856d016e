"""Streams stamped by hand, without a web framework: threads, gRPC, an engine loop.

    python examples/by_hand.py

prints what each token waited for, and what the collector took of it.
"""

from __future__ import annotations

import asyncio
import gc
import time

import tailwatch


def generate(prompt: str, tokens: int = 40) -> str:
    """A model that takes 2 ms a token, and a collection in the way of one of them."""
    with tailwatch.stream(model="toy", route="generate", request_id=prompt) as stream:
        for i in range(tokens):
            time.sleep(0.002)
            if i == tokens // 2:
                gc.collect()
            stream.token()
    return f"{prompt}: {stream.tokens} tokens, longest gap {stream.worst_gap_ns / 1e6:.1f} ms"


async def generate_batches(prompt: str) -> None:
    """Several tokens in one message, each stamped at the moment it is handed over."""
    async with tailwatch.stream(model="toy", route="batches", request_id=prompt) as stream:
        for _ in range(10):
            await asyncio.sleep(0.005)
            stream.token(4)


def main() -> None:
    """Installs, streams, and prints the snapshot."""
    heap = [{"prompt": str(i), "tokens": [i]} for i in range(100_000)]  # what a server holds
    tailwatch.install(gc="observe", role="engine", slo="ttft<=50ms,itl<=20ms")
    try:
        for number in range(5):
            print(generate(f"request {number}"))
        asyncio.run(generate_batches("request 5"))
        report(tailwatch.snapshot())
    finally:
        tailwatch.uninstall()
        del heap


def report(snapshot: tailwatch.snapshots.Snapshot) -> None:
    """The numbers that one looks at first."""
    print(f"requests: {snapshot.requests['good']} good, {snapshot.outcomes['miss']} missed; {snapshot.tokens} tokens")
    for name in ("ttft", "itl", "itl_without_gc"):
        histogram = getattr(snapshot, name)
        print(f"{name}: p50 {histogram.p(50) * 1e3:.1f} ms, p99 {histogram.p(99) * 1e3:.1f} ms")
    for cause, seconds in snapshot.delay.items():
        if seconds:
            print(f"{cause} delayed the streams by {seconds * 1e3:.1f} ms together")
    for gap in snapshot.slowest[:3]:
        print(f"slow: {gap.request_id}, token {gap.token}, {gap.gap * 1e3:.1f} ms")


if __name__ == "__main__":
    main()
