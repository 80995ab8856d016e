"""A measured run, and then a profile of a few more requests: torch's profiler and tailwatch's own events in one file.

    python examples/traces/torch_profile.py out/

out/manifest.json lists what is where; open out/together.json in https://ui.perfetto.dev. Without torch there is
out/tailwatch.pftrace alone, and the manifest has that.
"""

from __future__ import annotations

import gc
import sys
import tempfile
import threading
from collections.abc import Callable

import tailwatch

TOKENS = 30


def decoder() -> Callable[[], object]:
    """One step of a model."""
    try:
        import torch
    except ImportError:
        return lambda: sum(range(20_000))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    weights, state = torch.randn(512, 512, device=device), torch.randn(8, 512, device=device)
    return lambda: (state @ weights).argmax(dim=1).tolist()


def serve(step: Callable[[], object], over: threading.Event) -> None:
    """Requests, one after the other."""
    while not over.is_set():
        with tailwatch.stream(model="example") as stream:
            for _ in range(TOKENS):
                with tailwatch.step("decode", batch=1, waiting=1):
                    step()
                stream.token()
        gc.collect()


def main(directory: str) -> None:
    """First the numbers, with no profiler near; then the profile."""
    tailwatch.install(gc="observe")
    over = threading.Event()
    traffic = threading.Thread(target=serve, args=(decoder(), over))
    traffic.start()
    over.wait(1.0)
    measured = tailwatch.snapshot()
    found = tailwatch.profile(directory, requests=5, seconds=30)
    over.set()
    traffic.join()
    print(f"measured before: {measured.itl.count} gaps, p99 {measured.itl.p(99) * 1e3:.3f} ms")
    print(f"profiled: {found.requests} requests")
    for name, what in found.files.items():
        print(f"  {found.path / name}: {what}")
    for note in found.notes:
        print(f"  not had: {note}")
    tailwatch.uninstall()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(temporary)
