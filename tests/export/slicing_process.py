"""A process under idle that does on request what a dashboard's row about the policy is to show.

python slicing_process.py GROUP_DIRECTORY METRICS_PORT     each line that it reads: once more; it answers "done"
"""

from __future__ import annotations

import gc
import sys
import time

import tailwatch

MOST_OBJECTS = 20_000
DEADLINE_SECONDS = 30


class Node:
    """A cycle."""

    def __init__(self) -> None:
        self.me = [self]


def make_slices(watch: tailwatch.Watch) -> None:
    """Cycles grow old and die, in slices and in a whole pass."""
    for whole in (False, True):
        nodes = [Node() for _ in range(2_000)]
        gc.collect(0)
        gc.collect(1)
        nodes.clear()
        for _ in range(40):
            watch.gc.idle_gc.slicer.slice(10_000)
        if whole:
            watch.gc.idle_gc.whole_pass()


def exceed(watch: tailwatch.Watch) -> None:
    """More objects than the memory limit allows, until that is seen."""
    before = watch.gc_status().memory_limits["objects"]
    kept = [Node() for _ in range(2 * MOST_OBJECTS)]
    deadline = time.monotonic() + DEADLINE_SECONDS
    while watch.gc_status().memory_limits["objects"] == before:  # the daemon looks several times a second
        assert time.monotonic() < deadline, "the memory limit was not reached"
        time.sleep(0.02)
    kept.clear()
    gc.collect()


def main(directory: str, port: str) -> None:
    """Until its input ends."""
    watch = tailwatch.install(
        role="engine", dir=directory, gc="idle", gc_memory_limit=f"objects={MOST_OBJECTS}", metrics_port=int(port)
    )
    tailwatch.freeze()
    print("done", flush=True)
    for _ in sys.stdin:
        make_slices(watch)
        exceed(watch)
        gc.disable()  # by other code
        gc.enable()
        print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
