"""Threads build tuples, frozen sets, dicts, generators and frames beside freezes and slices; prints what went wrong.

Usage: builds_beside_freezes.py POLICY TURNS. A turn is a freeze by the host, by us, or past our hook, or a slice
("idle" only), with young collections in between, so that what is being built grows old meanwhile.
"""

from __future__ import annotations

import gc
import json
import random
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from tailwatch import _hot
from tailwatch.gc.hook import GCHook
from tailwatch.gc.idle import SLICE_REASONS

freeze_past_the_hook, unfreeze = gc.freeze, gc.unfreeze
THREADS = 8
SWITCH_SECONDS = 0.00002  # a switch in the midst of most tuples
ITEMS = 40  # a tuple of an iterator is made longer four times until then
TURNS_FROZEN = 256  # what is frozen as it dies is freed after so many turns, in passes over the whole heap


class Pair(NamedTuple):
    """A tuple of another type."""

    one: list[int]
    other: list[int]


def items(number: int) -> Iterator[list[int]]:
    """New containers, one at a time."""
    for each in range(number):
        yield [each]


def depth(number: int) -> int:
    """So many frames."""
    return 0 if number == 0 else 1 + depth(number - 1)


def build_tuple() -> bool:
    return tuple(items(ITEMS)) == tuple([each] for each in range(ITEMS))


def build_nested() -> bool:
    return tuple(tuple(items(each)) for each in range(12))[11][10] == [10]


def build_pair() -> bool:
    return Pair._make(items(2)) == ([0], [1])


def build_frozenset() -> bool:
    return len(frozenset((each, (each,)) for each in range(ITEMS))) == ITEMS


def build_dict() -> bool:
    return dict((each, [each]) for each in range(ITEMS))[ITEMS - 1] == [ITEMS - 1]


def build_zip() -> bool:
    return [one for one, _ in zip(items(ITEMS), items(ITEMS), strict=True)][-1] == [ITEMS - 1]


def build_generators() -> bool:
    made = [items(3) for _ in range(8)]
    return [next(each) for each in made] == [[0]] * 8


def build_frames() -> bool:
    return depth(20) == 20


def build_cycle() -> bool:
    made: list[Any] = [{}, ()]
    made[0]["me"] = made
    made[1] = (made, tuple(items(12)))
    return made[1][1][11] == [11]


BUILDS: list[Callable[[], bool]] = [
    build_tuple, build_nested, build_pair, build_frozenset, build_dict, build_zip, build_generators, build_frames,
    build_cycle,
]  # fmt: skip


def builder(found: dict[str, int], made: list[int], over: threading.Event) -> None:
    """Builds one after the other, and counts what is wrong by its kind."""
    while not over.is_set():
        for build in BUILDS:
            try:
                wrong = "" if build() else build.__name__
            except Exception as error:
                wrong = f"{build.__name__}: {type(error).__name__}: {error}"
            if wrong:
                found[wrong] = found.get(wrong, 0) + 1
        made[0] += 1


def turn(hook: GCHook, number: int, rng: random.Random) -> None:
    """One freeze or slice."""
    does = rng.randrange(8)
    if does == 0:
        hook.freeze()
    elif does == 1:
        gc.freeze()
    elif does == 2:
        freeze_past_the_hook()
        hook.look_for_freeze()
    elif hook.policy == "idle":
        hook.idle_gc.slicer.slice(rng.choice((16, 200, 2000)))
    if does > 4:
        gc.collect(does % 2)
    if number % TURNS_FROZEN == 0:
        gc.unfreeze()


def main(policy: str, turns: int) -> None:
    """Prints {"found": what went wrong, how often; "made": least of one thread; "mode": of the policy; "cycles"}."""
    core = _hot.Core("api", 1, (0, 0, 0, 0, 0), 0, lambda scope: "", lambda sent, stream: sent)
    hook = GCHook(core, policy)
    hook.attach()
    hook.freeze()
    found: dict[str, int] = {}
    made, over = [[0] for _ in range(THREADS)], threading.Event()
    threads = [threading.Thread(target=builder, args=(found, each, over)) for each in made]
    sys.setswitchinterval(SWITCH_SECONDS)
    for thread in threads:
        thread.start()
    rng = random.Random(turns)
    for number in range(turns):
        turn(hook, number, rng)
    over.set()
    for thread in threads:
        thread.join()
    counts = hook.idle_gc.slicer.counts()
    slices = sum(counts[reason] for reason in SLICE_REASONS)
    least = min(each[0] for each in made)
    json.dump({"found": found, "made": least, "mode": hook.idle_gc.mode, "slices": slices}, sys.stdout)
    hook.detach()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
