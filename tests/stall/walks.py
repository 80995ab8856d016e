"""Stacks of threads that call, return, raise and end as fast as they can are read from outside:

python walks.py DIRECTORY_OF_WALKSTRESS TIMES [filtered]
"""

from __future__ import annotations

import json
import sys
import threading

sys.path.insert(0, sys.argv[1])

import walkstress  # type: ignore[import-not-found]

DEPTH = 12
done = threading.Event()
begun = threading.Event()

lines = ["def level_0(): level_1()"]
lines += [f"def level_{n}(): level_{n + 1}()" for n in range(1, DEPTH)]
lines += [f"def level_{DEPTH}():", "    raise LookupError"]
exec("\n".join(lines))


def generate() -> object:
    """Frames of another kind, where those of the levels were."""
    yield from (n for n in range(3))


def work(rounds: int) -> None:
    """Goes down and up; its stack is read while it does, and after it has ended."""
    walkstress.follow()
    begun.set()
    for _ in range(rounds):
        try:
            level_0()  # type: ignore[name-defined]  # noqa: F821
        except LookupError:
            list(generate())  # type: ignore[call-overload]


def come_and_go() -> None:
    """Threads that live for some milliseconds."""
    while not done.is_set():
        thread = threading.Thread(target=work, args=(200,))
        thread.start()
        thread.join()


def main() -> None:
    if "filtered" in sys.argv:
        walkstress.forbid()
    assert walkstress.find(sys.version_info[1], main.__code__)
    threads = [threading.Thread(target=come_and_go) for _ in range(2)]
    for thread in threads:
        thread.start()
    begun.wait()
    result = walkstress.walk(int(sys.argv[2]))
    done.set()
    for thread in threads:
        thread.join()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
