"""A small server's day in a second or two under one policy: what streams lost to the collector, what the doctor finds.

    python advice_workload.py POLICY          prints JSON

A heap of living objects; streams on one loop, by hand, whose every token makes objects that live for a while, hang in
cycles, and grow old. The tokens are a given number, whatever the policy.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import json
import random
import sys
from collections import deque
from typing import Any

import tailwatch
from tailwatch.diagnose import gc_advice

STREAMS, TOKENS, STEP = 8, 110, 0.008
LIVING, EACH, KEPT = 1_200_000, 360, 120_000  # full passes cost half more than the policy's work at most
THRESHOLDS = (700, 10, 10)  # 3.13 begins with 2000: a third of the young collections, and of what they cost


def cycle() -> list[Any]:
    """Two lists that hold each other."""
    one: list[Any] = []
    one.append([one])
    return one


def scattered() -> list[Any]:
    """Living objects, not in the order of their addresses: as in a server that has been loading for a while."""
    living: list[Any] = [[number] for number in range(LIVING)]
    random.Random(1).shuffle(living)
    del living[: LIVING // 2]
    living += [[number] for number in range(LIVING // 2)]
    return living


async def serve(queue: deque[list[Any]]) -> None:
    """One stream."""
    with tailwatch.stream(model="m", route="/v1") as stream:
        for _ in range(TOKENS):
            await asyncio.sleep(STEP)
            for _ in range(EACH):
                queue.append(cycle())
            while len(queue) > KEPT:
                queue.popleft()
            stream.token()


async def serve_all() -> None:
    """All of them, at once."""
    queue: deque[list[Any]] = deque()
    await asyncio.gather(*(serve(queue) for _ in range(STREAMS)))


def main(policy: str) -> None:
    """Serve under it, and print."""
    gc.set_threshold(*THRESHOLDS)
    living = scattered()
    watch = tailwatch.install(gc=policy)
    if policy != "observe":
        tailwatch.freeze()
    asyncio.run(serve_all())
    snapshot, context = watch.snapshot(), watch.context()
    saving = gc_advice.predict(
        snapshot, policy=context.gc_policy, thresholds=context.thresholds, version=context.python_version
    )
    figures = {
        "delay": sum(snapshot.delay.values()),
        "tokens": snapshot.tokens,
        "full": snapshot.gc.collections["gc2"],
        "slices": sum(tailwatch.gc_status().slices.values()),
        "collections": tailwatch.gc_status().collections,
        "status": dataclasses.asdict(tailwatch.gc_status()),
        "saving": dataclasses.asdict(saving) if saving else None,
        "findings": [dataclasses.asdict(finding) for finding in watch.doctor()],
        "seconds": snapshot.seconds,
        "living": len(living),
    }
    tailwatch.uninstall()
    print(json.dumps(figures))


if __name__ == "__main__":
    main(sys.argv[1])
