"""A trace of this process, for ui.perfetto.dev: two streams, an engine's steps, and a collection that holds all up.

python examples/traces/plain.py out.pftrace
"""

from __future__ import annotations

import gc
import sys
import threading
import time

import tailwatch

HEAP = [[i] for i in range(300_000)]  # what makes a full collection long


def stream(tokens: int) -> None:
    """A request, stamped by hand."""
    with tailwatch.stream(model="toy") as request:
        for _ in range(tokens):
            time.sleep(0.005)
            request.token()


def engine(steps: int) -> None:
    """Iterations with work waiting after each, and one full collection."""
    for number in range(steps):
        with tailwatch.step("decode", batch=2, waiting=1):
            time.sleep(0.004)
        if number == steps // 2:
            gc.collect()


def main() -> None:
    """Records, and writes the file."""
    path = sys.argv[1] if len(sys.argv) > 1 else "out.pftrace"
    tailwatch.install(role="engine", trace_events=100_000, gc="observe")
    threads = [threading.Thread(target=stream, args=(40,)) for _ in range(2)]
    threads.append(threading.Thread(target=engine, args=(40,)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tailwatch.trace(path)
    tailwatch.uninstall()
    print(f"{path}: open it in https://ui.perfetto.dev")


if __name__ == "__main__":
    main()
